"""The manager of a strategy process: calls the strategy for what workers told, and cuts the next batches.

One call of `work` is one round; it has no thread and does not wait. What a round changes is kept in one step, which
the store refuses when another process has the partitions by now: then all of it is thrown away.

Partitions of other processes: a request of one, from a handler or a seed, is handed over as an event of kind SCHEDULED,
in the same step, and placed by the manager that holds the partition. So seeds need no process that holds all
partitions, several may read seeds at once, and the queue of a partition has one writer only.
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
#: requests of a slot that wait in batches: the order at a site is exact but for these, and what workers hold
AHEAD = 64
#: events and links of a round, and links that one step takes from the queue
ROUND_EVENTS, ROUND_LINKS, ROUND_CUT = 500, 10_000, 1_000
#: seeds of one step
SEEDS = 1_000
#: times that a step of seeds is tried, with the partitions as they are by then
_TRIES = 5
#: seconds between two looks at how far the crawl is, and two signs of life
_PACE = 1.0
#: dead batches that one step tells of
_DEAD_BATCHES = 100
#: the error of a link whose batch has killed its workers, or could not be ended by any
WORKER_DIED = "WorkerDied"
#: names of counts in the crawl's account, besides `EXPIRED`
SEALED, REFUSED = "sealed", "refused"


class ManagerStore(Protocol):
    """What a manager needs of the store; each verb as `store.Store` has it."""

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]: ...
    def leave_partitions(self, crawl: str, process: str) -> None: ...
    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]: ...
    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]: ...
    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]: ...
    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]: ...
    def apply(self, step: StrategyStep) -> list[Batch]: ...
    def strategy_backlog(self, crawl: str) -> StrategyBacklog: ...
    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool: ...
    def backlog(self, crawl: str) -> Backlog: ...
    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]: ...
    def payload(self, crawl: str, number: int) -> dict[str, str]: ...
    def register_producer(self, crawl: str, producer: str, seconds: float) -> None: ...
    def sign_off(self, crawl: str, producer: str) -> None: ...


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
    over: bool = field(
        default=False, init=False
    )  #: the strategy has ended, and all that was told is handled
    _held: frozenset[int] = field(default=frozenset(), init=False)
    _finished: bool = field(default=False, init=False)
    _voted: bool = field(default=False, init=False)
    _life_at: float | None = field(default=None, init=False)
    _look_at: float | None = field(default=None, init=False)
    _cut_at: float | None = field(default=None, init=False)
    _caller: HandlerCaller = field(init=False)
    _entry: Registration = field(init=False)
    _seeds_entry: Registration = field(init=False)  #: while it reads seeds
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
        self._entry, self._seeds_entry = entry(work=WORK), entry(work=seeds_work(self.source))

    def work(self) -> bool:
        """Make one round; whether there was something to do, so that the next is due at once.

        Raises `StoreError` when the store does not answer: call it again, as nothing was lost.
        """
        self._live()
        try:
            did = self._handle()
            did = (not self._vote() and self._cut()) or did
            if not did or self._finished or self._is_due(self._look_at):
                did = self._look() or did
        except StepRefused as refused:
            logger.info("Crawl %s: this round is made again: %s", self.crawl, refused)
            self._life_at = None  # the partitions are read anew
            return False
        return did

    def read_seeds(self, stream: Iterable[str] | None) -> int:
        """Have the strategy read its seeds; how many were new, or were handed over to other processes.

        What it schedules is kept in steps of a bounded number, and requests begin meanwhile. Reading the same seeds
        again requests none of them twice.
        """
        self._live()
        self._seeds_entry.renew()
        draft = self._seeding = self._draft()
        self._seeded = 0
        draft.seeded = lambda: self._seed_scheduled(draft)
        self.strategy.context = draft
        try:
            self.strategy.read_seeds(stream)
            self._keep_seeds(draft)
        finally:
            self._seeding = None
        self._seeds_entry.sign_off()
        return self._seeded

    def work_between_seeds(self) -> bool:
        """`work`, for a stream of seeds that is waited for: those that were read so far are kept first."""
        draft = self._seeding
        if draft is not None:
            self._keep_seeds(draft)
        try:
            return self.work()
        finally:
            if draft is not None:
                self.strategy.context = draft

    def close(self, *, leave: bool = True) -> None:
        """The process ends; without `leave` the frontier goes on waiting for a strategy process, as in a pause."""
        try:
            self.strategy.close()
        finally:
            self.store.leave_partitions(self.crawl, self.process)
            if leave:
                self._entry.sign_off()

    def others(self) -> list[str]:
        """The names of other processes of the strategy that live, as producers of the frontier."""
        self._live()
        return self._entry.take_over()

    # signs of life

    def _is_due(self, last: float | None) -> bool:
        return last is None or not 0.0 <= self.clock() - last < _PACE

    def _live(self) -> None:
        """Hold the partitions, and tell the vote."""
        for entry in (self._entry, self._seeds_entry) if self._seeding else (self._entry,):
            entry.renew()
        if self._is_due(self._life_at) or self._voted is not self._finished:
            self._voted = self._finished
            held = self.store.hold_partitions(
                self.crawl, self.process, self.held_for, finished=self._voted
            )
            self._held = frozenset(held)
            self._life_at = self.clock()

    # events

    def _draft(self) -> RoundDraft:
        rules = DraftRules(
            crawl=self.crawl,
            fingerprint=self.fingerprint,
            slot_of=self.slot_of,
            max_depth=self.max_depth,
            has_key=self.key is not None,
        )
        return RoundDraft(store=self.store, rules=rules, partitions=self._held, clock=self.clock)

    def _handle(self) -> bool:
        """Handle the oldest events, in one step; whether there were any."""
        told = self.store.events(self.crawl, self._held, self._events) if self._held else []
        if not told:
            return False
        events = _within(told, ROUND_LINKS)
        # What is too much for this round, such as pages with many links, is not read in the next one, either.
        few = len(events) if len(events) < len(told) else self._events
        self._events = min(2 * few, ROUND_EVENTS)
        draft = self._draft()
        self._caller.handle(draft, events)
        try:
            self.store.apply(draft.step(self.process))
        except ContentRefused as error:
            self._events = max(1, len(events) // 2)  # until the event that it is about is alone
            if len(events) == 1:
                self._caller.bury(draft := self._draft(), events[0], error)
                self.store.apply(draft.step(self.process))
        return True

    # seeds

    def _seed_scheduled(self, draft: RoundDraft) -> None:
        self._live()
        self._keep_seeds(draft, SEEDS)

    def _keep_seeds(self, draft: RoundDraft, least: int = 0) -> None:
        """Keep what was scheduled so far, if it is enough, whatever becomes of the partitions meanwhile."""
        if len(draft.wishes) < least:
            return
        draft.domains.keep(lambda site: partition_of(site) in self._held)
        counts = {BEYOND_DEPTH: draft.beyond} if draft.beyond else {}
        changes = draft.domains.changes()
        for left in reversed(range(_TRIES)):
            self._live()
            try:
                self._seeded += self._seed_step(draft.wishes, counts, changes)
                break
            except StepRefused:
                self._life_at = None
                if not left:
                    raise
        draft.wishes, draft.beyond = [], 0
        draft.forget_looked_up()
        self._cut_meanwhile()

    def _seed_step(
        self,
        wishes: Sequence[ScheduledRequest],
        counts: Mapping[str, int],
        changes: Mapping[str, dict[str, Any] | None],
    ) -> int:
        step = self._draft()
        step.counts.update(counts)
        step.wishes = list(wishes)
        step.keep()
        step.resolve()
        held = self._held | {
            partition_of(site) for site in changes
        }  # those of the metadata may have gone meanwhile
        self.store.apply(replace(step.step(self.process), domains=changes, partitions=held))
        return len(step.links) + len(step.events)

    def _cut_meanwhile(self) -> None:
        if self._is_due(self._cut_at):
            self._cut_at = self.clock()
            try:
                self._cut()
            except StepRefused:
                self._life_at = None

    # batches

    def _cut(self) -> bool:
        """Cut the next batches; whether there was anything to cut."""
        now = self.clock()
        heads = (
            self.store.queue_heads(
                self.crawl, self._held, ahead=self.ahead, limit=ROUND_CUT, now=now
            )
            if self._held
            else []
        )
        if not heads:
            return False
        result = cut(heads, size=self.size, key=self.key, now=now)
        numbers = {
            SEALED: sum(batch.size for batch in result.new),
            EXPIRED: result.expired,
            REFUSED: len(result.errors) - result.expired,
        }
        step = StrategyStep(
            crawl=self.crawl,
            process=self.process,
            partitions=self._held,
            links=result.errors,
            new=result.new,
            now=now,
            counts={name: number for name, number in numbers.items() if number},
        )
        self.store.apply(step)
        return True

    def _tell_of_dead(self, backlog: Backlog) -> bool:
        """Drop batches that are dead, and tell the processes of their links; whether there were any."""
        if sum(slot.batches.get(BatchState.DEAD.value, 0) for slot in backlog.slots) <= len(
            self._unreadable
        ):
            return False
        dead = [
            one
            for one in self.store.batches(self.crawl, {BatchState.DEAD})
            if one.number not in self._unreadable
        ]
        events: list[LinkEvent] = []
        dropped = []
        for batch in dead[:_DEAD_BATCHES]:
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
            events += map(_died, values)
            dropped.append(batch.number)
        if dropped:
            # Events of any partition: no process has to hold them for that. Of two that do this, one is refused.
            self.store.apply(
                StrategyStep(
                    crawl=self.crawl,
                    process=self.process,
                    partitions=(),
                    dropped=dropped,
                    events=events,
                    now=self.clock(),
                )
            )
        return bool(dropped)

    # the end

    def _vote(self) -> bool:
        """Ask the strategy whether it has finished."""
        try:
            self._finished = bool(self.strategy.finished())
        except Exception:
            logger.exception(
                "Crawl %s: finished() of the strategy raised; this counts as False", self.crawl
            )
            self._finished = False
        return self._finished

    def _look(self) -> bool:
        """See how far the crawl is, and end it when it is time; whether there was something to do."""
        self._look_at = self.clock()
        # The batches first: what they lead to afterwards is in the second answer.
        backlog, strategy = self.store.backlog(self.crawl), self.store.strategy_backlog(self.crawl)
        if self._tell_of_dead(backlog):
            return True
        self.over = strategy.ended and not (backlog.waiting or backlog.out or strategy.events)
        if strategy.ended:
            return False
        if _all_finished(strategy):
            logger.info("Crawl %s: all processes of the strategy have finished", self.crawl)
            self.store.end_strategy(self.crawl)
            return True
        if not self.standing and any(strategy.states.values()) and is_empty(backlog, strategy):
            # What others had under way was perhaps in neither answer.
            self.over = self.store.end_strategy(self.crawl, if_empty=True)
            if self.over:
                logger.info("Crawl %s: nothing is left to be requested", self.crawl)
            return not self.over
        return False


def seeds_work(source: str) -> str:
    """The work of a process that reads seeds from there, as a producer of the frontier."""
    return f"seeds {source}".rstrip()


def _within(events: Sequence[LinkEvent], links: int) -> list[LinkEvent]:
    """The first events, at least one, that have no more links than that."""
    taken: list[LinkEvent] = []
    for event in events:
        links -= len(event.links)
        if taken and links < 0:
            break
        taken.append(event)
    return taken


def _died(value: RequestValue) -> LinkEvent:
    """What is told of a request whose batch is dead."""
    return LinkEvent(
        kind=EventKind.ERROR,
        fingerprint=bytes.fromhex(link_meta(value).get("fingerprint", "")),
        request=value,
        partition=partition_of(site_of(value["url"])),
        url=value["url"],
        error=WORKER_DIED,
    )


def _all_finished(strategy: StrategyBacklog) -> bool:
    """Whether all partitions are held, by processes that have finished."""
    held = {partition for process in strategy.processes for partition in process.partitions}
    return len(held) == PARTITIONS and all(
        one.finished for one in strategy.processes if one.partitions
    )
