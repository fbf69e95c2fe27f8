"""Brings into a process what its role needs: as an add-on, or as a spider middleware alone.

A user's settings name one of the two. Part of the worker half: imports Scrapy and the standard
library only; each role's own half is imported when a process turns out to have it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import BaseSettings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.garbage_collection import collect_as_before, collect_rarely
from scrapyd_dist.settings import SETTINGS, find_warnings

from .assignment import (
    EARLY,
    PROBE,
    ZIPPED,
    Assignment,
    is_filler,
    is_producer,
    is_worker,
    looks_only,
)
from .contained import contain_errors
from .feed_place import connect_at_feeds
from .goal_keeper import GoalKeeper, take_settings
from .targets import NoTarget, find_target, take_only_callback
from .throttle.install import install_throttle as put_in_throttle
from .throttle.install import put_in_late as put_in_throttle_late
from .used_components import keep_reasons
from .watchdog import install_watchdog as put_in_watchdog

logger = logging.getLogger(__name__)
#: the setting of the profile, and its values
SETTING = "DISTRIBUTED_PROFILE"
USUAL, FAST, NONE = SETTINGS[SETTING].choices
#: CONCURRENT_ITEMS: Scrapy starts so many tasks for each response, whatever comes out of it, and
#: 100 by default
PROFILE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    NONE: {},
    USUAL: {"CONCURRENT_ITEMS": 16},
    FAST: {"CONCURRENT_ITEMS": 4, "LOG_LEVEL": "INFO"},
}
#: lets no slow site fill the downloader: a queue for each, the next request from that with the
#: fewest under way
SITE_QUEUE = "scrapy.pqueues.DownloaderAwarePriorityQueue"
#: Scrapy's priority of -s, with which Scrapyd gives FEEDS
CMDLINE = 40
#: close to the engine, so that what it sees already has its depth, its referer and its rule
PRIORITY = 100
#: what makes the files of two crawls, batches and attempts differ; each is added to a feed URL that
#: lacks it. What a crawl is called on the nodes is no other crawl's, even of another store;
#: `%(name)s_%(time)s` can be that of two jobs.
FEED_FIELDS = ("%(crawl)s", "%(batch)s", "%(attempt)s")


def apply_profile(settings: BaseSettings, crawler: Crawler | None) -> None:
    """Give a process the profile that its settings ask for; without a crawler only the settings.

    Call it before the crawl's components are made.
    """
    profile = settings.get(SETTING, USUAL)
    for name, value in PROFILE_SETTINGS.get(profile, {}).items():
        settings.set(name, value, priority="addon")
    if crawler is not None and profile in (USUAL, FAST):
        collect_rarely()
        crawler.signals.connect(leave_what_stays, signals.spider_opened)
    if crawler is not None and profile == FAST:
        crawler.signals.connect(log_no_more, signals.spider_opened)


def log_no_more(spider: Spider) -> None:
    """Let no log record be made that the log's level would throw away.

    Scrapy makes two for each page.
    """
    for name in ("", "scrapy"):  # those that Scrapy gives a level of their own
        logging.getLogger(name).setLevel(spider.settings["LOG_LEVEL"])


def leave_what_stays() -> None:
    """Keep modules, settings and the like out of garbage collection.

    Each full collection, the last at exit, would walk them all. It is done once in a process, when
    everything that stays is made: what an earlier crawl of it has left behind does not stay.
    Nothing is collected first, which would take as long as it saves a short job.
    """
    collect_as_before()
    if not gc.get_freeze_count():
        gc.freeze()


def warn_of_zip(settings: BaseSettings) -> None:
    """Say in the log that this job runs from a zip file, if it does.

    The egg's boot module has no log yet.
    """
    reason = settings.get(ZIPPED)
    if reason:
        logger.warning(
            "The egg of this job could not be unpacked, so code that opens files beside itself"
            " finds none: %s.",
            reason,
        )


class Addon:
    """Puts the middleware in, and gives a worker's batch its own feed."""

    def __init__(self, crawler: Crawler | None = None) -> None:
        self._crawler = crawler
        #: whether the rest is left to `apply_late`: who has the settings applied before a crawl has
        #: no spider yet, and only the spider says whether there is a target
        self.waits_for_spider = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Addon:
        """Make the add-on of this crawler."""
        return cls(crawler)

    def update_settings(self, settings: BaseSettings) -> None:
        """Give the settings what the process's role needs; Scrapy calls it before all else."""
        warn_of_zip(settings)
        _use_site_queue(settings)
        put_in_throttle(settings)
        self._stay_local(settings)
        if not is_worker(settings) and not is_producer(settings):
            self._leave_to_scrapy(settings)
            return
        settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", Distributed, PRIORITY)
        self.waits_for_spider = (
            self._crawler is not None
            and self._crawler.spider is None
            and _depends_on_target(settings)
        )
        if self.waits_for_spider:
            return
        give_state_to_spider(settings, self._crawler)
        take_settings(settings)
        if is_worker(settings):
            self._prepare_worker(settings)
        else:
            self._prepare_producer(settings)

    def _prepare_worker(self, settings: BaseSettings) -> None:
        apply_profile(settings, self._crawler)
        if self._crawler is not None:
            keep_reasons(self._crawler)
        from .worker.request_tracker import use_marking_components

        use_marking_components(settings)
        _leave_feeds(settings)
        _give_feed(settings)

    def _prepare_producer(self, settings: BaseSettings) -> None:
        # The way to the nodes: with LOG_LEVEL = DEBUG, two lines of it for each question to a node.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
        from .producer.scrapy_parts import put_aside

        if not put_aside(settings):
            return
        apply_profile(settings, self._crawler)
        # A filler's own items go to its own feeds, and its queue may be on disk.
        if not is_filler(settings):
            self._keep_at_home(settings)
            if PROBE not in settings:  # a probe sorts what it finds in its own way
                _take_early(settings)
        if settings.getbool(EARLY) and self._crawler is not None:
            from .producer.crawl_start import start_early

            start_early(self._crawler)

    def _leave_to_scrapy(self, settings: BaseSettings) -> None:
        """Do what counts for a crawl that is not spread, too.

        Its time is limited, and its settings are read.
        """
        if self._crawler is not None:
            put_in_watchdog(self._crawler)
        if not looks_only():
            for warning in find_warnings(settings):
                logger.warning("%s", warning)

    def _keep_at_home(self, settings: BaseSettings) -> None:
        """Let the store have the queue of the crawl, and the merged output its items."""
        from .producer.feed_outputs import take_feeds
        from .producer.set_aside import set_aside

        set_aside(settings)
        spider = None
        if self._crawler:
            spider = self._crawler.spider or self._crawler.spidercls
        take_feeds(settings, spider, has_stdout=not settings.get("DISTRIBUTED_CRAWL"))

    def _stay_local(self, settings: BaseSettings) -> None:
        """Leave a spider without a target to Scrapy, unless its crawl is asked for by its name."""
        spider = None if self._crawler is None else self._crawler.spider
        if spider is None or not is_producer(settings):
            return
        if not _depends_on_target(settings):
            if not is_filler(settings):
                take_only_callback(spider, settings)
            return
        try:
            find_target(spider, settings)
        except NoTarget as error:
            logger.warning(
                "This crawl is not distributed; Scrapy runs it in this process. %s", error
            )
            settings.set("DISTRIBUTED_ENABLED", False, priority="cmdline")
        except ConfigError:
            return  # the producer refuses it, in words


def _take_early(settings: BaseSettings) -> None:
    """Let a producer take target requests before they pass Scrapy's spider middlewares."""
    from .producer.early_capture import CLOSEST, EarlyCapture

    settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", EarlyCapture, CLOSEST)


def _depends_on_target(settings: BaseSettings) -> bool:
    """Tell whether it depends on the spider's target if this crawl is spread.

    One that is asked for by its name is spread.
    """
    asked = settings.get("DISTRIBUTED_CRAWL") or is_filler(settings) or PROBE in settings
    return is_producer(settings) and not asked


def give_state_to_spider(settings: BaseSettings, crawler: Crawler | None) -> None:
    """See to it that the spider has the empty state of a new JOBDIR.

    No process of a distributed crawl has a JOBDIR of its own.
    """
    if settings["JOBDIR"] and crawler is not None:
        crawler.signals.connect(_give_state, signals.spider_opened)


def _give_state(spider: Any) -> None:
    if not hasattr(spider, "state"):
        spider.state = {}


def _use_site_queue(settings: BaseSettings) -> None:
    """Give a worker the queue by sites, which is no default before Scrapy 2.14."""
    # That queue refuses any CONCURRENT_REQUESTS_PER_IP, of which get() would warn.
    if is_worker(settings) and str(settings["CONCURRENT_REQUESTS_PER_IP"] or 0) == "0":
        settings.set("SCHEDULER_PRIORITY_QUEUE", SITE_QUEUE, priority="addon")


class Distributed:
    """Stands for the half that this process needs.

    It is used as `SPIDER_MIDDLEWARES = {"scrapyd_dist.Distributed": 100}`.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """Make the worker's or the producer's middleware.

        Raises:
            NotConfigured: this process is neither.
        """
        if crawler.spider is None and _depends_on_target(crawler.settings):
            raise NotConfigured  # nothing is crawled without a spider
        cls._make_up_for_addon(crawler)
        GoalKeeper.for_crawler(crawler)
        if is_worker(crawler.settings) or is_producer(crawler.settings):
            contain_errors(crawler)
        if is_worker(crawler.settings):
            from .worker.worker import Worker

            return Worker.from_crawler(crawler)
        if PROBE in crawler.settings:
            from .producer.probe import Probe

            return Probe(crawler)
        if is_filler(crawler.settings):
            from .producer.filler import Filler

            return Filler(crawler)
        if is_producer(crawler.settings):
            from .producer.producer import Producer

            return Producer(crawler)
        raise NotConfigured

    @classmethod
    def _make_up_for_addon(cls, crawler: Crawler) -> None:
        """Do what the add-on has not done: there is none, or it had no spider to go by."""
        addon = crawler.get_addon(Addon)
        if addon is not None:
            if addon.waits_for_spider:
                apply_late(crawler)
            return
        if is_worker(crawler.settings) or is_producer(crawler.settings):
            apply_late(crawler)
        else:
            put_in_watchdog(crawler)
        put_in_throttle_late(crawler)


def apply_late(crawler: Crawler) -> None:
    """Do the add-on's work later than usual.

    That is where the middleware alone was named, as in the book, or the add-on waits for the
    spider. By then the settings are frozen and the feeds are made from them, so these are made
    again if the crawl is spread.
    """
    settings = crawler.settings  # the spider and its components have them, too
    settings.frozen = False
    Addon(crawler).update_settings(settings)
    settings.freeze()
    if is_worker(settings) or is_producer(settings):
        _make_feeds_again(crawler)


def _make_feeds_again(crawler: Crawler) -> None:
    assert crawler.extensions is not None
    old = crawler.get_extension(FeedExporter)
    others = [extension for extension in crawler.extensions.middlewares if extension is not old]
    if old is not None:
        crawler.signals.disconnect(old.open_spider, signals.spider_opened)
        crawler.signals.disconnect(old.close_spider, signals.spider_closed)
        crawler.signals.disconnect(old.item_scraped, signals.item_scraped)
    kind = FeedExporter if old is None else type(old)
    with contextlib.suppress(NotConfigured):  # no feed is left to this process
        exporter = kind.from_crawler(crawler)
        others.append(exporter)
        crawler.signals.disconnect(exporter.item_scraped, signals.item_scraped)
        connect_at_feeds(crawler, exporter.item_scraped)
    crawler.extensions.middlewares = tuple(others)  # the signals hold it only weakly


def _leave_feeds(settings: BaseSettings) -> None:
    """Let a worker write none of the project's feeds.

    Its items go home, and are written to the feeds there.
    What Scrapyd's items_dir asks for is the node's own affair. A row of arguments is a whole run of
    its own, and a worker of another project than the crawl's writes the feeds of its own project.
    """
    job = Assignment.from_settings(settings)
    if job is not None and (job.row or job.foreign or job.introduce):
        return
    if (settings.getpriority("FEEDS") or 0) < CMDLINE:
        settings.set("FEEDS", json.dumps({}), priority="cmdline")
    settings.set("FEED_URI", None, priority="cmdline")


def _give_feed(settings: BaseSettings) -> None:
    """Let a worker write its batch to its own feed, if the crawl has a feed URL."""
    job = Assignment.from_settings(settings)
    if job is None or not job.feed:
        return
    uri = feed_uri(settings["DISTRIBUTED_TARGET_FEED_URL"], job)
    parts = urlsplit(uri)
    if parts.password:  # Scrapy would log it
        account, _, place = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=place)
        uri = parts.geturl()
        _give_account(settings, parts, account)
    if not hasattr(feedexport, "apply_uri_params"):
        uri = re.sub(r"%(?!\()", "%%", uri)  # an older Scrapy takes the % of %20 for a field's
    feeds = settings.getdict("FEEDS")
    # Scrapyd's items_dir sends a FEEDS of its own at the command line's priority: both are written.
    feeds[uri] = {"format": settings.get("DISTRIBUTED_TARGET_FEED_FORMAT", "jsonlines")}
    settings.set("FEEDS", json.dumps(feeds), priority="cmdline")


def _give_account(settings: BaseSettings, place: SplitResult, account: str) -> None:
    """Let the storage of this kind of URL get the account back, behind the log's back."""
    storage = load_object(settings.getwithbase("FEED_STORAGES")[place.scheme])

    class Storage:
        @classmethod
        def from_crawler(cls, crawler: Crawler, uri: str, **options: Any) -> Any:
            parts = urlsplit(uri)
            if parts.netloc == place.netloc:
                uri = parts._replace(netloc=f"{account}@{parts.netloc}").geturl()
            return build_from_crawler(storage, crawler, uri, **options)

    storages = {**settings.getdict("FEED_STORAGES"), place.scheme: Storage}
    settings.set("FEED_STORAGES", storages, priority="cmdline")


def feed_uri(template: str, job: Assignment) -> str:
    """Return the feed URL of one attempt.

    `%(crawl)s`, `%(batch)s` and `%(attempt)s` are filled in, or added to the file's name.
    `%(name)s` and `%(time)s` are left for Scrapy, which fills them in when the feed opens.
    """
    missing = [field for field in FEED_FIELDS if field not in template]
    if missing:
        folder, slash, name = template.rpartition("/")
        template = f"{folder}{slash}{'_'.join(missing)}_{name}"
    values = (job.home or job.crawl, str(job.batch), f"a{job.attempt}")
    for field, value in zip(FEED_FIELDS, values, strict=True):
        template = template.replace(field, value)
    return template
