"""A line: the requests that wait for permits of one kind, the permits that they hold, and how many more they want.

The rule it keeps: no permit is held that no request waits for, and none is used that is too old. No IO, no clock: the
time is an argument, in seconds of this process's clock. Part of the worker half: imports Scrapy for types only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from scrapyd_dist.throttle.permits import Permit, PermitReply

#: seconds after its moment for which a permit is good: later, it would come close to those of others
STALE = 0.25
#: seconds ahead for which permits are taken: more than an answer of the store takes
AHEAD = 0.25
#: permits ahead, at most
MOST_AHEAD = 50
#: permits that are asked for when nobody knows how far they lie apart: two tell it
FIRST = 2
#: seconds after which a budget of pages that was used up is looked at once more: pages that others had taken ahead may
#: have come back
LAST_LOOK = 1.0


class DomainStatus(str, Enum):
    """What the store has said of a line's domain."""

    LIMITED = "limited"  #: every request needs a permit; also before anything was said
    FREE = "free"  #: no limit
    OPEN = "open"  #: nothing is asked: no rule is meant for it, or it leaves for no site
    HELD = "held"  #: blocked or paused
    USED_UP = "used-up"  #: nothing is left of its budget of pages


class QueueKey(NamedTuple):
    """Which requests wait in the same line."""

    domain: str
    address: str = ""  #: the one that such requests have for themselves; "" where they leave as all others do
    pages: int | None = None  #: the budget of pages that they count in


class Waiter(NamedTuple):
    """A request that waits beside the queues; it gets a permit, or None where it needs none."""

    answer: asyncio.Future[TimedPermit | None]
    since: float


class TimedPermit(NamedTuple):
    """A permit, and its moment by our clock."""

    due: float
    permit: Permit

    def fresh(self, now: float) -> bool:
        return now - self.due <= STALE


@dataclass(eq=False, slots=True)
class DomainQueue:
    """The requests of one kind, in whichever queues they wait; or beside them, as its guests."""

    kind: QueueKey
    ruled: bool = True  #: the store is to be asked
    waiting: int = 0  #: requests in queues
    slots: Counter[str] = field(default_factory=Counter)  #: the same by slot of the downloader
    # Lists, though both are taken from in front: an empty deque is 600 bytes, and there may be a line for each of many.
    guests: list[Waiter] = field(default_factory=list)  #: requests that came by no queue
    permits: list[TimedPermit] = field(default_factory=list)  #: in order of time
    asked: int = 0  #: permits that the store is being asked for
    standing: DomainStatus = DomainStatus.LIMITED
    cramped: bool = False  #: permits came to nothing for want of room
    spacing: float | None = None  #: seconds between two of its permits, as far as is known
    alarm: float | None = None  #: when it is looked at next, by our clock
    since: float | None = None  #: since when its requests wait for a permit
    patience: float | None = None  #: until then, a budget of pages that was found used up may have pages again
    _latest: float | None = None  #: the latest moment that it was given, by our clock

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Nothing was said of its domain yet."""
        self.standing = DomainStatus.LIMITED if self.ruled and self.kind.domain else DomainStatus.OPEN
        self.spacing = self.patience = self._latest = None

    @property
    def demand(self) -> int:
        return self.waiting + len(self.guests)

    @property
    def bounded(self) -> bool:
        """Whether its permits are likely to be good at once, and are asked for where there is room only.

        So are those of a line that has had none yet, and of one that had no room for its last ones. Of all others the
        limit is what they wait for, and they ask ahead.
        """
        return self.standing is DomainStatus.LIMITED and (self.cramped or self._latest is None)

    def missing(self, now: float, room: int) -> int:
        """How many permits to ask for now; `room`: how many of its requests could leave at once."""
        if self.standing is not DomainStatus.LIMITED or (self.patience is not None and now < self.patience):
            return 0
        have, most = len(self.permits) + self.asked, min(self.demand, self._ahead())
        if self.bounded:
            most = min(most, room + len(self.guests))
        # Not one by one: a question for a dozen costs as much as one for one.
        return max(0, most - have) if have <= most // 2 else 0

    def _ahead(self) -> int:
        if self.spacing is None:
            return FIRST
        return MOST_AHEAD if self.spacing * MOST_AHEAD <= AHEAD else 1 + int(AHEAD / self.spacing)

    def receive(self, answer: PermitReply, ours: Callable[[float], float], now: float) -> None:
        """The store's answer to a question of this line; `ours` gives its moments by our clock."""
        self.standing = DomainStatus.FREE if answer.free else DomainStatus.HELD if answer.held else DomainStatus.LIMITED
        if not answer.permits:
            self._go_without(used_up=answer.used_up, now=now)
            return
        self.patience = None
        held = [TimedPermit(ours(permit.at), permit) for permit in answer.permits]
        if held[0].due > now:
            self.cramped = False  # the limit is what it waits for
        self._learn(held)
        self.permits = sorted([*self.permits, *held], key=lambda one: one.due)

    def _go_without(self, *, used_up: bool, now: float) -> None:
        if not used_up:
            self.patience = None
        elif self.patience is None:
            self.patience = now + LAST_LOOK
        elif now >= self.patience:
            self.standing = DomainStatus.USED_UP

    def _learn(self, held: list[TimedPermit]) -> None:
        moments = [one.due for one in held]
        if self._latest is not None and len(moments) == 1:
            moments.insert(0, self._latest)
        if len(moments) > 1:
            self.spacing = max(0.0, (moments[-1] - moments[0]) / (len(moments) - 1))
        self._latest = moments[-1]

    def due(self, now: float) -> bool:
        """Whether there is a permit that can be used now."""
        return bool(self.permits) and self.permits[0].due <= now and self.permits[0].fresh(now)

    def take_stale(self, now: float) -> list[Permit]:
        """Give up the permits that are too old to be used."""
        stale = []
        while self.permits and not self.permits[0].fresh(now):
            stale.append(self.permits.pop(0).permit)
        return stale

    def take_surplus(self) -> list[Permit]:
        """Give up the permits that no request waits for."""
        return [self.permits.pop().permit for _ in range(len(self.permits) - self.demand)]

    def withdraw(self, now: float) -> list[Permit]:
        """The rules have changed: give up all that lies ahead, and ask again; they give no budget more pages."""
        standing, patience = self.standing, self.patience
        self._begin()
        self.patience = patience
        if standing is DomainStatus.USED_UP:
            self.standing = standing
        ahead = [held for held in self.permits if held.due > now]
        self.permits = [held for held in self.permits if held.due <= now]
        return [held.permit for held in ahead]

    def next_look(self, now: float) -> float | None:
        """When something of it comes due, or is over."""
        if self.permits:
            return self.permits[0].due if self.permits[0].due > now else self.permits[0].due + STALE
        return self.patience if self.patience is not None and now < self.patience else None
