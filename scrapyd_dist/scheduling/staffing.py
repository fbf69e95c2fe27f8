"""Starts as many workers as a crawl can use, in rounds, and lets them end with it."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scrapyd_dist.batches import meaning
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.node_capacity import SLOTS_UNKNOWN
from scrapyd_dist.scheduling.scaling_policy import (
    CircuitBreaker,
    ScalingDecision,
    ScalingPolicy,
    Workload,
    plan_workers,
)
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

#: pause before the first poll of workers that were told to end, as most do at once, as a share of
#: `SchedulerLimits.poll`; then twice as long each time, up to `LONGEST`
LEAVING = 0.05
LONGEST = 0.25
#: seconds that workers get to see that no batch is left, and again after they were told to end
LEAVE = 10.0
#: seconds in which the workers of an earlier process are polled before the only round of starts
FIRST_LOOKS = 10.0


@dataclass(kw_only=True)
class Staffing:
    """Decides when the workers of a crawl start and end."""

    state: SchedulerState
    scaling: ScalingPolicy
    breaker: CircuitBreaker
    collector: Collector
    supervisor: WorkerSupervisor
    is_crawl: bool  #: it is no frontier, whose next consumer does what is left
    #: why no more requests are needed: so the workers' settings say
    enough: str = field(default="", init=False)
    _begun: float = field(default_factory=time.monotonic)
    _staffed: float | None = None  #: monotonic time of the last round of starts

    @property
    def has_started(self) -> bool:
        """Return whether a round of starts has been made."""
        return self._staffed is not None

    def _stated_slots(self) -> int:
        """Return the process slots that nodes state.

        Learned slots only take work that waits already.
        """
        slots = 0
        for member in self.state.members:
            if member.usable and not member.readiness.unreached:
                slots += member.node.slots or SLOTS_UNKNOWN
        return slots

    def start_workers(self, pools: Mapping[str, Workload]) -> list[str]:
        """Start workers, or let some end; return pools with batches that will get no worker."""
        now = time.monotonic()
        if not self._may_start_workers(now):
            return []
        if self.supervisor.ending:  # why these ended, and what they had leased, is not known yet
            return []
        working = Counter(worker.pool for worker in self.state.workers())
        decision = self._decide(pools, working)
        self.supervisor.start(decision.start)
        for pool in decision.end:
            if self.supervisor.make_room(pool, decision.only_for):
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
        for pool in self.supervisor.retired:
            if pool not in staffed and pool in pools and pools[pool].waiting:
                yield pool

    def _may_start_workers(self, now: float) -> bool:
        """Whether a round of starts is due now (monotonic time)."""
        state = self.state
        if not state.status.gives_out:
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
        retired = self.supervisor.retired
        return plan_workers(
            pools,
            working,
            self.scaling,
            room=self._room(),
            early=self._stated_slots() if self.state.backlog.producers else 0,
            closed=self.breaker.closed,
            cramped=self.supervisor.cramped(waiting),
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

    async def leave_out(self, pools: Sequence[str]) -> None:
        """Handle pools whose workers have all ended as their settings say, and are not replaced."""
        for pool in pools:
            reason = _main_reason(self.supervisor.retired[pool])
            if not self.is_crawl:  # what waits in a frontier is for its next consumer
                self.state.stop_now(
                    "The workers have ended as their settings say "
                    f"({reason.upper()}); the rest waits."
                )
                return
            self.enough = reason
            await self.collector.leave_out(pool, reason)

    # the end

    async def end_workers(self) -> None:
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
                ends.append(self.supervisor.dismiss(worker))
        await asyncio.gather(*ends)

    async def _wait_for_workers(self) -> None:
        """Poll the nodes until the workers have ended, for `LEAVE` seconds at most."""
        deadline = time.monotonic() + LEAVE
        pause = LEAVING
        while self._is_awaiting_workers() and time.monotonic() < deadline:
            for member in self.state.members:
                member.poll_now()
            await self.state.pause(pause)
            pause = min(2 * pause, LONGEST)

    def _is_awaiting_workers(self) -> bool:
        """Whether workers run whose end is awaited."""
        return (
            self.state.limits.wait
            and self.scaling.every != 0
            and not self.state.status.over.is_set()
            and self.state.has_workers
        )


def _main_reason(reasons: Sequence[str]) -> str:
    """Return why a pool's workers ended: the first reason not asked for, else the last."""
    for reason in reasons:
        if not meaning(reason).asked_for:
            return reason
    return reasons[-1]
