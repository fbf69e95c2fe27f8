"""The push scheduler: sends the batches of one crawl to the nodes, retries them and collects their parts.

It runs in the producer's process, on an asyncio loop. The producer calls `PushScheduler`; the work is done by the
dispatcher, the node monitor and the collector, around one shared state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from scrapyd_dist.batches import ENDED, WAITING, AttemptState
from scrapyd_dist.scheduling.base import BaseScheduler, OpenWork, SchedulerLimits, SchedulerState
from scrapyd_dist.scheduling.batcher import Demand
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.dispatcher import Dispatcher
from scrapyd_dist.scheduling.membership import Membership
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import AbandonedJob, JobRun, settled_pace
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.poison import PoisonBisector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Attempt, Batch
    from scrapyd_dist.scheduling.job_request import JobRequest
    from scrapyd_dist.scheduling.membership import Listed
    from scrapyd_dist.scheduling.node_state import NodeState
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender


@dataclass(kw_only=True)
class PushScheduler(BaseScheduler):
    """Call `recover`, `start`, then `add` for each batch, then `no_more`, then `await ended()`."""

    STATE: ClassVar[type[SchedulerState]] = SchedulerState  #: the type of the shared state

    spec: JobRequest
    members: list[NodeState]  #: the nodes at the start; nodes that join later are appended
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: the folder of fetched parts
    prepare: Callable[
        [NodeState], Awaitable[str]
    ]  #: deploys the crawl's code to a node; returns a reason when it cannot
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.STATE(
            spec=self.spec, members=self.members, store=self.store, sender=self.sender, limits=self.limits
        )
        self.collector = Collector(state=self.state, folder=self.folder, bisector=PoisonBisector(key=self.key))
        self.monitor = NodeMonitor(state=self.state, collector=self.collector, prepare=self.prepare)
        dispatcher = Dispatcher(state=self.state, collector=self.collector, placement=self.placement)
        self.state.pump = dispatcher.pump
        self.membership = Membership(state=self.state, monitor=self.monitor, listed=self.listed)

    @property
    def waiting(self) -> int:
        """Number of batches that wait for a node."""
        return len(self.state.waiting)

    @property
    def work(self) -> OpenWork:
        """The batches that are neither done nor dead."""
        return OpenWork(
            waiting=self.waiting,
            waiting_requests=sum(batch.size for batch in self.state.waiting),
            out=sum(len(member.out) for member in self.members),
        )

    @property
    def failed(self) -> bool:
        """True when it stopped and resuming alone does not help."""
        return self.fault is not None

    def rest(self, *, paused: bool) -> None:
        """Pause or resume sending; running jobs are watched to their end."""
        self.state.paused = paused
        self.state.pump()

    def demand(self, more: float | None = None) -> Demand:
        """What the fleet could take now; `more`: requests that are still to be found, None when unknown."""
        usable = [member for member in self.members if member.usable]
        return Demand(
            slots=sum(member.likely_slots for member in usable),
            idle=sum(member.idle_slots for member in usable) - self.waiting,
            pace=settled_pace(self.members),
            more=more,
        )

    async def recover(self) -> None:
        """Load drained nodes from the store, and take up the batches and jobs of an earlier process."""
        await self.membership.look()
        db, crawl = self.store.store, self.spec.crawl
        batches = await self.store(db.batches, crawl)
        attempts = await self.store(db.attempts, crawl)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        self.counters.recall(batches, accepted, await self.store(db.misses, crawl))
        for attempt in accepted:
            self.credit(attempt)
        self._cancel_again([attempt for attempt in attempts if attempt.state is AttemptState.FAILED])
        last = {attempt.batch: attempt for attempt in attempts}
        for batch in batches:
            if batch.state in ENDED:
                continue
            self.state.open.add(batch.number)
            if batch.state in WAITING:
                self.state.waiting.append(batch)
            else:
                await self._take_up(batch, last[batch.number])

    async def _take_up(self, batch: Batch, attempt: Attempt) -> None:
        member = next((m for m in self.members if m.node.url == attempt.url), None)
        if member is None:
            reason = f"its node {attempt.node} is not in the fleet any more"
            self._cancel_again([attempt])
            await self.collector.give_up(batch, attempt.number, reason)
            return
        out = JobRun(
            batch=batch,
            number=attempt.number,
            job=attempt.job,
            member=member,
            since=attempt.sent_at,
            start_by=time.time() + self.limits.start_timeout,
            posted=True,
        )
        member.out[out.job] = out

    def _cancel_again(self, attempts: Sequence[Attempt]) -> None:
        """Cancel these jobs again: the earlier process may have died before it could tell their nodes."""
        members = {member.node.url: member for member in self.members}
        for attempt in attempts:
            member = members.get(attempt.url)
            jobs = member.cancel_later if member else self.membership.given_up.setdefault(attempt.url, [])
            jobs.append(AbandonedJob(attempt.job))

    def start(self) -> None:
        """Start watching the nodes and the lists of nodes."""
        for member in self.members:
            self.monitor.begin(member)
        self.state.pump()
        self.membership.follow()

    def add(self, batch: Batch) -> None:
        """Schedule a sealed batch."""
        self.state.open.add(batch.number)
        self.state.waiting.append(batch)
        self.state.pump()

    def no_more(self) -> None:
        """No batch will be added any more."""
        self.state.closed = True
        self.state.check_over()

    async def ended(self) -> None:
        """Wait until every batch is done or dead, or the crawl cannot go on (see `stopped`, `fault`)."""
        await self.state.over.wait()

    async def left(self) -> None:
        """Wait until no job of the crawl runs on the nodes; in push an ended batch has none."""
