"""Closes what still counts as open when Scrapy has nothing left: it has ended without a word."""

import asyncio
import logging
from collections.abc import Callable

from scrapy.crawler import Crawler

from ..engine_compat import is_closing, under_way
from .files import LOOK
from .request_tracker import RequestTracker

logger = logging.getLogger(__name__)


async def keep_closing_unheard(
    crawler: Crawler, tracker: RequestTracker, is_waiting: Callable[[], bool] = lambda: False
) -> None:
    """Close such requests and items from time to time, until it is cancelled.

    `is_waiting` says whether something of them waits outside of Scrapy.
    """
    quiet = 0  # checks in a row at which Scrapy had nothing to do
    while True:
        await asyncio.sleep(LOOK)
        if is_waiting() or under_way(crawler):
            quiet = 0
        else:
            quiet += 1
        # While the spider closes, what was held by a pause has not ended.
        if quiet > 1 and not is_closing(crawler):
            _close_unheard(tracker)


def _close_unheard(tracker: RequestTracker) -> None:
    settled = [unit for unit in tracker.begun.values() if not unit.making]
    for unit in settled:
        if unit.requests:
            logger.warning(
                "nothing was heard of %d requests of batch %d", unit.requests, unit.key[0]
            )
        unit.forget()
        tracker.changed(unit)
