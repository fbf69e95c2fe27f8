"""How many permits a process may hold: by the downloader's free slots and delays, and by what is in flight."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy.core import downloader as scrapys
from scrapy.exceptions import IgnoreRequest

from ..codec import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapyd_dist.throttle.permits import Permit

    from .domain_queue import DomainQueue, TimedPermit

#: seconds over which it is counted how many requests leave
SPAN = 1.0


#: seconds for which permits are asked for ahead of the engine's room, beside those that an answer of the store takes:
#: less than a permit is good for
LEAD = 0.1


#: seconds that an answer takes, at most, as far as permits are asked for ahead
LONGEST_ANSWER = 1.0


#: as many at once, where the engine has enough to do: one question for many costs as much as one for one
TOGETHER = 10


#: open at most, as long as it is not known that more of them leave in time: a free engine takes all at once, but what
#: is on its way there takes its time, too
FEW = 16


class PermitQuota:
    """The places of one process.

    Args:
        room: of its engine.
        clock: seconds, never turned back.
    """

    def __init__(self, room: DownloaderCapacity, clock: Callable[[], float]) -> None:
        self._room, self._clock = room, clock
        self._since, self._left, self._rate = clock(), 0, 0.0
        self._lead = LEAD

    def saw(self) -> None:
        """A request leaves the queue."""
        self._turn()
        self._left += 1

    def took(self, seconds: float) -> None:
        """An answer of the store took so long."""
        self._lead = LEAD + min(seconds, LONGEST_ANSWER)

    def free(self, open_now: int) -> int:
        """How many more permits are to be asked for now; 0 also where it is better to wait for a few more."""
        self._turn()
        room, ahead = max(0, self._room.of_engine), int(self._rate * self._lead)
        free = min(room + ahead, max(FEW, ahead)) - open_now
        return free if open_now < room or free >= min(TOGETHER, max(1, ahead // 2)) else 0

    def _turn(self) -> None:
        """Once in a while, what was counted is the rate."""
        now = self._clock()
        if now - self._since >= SPAN:
            self._rate, self._left, self._since = self._left / (now - self._since), 0, now


#: the number of a pass that needs no permit, and of one whose budget of pages is used up
FREE, OVER = 0, -1


#: seconds for which a request may come and ask where its permit has gone
REMEMBERED = 600.0


def sent_back(request: Request) -> Request:
    """The request as it goes into the queue again, past the duplicate filter."""
    return request.replace(meta={**request.meta, AGAIN: request.dont_filter}, dont_filter=True)


class InFlightPermit(NamedTuple):
    """What a request leaves the queue with, in its meta."""

    key: str
    at: float  #: the moment of its permit, by the store's clock
    number: int


class _Out(NamedTuple):
    held: TimedPermit
    slot: str
    line: DomainQueue


class InFlightPermits:
    """The passes of one process."""

    def __init__(self, room: DownloaderCapacity) -> None:
        self._room = room
        self._out: dict[int, _Out] = {}
        self._lost: dict[int, float] = {}  #: those whose permit was given up or lent, and when
        self._numbers = itertools.count(1)

    def give(self, held: TimedPermit, slot: str, line: DomainQueue) -> InFlightPermit:
        """A request of this slot leaves the queue with this permit."""
        number = next(self._numbers)
        self._out[number] = _Out(held, slot, line)
        self._room.comes(slot)
        return InFlightPermit(held.permit.key, held.permit.at, number)

    def take(self, number: int) -> TimedPermit | None:
        """The permit of a pass; None when it was used, lent or given up, or was never here."""
        out = self._out.pop(number, None)
        if out is None:
            return None
        self._room.came(out.slot, wanted=out.slot in out.line.slots)
        return out.held

    def was_lost(self, number: int) -> bool:
        """Whether this pass has lost its permit to another request, or to time; true once."""
        return self._lost.pop(number, None) is not None

    def lend(self, key: str, now: float) -> TimedPermit | None:
        """A permit of this key, good now, that counts no page; its own request has to get another one."""
        for number, (held, _, _) in self._out.items():
            if held.permit.key == key and not held.permit.page_of and held.fresh(now):
                self._lost[number] = now
                return self.take(number)
        return None

    def sweep(self, now: float) -> list[Permit]:
        """The permits that have become too old; who lost one long ago is forgotten."""
        old = [number for number, out in self._out.items() if not out.held.fresh(now)]
        self._lost = {number: since for number, since in self._lost.items() if now - since < REMEMBERED}
        self._lost.update(dict.fromkeys(old, now))
        return [held.permit for number in old if (held := self.take(number))]

    def close(self) -> list[Permit]:
        """All that were not used."""
        return [held.permit for number in list(self._out) if (held := self.take(number))]


#: requests that are made room for at one time, where the project sets no limit
UNLIMITED = 100


#: seconds between two looks for a place in a slot: nothing of Scrapy's tells when there is one
LOOK = 0.02


#: the clock by which the downloader remembers when a request left last; Scrapy before 2.15 has the time of day
_clock = getattr(scrapys, "monotonic", time.time)


class DownloaderCapacity:
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
