"""Buffers of found requests that are in no batch yet, ordered by site.

Invariant: each request is taken out once, and requests of one site keep their order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from scrapyd_dist.frontier.backlog import BY_DOMAIN, SPREAD
from scrapyd_dist.frontier.slots import site_of

if TYPE_CHECKING:
    from scrapyd_dist.frontier.intake import FrontierIntake

    #: requests, each with the time at which it was added
    Line = deque[tuple[FrontierIntake, float]]


class Buffer(Protocol):
    """Where requests wait for a batch."""

    def __len__(self) -> int: ...

    def add(self, found: FrontierIntake, now: float) -> None: ...

    def take(self, number: int) -> list[FrontierIntake]:
        """Take up to this many requests for one batch."""

    def oldest(self) -> float:
        """The time at which the oldest request was added; the buffer must not be empty."""


def buffer_for(fair: str) -> Buffer:
    """The buffer for this value of `DISTRIBUTED_FAIR`, one of `FAIR`."""
    if fair == SPREAD:
        return RoundRobinBuffer()
    return GroupedBuffer() if fair == BY_DOMAIN else ArrivalBuffer()


class ArrivalBuffer:
    """First in, first out."""

    def __init__(self) -> None:
        self._line: Line = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, found: FrontierIntake, now: float) -> None:
        self._line.append((found, now))

    def take(self, number: int) -> list[FrontierIntake]:
        return [self._line.popleft()[0] for _ in range(min(number, len(self._line)))]

    def oldest(self) -> float:
        return self._line[0][1]


class _SiteBuffer:
    """Requests grouped by site."""

    def __init__(self) -> None:
        self._sites: dict[str, Line] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: FrontierIntake, now: float) -> None:
        self._sites.setdefault(site_of(found.value["url"]), deque()).append((found, now))
        self._count += 1

    def oldest(self) -> float:
        return min(line[0][1] for line in self._sites.values())

    def _take_from(self, site: str, number: int) -> list[FrontierIntake]:
        line = self._sites[site]
        taken = [line.popleft()[0] for _ in range(min(number, len(line)))]
        if not line:
            del self._sites[site]
        self._count -= len(taken)
        return taken


class RoundRobinBuffer(_SiteBuffer):
    """One request of each site in turn, so that no batch depends on one slow site."""

    def take(self, number: int) -> list[FrontierIntake]:
        taken: list[FrontierIntake] = []
        while self._sites and len(taken) < number:
            site = next(iter(self._sites))
            taken += self._take_from(site, 1)
            if site in self._sites:
                self._sites[site] = self._sites.pop(site)  # it moves to the end
        return taken


class GroupedBuffer(_SiteBuffer):
    """As few batches per site as possible: whole sites while they fit, then a part of the largest one."""

    def take(self, number: int) -> list[FrontierIntake]:
        whole, room = [], number
        for site, line in self._sites.items():
            if not room:
                break
            if len(line) <= room:
                whole.append(site)
                room -= len(line)
        taken = [one for site in whole for one in self._take_from(site, number)]
        while self._sites and len(taken) < number:
            largest = max(self._sites, key=lambda site: len(self._sites[site]))
            taken += self._take_from(largest, number - len(taken))
        return taken
