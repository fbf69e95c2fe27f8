"""Sees when a crawl or a frontier has come to its end, early or not, or cannot go on."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scrapyd_dist.batches import CLOSE
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.goal_watch import GoalWatch
from scrapyd_dist.scheduling.scaling_policy import ALL, CircuitBreaker, ScalingPolicy, Workload
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.scheduling.staffing import Staffing
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor


@dataclass(kw_only=True)
class CrawlEnd:
    """Ends a scheduler's work by what the last poll of the store has shown."""

    state: SchedulerState
    scaling: ScalingPolicy
    breaker: CircuitBreaker
    collector: Collector
    supervisor: WorkerSupervisor
    staffing: Staffing
    goal_watch: GoalWatch
    is_crawl: bool  #: it is no frontier, whose next consumer does what is left
    #: whether a producer that still owed requests has disappeared
    incomplete: bool = field(default=False, init=False)
    _begun: float = field(default_factory=time.monotonic)
    #: whether the workers were asked to close the crawl, through its row
    _asked_to_close: bool = False

    async def check_early(self) -> None:
        """End a crawl that its spider has closed, or that has reached a goal."""
        state = self.state
        if state.status.done.is_set():
            return
        if state.closed_by:
            await self._end_closed()
        elif state.spec.goals:
            await self.goal_watch.check(self._is_out)

    async def _end_closed(self) -> None:
        """End a crawl that its spider has closed, when nothing is out any more.

        What was not made waits.
        """
        state = self.state
        if not self.is_crawl:  # what waits in a frontier is for its next consumer
            state.stop_now(f"The spider has closed the crawl: {state.closed_by}.")
            return
        if not self._asked_to_close:
            await state.run(state.db.want, CLOSE)
            self._asked_to_close = True
        if state.status.closed and not self._is_out():
            state.status.finish()

    def _is_out(self) -> bool:
        """Whether a batch is under way, or the end of a job is not known yet."""
        state = self.state
        is_sent = len(state.queue.open) > len(state.queue.waiting)
        if is_sent or state.backlog.out or state.tasks.posts:
            return True
        return bool(self.collector.coming or self.supervisor.ending)

    def check(self, pools: Mapping[str, Workload]) -> None:
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
            state.status.finish()

    def _may_get_batches(self) -> bool:
        return bool(self.state.backlog.producers or self.state.backlog.standing)

    def _note_lost_producers(self) -> None:
        lost = self.state.backlog.lost
        if lost:
            self.incomplete = True
            self.state.status.note_stop(
                f"Not all was found: {', '.join(lost)}, which filled the frontier, "
                "has not been heard of any more."
            )

    def _is_time_over(self) -> bool:
        limit = self.scaling.max_time
        return bool(limit) and time.monotonic() - self._begun > limit

    def _gets_no_workers(self, left: Sequence[str]) -> bool:
        """Whether no worker is there, and no pool that has batches `left` gets one."""
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
            leaves = self.scaling.every == 0 or (leaves and state.status.closed)
            is_given_out = self.staffing.has_started
        else:
            is_given_out = not state.backlog.waiting and not self._may_get_batches()
        if leaves and is_given_out and not state.tasks.posts:
            state.status.finish()
