"""Polls nodes and the jobs on them, each node in a task of its own, so that a slow node delays no other."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import NodeError, NothingMatched, StepRefused
from scrapyd_dist.job_record import Outcome, key_of_attempt
from scrapyd_dist.joblogs.verdict import by_report
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.scheduling.autoscaler import Autoscaler
from scrapyd_dist.scheduling.base import SchedulerState
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scrapyd import api

logger = logging.getLogger(__name__)

#: seconds without a change in a report after which the node is asked whether the job still runs
FRESH = 2.5
#: times as long as a lease that the report of a job without one may stay the same
MUTE = 5
#: seconds for which a job unknown to its node is not given up
UNKNOWN_GRACE = 8.0
#: seconds for which a running job may have no report: it has just started, or its files are gone
UNHEARD = 300.0


@dataclass(kw_only=True)
class NodeMonitor:
    """Watches nodes, and finds out how the jobs that are out end."""

    state: SchedulerState
    jobs: Collector  #: receives how jobs end that were sent a batch
    workers: Autoscaler  #: receives how workers end
    prepare: Callable[
        [NodeState], Awaitable[str]
    ]  #: brings the crawl's code to a node; a reason when it cannot
    _dark_since: float | None = None

    def begin(self, member: NodeState) -> None:
        """Watch the node from now on; a second call has no effect."""
        if not member.watched:
            member.watched = True
            self.state.spawn(self.watch(member))

    async def watch(self, member: NodeState) -> None:
        """Poll the node until the crawl is over, or the node has left and has no job of ours."""
        state = self.state
        while not state.over.is_set():
            member.wake.clear()
            room = member.room()
            try:
                await self._look(member)
            except NodeError as error:
                state.lost_touch(member, error)
                await self._give_up_on(member)
            if member.room() > room:
                state.pump()
            if member.left and not member.out and not member.cancel_later:
                member.watched = False
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(member.wake.wait(), self._pause(member))

    def _pause(self, member: NodeState) -> float:
        """Seconds until the next poll: short when a job is about to end, longer when all have far to go."""
        poll = self.state.limits.poll
        if not member.out:
            return poll * (5 if member.usable else 1)
        left = min(out.left(time.time()) for out in member.out.values())
        # once nothing waits, a job that ends sooner than its pace promises would keep the whole crawl open
        rare = left and not (self.state.closed and not self.state.backlog.waiting)
        return min(max(left / 4, poll / 4), poll * 5 if rare else poll)

    async def _look(self, member: NodeState) -> None:
        before = set(member.out)
        load = await self.state.client.load(member)
        was_down = not member.up
        member.seen(load)
        # while a post is in flight, its job may or may not be in the node's load
        settled = before == set(member.out) and all(out.posted for out in member.out.values())
        member.weighed(load, len(before) if settled else None, time.time())
        if was_down:
            logger.info("%s answers again", member.node)
        if not member.prepared and not member.unfit:
            member.unfit = await self.prepare(member)
            member.prepared = not member.unfit
            self.state.check_unfit()
        # Before the looks: a job that the node tells nothing about may keep their turn from its end.
        uncancelled = await self._cancel(member)
        for out in list(member.out.values()):
            if self._is_ours(out):
                await self._look_in_time(out)
        if uncancelled is not None:
            raise uncancelled
        if member.wedged_since is not None and not member.trial:
            await self._take_back(member)

    async def _cancel(self, member: NodeState) -> NodeError | None:
        """Cancel what was given up while the node did not answer; the error if it does not take that."""
        try:
            while member.cancel_later:
                await self.state.client.cancel(member, member.cancel_later[0])
                await self.workers.cancelled(member.cancel_later.pop(0).job)
        except NodeError as error:
            return error
        return None

    async def _take_back(self, member: NodeState) -> None:
        """The node starts nothing: its waiting jobs go elsewhere."""
        waiting = [out for out in member.out.values() if out.report is None and self._is_ours(out)]
        if not waiting:
            return
        logger.warning(
            "%s takes jobs and starts none; it gets no more work until it does", member.node
        )
        for out in waiting:
            await self._events(out).failed(out, f"{member.node.name} takes jobs and starts none")
        member.gave_up_waiting(time.time())

    def _events(self, out: JobRun) -> Collector | Autoscaler:
        return self.workers if isinstance(out, WorkerRun) else self.jobs

    def _is_ours(self, out: JobRun) -> bool:
        """True when this monitor may end it: its post was answered, and its batch is still open."""
        is_open = isinstance(out, WorkerRun) or out.batch.number in self.state.open
        return out.posted and out.job in out.member.out and is_open

    async def _look_in_time(self, out: JobRun) -> None:
        """A node that answers, but not about this job, must not keep it for ever."""
        try:
            await self._look_at(out)
            out.untold_since = None
        except NodeError as error:
            now, patience = time.time(), self.state.limits.node_timeout
            out.untold_since = out.untold_since or now
            if now - out.untold_since < patience:
                out.member.out[out.job] = out.member.out.pop(
                    out.job
                )  # the others are asked about first the next time
                raise
            await self._events(out).failed(
                out, f"its node has told nothing of it for {patience:.0f} s: {error}"
            )

    async def _look_at(self, out: JobRun) -> None:
        now, state = time.time(), self.state
        report = await state.client.report(out)
        if report is not None:
            out.unheard_since = None
            if report.ended:
                await self._ended(out, report)
                return
            first = out.heard(report, now)
            if first:
                out.member.started(out)
            if first and out.batch.state is not BatchState.RUNNING:
                await self._is_running(out)
            if now - out.changed < FRESH:
                out.unknown_since = None
                return
        else:
            out.unheard_since = out.unheard_since or now
            if now - out.since < min(FRESH, state.limits.poll):
                return
        await self._ask_about(out, now)

    async def _is_running(self, out: JobRun) -> None:
        try:
            await self.state.run(self.state.db.running, out.batch.number, out.number)
        except (NothingMatched, StepRefused) as error:
            self.jobs.not_in_store(out, error)
        else:
            out.batch = replace(out.batch, state=BatchState.RUNNING)

    async def _ended(self, out: JobRun, report: WorkerReport) -> None:
        if out.report is None:
            out.report = report
            out.member.started(out)
        await self._write_down(out, report)
        if self._is_ours(out):  # its lease may have run out meanwhile
            self._events(out).end(out, report)

    async def _write_down(self, out: JobRun, report: WorkerReport, words: str = "") -> None:
        """Keep how the job ended, for commands: the next crawl's workers remove its report.

        `words`: the end of the sentence that says why. What an attempt that was sent has done is kept with its result.
        """
        verdict = by_report(api.JobState.FINISHED, report)
        if verdict.outcome is Outcome.FINISHED and not isinstance(out, WorkerRun):
            return
        verdict = replace(verdict, reason=f"{verdict.reason}{words}")
        key = key_of_attempt(out.member.node.url, self.state.spec.home, out.job)
        await self.state.store(self.state.db.keep_verdicts, [verdict.kept(key, time.time())])

    async def _ask_about(self, out: JobRun, now: float) -> None:
        """The report does not change: ask the node about the job."""
        client, node = self.state.client, out.member.node.name
        state = await client.status(out)
        if state is api.JobState.RUNNING:
            out.unknown_since = None
            patience = UNHEARD if out.report is None else self.state.limits.node_timeout
            if await self._stands_still(out, now):
                reason = (
                    f"its worker on {node} stands still: it renews neither its report nor a lease"
                )
                await self._events(out).failed(out, reason, blame=out.to_blame)
                with suppress(NodeError):  # it ignores SIGINT
                    await client.signal(out.member, out.given_up, "KILL")
            elif (
                out.unheard_since is not None and now - out.unheard_since > patience
            ):  # no report will come
                await self._events(out).failed(
                    out, f"its worker runs, but its report is gone from the logs of {node}"
                )
            return
        if state is api.JobState.PENDING:
            out.unknown_since = out.unheard_since = None
            if now > out.start_by:
                await self._events(out).failed(
                    out, f"it did not start within {self.state.limits.start_timeout:.0f} s"
                )
            return
        report = await client.report(out)  # it may have ended between the two requests
        if report is not None and report.ended:
            await self._ended(out, report)
            return
        if state is None:
            # a node that was restarted knows none of its jobs; some may still run
            out.unknown_since = out.unknown_since or now
            if now - out.unknown_since < UNKNOWN_GRACE:
                return
        if out.report is not None and report is None:
            await self._events(out).failed(out, f"its report is gone from the logs of {node}")
            return
        await self._died(out, harmless=state is None)  # a node that does not know it was restarted

    async def _died(self, out: JobRun, *, harmless: bool) -> None:
        words, node = await self.state.client.last_words(out), out.member.node.name
        if out.report is not None:
            await self._write_down(out, out.report, words)
        if self._is_ours(out):
            how = "died while it worked" if out.report else "ended before it began"
            reason = f"the worker {how} on {node}{words}"
            await self._events(out).failed(out, reason, blame=out.to_blame, harmless=harmless)

    async def _stands_still(self, out: JobRun, now: float) -> bool:
        """True when a job runs by its node, but neither its report nor its lease is renewed.

        A report is renewed while the worker's event loop turns. Workers that lease are judged by their leases.
        """
        state = self.state
        if not state.spec.lease or out.report is None or isinstance(out, WorkerRun):
            return False
        quiet = now - out.changed
        if not out.report.lease:
            return quiet > MUTE * state.spec.lease
        if quiet < state.spec.lease:
            return False
        late = await state.run(state.db.expired)
        return any(
            (attempt.batch, attempt.number) == (out.batch.number, out.number) for attempt in late
        )

    async def _give_up_on(self, member: NodeState) -> None:
        patience = self.state.limits.node_timeout
        if member.up or member.down_for < patience:
            return
        for out in list(member.out.values()):
            if self._is_ours(out):
                reason = f"{member.node.name} has not answered for {patience:.0f} s"
                await self._events(out).failed(out, reason, harmless=True)

    def check_dark(self) -> None:
        """Stop when no node that could work has answered for `fleet_timeout`; the batches stay in the store."""
        members, patience = self.state.members, self.state.limits.fleet_timeout
        if any(member.up and not member.unfit and not member.left for member in members):
            self._dark_since = None
            return
        self._dark_since = self._dark_since or time.time()
        if time.time() - self._dark_since > patience:
            reasons = {
                m.unfit or m.down_reason or f"{m.node.name} is in no list of nodes" for m in members
            }
            self.state.stop_now(
                f"No node has answered for {patience:.0f} s ({'; '.join(sorted(reasons))})."
            )
