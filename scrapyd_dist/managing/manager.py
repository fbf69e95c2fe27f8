"""The pull scheduler: keeps workers running at one frontier, and collects what they have done.

In a crawl that pulls, it takes the place of the push scheduler in the producer's process, with the same interface; a
frontier that other processes fill needs nothing else. Workers are started by the autoscaler, watched by the node
monitor, and their attempts are ended by the collector, around one shared state, on an asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState, BatchState
from scrapyd_dist.coordination.base import AtDesk
from scrapyd_dist.coordination.cutting import Demand
from scrapyd_dist.coordination.desk import Limits, WorkAtHand
from scrapyd_dist.coordination.ending import Endings
from scrapyd_dist.coordination.fleet import SLOTS_UNKNOWN, settled_pace
from scrapyd_dist.coordination.joining import Joining
from scrapyd_dist.coordination.looking import Looks
from scrapyd_dist.coordination.poison import Cuts
from scrapyd_dist.managing.failures import Failures
from scrapyd_dist.managing.frontdesk import FrontDesk
from scrapyd_dist.managing.hiring import Hiring, room
from scrapyd_dist.managing.judging import Judging
from scrapyd_dist.managing.others import Others
from scrapyd_dist.managing.returning import Returning
from scrapyd_dist.managing.roster import Roster
from scrapyd_dist.managing.staffing import ALL, Staffing, decide, work_in
from scrapyd_dist.reasons import meaning

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.coordination.joining import Listed
    from scrapyd_dist.coordination.posting import JobSpec
    from scrapyd_dist.managing.staffing import Work
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.store.reach import Way
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender

logger = logging.getLogger(__name__)

#: pause between two polls of the store, as a share of `Limits.poll`
PAUSE = 0.25
#: least seconds between two polls, and least pause as a multiple of a poll's duration, for frontiers of many slots
BREATH, REST = 0.02, 2.0
#: batches that wait for each worker where slots are shared fairly and batches are small
STOCK = 16
#: seconds between two heartbeats of this process in the store; after three missed ones it counts as lost
ANNOUNCE = 20.0
#: seconds that workers get to see that no batch is left, and again after they were told to end
LEAVE = 10.0
#: seconds in which the workers of an earlier process are polled before the only round of starts
FIRST_LOOKS = 10.0


@dataclass(kw_only=True)
class Manager(AtDesk):
    """Call `recover`, `start`, then `await ended()`, `await left()`, `await stop("")`.

    A process that fills the frontier itself names itself as `producer`, calls `add` for what it has added, and
    `no_more` at the end.
    """

    spec: JobSpec
    members: list[Member]  #: the nodes at the start; nodes that join later are appended
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: the folder of fetched parts
    prepare: Callable[[Member], Awaitable[str]]  #: deploys the crawl's code to a node; returns a reason when it cannot
    reach: Callable[[Node], Way]  #: how a node's workers reach the store
    staffing: Staffing = field(default_factory=Staffing)
    limits: Limits = field(default_factory=Limits)
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes
    producer: str = ""  #: the name under which this process fills the frontier; empty when it does not
    desk: FrontDesk = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.desk = desk = FrontDesk(
            spec=self.spec, members=self.members, store=self.store, sender=self.sender, limits=self.limits
        )
        self.failures = Failures(attempts=self.limits.max_attempts)
        self._endings = Endings(desk=desk, folder=self.folder, cuts=Cuts(key=self.key))
        self._returning = Returning(desk=desk, endings=self._endings, accepted=self._worked, key=self.key)
        others = Others(desk=desk, terms=self.staffing.terms, key=self.key)
        self._hiring = Hiring(
            desk=desk,
            roster=Roster(crawl=self.spec.crawl, store=self.store),
            terms=self.staffing.terms,
            reach=self.reach,
            failures=self.failures,
            gone=self._returning.worker_gone,
            others=others,
            judging=Judging(desk=desk, failures=self.failures, others=others),
            again=self.staffing.every is not None,
        )
        self._returning.hangs = self._hiring.hangs
        self._looks = Looks(desk=desk, endings=self._hiring, prepare=self.prepare)
        self._joining = Joining(desk=desk, looks=self._looks, listed=self.listed)
        self._begun = time.monotonic()
        self._staffed: float | None = None  #: when workers were last started
        self._announced: float | None = None  #: when the last heartbeat was stored

    def _worked(self, slot: str) -> None:
        lane = self.staffing.lane_of(slot)
        self.failures.worked(ALL if lane is None else lane)

    # state

    @property
    def failed(self) -> bool:
        """True when it stopped and resuming alone does not help."""
        return self.fault is not None or bool(self.failures.closed or self.failures.unfit)

    @property
    def unreached(self) -> bool:
        return bool(self.stopped and self.failures.unreached) and not self.tally.sent

    @property
    def work(self) -> WorkAtHand:
        """The batches that are neither done nor dead."""
        slots = self.desk.slots
        return WorkAtHand(
            waiting=self.desk.backlog.waiting,
            waiting_requests=sum(slot.waiting for slot in slots),
            out=self.desk.backlog.leased + self.desk.backlog.expired + self.desk.backlog.acked,
            batches=sum(sum(slot.batches.values()) - slot.batches.get(BatchState.SPLIT.value, 0) for slot in slots),
        )

    def rest(self, *, paused: bool) -> None:
        """Pause or resume starting workers; running ones lease nothing while the crawl's row says so."""
        self.desk.paused = paused
        self.desk.news.set()

    def demand(self, more: float | None = None) -> Demand:
        """What the workers could take now; `more`: requests that are still to be found, None when unknown."""
        workers = sum(1 for _ in self.desk.workers())
        backlog, ahead = self.desk.backlog, 1 + self.staffing.terms.ahead
        # fair workers hold many small batches
        fair = bool(self.staffing.terms.fair)
        return Demand(
            slots=workers,
            idle=workers * STOCK - backlog.waiting if fair else workers * ahead - backlog.leased - backlog.waiting,
            pace=settled_pace(self.members),
            more=more,
        )

    # life cycle

    async def recover(self) -> None:
        """Load drained nodes from the store, and take up the counts and workers of an earlier process."""
        await self._joining.look()
        db, crawl = self.store.store, self.spec.crawl
        accepted = await self.store(db.attempts, crawl, {AttemptState.ACCEPTED})
        self.tally.recall(await self.store(db.batches, crawl), accepted, await self.store(db.misses, crawl))
        for attempt in accepted:
            self.credit(attempt)
        await self._returning.take_back_pushed()
        await self._hiring.recover(accepted)
        await self._announce()

    def start(self) -> None:
        """Start watching the nodes and the store, and start workers."""
        for member in self.members:
            self._looks.begin(member)
        self._joining.follow()
        self.desk.spawn(self._keep_looking())

    def add(self, batch: Batch) -> None:  # noqa: ARG002 - it is in the store
        """This process has added a batch."""
        self.desk.news.set()

    def no_more(self) -> None:
        """This process has added its last batch."""
        self.desk.closed = True
        if self.producer:
            self.desk.spawn(self._sign_off())

    async def ended(self) -> None:
        """Wait until no batch is left and none will be added, or it cannot go on (see `stopped`, `fault`)."""
        await self.desk.done.wait()

    async def left(self) -> None:
        """Wait until no worker runs; workers that do not end by themselves are told to."""
        for patient in (True, False):  # workers that have not begun are told at once
            told = [one for one in self.desk.workers() if one.posted and not (patient and one.report)]
            if self._awaited():
                await asyncio.gather(*(self._hiring.dismiss(worker) for worker in told))
            deadline = time.monotonic() + LEAVE
            while self._awaited() and time.monotonic() < deadline:
                for member in self.desk.members:
                    self.desk.wake(member).set()
                await self._pause()
        if self._awaited():
            names = ", ".join(worker.job for worker in self.desk.workers())
            logger.warning("These workers have not ended, and are left to themselves: %s", names)

    def _awaited(self) -> bool:
        """True while the end of workers is awaited."""
        return (
            self.limits.wait
            and self.staffing.every != 0
            and not self.desk.over.is_set()
            and any(True for _ in self.desk.workers())
        )

    # polling

    async def _keep_looking(self) -> None:
        while not self.desk.over.is_set():
            self.desk.news.clear()
            began = time.monotonic()
            await self._look()
            await self._pause((time.monotonic() - began) * REST)

    async def _pause(self, least: float = 0.0) -> None:
        """Wait for a reason to poll or the next time to, but at least this many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.desk.news.wait(), self.limits.poll * PAUSE)
        await asyncio.sleep(max(BREATH, least))

    async def _look(self) -> None:
        db, crawl, desk = self.store.store, self.spec.crawl, self.desk
        await self._announce()
        ended = self.tally.done + self.tally.failed
        # in this order: finished means that nothing could be added any more, and nothing was left after that
        desk.backlog = backlog = await self.store(db.backlog, crawl)
        desk.slots = await self.store(db.slots, crawl)
        self.tally.sent = max(self.tally.sent, ended + self.work.out)
        await self._returning.look(backlog)
        lanes = work_in(desk.slots, self.staffing)
        if vain := [lane for lane in self.failures.unknown & lanes.keys() if lanes[lane].waiting]:
            for lane in vain:
                await self._returning.bury(lane, self.failures.closed[lane])
            # dead batches must not look like open work: the crawl would be stopped, not finished
            desk.slots = await self.store(db.slots, crawl)
            lanes = work_in(desk.slots, self.staffing)
        if not desk.done.is_set():
            self._check_end(lanes)
        if not desk.done.is_set():
            await self._leave_out(self._staff(lanes))

    async def _leave_out(self, lanes: Sequence[str]) -> None:
        """Handle lanes whose workers have all ended as their settings say, and are not replaced."""
        for lane in lanes:
            reasons = self._hiring.retired[lane]
            reason = next((one for one in reasons if not meaning(one).asked_for), reasons[-1])
            if not self.producer:  # what waits in a frontier is for its next consumer
                self.desk.stop_now(f"The workers have ended as their settings say ({reason.upper()}); the rest waits.")
                return
            self.enough = reason
            await self._returning.leave_out(lane, reason)

    async def _announce(self) -> None:
        """Store a heartbeat: this process may still add batches."""
        now = time.monotonic()
        if self.producer and not self.desk.closed and (self._announced is None or now - self._announced > ANNOUNCE):
            self._announced = now
            await self.store(self.store.store.register_producer, self.spec.crawl, self.producer, ANNOUNCE * 3)

    async def _sign_off(self) -> None:
        await self.store(self.store.store.sign_off, self.spec.crawl, self.producer)
        self.desk.news.set()

    def _check_end(self, lanes: Mapping[str, Work]) -> None:
        desk, backlog, closed = self.desk, self.desk.backlog, self.failures.closed
        left = [lane for lane, work in lanes.items() if not work.over]
        busy = self._returning.coming or any(True for _ in desk.workers())
        if self.staffing.max_time and time.monotonic() - self._begun > self.staffing.max_time:
            desk.stop_now(f"Workers were kept running for {self.staffing.max_time:g} s, as long as was asked for.")
        elif not busy and (ALL in closed or (left and all(lane in closed for lane in left))):
            desk.stop_now(
                " ".join(f"{_named(lane)} gets no more workers: {why.rstrip('.')}." for lane, why in closed.items())
            )
        elif left or self._returning.coming or backlog.producers or backlog.standing:
            self._check_sent()
        elif backlog.lost:
            self.incomplete, names = True, ", ".join(backlog.lost)
            desk.stopped = f"Not all was found: {names}, which filled the frontier, has not been heard of any more."
            desk.done.set()
        else:
            desk.done.set()

    def _check_sent(self) -> None:
        """Leave once the workers are sent, when their end is not awaited."""
        once = self.staffing.every == 0 or (not self.limits.wait and self.desk.closed)
        if once and self._staffed is not None and not self.desk.posts:
            self.desk.done.set()

    def _early(self) -> int:
        """The process slots that nodes state; learned slots only take work that waits already."""
        return sum(member.node.slots or SLOTS_UNKNOWN for member in self.members if member.usable)

    def _staff(self, lanes: Mapping[str, Work]) -> list[str]:
        """Start workers, or let some end; returns lanes with batches that will get no worker."""
        desk, now = self.desk, time.monotonic()
        every = self.staffing.every
        again = self._staffed is None or every is None or (every and now - self._staffed >= every)
        if desk.paused or not desk.sending or not again or (every == 0 and self._unseen()):
            return []
        if self._hiring.ending:  # why these ended, and what they had leased, is not known yet
            return []
        working = Counter(worker.lane for worker in desk.workers())
        retired = {} if self._hiring.again else self._hiring.retired
        decision = decide(
            lanes,
            working,
            self.staffing,
            room=sum(room(member) for member in self.members),
            early=self._early() if desk.backlog.producers else 0,
            closed=self.failures.closed,
            cramped=self._hiring.cramped(lane for lane, work in lanes.items() if work.waiting),
            retired={lane: len(reasons) for lane, reasons in retired.items()},
        )
        for lane in decision.start:
            self._hiring.start(lane)
        for lane in decision.end:
            if self._hiring.make_room(lane, decision.only_for):
                break
        # a handshake does no work: the round goes on until it is known which node can work
        self._staffed = None if any(worker.introduces for worker in desk.workers()) else now
        here = {*working, *decision.start}
        return [lane for lane in retired if lane in lanes and lanes[lane].waiting and lane not in here]

    def _unseen(self) -> bool:
        """True while workers of an earlier process have not been polled yet: they may have ended long ago."""
        left = (worker for worker in self.desk.workers() if not worker.at_once and worker.member.up)
        return time.monotonic() - self._begun < FIRST_LOOKS and any(worker.report is None for worker in left)


def _named(lane: str) -> str:
    return "The crawl" if lane == ALL else f"The slot {lane!r}"
