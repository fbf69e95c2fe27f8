"""Notices in a project what the table of differences speaks of: by its settings, its components and their code.

Nothing of the project is made for that: of classes only the code is read.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from inspect import getmro
from itertools import chain
from pathlib import Path
from typing import Any

from scrapy import Spider
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

from ..spider_attributes import is_own
from .code_reader import attribute_use, keeps_something, names_in, top_package
from .set_aside import setting_given

#: settings that list components
_LISTS = ("ITEM_PIPELINES", "EXTENSIONS", "SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES")
#: settings that are a component themselves
_SINGLE = ("DUPEFILTER_CLASS", "STATS_CLASS")
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
    """The rows that concern this spider in this project, in the table's order; those that mean the same, too.

    The settings are those of the spider's crawler, before or after the add-on has changed them.
    """
    components = {name: list(_enabled(settings, name)) for name in _LISTS}
    single = [kind for name in _SINGLE if (kind := _loaded(settings.get(name))) is not None]
    every = [*chain.from_iterable(components.values()), *single]
    traits = _traits(settings, spider, components)
    found = (_find(row, settings, every, traits) for row in DIFFERENCES.values())
    return [one for one in found if one.found]


def refuse_differences(found: Iterable[FoundDifference]) -> None:
    """Raise ConfigError for the first difference with which no crawl can work."""
    for one in found:
        if one.difference.meaning is Meaning.REFUSED:
            raise ConfigError(str(one))


def told_differences(found: Iterable[FoundDifference]) -> list[FoundDifference]:
    """Those that people are told of."""
    return [one for one in found if one.difference.meaning is Meaning.TOLD]


def _find(
    row: Difference,
    settings: BaseSettings,
    components: Iterable[type],
    traits: dict[Trait, list[str]],
) -> FoundDifference:
    named = [
        *_settings_given(row, settings),
        *(name for name in row.folders if _is_folder(setting_given(settings, name))),
    ]
    named += [kind.__qualname__ for kind in components if _is_made_from(kind, row.components)]
    if row.trait is not None:
        named += traits.get(row.trait, [])
    return FoundDifference(difference=row, found=tuple(dict.fromkeys(named)))


def _settings_given(row: Difference, settings: BaseSettings) -> list[str]:
    names = [
        name
        for wanted in row.settings
        for name in _matching(wanted, settings)
        if _is_given(settings, name)
    ]
    if DEPTH in settings and settings.getint(DEPTH):
        names = [
            name for name in names if name != "DEPTH_LIMIT"
        ]  # it counts over the whole crawl then
    return names


def _matching(wanted: str, settings: BaseSettings) -> list[str]:
    return [name for name in settings if fnmatchcase(name, wanted)] if "*" in wanted else [wanted]


def _is_given(settings: BaseSettings, name: str) -> bool:
    """Whether the project, the spider or the command line gives this setting another value than Scrapy's."""
    value, usual = setting_given(settings, name), getattr(default_settings, name, None)
    is_ours = getattr(value, "__module__", "").startswith("scrapyd_dist.")
    if not value or is_ours or (settings.get(GIVEN) or {}).get(name):
        return False
    return (settings.getpriority(name) or 0) >= SETTINGS_PRIORITIES["project"] and str(
        value
    ) != str(usual)


def _is_folder(value: Any) -> bool:
    return bool(value) and "://" not in str(value)


def _is_made_from(kind: type, paths: Iterable[str]) -> bool:
    wanted = set(paths)
    return any(f"{base.__module__}.{base.__qualname__}" in wanted for base in getmro(kind))


def _enabled(settings: BaseSettings, name: str) -> Iterator[type]:
    """The classes that this setting switches on; one that cannot be imported is Scrapy's to complain of."""
    for component, order in settings.getwithbase(name).items():
        kind = None if order is None else _loaded(component)
        if kind is not None:
            yield kind


def _loaded(component: Any) -> type | None:
    try:
        kind = load_object(component)
    except Exception:
        return None
    return kind if isinstance(kind, type) else None


def _traits(
    settings: BaseSettings, spider: type[Spider], components: dict[str, list[type]]
) -> dict[Trait, list[str]]:
    """Trait -> the names of the classes or settings that have it."""
    pipelines = [kind for kind in components["ITEM_PIPELINES"] if is_own(kind)]
    every = [kind for kind in chain.from_iterable(components.values()) if is_own(kind)]
    code = {kind: names_in(kind, top_package(spider)) for kind in [spider, *every]}
    return {
        Trait.HANDLES_IDLE: _called([kind for kind in code if "spider_idle" in code[kind]]),
        Trait.MAKES_REQUESTS: _called(
            [kind for kind in every if {"engine", "crawl"} <= code[kind]]
        ),
        Trait.DROPS_REPEATS: _called(
            [kind for kind in pipelines if "DropItem" in code[kind] and keeps_something(kind)]
        ),
        Trait.OPENS_FILES: _called([kind for kind in pipelines if _opens_something(code[kind])]),
        Trait.OWN_EXTENSION: _called(filter(is_own, components["EXTENSIONS"])),
        **_cache_traits(settings),
    }


def _cache_traits(settings: BaseSettings) -> dict[Trait, list[str]]:
    """What the HTTP cache means where its folder is the project's own."""
    is_shared = Path(str(settings.get("HTTPCACHE_DIR") or "")).is_absolute()
    if not settings.getbool("HTTPCACHE_ENABLED") or is_shared:
        return {}
    if settings.getbool("HTTPCACHE_IGNORE_MISSING"):
        return {Trait.CACHE_ONLY: ["HTTPCACHE_IGNORE_MISSING"]}
    return {Trait.CACHE: ["HTTPCACHE_ENABLED"]}


def kept_by_callbacks(spider: type[Spider], callbacks: Iterable[str]) -> list[FoundDifference]:
    """The row of the attributes in which the callbacks of target pages keep something; none if there are none such."""
    names = sorted(attribute_use(spider, callbacks).kept)
    return (
        [FoundDifference(difference=by_trait(Trait.KEPT_ATTRIBUTES), found=names)] if names else []
    )


def _opens_something(names: set[str]) -> bool:
    """Whether code with these names opens a file or a database; to connect a signal is no such thing."""
    return bool(_OPENS & names) or ("connect" in names and "signals" not in names)


def _called(kinds: Iterable[type]) -> list[str]:
    return [kind.__qualname__ for kind in kinds]
