"""What keeps workers running at one frontier, and brings home what they have done.

Of a crawl that pulls, it lives in the producer's process, in the place of the coordinator, and has all
that is asked of one; a frontier that others fill needs nothing else. The work is done by `hiring`
(starting workers), `looking` (nodes and jobs) and `returning` (how attempts end), around one `desk`.
It runs in an asyncio loop; the store and the way calls are sent are given to it.
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

#: share of `Limits.poll` between two looks at the store
PAUSE = 0.25
#: seconds between two looks, at least; and how many times as long as a look takes, where there are thousands of slots
BREATH, REST = 0.02, 2.0
#: batches that are to wait for each worker, where slots are shared fairly and batches are small
STOCK = 16
#: seconds between two times that the store is told of this process; after three of them it is lost
ANNOUNCE = 20.0
#: seconds that workers get to see that there is nothing left, and again when they are told so
LEAVE = 10.0
#: seconds in which the workers of an earlier process are looked at before the only round of starts
FIRST_LOOKS = 10.0


@dataclass(kw_only=True)
class Manager(AtDesk):
    """See the module. `recover`, `start`, then `await ended()`, `await left()`, `await stop("")`.

    A process that fills the frontier itself names itself as `producer`, calls `add` for what it has added and `no_more`
    when there is nothing more to come.
    """

    spec: JobSpec
    members: list[Member]  #: at the start; nodes that join are added
    store: StoreThread
    sender: AsyncSender
    folder: Path  #: where parts are kept
    prepare: Callable[[Member], Awaitable[str]]  #: brings the crawl's code to a node; a reason when it cannot
    reach: Callable[[Node], Way]  #: how workers there reach the store
    staffing: Staffing = field(default_factory=Staffing)
    limits: Limits = field(default_factory=Limits)
    key: bytes | None = None  #: of batches that travel encrypted
    listed: Listed | None = None  #: the nodes that are listed now; without it the fleet stays as it is
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
        self._announced: float | None = None  #: when the store was last told that this process may add something

    def _worked(self, slot: str) -> None:
        lane = self.staffing.lane_of(slot)
        self.failures.worked(ALL if lane is None else lane)

    # how it stands

    @property
    def failed(self) -> bool:
        """Whether workers, or we, failed in a way that going on alone does not mend."""
        return self.fault is not None or bool(self.failures.closed or self.failures.unfit)

    @property
    def unreached(self) -> bool:
        return bool(self.stopped and self.failures.unreached) and not self.tally.sent

    @property
    def work(self) -> WorkAtHand:
        """The batches that wait or are out."""
        slots = self.desk.slots
        return WorkAtHand(
            waiting=self.desk.backlog.waiting,
            waiting_requests=sum(slot.waiting for slot in slots),
            out=self.desk.backlog.leased + self.desk.backlog.expired + self.desk.backlog.acked,
            batches=sum(sum(slot.batches.values()) - slot.batches.get(BatchState.SPLIT.value, 0) for slot in slots),
        )

    def rest(self, *, paused: bool) -> None:
        """Start no worker until it is told to go on; those that run lease nothing, which the crawl's row tells them."""
        self.desk.paused = paused
        self.desk.news.set()

    def demand(self, more: float | None = None) -> Demand:
        """What the workers could take now; `more` as there."""
        workers = sum(1 for _ in self.desk.workers())
        backlog, ahead = self.desk.backlog, 1 + self.staffing.terms.ahead
        # Who shares slots fairly has many small batches at once, and takes as many as he needs.
        fair = bool(self.staffing.terms.fair)
        return Demand(
            slots=workers,
            idle=workers * STOCK - backlog.waiting if fair else workers * ahead - backlog.leased - backlog.waiting,
            pace=settled_pace(self.members),
            more=more,
        )

    # its life

    async def recover(self) -> None:
        """Take up what people want of the nodes, and what an earlier process left: its counts, and its workers."""
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
        """Watch every node and the store from now on, and start workers."""
        for member in self.members:
            self._looks.begin(member)
        self._joining.follow()
        self.desk.spawn(self._keep_looking())

    def add(self, batch: Batch) -> None:  # noqa: ARG002 - it is in the store
        """A batch was added by this process."""
        self.desk.news.set()

    def no_more(self) -> None:
        """This process has added its last batch."""
        self.desk.closed = True
        if self.producer:
            self.desk.spawn(self._sign_off())

    async def ended(self) -> None:
        """Wait until nothing will come any more, or it cannot go on (`stopped`, `fault`)."""
        await self.desk.done.wait()

    async def left(self) -> None:
        """Wait until no worker runs; those that do not end by themselves are told to."""
        for patient in (True, False):  # those that have not even begun are told at once
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
        """Whether there are workers whose end is waited for."""
        return (
            self.limits.wait
            and self.staffing.every != 0
            and not self.desk.over.is_set()
            and any(True for _ in self.desk.workers())
        )

    # looking

    async def _keep_looking(self) -> None:
        while not self.desk.over.is_set():
            self.desk.news.clear()
            began = time.monotonic()
            await self._look()
            await self._pause((time.monotonic() - began) * REST)

    async def _pause(self, least: float = 0.0) -> None:
        """Until there is news, or it is time for another look, but so many seconds at least."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.desk.news.wait(), self.limits.poll * PAUSE)
        await asyncio.sleep(max(BREATH, least))

    async def _look(self) -> None:
        db, crawl, desk = self.store.store, self.spec.crawl, self.desk
        await self._announce()
        ended = self.tally.done + self.tally.failed
        # In this order: when nobody could add anything any more, and after that nothing is left, it is finished.
        desk.backlog = backlog = await self.store(db.backlog, crawl)
        desk.slots = await self.store(db.slots, crawl)
        self.tally.sent = max(self.tally.sent, ended + self.work.out)
        await self._returning.look(backlog)
        lanes = work_in(desk.slots, self.staffing)
        if vain := [lane for lane in self.failures.unknown & lanes.keys() if lanes[lane].waiting]:
            for lane in vain:
                await self._returning.bury(lane, self.failures.closed[lane])
            # What is dead now must not look like work that is left: the crawl would be stopped, not finished.
            desk.slots = await self.store(db.slots, crawl)
            lanes = work_in(desk.slots, self.staffing)
        if not desk.done.is_set():
            self._check_end(lanes)
        if not desk.done.is_set():
            await self._leave_out(self._staff(lanes))

    async def _leave_out(self, lanes: Sequence[str]) -> None:
        """The rest of lanes whose workers have all ended as their settings say, and get no others."""
        for lane in lanes:
            reasons = self._hiring.retired[lane]
            reason = next((one for one in reasons if not meaning(one).asked_for), reasons[-1])
            if not self.producer:  # what waits in a frontier is for its next consumer
                self.desk.stop_now(f"The workers have ended as their settings say ({reason.upper()}); the rest waits.")
                return
            self.enough = reason
            await self._returning.leave_out(lane, reason)

    async def _announce(self) -> None:
        """Tell the store that this process may still add something."""
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
        """Who does not wait for the workers leaves when they are sent."""
        once = self.staffing.every == 0 or (not self.limits.wait and self.desk.closed)
        if once and self._staffed is not None and not self.desk.posts:
            self.desk.done.set()

    def _early(self) -> int:
        """The process slots of the fleet, as far as they are stated; what is learned of them takes work that waits."""
        return sum(member.node.slots or SLOTS_UNKNOWN for member in self.members if member.usable)

    def _staff(self, lanes: Mapping[str, Work]) -> list[str]:
        """Start workers, or let some end; the lanes with work for which there will be none."""
        desk, now = self.desk, time.monotonic()
        every = self.staffing.every
        again = self._staffed is None or every is None or (every and now - self._staffed >= every)
        if desk.paused or not desk.sending or not again or (every == 0 and self._unseen()):
            return []
        if self._hiring.ending:  # what they had, and why they ended, is not known yet
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
        # Who only introduces itself does no work: the round goes on until it is known who can.
        self._staffed = None if any(worker.introduces for worker in desk.workers()) else now
        here = {*working, *decision.start}
        return [lane for lane in retired if lane in lanes and lanes[lane].waiting and lane not in here]

    def _unseen(self) -> bool:
        """Whether nobody has looked at some worker of an earlier process yet: it may have ended long ago."""
        left = (worker for worker in self.desk.workers() if not worker.at_once and worker.member.up)
        return time.monotonic() - self._begun < FIRST_LOOKS and any(worker.report is None for worker in left)


def _named(lane: str) -> str:
    return "The crawl" if lane == ALL else f"The slot {lane!r}"
