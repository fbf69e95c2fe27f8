"""Find in a project what the table of differences speaks of: settings, components, their code.

Nothing of the project is made for that: of classes only the code is read.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from inspect import getmro
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, default_settings
from scrapy.utils.misc import load_object

from scrapyd_dist.differences import (
    DIFFERENCES,
    Difference,
    FoundDifference,
    Meaning,
    Trait,
    by_trait,
)
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.goals import DEPTH, GIVEN
from scrapyd_dist.items.merging import is_elsewhere
from scrapyd_dist.settings import SettingReader

from ..spider_attributes import is_own
from .code_reader import attribute_use, keeps_something, names_in, names_of_method, top_package
from .effect_reader import (
    only_reads_files,
    reporting_ends,
    writes_files,
    writing_beginnings,
    writing_methods,
    writing_modules,
)
from .feed_outputs import feeds_in_order
from .file_reader import files_beside
from .memory_reader import (
    attribute_memory,
    callback_buffers,
    component_buffers,
    component_memory,
    module_memory,
)
from .script_reader import foreign_handlers, watching_script
from .set_aside import setting_given
from .source_reader import errbacks_of, handlers_of
from .spider_reads import learned_on_index, made_by_properties, read_in_jobs, set_on_index
from .surroundings_reader import (
    attributes_made_anew,
    modules_of,
    project_paths_read,
    reads_feeds,
    settings_made_anew,
    texts_in,
    uses_all_arguments,
    variables_read,
)
from .unheard_changes import unheard_on_index

#: settings that list components
_LISTS = ("ITEM_PIPELINES", "EXTENSIONS", "SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES")
#: those of components that requests, pages and items pass
_IN_JOBS = ("ITEM_PIPELINES", "SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES")
_BESIDE_PIPELINES = ("SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES", "EXTENSIONS")
#: what the settings begin with that spare a site by few requests at a time
_CONCURRENCY = "CONCURRENT_REQUESTS"
#: settings that are a component themselves
_SINGLE = ("DUPEFILTER_CLASS", "STATS_CLASS")
#: variables, in lower case, by which Scrapy sends requests through a proxy
_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy"})
#: the order of this program's spider middleware, as `addon.PRIORITY`
OWN_ORDER = 100
#: signals of items
_OF_ITEMS = frozenset({"item_scraped", "item_dropped", "item_error"})
#: what code that opens a file or a database calls, besides `connect`
_OPENS = frozenset(
    {
        "open",
        "write_text",
        "write_bytes",
        "create_engine",
        "MongoClient",
        "AsyncIOMotorClient",
        "ZipFile",
    }
)


def find_differences(settings: BaseSettings, spider: type[Spider]) -> list[FoundDifference]:
    """Return the rows that concern this spider in this project, in the table's order.

    Those that mean the same as with `scrapy crawl` are there, too. The settings are those of the
    spider's crawler, before or after the add-on has changed them.
    """
    listed = {name: list(_load_listed(settings, name)) for name in _LISTS}
    components = list(chain.from_iterable(listed.values()))
    for name in _SINGLE:
        kind = _load_class(settings.get(name))
        if kind is not None:
            components.append(kind)
    traits = _find_traits(settings, spider, listed)
    found = []
    for row in DIFFERENCES.values():
        names = _find_names(row, settings, components, traits)
        if names:
            found.append(FoundDifference(difference=row, found=names))
    return found


def own_components(settings: BaseSettings) -> list[type]:
    """Return the classes of pipelines, middlewares and extensions that are not Scrapy's."""
    listed = chain.from_iterable(_load_listed(settings, name) for name in _LISTS)
    return list(filter(is_own, listed))


def refuse_differences(found: Iterable[FoundDifference]) -> None:
    """Raise ConfigError for the first difference with which no crawl can work."""
    for difference in found:
        if difference.difference.meaning is Meaning.REFUSED:
            raise ConfigError(str(difference))


def told_differences(found: Iterable[FoundDifference]) -> list[FoundDifference]:
    """Return those that people are told of."""
    return [row for row in found if row.difference.meaning is Meaning.TOLD]


def join_rows(found: Iterable[FoundDifference]) -> list[FoundDifference]:
    """Return each row once, with all that was noticed of it."""
    names = dict[str, dict[str, None]]()
    for row in found:
        names.setdefault(row.difference.name, {}).update(dict.fromkeys(row.found))
    joined = []
    for name, noticed in names.items():
        joined.append(FoundDifference(difference=DIFFERENCES[name], found=tuple(noticed)))
    return joined


def _find_names(
    row: Difference,
    settings: BaseSettings,
    components: Iterable[type],
    traits: dict[Trait, list[str]],
) -> tuple[str, ...]:
    """Return the names of the settings and classes of the project of which a row speaks."""
    names = _settings_given(row, settings)
    for setting in row.folders:
        if _is_folder(setting_given(settings, setting)):
            names.append(setting)
    for kind in components:
        if _is_made_from(kind, row.components):
            names.append(kind.__qualname__)
    if row.trait is not None:
        names += traits.get(row.trait, [])
    return tuple(dict.fromkeys(names))


def _settings_given(row: Difference, settings: BaseSettings) -> list[str]:
    """Return the given settings of which a row speaks, by name or pattern."""
    # With DEPTH, DEPTH_LIMIT counts over the whole crawl.
    is_depth_kept = DEPTH in settings and bool(settings.getint(DEPTH))
    names = []
    for wanted in row.settings:
        for name in _match_settings(wanted, settings):
            if name == "DEPTH_LIMIT" and is_depth_kept:
                continue
            if name.startswith(_CONCURRENCY) and not _is_lowered(settings, name):
                continue
            if _is_given(settings, name):
                names.append(name)
    return names


def _is_lowered(settings: BaseSettings, name: str) -> bool:
    """Return whether a setting is lower than Scrapy's: it spares the site."""
    return settings.getint(name) < int(getattr(default_settings, name))


def _match_settings(wanted: str, settings: BaseSettings) -> list[str]:
    if "*" not in wanted:
        return [wanted]
    return [name for name in settings if fnmatchcase(name, wanted)]


def _is_given(settings: BaseSettings, name: str) -> bool:
    """Return whether a setting has another value than Scrapy's.

    It may be from the project, the spider or the command line, and not from an add-on.
    """
    value = setting_given(settings, name)
    usual = getattr(default_settings, name, None)
    is_ours = getattr(value, "__module__", "").startswith("scrapyd_dist.")
    if not value or is_ours or (settings.get(GIVEN) or {}).get(name):
        return False
    priority = settings.getpriority(name) or 0
    return priority >= SETTINGS_PRIORITIES["project"] and str(value) != str(usual)


def _is_folder(value: Any) -> bool:
    place = str(value or "")
    return bool(place) and not is_elsewhere(place)


def _is_made_from(kind: type, paths: Iterable[str]) -> bool:
    wanted = set(paths)
    return any(f"{base.__module__}.{base.__qualname__}" in wanted for base in getmro(kind))


def _load_listed(settings: BaseSettings, name: str) -> Iterator[type]:
    """Yield the classes that a setting switches on, besides those that Scrapy has on by itself.

    No row is about these, and to load them takes longer than all checks together. One that cannot
    be imported is Scrapy's to complain of.
    """
    scrapys = settings.getdict(f"{name}_BASE")
    for component, order in settings.getwithbase(name).items():
        if order is None or component in scrapys:
            continue
        kind = _load_class(component)
        if kind is not None:
            yield kind


def _beyond_targets(settings: BaseSettings, code: Mapping[type, set[str]]) -> list[str]:
    """Return the project's spider middlewares that would get requests, but not those of targets.

    They are between this program's own one and the engine. `code`: class -> the names in its code.
    """
    names = []
    for component, order in settings.getwithbase("SPIDER_MIDDLEWARES").items():
        kind = None if order is None or order >= OWN_ORDER else _load_class(component)
        if kind is None or kind not in code:
            continue
        if hasattr(kind, "process_start") or "Request" in code[kind]:
            names.append(kind.__qualname__)
    return names


def _load_class(component: Any) -> type | None:
    try:
        kind = load_object(component)
    except Exception:  # noqa: BLE001  (an import may raise anything)
        return None
    return kind if isinstance(kind, type) else None


def _find_traits(
    settings: BaseSettings, spider: type[Spider], listed: dict[str, list[type]]
) -> dict[Trait, list[str]]:
    """Return for each trait the names of the classes or settings that have it."""
    traits = defaultdict[Trait, list[str]](list)
    package = top_package(spider)
    code = {spider: names_in(spider, package)}
    own = list(filter(is_own, chain.from_iterable(listed.values())))
    for kind in own:
        code[kind] = names_in(kind, package)
        if {"engine", "crawl"} <= code[kind]:
            traits[Trait.MAKES_REQUESTS].append(kind.__qualname__)
    traits[Trait.BEYOND_TARGETS] = _beyond_targets(settings, code)
    for kind, names in code.items():
        if "spider_idle" in names:
            traits[Trait.HANDLES_IDLE].append(kind.__qualname__)
    traits[Trait.DROPS_REPEATS] = list(_dropping_repeats(listed, code))
    modules = modules_of([spider, *own])
    traits[Trait.OPENS_FILES] = [
        *_opening_files(listed, code),
        *writing_beginnings(spider),
        *writing_modules(modules),
    ]
    for kind in filter(is_own, listed["EXTENSIONS"]):
        traits[Trait.OWN_EXTENSION].append(kind.__qualname__)
    traits[Trait.REMEMBERS] = _memory_of(listed, traits[Trait.DROPS_REPEATS])
    for kind in filter(is_own, listed["SPIDER_MIDDLEWARES"]):
        traits[Trait.HOLDS_BACK] += component_buffers(kind)
    known_kinds = {*traits[Trait.OPENS_FILES], *traits[Trait.OWN_EXTENSION]}
    traits[Trait.REPORTS_AT_END] = _ends_of([spider, *own], known_kinds)
    traits.update(_traits_of_surroundings(settings, modules))
    if uses_all_arguments(spider):
        traits[Trait.ALL_ARGUMENTS].append(f"{spider.__qualname__}.__init__")
    for kind in filter(reads_feeds, [spider, *own]):
        traits[Trait.READS_FEEDS].append(kind.__qualname__)
    traits[Trait.START_WAITS_FOR_ITEMS] = _starts_that_wait(spider)
    traits.update(_cache_traits(settings))
    traits[Trait.FEED_IN_ORDER] = feeds_in_order(settings)
    return traits


def _traits_of_surroundings(
    settings: BaseSettings, modules: Collection[ModuleType]
) -> dict[Trait, list[str]]:
    """Return on what of this machine the project's modules, its settings and Scrapy depend."""
    folder = Path.cwd()
    settings_modules = _settings_modules()
    in_config = project_paths_read(modules)
    beside = list[str]()
    for path in files_beside(modules, settings_modules, folder):
        names = in_config if Path(path).name == "scrapy.cfg" else beside
        names.append(path)
    variables = variables_read([*modules, *settings_modules], folder)
    return {
        Trait.ENVIRONMENT: [*variables, *_proxies_of(settings)],
        Trait.FILES_BESIDE: beside,
        Trait.PROJECT_FOLDER: in_config,
    }


def _proxies_of(settings: BaseSettings) -> Iterator[str]:
    """Yield the variables that name a proxy for the requests that leave this machine.

    Scrapy's HttpProxyMiddleware reads them, in upper and in lower case.
    """
    if settings.getbool("HTTPPROXY_ENABLED"):
        for name, value in os.environ.items():
            if value and name.lower() in _PROXY_VARIABLES:
                yield name


def _settings_modules() -> list[ModuleType]:
    """Return the module of the project's settings, if there is one."""
    module = sys.modules.get(os.environ.get("SCRAPY_SETTINGS_MODULE", ""))
    return [module] if module is not None else []


def _dropping_repeats(
    listed: Mapping[str, Iterable[type]], code: Mapping[type, set[str]]
) -> Iterator[str]:
    """Yield the pipelines that drop items and remember something."""
    for kind in filter(is_own, listed["ITEM_PIPELINES"]):
        if "DropItem" in code[kind] and keeps_something(kind):
            yield kind.__qualname__


def _opening_files(
    listed: Mapping[str, Iterable[type]], code: Mapping[type, set[str]]
) -> Iterator[str]:
    """Yield the pipelines that open files or databases, and others that write files."""
    for kind in filter(is_own, listed["ITEM_PIPELINES"]):
        names = code[kind]
        if only_reads_files(kind):
            names = names - {"open"}
        if _opens_something(names) or writes_files(kind):
            yield kind.__qualname__
    others = chain(*map(listed.__getitem__, _BESIDE_PIPELINES))
    for kind in filter(is_own, others):
        if writes_files(kind):
            yield kind.__qualname__


def _ends_of(kinds: Iterable[type], known_kinds: Collection[str]) -> list[str]:
    """Return the ends that write, send or judge something, besides those that are told already."""
    names: list[str] = []
    for kind in kinds:
        if kind.__qualname__ not in known_kinds:
            names += reporting_ends(kind)
    return names


def _memory_of(listed: Mapping[str, Iterable[type]], known_kinds: Iterable[str]) -> list[str]:
    """Return what pipelines and middlewares remember, besides those that are told already."""
    names = []
    for name in _IN_JOBS:
        for kind in filter(is_own, listed[name]):
            if kind.__qualname__ not in known_kinds:
                names += component_memory(kind)
    return names


def _cache_traits(settings: BaseSettings) -> dict[Trait, list[str]]:
    """Return what the HTTP cache means where its folder is the project's own."""
    is_shared = Path(str(settings.get("HTTPCACHE_DIR") or "")).is_absolute()
    if not settings.getbool("HTTPCACHE_ENABLED") or is_shared:
        return {}
    if settings.getbool("HTTPCACHE_IGNORE_MISSING"):
        return {Trait.CACHE_ONLY: ["HTTPCACHE_IGNORE_MISSING"]}
    return {Trait.CACHE: ["HTTPCACHE_ENABLED"]}


def kept_by_callbacks(spider: type[Spider], callbacks: Iterable[str]) -> list[FoundDifference]:
    """Find in what the callbacks of target pages keep something.

    One row with the names of attributes, one with those of their modules, one with what is held
    back for later, and one with the methods that write files, if there are any.
    The spider's handlers of signals, and its errbacks, get target pages as well.
    """
    methods = {*callbacks, *handlers_of(spider), *errbacks_of(spider)}
    kept = attribute_use(spider, methods).kept - made_by_properties(spider, methods)
    kept = kept.union(attribute_memory(spider, methods))
    buffers = callback_buffers(spider, methods)
    return [
        *_rows_of(Trait.KEPT_ATTRIBUTES, kept.difference(buffers)),
        *_rows_of(Trait.REMEMBERS, module_memory(spider, methods)),
        *_rows_of(Trait.HOLDS_BACK, buffers),
        *_rows_of(Trait.WRITES_FILES, writing_methods(spider, methods)),
    ]


def _rows_of(trait: Trait, found: Iterable[str]) -> list[FoundDifference]:
    """Return one row with these names in order; none if there are no names."""
    names = sorted(found)
    return [FoundDifference(difference=by_trait(trait), found=names)] if names else []


def find_set_on_index(
    settings: BaseSettings, spider: type[Spider], callbacks: Collection[str]
) -> list[FoundDifference]:
    """Find the attributes and names of modules that code sets on index pages, and jobs read.

    One row with the names of attributes, and one with those of modules, if there are any.
    Attributes that travel with each request are left out.
    """
    travelling = SettingReader(settings).value("DISTRIBUTED_SPIDER_ATTRIBUTES")
    names = set_on_index(spider, callbacks).difference(travelling)
    components = own_components(settings)
    if names:
        names &= read_in_jobs(spider, callbacks, components)
    return [
        *_rows_of(Trait.CHANGED_ATTRIBUTES, names),
        *_rows_of(Trait.REMEMBERS, learned_on_index(spider, callbacks, components)),
    ]


def find_unheard_on_index(
    settings: BaseSettings, spider: type[Spider], callbacks: Collection[str]
) -> list[FoundDifference]:
    """Find what callbacks of index pages read that code of jobs sets: they never hear of it.

    One row with the names of attributes, of places in modules and of methods of statistics, or
    none.
    """
    components = own_components(settings)
    return _rows_of(Trait.UNHEARD_ON_INDEX, unheard_on_index(spider, callbacks, components))


def find_unheard(crawler: Crawler | None, spider: type[Spider]) -> list[FoundDifference]:
    """Find the program that has started this crawl and looks at it, and its handlers.

    One row with their names, or none.
    """
    names = list(filter(None, [watching_script(sys.modules.get("__main__"))]))
    if crawler is not None:
        names += foreign_handlers(crawler, [spider, *own_components(crawler.settings)])
    return _rows_of(Trait.IN_SCRIPT, set(names))


def find_made_anew(
    settings: BaseSettings, spider: type[Spider], callbacks: Iterable[str]
) -> list[FoundDifference]:
    """Find the attributes and settings that each process makes for itself, and that jobs read.

    One row with their names, or none.
    """
    components = own_components(settings)
    names = attributes_made_anew(spider)
    if names:
        names &= read_in_jobs(spider, callbacks, components)
    for module in _settings_modules():
        own = settings_made_anew(module)
        if own:
            names |= own & texts_in(modules_of([spider, *components]))
    return _rows_of(Trait.MADE_ANEW, names)


def _starts_that_wait(spider: type[Spider]) -> list[str]:
    """Return the name of the spider's `start` if its code waits for a signal of items."""
    names = names_of_method(spider, "start")
    if "wait_for" not in names or _OF_ITEMS.isdisjoint(names):
        return []
    return [f"{spider.__qualname__}.start"]


def _opens_something(names: set[str]) -> bool:
    """Return whether code with these names opens a file or a database.

    To connect a signal is no such thing.
    """
    return bool(_OPENS & names) or ("connect" in names and "signals" not in names)
