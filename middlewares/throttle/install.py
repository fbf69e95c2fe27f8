"""Puts the throttle into a Scrapy process.

The gate itself is imported only where the throttle is on.
"""

from contextlib import suppress

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import BaseSettings

from ..assignment import looks_only
from .throttle_options import SWITCH, options_of, waits_by_address

#: the queues of Scrapy, in whose place ours can be
AWARE = "scrapy.pqueues.DownloaderAwarePriorityQueue"
PLAIN = "scrapy.pqueues.ScrapyPriorityQueue"
#: Scrapy's setting of the queue
QUEUE = "SCHEDULER_PRIORITY_QUEUE"


def install_throttle(settings: BaseSettings) -> None:
    """Put the throttle into the settings, unless no request can have to wait.

    Call it before the crawl's components are made.
    """
    options = options_of(settings)
    if looks_only() or not options.may_hold:
        return
    from .queue import HeedingPlainQueue, HeedingQueue, ThrottledQueue
    from .site_feedback import PERMIT_ORDER, ROBOTS_ORDER, CrawlDelay, PermitMiddleware

    ours = {AWARE: HeedingQueue, PLAIN: HeedingPlainQueue}
    if settings[QUEUE] in ours and not waits_by_address(settings):  # else the gate says why not
        queue = ThrottledQueue if options.on else ours[settings[QUEUE]]
        settings.set(QUEUE, queue, priority="cmdline")
    for middleware, order in ((CrawlDelay, ROBOTS_ORDER), (PermitMiddleware, PERMIT_ORDER)):
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", middleware, order)


def put_in_late(crawler: Crawler) -> None:
    """Do the same where the downloader's middlewares are made already, and the scheduler is not."""
    if looks_only() or not options_of(crawler.settings).may_hold:
        return
    settings = crawler.settings  # the spider and its components have them, too
    settings.frozen = False
    install_throttle(settings)
    settings.freeze()
    from .site_feedback import CrawlDelay, PermitMiddleware

    try:
        permits = PermitMiddleware.from_crawler(crawler)
    except NotConfigured:
        return

    def add() -> None:
        middlewares = crawler.engine.downloader.middleware
        middlewares._add_middleware(permits)  # noqa: SLF001 - there is no public way
        with suppress(NotConfigured):
            delay = CrawlDelay.from_crawler(crawler)
            middlewares.methods["process_response"].append(delay.process_response)

    crawler.signals.connect(add, signals.spider_opened, weak=False)


def problem_of(crawler: Crawler) -> str:
    """Return why a throttled crawl cannot begin.

    It is empty when it can, and where the throttle is off.
    """
    if not options_of(crawler.settings).on:
        return ""
    from .gate import Gate

    return Gate.for_crawler(crawler).problem


def charge_pages_to(crawler: Crawler, budget: str) -> None:
    """Count the pages of this process in the budget of this name, where the throttle is on."""
    if options_of(crawler.settings).on:
        from .gate import Gate

        Gate.for_crawler(crawler).budget.name = budget


def why_not_heeded(settings: BaseSettings) -> str:
    """Return why a crawl with these settings heeds no rule of the store; empty when it does."""
    options = options_of(settings)
    if options.on:
        return ""
    if not options.heeds:
        return f"{SWITCH} is False."
    if settings[QUEUE] in (AWARE, PLAIN) and not waits_by_address(settings):
        return ""  # the add-on has yet to take its place
    from .throttle_client import queue_problem

    return queue_problem(settings)
