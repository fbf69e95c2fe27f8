"""Tells how many permits the downloader can use, and keeps those of requests on their way to it."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.core import downloader as scrapys
from scrapy.crawler import Crawler

from scrapyd_dist.throttle.permits import Permit

from ..codec import SENT_BACK, NotLetOut
from ..engine_compat import is_closing

#: seconds after its moment for which a permit is good: later, it would come close to those of other
#: requests
STALE = 0.25
#: seconds over which departures are counted for their rate
SPAN = 1.0
#: seconds for which permits are requested ahead of free slots, beside the time that the store
#: takes to answer: less than a permit is good for
LEAD = 0.1
#: seconds of the store's answer that are allowed for, at most
LONGEST_ANSWER = 1.0
#: permits in one call where the engine has enough to do: a call for many costs as much as one for
#: one
TOGETHER = 10
#: open permits at most until the rate is known: a free engine takes all at once, but on the way
#: there time passes
FEW = 16
#: the number of a pass that needs no permit
FREE = 0
#: the number of a pass whose budget of pages is used up
OVER = -1
#: seconds for which a lost permit's number is remembered
REMEMBERED = 600.0
#: free slots where the project sets no limit
UNLIMITED = 100
#: seconds between two looks for a free slot: Scrapy has no event for that
LOOK = 0.02
#: the clock of the downloader's `lastseen`; Scrapy before 2.15 has the time of day
_clock = getattr(scrapys, "monotonic", time.time)


def sent_back(request: Request) -> Request:
    """Return the request as it goes into the queue again, past the duplicate filter."""
    return request.replace(meta={**request.meta, SENT_BACK: request.dont_filter}, dont_filter=True)


class TimedPermit(NamedTuple):
    """Holds a permit, and its moment by our clock."""

    due: float
    permit: Permit

    def fresh(self, now: float) -> bool:
        """Tell whether it has not expired yet."""
        return now - self.due <= STALE


class InFlightPermit(NamedTuple):
    """Is what a request leaves the queue with, in its meta."""

    at: float  #: the moment of its permit, by the store's clock
    number: int = FREE  #: of its permit in this process


class _InFlight(NamedTuple):
    held: TimedPermit
    slot: str
    wanted: Collection[str]  #: the slots that requests of its queue wait for


class DownloaderCapacity:
    """Says how many permits one process can use, and keeps those of requests on their way."""

    def __init__(self, crawler: Crawler, clock: Callable[[], float]) -> None:
        self._crawler = crawler
        self._clock = clock
        self._in_flight: dict[int, _InFlight] = {}  #: by number
        #: numbers of permits that were given up or lent, and when
        self._lost: dict[int, float] = {}
        self._numbers = itertools.count(1)
        self._coming: Counter[str] = Counter()  #: slot -> requests on their way to it
        self._placed: Counter[str] = Counter()  #: those of them that came by no queue
        #: slot -> when its last request left, by the downloader's clock, and the delay drawn then
        self._delays: dict[str, tuple[float, float]] = {}
        self._since = clock()  #: since when departures are counted
        self._departures = 0
        self._rate = 0.0  #: departures per second
        self._lead = LEAD  #: seconds for which permits are requested ahead

    @property
    def _downloader(self) -> Any:
        return self._crawler.engine.downloader

    @property
    def ending(self) -> bool:
        """Tell whether the crawl waits for nothing but what is under way."""
        return is_closing(self._crawler)

    # permits to request

    def departed(self) -> None:
        """Count a request that has left its queue."""
        self._measure_rate()
        self._departures += 1

    def note_answer_time(self, seconds: float) -> None:
        """Allow for the time that the store took to answer."""
        self._lead = LEAD + min(seconds, LONGEST_ANSWER)

    def quota(self, open_now: int) -> int:
        """Return how many permits to request beside the open ones.

        It is 0 also where it is better to wait for a few more.
        """
        self._measure_rate()
        total: int = self._downloader.total_concurrency
        room = UNLIMITED
        if total:
            room = max(0, total - len(self._downloader.active))
        ahead = int(self._rate * self._lead)
        free = min(room + ahead, max(FEW, ahead)) - open_now
        if open_now < room or free >= min(TOGETHER, max(1, ahead // 2)):
            return free
        return 0

    def _measure_rate(self) -> None:
        now = self._clock()
        if now - self._since >= SPAN:
            self._rate = self._departures / (now - self._since)
            self._departures = 0
            self._since = now

    # slots

    def active(self, slot: str) -> int:
        """Return how many requests of a slot are under way, or about to be."""
        scrapy_slot = self._downloader.slots.get(slot)
        active = len(scrapy_slot.active) if scrapy_slot else 0
        return self._coming[slot] + active

    def free(self, slot: str) -> int:
        """Return how many requests of a slot could leave at once."""
        return self._free_beside(slot, self._coming[slot])

    def _free_beside(self, slot: str, coming: int) -> int:
        """Return how many could leave if so many others are `coming`."""
        scrapy_slot = self._downloader.slots.get(slot)
        if scrapy_slot is None:
            return self._capacity_of_new(slot) - coming
        if scrapy_slot.queue or self.delay(slot) > 0:
            return 0
        room: int = scrapy_slot.concurrency - len(scrapy_slot.active) - coming
        if scrapy_slot.delay:
            return min(room, 1 - coming)
        return room

    def _capacity_of_new(self, slot: str) -> int:
        """Return the capacity of a slot that the downloader has not made yet."""
        downloader = self._downloader
        own = downloader.per_slot_settings.get(slot, {})
        usual_delay = getattr(downloader, "_delay", None)
        if usual_delay is None:  # Scrapy before 2.15
            by_settings = self._crawler.settings.getfloat("DOWNLOAD_DELAY")
            usual_delay = getattr(self._crawler.spider, "download_delay", by_settings)
        if own.get("delay", usual_delay):
            return 1
        return int(own.get("concurrency", downloader.domain_concurrency))

    def delay(self, slot: str) -> float:
        """Return the seconds until DOWNLOAD_DELAY, or AutoThrottle, lets a slot's next request go.

        It is 0 where there is no delay.
        """
        scrapy_slot = self._downloader.slots.get(slot)
        if scrapy_slot is None or not scrapy_slot.delay:
            return 0.0
        last: float = scrapy_slot.lastseen
        if self._delays.get(slot, (None,))[0] != last:
            self._delays[slot] = (last, scrapy_slot.download_delay())  # drawn once, as it is random
        return max(0.0, last + self._delays[slot][1] - _clock())

    async def place(self, slot: str) -> None:
        """Wait until a request that came by no queue could leave at once, and keep it a place.

        It goes before those that came by one: they may be waiting for it, as for their robots.txt.

        Raises:
            NotLetOut: the crawl ends.
        """
        while self._free_beside(slot, self._placed[slot]) <= 0:
            if self.ending:
                raise NotLetOut("no permit to leave: the crawl ends")
            await asyncio.sleep(LOOK)
        self._placed[slot] += 1
        self._comes(slot)

    def unplace(self, slot: str) -> None:
        """Give up a place that was kept: its request has come there, or will not come."""
        self._placed[slot] -= 1
        if not self._placed[slot]:
            del self._placed[slot]
        self._coming[slot] -= 1
        self.forget(slot)

    def _comes(self, slot: str) -> None:
        """Count a request on its way to this slot, which had room for it.

        Its delay is over: the downloader, which would draw another one, is not to wait again.
        """
        self._coming[slot] += 1
        scrapy_slot = self._downloader.slots.get(slot)
        if scrapy_slot is not None and scrapy_slot.delay:
            scrapy_slot.lastseen = 0.0

    def forget(self, slot: str) -> None:
        """Forget a slot for which nothing waits any more."""
        if not self._coming[slot]:
            del self._coming[slot]
            self._delays.pop(slot, None)

    # permits in flight

    def send(self, held: TimedPermit, slot: str, wanted: Collection[str]) -> InFlightPermit:
        """Note that a request of this slot leaves its queue with this permit.

        `wanted` has the slots that others in the queue wait for.
        """
        number = next(self._numbers)
        self._in_flight[number] = _InFlight(held, slot, wanted)
        self._comes(slot)
        return InFlightPermit(held.permit.at, number)

    def claim(self, number: int) -> TimedPermit | None:
        """Take out the permit of this number.

        None when it was used, lent or given up, or was never here.
        """
        flight = self._in_flight.pop(number, None)
        if flight is None:
            return None
        self._coming[flight.slot] -= 1
        if flight.slot not in flight.wanted:
            self.forget(flight.slot)
        return flight.held

    def was_lost(self, number: int) -> bool:
        """Tell whether this permit was lent to another request, or expired; true once."""
        return self._lost.pop(number, None) is not None

    def lend(self, key: str) -> TimedPermit | None:
        """Take out a permit of this key, good now, that counts no page.

        Its own request has to get another one. None if there is no such permit.
        """
        now = self._clock()
        for number, (held, _, _) in self._in_flight.items():
            if held.permit.key == key and not held.permit.page_of and held.fresh(now):
                self._lost[number] = now
                return self.claim(number)
        return None

    def sweep(self) -> list[TimedPermit]:
        """Take out the permits that have expired, and forget numbers that were lost long ago."""
        now = self._clock()
        expired = []
        for number, flight in self._in_flight.items():
            if not flight.held.fresh(now):
                expired.append(number)
        self._lost = {n: since for n, since in self._lost.items() if now - since < REMEMBERED}
        self._lost.update(dict.fromkeys(expired, now))
        return self._take_all(expired)

    def close(self) -> list[TimedPermit]:
        """Take out all permits that were not used."""
        return self._take_all(list(self._in_flight))

    def _take_all(self, numbers: list[int]) -> list[TimedPermit]:
        taken = []
        for number in numbers:
            held = self.claim(number)
            if held is not None:
                taken.append(held)
        return taken
