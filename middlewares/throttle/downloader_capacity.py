"""The downloader's capacity for permits: its free slots and delays, permits in flight, and the rate of departures."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.core import downloader as scrapys
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest

from scrapyd_dist.throttle.permits import Permit

from ..codec import AGAIN
from ..engine_compat import is_closing

#: seconds after its moment for which a permit is good: later, it would come close to those of other requests
STALE = 0.25
#: seconds over which departures are counted for their rate
SPAN = 1.0
#: seconds for which permits are requested ahead of free slots, beside the time that the store takes to answer: less
#: than a permit is good for
LEAD = 0.1
#: seconds of the store's answer that are allowed for, at most
LONGEST_ANSWER = 1.0
#: permits in one call where the engine has enough to do: a call for many costs as much as one for one
TOGETHER = 10
#: open permits at most until the rate is known: a free engine takes all at once, but on the way there time passes
FEW = 16
#: the number of a pass that needs no permit, and of one whose budget of pages is used up
FREE, OVER = 0, -1
#: seconds for which a lost permit's number is remembered
REMEMBERED = 600.0
#: free slots where the project sets no limit
UNLIMITED = 100
#: seconds between two looks for a free slot: Scrapy has no event for that
LOOK = 0.02
#: the clock of the downloader's `lastseen`; Scrapy before 2.15 has the time of day
_clock = getattr(scrapys, "monotonic", time.time)


def sent_back(request: Request) -> Request:
    """The request as it goes into the queue again, past the duplicate filter."""
    return request.replace(meta={**request.meta, AGAIN: request.dont_filter}, dont_filter=True)


class TimedPermit(NamedTuple):
    """A permit, and its moment by our clock."""

    due: float
    permit: Permit

    def fresh(self, now: float) -> bool:
        return now - self.due <= STALE


class InFlightPermit(NamedTuple):
    """What a request leaves the queue with, in its meta."""

    at: float  #: the moment of its permit, by the store's clock
    number: int = FREE


class _InFlight(NamedTuple):
    held: TimedPermit
    slot: str
    wanted: Collection[str]  #: the slots that requests of its queue wait for


class DownloaderCapacity:
    """How many permits one process can use, and those of requests that are on their way to the downloader."""

    def __init__(self, crawler: Crawler, clock: Callable[[], float]) -> None:
        self._crawler, self._clock = crawler, clock
        self._in_flight: dict[int, _InFlight] = {}
        self._lost: dict[
            int, float
        ] = {}  #: numbers of permits that were given up or lent, and when
        self._numbers = itertools.count(1)
        self._coming: Counter[str] = Counter()  #: slot -> requests on their way to it
        self._placed: Counter[str] = Counter()  #: those of them that came by no queue
        self._delays: dict[str, tuple[float, float]] = {}
        self._since, self._left, self._rate, self._lead = clock(), 0, 0.0, LEAD

    @property
    def _downloader(self) -> Any:
        return self._crawler.engine.downloader

    @property
    def ending(self) -> bool:
        """Whether the crawl waits for nothing but what is under way."""
        return is_closing(self._crawler)

    # permits to request

    def departed(self) -> None:
        self._measure_rate()
        self._left += 1

    def took(self, seconds: float) -> None:
        self._lead = LEAD + min(seconds, LONGEST_ANSWER)

    def quota(self, open_now: int) -> int:
        """How many permits to request beside the open ones; 0 also where it is better to wait for a few more."""
        self._measure_rate()
        total: int = self._downloader.total_concurrency
        room = max(0, total - len(self._downloader.active) if total else UNLIMITED)
        ahead = int(self._rate * self._lead)
        free = min(room + ahead, max(FEW, ahead)) - open_now
        return free if open_now < room or free >= min(TOGETHER, max(1, ahead // 2)) else 0

    def _measure_rate(self) -> None:
        now = self._clock()
        if now - self._since >= SPAN:
            self._rate, self._left, self._since = self._left / (now - self._since), 0, now

    # slots

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
        """The capacity of a slot that the downloader has not made yet."""
        downloader, spider = self._downloader, self._crawler.spider
        own = downloader.per_slot_settings.get(slot, {})
        usual = getattr(downloader, "_delay", None)
        if usual is None:  # Scrapy before 2.15
            usual = getattr(
                spider, "download_delay", self._crawler.settings.getfloat("DOWNLOAD_DELAY")
            )
        return (
            1
            if own.get("delay", usual)
            else int(own.get("concurrency", downloader.domain_concurrency))
        )

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
        self._comes(slot)

    def unplace(self, slot: str) -> None:
        """It has come there, or will not come."""
        self._placed[slot] -= 1
        if not self._placed[slot]:
            del self._placed[slot]
        self._coming[slot] -= 1
        self.forget(slot)

    def _comes(self, slot: str) -> None:
        """A request is on its way to this slot, which had room for it.

        Its delay is over: the downloader, which would draw another one, is not to wait again.
        """
        self._coming[slot] += 1
        there = self._downloader.slots.get(slot)
        if there is not None and there.delay:
            there.lastseen = 0.0

    def forget(self, slot: str) -> None:
        """Nothing waits for this slot any more."""
        if not self._coming[slot]:
            del self._coming[slot]
            self._delays.pop(slot, None)

    # permits in flight

    def send(self, held: TimedPermit, slot: str, wanted: Collection[str]) -> InFlightPermit:
        """A request of this slot leaves its queue with this permit; `wanted`: the slots that others in it wait for."""
        number = next(self._numbers)
        self._in_flight[number] = _InFlight(held, slot, wanted)
        self._comes(slot)
        return InFlightPermit(held.permit.at, number)

    def take(self, number: int) -> TimedPermit | None:
        """The permit of this number; None when it was used, lent or given up, or was never here."""
        out = self._in_flight.pop(number, None)
        if out is None:
            return None
        self._coming[out.slot] -= 1
        if out.slot not in out.wanted:
            self.forget(out.slot)
        return out.held

    def was_lost(self, number: int) -> bool:
        """Whether this permit was lent to another request, or expired; true once."""
        return self._lost.pop(number, None) is not None

    def lend(self, key: str) -> TimedPermit | None:
        """A permit of this key, good now, that counts no page; its own request has to get another one."""
        now = self._clock()
        for number, (held, _, _) in self._in_flight.items():
            if held.permit.key == key and not held.permit.page_of and held.fresh(now):
                self._lost[number] = now
                return self.take(number)
        return None

    def sweep(self) -> list[TimedPermit]:
        """The permits that have expired; numbers that were lost long ago are forgotten."""
        now = self._clock()
        old = [number for number, out in self._in_flight.items() if not out.held.fresh(now)]
        self._lost = {
            number: since for number, since in self._lost.items() if now - since < REMEMBERED
        }
        self._lost.update(dict.fromkeys(old, now))
        return [held for number in old if (held := self.take(number))]

    def close(self) -> list[TimedPermit]:
        """All permits that were not used."""
        return [held for number in list(self._in_flight) if (held := self.take(number))]
