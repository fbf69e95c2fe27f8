"""Starts workers on the nodes, and handles their ends.

Invariants: a worker is stored before it is posted, and is posted once; what it had leased goes back into the frontier
before another worker takes its place.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from scrapyd_dist.batches import (
    Attempt,
    Batch,
    BatchState,
    FinishReason,
    WorkerEntry,
    meaning,
    worker_id,
)
from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.joblogs.worker_report import WorkerReport, counts_of
from scrapyd_dist.scheduling.base import SchedulerState
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.dispatcher import note_refusal
from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
from scrapyd_dist.scheduling.job_request import call_for_worker
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.scaling_policy import CircuitBreaker
from scrapyd_dist.scrapyd import api

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Autoscaler:
    """Starts workers, and receives from the node monitor how they end."""

    state: SchedulerState
    breaker: CircuitBreaker
    collector: Collector
    others: ForeignProjects
    again: bool = False  #: workers start in rounds: one that ended as its settings say starts again in the next round
    last: int = field(default=0, init=False)  #: the highest number that a worker was given
    ending: int = field(default=0, init=False)  #: workers that have ended and are not judged yet
    retired: dict[str, list[str]] = field(
        default_factory=dict, init=False
    )  #: pool -> why its workers ended

    def start(self, pool: str) -> None:
        """Start a worker on the node with the most room, if a node has room."""
        project, spider = spider_of_slot(pool)
        member = max(
            self._with_room(pool, project),
            key=lambda one: room(one) / max(1, one.slots),
            default=None,
        )
        if member is None:
            return
        self.last = number = self.last + 1
        entry = WorkerEntry(
            number=number,
            job=worker_id(self.state.spec.home, number),
            url=member.node.url,
            pool=pool,
            since=time.time(),
            project=project,
            spider=spider,
            introduces=self.others.is_new(member, pool, project),
        )
        worker = self._run_of(entry, member, at_once=True)
        self.state.send_out(worker, self._post(worker, entry))

    def _run_of(
        self, one: WorkerEntry, member: NodeState, *, at_once: bool = False, posted: bool = False
    ) -> WorkerRun:
        # where a batch is expected, one without requests stands for the worker
        batch = Batch(number=one.number, size=0, state=BatchState.RUNNING)
        return WorkerRun(
            batch=batch,
            number=1,
            job=one.job,
            member=member,
            since=one.since,
            start_by=one.since + self.state.limits.start_timeout,
            at_once=at_once,
            posted=posted,
            pool=one.pool,
            project=one.project,
            spider=one.spider,
            version=one.version,
            introduces=one.introduces,
        )

    def _with_room(self, pool: str, project: str) -> list[NodeState]:
        return [
            one for one in self.state.members if room(one) and self.others.fits(one, pool, project)
        ]

    def cramped(self, pools: Iterable[str]) -> set[str]:
        """Pools of other projects that no free node can serve; closes those that no node can serve at all."""
        found = set()
        for pool in pools:
            project, _ = spider_of_slot(pool)
            lacking = self.others.nowhere(pool, self.state.members) if project else ""
            if lacking and pool not in self.breaker.closed:
                logger.error("slot %s: %s; what is in it is given up", pool, lacking)
                self.breaker.nowhere(pool, lacking)
                self.state.news.set()
            if project and not self._with_room(pool, project):
                found.add(pool)
        return found

    async def recover(self, accepted: Sequence[Attempt]) -> None:
        """Take up the workers of an earlier process; `accepted`: attempts that were accepted there."""
        left, self.last = await self.state.store(
            self.state.store.store.workers, self.state.spec.crawl
        )
        for one in left:
            member = self.state.member_at(one.url)
            if member is None:
                await self.collector.worker_gone(one.job, "its node is not in the fleet any more")
                await self._unlist(one.job)
                continue
            worker = self._run_of(one, member, posted=True)
            for attempt in accepted:
                if attempt.worker == one.job:
                    worker.recalled.update(counts_of(attempt.report))
            worker.counted.update(worker.recalled)
            member.out[worker.job] = worker
            other_code = not worker.project and one.version not in {"", self.state.spec.version}
            if (
                other_code or not self.state.leases
            ):  # the crawl goes on without it, and it would lease more
                await self.dismiss(worker)

    def make_room(self, pool: str, for_: Collection[str] = ()) -> bool:
        """Let one worker of this pool end in order, for another pool that has batches and no worker.

        `for_`: the pools that wait, if they have room on some nodes only. Returns whether one is ending, or will.
        """
        here = [worker for worker in self.state.workers() if worker.pool == pool]
        if for_:
            here = [
                one
                for one in here
                if any(self.others.may_have(one.member, another) for another in for_)
            ]
        if here and all(worker.posted and not worker.dismissed for worker in here):  # one at a time
            self.state.spawn(self.dismiss(here[0]))
        return bool(here)

    def vacate_nodes(self) -> None:
        """Let the workers end whose node is drained, left the list, or is unfit: else they would lease to the end."""
        for worker in self.state.workers():
            may_stay = worker.dismissed or not worker.posted or not worker.member.up
            if worker.member.is_vacated and not may_stay:
                self.state.spawn(self.dismiss(worker))

    async def dismiss(self, worker: WorkerRun) -> None:
        """Tell it to end: it finishes the pages under way, the rest goes to others, and its end is as any other."""
        worker.dismissed = True
        try:
            if (
                await self.state.client.signal(worker.member, worker.given_up)
                is api.JobState.PENDING
            ):
                self._forget(worker)
                await self._unlist(worker.job)
        except NodeError as error:
            self.state.lost_touch(worker.member, error)
        worker.member.wake.set()

    # posting

    async def _post(self, worker: WorkerRun, entry: WorkerEntry) -> None:
        state, node = self.state, worker.member.node
        assert state.reach
        way = await asyncio.get_running_loop().run_in_executor(
            None, state.reach, node
        )  # it may look up a name
        if way.reason:
            self._forget(worker)
            self._out_of_reach(worker.member, way.reason)
            return
        try:
            if worker.project:
                call = await self.others.call(worker, way)
            else:
                call = call_for_worker(state.spec, worker, self.others.terms, way.told)
        except NodeError as error:
            await self._refused(worker, error)
            return
        entry = replace(
            entry, version=worker.version or state.spec.version or "", introduces=worker.introduces
        )
        await state.run(state.db.add_workers, [entry], last=entry.number)
        try:
            await state.sender.send(node, call, timeout=state.limits.request_timeout)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(worker, error)
                return
            logger.warning(
                "%s: it is not known whether worker %s was accepted (%s)", node, worker.job, error
            )
        worker.posted = True
        worker.member.wake.set()

    async def _refused(self, worker: WorkerRun, error: NodeError) -> None:
        """The node certainly did not take it."""
        self._forget(worker)
        await self._unlist(worker.job)
        if isinstance(error, ApiRefused) and worker.project:
            self.others.refused(worker, error)
        elif isinstance(error, ApiRefused) and worker.spider:
            if self.breaker.refused(worker.pool, str(error)):
                logger.error("slot %s: %s; what is in it is given up", worker.pool, error)
            else:  # the node may have lost the code; once that was deployed again, there is no such spider
                worker.member.prepared = False
        else:
            note_refusal(self.state, worker.member, error)
        if (
            worker.member.up
        ):  # a failing node waits for its next poll, or it would be asked without a pause
            worker.member.wake.set()
        self.state.check_unfit()
        self.state.news.set()

    async def _unlist(self, job: str) -> None:
        await self.state.run(self.state.db.remove_worker, job)

    def _forget(self, worker: WorkerRun) -> None:
        worker.member.out.pop(worker.job, None)

    # ends

    def end(self, out: JobRun, report: WorkerReport) -> None:
        """Its final report is there."""
        assert isinstance(out, WorkerRun)
        out.report = report
        self.state.stray_items += report.stray_items
        self.state.close_crawl(report.closed_by)
        self._forget(out)
        self.ending += 1
        if (
            meaning(report.finish_reason).by_settings and not self.again
        ):  # one in its place would end there as well
            self.retired.setdefault(out.pool, []).append(report.finish_reason)
            out.member.retired += 1
        is_wanted = out.dismissed or out.member.is_vacated or self.state.over.is_set()
        was_told = report.finish_reason == FinishReason.SHUTDOWN.value and not is_wanted
        blame = report.blames_batch or was_told  # one of its pages may have sent the signal
        self.state.spawn(self._ended(out, _why(report), blame=blame))

    async def failed(
        self, out: JobRun, reason: str, *, blame: bool = False, harmless: bool = False
    ) -> None:
        """It died, never started, or its node is lost; it may still run, and is cancelled."""
        assert isinstance(out, WorkerRun)
        self.ending += 1
        await self.state.abandon(out)
        await self._ended(out, reason, blame=blame, harmless=harmless)

    async def cancelled(self, job: str) -> None:
        """Put back what it has leased since it was given up, long before these leases expire."""
        await self.collector.worker_gone(
            job, "its worker was given up while its node was away", harmless=True
        )

    def hangs(self, job: str, reason: str) -> None:
        """Its lease expired while its node answers: its event loop stands still, whatever its report says."""
        worker = next((one for one in self.state.workers() if one.job == job and one.posted), None)
        if worker is not None:
            self.state.spawn(self._end_hanging(worker, reason))

    async def _end_hanging(self, worker: WorkerRun, reason: str) -> None:
        await self.failed(worker, reason, blame=True)
        if worker.member.up:  # it ignores SIGINT
            with suppress(NodeError):
                await self.state.client.signal(worker.member, worker.given_up, "KILL")

    async def _ended(
        self, worker: WorkerRun, reason: str, *, blame: bool, harmless: bool = False
    ) -> None:
        try:
            # the next worker finds again what its own pages led to
            await self.state.run(self.state.db.sign_off, worker.job)
            had = await self.collector.worker_gone(
                worker.job,
                reason or "its worker has ended without it",
                blame=blame,
                harmless=harmless,
            )
            await self._unlist(worker.job)
            self._judge(worker, reason, begun=had > 0)
        finally:
            self.ending -= 1
        self.state.news.set()

    # failures

    def _judge(self, worker: WorkerRun, reason: str, *, begun: bool) -> None:
        """Judge a worker that has ended; `reason`: why it failed, empty when it did not; `begun`: it had a batch."""
        report, node = worker.report, worker.member.node
        if worker.introduces:
            self.others.heard(worker, reason)
        elif report is not None and report.ended_requests:
            self.breaker.worked(worker.pool, node.name)
        elif report is not None and report.unreached and worker.project:
            self.others.cannot(worker, report.problem)
        elif report is not None and report.unreached:
            self._out_of_reach(worker.member, report.problem)
        elif not worker.at_once:
            pass  # a worker of an earlier process may have run another spider, or code that was mended since
        elif reason and worker.member.up and not worker.dismissed:
            logger.warning("worker %s did nothing: %s", worker.job, reason)
            unfit = self.breaker.failed(
                worker.pool, node.name, reason, begun=begun or bool(worker.spider)
            )
            is_lost = report is not None and report.finish_reason == FinishReason.STORE_LOST
            if unfit and is_lost and self.state.sends:
                self._out_of_reach(worker.member, unfit)
            elif unfit:
                self._unfit(worker.member, unfit)

    def _out_of_reach(self, member: NodeState, reason: str) -> None:
        """Workers on this node do not reach the store: it is sent its batches, where that can be, or gets none."""
        if self.state.sends:
            member.unreached = reason
            logger.info(
                "%s: its workers do not reach the store, so it is sent its batches: %s",
                member.node,
                reason,
            )
            self.state.news.set()
        else:
            self.breaker.unreached.add(member.node.name)
            self.breaker.unfit.add(member.node.name)
            self._unfit(member, reason)

    def _unfit(self, member: NodeState, reason: str) -> None:
        member.unfit = reason
        logger.error("%s gets no more workers: %s", member.node, reason)
        self.state.check_unfit()


def _why(report: WorkerReport) -> str:
    """Why a worker that ended in order counts as failed; empty when it does not."""
    if report.problem:
        return report.problem
    return (
        ""
        if meaning(report.finish_reason).in_order
        else f"the worker ended early ({report.finish_reason})"
    )


def room(member: NodeState) -> int:
    """How many more workers it may get now."""
    if member.unreached or not member.usable:
        return 0
    return max(0, member.slots - len(member.out) - member.others - member.retired)
