"""Starts workers on the nodes, and handles their ends.

Invariants: a worker is stored before it is posted, and is posted once; what it had leased goes back into the frontier
before another worker takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scrapyd_dist.batches import Batch, BatchState, WorkerEntry, meaning, worker_id
from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.scheduling.circuit_breaker import why
from scrapyd_dist.scheduling.dispatcher import SAID_NO, said_no
from scrapyd_dist.scheduling.node_state import WorkerRun
from scrapyd_dist.scheduling.poison import blames
from scrapyd_dist.scheduling.scaling_policy import ALL
from scrapyd_dist.scheduling.worker_request import call_for_worker
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.joblogs.worker_report import WorkerReport
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scheduling.base import SchedulerState
    from scrapyd_dist.scheduling.circuit_breaker import CircuitBreaker, FailurePolicy
    from scrapyd_dist.scheduling.foreign_projects import ForeignProjects
    from scrapyd_dist.scheduling.node_state import JobRun, NodeState
    from scrapyd_dist.scheduling.worker_registry import WorkerRegistry
    from scrapyd_dist.scheduling.worker_request import WorkerRequest
    from scrapyd_dist.store.reach import Way

logger = logging.getLogger(__name__)


class EndedWorker(Protocol):
    """Puts back what a worker had leased; returns the number of batches."""

    async def __call__(self, job: str, reason: str, *, blame: bool = False, harmless: bool = False) -> int: ...


@dataclass(kw_only=True)
class Autoscaler:
    """Starts workers, and receives from the node monitor how they end."""

    state: SchedulerState
    registry: WorkerRegistry
    terms: WorkerRequest
    reach: Callable[[Node], Way] | None  #: None: workers lease nothing
    breaker: CircuitBreaker
    gone: EndedWorker
    others: ForeignProjects
    failure_policy: FailurePolicy
    again: bool = False  #: workers start in rounds: one that ended as its settings say starts again in the next round
    ending: int = field(default=0, init=False)  #: workers that have ended and are not judged yet
    retired: dict[str, list[str]] = field(default_factory=dict, init=False)  #: pool -> why its workers ended

    def start(self, pool: str) -> bool:
        """Start a worker on the node with the most room; False when no node has room."""
        project, spider = spider_of_slot(pool)
        member = max(self._with_room(pool, project), key=_share, default=None)
        if member is None:
            return False
        number = self.registry.take_number()
        now = time.time()
        worker = WorkerRun(
            batch=_pseudo(number),
            number=1,
            job=worker_id(self.state.spec.crawl, number),
            member=member,
            since=now,
            start_by=now + self.state.limits.start_timeout,
            at_once=True,
            pool=pool,
            slots=() if pool == ALL else (pool,),
            project=project,
            spider=spider,
            introduces=self.others.is_new(member, pool, project),
        )
        self._take_in(worker)
        task = self.state.spawn(self._post(worker))
        self.state.posts.add(task)
        task.add_done_callback(self.state.posts.discard)
        return True

    def _with_room(self, pool: str, project: str) -> list[NodeState]:
        return [one for one in self.state.members if room(one) and self.others.fits(one, pool, project)]

    def cramped(self, pools: Iterable[str]) -> set[str]:
        """Lanes of other projects that no free node can serve; closes those that no node can serve at all."""
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

    def _take_in(self, worker: WorkerRun) -> None:
        worker.member.out[worker.job] = worker

    async def recover(self, accepted: Sequence[Attempt]) -> None:
        """Take up the workers of an earlier process; `accepted`: attempts that were accepted there."""
        members = {member.node.url: member for member in self.state.members}
        for one in await self.registry.read():
            member = members.get(one.url)
            if member is None:
                await self.gone(one.job, "its node is not in the fleet any more")
                await self.registry.remove(one.job)
                continue
            worker = WorkerRun(
                batch=_pseudo(one.number), number=1, job=one.job, member=member, since=one.since,
                start_by=one.since + self.state.limits.start_timeout, posted=True, pool=one.pool,
                slots=() if one.pool == ALL else (one.pool,), project=one.project, spider=one.spider,
                version=one.version, introduces=one.introduces,
            )  # fmt: skip
            for attempt in accepted:
                if attempt.worker == one.job:
                    worker.came_home_before(attempt.report)
            self._take_in(worker)
            other_code = not worker.project and one.version not in {"", self.state.spec.version}
            if other_code or not self.state.leases:  # the crawl goes on without it, and it would lease more
                await self.dismiss(worker)

    def make_room(self, pool: str, for_: Collection[str] = ()) -> bool:
        """Let one worker of this pool end in order: another pool has batches and no worker.

        Args:
            pool: a pool with workers and no batches.
            for_: pools that have room on some nodes only, if these are the ones that wait.

        Returns:
            Whether one of its workers is ending, or will.
        """
        here = [worker for worker in self.state.workers() if worker.pool == pool]
        if for_:
            here = [one for one in here if any(self.others.may_have(one.member, another) for another in for_)]
        if here and all(worker.posted and not worker.dismissed for worker in here):  # one at a time
            self.state.spawn(self.dismiss(here[0]))
        return bool(here)

    async def dismiss(self, worker: WorkerRun) -> None:
        """Tell it to end: it gives back what it has not begun, and its end is handled as any other."""
        worker.dismissed = True
        node = worker.member.node
        call = api.cancel(worker.project or node.project or self.state.spec.project, worker.job)
        try:
            before = await self.state.sender.send(node, call, timeout=self.state.limits.request_timeout)
            if before is api.JobState.PENDING:
                self._forget(worker)
                await self.registry.remove(worker.job)
        except ApiRefused:
            pass  # an unknown project has no jobs
        except NodeError as error:
            self.state.lost_touch(worker.member, error)
        self.state.wake(worker.member).set()

    # posting

    async def _post(self, worker: WorkerRun) -> None:
        state, node = self.state, worker.member.node
        assert self.reach  # noqa: S101 - workers are started only where they lease
        way = await asyncio.get_running_loop().run_in_executor(None, self.reach, node)  # it may look up a name
        if way.reason:
            self._forget(worker)
            self.failure_policy.out_of_reach(worker.member, way.reason)
            return
        try:
            call = await self._call(worker, way)
        except NodeError as error:
            await self._refused(worker, error)
            return
        await self.registry.add(
            WorkerEntry(
                number=worker.batch.number, job=worker.job, url=node.url, pool=worker.pool, since=worker.since,
                project=worker.project, spider=worker.spider, version=worker.version or self.state.spec.version or "",
                introduces=worker.introduces,
            )
        )  # fmt: skip
        try:
            await state.sender.send(node, call, timeout=state.limits.request_timeout)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(worker, error)
                return
            logger.warning("%s: it is not known whether worker %s was accepted (%s)", node, worker.job, error)
        worker.posted = True
        state.wake(worker.member).set()

    async def _call(self, worker: WorkerRun, way: Way) -> api.Call[str]:
        if worker.project:
            return await self.others.call(worker, way)
        return call_for_worker(self.state.spec, worker, self.terms, way.told)

    async def _refused(self, worker: WorkerRun, error: NodeError) -> None:
        """The node certainly did not take it."""
        self._forget(worker)
        await self.registry.remove(worker.job)
        if isinstance(error, ApiRefused) and worker.project:
            self.others.refused(worker, error)
        elif isinstance(error, ApiRefused) and worker.spider:
            self._lacks_spider(worker, error)
        elif isinstance(error, SAID_NO):
            said_no(worker.member, error)
        else:
            self.state.lost_touch(worker.member, error)
        if worker.member.up:  # a failing node waits for its next poll, or it would be asked without a pause
            self.state.wake(worker.member).set()
        self.state.check_unfit()
        self.state.news.set()

    def _lacks_spider(self, worker: WorkerRun, error: NodeError) -> None:
        """The node may have lost the code; once that was deployed again, there is no such spider."""
        if self.breaker.refused(worker.pool, str(error)):
            logger.error("slot %s: %s; what is in it is given up", worker.pool, error)
        else:
            worker.member.prepared = False

    def _forget(self, worker: WorkerRun) -> None:
        worker.member.out.pop(worker.job, None)

    # ends

    def end(self, out: JobRun, report: WorkerReport) -> None:
        """Its final report is there."""
        assert isinstance(out, WorkerRun)  # noqa: S101 - only workers run in a pool
        out.report = report
        self._forget(out)
        self.ending += 1
        if meaning(report.finish_reason).by_settings:  # another worker in its place would end there as well
            self.retired.setdefault(out.pool, []).append(report.finish_reason)
            out.member.retired += not self.again
        self.state.spawn(self._ended(out, why(report), blame=blames(report)))

    async def failed(self, out: JobRun, reason: str, *, blame: bool = False) -> None:
        """It died, never started, or its node is lost; it may still run, and is cancelled."""
        assert isinstance(out, WorkerRun)  # noqa: S101 - only workers run in a pool
        self._forget(out)
        self.ending += 1
        try:
            if out.member.up:
                await self.state.client.cancel(out.member, out.given_up)
            else:
                out.member.cancel_later.append(out.given_up)
        except NodeError as error:
            out.member.cancel_later.append(out.given_up)
            self.state.lost_touch(out.member, error)
        await self._ended(out, reason, blame=blame)

    async def cancelled(self, job: str) -> None:
        """Put back what it has leased since it was given up, long before these leases expire."""
        await self.gone(job, "its worker was given up while its node was away", harmless=True)

    def hangs(self, job: str, reason: str) -> None:
        """Its lease expired while its node answers: its event loop stands still, whatever its report says."""
        worker = next((one for one in self.state.workers() if one.job == job and one.posted), None)
        if worker is not None:
            self.state.spawn(self._end_hanging(worker, reason))

    async def _end_hanging(self, worker: WorkerRun, reason: str) -> None:
        await self.failed(worker, reason, blame=True)
        if worker.member.up:  # it ignores SIGINT
            project = worker.project or worker.member.node.project or self.state.spec.project
            call = api.cancel(project, worker.job, "KILL")
            with suppress(NodeError):
                await self.state.sender.send(worker.member.node, call, timeout=self.state.limits.request_timeout)

    async def _ended(self, worker: WorkerRun, reason: str, *, blame: bool) -> None:
        try:
            # the next worker finds again what its own pages led to
            await self.state.store(self.state.store.store.sign_off, self.state.spec.crawl, worker.job)
            had = await self.gone(worker.job, reason or "its worker has ended without it", blame=blame and bool(reason))
            await self.registry.remove(worker.job)
            self.failure_policy.ended(worker, reason, begun=had > 0)
        finally:
            self.ending -= 1
        self.state.news.set()


def _pseudo(number: int) -> Batch:
    """The batch that stands for a worker where a batch is expected."""
    return Batch(number=number, size=0, state=BatchState.RUNNING)


def room(member: NodeState) -> int:
    """How many more workers it may get now."""
    if member.unreached or not member.usable:
        return 0
    return max(0, member.free_slots - member.retired)


def _share(member: NodeState) -> float:
    """Its share of free slots, from 0 to 1."""
    return room(member) / max(1, member.slots)
