"""Schedules one crawl or frontier: every batch is worked on at a node, and comes home.

A batch is sent to a node as a job, or a worker that was started there leases it from the store. The
scheduler runs in the process of the crawl, or of `sdist frontier consume`, on an asyncio loop. Its
parts share one state: the dispatcher sends batches, the supervisor starts workers, the node monitor
watches both, and the collectors end attempts.
"""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState
from scrapyd_dist.errors import DistError
from scrapyd_dist.scheduling.batcher import Demand
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.crawl_end import CrawlEnd
from scrapyd_dist.scheduling.dispatcher import Dispatcher
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.goal_watch import GoalWatch
from scrapyd_dist.scheduling.membership import Listed, Membership
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import NodeState, settled_pace
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.queue_filler import QueueFiller
from scrapyd_dist.scheduling.recovery import Recovery
from scrapyd_dist.scheduling.scaling_policy import (
    ALL,
    CircuitBreaker,
    ScalingPolicy,
    Workload,
    work_in,
)
from scrapyd_dist.scheduling.scheduler_state import BREATH, SchedulerState
from scrapyd_dist.scheduling.staffing import Staffing
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

#: pause between two polls of the store, as a share of `SchedulerLimits.poll`
PAUSE = 0.25
#: least pause as a multiple of a poll's duration, for frontiers of many slots
REST = 2.0
#: batches that wait for each worker where slots are shared fairly and batches are small
STOCK = 16
#: seconds between two heartbeats of this process in the store; it counts as lost after three
#: missed ones
ANNOUNCE = 20.0


@dataclass(kw_only=True)
class Scheduler:
    """Runs one crawl: call `recover`, `start`, then `await ended()`, `left()` and `stop("")`.

    A process that adds batches itself names itself as `producer`, calls `add` for what it has
    added, and `no_more` at the end.
    """

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    #: brings the crawl's code to a node; returns a reason when it cannot, and raises NodeError when
    #: the node does not answer
    prepare: Callable[[NodeState], Awaitable[str]]
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)  #: of workers that lease
    #: of batches that are sent
    placement: Placement = field(default_factory=lambda: Placement("round-robin"))
    key: bytes | None = None  #: key of encrypted batches
    listed: Listed | None = None  #: the nodes that are listed now; None: the fleet never changes
    producer: str = ""  #: the name under which this process adds batches; empty when it does not
    own: Callable[[], Mapping[str, int]] = dict  #: pages and items of this process itself

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = self.state
        self.breaker = CircuitBreaker(attempts=state.limits.max_attempts)
        self.collector = Collector(
            state=state,
            folder=self.folder,
            worked=self._worked,
            key=self.key,
            batch_size=self.scaling.terms.batch_size,
        )
        self._supervisor = WorkerSupervisor(
            state=state,
            breaker=self.breaker,
            collector=self.collector,
            others=ForeignProjects(state=state, terms=self.scaling.terms, key=self.key),
            again=self.scaling.every is not None,
        )
        self.monitor = NodeMonitor(
            state=state, jobs=self.collector, workers=self._supervisor, prepare=self.prepare
        )
        self._dispatcher = Dispatcher(
            state=state, collector=self.collector, placement=self.placement
        )
        self.membership = Membership(
            state=state, monitor=self.monitor, supervisor=self._supervisor, listed=self.listed
        )
        self._recovery = Recovery(state=state, collector=self.collector, membership=self.membership)
        self.goal_watch = GoalWatch(state=state, is_crawl=bool(self.producer), own=self.own)
        self.staffing = Staffing(
            state=state,
            scaling=self.scaling,
            breaker=self.breaker,
            collector=self.collector,
            supervisor=self._supervisor,
            is_crawl=bool(self.producer),
        )
        self._queue_filler = QueueFiller(state=state)
        self._end = CrawlEnd(
            state=state,
            scaling=self.scaling,
            breaker=self.breaker,
            collector=self.collector,
            supervisor=self._supervisor,
            staffing=self.staffing,
            goal_watch=self.goal_watch,
            is_crawl=bool(self.producer),
        )
        self._announced: float | None = None  #: monotonic time of the last heartbeat

    def _worked(self, slot: str) -> None:
        """Note that a worker has done a batch of this slot."""
        pool = self.scaling.pool_of(slot)
        self.breaker.worked(ALL if pool is None else pool)

    # how it stands

    @property
    def enough(self) -> str:
        """Return why no more requests are needed: so the workers' settings say."""
        return self.staffing.enough

    @property
    def incomplete(self) -> bool:
        """Return whether a producer that still owed requests has disappeared."""
        return self._end.incomplete

    @property
    def failed(self) -> bool:
        """Return whether it stopped and resuming alone does not help."""
        return self.state.status.fault is not None or bool(
            self.breaker.closed or self.breaker.unfit
        )

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
            idle -= state.backlog.waiting if state.leases else len(state.queue.waiting)
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
        await state.rules.follow()
        attempts = await state.run(state.db.attempts)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        await self._recovery.put_off_rest(accepted)
        slots = (await state.run(state.db.backlog)).slots
        state.counters.recall(slots, attempts, await state.run(state.db.misses))
        await self.goal_watch.begin()
        self._recovery.recall_accepted(accepted)
        await self._recovery.recover_jobs(attempts)
        await self._supervisor.recover(accepted)
        await self._announce()

    def start(self) -> None:
        """Start watching the nodes and the store, and give out work."""
        for member in self.state.members:
            self.monitor.begin(member)
        self.membership.follow()
        self.state.spawn(self._keep_polling())

    def add(self, batch: Batch) -> None:
        """Take note of a batch that this process has added to the store."""
        if not self.state.leases:
            self.state.queue.add(batch)
            self.state.pump()
        self.state.poll_now()

    def no_more(self) -> None:
        """Take note that this process has added its last batch."""
        self.state.status.end_intake()
        self.state.spawn(self._sign_off())

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume giving out work; running jobs go on.

        Workers lease nothing while the crawl's row says so.
        """
        self.state.status.pause(paused=paused)
        self.state.pump()
        self.state.poll_now()

    async def ended(self) -> None:
        """Wait until no batch is left and none will be added, or it has `stopped` before that."""
        await self.state.status.done.wait()
        if not self.state.stopped:
            with contextlib.suppress(DistError):
                await self._count_anew()

    async def make_parts_whole(self) -> list[Attempt]:
        """Fetch again what is not at home as its worker wrote it, before the parts are merged.

        Returns the accepted attempts whose parts are nowhere any more.
        """
        return await self.collector.fetch_again()

    async def reopen(self, lost: Sequence[Attempt]) -> list[Attempt]:
        """Let the batches of these attempts be crawled again by the next process of the crawl.

        Returns those for which that can be done without any item coming twice.
        """
        reopened = await self.collector.reopen(lost)
        if reopened:
            await self._count_anew()
        return reopened

    async def _count_anew(self) -> None:
        """Count what the store has, if steps that were counted here were lost and made again."""
        state = self.state
        slots = (await state.run(state.db.backlog)).slots
        done = 0
        for slot in slots:
            done += slot.batches.get(BatchState.DONE.value, 0)
        if state.counters.done == done:
            return
        attempts = await state.run(state.db.attempts)
        state.recount(slots, attempts, await state.run(state.db.misses))

    async def left(self) -> None:
        """Wait until no worker runs; workers that do not end by themselves are told to."""
        await self.staffing.end_workers()

    async def stop(self, reason: str) -> None:
        """Give out nothing more, let posts in flight finish, then cancel all tasks."""
        state = self.state
        state.status.stop_sending()
        state.status.note_stop(state.stopped or reason)
        await state.tasks.finish_posts()
        state.status.end()
        await state.tasks.cancel()
        if state.status.fault is None:
            # What was accepted since the last poll is done, and waits no more; and a task may have
            # been cancelled between that step and its count.
            with contextlib.suppress(DistError):
                await state.read_backlog()
                await self._count_anew()

    # polling

    async def _keep_polling(self) -> None:
        while not self.state.status.over.is_set():
            self.state.begin_poll()
            began = time.monotonic()
            await self._poll()
            least = max(BREATH, (time.monotonic() - began) * REST)
            await self.state.pause(PAUSE, least)

    async def _poll(self) -> None:
        """Read the store once, and do what follows from it."""
        state = self.state
        await self._announce()
        await state.rules.follow()
        ended = state.counters.done + state.counters.failed
        await state.read_backlog()
        if state.leases:
            state.counters.leased(ended, state.backlog.out)
        for job, reason in (await self.collector.process_backlog(state.backlog)).items():
            self._supervisor.kill_hanging_worker(job, reason)
        if state.sent_to:
            await self._recovery.take_up_lost()
        await self._queue_filler.read_waiting()
        pools = await self._bury_unknown(work_in(state.backlog.slots, self.scaling))
        await self._end.check_early()
        if not state.status.done.is_set() and not state.ends_early:
            self._end.check(pools)
        if state.leases and not state.status.done.is_set():
            await self.staffing.leave_out(self.staffing.start_workers(pools))

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
        await self.state.read_backlog()
        return work_in(self.state.backlog.slots, self.scaling)

    async def _announce(self) -> None:
        """Store a heartbeat: this process may still add batches."""
        if not self.producer or self.state.status.closed:
            return
        now = time.monotonic()
        if self._announced is None or now - self._announced > ANNOUNCE:
            self._announced = now
            await self.state.run(self.state.db.register_producer, self.producer, ANNOUNCE * 3)

    async def _sign_off(self) -> None:
        if self.producer:
            await self.state.run(self.state.db.sign_off, self.producer)
        self.state.poll_now()
