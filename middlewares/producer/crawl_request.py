"""What a crawl is to be: spider, options, project, arguments, start pages; and what no crawl can work with."""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Mapping
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
from scrapyd_dist.settings import LABELS, SettingReader, Travels, judge, limits_in, travelling
from scrapyd_dist.shards import ShardTemplate, check_page, shards_of_pages, shards_of_urls
from scrapyd_dist.store.address import chosen
from scrapyd_dist.transports import AsyncSender

from ..engine_compat import has_own_filter, spider_method
from ..slot_routing import SlotRouting, hides_addon
from ..targets import Target
from ..throttle.throttle_options import SWITCH, options_of
from ..throttle.throttle_options import given as throttle_given
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
    """Where the project is, and what it is called on the nodes."""

    root: Path
    state: Path
    name: str
    config: config.ProjectConfig | None
    limits: Mapping[str, str] = field(default_factory=dict)  #: of the time of jobs, by scrapy.cfg


@dataclass(frozen=True, kw_only=True)
class CrawlRequest:
    """What a crawl was asked to be, before its store and its nodes are known."""

    spider: str
    options: ProducerOptions
    project: PreparedProject
    args: Mapping[str, str] = field(default_factory=dict)  #: of -a
    given: Mapping[str, str] = field(default_factory=dict)  #: of -s

    @property
    def store(self) -> str:
        """The store's URL or absolute path; ConfigError if it stands in a variable that is not set."""
        project = self.project
        return chosen(
            project.root,
            self.options.store,
            project.config.options.get("store") if project.config else None,
        )


def find_project(settings: BaseSettings) -> PreparedProject:
    """The project of the current folder; ConfigError if its scrapy.cfg cannot be read, or has a wrong value."""
    root = config.find_root()
    loaded = None if root is None else config.load(root)
    root = root or Path.cwd()
    return PreparedProject(
        root=root,
        state=config.state_dir(root),
        name=check_project(str((loaded.project if loaded else None) or settings.get("BOT_NAME"))),
        config=loaded,
        limits=limits_in(loaded.options) if loaded else {},
    )


def put_aside(settings: BaseSettings) -> bool:
    """Let Scrapy's own part stand in for one that cannot work, since that may fail before the crawl can be refused.

    Gives whether the values of our settings can be read.
    """
    for name, own in OWN.items():
        if problem := _problem_of(settings, name):
            settings.set(PUT_ASIDE, problem, priority="cmdline")
            settings.set(name, own, priority="cmdline")
    try:
        judge(settings)
    except ConfigError as error:
        settings.set(PUT_ASIDE, str(error), priority="cmdline")
        return False
    return True


def check_parts(settings: BaseSettings) -> None:
    """Raise ConfigError if a part of Scrapy was replaced by one that cannot work here."""
    problem = settings.get(PUT_ASIDE) or next(
        filter(None, (_problem_of(settings, name) for name in OWN)), ""
    )
    if problem:
        raise ConfigError(problem)


def _problem_of(settings: BaseSettings, name: str) -> str:
    """What is wrong with the part that this setting names, in a paragraph; empty if nothing is."""
    part = settings[name]
    text = _import_path(part)
    try:
        kind = load_object(part)
    except Exception as error:
        return f"{name} is {text}, which cannot be loaded: {type(error).__name__}: {error}. Correct it in the settings."
    bases = getattr(
        kind, "__mro__", ()
    )  # not issubclass(): to Scrapy, whatever has the methods is a scheduler
    if name == "SCHEDULER" and Scheduler not in bases:
        return (
            f"SCHEDULER is {text}, which is not Scrapy's own scheduler nor made from it."
            f" {DIFFERENCES['SCHEDULER'].sentence}"
        )
    if name == "DUPEFILTER_CLASS" and any(
        base.__module__.split(".")[0] == _SHARED for base in bases
    ):
        return f"DUPEFILTER_CLASS is {text}. {DIFFERENCES['duplicate filter of scrapy-redis'].sentence}"
    return ""


def _import_path(part: Any) -> str:
    return part if isinstance(part, str) else f"{part.__module__}.{part.__qualname__}"


def asked_for(settings: BaseSettings) -> tuple[dict[str, str], dict[str, str]]:
    """The `-a` and `-s` of this process: Scrapy keeps no list. ConfigError if a name cannot be passed on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", dest="args", action="append", default=[])
    parser.add_argument("-s", "--set", dest="settings", action="append", default=[])
    words = parser.parse_known_args(sys.argv[1:])[0]
    args, given = (
        dict(word.split("=", 1) for word in some if "=" in word)
        for some in (words.args, words.settings)
    )
    args |= {
        name: str(text)
        for name, text in SettingReader(settings).value("DISTRIBUTED_SPIDER_ARGS").items()
    }
    check_args(args)
    return args, given


def job_settings(given: Mapping[str, str], options: ProducerOptions) -> dict[str, str]:
    """The settings that all jobs of the crawl get besides their batch; `given` are those of -s."""
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
    """What differs from `scrapy crawl`, of which people are told; `args` are those of the spider.

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
    folders = [file.path.parent for file in outputs.files]
    folders += [
        Path(uri.partition("%(")[0]).parent for uri in outputs.feeds if not is_elsewhere(uri)
    ]
    for folder in folders:
        check_folder(folder)
    if not outputs.feeds:
        return
    if options.target_feed_url is not None:
        raise ConfigError(
            f"With a feed URL (--feed, DISTRIBUTED_TARGET_FEED_URL) items come back as lines of JSON, and"
            f" {', '.join(map(shown, outputs.feeds))} needs more than these (-o, -O, FEEDS): their classes, or Scrapy's"
            " own exporter. Leave out one of the two."
        )
    MergedFeeds(FeedHost(settings, spider), outputs.feeds)


def for_target(options: ProducerOptions, target: Target, settings: BaseSettings) -> ProducerOptions:
    """The options of a crawl with this target: workers that follow rules must lease, since links go to the store.

    Raises:
        ConfigError: the options ask for something else, or the workers would need one filter of duplicates.
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
            f"To the nodes go {target.how}; but {wrong}. Name the pages that workers fetch without following their"
            " links: --rule N (DISTRIBUTED_TARGET_RULE). Or leave the other option out."
        )
    return replace(
        options,
        only_leased=options.only_leased or "rules that follow links on pages with a callback",
    )


def check_mode(options: ProducerOptions, settings: BaseSettings) -> None:
    """Raise ConfigError if the settings ask for what the mode does not have, or for slots that cannot be."""
    if not options.leases:
        if options.only_leased:
            raise ConfigError(
                f"{options.only_leased}: only workers that lease their batches know of it, and this crawl sends its"
                ' batches to the nodes. Add --pull (DISTRIBUTED_MODE = "pull"), or take it out of the settings.'
            )
        return
    SlotRouting.from_settings(settings)
    if options.sharded and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests of a spider can go to the workers (DISTRIBUTED_SEEDS), but index pages (--index,"
            " --start-urls) are walked by the producer, each shard by itself. Leave out one of the two."
        )
    if options.limit and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests that go to the workers (DISTRIBUTED_SEEDS) leave the finding to them, each for itself, and"
            " a limit (--limit, DISTRIBUTED_LIMIT) counts what the producer finds. Leave out one of the two."
        )


def worker_settings(options: ProducerOptions, settings: BaseSettings) -> dict[str, str]:
    """Of the settings given on the command line, those of ours that workers need."""
    kinds = (Travels.LEASING, Travels.SLOTS) if options.leases else ()
    given = (
        name
        for name in travelling(Travels.FLEET, *kinds)
        if (settings.getpriority(name) or 0) >= CMDLINE
    )
    return {name: _as_text(settings[name]) for name in given if settings[name] is not None}


def shared_settings(settings: BaseSettings) -> dict[str, str]:
    """The settings for workers of another project, too: where requests lie, and the limits of this crawl."""
    # Those without a value too: that project's own slots are for its own frontiers.
    slots = {name: _as_text(settings[name] or "") for name in travelling(Travels.SLOTS)}
    throttle = options_of(settings)
    # A throttle that these settings do not mention is that project's own affair.
    limits = throttle_given(settings) if throttle.on else {} if throttle.heeds else {SWITCH: False}
    return {**slots, **{name: _as_text(value) for name, value in limits.items()}}


def _as_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))  # as Scrapy reads a list
    return json.dumps(dict(value)) if hasattr(value, "items") else str(value)


def template_of(options: ProducerOptions) -> ShardTemplate | None:
    """The address of the index pages, when they are numbered."""
    if options.index is None:
        return None
    plain = ShardTemplate(options.index)
    check_page(plain.url(0), "The index address (--index, DISTRIBUTED_INDEX)")
    # Scrapy escapes spaces and letters beyond ASCII in an address: pages are recognised by what it makes of it.
    return ShardTemplate(
        safe_url_string(plain.url_with(_PLACEHOLDER)).replace(_PLACEHOLDER, plain.place)
    )


def shards_of(options: ProducerOptions, spider: Spider) -> list[Shard]:
    """The start pages: of the numbered index, of a list, or one shard for the spider's own start.

    ConfigError if they cannot be divided so, or the spider's own start would never be called.
    """
    template = template_of(options)
    if template is not None:
        assert options.pages is not None
        return shards_of_pages(
            template, pages=options.pages, shards=options.shards, first_page=options.first_page
        )
    if options.start_urls_file is not None:
        path = Path(options.start_urls_file)
        lines = config.read_text(path, f"The list of start URLs {path}").splitlines()
        numbered = (
            (number, line.strip())
            for number, line in enumerate(lines, 1)
            if not line.startswith("#")
        )
        return shards_of_urls(
            [check_page(line, f"{path}, line {number},") for number, line in numbered if line]
        )
    own = type(spider)
    # Scrapy 2.16 and later never call `start_requests`: such a spider makes no request, and ends well.
    if (
        hasattr(own, "start_requests")
        and not hasattr(Spider, "start_requests")
        and own.start is Spider.start
    ):
        raise ConfigError(
            f"The spider {spider.name} has a start_requests() method, which this version of Scrapy never calls: it"
            " would make no request at all. Rename it to `async def start(self)` (the yields stay), or give the index"
            " pages with --index and --pages."
        )
    first = own.start is Spider.start and getattr(own, "start_requests", None) is getattr(
        Spider, "start_requests", None
    )
    if first and not spider.start_urls and not getattr(spider, "start_url", ""):
        raise ConfigError(
            f"The spider {spider.name} has no start_urls, and no start() of its own: it would make no request at all."
            " Give it start pages, or the index pages with --index and --pages."
        )
    return [Shard(number=0, url="")]


def check_spider(
    spider: Spider | type[Spider],
    settings: BaseSettings,
    args: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise ConfigError if the spider lacks a method that the settings name, or cannot be the spider of a job.

    A spider whose own settings replace the add-ons would crawl the index in each of its jobs.
    """
    for name in METHODS:
        spider_method(spider, settings, name)
    kind = spider if isinstance(spider, type) else type(spider)
    if not (_takes_job(kind.__init__) and _takes_job(kind.from_crawler)):
        raise _takes_no_job(kind)
    if not all(
        _takes_job(vars(base)["__init__"]) for base in _bases(kind) if "__init__" in vars(base)
    ):
        own: Any = settings.copy()
        own.frozen = False
        with suppress(
            AttributeError, KeyError, ValueError, OSError
        ):  # another crawler's, and not the crawl's own
            make_as_job(Crawler(kind, own), args)
    if hides_addon(spider.custom_settings or {}):
        raise ConfigError(
            f"The custom_settings of the spider {spider.name} set ADDONS, which hides the add-on that a job on a node"
            ' needs. Add "scrapyd_dist.Addon": 500 to it there.'
        )


def make_as_job(crawler: Crawler, args: Mapping[str, str]) -> Spider:
    """The crawler's spider, made with what Scrapyd gives to that of a job.

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


def _bases(kind: type[Spider]) -> list[type]:
    """The classes whose `__init__` may be called on the way to that of Scrapy's Spider."""
    order = kind.__mro__
    return list(order[: order.index(Spider)])


def _takes_job(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with the argument that Scrapyd adds; true where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return JOB_ARGUMENT in parameters or any(
        one.kind is one.VAR_KEYWORD for one in parameters.values()
    )


def loop_sender(settings: BaseSettings) -> AsyncSender:
    """The way to the nodes: treq on Scrapy's reactor, or threads without one; ConfigError if it is not asyncio's."""
    if not settings.getbool("TWISTED_REACTOR_ENABLED", True):
        from scrapyd_dist.transports.requests import ThreadTransport

        return ThreadTransport()
    from scrapy.utils.reactor import is_asyncio_reactor_installed

    if not is_asyncio_reactor_installed():
        raise ConfigError(
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and a distributed crawl needs"
            " Scrapy's default one. Remove TWISTED_REACTOR from the settings, or set it to"
            " twisted.internet.asyncioreactor.AsyncioSelectorReactor."
        )
    from scrapyd_dist.transports.treq import TreqTransport

    return TreqTransport()
