"""Collect what a crawl is to be (spider, options, start pages), and refuse what cannot work."""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scrapy import Spider
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from w3lib.url import safe_url_string

from scrapyd_dist import config
from scrapyd_dist.batches import Shard
from scrapyd_dist.differences import DIFFERENCES, FoundDifference, Trait, by_trait
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.goals import DEPTH
from scrapyd_dist.items.merging import check_folder, is_elsewhere
from scrapyd_dist.nodes import check_project
from scrapyd_dist.scheduling.job_request import passed_on
from scrapyd_dist.scrapyd.jobs import check_args, check_spider_name
from scrapyd_dist.settings import (
    LABELS,
    SettingReader,
    Travels,
    check_settings,
    limits_in,
    travelling,
)
from scrapyd_dist.shards import ShardTemplate, check_page, shards_of_pages, shards_of_urls
from scrapyd_dist.store.address import store_address
from scrapyd_dist.transports import AsyncSender

from ..engine_compat import has_own_filter, spider_method
from ..slot_routing import SlotRouting, hides_addon
from ..targets import Target
from ..throttle.throttle_options import SWITCH, options_of
from ..throttle.throttle_options import options_in as throttle_given
from .difference_finder import find_differences, refuse_differences, told_differences
from .feed_outputs import crawl_outputs, shown
from .merged_feeds import FeedHost, MergedFeeds
from .producer_options import CMDLINE, ProducerOptions

#: Scrapy's own part for each setting that may name another one
OWN = {
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
}
#: the setting that says what was wrong with the parts that were put aside
PUT_ASIDE = "SCRAPYD_DIST_PUT_ASIDE"
#: the package whose filter of duplicates is one for all processes that start in the same second
_SHARED = "scrapy_redis"
#: settings that name a method of the spider
METHODS = ("DISTRIBUTED_LOGIN", "DISTRIBUTED_REQUEST_HOOK")
#: the spider argument with the job's id
JOB_ARGUMENT = "_job"
#: digits that stand for a page number while an address is escaped
_PLACEHOLDER = "9081726354"


@dataclass(frozen=True, kw_only=True)
class PreparedProject:
    """Says where the project is, and what it is called on the nodes."""

    root: Path  #: the folder of scrapy.cfg, or the current one
    state: Path  #: the state folder
    name: str
    config: config.ProjectConfig | None  #: None without scrapy.cfg
    limits: Mapping[str, str] = field(default_factory=dict)  #: of the time of jobs, by scrapy.cfg


@dataclass(frozen=True, kw_only=True)
class CrawlRequest:
    """Says what a crawl is asked to be, before its store and its nodes are known."""

    spider: str
    options: ProducerOptions
    project: PreparedProject
    args: Mapping[str, str] = field(default_factory=dict)  #: of -a
    given: Mapping[str, str] = field(default_factory=dict)  #: of -s

    @property
    def store(self) -> str:
        """Return the store's URL or absolute path.

        ConfigError if it stands in a variable that is not set.
        """
        project = self.project
        in_file = project.config.options.get("store") if project.config else None
        return store_address(project.root, self.options.store, in_file)


def find_project(settings: BaseSettings) -> PreparedProject:
    """Return the project of the current folder.

    ConfigError if its scrapy.cfg cannot be read, or has a wrong value.
    """
    root = config.find_root()
    if root is None:
        root = Path.cwd()
        return PreparedProject(
            root=root,
            state=config.state_dir(root),
            name=check_project(str(settings.get("BOT_NAME"))),
            config=None,
        )
    loaded = config.load(root)
    return PreparedProject(
        root=root,
        state=config.state_dir(root),
        name=check_project(str(loaded.project or settings.get("BOT_NAME"))),
        config=loaded,
        limits=limits_in(loaded.options),
    )


def put_aside(settings: BaseSettings) -> bool:
    """Let Scrapy's own part stand in for one that cannot work.

    That one may fail before the crawl can be refused. Returns whether the values of our settings
    can be read.
    """
    for name, own in OWN.items():
        problem = _problem_of(settings, name)
        if problem:
            settings.set(PUT_ASIDE, problem, priority="cmdline")
            settings.set(name, own, priority="cmdline")
    try:
        check_settings(settings)
    except ConfigError as error:
        settings.set(PUT_ASIDE, str(error), priority="cmdline")
        return False
    return True


def check_parts(settings: BaseSettings) -> None:
    """Raise ConfigError if a part of Scrapy was replaced by one that cannot work here."""
    if settings.get(PUT_ASIDE):
        raise ConfigError(settings.get(PUT_ASIDE))
    for name in OWN:
        problem = _problem_of(settings, name)
        if problem:
            raise ConfigError(problem)


def _problem_of(settings: BaseSettings, name: str) -> str:
    """Say what is wrong with the part that this setting names; empty if nothing is."""
    part = settings[name]
    path = _import_path(part)
    try:
        kind = load_object(part)
    except Exception as error:  # noqa: BLE001  (an import may raise anything)
        return (
            f"{name} is {path}, which cannot be loaded: {type(error).__name__}: {error}. Correct it"
            " in the settings."
        )
    # Not issubclass(): to Scrapy, whatever has the methods is a scheduler.
    bases = getattr(kind, "__mro__", ())
    if name == "SCHEDULER" and Scheduler not in bases:
        return (
            f"SCHEDULER is {path}, which is not Scrapy's own scheduler nor made from it."
            f" {DIFFERENCES['SCHEDULER'].sentence}"
        )
    packages = {base.__module__.split(".")[0] for base in bases}
    if name == "DUPEFILTER_CLASS" and _SHARED in packages:
        sentence = DIFFERENCES["duplicate filter of scrapy-redis"].sentence
        return f"DUPEFILTER_CLASS is {path}. {sentence}"
    return ""


def _import_path(part: Any) -> str:
    return part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}"


def asked_for(settings: BaseSettings) -> tuple[dict[str, str], dict[str, str]]:
    """Return the `-a` and the `-s` of this process, of which Scrapy keeps no list.

    ConfigError if a name cannot be passed on.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", dest="args", action="append", default=[])
    parser.add_argument("-s", "--set", dest="settings", action="append", default=[])
    words, _ = parser.parse_known_args(sys.argv[1:])
    args = _pairs_in(words.args)
    for name, value in SettingReader(settings).value("DISTRIBUTED_SPIDER_ARGS").items():
        args[name] = str(value)
    check_args(args)
    return args, _pairs_in(words.settings)


def _pairs_in(words: Iterable[str]) -> dict[str, str]:
    """Return the names and values of words NAME=VALUE; other words are left out."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def job_settings(given: Mapping[str, str], options: ProducerOptions) -> dict[str, str]:
    """Return the settings that all jobs of the crawl get besides their batch.

    `given` are those of -s.
    """
    settings = {**passed_on(given), "DISTRIBUTED_PROFILE": options.profile}
    if options.labels:
        settings[LABELS] = ",".join(options.labels)
    if options.target_feed_url is not None and options.send_feed_url:
        settings["DISTRIBUTED_TARGET_FEED_URL"] = options.target_feed_url
    if options.goal_depth:
        settings[DEPTH] = str(options.goal_depth)
    return settings


def check_crawl(
    options: ProducerOptions, settings: BaseSettings, spider: Spider, args: Mapping[str, str]
) -> list[FoundDifference]:
    """Return what differs from `scrapy crawl`, as far as people are told of it.

    `args` are those of the spider.

    Raises:
        ConfigError: a crawl of this spider cannot work with these settings, or write its items.
    """
    check_spider_name(spider.name)
    check_mode(options, settings)
    check_parts(settings)
    check_outputs(options, settings, spider)
    check_spider(spider, settings, args)
    found = find_differences(settings, type(spider))
    refuse_differences(found)
    return told_differences(found)


def check_outputs(options: ProducerOptions, settings: BaseSettings, spider: Spider) -> None:
    """Raise ConfigError if the items cannot be written where they shall go."""
    outputs = crawl_outputs(options.outputs, settings)
    for file in outputs.files:
        check_folder(file.path.parent)
    for uri in outputs.feeds:
        if not is_elsewhere(uri):
            known_part, _, _ = uri.partition("%(")
            check_folder(Path(known_part).parent)
    if not outputs.feeds:
        return
    if options.target_feed_url is not None:
        raise ConfigError(
            "With a feed URL (--feed, DISTRIBUTED_TARGET_FEED_URL) items come back as lines of"
            f" JSON, and {', '.join(map(shown, outputs.feeds))} needs more than these (-o, -O,"
            " FEEDS): their classes, or Scrapy's own exporter. Leave out one of the two."
        )
    MergedFeeds(FeedHost(settings, spider), outputs.feeds)


def for_target(options: ProducerOptions, target: Target, settings: BaseSettings) -> ProducerOptions:
    """Return the options of a crawl with this target.

    Workers that follow rules must lease, since links go to the store.

    Raises:
        ConfigError: the options ask for something else, or the workers would need one filter of
            duplicates.
    """
    if not target.follows:
        return options
    if has_own_filter(settings):
        row = by_trait(Trait.OWN_FILTER_FOLLOWS)
        raise ConfigError(
            f"DUPEFILTER_CLASS is {_import_path(settings['DUPEFILTER_CLASS'])}. {row.sentence}"
        )
    wrong = "index pages (--index, --start-urls) are the producer's" if options.sharded else ""
    if not options.leases:
        wrong = "batches that are sent (--push, --feed) have no way to hand on links"
    if wrong:
        raise ConfigError(
            f"To the nodes go {target.how}; but {wrong}. Name the pages that workers fetch without"
            " following their links: --rule N (DISTRIBUTED_TARGET_RULE). Or leave the other option"
            " out."
        )
    return replace(
        options,
        only_leased=options.only_leased or "rules that follow links on pages with a callback",
    )


def check_mode(options: ProducerOptions, settings: BaseSettings) -> None:
    """Raise ConfigError if the settings ask for what the mode does not have.

    Also if they ask for slots that cannot be.
    """
    if not options.leases:
        if options.only_leased:
            raise ConfigError(
                f"{options.only_leased}: only workers that lease their batches know of it, and this"
                ' crawl sends its batches to the nodes. Add --pull (DISTRIBUTED_MODE = "pull"), or'
                " take it out of the settings."
            )
        return
    SlotRouting.from_settings(settings)
    if options.sharded and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests of a spider can go to the workers (DISTRIBUTED_SEEDS), but index pages"
            " (--index, --start-urls) are walked by the producer, each shard by itself. Leave out"
            " one of the two."
        )
    if options.limit and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests that go to the workers (DISTRIBUTED_SEEDS) leave the finding to them,"
            " each for itself, and a limit (--limit, DISTRIBUTED_LIMIT) counts what the producer"
            " finds. Leave out one of the two."
        )


def worker_settings(options: ProducerOptions, settings: BaseSettings) -> dict[str, str]:
    """Return, of the settings given on the command line, those of ours that workers need."""
    kinds = (Travels.LEASING, Travels.SLOTS) if options.leases else ()
    needed = {}
    for name in travelling(Travels.FLEET, *kinds):
        is_given = (settings.getpriority(name) or 0) >= CMDLINE
        if is_given and settings[name] is not None:
            needed[name] = _as_text(settings[name])
    return needed


def shared_settings(settings: BaseSettings) -> dict[str, str]:
    """Return the settings for workers of another project, too.

    They say where requests lie, and the limits of this crawl.
    """
    shared = {}
    for name in travelling(Travels.SLOTS):
        # Also those without a value: that project's own slots are for its own frontiers.
        shared[name] = _as_text(settings[name] or "")
    throttle = options_of(settings)
    if throttle.on:
        for name, value in throttle_given(settings).items():
            shared[name] = _as_text(value)
    elif not throttle.heeds:
        # A throttle that these settings do not mention is that project's own affair.
        shared[SWITCH] = _as_text(False)
    return shared


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))  # as Scrapy reads a list
    return json.dumps(dict(value)) if hasattr(value, "items") else str(value)


def template_of(options: ProducerOptions) -> ShardTemplate | None:
    """Return the address of the index pages, when they are numbered."""
    if options.index is None:
        return None
    plain = ShardTemplate(options.index)
    check_page(plain.url(0), "The index address (--index, DISTRIBUTED_INDEX)")
    # Scrapy escapes spaces and letters beyond ASCII in an address: pages are recognised by what it
    # makes of it.
    escaped = safe_url_string(plain.url_with(_PLACEHOLDER))
    return ShardTemplate(escaped.replace(_PLACEHOLDER, plain.place))


def shards_of(options: ProducerOptions, spider: Spider) -> list[Shard]:
    """Return the shards: of the numbered index, of a list, or one for the spider's own start.

    ConfigError if the start pages cannot be divided so, or the spider's own start would never be
    called.
    """
    template = template_of(options)
    if template is not None:
        assert options.pages is not None
        return shards_of_pages(
            template, pages=options.pages, shards=options.shards, first_page=options.first_page
        )
    if options.start_urls_file is not None:
        return shards_of_urls(_read_start_urls(Path(options.start_urls_file)))
    _check_start(spider)
    return [Shard(number=0, url="")]


def _read_start_urls(path: Path) -> list[str]:
    """Return the addresses in a list of start pages; ConfigError if a line has none."""
    text = config.read_text(path, f"The list of start URLs {path}")
    urls = []
    for number, line in enumerate(text.splitlines(), 1):
        url = line.strip()
        if url and not line.startswith("#"):
            urls.append(check_page(url, f"{path}, line {number},"))
    return urls


def _check_start(spider: Spider) -> None:
    """Raise ConfigError if the spider's own start would make no request."""
    kind = type(spider)
    if kind.start is not Spider.start:
        return
    scrapys = getattr(Spider, "start_requests", None)
    own = getattr(kind, "start_requests", None)
    # Scrapy 2.16 and later never call `start_requests`: such a spider makes no request, and ends
    # well.
    if own is not None and scrapys is None:
        raise ConfigError(
            f"The spider {spider.name} has a start_requests() method, which this version of Scrapy"
            " never calls: it would make no request at all. Rename it to `async def start(self)`"
            " (the yields stay), or give the index pages with --index and --pages."
        )
    has_pages = bool(spider.start_urls) or bool(getattr(spider, "start_url", ""))
    if own is scrapys and not has_pages:
        raise ConfigError(
            f"The spider {spider.name} has no start_urls, and no start() of its own: it would make"
            " no request at all. Give it start pages, or the index pages with --index and --pages."
        )


def check_spider(
    spider: Spider | type[Spider],
    settings: BaseSettings,
    args: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigError if the spider lacks a method that the settings name, or suits no job.

    A spider whose own settings replace the add-ons would crawl the index in each of its jobs.
    """
    for name in METHODS:
        spider_method(spider, settings, name)
    kind = spider if isinstance(spider, type) else type(spider)
    if not (_takes_job(kind.__init__) and _takes_job(kind.from_crawler)):
        raise _takes_no_job(kind)
    if not all(map(_takes_job, _constructors(kind))):
        own: Any = settings.copy()
        own.frozen = False
        # What else the spider raises is of another crawler, and not of the crawl's own.
        with suppress(AttributeError, KeyError, ValueError, OSError):
            make_as_job(Crawler(kind, own), args)
    if hides_addon(spider.custom_settings or {}):
        raise ConfigError(
            f"The custom_settings of the spider {spider.name} set ADDONS, which hides the add-on"
            ' that a job on a node needs. Add "scrapyd_dist.Addon": 500 to it there.'
        )


def make_as_job(crawler: Crawler, args: Mapping[str, str]) -> Spider:
    """Make the crawler's spider with what Scrapyd gives to that of a job.

    Raises:
        ConfigError: it does not take that, nor does a class that it is made from.
    """
    try:
        return crawler.spidercls.from_crawler(crawler, **{**args, JOB_ARGUMENT: "plan"})
    except TypeError as error:
        if JOB_ARGUMENT in str(error):
            raise _takes_no_job(crawler.spidercls) from error
        raise


def _takes_no_job(kind: type[Spider]) -> ConfigError:
    row = by_trait(Trait.SPIDER_START)
    name = getattr(kind, "name", kind.__name__)  # its objects may be given one
    return ConfigError(f"The spider {name} takes no argument {JOB_ARGUMENT}. {row.sentence}")


def _constructors(kind: type[Spider]) -> Iterator[Callable[..., Any]]:
    """Yield each `__init__` that may be called on the way to that of Scrapy's Spider."""
    order = kind.__mro__
    for base in order[: order.index(Spider)]:
        if "__init__" in vars(base):
            yield vars(base)["__init__"]


def _takes_job(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with the argument that Scrapyd adds.

    True where that cannot be told.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return JOB_ARGUMENT in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def check_reactor(settings: BaseSettings) -> None:
    """Raise ConfigError if this process runs on another reactor than asyncio's."""
    if not _has_reactor(settings):
        return
    from scrapy.utils.reactor import is_asyncio_reactor_installed

    if not is_asyncio_reactor_installed():
        raise ConfigError(
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and a distributed"
            " crawl needs Scrapy's default one. Remove TWISTED_REACTOR from the settings, or set it"
            " to twisted.internet.asyncioreactor.AsyncioSelectorReactor."
        )


def loop_sender(settings: BaseSettings) -> AsyncSender:
    """Return the way to the nodes: treq on Scrapy's reactor, or threads without one."""
    if not _has_reactor(settings):
        from scrapyd_dist.transports.requests import ThreadTransport

        return ThreadTransport()
    from scrapyd_dist.transports.treq import TreqTransport

    return TreqTransport()


def _has_reactor(settings: BaseSettings) -> bool:
    return settings.getbool("TWISTED_REACTOR_ENABLED", True)
