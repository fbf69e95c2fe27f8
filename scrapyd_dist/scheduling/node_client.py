"""The calls that a scheduler makes to the nodes about its attempts. Keeps no state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ApiRefused
from scrapyd_dist.joblogs.worker_report import BadReport, WorkerReport, read_report, report_path
from scrapyd_dist.scheduling.job_request import JobRequest, call_for, last_words
from scrapyd_dist.scrapyd import api

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scheduling.node_state import AbandonedJob, JobRun, NodeState
    from scrapyd_dist.transports import AsyncSender

logger = logging.getLogger(__name__)


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
        if load.date is not None:
            member.skew = load.date.timestamp() - (before + time.time()) / 2
        return load

    async def post(self, out: JobRun, payload: Mapping[str, str]) -> None:
        """Post the attempt."""
        call = call_for(self.spec, out, payload, await self._told(out.member.node))
        await self.sender.send(out.member.node, call, timeout=self.timeout)

    async def _told(self, node: Node) -> Mapping[str, str]:
        """What a job on this node is told of the store; empty when it cannot reach the store."""
        if self.spec.ways is None:
            return {}
        way = await asyncio.get_running_loop().run_in_executor(None, self.spec.ways, node)
        if way.reason:
            logger.debug("workers on %s hold no leases: %s", node, way.reason)
        return way.told

    async def status(self, out: JobRun) -> api.JobState | None:
        """The job's state by Scrapyd; None when the node does not know the job (any more)."""
        node, project = out.member.node, self._project(out.member, out.project)
        try:
            state = await self.sender.send(node, api.status(out.job, project), timeout=self.timeout)
            if state is not api.JobState.FINISHED or out.report is not None:
                return state
            # Scrapyd reports a finished job of this id first: it may belong to an earlier crawl of the same name.
            jobs = await self.sender.send(node, api.listjobs(project), timeout=self.timeout)
            return next((job.state for job in (*jobs.running, *jobs.pending) if job.id == out.job), state)
        except ApiRefused:
            return None  # an unknown project has no jobs

    async def report(self, out: JobRun) -> WorkerReport | None:
        """The worker's report; None when there is none, or it cannot be read."""
        call = api.fetch(report_path(self.spec.home, out.job))
        chunk = await self.sender.send(out.member.node, call, timeout=self.timeout)
        if chunk is None:
            return None
        try:
            return read_report(chunk.body)
        except BadReport as error:
            logger.warning("%s: %s", out.job, error)
            return None

    async def cancel(self, member: NodeState, given_up: AbandonedJob) -> None:
        """Cancel a job. The first signal lets it end in order, the second ends it at once; its results are not used."""
        call = api.cancel(self._project(member, given_up.project), given_up.job)
        with contextlib.suppress(ApiRefused):  # an unknown project has no jobs
            for _ in range(2):
                if await self.sender.send(member.node, call, timeout=self.timeout) is not api.JobState.RUNNING:
                    return

    async def last_words(self, out: JobRun) -> str:
        """The last error in the job's log, as the end of a sentence."""
        return await last_words(self.sender, out, self.spec, self.timeout)

    def _project(self, member: NodeState, other: str) -> str:
        return other or member.node.project or self.spec.project
