"""What keeps jobs running at a frontier whose rows are arguments: one job for each row, so many at a time.

A row is a batch of one, and how its job is placed, watched, tried again and brought home is the coordinator's; this
adds what is different at a frontier: rows come from others while it works, and it is over when nobody adds any more.
The rule it keeps: however many rows wait in the store, only those that are about to be sent are read.
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

#: states of an attempt that is out, or whose part is on its way home
_OPEN = frozenset({AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED})
#: seconds between two looks, at least
BREATH = 0.02
#: rows that are kept at hand, besides two for each job that may run
STOCK = 20


@dataclass(kw_only=True)
class RowDesk(Desk):
    """The rows at hand: the next ones that wait, and those that are out. All others are in the store."""

    backlog: Backlog = UNKNOWN
    slots: Sequence[SlotCount] = ()
    news: asyncio.Event = field(default_factory=asyncio.Event)  #: the store is worth a look at once

    @property
    def waits(self) -> int:
        return self.backlog.waiting

    @property
    def stock(self) -> int:
        """How many rows are to wait here."""
        return STOCK + 2 * (self.limits.max_jobs or sum(member.slots for member in self.members))

    @property
    def is_short(self) -> bool:
        """Whether the rows at hand may be sent before the next look at the store."""
        return len(self.waiting) <= self.stock // 2

    def check_over(self) -> None:
        """The store tells when it is over, not this process."""
        if not self.open or (self.is_short and self.backlog.waiting > len(self.waiting)):
            self.news.set()


@dataclass(kw_only=True)
class RowJobs(Coordinator):
    """See the module; used as a `Manager` is."""

    DESK: ClassVar[type[Desk]] = RowDesk

    max_time: float = 0.0  #: seconds after which nothing more is started; 0: no limit
    desk: RowDesk = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begun = time.monotonic()

    @property
    def work(self) -> WorkAtHand:
        """The rows that wait or are out."""
        slots = self.desk.slots
        return WorkAtHand(
            waiting=self.desk.backlog.waiting,
            waiting_requests=sum(slot.waiting for slot in slots),
            out=sum(len(member.out) for member in self.members),
            batches=sum(sum(slot.batches.values()) - slot.batches.get(BatchState.SPLIT.value, 0) for slot in slots),
        )

    async def recover(self) -> None:
        """Take up what people want of the nodes, and what an earlier process left: its counts, and its jobs."""
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
        """What the store has counted stands for a look at every row."""
        dead, tally = BatchState.DEAD.value, self.tally
        tally.sent = attempts
        tally.done = sum(slot.batches.get(BatchState.DONE.value, 0) for slot in slots)
        tally.dead = sum(slot.batches.get(dead, 0) for slot in slots)
        tally.dead_urls += sum(slot.requests.get(dead, 0) for slot in slots)

    def start(self) -> None:
        """As there; and take in what waits, and what is added from now on."""
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
        # One answer of the store: when nobody can add anything any more, what it says waits is all there will be.
        desk.backlog = backlog = await self.store(db.backlog, crawl)
        desk.slots = await self.store(db.slots, crawl)
        if backlog.waiting and desk.is_short:
            await self._take_in()
        if self.max_time and time.monotonic() - self._begun > self.max_time:
            desk.stop_now(f"Jobs were started for {self.max_time:g} s, as long as was asked for.")
        elif not (backlog.producers or backlog.standing):
            self._check_end(backlog)

    async def _take_in(self) -> None:
        """The next rows that wait: those that were there, those that others have added, and what a person requeued."""
        desk = self.desk
        for slot in [one.slot for one in desk.slots if one.waiting]:
            # Those at hand wait in the store as well, and so, for a moment, do those that are about to be posted.
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
