"""Starts workers on the nodes, and handles their ends.

Invariants: a worker is stored before it is posted, and is posted once; what it had leased goes back
into the frontier before another worker takes its place.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from scrapyd_dist.batches import (
    Attempt,
    FinishReason,
    WorkerEntry,
    meaning,
    worker_id,
)
from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.joblogs.worker_report import WorkerReport, counts_of
from scrapyd_dist.scheduling.attempt_failure import FailureKind
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.dispatcher import note_refusal
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.job_request import call_for_worker
from scrapyd_dist.scheduling.node_capacity import jobs_per_slot
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.scaling_policy import CircuitBreaker
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.scrapyd import api

logger = logging.getLogger(__name__)
#: how full a node with room is for workers, its place among all nodes, and the node itself
_Seat = tuple[float, int, NodeState]


@dataclass(kw_only=True)
class WorkerSupervisor:
    """Starts workers where `Staffing` wants them, and handles how they end.

    The node monitor says how.
    """

    state: SchedulerState
    breaker: CircuitBreaker
    collector: Collector
    others: ForeignProjects
    #: workers start in rounds: one that ended as its settings say starts again in the next round
    again: bool = False
    last: int = field(default=0, init=False)  #: the highest number that a worker was given
    ending: int = field(default=0, init=False)  #: workers that have ended and are not judged yet
    #: pool -> why its workers ended
    retired: dict[str, list[str]] = field(default_factory=dict, init=False)

    def start(self, pools: Iterable[str]) -> None:
        """Start a worker for each of these pools, in turn, as long as a node has room.

        It is the node with the most room per process slot.
        """
        heap: list[_Seat] = []
        for place, member in enumerate(self.state.members):
            if member.worker_room():
                heap.append((_fill(member), place, member))
        heapify(heap)
        for pool in pools:
            seat = self._pop_seat(heap, pool)
            if seat is None:
                continue
            _, place, member = seat
            self._start(pool, member)
            if member.worker_room():
                heappush(heap, (_fill(member), place, member))

    def _pop_seat(self, heap: list[_Seat], pool: str) -> _Seat | None:
        """Remove the first node from the heap that can do batches of this pool, and return it."""
        project, _ = spider_of_slot(pool)
        passed_over = []
        found = None
        while heap and found is None:
            seat = heappop(heap)
            if self.others.fits(seat[2], pool, project):
                found = seat
            else:
                passed_over.append(seat)
        for seat in passed_over:
            heappush(heap, seat)
        return found

    def _start(self, pool: str, member: NodeState) -> None:
        """Start a worker for this pool on this node."""
        project, spider = spider_of_slot(pool)
        self.last += 1
        entry = WorkerEntry(
            number=self.last,
            job=worker_id(self.state.spec.home, self.last),
            url=member.node.url,
            pool=pool,
            since=time.time(),
            project=project,
            spider=spider,
            introduces=self.others.is_new(member, pool, project),
        )
        start_by = entry.since + self.state.limits.start_timeout
        worker = WorkerRun.of_entry(entry, member, start_by=start_by, at_once=True)
        self.state.send_out(worker, self._post(worker))

    def _with_room(self, pool: str, project: str) -> list[NodeState]:
        """Return the nodes that may get one more worker for this pool."""
        fits = self.others.fits
        with_room = [member for member in self.state.members if member.worker_room()]
        return [member for member in with_room if fits(member, pool, project)]

    def cramped(self, pools: Iterable[str]) -> set[str]:
        """Return the pools of other projects that no free node can serve.

        Those that no node can serve at all are closed.
        """
        found = set()
        for pool in pools:
            project, _ = spider_of_slot(pool)
            lacking = self.others.why_nowhere(pool, self.state.members) if project else ""
            if lacking and pool not in self.breaker.closed:
                logger.error("slot %s: %s; what is in it is given up", pool, lacking)
                self.breaker.nowhere(pool, lacking)
                self.state.poll_now()
            if project and not self._with_room(pool, project):
                found.add(pool)
        return found

    async def recover(self, accepted: Sequence[Attempt]) -> None:
        """Take up the workers of an earlier process.

        `accepted` are attempts that were accepted there.
        """
        entries, self.last = await self.state.run(self.state.db.workers)
        recalled = {entry.job: Counter[str]() for entry in entries}
        for attempt in accepted:
            if attempt.worker in recalled:
                recalled[attempt.worker].update(counts_of(attempt.report))
        for entry in entries:
            member = self.state.member_at(entry.url)
            if member is None:
                reason = "its node is not in the fleet any more"
                await self.collector.worker_gone(entry.job, reason, FailureKind.HARMLESS)
                await self._unlist(entry.job)
                continue
            start_by = entry.since + self.state.limits.start_timeout
            worker = WorkerRun.of_entry(
                entry, member, start_by=start_by, posted=True, recalled=recalled[entry.job]
            )
            member.add(worker)
            if not self.state.leases or self._has_other_code(entry):
                # the crawl goes on without it, and it would lease more
                await self.dismiss(worker)

    def _has_other_code(self, entry: WorkerEntry) -> bool:
        """Whether a worker runs another version of the crawl's own project."""
        return not entry.project and entry.version not in {"", self.state.spec.version}

    def make_room(self, pool: str, for_: Collection[str] = ()) -> bool:
        """Let one worker of this pool end in order, for a pool that has batches and no worker.

        `for_`: the pools that wait, if they have room on some nodes only. Returns whether one is
        ending, or will.
        """
        here = [
            worker
            for worker in self.state.workers()
            if worker.pool == pool and self._is_of_use(worker.member, for_)
        ]
        # one at a time
        if here and all(worker.posted and not worker.dismissed for worker in here):
            self._begin_dismissal(here[0])
        return bool(here)

    def _is_of_use(self, member: NodeState, pools: Collection[str]) -> bool:
        """Whether a node could do batches of one of these pools; without pools, any could."""
        return not pools or any(self.others.may_have(member, pool) for pool in pools)

    def vacate_nodes(self) -> None:
        """Let the workers end whose node is drained, left the list, or is unfit.

        They would lease to the end otherwise.
        """
        for worker in self.state.workers():
            may_stay = worker.dismissed or not worker.posted or not worker.member.up
            if worker.member.is_vacated and not may_stay:
                self._begin_dismissal(worker)

    def _begin_dismissal(self, worker: WorkerRun) -> None:
        """Dismiss a worker in a task of its own."""
        worker.mark_dismissed()  # at once: several tasks look for workers to dismiss
        self.state.spawn(self.dismiss(worker))

    async def dismiss(self, worker: WorkerRun) -> None:
        """Make a worker end: it finishes the pages under way, and the rest goes to others.

        Its end is as any other. Where its node cannot be asked, it is told later.
        """
        worker.mark_dismissed()
        try:
            state = await self.state.client.signal(worker.member, worker.given_up)
            if state is api.JobState.PENDING:
                worker.member.drop(worker)
                await self._unlist(worker.job)
        except NodeError as error:
            self.state.lost_touch(worker.member, error)
            may_have_heard = error.maybe_accepted
            leased = await self._leased_by(worker) if may_have_heard else frozenset()
            worker.dismiss_again(leased, may_have_heard=may_have_heard)
            return
        worker.member.poll_now()

    async def repeat_dismissals(self, member: NodeState) -> None:
        """Tell the workers on this node once more to end that have not heard it.

        A second signal would end a worker amid its pages that has heard the first. So one that may
        have heard it is told again when it leases on, or is idle and does not close.
        """
        for worker in list(member.out.values()):
            if not isinstance(worker, WorkerRun) or worker.unheard_with is None:
                continue
            leased = await self._leased_by(worker)
            if worker.goes_on(leased):
                await self.dismiss(worker)

    async def _leased_by(self, worker: WorkerRun) -> frozenset[tuple[int, int]]:
        """Return batch and attempt of what a worker has leased and not acked."""
        leased = await self.collector.leased_by(worker.job)
        return frozenset((attempt.batch, attempt.number) for attempt in leased)

    # posting

    async def _post(self, worker: WorkerRun) -> None:
        """List a worker in the store, and start it on its node."""
        state = self.state
        node = worker.member.node
        assert state.reach  # noqa: S101 - workers are started only where they lease
        loop = asyncio.get_running_loop()
        way = await loop.run_in_executor(None, state.reach, node)  # it may look up a name
        if way.reason:
            worker.member.drop(worker)
            self._out_of_reach(worker.member, way.reason)
            return
        try:
            if worker.project:
                call = await self.others.call(worker, way)
            else:
                store = state.rules.joined_to(way.job_settings)
                call = call_for_worker(state.spec, worker, self.others.terms, store)
        except NodeError as error:
            await self._refused(worker, error)
            return
        if not worker.version:
            worker.pin_version(state.spec.version or "")
        await state.run(state.db.add_workers, [worker.entry], last=worker.entry.number)
        try:
            await state.sender.send(node, call, timeout=state.limits.request_timeout)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(worker, error)
                return
            logger.warning(
                "%s: it is not known whether worker %s was accepted (%s)", node, worker.job, error
            )
        worker.answer_post()

    async def _refused(self, worker: WorkerRun, error: NodeError) -> None:
        """Judge a node that has certainly not accepted a worker."""
        worker.member.drop(worker)
        await self._unlist(worker.job)
        if isinstance(error, ApiRefused) and worker.project:
            self.others.refused(worker, error)
        elif isinstance(error, ApiRefused) and worker.spider:
            if self.breaker.refused(worker.pool, str(error)):
                logger.error("slot %s: %s; what is in it is given up", worker.pool, error)
            else:
                # the node may have lost the code; once that was deployed again, there is no such
                # spider
                worker.member.readiness.code_lost()
        else:
            note_refusal(self.state, worker.member, error)
        # a failing node waits for its next poll, or it would be asked without a pause
        if worker.member.up:
            worker.member.poll_now()
        self.state.check_unfit()
        self.state.poll_now()

    async def _unlist(self, job: str) -> None:
        await self.state.run(self.state.db.remove_worker, job)

    # ends

    def accept_end(self, out: JobRun, report: WorkerReport) -> None:
        """Take the final report of a worker, and judge its end."""
        assert isinstance(out, WorkerRun)  # noqa: S101 - only workers run in a pool
        out.accept_last_report(report)
        self.state.note_uncollected(report)
        self.state.close_crawl(report.closed_by)
        out.member.drop(out)
        self.ending += 1
        # one in its place would end there as well
        if meaning(report.finish_reason).by_settings and not self.again:
            self.retired.setdefault(out.pool, []).append(report.finish_reason)
            out.member.capacity.retire_slot()
        is_wanted = out.dismissed or out.member.is_vacated or self.state.status.over.is_set()
        was_signalled = report.finish_reason == FinishReason.SHUTDOWN.value and not is_wanted
        # one of its pages may have sent the signal
        kind = FailureKind.of_worker(to_blame=report.blames_batch or was_signalled)
        self.state.spawn(self._ended(out, _why(report), kind))

    async def give_up_job(
        self, out: JobRun, reason: str, kind: FailureKind = FailureKind.COUNTED
    ) -> None:
        """Give up a worker that died, never started, or whose node is lost.

        It may still run, and is cancelled.
        """
        assert isinstance(out, WorkerRun)  # noqa: S101 - only workers run in a pool
        self.ending += 1
        await self.state.abandon(out)
        await self._ended(out, reason, kind)

    async def put_back_late_leases(self, job: str) -> None:
        """Put back what a worker has leased since it was given up.

        That is long before these leases expire.
        """
        reason = "its worker was given up while its node was away"
        await self.collector.worker_gone(job, reason, FailureKind.HARMLESS)

    def kill_hanging_worker(self, job: str, reason: str) -> None:
        """End a worker whose lease expired while its node answers.

        Its event loop stands still, whatever its report says.
        """
        for worker in self.state.workers():
            if worker.job == job and worker.posted:
                self.state.spawn(self._end_hanging(worker, reason))
                return

    async def _end_hanging(self, worker: WorkerRun, reason: str) -> None:
        await self.give_up_job(worker, reason, FailureKind.SUSPECT)
        if worker.member.up:  # it ignores SIGINT
            with suppress(NodeError):
                await self.state.client.signal(worker.member, worker.given_up, "KILL")

    async def _ended(self, worker: WorkerRun, reason: str, kind: FailureKind) -> None:
        """Put back what a worker has leased, and judge it; `reason`: why it failed."""
        try:
            # the next worker finds again what its own pages led to
            await self.state.run(self.state.db.sign_off, worker.job)
            why = reason or "its worker has ended without it"
            leased = await self.collector.worker_gone(worker.job, why, kind)
            await self._unlist(worker.job)
            self._judge(worker, reason, begun=leased > 0)
        finally:
            self.ending -= 1
        self.state.poll_now()

    # failures

    def _judge(self, worker: WorkerRun, reason: str, *, begun: bool) -> None:
        """Judge a worker that has ended.

        `reason`: why it failed, empty when it did not; `begun`: it had a batch.
        """
        report = worker.report
        if worker.introduces:
            self.others.judge_handshake(worker, reason)
        elif report is not None and report.ended_requests:
            self.breaker.worked(worker.pool, worker.member.node.name)
        elif report is not None and report.unreached:
            self._note_unreached(worker, report.problem)
        elif not worker.at_once:
            # a worker of an earlier process may have run another spider, or code that was mended
            # since
            pass
        elif reason and worker.member.up and not worker.dismissed:
            self._count_failure(worker, reason, begun=begun)

    def _note_unreached(self, worker: WorkerRun, problem: str) -> None:
        """Note that a worker did not reach the store."""
        if worker.project:
            self.others.note_unreached(worker, problem)
        else:
            self._out_of_reach(worker.member, problem)

    def _count_failure(self, worker: WorkerRun, reason: str, *, begun: bool) -> None:
        """Count a worker that has done nothing; its node may get no more workers."""
        logger.warning("worker %s did nothing: %s", worker.job, reason)
        unfit = self.breaker.failed(
            worker.pool, worker.member.node.name, reason, begun=begun or bool(worker.spider)
        )
        if not unfit:
            return
        report = worker.report
        is_lost = report is not None and report.finish_reason == FinishReason.STORE_LOST
        if is_lost and self.state.sends:
            self._out_of_reach(worker.member, unfit)
        else:
            self._unfit(worker.member, unfit)

    def _out_of_reach(self, member: NodeState, reason: str) -> None:
        """Note that workers on this node do not reach the store.

        It is sent its batches, where that can be, or gets none.
        """
        if self.state.sends:
            member.readiness.out_of_reach(reason)
            logger.info(
                "%s: its workers do not reach the store, so it is sent its batches: %s",
                member.node,
                reason,
            )
            self.state.poll_now()
        else:
            self.breaker.out_of_reach(member.node.name)
            self._unfit(member, reason)

    def _unfit(self, member: NodeState, reason: str) -> None:
        member.readiness.mark_unfit(reason)
        logger.error("%s gets no more workers: %s", member.node, reason)
        self.state.check_unfit()


def _fill(member: NodeState) -> float:
    """Return how full a node is for workers: 1 where it has room for none."""
    slots = member.capacity.slots
    return jobs_per_slot(slots - member.worker_room(), slots)


def _why(report: WorkerReport) -> str:
    """Return why a worker that ended in order counts as failed; empty when it does not."""
    if report.problem:
        return report.problem
    if meaning(report.finish_reason).in_order:
        return ""
    return f"the worker ended early ({report.finish_reason})"
