"""Whether a request could leave at once: the transfer slots and delays of Scrapy's downloader.

The rule it keeps: a permit is used only where nothing of Scrapy's own would hold the request up. Part of the worker
half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from scrapy.core import downloader as scrapys
from scrapy.exceptions import IgnoreRequest

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

#: requests that are made room for at one time, where the project sets no limit
UNLIMITED = 100
#: seconds between two looks for a place in a slot: nothing of Scrapy's tells when there is one
LOOK = 0.02
#: the clock by which the downloader remembers when a request left last; Scrapy before 2.15 has the time of day
_clock = getattr(scrapys, "monotonic", time.time)


class Room:
    """The downloader's slots, and the requests with a permit that are on their way there."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._coming: Counter[str] = Counter()
        self._placed: Counter[str] = Counter()  #: those of them that came by no queue
        self._delays: dict[str, tuple[float, float]] = {}

    @property
    def _downloader(self) -> Any:
        return self._crawler.engine.downloader

    @property
    def of_engine(self) -> int:
        """How many requests CONCURRENT_REQUESTS leaves room for."""
        total: int = self._downloader.total_concurrency
        return total - len(self._downloader.active) if total else UNLIMITED

    @property
    def ending(self) -> bool:
        """Whether the crawl waits for nothing but what is under way."""
        slot = self._crawler.engine._slot  # noqa: SLF001 - nothing else tells
        return slot is None or slot.closing is not None

    def active(self, slot: str) -> int:
        """The requests of a slot that are under way, or about to be."""
        there = self._downloader.slots.get(slot)
        return self._coming[slot] + (len(there.active) if there else 0)

    def free(self, slot: str) -> int:
        """How many requests of a slot could leave at once."""
        return self._free_beside(slot, self._coming[slot])

    def _free_beside(self, slot: str, coming: int) -> int:
        there = self._downloader.slots.get(slot)
        if there is None:
            return self._of_new(slot) - coming
        if there.queue or self.delay(slot) > 0:
            return 0
        room: int = there.concurrency - len(there.active) - coming
        return min(room, 1 - coming) if there.delay else room

    def _of_new(self, slot: str) -> int:
        """The room of a slot that the downloader has not made yet."""
        downloader, spider = self._downloader, self._crawler.spider
        own = downloader.per_slot_settings.get(slot, {})
        usual = getattr(downloader, "_delay", None)
        if usual is None:  # Scrapy before 2.15
            usual = getattr(spider, "download_delay", self._crawler.settings.getfloat("DOWNLOAD_DELAY"))
        return 1 if own.get("delay", usual) else int(own.get("concurrency", downloader.domain_concurrency))

    def delay(self, slot: str) -> float:
        """Seconds until DOWNLOAD_DELAY, or AutoThrottle, lets the next request of a slot go."""
        there = self._downloader.slots.get(slot)
        if there is None or not there.delay:
            return 0.0
        left: float = there.lastseen
        if self._delays.get(slot, (None,))[0] != left:
            self._delays[slot] = (left, there.download_delay())  # drawn once, as it is random
        return max(0.0, left + self._delays[slot][1] - _clock())

    async def place(self, slot: str) -> None:
        """Wait until a request that came by no queue could leave at once, and keep its place for it.

        It goes before those that came by one: they may be waiting for it, as for their robots.txt.

        Raises:
            IgnoreRequest: the crawl ends.
        """
        while self._free_beside(slot, self._placed[slot]) <= 0:
            if self.ending:
                raise IgnoreRequest("no permit to leave: the crawl ends")
            await asyncio.sleep(LOOK)
        self._placed[slot] += 1
        self.comes(slot)

    def unplace(self, slot: str) -> None:
        """It has come there, or will not come."""
        self._placed[slot] -= 1
        if not self._placed[slot]:
            del self._placed[slot]
        self.came(slot, wanted=False)

    def comes(self, slot: str) -> None:
        """A request is on its way to this slot, which had room for it.

        Its delay is over: the downloader, which would draw another one, is not to wait again.
        """
        self._coming[slot] += 1
        there = self._downloader.slots.get(slot)
        if there is not None and there.delay:
            there.lastseen = 0.0

    def came(self, slot: str, *, wanted: bool) -> None:
        """It has come there, or will not come; `wanted`: others wait for the slot."""
        self._coming[slot] -= 1
        if not wanted:
            self.forget(slot)

    def forget(self, slot: str) -> None:
        """Nothing waits for this slot any more."""
        if not self._coming[slot]:
            del self._coming[slot]
            self._delays.pop(slot, None)
