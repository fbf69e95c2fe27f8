"""The push scheduler: sends the batches of one crawl to the nodes, retries them and collects their parts.

It runs in the producer's process, on an asyncio loop. The producer calls `PushScheduler`; the work is done by the
dispatcher, the node monitor and the collector, around one shared state.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from scrapyd_dist.batches import ENDED, WAITING, AttemptState
from scrapyd_dist.coordination.base import AtDesk
from scrapyd_dist.coordination.cutting import Demand
from scrapyd_dist.coordination.desk import Desk, Limits, WorkAtHand
from scrapyd_dist.coordination.dispatch import Dispatch
from scrapyd_dist.coordination.ending import Endings
from scrapyd_dist.coordination.fleet import GivenUp, Out, settled_pace
from scrapyd_dist.coordination.joining import Joining
from scrapyd_dist.coordination.looking import Looks
from scrapyd_dist.coordination.placement import Placement
from scrapyd_dist.coordination.poison import Cuts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Attempt, Batch
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.coordination.joining import Listed
    from scrapyd_dist.coordination.posting import JobSpec
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender


@dataclass(kw_only=True)
class Coordinator(AtDesk):
    """Call `recover`, `start`, then `add` for each batch, then `no_more`, then `await ended()`."""

    DESK: ClassVar[type[Desk]] = Desk  #: the type of the shared state

    spec: JobSpec
    members: list[Member]  #: the nodes at the start; nodes that join later are appended
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: the folder of fetched parts
    prepare: Callable[[Member], Awaitable[str]]  #: deploys the crawl's code to a node; returns a reason when it cannot
    limits: Limits = field(default_factory=Limits)
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.desk = self.DESK(
            spec=self.spec, members=self.members, store=self.store, sender=self.sender, limits=self.limits
        )
        self.endings = Endings(desk=self.desk, folder=self.folder, cuts=Cuts(key=self.key))
        self.looks = Looks(desk=self.desk, endings=self.endings, prepare=self.prepare)
        dispatch = Dispatch(desk=self.desk, endings=self.endings, placement=self.placement)
        self.desk.pump = dispatch.pump
        self.joining = Joining(desk=self.desk, looks=self.looks, listed=self.listed)

    @property
    def waiting(self) -> int:
        """Number of batches that wait for a node."""
        return len(self.desk.waiting)

    @property
    def work(self) -> WorkAtHand:
        """The batches that are neither done nor dead."""
        return WorkAtHand(
            waiting=self.waiting,
            waiting_requests=sum(batch.size for batch in self.desk.waiting),
            out=sum(len(member.out) for member in self.members),
        )

    @property
    def failed(self) -> bool:
        """True when it stopped and resuming alone does not help."""
        return self.fault is not None

    def rest(self, *, paused: bool) -> None:
        """Pause or resume sending; running jobs are watched to their end."""
        self.desk.paused = paused
        self.desk.pump()

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
        await self.joining.look()
        db, crawl = self.store.store, self.spec.crawl
        batches = await self.store(db.batches, crawl)
        attempts = await self.store(db.attempts, crawl)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        self.tally.recall(batches, accepted, await self.store(db.misses, crawl))
        for attempt in accepted:
            self.credit(attempt)
        self._cancel_again([attempt for attempt in attempts if attempt.state is AttemptState.FAILED])
        last = {attempt.batch: attempt for attempt in attempts}
        for batch in batches:
            if batch.state in ENDED:
                continue
            self.desk.open.add(batch.number)
            if batch.state in WAITING:
                self.desk.waiting.append(batch)
            else:
                await self._take_up(batch, last[batch.number])

    async def _take_up(self, batch: Batch, attempt: Attempt) -> None:
        member = next((m for m in self.members if m.node.url == attempt.url), None)
        if member is None:
            reason = f"its node {attempt.node} is not in the fleet any more"
            self._cancel_again([attempt])
            await self.endings.give_up(batch, attempt.number, reason)
            return
        out = Out(
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
            jobs = member.cancel_later if member else self.joining.given_up.setdefault(attempt.url, [])
            jobs.append(GivenUp(attempt.job))

    def start(self) -> None:
        """Start watching the nodes and the lists of nodes."""
        for member in self.members:
            self.looks.begin(member)
        self.desk.pump()
        self.joining.follow()

    def add(self, batch: Batch) -> None:
        """Schedule a sealed batch."""
        self.desk.open.add(batch.number)
        self.desk.waiting.append(batch)
        self.desk.pump()

    def no_more(self) -> None:
        """No batch will be added any more."""
        self.desk.closed = True
        self.desk.check_over()

    async def ended(self) -> None:
        """Wait until every batch is done or dead, or the crawl cannot go on (see `stopped`, `fault`)."""
        await self.desk.over.wait()

    async def left(self) -> None:
        """Wait until no job of the crawl runs on the nodes; in push an ended batch has none."""
