"""Keeps the requests that wait for permits: one queue for each domain, with permits and its turn.

No IO. No permit is held that no request waits for, none is used after it has expired, and a domain
that has to wait holds up no other.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from scrapyd_dist.throttle.permits import ALL, PermitReply

from ..codec import NotLetOut, PagesUsedUp
from .downloader_capacity import STALE, DownloaderCapacity, TimedPermit

#: seconds ahead for which permits are requested: more than an answer of the store takes
AHEAD = 0.25
#: permits requested ahead, at most
MOST_AHEAD = 50
#: permits that are requested while their distance is unknown: two tell it
FIRST = 2
#: seconds after which an exhausted budget of pages is checked once more: other workers may have
#: returned pages
LAST_LOOK = 1.0
#: seconds until an empty queue is forgotten
LINGER = 10.0
#: seconds for which a request outside the scheduler waits for a blocked or paused domain: it holds
#: up all others
HELD_FOR = 60.0
#: queues that are passed over at once, as the downloader is busy with their hosts
PASSED_OVER = 100


class DomainStatus(str, Enum):
    """Says what the store has answered about a domain."""

    LIMITED = "limited"  #: every request needs a permit; also before the first answer
    FREE = "free"  #: no limit
    OPEN = "open"  #: the store is not asked: no rule applies, or the request leaves for no site
    HELD = "held"  #: blocked or paused
    USED_UP = "used-up"  #: its budget of pages is exhausted


class QueueKey(NamedTuple):
    """Names the queue in which all requests with this key wait."""

    domain: str
    address: str = ""  #: their own egress address; "" where they leave as all others do
    pages: int | None = None  #: the budget of pages that they count in


class Waiter(NamedTuple):
    """Stands for a request that waits outside the scheduler."""

    answer: asyncio.Future[TimedPermit | None]  #: its permit, or None where it needs none
    since: float  #: by our clock


@dataclass(eq=False, slots=True)
class DomainQueue:
    """Holds the waiting requests of one key and their permits.

    They wait in the scheduler's queues, or outside them as guests.
    """

    key: QueueKey
    waiting: int = 0  #: requests in the scheduler
    slots: Counter[str] = field(default_factory=Counter)  #: the same by slot of the downloader
    # Lists, though both are taken from in front: an empty deque is 600 bytes, and there is a queue
    # for each domain.
    guests: list[Waiter] = field(default_factory=list)  #: requests outside the scheduler
    permits: list[TimedPermit] = field(default_factory=list)  #: in order of time
    asked: int = 0  #: permits that the store is being asked for
    standing: DomainStatus = DomainStatus.LIMITED
    cramped: bool = False  #: permits expired, as no downloader slot was free
    spacing: float | None = None  #: seconds between two of its permits, as far as is known
    alarm: float | None = None  #: when it is looked at next, by our clock
    since: float | None = None  #: since when its requests wait for a permit
    #: until then, by our clock, a budget of pages that was found used up may have pages again
    patience: float | None = None
    _latest: float | None = None  #: the moment of its latest permit, by our clock

    @property
    def demand(self) -> int:
        """Return how many requests wait."""
        return self.waiting + len(self.guests)

    @property
    def bounded(self) -> bool:
        """Tell whether its permits are likely to be good at once.

        Then they are requested only for free slots. So are those of a queue that has had none yet,
        and of one whose last ones expired. All others wait for the limit, and request ahead.
        """
        return self.standing is DomainStatus.LIMITED and (self.cramped or self._latest is None)

    def missing(self, now: float, room: int) -> int:
        """Return how many permits to request now.

        Args:
            now: the time by our clock.
            room: how many of its requests could leave at once.
        """
        if self.standing is not DomainStatus.LIMITED:
            return 0
        if self.patience is not None and now < self.patience:
            return 0
        have = len(self.permits) + self.asked
        most = min(self.demand, self._most_ahead())
        if self.bounded:
            most = min(most, room + len(self.guests))
        # Not one by one: a call for a dozen costs as much as one for one.
        if have > most // 2:
            return 0
        return max(0, most - have)

    def _most_ahead(self) -> int:
        if self.spacing is None:
            return FIRST
        if self.spacing * MOST_AHEAD <= AHEAD:
            return MOST_AHEAD
        return 1 + int(AHEAD / self.spacing)

    def receive(self, answer: PermitReply, ours: Callable[[float], float], now: float) -> None:
        """Take in the store's answer to a request of this queue.

        `ours` converts the store's moments to our clock.
        """
        if answer.free:
            self.standing = DomainStatus.FREE
        elif answer.held:
            self.standing = DomainStatus.HELD
        else:
            self.standing = DomainStatus.LIMITED
        if answer.permits:
            self.patience = None
            self._add_permits(
                [TimedPermit(ours(permit.at), permit) for permit in answer.permits], now
            )
        elif not answer.used_up:
            self.patience = None
        elif self.patience is None:
            self.patience = now + LAST_LOOK
        elif now >= self.patience:
            self.standing = DomainStatus.USED_UP

    def _add_permits(self, permits: list[TimedPermit], now: float) -> None:
        """Add permits, which tell the distance between two of them."""
        if permits[0].due > now:
            self.cramped = False  # the limit is what it waits for
        moments = [permit.due for permit in permits]
        if self._latest is not None and len(moments) == 1:
            moments.insert(0, self._latest)
        if len(moments) > 1:
            self.spacing = max(0.0, (moments[-1] - moments[0]) / (len(moments) - 1))
        self._latest = moments[-1]
        self.permits = sorted([*self.permits, *permits], key=lambda permit: permit.due)

    def due(self, now: float) -> bool:
        """Tell whether there is a permit that can be used now."""
        return bool(self.permits) and self.permits[0].due <= now and self.permits[0].fresh(now)

    def take_stale(self, now: float) -> list[TimedPermit]:
        """Give up the expired permits."""
        stale = []
        while self.permits and not self.permits[0].fresh(now):
            stale.append(self.permits.pop(0))
        return stale

    def take_surplus(self) -> list[TimedPermit]:
        """Give up the permits that no request waits for."""
        return [self.permits.pop() for _ in range(len(self.permits) - self.demand)]

    def withdraw(self, now: float, *, ruled: bool = True) -> list[TimedPermit]:
        """Give up all permits ahead, as the rules have changed, and ask again if there are any.

        `ruled` says whether the domain has rules. New rules refill no budget of pages.
        """
        if self.standing is not DomainStatus.USED_UP:
            self.standing = DomainStatus.LIMITED if ruled else DomainStatus.OPEN
        self.spacing = None
        self._latest = None
        ahead = [permit for permit in self.permits if permit.due > now]
        self.permits = [permit for permit in self.permits if permit.due <= now]
        return ahead

    def next_look(self, now: float) -> float | None:
        """Return when its next permit comes due or expires, or its budget is to be checked again.

        None for never.
        """
        if self.permits:
            due = self.permits[0].due
            return due if due > now else due + STALE
        if self.patience is not None and now < self.patience:
            return self.patience
        return None


class QueueOwner(Protocol):
    """Is what the queues need of the gate."""

    def want(self) -> None:
        """Request permits from the store."""

    def give_back(self, permits: Sequence[TimedPermit]) -> None:
        """Return permits that are not needed."""

    def wake(self) -> None:
        """Let the engine look into its queues."""

    def is_ruled(self, domain: str) -> bool:
        """Tell whether the store is to be asked for this domain."""

    def count(self, name: str, number: float = 1) -> None:
        """Add to a statistic of the throttle."""


class DomainQueues:
    """Holds all queues of one process, by key; the owner is the gate."""

    def __init__(
        self, owner: QueueOwner, capacity: DownloaderCapacity, clock: Callable[[], float]
    ) -> None:
        self._owner = owner
        self._capacity = capacity
        self._clock = clock
        self._queues: dict[QueueKey, DomainQueue] = {}
        self._ready: dict[DomainQueue, None] = {}  #: the one whose turn it is comes first
        self._due: set[DomainQueue] = set()  #: those of them with a permit, which expires
        self._wanting: dict[DomainQueue, None] = {}  #: those that want permits, in turn
        self._bounded: dict[DomainQueue, None] = {}  #: those that want permits once slots are free
        self._asked = 0  #: permits that are being requested for these
        self._asking: list[tuple[DomainQueue, int]] = []  #: all that are being requested
        self._idle: dict[DomainQueue, float] = {}  #: since when, by our clock
        self._away = False  #: whether the store does not answer

    def is_free(self, key: QueueKey) -> bool:
        """Tell whether this key is known to have no limit."""
        queue = self._queues.get(key)
        if queue is None:
            return not self._owner.is_ruled(key.domain)
        if queue.standing is DomainStatus.FREE:
            return not self._away
        return queue.standing is DomainStatus.OPEN

    def queue_for(self, key: QueueKey) -> DomainQueue:
        """Return the queue of this key; it is made when it is not there."""
        queue = self._queues.get(key)
        if queue is None:
            is_ruled = self._owner.is_ruled(key.domain)
            standing = DomainStatus.LIMITED if is_ruled else DomainStatus.OPEN
            queue = self._queues[key] = DomainQueue(key, standing=standing)
            self._idle[queue] = self._clock()
        return queue

    def enter(self, key: QueueKey, slot: str, number: int = 1) -> DomainQueue:
        """Let so many requests of this downloader slot wait in the queue that is returned."""
        queue = self.queue_for(key)
        queue.waiting += number
        queue.slots[slot] += number
        self.settle(queue)
        return queue

    def leave(self, queue: DomainQueue, slot: str) -> None:
        """Let one of them wait no more; the other domains come first now."""
        queue.waiting -= 1
        queue.slots[slot] -= 1
        if not queue.slots[slot]:
            del queue.slots[slot]
            self._capacity.forget(slot)
        self._ready.pop(queue, None)
        self._capacity.departed()
        self.settle(queue)

    def ready(self) -> Iterator[DomainQueue]:
        """Return the queues whose requests may leave, in turn; the engine has room for some."""
        self._want_for_bounded()
        now = self._clock()
        return (queue for queue in self._ready if self._may_leave(queue, now))

    def has_room(self, queue: DomainQueue, slot: str) -> bool:
        """Tell whether a request of this slot could leave at once.

        Without a limit, that is left to the downloader.
        """
        return queue.standing is not DomainStatus.LIMITED or self._capacity.free(slot) > 0

    async def permit(self, key: QueueKey, since: float) -> TimedPermit | None:
        """Wait for the permit of a request outside the scheduler; None where it needs none.

        Raises:
            PagesUsedUp: its budget is.
            NotLetOut: the domain stays blocked or paused, or the crawl ends.
        """
        queue = self.queue_for(key)
        waiter = Waiter(asyncio.get_running_loop().create_future(), since)
        queue.guests.append(waiter)
        try:
            self.settle(queue)
            return await waiter.answer
        finally:
            if waiter in queue.guests:
                queue.guests.remove(waiter)
            self.settle(queue)

    # permits to request

    def _quota(self) -> int:
        return self._capacity.quota(self._asked + len(self._due))

    def _want_for_bounded(self) -> None:
        if self._bounded and self._quota():
            self._owner.want()

    def collect_requests(self, most: int) -> list[tuple[DomainQueue, int]]:
        """Return the queues that want permits, and how many.

        These are being requested until they are `heard`. At most `most` queues are returned.
        """
        while self._wanting and len(self._asking) < most:
            queue = next(iter(self._wanting))
            del self._wanting[queue]
            self._request_for(queue)
        quota = self._quota()
        if not quota:
            return self._asking
        for _ in range(min(len(self._bounded), quota + PASSED_OVER)):
            if self._asked >= quota or len(self._asking) >= most:
                break
            queue = next(iter(self._bounded))
            del self._bounded[queue]
            number = self._request_for(queue)
            self._asked += number
            if not number:
                self._bounded[queue] = None  # its turn comes again
        return self._asking

    def _request_for(self, queue: DomainQueue) -> int:
        """Note the permits that this queue misses as requested; return how many."""
        room = self._count_free(queue) if queue.bounded else 0
        missing = queue.missing(self._clock(), room)
        if missing:
            queue.asked += missing
            self._asking.append((queue, missing))
        return missing

    def _count_free(self, queue: DomainQueue) -> int:
        """Return how many of its requests could leave at once."""
        free = 0
        for slot, number in queue.slots.items():
            free += min(number, max(0, self._capacity.free(slot)))
        if not free and queue.slots:
            delay = min(self._capacity.delay(slot) for slot in queue.slots)
            if delay:
                self._set_alarm(queue, self._clock() + delay)
        return free

    def receive_answers(
        self, answers: Sequence[PermitReply], ours: Callable[[float], float]
    ) -> None:
        """Take in the store's answers to all that was taken.

        `ours` converts the store's moments to our clock.
        """
        for (queue, _), answer in zip(self._asking, answers, strict=True):
            queue.receive(answer, ours, self._clock())
        self.ask_no_more()

    def ask_no_more(self) -> None:
        """Forget what was taken: it has its answer, or will have none and wants permits again."""
        asked = self._asking
        self._asking = []
        self._asked = 0
        for queue, number in asked:
            queue.asked -= number
        for queue, _ in asked:
            self.settle(queue)

    # what becomes of a queue

    def withdraw(self, changed: Collection[str]) -> None:
        """Request permits ahead anew, as the rules or the pace of these domains have changed.

        With `ALL`, those of all domains have.
        """
        now = self._clock()
        is_all = ALL in changed
        for queue in list(self._queues.values()):
            domain = queue.key.domain
            if is_all or domain in changed:
                self._owner.give_back(queue.withdraw(now, ruled=self._owner.is_ruled(domain)))
                self.settle(queue)

    def set_away(self, away: bool) -> None:
        """Let all domains wait while the store is away: one without a limit may have one by now."""
        self._away = away
        for queue in list(self._queues.values()):
            self.settle(queue)

    def settle(self, queue: DomainQueue) -> None:
        """Serve a queue's guests after any change, and see whether its requests may leave."""
        now = self._clock()
        stale = queue.take_stale(now)
        queue.cramped = queue.cramped or bool(stale)
        self._serve_guests(queue, now)
        self._owner.give_back([*stale, *queue.take_surplus()])
        self._place(queue, now)
        if queue.bounded and queue.waiting:
            self._bounded.setdefault(queue)
            self._want_for_bounded()
        else:
            self._bounded.pop(queue, None)
        if queue.missing(now, 0):
            self._wanting[queue] = None
            self._owner.want()
        self._set_alarm(queue, queue.next_look(now))
        if queue.demand or queue.asked or queue.permits:
            self._idle.pop(queue, None)
        else:
            self._idle.setdefault(queue, now)

    def _may_leave(self, queue: DomainQueue, now: float) -> bool:
        if queue.standing is DomainStatus.FREE:
            return not self._away
        return queue.standing in (DomainStatus.OPEN, DomainStatus.USED_UP) or queue.due(now)

    def _serve_guests(self, queue: DomainQueue, now: float) -> None:
        while queue.guests and self._may_leave(queue, now):
            answer = queue.guests.pop(0).answer
            if answer.done():
                continue
            if queue.standing is DomainStatus.USED_UP:
                answer.set_exception(PagesUsedUp(queue.key.domain, queue.key.pages or 0))
            elif queue.standing is DomainStatus.LIMITED:
                answer.set_result(queue.permits.pop(0))
            else:
                answer.set_result(None)

    def _place(self, queue: DomainQueue, now: float) -> None:
        """Put a queue among the ready ones, or not, and count how long it has waited."""
        is_ready = queue.waiting > 0 and self._may_leave(queue, now)
        if is_ready:
            self._ready.setdefault(queue)
        else:
            self._ready.pop(queue, None)
        if is_ready and queue.standing is DomainStatus.LIMITED:
            self._due.add(queue)
        else:
            self._due.discard(queue)
        if queue.waiting and not is_ready:
            if queue.since is None:
                queue.since = now
        elif queue.since is not None:
            self._owner.count("waited", now - queue.since)
            queue.since = None

    def _set_alarm(self, queue: DomainQueue, moment: float | None) -> None:
        """Look at the queue at this moment, unless an earlier look is set."""
        if moment is not None and (queue.alarm is None or moment < queue.alarm):
            queue.alarm = moment
            delay = max(0.0, moment - self._clock())
            asyncio.get_event_loop().call_later(delay, self._ring, queue, moment)

    def _ring(self, queue: DomainQueue, moment: float) -> None:
        if queue.alarm != moment:
            # An earlier one was set since, and has rung; or the queue is forgotten.
            return
        queue.alarm = None
        self.settle(queue)
        if self._ready or self._bounded:
            self._owner.wake()

    # now and then

    def sweep(self, *, ending: bool) -> None:
        """Forget empty queues, and send away guests that wait in vain.

        `ending` says that the crawl waits for nothing else.
        """
        now = self._clock()
        self._forget_idle(now)
        for queue in list(self._queues.values()):
            if ending:
                self._send_away(list(queue.guests), "the crawl ends")
            elif queue.guests and queue.standing is DomainStatus.HELD:
                late = [waiter for waiter in queue.guests if now - waiter.since > HELD_FOR]
                why = f"{queue.key.domain} is blocked or paused (sdist throttle)"
                self._send_away(late, why)

    def _forget_idle(self, now: float) -> None:
        while self._idle:
            queue, since = next(iter(self._idle.items()))
            if now - since < LINGER:
                break
            queue.alarm = None
            del self._idle[queue]
            del self._queues[queue.key]

    @staticmethod
    def _send_away(waiters: Sequence[Waiter], why: str) -> None:
        for waiter in waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(NotLetOut(f"no permit to leave: {why}"))

    def close(self) -> list[TimedPermit]:
        """Return all permits that are held; nothing more is wanted.

        Permits that arrive later are returned as they come.
        """
        held: list[TimedPermit] = []
        for queue in self._queues.values():
            held += queue.permits
            queue.alarm = None
            queue.waiting = 0
            queue.slots.clear()
            queue.guests.clear()
            queue.permits.clear()
        self._wanting.clear()
        self._bounded.clear()
        self._due.clear()
        return held
