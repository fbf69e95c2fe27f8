"""What the supported versions of Scrapy do in different ways: to close a spider, to tell what is under way, to loop.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from scrapyd_dist.reasons import Reason


def close_spider(crawler: Crawler, reason: Reason) -> None:
    """Finish what is under way, and make no other request."""
    engine, spider = crawler.engine, crawler.spider
    assert spider
    if hasattr(engine, "close_spider_async"):
        from scrapy.utils.defer import deferred_from_coro

        deferred_from_coro(engine.close_spider_async(reason=reason.value))
    else:  # Scrapy 2.13
        engine.close_spider(spider, reason.value)


def under_way(crawler: Crawler) -> bool:
    """Whether Scrapy has any request or item left, apart from what the spider's start may still bring."""
    engine = crawler.engine
    slot = engine._slot  # noqa: SLF001 - before Scrapy 2.19 nothing else leads to the scheduler
    assert engine.scraper.slot
    if slot is None or engine.downloader.active or not engine.scraper.slot.is_idle():
        return slot is not None
    return bool(slot.scheduler.has_pending_requests())


def looping_call(function: Callable[[], object]) -> Any:
    """What calls it again and again, once it is started."""
    try:
        from scrapy.utils.asyncio import create_looping_call
    except ImportError:  # Scrapy 2.13
        from twisted.internet.task import LoopingCall

        return LoopingCall(function)
    return create_looping_call(function)
