"""Found requests that are in no batch yet: in which order they come into one, as far as their sites decide about it.

The rule it keeps: all that came in is taken out once; requests of one site stay in their order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from scrapyd_dist.frontier.slotting import site_of
from scrapyd_dist.frontier.values import BY_DOMAIN, SPREAD

if TYPE_CHECKING:
    from scrapyd_dist.frontier.filling import Found

    #: requests, each with the time at which it came
    Line = deque[tuple[Found, float]]


class Buffer(Protocol):
    """Where requests wait for a batch."""

    def __len__(self) -> int: ...

    def add(self, found: Found, now: float) -> None: ...

    def take(self, number: int) -> list[Found]:
        """So many requests for one batch, fewer when there are fewer."""

    def oldest(self) -> float:
        """When the first of those that are here came; there has to be one."""


def buffer_for(fair: str) -> Buffer:
    """The buffer of a crawl; `fair` is one of `frontier.values.FAIR`."""
    if fair == SPREAD:
        return InTurn()
    return Together() if fair == BY_DOMAIN else AsFound()


class AsFound:
    """The first that came is the first that goes."""

    def __init__(self) -> None:
        self._line: Line = deque()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, found: Found, now: float) -> None:
        self._line.append((found, now))

    def take(self, number: int) -> list[Found]:
        return [self._line.popleft()[0] for _ in range(min(number, len(self._line)))]

    def oldest(self) -> float:
        return self._line[0][1]


class _BySite:
    """Requests of each site behind each other; the sites in some order."""

    def __init__(self) -> None:
        self._sites: dict[str, Line] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, found: Found, now: float) -> None:
        self._sites.setdefault(site_of(found.value["url"]), deque()).append((found, now))
        self._count += 1

    def oldest(self) -> float:
        return min(line[0][1] for line in self._sites.values())

    def _take_from(self, site: str, number: int) -> list[Found]:
        line = self._sites[site]
        taken = [line.popleft()[0] for _ in range(min(number, len(line)))]
        if not line:
            del self._sites[site]
        self._count -= len(taken)
        return taken


class InTurn(_BySite):
    """One of each site after the other, so that no batch sits on one slow site while others could be asked."""

    def take(self, number: int) -> list[Found]:
        taken: list[Found] = []
        while self._sites and len(taken) < number:
            site = next(iter(self._sites))
            taken += self._take_from(site, 1)
            if site in self._sites:
                self._sites[site] = self._sites.pop(site)  # it is the last one now
        return taken


class Together(_BySite):
    """As few batches as possible for one site: whole sites while they fit, and what is missing then of the largest."""

    def take(self, number: int) -> list[Found]:
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
