"""What places, sends, watches, retries and collects the batches of one crawl. It lives in the producer's process.

Here is what the producer calls; the work is done by `dispatch` (placing and sending), `looking`
(nodes and jobs) and `ending` (how attempts end), around one `desk`. It runs in an asyncio loop; the
store and the way calls are sent are given to it.
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
    """See the module. `recover`, `start`, then `add` batches, then `no_more`, then `await ended()`."""

    DESK: ClassVar[type[Desk]] = Desk  #: what its parts work around

    spec: JobSpec
    members: list[Member]  #: at the start; nodes that join are added
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: where parts are kept
    prepare: Callable[[Member], Awaitable[str]]  #: brings the crawl's code to a node; a reason when it cannot
    limits: Limits = field(default_factory=Limits)
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    key: bytes | None = None  #: of batches that travel encrypted
    listed: Listed | None = None  #: the nodes that are listed now; without it the fleet stays as it is

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
        """Batches that wait for a node."""
        return len(self.desk.waiting)

    @property
    def work(self) -> WorkAtHand:
        """The batches that wait or are out."""
        return WorkAtHand(
            waiting=self.waiting,
            waiting_requests=sum(batch.size for batch in self.desk.waiting),
            out=sum(len(member.out) for member in self.members),
        )

    @property
    def failed(self) -> bool:
        """Whether it stopped in a way that going on alone does not mend."""
        return self.fault is not None

    def rest(self, *, paused: bool) -> None:
        """Send nothing until it is told to go on; jobs that are out are watched to their end."""
        self.desk.paused = paused
        self.desk.pump()

    def demand(self, more: float | None = None) -> Demand:
        """What the fleet could take now; `more` as there."""
        usable = [member for member in self.members if member.usable]
        return Demand(
            slots=sum(member.likely_slots for member in usable),
            idle=sum(member.idle_slots for member in usable) - self.waiting,
            pace=settled_pace(self.members),
            more=more,
        )

    async def recover(self) -> None:
        """Take up what people want of the nodes and what an earlier process left: what waits, and what is out."""
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
        """Nobody knows which of these jobs were told: the earlier process may have died while their node was away."""
        members = {member.node.url: member for member in self.members}
        for attempt in attempts:
            member = members.get(attempt.url)
            jobs = member.cancel_later if member else self.joining.given_up.setdefault(attempt.url, [])
            jobs.append(GivenUp(attempt.job))

    def start(self) -> None:
        """Watch every node from now on, and the lists of nodes."""
        for member in self.members:
            self.looks.begin(member)
        self.desk.pump()
        self.joining.follow()

    def add(self, batch: Batch) -> None:
        """A batch was sealed."""
        self.desk.open.add(batch.number)
        self.desk.waiting.append(batch)
        self.desk.pump()

    def no_more(self) -> None:
        """The producer has sealed its last batch."""
        self.desk.closed = True
        self.desk.check_over()

    async def ended(self) -> None:
        """Wait until every batch is done or dead, or the crawl cannot go on (`stopped`, `fault`)."""
        await self.desk.over.wait()

    async def left(self) -> None:
        """Wait until nothing of the crawl runs on the nodes: a batch that has ended has no job there."""
