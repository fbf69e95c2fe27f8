"""The argument scheduler: runs one job for each row of a frontier of arguments.

A row is a batch of one; jobs are placed, watched, retried and collected by the push scheduler. Here is what differs at
a frontier: other processes add rows meanwhile, and it is over when none may add any more.
Invariant: only rows that are about to be sent are read, however many wait in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from scrapyd_dist.batches import AttemptState, BatchState
from scrapyd_dist.scheduling.base import OpenWork, SchedulerState
from scrapyd_dist.scheduling.pool_state import UNKNOWN
from scrapyd_dist.scheduling.push import PushScheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.frontier.backlog import Backlog, SlotCount

#: states of an attempt that is out, or whose part is being fetched
_OPEN = frozenset({AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED})
#: least seconds between two polls
BREATH = 0.02
#: rows kept in memory, besides two for each job that may run
STOCK = 20


@dataclass(kw_only=True)
class ArgumentState(SchedulerState):
    """The rows in memory: those that run, and the next ones. All others are in the store."""

    backlog: Backlog = UNKNOWN
    slots: Sequence[SlotCount] = ()
    news: asyncio.Event = field(default_factory=asyncio.Event)  #: the store should be polled at once

    @property
    def waits(self) -> int:
        return self.backlog.waiting

    @property
    def stock(self) -> int:
        """How many waiting rows to keep in memory."""
        return STOCK + 2 * (self.limits.max_jobs or sum(member.slots for member in self.members))

    @property
    def is_short(self) -> bool:
        """True when these rows may be used up before the next poll of the store."""
        return len(self.waiting) <= self.stock // 2

    def check_over(self) -> None:
        """Poll the store, which tells when all is over, if rows run out."""
        if not self.open or (self.is_short and self.backlog.waiting > len(self.waiting)):
            self.news.set()


@dataclass(kw_only=True)
class ArgumentScheduler(PushScheduler):
    """A push scheduler of rows, with the interface of the pull scheduler."""

    STATE: ClassVar[type[SchedulerState]] = ArgumentState

    max_time: float = 0.0  #: seconds after which nothing more is started; 0: no limit
    state: ArgumentState = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun = time.monotonic()

    @property
    def work(self) -> OpenWork:
        """The rows that are neither done nor dead."""
        slots = self.state.slots
        return OpenWork(
            waiting=self.state.backlog.waiting,
            waiting_requests=sum(slot.waiting for slot in slots),
            out=sum(len(member.out) for member in self.members),
            batches=sum(sum(slot.batches.values()) - slot.batches.get(BatchState.SPLIT.value, 0) for slot in slots),
        )

    async def recover(self) -> None:
        """Load drained nodes from the store, and take up the counts and jobs of an earlier process."""
        await self.membership.look()
        db, crawl = self.store.store, self.spec.crawl
        attempts = await self.store(db.attempts, crawl)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        self.counters.recall((), accepted, await self.store(db.misses, crawl))
        self._recall_counts(await self.store(db.slots, crawl), len(attempts))
        for attempt in accepted:
            self.credit(attempt)
        self._cancel_again([attempt for attempt in attempts if attempt.state is AttemptState.FAILED])
        for attempt in attempts:
            if attempt.state in _OPEN:
                self.state.open.add(attempt.batch)
                await self._take_up(await self.store(db.batch, crawl, attempt.batch), attempt)

    def _recall_counts(self, slots: Sequence[SlotCount], attempts: int) -> None:
        """Take the counts of the store instead of reading every row."""
        dead, counters = BatchState.DEAD.value, self.counters
        counters.sent = attempts
        counters.done = sum(slot.batches.get(BatchState.DONE.value, 0) for slot in slots)
        counters.dead = sum(slot.batches.get(dead, 0) for slot in slots)
        counters.dead_urls += sum(slot.requests.get(dead, 0) for slot in slots)

    def start(self) -> None:
        """Start watching the nodes and the store."""
        super().start()
        self.state.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        while not self.state.over.is_set():
            self.state.news.clear()
            await self._look()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.state.news.wait(), self.limits.poll)
            await asyncio.sleep(BREATH)

    async def _look(self) -> None:
        db, crawl, state = self.store.store, self.spec.crawl, self.state
        # one answer of the store: once nothing can be added any more, its backlog is complete
        state.backlog = backlog = await self.store(db.backlog, crawl)
        state.slots = await self.store(db.slots, crawl)
        if backlog.waiting and state.is_short:
            await self._take_in()
        if self.max_time and time.monotonic() - self._begun > self.max_time:
            state.stop_now(f"Jobs were started for {self.max_time:g} s, as long as was asked for.")
        elif not (backlog.producers or backlog.standing):
            self._check_end(backlog)

    async def _take_in(self) -> None:
        """Read the next waiting rows: old ones, new ones, and those that a user requeued."""
        state = self.state
        for slot in [one.slot for one in state.slots if one.waiting]:
            # rows in memory wait in the store as well, and for a moment also rows that are being posted
            there = await self.store(self.store.store.peek, self.spec.crawl, slot, len(state.open) + state.stock)
            new = [row for row in there if row.number not in state.open]
            for row in new[: max(0, state.stock - len(state.waiting))]:
                state.open.add(row.number)
                state.waiting.append(row)
        state.pump()

    def _check_end(self, backlog: Backlog) -> None:
        state = self.state
        leaves = not self.limits.wait and not state.waiting and not state.posts
        if backlog.waiting or (state.open and not leaves):
            return
        if backlog.lost and not state.open:
            self.incomplete, names = True, ", ".join(backlog.lost)
            state.stopped = f"Not all was found: {names}, which filled the frontier, has not been heard of any more."
        state.over.set()
