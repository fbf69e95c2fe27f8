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
from scrapyd_dist.coordination.coordinator import Coordinator
from scrapyd_dist.coordination.desk import Desk, WorkAtHand
from scrapyd_dist.managing.frontdesk import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.frontier.values import Backlog, SlotCount

#: states of an attempt that is out, or whose part is being fetched
_OPEN = frozenset({AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED})
#: least seconds between two polls
BREATH = 0.02
#: rows kept in memory, besides two for each job that may run
STOCK = 20


@dataclass(kw_only=True)
class RowDesk(Desk):
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
class RowJobs(Coordinator):
    """A push scheduler of rows, with the interface of the pull scheduler."""

    DESK: ClassVar[type[Desk]] = RowDesk

    max_time: float = 0.0  #: seconds after which nothing more is started; 0: no limit
    desk: RowDesk = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun = time.monotonic()

    @property
    def work(self) -> WorkAtHand:
        """The rows that are neither done nor dead."""
        slots = self.desk.slots
        return WorkAtHand(
            waiting=self.desk.backlog.waiting,
            waiting_requests=sum(slot.waiting for slot in slots),
            out=sum(len(member.out) for member in self.members),
            batches=sum(sum(slot.batches.values()) - slot.batches.get(BatchState.SPLIT.value, 0) for slot in slots),
        )

    async def recover(self) -> None:
        """Load drained nodes from the store, and take up the counts and jobs of an earlier process."""
        await self.joining.look()
        db, crawl = self.store.store, self.spec.crawl
        attempts = await self.store(db.attempts, crawl)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        self.tally.recall((), accepted, await self.store(db.misses, crawl))
        self._recall_counts(await self.store(db.slots, crawl), len(attempts))
        for attempt in accepted:
            self.credit(attempt)
        self._cancel_again([attempt for attempt in attempts if attempt.state is AttemptState.FAILED])
        for attempt in attempts:
            if attempt.state in _OPEN:
                self.desk.open.add(attempt.batch)
                await self._take_up(await self.store(db.batch, crawl, attempt.batch), attempt)

    def _recall_counts(self, slots: Sequence[SlotCount], attempts: int) -> None:
        """Take the counts of the store instead of reading every row."""
        dead, tally = BatchState.DEAD.value, self.tally
        tally.sent = attempts
        tally.done = sum(slot.batches.get(BatchState.DONE.value, 0) for slot in slots)
        tally.dead = sum(slot.batches.get(dead, 0) for slot in slots)
        tally.dead_urls += sum(slot.requests.get(dead, 0) for slot in slots)

    def start(self) -> None:
        """Start watching the nodes and the store."""
        super().start()
        self.desk.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        while not self.desk.over.is_set():
            self.desk.news.clear()
            await self._look()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.desk.news.wait(), self.limits.poll)
            await asyncio.sleep(BREATH)

    async def _look(self) -> None:
        db, crawl, desk = self.store.store, self.spec.crawl, self.desk
        # one answer of the store: once nothing can be added any more, its backlog is complete
        desk.backlog = backlog = await self.store(db.backlog, crawl)
        desk.slots = await self.store(db.slots, crawl)
        if backlog.waiting and desk.is_short:
            await self._take_in()
        if self.max_time and time.monotonic() - self._begun > self.max_time:
            desk.stop_now(f"Jobs were started for {self.max_time:g} s, as long as was asked for.")
        elif not (backlog.producers or backlog.standing):
            self._check_end(backlog)

    async def _take_in(self) -> None:
        """Read the next waiting rows: old ones, new ones, and those that a user requeued."""
        desk = self.desk
        for slot in [one.slot for one in desk.slots if one.waiting]:
            # rows in memory wait in the store as well, and for a moment also rows that are being posted
            there = await self.store(self.store.store.peek, self.spec.crawl, slot, len(desk.open) + desk.stock)
            new = [row for row in there if row.number not in desk.open]
            for row in new[: max(0, desk.stock - len(desk.waiting))]:
                desk.open.add(row.number)
                desk.waiting.append(row)
        desk.pump()

    def _check_end(self, backlog: Backlog) -> None:
        desk = self.desk
        leaves = not self.limits.wait and not desk.waiting and not desk.posts
        if backlog.waiting or (desk.open and not leaves):
            return
        if backlog.lost and not desk.open:
            self.incomplete, names = True, ", ".join(backlog.lost)
            desk.stopped = f"Not all was found: {names}, which filled the frontier, has not been heard of any more."
        desk.over.set()
