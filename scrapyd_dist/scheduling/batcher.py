"""Cuts a stream of requests into batches: by count, by age, and by what the fleet can do.

For a frontier, it cuts them by slot, too.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import takewhile
from typing import TypeAlias

from scrapyd_dist.frontier.backlog import SPREAD, UNFAIR
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.slots import site_of

#: seconds of work in a batch in the middle of a crawl: starting a job costs a node more than a
#: second of CPU
MIDDLE = 90.0
#: seconds of work in the smallest batches
LEAST = 10.0
#: most requests in a batch while the time per request is unknown
UNTRIED = 500
#: requests in the smallest batches
FEWEST = 20
#: largest share of one slot's remaining work that one batch may take
SHARE = 0.5
#: seconds after which idle slots get whatever is buffered
FIRST_AFTER = 0.5
#: most full batches that are held back until the fleet can use them
HELD = 50
#: the same with a fixed batch size, where requests of several sites are needed to choose from
COMPOSED = 5
#: most requests that are held back
HELD_REQUESTS = 50_000
#: requests per write to the store, approximately
PORTION = 2_000

#: requests that are about to become a batch; those that workers lease are of one slot and priority
BatchDraft: TypeAlias = list[FrontierIntake]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Says what the fleet could take now."""

    slots: int  #: process slots that get work
    idle: int  #: slots without a batch, running or waiting; negative: batches that wait for a slot
    pace: float = 0.0  #: requests per second of one job; 0: not known
    more: float | None = None  #: requests that will still be found; None: not known


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """Computes batch sizes: small so that every slot starts early, then large, small at the end."""

    most: int  #: largest size, in requests
    demand: Demand
    left: float  #: requests that are in no batch yet, found or not; infinite when unknown

    @property
    def least(self) -> int:
        """Return the smallest size that is worth a job's start, in requests.

        It still leaves something for every slot.
        """
        if not self.demand.pace:
            return min(self.most, FEWEST)
        work = LEAST * self.demand.pace
        fair = self.left / max(1, self.demand.slots)
        rounds = fair / work
        if math.isfinite(rounds):  # equal rounds: no slot starts a job for a small rest
            work = fair / max(1, round(rounds))
        return min(self.most, max(FEWEST, math.ceil(work)))

    def next(self, left: float) -> int:
        """Return the next size when this many requests are in no batch yet.

        The nearer the end, the smaller it is.
        """
        middle = UNTRIED
        if self.demand.pace:
            middle = math.ceil(MIDDLE * self.demand.pace)
        size = min(self.most, middle)
        share = left * SHARE / max(1, self.demand.slots)
        if share <= size:
            size = math.ceil(share)
        return max(size, self.least)

    def first(self, found: int) -> int:
        """Return the size for an idle slot: each idle slot gets a share of what is buffered."""
        fair = math.ceil(found / max(1, self.demand.idle))
        return max(min(fair, self.next(self.left)), min(FEWEST, self.most))

    @property
    def reserve(self) -> int:
        """Return the requests to keep for small batches at the end, while that is unknown."""
        if self.demand.more is not None:
            return 0
        return 2 * self.demand.slots * self.least


class SitesBySize:
    """Knows the largest of some sites, and which one fills a room best, by their requests."""

    def __init__(self) -> None:
        #: number of requests -> the sites that have so many, the one that came to it first is first
        self._sites: dict[int, OrderedDict[str, None]] = {}
        self._most = 0  #: no site has more requests

    def change(self, site: str, before: int, after: int) -> None:
        """Note how many requests a site has now, and had before."""
        if before:
            del self._sites[before][site]
            if not self._sites[before]:
                del self._sites[before]
        if after:
            self._sites.setdefault(after, OrderedDict())[site] = None
            self._most = max(self._most, after)

    def largest(self) -> str:
        """Return the largest site; there must be one."""
        while self._most not in self._sites:
            self._most -= 1
        return next(iter(self._sites[self._most]))

    def largest_within(self, size: int) -> str | None:
        """Return the largest site of at most this size, if there is any."""
        for number in range(min(size, self._most), 0, -1):
            if number in self._sites:
                return next(iter(self._sites[number]))
        return None


class Buffer:
    """Holds found requests that are in no batch yet.

    Each is taken out once, and those of one site keep their order. `fair` is a value of
    `DISTRIBUTED_FAIR`: `SPREAD` takes one request of each site in turn, so that no batch depends on
    one slow site; by domain, whole sites are taken while they fit, the oldest first and then the
    largest, and at last a part of the largest of all, so that a site is in few batches. `UNFAIR` is
    first in, first out: all requests are of one group.
    """

    def __init__(self, fair: str = UNFAIR) -> None:
        self._fair = fair
        #: site -> its requests, each with when it was added
        self._groups: OrderedDict[str, deque[tuple[FrontierIntake, float]]] = OrderedDict()
        self._sizes = SitesBySize()  #: of the groups; kept where whole sites are taken
        self._takes_whole = bool(fair) and fair != SPREAD
        #: a heap of when a group's first request was added, and its site; some are out of date
        self._firsts: list[tuple[float, str]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: FrontierIntake, now: float) -> None:
        """Add a request that was found at this time."""
        site = site_of(found.value["url"]) if self._fair else ""
        group = self._groups.get(site)
        if group is None:
            group = self._groups[site] = deque()
            heappush(self._firsts, (now, site))
        group.append((found, now))
        self._count += 1
        if self._takes_whole:
            self._sizes.change(site, len(group) - 1, len(group))

    def oldest(self) -> float:
        """Return when the oldest request was added; the buffer must not be empty."""
        while True:
            added, site = self._firsts[0]
            group = self._groups.get(site)
            if group is not None and group[0][1] == added:
                return added
            heappop(self._firsts)

    def cut_batch(self, number: int) -> BatchDraft:
        """Remove up to this many requests for one batch, and return them."""
        if self._fair == SPREAD:
            return self._remove_in_turn(number)
        if self._takes_whole:
            return self._remove_grouped(number)
        return self._remove_from("", number) if self._groups else []

    def _remove_in_turn(self, number: int) -> BatchDraft:
        """Remove one request of each site in turn."""
        removed: BatchDraft = []
        while self._groups and len(removed) < number:
            site = next(iter(self._groups))
            removed += self._remove_from(site, 1)
            if site in self._groups:
                self._groups.move_to_end(site)
        return removed

    def _remove_grouped(self, number: int) -> BatchDraft:
        """Remove whole sites while they fit, then a part of the largest one."""
        removed: BatchDraft = []
        while self._groups:
            oldest = next(iter(self._groups))
            if len(self._groups[oldest]) > number - len(removed):
                break
            removed += self._remove_from(oldest, number)
        room = number - len(removed)
        while (fitting := self._sizes.largest_within(room)) is not None:
            size = len(self._groups[fitting])
            removed += self._remove_from(fitting, size)
            room = min(size, number - len(removed))  # none of more requests has fitted before
        while self._groups and len(removed) < number:
            removed += self._remove_from(self._sizes.largest(), number - len(removed))
        return removed

    def _remove_from(self, site: str, number: int) -> BatchDraft:
        group = self._groups[site]
        size = len(group)
        removed = [group.popleft()[0] for _ in range(min(number, size))]
        if group:
            heappush(self._firsts, (group[0][1], site))
        else:
            del self._groups[site]
        if self._takes_whole:
            self._sizes.change(site, size, len(group))
        self._count -= len(removed)
        return removed


class Batcher:
    """Collects requests until a batch is full, or its first request has waited long enough.

    With `demand`, `size` is the largest batch: a batch is cut when the fleet can use it, in a size
    that fits. `demand` is called with the number of requests that are in no batch yet.
    """

    def __init__(
        self,
        *,
        size: int,
        max_age: float,
        demand: Callable[[int], Demand] | None = None,
        fair: str = UNFAIR,
    ) -> None:
        """Make an empty batcher.

        A request waits `max_age` seconds at most, and `fair` is as in `Buffer`.
        """
        self._size = size
        self._max_age = max_age
        self._demand = demand
        held = 1  # full batches that are held back
        if demand is not None:
            held = HELD
        elif fair:
            held = COMPOSED
        self._hold = max(size, min(size * held, HELD_REQUESTS))
        self._usual = size  #: the size of the batches that are cut while requests are added
        self._waiting = Buffer(fair)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, found: FrontierIntake, now: float) -> BatchDraft | None:
        """Add a request; return a full batch when this completes one."""
        self._waiting.add(found, now)
        if len(self._waiting) >= self._hold:
            return self._waiting.cut_batch(self._usual)
        return None

    def due(self, now: float) -> list[BatchDraft]:
        """Return the batches that are due: too old, or wanted by the fleet."""
        if not self._waiting:
            return []
        if self._demand is None:
            return self._overdue(now)
        sizes = self._sizes(self._demand(len(self)))
        self._usual = sizes.next(sizes.left)
        cuts = [*self._for_idle_slots(sizes, now), *self._for_later(sizes, now)]
        if sizes.demand.more == 0 and 0 < len(self._waiting) <= FEWEST:
            cuts.append(self._waiting.cut_batch(FEWEST))
        return cuts

    def cut_rest(self) -> list[BatchDraft]:
        """Return all that is left, when no request will be added."""
        if self._demand is None:
            return self._overdue(math.inf)
        sizes = self._sizes(replace(self._demand(len(self)), more=0.0))
        cuts = []
        while self._waiting:
            cuts.append(self._waiting.cut_batch(sizes.next(len(self._waiting))))
        return cuts

    def _overdue(self, now: float) -> list[BatchDraft]:
        """Return what has waited long enough, in batches of the given size."""
        cuts = []
        while self._waiting and now - self._waiting.oldest() >= self._max_age:
            cuts.append(self._waiting.cut_batch(self._size))
        return cuts

    def _sizes(self, demand: Demand) -> BatchSizes:
        """Return the batch sizes for what the fleet could take now."""
        more = math.inf if demand.more is None else demand.more
        return BatchSizes(most=self._size, demand=demand, left=len(self._waiting) + more)

    def _for_idle_slots(self, sizes: BatchSizes, now: float) -> list[BatchDraft]:
        """Return a batch for each idle slot."""
        if sizes.demand.more != 0 and now - self._waiting.oldest() < FIRST_AFTER:
            return []
        size = sizes.first(len(self._waiting))
        count = min(max(0, sizes.demand.idle), len(self._waiting) // min(size, FEWEST))
        cuts: list[BatchDraft] = []
        while self._waiting and len(cuts) < count:
            cuts.append(self._waiting.cut_batch(size))
        return cuts

    def _for_later(self, sizes: BatchSizes, now: float) -> list[BatchDraft]:
        """Return one waiting batch per slot, and what has waited long enough."""
        cuts: list[BatchDraft] = []
        room = 0
        if sizes.demand.pace:
            room = sizes.demand.slots + min(0, sizes.demand.idle)
        while self._waiting:
            size = sizes.next(self._sizes(sizes.demand).left)
            wanted = len(cuts) < room and len(self._waiting) >= size + sizes.reserve
            if not wanted and now - self._waiting.oldest() < self._max_age:
                break
            cuts.append(self._waiting.cut_batch(size))
        return cuts


def portions(cuts: Iterable[BatchDraft]) -> Iterator[list[BatchDraft]]:
    """Group cuts into the portions in which they are written.

    There may be one cut for each of thousands of slots.
    """
    portion: list[BatchDraft] = []
    count = 0
    for cut in cuts:
        if count >= PORTION:
            yield portion
            portion = []
            count = 0
        portion.append(cut)
        count += len(cut)
    if portion:
        yield portion


class SlotBatcher:
    """Collects requests per slot and priority until a batch is full, or its first one is too old.

    With `demand`, batches are also cut early while workers are idle, so that each worker gets some,
    and the first ones are small, so that even a crawl of few pages is spread over the fleet. If
    they are `fair`, workers take the slots in turn, of which there may be thousands: only as many
    batches are cut early as there are idle workers, oldest first, so that the other slots keep
    filling up; and full batches wait for `due`, to be written together.
    """

    def __init__(
        self,
        *,
        size: int,
        max_age: float,
        demand: Callable[[int], Demand] | None = None,
        fair: str = UNFAIR,
    ) -> None:
        self._size = size
        self._max_age = max_age
        self._demand = demand
        self._many_slots = bool(fair)
        #: by slot and priority, oldest first: when the first request was added, and the requests
        self._waiting: OrderedDict[tuple[str, int], tuple[float, BatchDraft]] = OrderedDict()
        self._full: deque[BatchDraft] = deque()
        self._count = 0
        #: batches that are still to be small: one for each process slot; None: not known yet
        self._small: int | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, found: FrontierIntake, now: float) -> BatchDraft | None:
        """Add a request; return a batch if one must be written now."""
        place = found.slot, found.priority
        _, waiting = self._waiting.setdefault(place, (now, []))
        waiting.append(found)
        self._count += 1
        cut = None
        if len(waiting) >= self._full_size():
            cut = self._cut(place, self._size)[0]
        if not self._many_slots:
            return cut or self._overdue()
        if cut is not None:
            self._full.append(cut)
            self._count += len(cut)
        return self._overdue()

    def _full_size(self) -> int:
        """Return how many requests of one place fill a batch now."""
        if self._small is None:
            self._small = 0
            if self._demand is not None and not self._many_slots:
                self._small = self._demand(self._count).slots
        return min(self._size, FEWEST) if self._small > 0 else self._size

    def _overdue(self) -> BatchDraft | None:
        """Return a batch to write if more requests are held than `HELD_REQUESTS`."""
        if self._count <= HELD_REQUESTS:
            return None
        if self._full:
            cut = self._full.popleft()
            self._count -= len(cut)
            return cut
        return self._cut(next(iter(self._waiting)), self._size)[0]

    def due(self, now: float) -> list[BatchDraft]:
        """Return full batches, batches past the maximum age, and batches for idle workers."""
        cuts = self._remove_full()
        for place in self._in_order(self._older_than(self._max_age, now)):
            cuts += self._cut(place, self._size)
        if self._demand is None:
            return cuts
        idle = self._demand(len(self)).idle - len(cuts)
        if idle > 0:
            cuts += self._for_idle_workers(idle, now)
        return cuts

    def _for_idle_workers(self, idle: int, now: float) -> list[BatchDraft]:
        """Cut batches early for so many idle workers."""
        places = self._older_than(FIRST_AFTER, now)
        cuts: list[BatchDraft] = []
        if self._many_slots:
            for place in places[:idle]:
                cuts += self._cut(place, self._size)
            return cuts
        for place in self._in_order(places):
            fair = math.ceil(self._count / idle)
            cuts += self._cut(place, min(self._size, max(FEWEST, fair)))
        return cuts

    def cut_rest(self) -> list[BatchDraft]:
        """Return everything that is left, at the end of the stream.

        With `demand`, there is a share for every slot.
        """
        size = self._size
        if self._demand is not None and not self._many_slots:
            slots = max(1, self._demand(self._count).slots)
            size = min(size, max(FEWEST, math.ceil(self._count / slots)))
        places = self._in_order(list(self._waiting))
        cuts = self._remove_full()
        for place in places:
            cuts += self._cut(place, size)
        return cuts

    def _remove_full(self) -> list[BatchDraft]:
        cuts = list(self._full)
        self._full.clear()
        self._count -= sum(map(len, cuts))
        return cuts

    def _older_than(self, age: float, now: float) -> list[tuple[str, int]]:
        """Return the places whose first request is at least `age` seconds old, oldest first.

        A place is a slot and a priority.
        """
        return list(takewhile(lambda place: now - self._waiting[place][0] >= age, self._waiting))

    @staticmethod
    def _in_order(places: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return slots and priorities, highest priority first."""
        return sorted(places, key=lambda place: (-place[1], place[0]))

    def _cut(self, place: tuple[str, int], size: int) -> list[BatchDraft]:
        """Remove the requests of a slot and priority, in batches of this size."""
        _, found = self._waiting.pop(place)
        self._count -= len(found)
        if self._small:
            self._small -= 1
        return [found[start : start + size] for start in range(0, len(found), size)]
