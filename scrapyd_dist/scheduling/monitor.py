"""Polls nodes and the jobs on them.

Each node has a task of its own, so that a slow node delays no other.
"""

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
from scrapyd_dist.scheduling.attempt_failure import FailureKind
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.node_client import LastWords
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.scheduling.worker_supervisor import WorkerSupervisor
from scrapyd_dist.scrapyd import api

logger = logging.getLogger(__name__)

#: seconds without a change in a report after which the node is asked whether the job still runs
FRESH = 2.5
#: times as long as a lease that the report of a job without one may stay the same
MUTE = 5
#: seconds for which a job unknown to its node is not given up
UNKNOWN_GRACE = 8.0
#: polls after which the code is brought once more to a node that did not answer amid that
REST = 2
#: seconds for which a running job may have no report: it has just started, or its files are gone
UNHEARD = 300.0


@dataclass(kw_only=True)
class NodeMonitor:
    """Watches nodes, and finds out how the jobs that are out end."""

    state: SchedulerState
    jobs: Collector  #: receives how jobs end that were sent a batch
    workers: WorkerSupervisor  #: receives how workers end
    #: brings the crawl's code to a node; returns a reason when it cannot, and raises NodeError when
    #: the node does not answer
    prepare: Callable[[NodeState], Awaitable[str]]
    #: seconds since the epoch when it was seen first that no node answers that could work
    _dark_since: float | None = None

    def begin(self, member: NodeState) -> None:
        """Watch the node from now on; a second call has no effect."""
        if member.begin_watch():
            self.state.spawn(self.watch(member))

    async def watch(self, member: NodeState) -> None:
        """Poll the node until the crawl is over, or the node has left and has no job of ours."""
        state = self.state
        while not state.status.over.is_set():
            member.begin_poll()
            room = member.room()
            try:
                await self._poll(member)
            except NodeError as error:
                state.lost_touch(member, error)
                await self._give_up_on(member)
            if member.room() > room:
                state.pump()
            if member.left and not member.out and not member.cancel_later:
                member.end_watch()
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(member.wake.wait(), self._pause(member))

    def _pause(self, member: NodeState) -> float:
        """Return the seconds until the next poll.

        They are few when a job is about to end, and more when all have far to go.
        """
        poll = self.state.limits.poll
        if not member.out:
            return poll * (5 if member.usable else 1)
        now = time.time()
        left = min(out.left(now) for out in member.out.values())
        # once nothing waits, a job that ends sooner than its pace promises would keep the whole
        # crawl open
        has_waiting = bool(self.state.backlog.waiting) or not self.state.status.closed
        longest = poll * 5 if left and has_waiting else poll
        return min(max(left / 4, poll / 4), longest)

    async def _poll(self, member: NodeState) -> None:
        """Ask the node for its load, and for the jobs that are out on it."""
        before = set(member.out)
        load = await self.state.client.load(member)
        was_down = not member.up
        member.seen(load)
        # while a post is in flight, its job may or may not be in the node's load
        settled = before == set(member.out) and all(out.posted for out in member.out.values())
        member.weighed(load, len(before) if settled else None, time.time())
        if was_down:
            logger.info("%s answers again", member.node)
        unprepared = await self._prepare(member)
        # Before the jobs: one that the node reports nothing about may keep their turn from its end.
        uncancelled = await self._cancel(member)
        await self.workers.repeat_dismissals(member)
        for out in list(member.out.values()):
            if self._is_ours(out):
                await self._poll_in_time(out)
        problem = unprepared or uncancelled
        if problem is not None:
            raise problem
        if member.liveness.blocked:
            await self._take_back(member)

    async def _prepare(self, member: NodeState) -> NodeError | None:
        """Bring the crawl's code to a node that lacks it.

        Returns the error if it does not answer amid that: a later poll begins anew.
        """
        readiness = member.readiness
        if readiness.prepared or readiness.unfit or readiness.is_resting(time.time()):
            return None
        try:
            readiness.code_brought(problem=await self.prepare(member))
        except NodeError as error:
            readiness.code_late(str(error), time.time(), REST * self.state.limits.poll)
            return error
        self.state.check_unfit()
        if readiness.prepared:
            # It may be another machine now; a batch that fails there again uses up an attempt.
            self.state.queue.end_avoidance(member.node.name)
        return None

    async def _cancel(self, member: NodeState) -> NodeError | None:
        """Cancel what was given up while the node did not answer.

        Returns the error if the node cannot be asked for that.
        """
        try:
            while member.cancel_later:
                await self.state.client.cancel(member, member.cancel_later[0])
                await self.workers.put_back_late_leases(member.note_cancelled().job)
        except NodeError as error:
            return error
        return None

    async def _take_back(self, member: NodeState) -> None:
        """Let the waiting jobs of a node go elsewhere that starts nothing."""
        waiting = [out for out in member.out.values() if out.report is None and self._is_ours(out)]
        if not waiting:
            return
        logger.warning(
            "%s takes jobs and starts none; it gets no more work until it does", member.node
        )
        for out in waiting:
            await self._fail(out, f"{member.node.name} takes jobs and starts none")
        member.liveness.gave_up_waiting(time.time())

    def _receiver(self, out: JobRun) -> Collector | WorkerSupervisor:
        """Return what receives how this job ends."""
        return self.workers if isinstance(out, WorkerRun) else self.jobs

    async def _fail(
        self, out: JobRun, reason: str, kind: FailureKind = FailureKind.COUNTED
    ) -> None:
        await self._receiver(out).give_up_job(out, reason, kind)

    def _is_ours(self, out: JobRun) -> bool:
        """Whether this monitor may end a job: its post was answered, and its batch is open."""
        is_open = isinstance(out, WorkerRun) or out.batch.number in self.state.queue.open
        return out.posted and out.job in out.member.out and is_open

    async def _poll_in_time(self, out: JobRun) -> None:
        """Poll a job; it is given up if the node answers, but not about this job, for too long."""
        try:
            await self._poll_job(out)
            out.untold.end()
        except NodeError as error:
            now = time.time()
            patience = self.state.limits.node_timeout
            if out.untold.goes_on(now) < patience:
                out.member.ask_last(out)
                raise
            await self._fail(out, f"its node has told nothing of it for {patience:.0f} s: {error}")

    async def _poll_job(self, out: JobRun) -> None:
        """Read the report of a job; ask the node about the job if that is old, or missing."""
        now = time.time()
        state = self.state
        report = await state.client.report(out)
        if report is None:
            out.unheard.goes_on(now)
            if now - out.since >= min(FRESH, state.limits.poll):
                await self._check_state(out, now)
            return
        out.unheard.end()
        if report.ended:
            await self._ended(out, report)
            return
        if out.accept_report(report, now):
            out.member.started(out)
            if out.batch.state is not BatchState.RUNNING:
                await self._store_running(out)
        if now - out.changed < FRESH:
            out.unknown.end()
        else:
            await self._check_state(out, now)

    async def _store_running(self, out: JobRun) -> None:
        try:
            await self.state.run(self.state.db.running, out.batch.number, out.number)
        except (NothingMatched, StepRefused) as error:
            self.jobs.forget_lost_job(out, error)
        else:
            out.mark_running()

    async def _ended(self, out: JobRun, report: WorkerReport) -> None:
        """Take the final report of a job."""
        if out.report is None:
            out.accept_last_report(report)
            out.member.started(out)
        await self._write_down(out, report, LastWords(text=""))
        if self._is_ours(out):  # its lease may have run out meanwhile
            self._receiver(out).accept_end(out, report)

    async def _write_down(self, out: JobRun, report: WorkerReport, words: LastWords) -> None:
        """Keep how the job ended, for commands: the next crawl's workers remove its report.

        What an attempt that was sent has done is kept with its result.
        """
        is_needless = isinstance(out, WorkerRun) and self.state.status.done.is_set()
        verdict = by_report(
            api.JobState.FINISHED,
            report,
            needless=is_needless,
            told_to_end=words.was_told_to_end,
        )
        if verdict.outcome is Outcome.FINISHED and not isinstance(out, WorkerRun):
            return
        if verdict.outcome is Outcome.DIED:
            verdict = replace(verdict, reason=f"{verdict.reason}{words.text}")
        key = key_of_attempt(out.member.node.url, self.state.spec.home, out.job)
        await self.state.store(self.state.db.keep_verdicts, [verdict.kept(key, time.time())])

    async def _check_state(self, out: JobRun, now: float) -> None:
        """Ask the node about a job whose report does not change."""
        client = self.state.client
        state = await client.status(out)
        if state is api.JobState.RUNNING:
            out.unknown.end()
            await self._check_running(out, now)
            return
        if state is api.JobState.PENDING:
            await self._check_pending(out, now)
            return
        report = await client.report(out)  # it may have ended between the two requests
        if report is not None and report.ended:
            await self._ended(out, report)
            return
        # a node that was restarted knows none of its jobs; some may still run
        if state is None and out.unknown.goes_on(now) < UNKNOWN_GRACE:
            return
        if out.report is not None and report is None:
            name = out.member.node.name
            await self._fail(out, f"its report is gone from the logs of {name}")
            return
        # a node that does not know it was restarted
        await self._give_up_dead(out, is_restarted=state is None)

    async def _check_pending(self, out: JobRun, now: float) -> None:
        """Give up a job that has waited at its node for too long."""
        out.unknown.end()
        out.unheard.end()
        if now > out.start_by:
            limit = self.state.limits.start_timeout
            await self._fail(out, f"it did not start within {limit:.0f} s")

    async def _check_running(self, out: JobRun, now: float) -> None:
        """Give up a job that runs by its node, but stands still or can give no report."""
        if await self._stands_still(out, now):
            reason = (
                f"its worker on {out.member.node.name} stands still: "
                "it renews neither its report nor a lease"
            )
            await self._fail(out, reason, FailureKind.of_worker(to_blame=out.to_blame))
            with suppress(NodeError):  # it ignores SIGINT
                await self.state.client.signal(out.member, out.given_up, "KILL")
            return
        patience = UNHEARD if out.report is None else self.state.limits.node_timeout
        if out.unheard.since is not None and now - out.unheard.since > patience:
            name = out.member.node.name
            reason = f"its worker runs, but its report is gone from the logs of {name}"
            await self._fail(out, reason)

    async def _give_up_dead(self, out: JobRun, *, is_restarted: bool) -> None:
        """Give up a job that has ended without a final report; its node may have been restarted."""
        words = await self.state.client.last_words(out)
        if out.report is not None:
            await self._write_down(out, out.report, words)
        if self._is_ours(out):
            how = "died while it worked" if out.report else "ended before it began"
            reason = f"the worker {how} on {out.member.node.name}{words.text}"
            kind = FailureKind.of_worker(to_blame=out.to_blame)
            if is_restarted:
                kind = kind.made_harmless
            await self._fail(out, reason, kind)

    async def _stands_still(self, out: JobRun, now: float) -> bool:
        """Return whether a job runs by its node, but renews neither its report nor its lease.

        A report is renewed while the worker's event loop turns. Workers that lease are judged by
        their leases.
        """
        state = self.state
        if not state.spec.lease or out.report is None or isinstance(out, WorkerRun):
            return False
        quiet = now - out.changed
        if not out.report.lease:
            return quiet > MUTE * state.spec.lease
        if quiet < state.spec.lease:
            return False
        for attempt in await state.run(state.db.expired):
            if attempt.batch == out.batch.number and attempt.number == out.number:
                return True
        return False

    async def _give_up_on(self, member: NodeState) -> None:
        """Give up the jobs of a node that has not answered for too long."""
        patience = self.state.limits.node_timeout
        if member.up or member.liveness.down_for < patience:
            return
        for out in list(member.out.values()):
            if self._is_ours(out):
                reason = f"{member.node.name} has not answered for {patience:.0f} s"
                await self._fail(out, reason, FailureKind.HARMLESS)

    def check_dark(self) -> None:
        """Stop when no node that could work has answered for `fleet_timeout`.

        The batches stay in the store.
        """
        members = self.state.members
        patience = self.state.limits.fleet_timeout
        # One that answers polls, and never gets the code, could not work either.
        if any(member.able and not member.left for member in members):
            self._dark_since = None
            return
        self._dark_since = self._dark_since or time.time()
        if time.time() - self._dark_since > patience:
            reasons = "; ".join(sorted(set(map(_why_dark, members))))
            self.state.stop_now(f"No node has answered for {patience:.0f} s ({reasons}).")


def _why_dark(member: NodeState) -> str:
    """Return why a node does no work."""
    unlisted = f"{member.node.name} is in no list of nodes"
    readiness = member.readiness
    return readiness.unfit or member.liveness.down_reason or readiness.late or unlisted
