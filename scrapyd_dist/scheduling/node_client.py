"""The calls that a scheduler makes to the nodes about its attempts. Keeps no state."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from scrapyd_dist.errors import ApiRefused, NodeError
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
from scrapyd_dist.scheduling.node_state import AbandonedJob, JobRun, NodeState, skew_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import AsyncSender

logger = logging.getLogger(__name__)

#: bytes of a job's log that are searched for its last error
LOG_TAIL = 4096


@dataclass(frozen=True, kw_only=True)
class NodeClient:
    """The calls of one crawl. Each raises `NodeError` when the node cannot be asked."""

    spec: JobRequest
    sender: AsyncSender
    timeout: float  #: seconds for one call

    async def load(self, member: NodeState) -> api.Load:
        """The node's load; also updates the skew of its clock."""
        before = time.time()
        load = await self.sender.send(member.node, api.daemonstatus(), timeout=self.timeout)
        if (skew := skew_of(load.date, (before + time.time()) / 2)) is not None:
            member.skew = skew
        return load

    async def post(self, out: JobRun, payload: Mapping[str, str]) -> None:
        node = out.member.node
        told: Mapping[
            str, str
        ] = {}  # of the store; nothing where a job on this node cannot reach it
        if self.spec.ways is not None:
            way = await asyncio.get_running_loop().run_in_executor(None, self.spec.ways, node)
            told = way.told
            if way.reason:
                logger.debug("workers on %s hold no leases: %s", node, way.reason)
        await self.sender.send(node, call_for(self.spec, out, payload, told), timeout=self.timeout)

    async def status(self, out: JobRun) -> api.JobState | None:
        """The job's state by Scrapyd; None when the node does not know the job (any more)."""
        node, project = out.member.node, self.spec.project_at(out.member.node, out.project)
        try:
            state = await self.sender.send(node, api.status(out.job, project), timeout=self.timeout)
            if state is not api.JobState.FINISHED or out.report is not None:
                return state
            # Scrapyd reports a finished job of this id first: it may belong to an earlier crawl of the same name.
            jobs = await self.sender.send(node, api.listjobs(project), timeout=self.timeout)
            return next(
                (job.state for job in (*jobs.running, *jobs.pending) if job.id == out.job), state
            )
        except ApiRefused:
            return None  # an unknown project has no jobs

    async def report(self, out: JobRun) -> WorkerReport | None:
        """The worker's report; None when there is none, or it cannot be read."""
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
        """Cancel a pending job, or signal a running one; its state before, None when the node does not know it."""
        call = api.cancel(self.spec.project_at(member.node, job.project), job.job, signal)
        try:
            return await self.sender.send(member.node, call, timeout=self.timeout)
        except ApiRefused:
            return None  # an unknown project has no jobs

    async def cancel(self, member: NodeState, job: AbandonedJob) -> None:
        """Cancel a job. The first signal lets it end in order, the second ends it at once; its results are not used."""
        if await self.signal(member, job) is api.JobState.RUNNING:
            await self.signal(member, job)

    async def last_words(self, out: JobRun) -> str:
        """The last error in the log of a job that ended without a report, as the end of a sentence."""
        node = out.member.node
        path = f"logs/{self.spec.project_at(node, out.project)}/{out.spider or self.spec.spider}/{out.job}.log"
        try:
            chunk = await self.sender.send(
                node, api.fetch(path, start=0, limit=LOG_TAIL), timeout=self.timeout
            )
            if (end := api.tail(path, LOG_TAIL, chunk)) is not None:
                chunk = await self.sender.send(node, end, timeout=self.timeout)
        except NodeError:
            return ""
        return "; it wrote no log" if chunk is None else last_error(chunk)


def last_error(end: api.Chunk) -> str:
    """The last error in the end of a log, as the end of a sentence."""
    if error := facts_in(end).last_error:
        return f"; the last error in its log: {error[:600]}"
    lines = end.body.decode(errors="replace").strip().splitlines()
    return (
        f"; the last line of its log: {harmless(lines[-1][:300])}"
        if lines
        else "; its log is empty"
    )
