"""Puts the throttle into a Scrapy process: its queue, and its downloader middlewares.

Part of the worker half: imports Scrapy and the standard library only; the gate itself only where the throttle is on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import NotConfigured

from scrapyd_dist.errors import ConfigError

from ..assignment import looks_only
from .throttle_options import SWITCH, ThrottleOptions

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: the queues of Scrapy, in whose place ours can be
AWARE, PLAIN = "scrapy.pqueues.DownloaderAwarePriorityQueue", "scrapy.pqueues.ScrapyPriorityQueue"
QUEUE = "SCHEDULER_PRIORITY_QUEUE"


def is_throttled(settings: BaseSettings) -> bool:
    """Whether the throttle is on; settings of it that make no sense are no way around it."""
    try:
        return ThrottleOptions.from_settings(settings).on
    except ConfigError:
        return True


def _per_ip(settings: BaseSettings) -> bool:
    """Whether requests wait by address; `get` would warn of that setting."""
    return str(settings["CONCURRENT_REQUESTS_PER_IP"] or 0) != "0"


def may_hold(settings: BaseSettings) -> bool:
    """Whether requests may have to wait here: the throttle is on; or nothing was said of it, and rules hold."""
    return is_throttled(settings) or ThrottleOptions.from_settings(settings).heeds


def put_in(settings: BaseSettings) -> None:
    """Called before the crawl's components are made; does nothing where the throttle is off."""
    if looks_only() or not may_hold(settings):
        return
    from .queue import HeedingPlainQueue, HeedingQueue, ThrottledQueue
    from .site_feedback import FEEDBACK_ORDER as SITES_ORDER
    from .site_feedback import PERMIT_ORDER, ROBOTS_ORDER, CrawlDelay, PermitMiddleware, SiteWatch

    ours = {AWARE: HeedingQueue, PLAIN: HeedingPlainQueue}
    if settings[QUEUE] in ours and not _per_ip(settings):  # else the gate says why not
        queue = ThrottledQueue if is_throttled(settings) else ours[settings[QUEUE]]
        settings.set(QUEUE, queue, priority="cmdline")
    for middleware, order in ((CrawlDelay, ROBOTS_ORDER), (SiteWatch, SITES_ORDER), (PermitMiddleware, PERMIT_ORDER)):
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", middleware, order)


def put_in_late(crawler: Crawler) -> None:
    """The same where the downloader's middlewares are made already, and the scheduler is not."""
    if looks_only() or not may_hold(crawler.settings):
        return
    settings = crawler.settings.copy()
    settings.frozen = False
    put_in(settings)
    settings.freeze()
    crawler.settings = settings
    from .site_feedback import CrawlDelay, PermitMiddleware, SiteWatch

    nearest: list[SiteWatch | PermitMiddleware] = []
    with suppress(NotConfigured):
        nearest += [SiteWatch.from_crawler(crawler), PermitMiddleware.from_crawler(crawler)]

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


def charge_pages_to(crawler: Crawler, budget: str) -> None:
    """Count the pages of this process in the budget of this name; does nothing where the throttle is off."""
    if is_throttled(crawler.settings):
        from .gate import Gate

        Gate.of(crawler).charge_pages_to(budget)


def why_not_heeded(settings: BaseSettings) -> str:
    """Why a crawl with these settings heeds no rule of the store; empty when it does."""
    if is_throttled(settings):
        return ""
    if not may_hold(settings):
        return f"{SWITCH} is False."
    if settings[QUEUE] in (AWARE, PLAIN) and not _per_ip(settings):
        return ""  # the add-on has yet to take its place
    from .throttle_client import queue_problem

    return queue_problem(settings)
