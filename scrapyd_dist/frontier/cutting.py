"""Cutting a stream of requests into the batches of a frontier: by slot, priority and count, by age, by idle workers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.coordination.cutting import FEWEST, FIRST_AFTER, Cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.frontier.filling import Found


@dataclass(kw_only=True)
class _Waiting:
    """Requests of one slot and one priority that are in no batch yet."""

    since: float  #: when the first of them came
    found: list[Found] = field(default_factory=list)


class SlotCutter:
    """Collects requests for each slot and priority until a batch is full, or its first one has waited long enough.

    With `idle`, batches are also cut early while workers have nothing to do, so that each of them gets some.
    """

    def __init__(self, *, size: int, max_age: float, idle: Callable[[], int] | None = None) -> None:
        self._size = size
        self._max_age = max_age
        self._idle = idle
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: Found, now: float) -> Cut | None:
        """Take a request in; a full batch when it completes one."""
        place = found.slot, found.priority
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = _Waiting(since=now)
        waiting.found.append(found)
        self._count += 1
        return self._cut(place, self._size)[0] if len(waiting.found) >= self._size else None

    def due(self, now: float) -> list[Cut]:
        """What has waited longer than the greatest age, and what idle workers can have."""
        cuts: list[Cut] = []
        for place in self._in_order():
            if now - self._waiting[place].since >= self._max_age:
                cuts += self._cut(place, self._size)
        idle = 0 if self._idle is None else self._idle() - len(cuts)
        if idle <= 0:
            return cuts
        for place in self._in_order():
            if now - self._waiting[place].since >= FIRST_AFTER:
                fair = math.ceil(self._count / idle)
                cuts += self._cut(place, min(self._size, max(FEWEST, fair)))
        return cuts

    def take(self) -> list[Cut]:
        """Whatever is there: nothing comes after it."""
        return [cut for place in self._in_order() for cut in self._cut(place, self._size)]

    def _in_order(self) -> list[tuple[str, int]]:
        """Slots and priorities, the highest priority first."""
        return sorted(self._waiting, key=lambda place: (-place[1], place[0]))

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
