"""Puts the throttle into a Scrapy process: its queue, and its downloader middlewares.

Part of the worker half: imports Scrapy and the standard library only; the gate itself only where the throttle is on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapyd_dist.errors import ConfigError

from ..distributed import looks_only
from .options import ThrottleOptions

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: the queues of Scrapy, in whose place ours can be
QUEUES = frozenset({"scrapy.pqueues.DownloaderAwarePriorityQueue", "scrapy.pqueues.ScrapyPriorityQueue"})
QUEUE = "SCHEDULER_PRIORITY_QUEUE"


def is_throttled(settings: BaseSettings) -> bool:
    """Whether the throttle is on; settings of it that make no sense are no way around it."""
    try:
        return ThrottleOptions.from_settings(settings).on
    except ConfigError:
        return True


def put_in(settings: BaseSettings) -> None:
    """Called before the crawl's components are made; does nothing where the throttle is off."""
    if looks_only() or not is_throttled(settings):
        return
    from .charging import ORDER, Charging
    from .queue import ThrottledQueue
    from .robots import ORDER as ROBOTS_ORDER
    from .robots import CrawlDelay
    from .sites import ORDER as SITES_ORDER
    from .sites import SiteWatch

    if settings[QUEUE] in QUEUES:  # any other one is refused, by the gate
        settings.set(QUEUE, ThrottledQueue, priority="cmdline")
    for middleware, order in ((CrawlDelay, ROBOTS_ORDER), (SiteWatch, SITES_ORDER), (Charging, ORDER)):
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", middleware, order)


def put_in_late(crawler: Crawler) -> None:
    """The same where the downloader's middlewares are made already, and the scheduler is not."""
    if looks_only() or not is_throttled(crawler.settings):
        return
    settings = crawler.settings.copy()
    settings.frozen = False
    put_in(settings)
    settings.freeze()
    crawler.settings = settings
    from .charging import Charging
    from .robots import CrawlDelay
    from .sites import SiteWatch

    nearest = (SiteWatch.from_crawler(crawler), Charging.from_crawler(crawler))

    def add() -> None:
        middlewares = crawler.engine.downloader.middleware
        for each in nearest:  # each is nearer to the downloader than all before it
            middlewares._add_middleware(each)  # noqa: SLF001 - there is no public way
        with suppress(NotConfigured):
            middlewares.methods["process_response"].append(CrawlDelay.from_crawler(crawler).process_response)

    crawler.signals.connect(add, signals.spider_opened, weak=False)


def problem_of(crawler: Crawler) -> str:
    """Why a throttled crawl cannot begin; empty when it can, and where the throttle is off."""
    if not is_throttled(crawler.settings):
        return ""
    from .gate import Gate

    return Gate.of(crawler).problem
