"""All lines of one process: which may leave now, in turn; which want permits; which nobody needs any more.

The rule it keeps: domains take turns, and one that may not leave holds up no other. Part of the worker half: imports
Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scrapy.exceptions import IgnoreRequest

from scrapyd_dist.throttle.permits import ALL

from .budgets import PagesUsedUp
from .domain_queue import DomainQueue, DomainStatus, Waiter
from .downloader_capacity import PermitQuota
from .timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from scrapyd_dist.throttle.permits import Permit

    from .domain_queue import QueueKey
    from .downloader_capacity import DownloaderCapacity

#: seconds after which a line that nobody waits in is forgotten
LINGER = 10.0
#: seconds for which a request beside the queues waits for a domain that is blocked or paused: it holds up all others
HELD_FOR = 60.0
#: lines that are passed over at once, as the downloader is busy with their hosts
PASSED_OVER = 100


class QueueOwner(Protocol):
    """Whose lines they are."""

    def want(self) -> None:
        """A line wants permits."""

    def give_back(self, permits: Sequence[Permit]) -> None:
        """These are not needed."""

    def wake(self) -> None:
        """A request may leave now."""

    def is_ruled(self, domain: str) -> bool:
        """Whether the store is to be asked for this domain."""

    def count(self, name: str, number: float = 1) -> None:
        """For the statistics."""


class DomainQueues:
    """The lines, by kind."""

    def __init__(self, owner: QueueOwner, room: DownloaderCapacity, clock: Callable[[], float]) -> None:
        self._owner, self._room, self._clock = owner, room, clock
        self._lines: dict[QueueKey, DomainQueue] = {}
        self._places = PermitQuota(room, clock)
        self._ready: dict[DomainQueue, None] = {}  #: whose turn it is comes first
        self._due: set[DomainQueue] = set()  #: those of them with a permit, which grows old
        self._wanting: dict[DomainQueue, None] = {}
        self._bounded: dict[DomainQueue, None] = {}  #: those that want permits once there is room
        self._asked = 0  #: permits that these are being given
        self._idle: dict[DomainQueue, float] = {}  #: since when, by our clock
        self._alarms = Timers(self._rung, clock)
        self._away = False

    def is_free(self, kind: QueueKey) -> bool:
        """Whether this kind is known to have no limit."""
        line = self._lines.get(kind)
        if line is None or line.standing is DomainStatus.OPEN:
            return not self._owner.is_ruled(kind.domain)
        return line.standing is DomainStatus.FREE and not self._away

    def of(self, kind: QueueKey) -> DomainQueue:
        """The line of this kind, made when it is not there."""
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = DomainQueue(kind, ruled=self._owner.is_ruled(kind.domain))
            self._idle[line] = self._clock()
        return line

    def enter(self, line: DomainQueue, slot: str, number: int = 1) -> None:
        """So many requests of this slot of the downloader wait in this line from now on."""
        line.waiting += number
        line.slots[slot] += number
        self.settle(line)

    def leave(self, line: DomainQueue, slot: str) -> None:
        """One of them waits no more; the other domains come first now."""
        line.waiting -= 1
        line.slots[slot] -= 1
        if not line.slots[slot]:
            del line.slots[slot]
            self._room.forget(slot)
        self._ready.pop(line, None)
        self._places.saw()
        self.settle(line)

    def ready(self) -> Iterator[DomainQueue]:
        """The lines whose requests may leave, in turn; the engine has room for some."""
        self._ask_for_bounded()
        now = self._clock()
        return (line for line in self._ready if self._may_leave(line, now))

    def _ask_for_bounded(self) -> None:
        """Where there is room for some of them."""
        if self._bounded and self._free_places():
            self._owner.want()

    def _free_places(self) -> int:
        return self._places.free(self._asked + len(self._due))

    def take_wanting(self, most: int) -> list[tuple[DomainQueue, int]]:
        """The lines that want permits, and how many; they are being asked for from now on, until they are `heard`."""
        taken: list[tuple[DomainQueue, int]] = []
        while self._wanting and len(taken) < most:
            line = next(iter(self._wanting))
            del self._wanting[line]
            self._take(line, taken)
        self._take_bounded(taken, most)
        return taken

    def _take_bounded(self, taken: list[tuple[DomainQueue, int]], most: int) -> None:
        """As many as there are places for, of the lines that have room, in turn."""
        free = self._free_places()
        for _ in range(min(len(self._bounded), free + PASSED_OVER) if free else 0):
            if self._asked >= free or len(taken) >= most:
                break
            line = next(iter(self._bounded))
            del self._bounded[line]
            number = self._take(line, taken)
            self._asked += number
            if not number:
                self._bounded[line] = None  # its turn comes again

    def _take(self, line: DomainQueue, taken: list[tuple[DomainQueue, int]]) -> int:
        missing = self._missing(line)
        if missing:
            line.asked += missing
            taken.append((line, missing))
        return missing

    def heard(self, asked: Sequence[tuple[DomainQueue, int]], took: float | None) -> None:
        """There was an answer to all that were taken, within so many seconds; or there will be none (None)."""
        self._asked = 0
        if took is not None:
            self._places.took(took)
        for line, number in asked:
            line.asked -= number

    def join(self, line: DomainQueue, guest: Waiter) -> None:
        """A request waits beside the queues."""
        line.guests.append(guest)
        self.settle(line)

    def part(self, line: DomainQueue, guest: Waiter) -> None:
        """It waits no more."""
        if guest in line.guests:
            line.guests.remove(guest)
        self.settle(line)

    def withdraw(self, changed: Collection[str]) -> None:
        """The rules of these domains have changed, or, with `ALL` among them, of all: what lies ahead is asked anew."""
        now, is_all = self._clock(), ALL in changed
        for line in [line for line in self._lines.values() if is_all or line.kind.domain in changed]:
            line.ruled = self._owner.is_ruled(line.kind.domain)
            self._owner.give_back(line.withdraw(now))
            self.settle(line)

    def set_away(self, away: bool) -> None:
        """While the store is away, even what has no limit waits: nobody can tell that it still has none."""
        self._away = away
        for line in list(self._lines.values()):
            self.settle(line)

    def settle(self, line: DomainQueue) -> None:
        """Something has become of a line: serve its guests, and see whether its requests may leave."""
        now = self._clock()
        stale = line.take_stale(now)
        line.cramped = line.cramped or bool(stale)
        self._serve_guests(line, now)
        self._owner.give_back([*stale, *line.take_surplus()])
        self._place(line, now)
        self._want(line)
        self._alarms.set(line, line.next_look(now))
        self._note_idle(line, now)

    def _place(self, line: DomainQueue, now: float) -> None:
        """Among those that are ready, or not."""
        is_ready = line.waiting > 0 and self._may_leave(line, now)
        if is_ready:
            self._ready.setdefault(line)
        else:
            self._ready.pop(line, None)
        if is_ready and line.standing is DomainStatus.LIMITED:
            self._due.add(line)
        else:
            self._due.discard(line)
        self._note_wait(line, now, ends=is_ready or not line.waiting)

    def _may_leave(self, line: DomainQueue, now: float) -> bool:
        if line.standing is DomainStatus.FREE:
            return not self._away
        return line.standing in (DomainStatus.OPEN, DomainStatus.USED_UP) or line.due(now)

    def _serve_guests(self, line: DomainQueue, now: float) -> None:
        while line.guests and self._may_leave(line, now):
            answer = line.guests.pop(0).answer
            if answer.done():
                continue
            if line.standing is DomainStatus.USED_UP:
                answer.set_exception(PagesUsedUp(line.kind.domain, line.kind.pages or 0))
            else:
                answer.set_result(line.permits.pop(0) if line.standing is DomainStatus.LIMITED else None)

    def _note_wait(self, line: DomainQueue, now: float, *, ends: bool) -> None:
        if not ends:
            line.since = now if line.since is None else line.since
        elif line.since is not None:
            self._owner.count("waited", now - line.since)
            line.since = None

    def _want(self, line: DomainQueue) -> None:
        """Ask for what it needs; where that would be good at once, when there is room for it."""
        if line.bounded and line.waiting:
            self._bounded.setdefault(line)
            self._ask_for_bounded()
        else:
            self._bounded.pop(line, None)
        if line.missing(self._clock(), 0):
            self._wanting[line] = None
            self._owner.want()

    def _missing(self, line: DomainQueue) -> int:
        return line.missing(self._clock(), self._free(line) if line.bounded else 0)

    def _free(self, line: DomainQueue) -> int:
        """How many of its requests could leave at once."""
        free = sum(min(number, max(0, self._room.free(slot))) for slot, number in line.slots.items())
        if not free and line.slots:
            delay = min(self._room.delay(slot) for slot in line.slots)
            if delay:
                self._alarms.set(line, self._clock() + delay)
        return free

    def _note_idle(self, line: DomainQueue, now: float) -> None:
        if line.demand or line.asked or line.permits:
            self._idle.pop(line, None)
        else:
            self._idle.setdefault(line, now)

    def _rung(self, lines: list[DomainQueue]) -> None:
        for line in lines:
            self.settle(line)
        if self._ready or self._bounded:
            self._owner.wake()

    # now and then

    def sweep(self, *, ending: bool) -> None:
        """Forget what nobody needs, and send away who waits in vain; `ending`: the crawl waits for nothing else."""
        now = self._clock()
        while self._idle:
            line, since = next(iter(self._idle.items()))
            if now - since < LINGER:
                break
            line.alarm = None  # what was set rings for nobody: another line of this kind may be there by then
            del self._idle[line], self._lines[line.kind]
        for line in [line for line in self._lines.values() if line.guests]:
            held = line.standing is DomainStatus.HELD
            for guest in list(line.guests):
                if not guest.answer.done() and (ending or (held and now - guest.since > HELD_FOR)):
                    why = "the crawl ends" if ending else f"{line.kind.domain} is blocked or paused (sdist throttle)"
                    guest.answer.set_exception(IgnoreRequest(f"no permit to leave: {why}"))

    def close(self) -> list[Permit]:
        """Want nothing any more; all permits that are held. What the store still gives is handed back as it comes."""
        self._alarms.cancel()
        self._wanting.clear()
        self._bounded.clear()
        self._due.clear()
        held = [one.permit for line in self._lines.values() for one in line.permits]
        for line in self._lines.values():
            line.waiting = 0
            line.slots.clear()
            line.guests.clear()
            line.permits.clear()
        return held
