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

from scrapyd_dist.batches import Batch, BatchState, WorkerEntry, worker_id
from scrapyd_dist.coordination.dispatch import SAID_NO, said_no
from scrapyd_dist.coordination.poison import blames
from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.frontier.slotting import spider_of_slot
from scrapyd_dist.managing.frontdesk import Worker
from scrapyd_dist.managing.judging import why
from scrapyd_dist.managing.staffing import ALL
from scrapyd_dist.managing.terms import call_for_worker
from scrapyd_dist.reasons import meaning
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.coordination.fleet import Member, Out
    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.managing.failures import Failures
    from scrapyd_dist.managing.frontdesk import FrontDesk
    from scrapyd_dist.managing.judging import Judging
    from scrapyd_dist.managing.others import Others
    from scrapyd_dist.managing.roster import Roster
    from scrapyd_dist.managing.terms import WorkerTerms
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.store.reach import Way

logger = logging.getLogger(__name__)


class GoneWorker(Protocol):
    """Puts back what a worker had leased; returns the number of batches."""

    async def __call__(self, job: str, reason: str, *, blame: bool = False, harmless: bool = False) -> int: ...


@dataclass(kw_only=True)
class Hiring:
    """Starts workers, and receives from the node monitor how they end."""

    desk: FrontDesk
    roster: Roster
    terms: WorkerTerms
    reach: Callable[[Node], Way]
    failures: Failures
    gone: GoneWorker
    others: Others
    judging: Judging
    again: bool = False  #: workers start in rounds: one that ended as its settings say starts again in the next round
    ending: int = field(default=0, init=False)  #: workers that have ended and are not judged yet
    retired: dict[str, list[str]] = field(default_factory=dict, init=False)  #: lane -> why its workers ended

    def start(self, lane: str) -> bool:
        """Start a worker on the node with the most room; False when no node has room."""
        project, spider = spider_of_slot(lane) or ("", "")
        member = max(self._with_room(lane, project), key=_share, default=None)
        if member is None:
            return False
        number = self.roster.take_number()
        now = time.time()
        worker = Worker(
            batch=_pseudo(number),
            number=1,
            job=worker_id(self.desk.spec.crawl, number),
            member=member,
            since=now,
            start_by=now + self.desk.limits.start_timeout,
            at_once=True,
            lane=lane,
            slots=() if lane == ALL else (lane,),
            project=project,
            spider=spider,
            introduces=self.others.is_new(member, lane, project),
        )
        self._take_in(worker)
        task = self.desk.spawn(self._post(worker))
        self.desk.posts.add(task)
        task.add_done_callback(self.desk.posts.discard)
        return True

    def _with_room(self, lane: str, project: str) -> list[Member]:
        return [one for one in self.desk.members if room(one) and self.others.fits(one, lane, project)]

    def cramped(self, lanes: Iterable[str]) -> set[str]:
        """Lanes of other projects that no free node can serve; closes those that no node can serve at all."""
        found = set()
        for lane in lanes:
            project, _ = spider_of_slot(lane) or ("", "")
            lacking = self.others.nowhere(lane, self.desk.members) if project else ""
            if lacking and lane not in self.failures.closed:
                logger.error("slot %s: %s; what is in it is given up", lane, lacking)
                self.failures.nowhere(lane, lacking)
                self.desk.news.set()
            if project and not self._with_room(lane, project):
                found.add(lane)
        return found

    def _take_in(self, worker: Worker) -> None:
        worker.member.out[worker.job] = worker
        self.desk.open.add(worker.batch.number)

    async def recover(self, accepted: Sequence[Attempt]) -> None:
        """Take up the workers of an earlier process; `accepted`: attempts that were accepted there."""
        members = {member.node.url: member for member in self.desk.members}
        for one in await self.roster.read():
            member = members.get(one.url)
            if member is None:
                await self.gone(one.job, "its node is not in the fleet any more")
                await self.roster.remove(one.job)
                continue
            worker = Worker(
                batch=_pseudo(one.number), number=1, job=one.job, member=member, since=one.since,
                start_by=one.since + self.desk.limits.start_timeout, posted=True, lane=one.lane,
                slots=() if one.lane == ALL else (one.lane,), project=one.project, spider=one.spider,
                version=one.version, introduces=one.introduces,
            )  # fmt: skip
            for attempt in accepted:
                if attempt.worker == one.job:
                    worker.came_home_before(attempt.report)
            self._take_in(worker)
            if not worker.project and one.version not in {"", self.desk.spec.version}:
                await self.dismiss(worker)  # the crawl goes on with other code, and this worker would lease more

    def make_room(self, lane: str, for_: Collection[str] = ()) -> bool:
        """Let one worker of this lane end in order: another lane has batches and no worker.

        Args:
            lane: a lane with workers and no batches.
            for_: lanes that have room on some nodes only, if these are the ones that wait.

        Returns:
            Whether one of its workers is ending, or will.
        """
        here = [worker for worker in self.desk.workers() if worker.lane == lane]
        if for_:
            here = [one for one in here if any(self.others.may_have(one.member, another) for another in for_)]
        if here and all(worker.posted and not worker.dismissed for worker in here):  # one at a time
            self.desk.spawn(self.dismiss(here[0]))
        return bool(here)

    async def dismiss(self, worker: Worker) -> None:
        """Tell it to end: it gives back what it has not begun, and its end is handled as any other."""
        worker.dismissed = True
        node = worker.member.node
        call = api.cancel(worker.project or node.project or self.desk.spec.project, worker.job)
        try:
            before = await self.desk.sender.send(node, call, timeout=self.desk.limits.request_timeout)
            if before is api.JobState.PENDING:
                self._forget(worker)
                await self.roster.remove(worker.job)
        except ApiRefused:
            pass  # an unknown project has no jobs
        except NodeError as error:
            self.desk.lost_touch(worker.member, error)
        self.desk.wake(worker.member).set()

    # posting

    async def _post(self, worker: Worker) -> None:
        desk, node = self.desk, worker.member.node
        way = await asyncio.get_running_loop().run_in_executor(None, self.reach, node)  # it may look up a name
        if way.reason:
            self._forget(worker)
            self.failures.out_of_reach(node.name)
            self.judging.unfit(worker.member, way.reason)
            return
        try:
            call = await self._call(worker, way)
        except NodeError as error:
            await self._refused(worker, error)
            return
        await self.roster.add(
            WorkerEntry(
                number=worker.batch.number, job=worker.job, url=node.url, lane=worker.lane, since=worker.since,
                project=worker.project, spider=worker.spider, version=worker.version or self.desk.spec.version or "",
                introduces=worker.introduces,
            )
        )  # fmt: skip
        try:
            await desk.sender.send(node, call, timeout=desk.limits.request_timeout)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(worker, error)
                return
            logger.warning("%s: it is not known whether worker %s was accepted (%s)", node, worker.job, error)
        worker.posted = True
        desk.wake(worker.member).set()

    async def _call(self, worker: Worker, way: Way) -> api.Call[str]:
        if worker.project:
            return await self.others.call(worker, way)
        return call_for_worker(self.desk.spec, worker, self.terms, way.told)

    async def _refused(self, worker: Worker, error: NodeError) -> None:
        """The node certainly did not take it."""
        self._forget(worker)
        await self.roster.remove(worker.job)
        if isinstance(error, ApiRefused) and worker.project:
            self.others.refused(worker, error)
        elif isinstance(error, ApiRefused) and worker.spider:
            self._lacks_spider(worker, error)
        elif isinstance(error, SAID_NO):
            said_no(worker.member, error)
        else:
            self.desk.lost_touch(worker.member, error)
        if worker.member.up:  # a failing node waits for its next poll, or it would be asked without a pause
            self.desk.wake(worker.member).set()
        self.desk.check_unfit()
        self.desk.news.set()

    def _lacks_spider(self, worker: Worker, error: NodeError) -> None:
        """The node may have lost the code; once that was deployed again, there is no such spider."""
        if self.failures.refused(worker.lane, str(error)):
            logger.error("slot %s: %s; what is in it is given up", worker.lane, error)
        else:
            worker.member.prepared = False

    def _forget(self, worker: Worker) -> None:
        worker.member.out.pop(worker.job, None)
        self.desk.open.discard(worker.batch.number)

    # ends

    def end(self, out: Out, report: Report) -> None:
        """Its final report is there."""
        assert isinstance(out, Worker)  # noqa: S101 - nothing else is ever out at a front desk
        out.report = report
        self._forget(out)
        self.ending += 1
        if meaning(report.finish_reason).by_settings:  # another worker in its place would end there as well
            self.retired.setdefault(out.lane, []).append(report.finish_reason)
            out.member.retired += not self.again
        self.desk.spawn(self._ended(out, why(report), blame=blames(report)))

    async def failed(self, out: Out, reason: str, *, blame: bool = False) -> None:
        """It died, never started, or its node is lost; it may still run, and is cancelled."""
        assert isinstance(out, Worker)  # noqa: S101 - nothing else is ever out at a front desk
        self._forget(out)
        self.ending += 1
        try:
            if out.member.up:
                await self.desk.calls.cancel(out.member, out.given_up)
            else:
                out.member.cancel_later.append(out.given_up)
        except NodeError as error:
            out.member.cancel_later.append(out.given_up)
            self.desk.lost_touch(out.member, error)
        await self._ended(out, reason, blame=blame)

    async def cancelled(self, job: str) -> None:
        """Put back what it has leased since it was given up, long before these leases expire."""
        await self.gone(job, "its worker was given up while its node was away", harmless=True)

    def hangs(self, job: str, reason: str) -> None:
        """Its lease expired while its node answers: its event loop stands still, whatever its report says."""
        worker = next((one for one in self.desk.workers() if one.job == job and one.posted), None)
        if worker is not None:
            self.desk.spawn(self._end_hanging(worker, reason))

    async def _end_hanging(self, worker: Worker, reason: str) -> None:
        await self.failed(worker, reason, blame=True)
        if worker.member.up:  # it ignores SIGINT
            project = worker.project or worker.member.node.project or self.desk.spec.project
            call = api.cancel(project, worker.job, "KILL")
            with suppress(NodeError):
                await self.desk.sender.send(worker.member.node, call, timeout=self.desk.limits.request_timeout)

    async def _ended(self, worker: Worker, reason: str, *, blame: bool) -> None:
        try:
            # the next worker finds again what its own pages led to
            await self.desk.store(self.desk.store.store.sign_off, self.desk.spec.crawl, worker.job)
            had = await self.gone(worker.job, reason or "its worker has ended without it", blame=blame and bool(reason))
            await self.roster.remove(worker.job)
            self.judging.ended(worker, reason, begun=had > 0)
        finally:
            self.ending -= 1
        self.desk.news.set()


def _pseudo(number: int) -> Batch:
    """The batch that stands for a worker where a batch is expected."""
    return Batch(number=number, size=0, state=BatchState.RUNNING)


def room(member: Member) -> int:
    """How many more workers it may get now."""
    return max(0, min(member.free_slots, member.room()) - member.retired) if member.usable else 0


def _share(member: Member) -> float:
    """Its share of free slots, from 0 to 1."""
    return room(member) / max(1, member.slots)
