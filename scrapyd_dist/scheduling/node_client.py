"""Makes the calls of a scheduler to the nodes about its attempts. Keeps no state."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scrapyd_dist.errors import ApiRefused, NodeError, NotFound
from scrapyd_dist.escapes import harmless
from scrapyd_dist.joblogs.log_reads import facts_in
from scrapyd_dist.joblogs.worker_report import (
    REPORT_BYTES,
    BadReport,
    WorkerReport,
    read_report,
    report_path,
)
from scrapyd_dist.scheduling.job_request import JobRequest, call_for
from scrapyd_dist.scheduling.liveness import skew_of
from scrapyd_dist.scheduling.node_state import AbandonedJob, JobRun, NodeState
from scrapyd_dist.scheduling.rules_watch import RulesWatch
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import AsyncSender

logger = logging.getLogger(__name__)

#: bytes of a job's log that are searched for its last error
LOG_TAIL = 4096


class LastWords(NamedTuple):
    """What the end of a job's log says of how it ended."""

    text: str  #: the end of a sentence; empty when the node cannot be asked
    was_told_to_end: bool = False  #: by one signal, and by no second one


@dataclass(frozen=True, kw_only=True)
class NodeClient:
    """Makes the calls of one crawl; each raises `NodeError` when the node cannot be asked."""

    spec: JobRequest
    sender: AsyncSender
    timeout: float  #: seconds for one call

    async def load(self, member: NodeState) -> api.Load:
        """Return the node's load; also updates the skew of its clock."""
        before = time.time()
        load = await self.sender.send(member.node, api.daemonstatus(), timeout=self.timeout)
        skew = skew_of(load.date, (before + time.time()) / 2)
        if skew is not None:
            member.liveness.note_skew(skew)
        return load

    async def post(self, out: JobRun, payload: Mapping[str, str], rules: RulesWatch) -> None:
        """Start a job with this payload on its node; it gets what is known of the `rules`."""
        node = out.member.node
        # how its worker reaches the store; empty where a job on this node cannot
        store: Mapping[str, Any] = {}
        if self.spec.ways is not None:
            way = await asyncio.get_running_loop().run_in_executor(None, self.spec.ways, node)
            store = rules.joined_to(way.job_settings)
            if way.reason:
                logger.debug("workers on %s hold no leases: %s", node, way.reason)
        await self.sender.send(node, call_for(self.spec, out, payload, store), timeout=self.timeout)

    async def status(self, out: JobRun) -> api.JobState | None:
        """Return the job's state by Scrapyd; None when the node does not know it (any more)."""
        node = out.member.node
        project = self.spec.project_at(node, out.project)
        try:
            state = await self.sender.send(node, api.status(out.job, project), timeout=self.timeout)
            if state is not api.JobState.FINISHED or out.report is not None:
                return state
        except NotFound:
            pass  # Scrapyd 1.4 has no status.json
        except ApiRefused:
            return None  # an unknown project has no jobs
        # Scrapyd reports a finished job of this id first: it may belong to an earlier crawl of the
        # same name.
        try:
            jobs = await self.sender.send(node, api.listjobs(project), timeout=self.timeout)
        except ApiRefused:
            return None
        return jobs.state_of(out.job)

    async def report(self, out: JobRun) -> WorkerReport | None:
        """Return the worker's report; None when there is none, or it cannot be read."""
        call = api.fetch(report_path(self.spec.home, out.job), start=0, limit=REPORT_BYTES)
        chunk = await self.sender.send(out.member.node, call, timeout=self.timeout)
        if chunk is None:
            return None
        try:
            return read_report(chunk.body)
        except BadReport as error:
            logger.warning("%s: %s", out.job, error)
            return None

    async def signal(
        self, member: NodeState, job: AbandonedJob, signal: str = "INT"
    ) -> api.JobState | None:
        """Cancel a pending job, or signal a running one.

        Returns its state before, None when the node does not know it.
        """
        call = api.cancel(self.spec.project_at(member.node, job.project), job.job, signal)
        try:
            return await self.sender.send(member.node, call, timeout=self.timeout)
        except ApiRefused:
            return None  # an unknown project has no jobs

    async def cancel(self, member: NodeState, job: AbandonedJob) -> None:
        """Cancel a job; its results are not used.

        The first signal lets it end in order, the second ends it at once.
        """
        if await self.signal(member, job) is api.JobState.RUNNING:
            await self.signal(member, job)

    async def last_words(self, out: JobRun) -> LastWords:
        """Return the last error in the log of a job that ended without a report."""
        node = out.member.node
        project = self.spec.project_at(node, out.project)
        path = f"logs/{project}/{out.spider or self.spec.spider}/{out.job}.log"
        try:
            call = api.fetch(path, start=0, limit=LOG_TAIL)
            chunk = await self.sender.send(node, call, timeout=self.timeout)
            if (end := api.tail(path, LOG_TAIL, chunk)) is not None:
                chunk = await self.sender.send(node, end, timeout=self.timeout)
        except NodeError:
            return LastWords(text="")
        if chunk is None:
            return LastWords(text="; it wrote no log")
        return LastWords(text=last_error(chunk), was_told_to_end=facts_in(chunk).was_told_to_end)


def last_error(end: api.Chunk) -> str:
    """Return the last error in the end of a log, as the end of a sentence."""
    if error := facts_in(end).last_error:
        return f"; the last error in its log: {error[:600]}"
    lines = end.body.decode(errors="replace").strip().splitlines()
    if not lines:
        return "; its log is empty"
    return f"; the last line of its log: {harmless(lines[-1][:300])}"
