"""Requests leave in strokes where the processor is what limits a crawl: what has come is read before more is asked for.

Each request that leaves by itself wakes a server, a kernel or another process, and is answered by itself, which costs a
page up to a third. The rules it keeps: who waits for a site does not wait for this; nobody waits for longer than
`STROKE`; and a pause between requests (a delay, the throttle) is as long as ever. Imports Scrapy and the standard
library only.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

#: seconds that a request waits, at most, for others to leave with
STROKE = 0.005
#: seconds over which it is judged what limits a crawl, and the share of them in which its thread has worked then
WINDOW, BUSY = 0.1, 0.9


class Load:
    """Whether the processor is what limits this thread."""

    def __init__(self) -> None:
        self._since = self._worked = 0.0
        self._full = False

    def full(self) -> bool:
        """Whether it had work for most of the last moment."""
        now = time.monotonic()
        if now - self._since >= WINDOW:
            worked = had_work()
            self._full = worked - self._worked >= BUSY * (now - self._since)
            self._since, self._worked = now, worked
        return self._full


def had_work() -> float:
    """Seconds for which this thread had something to do, whoever had the processor meanwhile, where that is told."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
        return (int(ran) + int(waited)) / 1e9
    except (OSError, ValueError):  # not on Linux
        return time.thread_time()


class Strokes(Downloader):
    """Scrapy's downloader, which sends no single request while answers wait to be read."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._load = Load()
        self._exact = crawler.settings.getbool("DISTRIBUTED_THROTTLE")  # requests have their moments then
        self._due: dict[Any, tuple[Any, ...]] = {}  #: slots whose requests wait for the next stroke
        self._stroke: Any = None

    def _process_queue(self, *of: Any) -> None:  # up to Scrapy 2.13 the spider comes first
        slot = of[-1]
        # When all answers of a site are read there is nothing to wait for.
        waits = slot.queue and slot.transferring and not (self._exact or slot.delay) and self._load.full()
        if not waits:
            self._due.pop(slot, None)
            super()._process_queue(*of)
            return
        self._due[slot] = of
        if self._stroke is None:
            self._stroke = _call_later(STROKE, self._send)

    def _send(self) -> None:
        self._stroke = None
        due, self._due = self._due, {}
        for of in due.values():
            super()._process_queue(*of)

    def close(self) -> None:
        """Send nothing any more."""
        if self._stroke is not None:
            self._stroke.cancel()
            self._stroke = None
        super().close()


def _call_later(seconds: float, function: Callable[[], object]) -> Any:
    try:
        from scrapy.utils.asyncio import call_later
    except ImportError:  # Scrapy 2.13
        from twisted.internet import reactor

        clock: Any = reactor
        return clock.callLater(seconds, function)
    return call_later(seconds, function)
