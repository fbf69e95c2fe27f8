"""The scheduler of one crawl or frontier: sees to it that every batch is worked on at a node, and comes home.

A batch is sent to a node as a job, or a worker that was started there leases it from the store. The scheduler runs in
the process of the crawl, or of `sdist frontier consume`, on an asyncio loop. Its parts share one state: the dispatcher
sends batches, the autoscaler starts workers, the node monitor watches both, and the collectors end attempts.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scrapyd_dist.batches import (
    CLOSE,
    PUT_OFF_REASON,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    meaning,
)
from scrapyd_dist.errors import DistError
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.goals import in_words
from scrapyd_dist.scheduling.autoscaler import Autoscaler, room
from scrapyd_dist.scheduling.base import BatchCounters, SchedulerState
from scrapyd_dist.scheduling.batcher import Demand
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.dispatcher import Dispatcher
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.membership import Listed, Membership
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import (
    SLOTS_UNKNOWN,
    AbandonedJob,
    JobRun,
    NodeState,
    settled_pace,
)
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import (
    ALL,
    CircuitBreaker,
    ScalingPolicy,
    Workload,
    decide,
    work_in,
)

logger = logging.getLogger(__name__)

#: pause between two polls of the store, as a share of `SchedulerLimits.poll`
PAUSE = 0.25
#: the same before the first poll of workers that were told to end, as most do at once; then twice as long each time
LEAVING = 0.05
#: least seconds between two polls, and least pause as a multiple of a poll's duration, for frontiers of many slots
BREATH, REST = 0.02, 2.0
#: batches that wait for each worker where slots are shared fairly and batches are small
STOCK = 16
#: waiting batches that are kept in memory to be sent, besides two for each job that may run
SOME = 20
#: seconds between two heartbeats of this process in the store; after three missed ones it counts as lost
ANNOUNCE = 20.0
#: seconds that workers get to see that no batch is left, and again after they were told to end
LEAVE = 10.0
#: seconds in which the workers of an earlier process are polled before the only round of starts
FIRST_LOOKS = 10.0
#: counts for goals that begin anew with each process
ANEW = frozenset({"time", "dry_time", "dry_pages", "reserved"})
#: states of an attempt that is out, or whose part is being fetched
_OUT = frozenset(
    {AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED}
)


@dataclass(kw_only=True)
class Scheduler:
    """Call `recover`, `start`, then `await ended()`, `await left()`, `await stop("")`.

    A process that adds batches itself names itself as `producer`, calls `add` for what it has added, and `no_more` at
    the end.
    """

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    prepare: Callable[
        [NodeState], Awaitable[str]
    ]  #: brings the crawl's code to a node; a reason when it cannot
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)  #: of workers that lease
    placement: Placement = field(
        default_factory=lambda: Placement("round-robin")
    )  #: of batches that are sent
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes
    producer: str = ""  #: the name under which this process adds batches; empty when it does not
    own: Callable[[], Mapping[str, int]] = dict  #: pages and items of this process itself
    incomplete: bool = field(
        default=False, init=False
    )  #: a producer that still owed requests has disappeared
    enough: str = field(
        default="", init=False
    )  #: why no more requests are needed: so the workers' settings say

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = self.state
        self.breaker = CircuitBreaker(attempts=state.limits.max_attempts)
        self.collector = Collector(
            state=state, folder=self.folder, worked=self._worked, key=self.key
        )
        self._autoscaler = Autoscaler(
            state=state,
            breaker=self.breaker,
            collector=self.collector,
            others=ForeignProjects(state=state, terms=self.scaling.terms, key=self.key),
            again=self.scaling.every is not None,
        )
        self.monitor = NodeMonitor(
            state=state, jobs=self.collector, workers=self._autoscaler, prepare=self.prepare
        )
        state.pump = Dispatcher(
            state=state, collector=self.collector, placement=self.placement
        ).pump
        self.membership = Membership(state=state, monitor=self.monitor, listed=self.listed)
        self._begun = time.monotonic()
        self._asked_to_close = False  #: the workers, through the crawl's row
        self._staffed: float | None = None  #: when workers were last started
        self._announced: float | None = None  #: when the last heartbeat was stored
        #: batch and attempt of jobs that are out by the store, at the last look, and not here
        self._lost = frozenset[tuple[int, int]]()
        self._before: Counter[str] = Counter()  #: what was at home before, and does not count
        self._dry: tuple[int, float] | None = (
            None  #: the number of items when it last grew, and when that was
        )

    def _worked(self, slot: str) -> None:
        pool = self.scaling.pool_of(slot)
        self.breaker.worked(ALL if pool is None else pool)

    # how it stands

    @property
    def failed(self) -> bool:
        """True when it stopped and resuming alone does not help."""
        return self.state.fault is not None or bool(self.breaker.closed or self.breaker.unfit)

    @property
    def stop_code(self) -> int:
        """The exit code when it has stopped before the end: there is something to set right, or to go on."""
        if self.state.stopped and self.breaker.unreached and not self.state.counters.sent:
            return 2  # nothing was done because no answering node's workers reach the store
        return 1 if self.failed else 3

    def demand(self, more: float | None = None) -> Demand:
        """What the fleet could take now; `more`: requests that are still to be found, None when unknown."""
        pace, backlog = settled_pace(self.state.members), self.state.backlog
        usable = [member for member in self.state.members if member.usable]
        slots = sum(member.likely_slots for member in usable)
        if len(self.state.sent_to) == len(self.state.members):
            waiting = backlog.waiting if self.state.leases else len(self.state.waiting)
            idle = sum(member.idle_slots for member in usable) - waiting
            return Demand(slots=slots, idle=idle, pace=pace, more=more)
        workers, ahead = sum(1 for _ in self.state.workers()), 1 + self.scaling.terms.ahead
        # fair workers hold many small batches
        fair = bool(self.scaling.terms.fair)
        idle = (
            workers * STOCK - backlog.waiting
            if fair
            else workers * ahead - backlog.leased - backlog.waiting
        )
        return Demand(slots=max(slots, workers), idle=idle, pace=pace, more=more)

    # life cycle

    async def recover(self) -> None:
        """Load drained nodes from the store, and take up the counts, jobs and workers of an earlier process."""
        await self.membership.look()
        run, db = self.state.run, self.state.db
        attempts = await run(db.attempts)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        if any(miss.reason == PUT_OFF_REASON for miss in await run(db.misses)):
            for attempt in accepted:
                await self.collector.put_off(attempt.batch, attempt.report)
        self.state.counters.recall((await run(db.backlog)).slots, attempts, await run(db.misses))
        await self._begin_goals()
        by_name = {member.node.name: member for member in reversed(self.state.members)}
        for attempt in accepted:
            if member := by_name.get(attempt.node):
                member.jobs += 1
                member.items += attempt.report.get("items", 0)
        sent = [attempt for attempt in attempts if not attempt.worker]
        for attempt in sent:
            if attempt.state is AttemptState.FAILED:
                self._cancel_again(attempt)
        for attempt in sent:
            if attempt.state in _OUT:
                await self._take_up(await run(db.batch, attempt.batch), attempt)
        await self._autoscaler.recover(accepted)
        await self._announce()

    async def _take_up_lost(self) -> None:
        """Go on with what the store knows, where it has lost steps that were made: as a server that failed over.

        By then no job is out here any more, and the store says that some are: twice in a row, so that no step is under
        way between the two.
        """
        state = self.state
        if state.open or state.posts or any(member.out for member in state.sent_to):
            self._lost = frozenset()
            return
        if not state.backlog.leased:
            return
        attempts = await state.run(state.db.attempts)
        out = [one for one in attempts if one.state in _OUT and not one.worker]
        seen = frozenset((one.batch, one.number) for one in out)
        is_certain = seen == self._lost
        self._lost = seen
        if not (seen and is_certain):
            return
        logger.warning(
            "the store has lost the end of %d jobs, which was known here: they are asked again",
            len(out),
        )
        self._lost = frozenset()
        for attempt in out:
            await self._take_up(await state.run(state.db.batch, attempt.batch), attempt)

    async def _take_up(self, batch: Batch, attempt: Attempt) -> None:
        self.state.open.add(batch.number)
        member = self.state.member_at(attempt.url)
        if member is None:
            self._cancel_again(attempt)
            await self.collector.give_up(
                batch, attempt.number, f"its node {attempt.node} is not in the fleet any more"
            )
            return
        member.out[attempt.job] = JobRun(
            batch=batch,
            number=attempt.number,
            job=attempt.job,
            member=member,
            since=attempt.sent_at,
            start_by=time.time() + self.state.limits.start_timeout,
            posted=True,
            spider=spider_of_slot(batch.slot)[1],
        )

    def _cancel_again(self, attempt: Attempt) -> None:
        """Cancel this job again: the earlier process may have died before it could tell its node."""
        member = self.state.member_at(attempt.url)
        jobs = (
            member.cancel_later if member else self.membership.given_up.setdefault(attempt.url, [])
        )
        jobs.append(AbandonedJob(attempt.job))

    def start(self) -> None:
        """Start watching the nodes and the store, and give out work."""
        for member in self.state.members:
            self.monitor.begin(member)
        self.membership.follow()
        self.state.spawn(self._keep_looking())

    def add(self, batch: Batch) -> None:
        """This process has added a batch to the store."""
        if not self.state.leases:
            self.state.open.add(batch.number)
            self.state.waiting.append(batch)
            self.state.pump()
        self.state.news.set()

    def no_more(self) -> None:
        """This process has added its last batch."""
        self.state.closed = True
        self.state.spawn(self._sign_off())

    def rest(self, *, paused: bool) -> None:
        """Pause or resume giving out work; running jobs go on, workers lease nothing while the crawl's row says so."""
        self.state.paused = paused
        self.state.pump()
        self.state.news.set()

    async def ended(self) -> None:
        """Wait until no batch is left and none will be added, or it cannot go on (see `stopped`)."""
        await self.state.done.wait()
        if not self.state.stopped:
            with contextlib.suppress(DistError):
                await self._count_anew()

    async def _count_anew(self) -> None:
        """Count what the store has, where it has lost steps that were counted here, and that were made again."""
        state = self.state
        slots = (await state.run(state.db.backlog)).slots
        if state.counters.done == sum(slot.batches.get(BatchState.DONE.value, 0) for slot in slots):
            return
        anew = BatchCounters(failed=state.counters.failed, cuts=state.counters.cuts)
        anew.recall(slots, await state.run(state.db.attempts), await state.run(state.db.misses))
        state.counters = anew

    async def make_parts_whole(self) -> None:
        """Before they are merged: fetch again what is not at home any more as its worker wrote it."""
        await self.collector.fetch_again()

    async def left(self) -> None:
        """Wait until no worker runs; workers that do not end by themselves are told to."""
        for patient in (True, False):  # workers that have not begun are told at once
            told = [
                one
                for one in self.state.workers()
                if one.posted and not one.dismissed and not (patient and one.report)
            ]
            if self._awaited():
                await asyncio.gather(*(self._autoscaler.dismiss(worker) for worker in told))
            deadline, pause = time.monotonic() + LEAVE, LEAVING
            while self._awaited() and time.monotonic() < deadline:
                for member in self.state.members:
                    member.wake.set()
                await self._pause(pause)
                pause = min(2 * pause, PAUSE)
        if self._awaited():
            names = ", ".join(worker.job for worker in self.state.workers())
            logger.warning("These workers have not ended, and are left to themselves: %s", names)

    def _awaited(self) -> bool:
        """True while the end of workers is awaited."""
        return (
            self.state.limits.wait
            and self.scaling.every != 0
            and not self.state.over.is_set()
            and any(True for _ in self.state.workers())
        )

    async def stop(self, reason: str) -> None:
        """Give out nothing more, let posts in flight finish, then cancel all tasks."""
        state = self.state
        state.sending = False
        state.stopped = state.stopped or reason
        while state.posts:
            await asyncio.wait(set(state.posts))
        state.close()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    # polling

    async def _keep_looking(self) -> None:
        while not self.state.over.is_set():
            self.state.news.clear()
            began = time.monotonic()
            await self._look()
            await self._pause(least=max(BREATH, (time.monotonic() - began) * REST))

    async def _pause(self, share: float = PAUSE, least: float = BREATH) -> None:
        """Wait for a reason to poll or for this share of `SchedulerLimits.poll`, but at least this many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.state.news.wait(), self.state.limits.poll * share)
        await asyncio.sleep(least)

    async def _look(self) -> None:
        state, db = self.state, self.state.db
        await self._announce()
        ended = state.counters.done + state.counters.failed
        state.backlog = backlog = await state.run(db.backlog)
        if state.leases:
            state.counters.sent = max(state.counters.sent, ended + backlog.out)
        for job, reason in (await self.collector.look(backlog)).items():
            self._autoscaler.hangs(job, reason)
        await self._take_in()
        self._autoscaler.vacate_nodes()
        pools = work_in(backlog.slots, self.scaling)
        if vain := [pool for pool in self.breaker.unknown & pools.keys() if pools[pool].waiting]:
            for pool in vain:
                await self.collector.bury(pool, self.breaker.closed[pool])
            # dead batches must not look like open work: the crawl would be stopped, not finished
            state.backlog = await state.run(db.backlog)
            pools = work_in(state.backlog.slots, self.scaling)
        if state.closed_by and not state.done.is_set():
            await self._end_closed()
        elif state.spec.goals and not state.done.is_set():
            await self._look_at_goals()
        if not state.done.is_set() and not state.ends_early:
            self._check_end(pools)
        if state.leases and not state.done.is_set():
            await self._leave_out(self._staff(pools))

    async def _end_closed(self) -> None:
        """End a crawl that its spider has closed, when nothing is out any more; what was not made waits."""
        state = self.state
        if not self.producer:  # what waits in a frontier is for its next consumer
            state.stop_now(f"The spider has closed the crawl: {state.closed_by}.")
            return
        if not self._asked_to_close:
            await state.run(state.db.want, CLOSE)
            self._asked_to_close = True
        if state.closed and not self._is_out():
            state.done.set()

    def _is_out(self) -> bool:
        """Whether a batch is under way, or the end of a job is not known yet."""
        state = self.state
        is_ending = (
            len(state.open) > len(state.waiting) or self.collector.coming or self._autoscaler.ending
        )
        return bool(state.backlog.out or state.posts or is_ending)

    # goals

    async def _begin_goals(self) -> None:
        """What counts for this process begins anew; at a frontier, all does. A crawl's items and pages are at home."""
        if self.state.spec.goals:
            await self.state.spend()
            there = self.state.spent.counts
            told = {name: -there[name] for name in there if not self.producer or name in ANEW}
            is_out = (await self.state.run(self.state.db.backlog)).out
            if (
                self.producer and is_out
            ):  # jobs of an earlier process may make all that they have reserved
                told["requests"] = there.get("reserved", 0)
            await self.state.spend(told=told)
            if not self.producer:  # of a frontier's, those since this process began
                self._before = self._at_home()
            elif not is_out:
                await self._count_home()

    def _at_home(self) -> Counter[str]:
        return Counter(self.own()) + Counter(
            items=self.state.counters.items, pages=self.state.counters.pages
        )

    async def _count_home(self) -> None:
        """Count what is at home: what a worker has counted may be lost with it."""
        home = self._at_home()
        home.subtract(self._before)
        told = {
            name: home[name] - self.state.spent.counts.get(name, 0) for name in ("items", "pages")
        }
        await self.state.spend(told=told)

    async def _look_at_goals(self) -> None:
        """Begin nothing more once a goal is reached; end when nothing is out any more."""
        state, goals = self.state, self.state.spec.goals
        for out in [one for member in state.members for one in member.out.values()]:
            state.count_for(out)
        told = state.told.copy()
        await state.spend(told={**told, **self._clocks()})
        state.told.subtract(told)
        state.goal = state.goal or state.spent.reached(goals)
        if not state.goal or self._is_out() or not (state.closed or not self.producer):
            state.pump()  # what was reserved may be free again
            return
        await self._count_home()
        state.goal = state.spent.reached(goals)
        if state.goal:
            logger.info("The crawl has reached a goal: %s", in_words(state.goal, goals[state.goal]))
            state.done.set()

    def _clocks(self) -> dict[str, int]:
        """How much further the seconds are that goals are set for."""
        goals, counts, now = self.state.spec.goals, self.state.spent.counts, time.monotonic()
        items = counts.get("items", 0)
        if self._dry is None or self._dry[0] != items or self.state.paused:
            self._dry = (items, now)
        clocks = {"time": now - self._begun, "dry_time": now - self._dry[1]}
        return {name: int(clocks[name]) - counts.get(name, 0) for name in goals if name in clocks}

    async def _take_in(self) -> None:
        """Read the batches to be sent next: old ones, new ones, and those that a user requeued."""
        state = self.state
        if state.sent_to:
            await self._take_up_lost()
        if not any(member.usable for member in state.sent_to):
            return
        stock = SOME + 2 * (
            self.state.limits.max_jobs or sum(member.slots for member in state.sent_to)
        )
        if len(state.waiting) > stock // 2 or state.backlog.waiting <= len(state.waiting):
            return
        for slot in [
            one.slot
            for one in state.backlog.slots
            if one.waiting and not spider_of_slot(one.slot)[0]
        ]:
            # batches in memory wait in the store as well, and for a moment also batches that are being posted
            there = await state.run(state.db.peek, slot, len(state.open) + stock)
            new = [batch for batch in there if batch.number not in state.open]
            for batch in new[: max(0, stock - len(state.waiting))]:
                state.open.add(batch.number)
                state.waiting.append(batch)
        state.pump()

    async def _leave_out(self, pools: Sequence[str]) -> None:
        """Handle pools whose workers have all ended as their settings say, and are not replaced."""
        for pool in pools:
            reasons = self._autoscaler.retired[pool]
            reason = next((one for one in reasons if not meaning(one).asked_for), reasons[-1])
            if not self.producer:  # what waits in a frontier is for its next consumer
                self.state.stop_now(
                    f"The workers have ended as their settings say ({reason.upper()}); the rest waits."
                )
                return
            self.enough = reason
            await self.collector.leave_out(pool, reason)

    async def _announce(self) -> None:
        """Store a heartbeat: this process may still add batches."""
        now = time.monotonic()
        if (
            self.producer
            and not self.state.closed
            and (self._announced is None or now - self._announced > ANNOUNCE)
        ):
            self._announced = now
            await self.state.run(self.state.db.register_producer, self.producer, ANNOUNCE * 3)

    async def _sign_off(self) -> None:
        if self.producer:
            await self.state.run(self.state.db.sign_off, self.producer)
        self.state.news.set()

    def _check_end(self, pools: Mapping[str, Workload]) -> None:
        state, backlog, closed = self.state, self.state.backlog, self.breaker.closed
        left = [pool for pool, work in pools.items() if not work.over]
        busy = self.collector.coming or any(True for _ in state.workers())
        limit = self.scaling.max_time
        if limit and time.monotonic() - self._begun > limit:
            what = "Workers were kept running" if state.leases else "Jobs were started"
            state.stop_now(f"{what} for {limit:g} s, as long as was asked for.")
        elif not busy and (ALL in closed or (left and all(pool in closed for pool in left))):
            called = {pool: "The crawl" if pool == ALL else f"The slot {pool!r}" for pool in closed}
            reasons = (
                f"{called[pool]} gets no more workers: {why.rstrip('.')}."
                for pool, why in closed.items()
            )
            state.stop_now(" ".join(reasons))
        elif left or self.collector.coming or backlog.producers or backlog.standing:
            self._check_given_out()
        elif backlog.lost:
            self.incomplete, names = True, ", ".join(backlog.lost)
            state.stopped = f"Not all was found: {names}, which filled the frontier, has not been heard of any more."
            state.done.set()
        else:
            state.done.set()

    def _check_given_out(self) -> None:
        """Leave once the batches are sent, or the workers started, when their end is not awaited."""
        state, backlog = self.state, self.state.backlog
        if state.leases:
            once = self.scaling.every == 0 or (not self.state.limits.wait and state.closed)
            begun = self._staffed is not None
        else:
            once, begun = (
                not self.state.limits.wait,
                not (backlog.waiting or backlog.producers or backlog.standing),
            )
        if once and begun and not state.posts:
            state.done.set()

    def _early(self) -> int:
        """The process slots that nodes state; learned slots only take work that waits already."""
        leasing = [
            member for member in self.state.members if member.usable and not member.unreached
        ]
        return sum(member.node.slots or SLOTS_UNKNOWN for member in leasing)

    def _staff(self, pools: Mapping[str, Workload]) -> list[str]:
        """Start workers, or let some end; returns pools with batches that will get no worker."""
        state, now = self.state, time.monotonic()
        every = self.scaling.every
        again = self._staffed is None or every is None or (every and now - self._staffed >= every)
        if (
            state.paused
            or state.ends_early
            or not state.sending
            or not again
            or (every == 0 and self._unseen())
        ):
            return []
        if self._autoscaler.ending:  # why these ended, and what they had leased, is not known yet
            return []
        working = Counter(worker.pool for worker in state.workers())
        retired = self._autoscaler.retired
        decision = decide(
            pools,
            working,
            self.scaling,
            room=self._room(),
            early=self._early() if state.backlog.producers else 0,
            closed=self.breaker.closed,
            cramped=self._autoscaler.cramped(pool for pool, work in pools.items() if work.waiting),
            retired={pool: len(reasons) for pool, reasons in retired.items()},
        )
        for pool in decision.start:
            self._autoscaler.start(pool)
        for pool in decision.end:
            if self._autoscaler.make_room(pool, decision.only_for):
                break
        # a handshake does no work: the round goes on until it is known which node can work
        self._staffed = None if any(worker.introduces for worker in state.workers()) else now
        here = {*working, *decision.start}
        return [
            pool for pool in retired if pool in pools and pools[pool].waiting and pool not in here
        ]

    def _room(self) -> int:
        """Free process slots for workers, with those of jobs that are sent in the same limit."""
        free, most = sum(room(member) for member in self.state.members), self.state.limits.max_jobs
        return (
            min(free, most - sum(len(member.out) for member in self.state.members))
            if most
            else free
        )

    def _unseen(self) -> bool:
        """True while workers of an earlier process have not been polled yet: they may have ended long ago."""
        left = (
            worker for worker in self.state.workers() if not worker.at_once and worker.member.up
        )
        return time.monotonic() - self._begun < FIRST_LOOKS and any(
            worker.report is None for worker in left
        )
