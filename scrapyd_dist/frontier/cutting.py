"""Cuts a stream of requests into the batches of a frontier by slot, priority, count, age and idle workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.coordination.cutting import FEWEST, FIRST_AFTER, HELD_REQUESTS, Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapyd_dist.frontier.filling import Found


#: requests per write to the store, approximately
PORTION = 2_000


def portions(cuts: Iterable[Cut]) -> Iterator[list[Cut]]:
    """Group cuts into the portions in which they are written; there may be one cut for each of thousands of slots.

    A portion has at most one cut per slot and priority, because two would be merged into one batch.
    """
    some: dict[tuple[str | None, int], Cut] = {}
    count = 0
    for cut in cuts:
        if count >= PORTION or (cut.slot, cut.priority) in some:
            yield list(some.values())
            some, count = {}, 0
        some[cut.slot, cut.priority] = cut
        count += len(cut.values)
    if some:
        yield list(some.values())


@dataclass(kw_only=True)
class _Waiting:
    """Requests of one slot and priority that are not in a batch yet."""

    since: float  #: when the first request was added
    found: list[Found] = field(default_factory=list)


class SlotCutter:
    """Collects requests per slot and priority until a batch is full or its first request has reached the maximum age.

    With `idle`, batches are also cut early while workers are idle, so that each worker gets some. With `many_slots`,
    workers take the slots in turn, of which there may be thousands: only as many batches are cut early as there are
    idle workers, oldest first, so that the other slots keep filling up; and full batches wait for `due`, to be written
    together.
    """

    def __init__(
        self, *, size: int, max_age: float, idle: Callable[[], int] | None = None, many_slots: bool = False
    ) -> None:
        self._size = size
        self._max_age = max_age
        self._idle = idle
        self._many_slots = many_slots
        self._waiting: dict[tuple[str, int], _Waiting] = {}  #: oldest first
        self._full: list[Cut] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: Found, now: float) -> Cut | None:
        """Add a request; returns a batch if one must be written now."""
        place = found.slot, found.priority
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = _Waiting(since=now)
        waiting.found.append(found)
        self._count += 1
        cut = self._cut(place, self._size)[0] if len(waiting.found) >= self._size else None
        if not self._many_slots:
            return cut or self._overdue()
        if cut is not None:
            self._full.append(cut)
            self._count += len(cut.values)
        return self._overdue()

    def _overdue(self) -> Cut | None:
        """Return a batch to write if more requests are held than `HELD_REQUESTS`."""
        if self._count <= HELD_REQUESTS:
            return None
        if self._full:
            cut = self._full.pop(0)
            self._count -= len(cut.values)
            return cut
        return self._cut(next(iter(self._waiting)), self._size)[0]

    def due(self, now: float) -> list[Cut]:
        """Return full batches, batches past the maximum age, and batches for idle workers."""
        cuts = self._take_full()
        for place in self._in_order(self._older_than(self._max_age, now)):
            cuts += self._cut(place, self._size)
        idle = 0 if self._idle is None else self._idle() - len(cuts)
        if idle <= 0:
            return cuts
        if self._many_slots:
            for place in self._older_than(FIRST_AFTER, now)[:idle]:
                cuts += self._cut(place, self._size)
            return cuts
        for place in self._in_order(self._older_than(FIRST_AFTER, now)):
            fair = math.ceil(self._count / idle)
            cuts += self._cut(place, min(self._size, max(FEWEST, fair)))
        return cuts

    def take(self) -> list[Cut]:
        """Return everything that is left, at the end of the stream."""
        rest = self._in_order(list(self._waiting))
        return [*self._take_full(), *(cut for place in rest for cut in self._cut(place, self._size))]

    def _take_full(self) -> list[Cut]:
        cuts, self._full = self._full, []
        self._count -= sum(len(cut.values) for cut in cuts)
        return cuts

    def _older_than(self, age: float, now: float) -> list[tuple[str, int]]:
        """Slots and priorities whose first request is at least `age` seconds old, oldest first."""

        def old() -> Iterator[tuple[str, int]]:
            for place, waiting in self._waiting.items():
                if now - waiting.since < age:
                    return
                yield place

        return list(old())

    @staticmethod
    def _in_order(places: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Slots and priorities, highest priority first."""
        return sorted(places, key=lambda place: (-place[1], place[0]))

    def _cut(self, place: tuple[str, int], size: int) -> list[Cut]:
        found = self._waiting.pop(place).found
        self._count -= len(found)
        slot, priority = place
        return [
            Cut(
                values=[one.value for one in found[start : start + size]],
                fingerprints=[one.fingerprint for one in found[start : start + size]],
                slot=slot,
                priority=priority,
            )
            for start in range(0, len(found), size)
        ]
