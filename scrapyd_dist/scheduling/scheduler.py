"""Schedules one crawl or frontier: every batch is worked on at a node, and comes home.

A batch is sent to a node as a job, or a worker that was started there leases it from the store. The
scheduler runs in the process of the crawl, or of `sdist frontier consume`, on an asyncio loop. Its
parts share one state: the dispatcher sends batches, the autoscaler starts workers, the node monitor
watches both, and the collectors end attempts.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
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
from scrapyd_dist.scheduling.autoscaler import Autoscaler
from scrapyd_dist.scheduling.base import BatchCounters, SchedulerState
from scrapyd_dist.scheduling.batcher import Demand
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.dispatcher import Dispatcher
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.membership import Listed, Membership
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_capacity import SLOTS_UNKNOWN
from scrapyd_dist.scheduling.node_state import (
    AbandonedJob,
    JobRun,
    NodeState,
    settled_pace,
)
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import (
    ALL,
    CircuitBreaker,
    ScalingDecision,
    ScalingPolicy,
    Workload,
    plan_workers,
    work_in,
)

logger = logging.getLogger(__name__)

#: pause between two polls of the store, as a share of `SchedulerLimits.poll`
PAUSE = 0.25
#: the same before the first poll of workers that were told to end, as most do at once; then twice
#: as long each time
LEAVING = 0.05
#: least seconds between two polls
BREATH = 0.02
#: least pause as a multiple of a poll's duration, for frontiers of many slots
REST = 2.0
#: batches that wait for each worker where slots are shared fairly and batches are small
STOCK = 16
#: waiting batches that are kept in memory to be sent, besides two for each job that may run
SOME = 20
#: seconds between two heartbeats of this process in the store; it counts as lost after three
#: missed ones
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
    """Runs one crawl: call `recover`, `start`, then `await ended()`, `left()` and `stop("")`.

    A process that adds batches itself names itself as `producer`, calls `add` for what it has
    added, and `no_more` at the end.
    """

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    #: brings the crawl's code to a node; returns a reason when it cannot
    prepare: Callable[[NodeState], Awaitable[str]]
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)  #: of workers that lease
    #: of batches that are sent
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes
    producer: str = ""  #: the name under which this process adds batches; empty when it does not
    own: Callable[[], Mapping[str, int]] = dict  #: pages and items of this process itself
    #: whether a producer that still owed requests has disappeared
    incomplete: bool = field(default=False, init=False)
    #: why no more requests are needed: so the workers' settings say
    enough: str = field(default="", init=False)

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
        #: whether the workers were asked to close the crawl, through its row
        self._asked_to_close = False
        self._staffed: float | None = None  #: monotonic time of the last round of starts
        self._announced: float | None = None  #: monotonic time of the last heartbeat
        #: batch and attempt of jobs that are out by the store, at the last poll, and not here
        self._lost = frozenset[tuple[int, int]]()
        self._before: Counter[str] = Counter()  #: what was at home before, and does not count
        #: the number of items when it last grew, and the monotonic time of that
        self._dry: tuple[int, float] | None = None

    def _worked(self, slot: str) -> None:
        """Note that a worker has done a batch of this slot."""
        pool = self.scaling.pool_of(slot)
        self.breaker.worked(ALL if pool is None else pool)

    # how it stands

    @property
    def failed(self) -> bool:
        """Return whether it stopped and resuming alone does not help."""
        return self.state.fault is not None or bool(self.breaker.closed or self.breaker.unfit)

    @property
    def stop_code(self) -> int:
        """Return the exit code when it has stopped before the end.

        1 and 2 mean that something has to be set right, 3 that the crawl can go on.
        """
        if self.state.stopped and self.breaker.unreached and not self.state.counters.sent:
            return 2  # nothing was done because no answering node's workers reach the store
        return 1 if self.failed else 3

    def demand(self, more: float | None = None) -> Demand:
        """Return what the fleet could take now.

        `more` are the requests that are still to be found, None when unknown.
        """
        state = self.state
        slots = 0
        idle = 0
        for member in state.members:
            if member.usable:
                slots += member.capacity.likely_slots
                idle += member.idle_slots
        if len(state.sent_to) == len(state.members):
            idle -= state.backlog.waiting if state.leases else len(state.waiting)
        else:
            workers = len(list(state.workers()))
            slots = max(slots, workers)
            idle = self._worker_demand(workers)
        return Demand(slots=slots, idle=idle, pace=settled_pace(state.members), more=more)

    def _worker_demand(self, workers: int) -> int:
        """Return how many more batches these workers could lease; negative when too many wait."""
        backlog = self.state.backlog
        if self.scaling.terms.fair:  # fair workers hold many small batches
            return workers * STOCK - backlog.waiting
        ahead = 1 + self.scaling.terms.ahead
        return workers * ahead - backlog.leased - backlog.waiting

    # life cycle

    async def recover(self) -> None:
        """Load drained nodes, and take up the counts, jobs and workers of an earlier process.

        All of these are in the store.
        """
        await self.membership.read_lists()
        state = self.state
        attempts = await state.run(state.db.attempts)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        await self._put_off_rest(accepted)
        slots = (await state.run(state.db.backlog)).slots
        state.counters.recall(slots, attempts, await state.run(state.db.misses))
        await self._begin_goals()
        self._recall_accepted(accepted)
        await self._recover_jobs(attempts)
        await self._autoscaler.recover(accepted)
        await self._announce()

    async def _put_off_rest(self, accepted: Sequence[Attempt]) -> None:
        """Put off what the accepted attempts have left, if an earlier process died over that."""
        misses = await self.state.run(self.state.db.misses)
        if any(miss.reason == PUT_OFF_REASON for miss in misses):
            for attempt in accepted:
                await self.collector.put_off(attempt.batch, attempt.report)

    def _recall_accepted(self, accepted: Sequence[Attempt]) -> None:
        """Count the accepted attempts at their nodes."""
        members: dict[str, NodeState] = {}
        for member in self.state.members:
            members.setdefault(member.node.name, member)
        for attempt in accepted:
            if attempt.node in members:
                member = members[attempt.node]
                member.recall_accepted(attempt.report.get("items", 0))

    async def _recover_jobs(self, attempts: Sequence[Attempt]) -> None:
        """Cancel the jobs of failed attempts again, and take up those that are out."""
        for attempt in attempts:
            if attempt.state is AttemptState.FAILED and not attempt.worker:
                self._cancel_again(attempt)
        for attempt in attempts:
            if _is_sent_and_out(attempt):
                await self._take_up(attempt)

    async def _take_up_lost(self) -> None:
        """Go on with what the store knows, where it has lost steps: as a server that failed over.

        By then no job is out here any more, and the store says that some are: twice in a row, so
        that no step is under way between the two.
        """
        state = self.state
        if self._has_jobs():
            self._lost = frozenset()
            return
        if not state.backlog.leased:
            return
        attempts = await state.run(state.db.attempts)
        out = [attempt for attempt in attempts if _is_sent_and_out(attempt)]
        seen = frozenset((attempt.batch, attempt.number) for attempt in out)
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
            await self._take_up(attempt)

    def _has_jobs(self) -> bool:
        """Whether a batch is sent, or about to be."""
        if self.state.open or self.state.posts:
            return True
        return any(member.out for member in self.state.sent_to)

    async def _take_up(self, attempt: Attempt) -> None:
        """Watch a job that is out, or give it up if its node has gone."""
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        self.state.open.add(batch.number)
        member = self.state.member_at(attempt.url)
        if member is None:
            self._cancel_again(attempt)
            reason = f"its node {attempt.node} is not in the fleet any more"
            await self.collector.give_up(batch, attempt.number, reason)
            return
        out = JobRun(
            batch=batch,
            number=attempt.number,
            job=attempt.job,
            member=member,
            since=attempt.sent_at,
            start_by=time.time() + self.state.limits.start_timeout,
            posted=True,
            spider=spider_of_slot(batch.slot)[1],
        )
        member.add(out)

    def _cancel_again(self, attempt: Attempt) -> None:
        """Cancel this job again: the earlier process may have died before it told its node."""
        member = self.state.member_at(attempt.url)
        if member is not None:
            member.cancel_when_up(AbandonedJob(attempt.job))
        else:
            self.membership.cancel_on_return(attempt.url, AbandonedJob(attempt.job))

    def start(self) -> None:
        """Start watching the nodes and the store, and give out work."""
        for member in self.state.members:
            self.monitor.begin(member)
        self.membership.follow()
        self.state.spawn(self._keep_polling())

    def add(self, batch: Batch) -> None:
        """Take note of a batch that this process has added to the store."""
        if not self.state.leases:
            self.state.open.add(batch.number)
            self.state.waiting.append(batch)
            self.state.pump()
        self.state.news.set()

    def no_more(self) -> None:
        """Take note that this process has added its last batch."""
        self.state.closed = True
        self.state.spawn(self._sign_off())

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume giving out work; running jobs go on.

        Workers lease nothing while the crawl's row says so.
        """
        self.state.paused = paused
        self.state.pump()
        self.state.news.set()

    async def ended(self) -> None:
        """Wait until no batch is left and none will be added, or it has `stopped` before that."""
        await self.state.done.wait()
        if not self.state.stopped:
            with contextlib.suppress(DistError):
                await self._count_anew()

    async def _count_anew(self) -> None:
        """Count what the store has, if steps that were counted here were lost and made again."""
        state = self.state
        slots = (await state.run(state.db.backlog)).slots
        done = 0
        for slot in slots:
            done += slot.batches.get(BatchState.DONE.value, 0)
        if state.counters.done == done:
            return
        anew = BatchCounters(failed=state.counters.failed, cuts=state.counters.cuts)
        anew.recall(slots, await state.run(state.db.attempts), await state.run(state.db.misses))
        state.counters = anew

    async def make_parts_whole(self) -> None:
        """Fetch again what is not at home as its worker wrote it, before the parts are merged."""
        await self.collector.fetch_again()

    async def left(self) -> None:
        """Wait until no worker runs; workers that do not end by themselves are told to."""
        for patient in (True, False):
            await self._dismiss_workers(patient=patient)
            await self._wait_for_workers()
        if self._is_awaiting_workers():
            names = ", ".join(worker.job for worker in self.state.workers())
            logger.warning("These workers have not ended, and are left to themselves: %s", names)

    async def _dismiss_workers(self, *, patient: bool) -> None:
        """Tell the workers to end; `patient`: only those that have not begun."""
        if not self._is_awaiting_workers():
            return
        ends: list[Awaitable[None]] = []
        for worker in self.state.workers():
            may_end_alone = patient and worker.report
            if worker.posted and not worker.dismissed and not may_end_alone:
                ends.append(self._autoscaler.dismiss(worker))
        await asyncio.gather(*ends)

    async def _wait_for_workers(self) -> None:
        """Poll the nodes until the workers have ended, for `LEAVE` seconds at most."""
        deadline = time.monotonic() + LEAVE
        pause = LEAVING
        while self._is_awaiting_workers() and time.monotonic() < deadline:
            for member in self.state.members:
                member.poll_now()
            await self._pause(pause)
            pause = min(2 * pause, PAUSE)

    def _is_awaiting_workers(self) -> bool:
        """Whether workers run whose end is awaited."""
        return (
            self.state.limits.wait
            and self.scaling.every != 0
            and not self.state.over.is_set()
            and self.state.has_workers
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
        if state.fault is None:
            # What was accepted since the last poll is done, and waits no more.
            with contextlib.suppress(DistError):
                state.backlog = await state.run(state.db.backlog)

    # polling

    async def _keep_polling(self) -> None:
        while not self.state.over.is_set():
            self.state.news.clear()
            began = time.monotonic()
            await self._poll()
            await self._pause(least=max(BREATH, (time.monotonic() - began) * REST))

    async def _pause(self, share: float = PAUSE, least: float = BREATH) -> None:
        """Wait for a reason to poll, or for this share of `SchedulerLimits.poll`.

        The pause lasts at least `least` seconds.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.state.news.wait(), self.state.limits.poll * share)
        await asyncio.sleep(least)

    async def _poll(self) -> None:
        """Read the store once, and do what follows from it."""
        state = self.state
        await self._announce()
        ended = state.counters.done + state.counters.failed
        state.backlog = await state.run(state.db.backlog)
        if state.leases:
            state.counters.sent = max(state.counters.sent, ended + state.backlog.out)
        for job, reason in (await self.collector.process_backlog(state.backlog)).items():
            self._autoscaler.hangs(job, reason)
        await self._read_waiting()
        self._autoscaler.vacate_nodes()
        pools = await self._bury_unknown(work_in(state.backlog.slots, self.scaling))
        await self._check_early_end()
        if not state.done.is_set() and not state.ends_early:
            self._check_end(pools)
        if state.leases and not state.done.is_set():
            await self._leave_out(self._staff(pools))

    async def _bury_unknown(self, pools: dict[str, Workload]) -> dict[str, Workload]:
        """Give up what waits for spiders that no node has; return the work that is left."""
        buried = False
        for pool in self.breaker.unknown & pools.keys():
            if pools[pool].waiting:
                await self.collector.bury(pool, self.breaker.closed[pool])
                buried = True
        if not buried:
            return pools
        # dead batches must not look like open work: the crawl would be stopped, not finished
        self.state.backlog = await self.state.run(self.state.db.backlog)
        return work_in(self.state.backlog.slots, self.scaling)

    async def _check_early_end(self) -> None:
        """End a crawl that its spider has closed, or that has reached a goal."""
        state = self.state
        if state.done.is_set():
            return
        if state.closed_by:
            await self._end_closed()
        elif state.spec.goals:
            await self._check_goals()

    async def _end_closed(self) -> None:
        """End a crawl that its spider has closed, when nothing is out any more.

        What was not made waits.
        """
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
        if state.backlog.out or state.posts or len(state.open) > len(state.waiting):
            return True
        return bool(self.collector.coming or self._autoscaler.ending)

    # goals

    async def _begin_goals(self) -> None:
        """Begin anew what counts for this process; at a frontier, that is all.

        The items and pages of a crawl are at home.
        """
        state = self.state
        if not state.spec.goals:
            return
        await state.spend()
        counts = state.spent.counts
        is_crawl = bool(self.producer)
        changes = {}
        for name, count in counts.items():
            if not is_crawl or name in ANEW:
                changes[name] = -count
        is_out = (await state.run(state.db.backlog)).out
        if is_crawl and is_out:
            # jobs of an earlier process may make all that they have reserved
            changes["requests"] = counts.get("reserved", 0)
        await state.spend(done=changes)
        if not is_crawl:  # of a frontier's, those since this process began
            self._before = self._at_home()
        elif not is_out:
            await self._count_home()

    def _at_home(self) -> Counter[str]:
        """Return the items and pages that are at home, with those of this process itself."""
        counters = self.state.counters
        return Counter(self.own()) + Counter(items=counters.items, pages=counters.pages)

    async def _count_home(self) -> None:
        """Count what is at home: what a worker has counted may be lost with it."""
        home = self._at_home()
        home.subtract(self._before)
        changes = {}
        for name in ("items", "pages"):
            changes[name] = home[name] - self.state.spent.counts.get(name, 0)
        await self.state.spend(done=changes)

    async def _check_goals(self) -> None:
        """Begin nothing more once a goal is reached; end when nothing is out any more."""
        state = self.state
        goals = state.spec.goals
        for member in state.members:
            for out in member.out.values():
                state.count_for(out)
        changes = state.uncounted.copy()
        await state.spend(done={**changes, **self._clocks()})
        state.uncounted.subtract(changes)
        state.goal = state.goal or state.spent.reached(goals)
        may_get_more = bool(self.producer) and not state.closed
        if not state.goal or self._is_out() or may_get_more:
            state.pump()  # what was reserved may be free again
            return
        await self._count_home()
        state.goal = state.spent.reached(goals)
        if state.goal:
            logger.info("The crawl has reached a goal: %s", in_words(state.goal, goals[state.goal]))
            state.done.set()

    def _clocks(self) -> dict[str, int]:
        """Return how many seconds the clocks have run, for those that goals are set for.

        They are counted from what was last stored.
        """
        counts = self.state.spent.counts
        now = time.monotonic()
        items = counts.get("items", 0)
        if self._dry is None or self._dry[0] != items or self.state.paused:
            self._dry = (items, now)
        clocks = {"time": now - self._begun, "dry_time": now - self._dry[1]}
        gone = {}
        for name in self.state.spec.goals:
            if name in clocks:
                gone[name] = int(clocks[name]) - counts.get(name, 0)
        return gone

    async def _read_waiting(self) -> None:
        """Read the batches to be sent next: old ones, new ones, and those that a user requeued."""
        state = self.state
        if state.sent_to:
            await self._take_up_lost()
        if not any(member.usable for member in state.sent_to):
            return
        stock = self._stock()
        if len(state.waiting) > stock // 2 or state.backlog.waiting <= len(state.waiting):
            return
        for count in state.backlog.slots:
            is_of_this_spider = not spider_of_slot(count.slot)[0]
            if count.waiting and is_of_this_spider:
                await self._read_slot(count.slot, stock)
        state.pump()

    def _stock(self) -> int:
        """Return how many waiting batches are to be in memory, at most."""
        jobs = self.state.limits.max_jobs
        if not jobs:
            for member in self.state.sent_to:
                jobs += member.capacity.slots
        return SOME + 2 * jobs

    async def _read_slot(self, slot: str, stock: int) -> None:
        """Read waiting batches of a slot, as long as there are fewer than `stock` here."""
        state = self.state
        # batches in memory wait in the store as well, and for a moment also batches that are being
        # posted
        first = await state.run(state.db.peek, slot, len(state.open) + stock)
        for batch in first:
            if len(state.waiting) >= stock:
                return
            if batch.number not in state.open:
                state.open.add(batch.number)
                state.waiting.append(batch)

    async def _leave_out(self, pools: Sequence[str]) -> None:
        """Handle pools whose workers have all ended as their settings say, and are not replaced."""
        for pool in pools:
            reason = _main_reason(self._autoscaler.retired[pool])
            if not self.producer:  # what waits in a frontier is for its next consumer
                self.state.stop_now(
                    "The workers have ended as their settings say "
                    f"({reason.upper()}); the rest waits."
                )
                return
            self.enough = reason
            await self.collector.leave_out(pool, reason)

    async def _announce(self) -> None:
        """Store a heartbeat: this process may still add batches."""
        if not self.producer or self.state.closed:
            return
        now = time.monotonic()
        if self._announced is None or now - self._announced > ANNOUNCE:
            self._announced = now
            await self.state.run(self.state.db.register_producer, self.producer, ANNOUNCE * 3)

    async def _sign_off(self) -> None:
        if self.producer:
            await self.state.run(self.state.db.sign_off, self.producer)
        self.state.news.set()

    def _check_end(self, pools: Mapping[str, Workload]) -> None:
        """End when no batch is left and none will be added, and stop when nothing can go on."""
        state = self.state
        left = [pool for pool, work in pools.items() if not work.over]
        if self._is_time_over():
            what = "Workers were kept running" if state.leases else "Jobs were started"
            limit = self.scaling.max_time
            state.stop_now(f"{what} for {limit:g} s, as long as was asked for.")
        elif self._gets_no_workers(left):
            state.stop_now(self._why_closed())
        elif left or self.collector.coming or self._may_get_batches():
            self._check_given_out()
        else:
            self._note_lost_producers()
            state.done.set()

    def _may_get_batches(self) -> bool:
        return bool(self.state.backlog.producers or self.state.backlog.standing)

    def _note_lost_producers(self) -> None:
        lost = self.state.backlog.lost
        if lost:
            self.incomplete = True
            self.state.stopped = (
                f"Not all was found: {', '.join(lost)}, which filled the frontier, "
                "has not been heard of any more."
            )

    def _is_time_over(self) -> bool:
        limit = self.scaling.max_time
        return bool(limit) and time.monotonic() - self._begun > limit

    def _gets_no_workers(self, left: Sequence[str]) -> bool:
        """Whether nobody works, and none of the pools that have batches `left` gets a worker."""
        if self.collector.coming or self.state.has_workers:
            return False
        closed = self.breaker.closed.keys()
        return ALL in closed or (bool(left) and closed >= set(left))

    def _why_closed(self) -> str:
        """Return a sentence for each pool that gets no more workers."""
        sentences = []
        for pool, why in self.breaker.closed.items():
            name = "The crawl" if pool == ALL else f"The slot {pool!r}"
            sentences.append(f"{name} gets no more workers: {why.rstrip('.')}.")
        return " ".join(sentences)

    def _check_given_out(self) -> None:
        """End once the batches are sent, or the workers started, if their end is not awaited."""
        state = self.state
        leaves = not state.limits.wait
        if state.leases:
            leaves = self.scaling.every == 0 or (leaves and state.closed)
            is_given_out = self._staffed is not None
        else:
            is_given_out = not state.backlog.waiting and not self._may_get_batches()
        if leaves and is_given_out and not state.posts:
            state.done.set()

    def _stated_slots(self) -> int:
        """Return the process slots that nodes state.

        Learned slots only take work that waits already.
        """
        slots = 0
        for member in self.state.members:
            if member.usable and not member.readiness.unreached:
                slots += member.node.slots or SLOTS_UNKNOWN
        return slots

    def _staff(self, pools: Mapping[str, Workload]) -> list[str]:
        """Start workers, or let some end; return pools with batches that will get no worker."""
        now = time.monotonic()
        if not self._may_start_workers(now):
            return []
        if self._autoscaler.ending:  # why these ended, and what they had leased, is not known yet
            return []
        working = Counter(worker.pool for worker in self.state.workers())
        decision = self._decide(pools, working)
        for pool in decision.start:
            self._autoscaler.start(pool)
        for pool in decision.end:
            if self._autoscaler.make_room(pool, decision.only_for):
                break
        # a handshake does no work: the round goes on until it is known which node can work
        is_round_open = any(worker.introduces for worker in self.state.workers())
        self._staffed = None if is_round_open else now
        staffed = {*working, *decision.start}
        return list(self._retired_with_work(pools, staffed))

    def _retired_with_work(
        self, pools: Mapping[str, Workload], staffed: Collection[str]
    ) -> Iterator[str]:
        """Generate the pools with batches whose workers have ended and that are not staffed."""
        for pool in self._autoscaler.retired:
            if pool not in staffed and pool in pools and pools[pool].waiting:
                yield pool

    def _may_start_workers(self, now: float) -> bool:
        """Whether a round of starts is due now (monotonic time)."""
        state = self.state
        if state.paused or state.ends_early or not state.sending:
            return False
        every = self.scaling.every
        if every == 0 and self._has_unseen_workers():
            return False
        if self._staffed is None or every is None:
            return True
        return every != 0 and now - self._staffed >= every

    def _decide(self, pools: Mapping[str, Workload], working: Mapping[str, int]) -> ScalingDecision:
        """Decide which pools get workers, where `working` are the workers of each pool now."""
        waiting = [pool for pool, work in pools.items() if work.waiting]
        retired = self._autoscaler.retired
        return plan_workers(
            pools,
            working,
            self.scaling,
            room=self._room(),
            early=self._stated_slots() if self.state.backlog.producers else 0,
            closed=self.breaker.closed,
            cramped=self._autoscaler.cramped(waiting),
            retired={pool: len(reasons) for pool, reasons in retired.items()},
        )

    def _room(self) -> int:
        """Return the free process slots for workers, in the limit shared with sent jobs."""
        free = sum(member.worker_room() for member in self.state.members)
        most = self.state.limits.max_jobs
        if not most:
            return free
        return min(free, most - self.state.jobs_out)

    def _has_unseen_workers(self) -> bool:
        """Whether workers of an earlier process have not been polled yet.

        They may have ended long ago.
        """
        if time.monotonic() - self._begun >= FIRST_LOOKS:
            return False
        for worker in self.state.workers():
            if not worker.at_once and worker.member.up and worker.report is None:
                return True
        return False


def _is_sent_and_out(attempt: Attempt) -> bool:
    """Whether this is the attempt of a job that was sent, and that has not ended by the store."""
    return attempt.state in _OUT and not attempt.worker


def _main_reason(reasons: Sequence[str]) -> str:
    """Return why a pool's workers ended: the first reason not asked for, else the last."""
    for reason in reasons:
        if not meaning(reason).asked_for:
            return reason
    return reasons[-1]
