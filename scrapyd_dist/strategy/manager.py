"""Runs a strategy process: calls the strategy for the events of workers, and cuts the next batches.

One call of `work` is one round; it has no thread and does not wait. What a round changes is kept in
one step, which the store refuses when another process has the partitions by now: then all of it is
thrown away.

Partitions of other processes: a request of one, from a handler or a seed, is handed over as an
event of kind SCHEDULED, in the same step, and placed by the manager that holds the partition. So
seeds need no process that holds all partitions, several may read seeds at once, and the queue of a
partition has one writer only.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.errors import ContentRefused, StepRefused
from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.frontier.intake import FAIR_SIZE, Registration
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import PayloadError, RequestValue, decode
from scrapyd_dist.strategy.handler_caller import HandlerCaller
from scrapyd_dist.strategy.interface import CrawlingStrategy
from scrapyd_dist.strategy.links import (
    EXPIRED,
    PARTITIONS,
    WORK,
    EventKind,
    Link,
    LinkEvent,
    StrategyBacklog,
    StrategyStep,
    is_empty,
    link_meta,
    partition_of,
)
from scrapyd_dist.strategy.queue_cutter import cut
from scrapyd_dist.strategy.round_draft import (
    BEYOND_DEPTH,
    DraftRules,
    RoundDraft,
    ScheduledRequest,
    site_slot,
)

logger = logging.getLogger(__name__)

#: seconds for which partitions are held without a sign of life
HELD = 30.0
#: requests of a slot that wait in batches: the order at a site is exact but for these, and what
#: workers hold
AHEAD = 64
#: events of a round, at most
ROUND_EVENTS = 500
#: links in these events, at most
ROUND_LINKS = 10_000
#: links that one step takes from the queue, at most
ROUND_CUT = 1_000
#: seeds of one step
SEEDS = 1_000
#: times that a step of seeds is tried, with the partitions as they are by then
_TRIES = 5
#: seconds between two looks at how far the crawl is, and two signs of life
_PACE = 1.0
#: dead batches that one step drops
_DEAD_BATCHES = 100
#: the error of a link whose batch has killed its workers, or could not be ended by any
WORKER_DIED = "WorkerDied"
# Names of counts in the crawl's account, besides `EXPIRED`.
SEALED = "sealed"
REFUSED = "refused"


class ManagerStore(Protocol):
    """What a manager needs of the store; each verb as `store.Store` has it."""

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Hold partitions for so many seconds, and return those that the process has."""
        ...

    def leave_partitions(self, crawl: str, process: str) -> None:
        """Leave all partitions of the process."""

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """Return the oldest events of these partitions."""
        ...

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of the links that are known."""
        ...

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of the sites that have any."""
        ...

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """Return the links that are to be requested next."""
        ...

    def apply(self, step: StrategyStep) -> list[Batch]:
        """Make all changes of a step, or raise `StepRefused` and make none."""
        ...

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """Return how far the strategy is."""
        ...

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """End the strategy, and return whether it has ended."""
        ...

    def backlog(self, crawl: str) -> Backlog:
        """Return what is in batches."""
        ...

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """Return the batches in these states; in any without them."""
        ...

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """Return the settings that carry the requests of a batch."""
        ...

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Register a producer for so many seconds."""

    def sign_off(self, crawl: str, producer: str) -> None:
        """Sign a producer off."""


@dataclass(kw_only=True)
class StrategyManager:
    """One process of a strategy."""

    store: ManagerStore
    crawl: str
    process: str  #: its name, which no other process has
    strategy: CrawlingStrategy
    fingerprint: Callable[[RequestValue], bytes]
    slot_of: Callable[[str], str] = site_slot  #: of a URL, for requests that name none
    key: bytes | None = None  #: the Fernet key for requests that must be encrypted
    source: str = ""  #: what the seeds are read from, by name
    max_depth: int = 0  #: links from a seed; 0: any
    standing: bool = False  #: the crawl does not end when nothing is left
    clock: Callable[[], float] = time.time
    ahead: int = AHEAD
    size: int = FAIR_SIZE  #: most requests in a batch
    held_for: float = HELD
    #: whether the strategy has ended, and all events are handled
    over: bool = field(default=False, init=False)
    _held: frozenset[int] = field(default=frozenset(), init=False)  #: partitions
    _finished: bool = field(default=False, init=False)  #: what `finished()` said last
    _voted: bool = field(default=False, init=False)  #: what the store knows of that
    # Times by `clock`; None: at once.
    _life_at: float | None = field(default=None, init=False)  #: of the last sign of life
    _check_at: float | None = field(default=None, init=False)  #: of the last check for the end
    _cut_at: float | None = field(default=None, init=False)  #: of the last cut between seeds
    _caller: HandlerCaller = field(init=False)
    _entry: Registration = field(init=False)  #: as a producer of the frontier
    _seeds_entry: Registration = field(init=False)  #: likewise, while it reads seeds
    _events: int = field(default=ROUND_EVENTS, init=False)  #: to be read for the next round
    _unreadable: set[int] = field(default_factory=set, init=False)  #: dead batches
    _seeding: RoundDraft | None = field(default=None, init=False)  #: of the seeds that are read
    _seeded: int = field(default=0, init=False)  #: seeds that were new, or were handed over

    def __post_init__(self) -> None:
        self._caller = HandlerCaller(self.strategy, before_each=self._live)
        entry = partial(
            Registration,
            store=self.store,
            frontier=self.crawl,
            process=self.process,
            seconds=self.held_for,
            clock=self.clock,
        )
        self._entry = entry(work=WORK)
        self._seeds_entry = entry(work=seeds_work(self.source))

    def work(self) -> bool:
        """Make one round, and return whether there was something to do, so that the next is due.

        Raises:
            StoreError: the store does not answer; call it again, as nothing was lost.
        """
        self._live()
        try:
            was_busy = self._handle_events()
            if not self._vote() and self._cut():
                was_busy = True
            if not was_busy or self._finished or self._is_due(self._check_at):
                was_busy = self._check_end() or was_busy
        except StepRefused as refused:
            logger.info("Crawl %s: this round is made again: %s", self.crawl, refused)
            self._life_at = None  # the partitions are read anew
            return False
        return was_busy

    def read_seeds(self, stream: Iterable[str] | None) -> int:
        """Have the strategy read its seeds.

        Returns how many were new, or were handed over to other processes. What the strategy
        schedules is kept in steps of a bounded number, and requests begin meanwhile. Reading the
        same seeds again requests none of them twice.
        """
        self._live()
        self._seeds_entry.renew()
        draft = self._make_draft(seeded=self._keep_full_step)
        self._seeding = draft
        self._seeded = 0
        self.strategy.context = draft
        try:
            self.strategy.read_seeds(stream)
            self._keep_seeds(draft)
        finally:
            self._seeding = None
        self._seeds_entry.sign_off()
        return self._seeded

    def work_between_seeds(self) -> bool:
        """Make one round while a stream of seeds is waited for.

        Those that were read so far are kept first. Returns as `work` does.
        """
        draft = self._seeding
        if draft is not None:
            self._keep_seeds(draft)
        try:
            return self.work()
        finally:
            if draft is not None:
                self.strategy.context = draft

    def close(self, *, leave: bool = True) -> None:
        """End the process.

        Without `leave` the frontier goes on waiting for a strategy process, as in a pause.
        """
        try:
            self.strategy.close()
        finally:
            self.store.leave_partitions(self.crawl, self.process)
            if leave:
                self._entry.sign_off()

    def others(self) -> list[str]:
        """Return the names of other processes of the strategy that live.

        They are those of producers of the frontier.
        """
        self._live()
        return self._entry.take_over()

    # signs of life

    def _is_due(self, last: float | None) -> bool:
        return last is None or not 0.0 <= self.clock() - last < _PACE

    def _live(self) -> None:
        """Hold the partitions, and vote."""
        self._entry.renew()
        if self._seeding:
            self._seeds_entry.renew()
        if not self._is_due(self._life_at) and self._voted is self._finished:
            return
        self._voted = self._finished
        held = self.store.hold_partitions(
            self.crawl, self.process, self.held_for, finished=self._voted
        )
        self._held = frozenset(held)
        self._life_at = self.clock()

    # events

    def _make_draft(self, seeded: Callable[[RoundDraft], None] | None = None) -> RoundDraft:
        rules = DraftRules(
            crawl=self.crawl,
            fingerprint=self.fingerprint,
            slot_of=self.slot_of,
            max_depth=self.max_depth,
            has_key=self.key is not None,
        )
        return RoundDraft(
            store=self.store,
            rules=rules,
            partitions=self._held,
            clock=self.clock,
            seeded=seeded,
        )

    def _handle_events(self) -> bool:
        """Handle the oldest events, in one step, and return whether there were any."""
        if not self._held:
            return False
        read = self.store.events(self.crawl, self._held, self._events)
        if not read:
            return False
        events = _limit_links(read, ROUND_LINKS)
        # What is too much for this round, such as pages with many links, is not read in the next
        # one, either.
        number = len(events) if len(events) < len(read) else self._events
        self._events = min(2 * number, ROUND_EVENTS)
        draft = self._make_draft()
        self._caller.handle(draft, events)
        try:
            self.store.apply(draft.step(self.process))
        except ContentRefused as error:
            self._events = max(1, len(events) // 2)  # until the event that it is about is alone
            if len(events) == 1:
                burial = self._make_draft()
                self._caller.bury(burial, events[0], error)
                self.store.apply(burial.step(self.process))
        return True

    # seeds

    def _keep_full_step(self, draft: RoundDraft) -> None:
        """Keep the seeds that were scheduled so far, if they are enough for a step."""
        self._live()
        if len(draft.scheduled) >= SEEDS:
            self._keep_seeds(draft)

    def _keep_seeds(self, draft: RoundDraft) -> None:
        """Keep what was scheduled so far, whatever becomes of the partitions meanwhile."""
        draft.domains.keep(lambda site: partition_of(site) in self._held)
        counts = {BEYOND_DEPTH: draft.beyond} if draft.beyond else {}
        changes = draft.domains.changes()
        for tries_left in reversed(range(_TRIES)):
            self._live()
            try:
                self._seeded += self._apply_seeds(draft.scheduled, counts, changes)
                break
            except StepRefused:
                self._life_at = None
                if not tries_left:
                    raise
        draft.forget_seeds()
        self._cut_meanwhile()

    def _apply_seeds(
        self,
        seeds: Sequence[ScheduledRequest],
        counts: Mapping[str, int],
        changes: Mapping[str, dict[str, Any] | None],
    ) -> int:
        """Keep seeds in one step, and return how many were new, or were handed over."""
        draft = self._make_draft()
        draft.schedule_again(seeds, counts)
        draft.keep()
        draft.resolve()
        # The partitions of the metadata may have gone meanwhile.
        partitions = self._held.union(map(partition_of, changes))
        self.store.apply(replace(draft.step(self.process), domains=changes, partitions=partitions))
        return len(draft.links) + len(draft.events)

    def _cut_meanwhile(self) -> None:
        if self._is_due(self._cut_at):
            self._cut_at = self.clock()
            try:
                self._cut()
            except StepRefused:
                self._life_at = None

    # batches

    def _cut(self) -> bool:
        """Cut the next batches, and return whether there was anything to cut."""
        if not self._held:
            return False
        now = self.clock()
        heads = self.store.queue_heads(
            self.crawl, self._held, ahead=self.ahead, limit=ROUND_CUT, now=now
        )
        if not heads:
            return False
        result = cut(heads, size=self.size, key=self.key, now=now)
        numbers = {
            SEALED: sum(batch.size for batch in result.new),
            EXPIRED: result.expired,
            REFUSED: len(result.errors) - result.expired,
        }
        counts = {name: number for name, number in numbers.items() if number}
        step = StrategyStep(
            crawl=self.crawl,
            process=self.process,
            partitions=self._held,
            links=result.errors,
            new=result.new,
            now=now,
            counts=counts,
        )
        self.store.apply(step)
        return True

    def _drop_dead_batches(self, backlog: Backlog) -> bool:
        """Drop dead batches, with an event for each link, and return whether there were any."""
        number = sum(slot.batches.get(BatchState.DEAD.value, 0) for slot in backlog.slots)
        if number <= len(self._unreadable):
            return False
        batches = self.store.batches(self.crawl, {BatchState.DEAD})
        readable = [batch for batch in batches if batch.number not in self._unreadable]
        events: list[LinkEvent] = []
        dropped: list[int] = []
        for batch in readable[:_DEAD_BATCHES]:
            try:
                values = decode(self.store.payload(self.crawl, batch.number).get, key=self.key)
            except PayloadError as error:
                logger.warning(
                    "Crawl %s: the dead batch %d cannot be read: %s",
                    self.crawl,
                    batch.number,
                    error,
                )
                self._unreadable.add(batch.number)
                continue
            events += map(_make_error_event, values)
            dropped.append(batch.number)
        if not dropped:
            return False
        # Events of any partition: no process has to hold them for that. Of two processes that do
        # this, one is refused.
        step = StrategyStep(
            crawl=self.crawl,
            process=self.process,
            partitions=(),
            dropped=dropped,
            events=events,
            now=self.clock(),
        )
        self.store.apply(step)
        return True

    # the end

    def _vote(self) -> bool:
        """Call `finished` of the strategy, keep the answer and return it."""
        try:
            self._finished = bool(self.strategy.finished())
        except Exception:
            logger.exception(
                "Crawl %s: finished() of the strategy raised; this counts as False", self.crawl
            )
            self._finished = False
        return self._finished

    def _check_end(self) -> bool:
        """End the crawl when it is time, and return whether there was something to do."""
        self._check_at = self.clock()
        # The batches first: what they lead to afterwards is in the second answer.
        backlog = self.store.backlog(self.crawl)
        strategy = self.store.strategy_backlog(self.crawl)
        if self._drop_dead_batches(backlog):
            return True
        is_left = backlog.waiting or backlog.out or strategy.events
        self.over = strategy.ended and not is_left
        if strategy.ended:
            return False
        if _have_all_finished(strategy):
            logger.info("Crawl %s: all processes of the strategy have finished", self.crawl)
            self.store.end_strategy(self.crawl)
            return True
        if not self._seems_done(backlog, strategy):
            return False
        # What others had under way was perhaps in neither answer.
        self.over = self.store.end_strategy(self.crawl, if_empty=True)
        if self.over:
            logger.info("Crawl %s: nothing is left to be requested", self.crawl)
        return not self.over

    def _seems_done(self, backlog: Backlog, strategy: StrategyBacklog) -> bool:
        """Return whether the strategy had links, and nothing is left of them."""
        has_begun = any(strategy.states.values())
        return not self.standing and has_begun and is_empty(backlog, strategy)


def seeds_work(source: str) -> str:
    """Return the work of a process that reads seeds from there, as a producer of the frontier."""
    return f"seeds {source}".rstrip()


def _limit_links(events: Sequence[LinkEvent], most: int) -> list[LinkEvent]:
    """Return the first events, at least one, that have no more links than that."""
    limited: list[LinkEvent] = []
    left = most
    for event in events:
        left -= len(event.links)
        if limited and left < 0:
            break
        limited.append(event)
    return limited


def _make_error_event(value: RequestValue) -> LinkEvent:
    """Return the event of a request whose batch is dead."""
    return LinkEvent(
        kind=EventKind.ERROR,
        fingerprint=bytes.fromhex(link_meta(value).get("fingerprint", "")),
        request=value,
        partition=partition_of(site_of(value["url"])),
        url=value["url"],
        error=WORKER_DIED,
    )


def _have_all_finished(strategy: StrategyBacklog) -> bool:
    """Return whether all partitions are held, by processes that have finished."""
    held: set[int] = set()
    for process in strategy.processes:
        if process.partitions and not process.finished:
            return False
        held.update(process.partitions)
    return len(held) == PARTITIONS
