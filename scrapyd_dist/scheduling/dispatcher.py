"""Gives each waiting batch a node, an attempt and a post.

Invariants: an attempt is stored before it is posted; a job id that may have been accepted is never
posted again.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from scrapyd_dist.batches import Batch, job_id
from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    CallRefused,
    ForeignRow,
    NodeError,
    NotFound,
    NothingMatched,
    StepRefused,
)
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.scheduling.attempt_failure import FailureKind
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scheduler_state import SchedulerState

logger = logging.getLogger(__name__)

#: answers with which a node refuses a job that it could have taken
SAID_NO = (ApiRefused, AuthRefused, CallRefused, NotFound)
#: time between two deals, by that of the first: with a thousand nodes one takes milliseconds
REST = 4.0


@dataclass(kw_only=True)
class Dispatcher:
    """Sends batches to nodes as jobs, one batch per job, whenever there may be room."""

    state: SchedulerState
    collector: Collector
    placement: Placement
    _is_due: bool = field(default=False, init=False)  #: batches are given out soon
    _rest: float = field(default=0.0, init=False)  #: seconds until then

    def __post_init__(self) -> None:
        self.state.on_room(self.pump)

    def pump(self) -> None:
        """Give waiting batches to nodes soon: one look at the nodes serves many ends of jobs."""
        if self._has_work and not self._is_due:
            self._is_due = True
            self.state.spawn(self._deal_soon())

    @property
    def _has_work(self) -> bool:
        return bool(self.state.queue.waiting) and self.state.status.gives_out

    async def _deal_soon(self) -> None:
        await asyncio.sleep(self._rest)
        self._is_due = False
        if self._has_work:
            began = time.perf_counter()
            self._deal()
            self._rest = REST * (time.perf_counter() - began)

    def _deal(self) -> None:
        """Give waiting batches to nodes, as long as there is room."""
        state = self.state
        queue = state.queue
        limit = self._limit()
        if state.limits.wait:
            dealt = self.placement.deal(
                queue.waiting,
                state.sent_to,
                requests=queue.requests,
                avoid=queue.avoid,
                limit=limit,
                closing=state.status.closed,
            )
        else:
            dealt = self._all_at_once()[:limit]
        for batch, member in dealt:
            queue.remove(batch)
            self._send(batch, member)

    def _limit(self) -> int | None:
        """Return how many more jobs may be out; None without a limit."""
        most = self.state.limits.max_jobs
        if not most:
            return None
        return max(0, most - self.state.jobs_out)

    def _all_at_once(self) -> list[tuple[Batch, NodeState]]:
        """Give every node its share at once, whatever the placement: nothing is sent later."""
        jobs = {member: len(member.out) for member in self.state.sent_to if member.usable}
        if not jobs:
            return []
        dealt = []
        for batch in self.state.queue.waiting:
            member = min(jobs, key=jobs.__getitem__)
            jobs[member] += 1
            dealt.append((batch, member))
        return dealt

    def _send(self, batch: Batch, member: NodeState) -> None:
        number = batch.attempts + 1
        now = time.time()
        out = JobRun(
            batch=batch,
            number=number,
            job=job_id(self.state.spec.home, batch.number, number),
            member=member,
            since=now,
            start_by=now + self.state.limits.start_timeout,
            at_once=member.idle_slots > 0,
            spider=spider_of_slot(batch.slot)[1],
        )
        self.state.send_out(out, self._post(out))

    async def _post(self, out: JobRun) -> None:
        """Store an attempt and post its job."""
        state = self.state
        if not await state.goals.reserve(out):
            # all that is left is reserved for others, which may not use it
            out.member.drop(out)
            state.queue.put_first(out.batch)
            return
        if not await self._open_attempt(out):
            return
        try:
            payload = await state.run(state.db.payload, out.batch.number)
        except ForeignRow as error:
            await self.collector.give_up_job(out, str(error))
            return
        try:
            await state.client.post(out, payload, state.rules)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(out, error)
                return
            if not await self._was_accepted(out, error):
                return
        state.counters.post_accepted()
        await state.run(state.db.sent, out.batch.number, out.number)
        out.answer_post()

    async def _open_attempt(self, out: JobRun) -> bool:
        """Store the attempt of a job; False if its batch cannot be sent any more."""
        state = self.state
        try:
            await state.run(state.db.open_attempt, out.attempt)
        except (NothingMatched, StepRefused) as error:
            if not (state.spec.rows or state.leases):
                raise
            # a row of a frontier may be deleted while it waits here, and any batch leased where
            # workers do that
            logger.info("batch %d is not sent: %s", out.batch.number, error)
            state.goals.count_for(out, over=True)
            out.member.drop(out)
            state.forget_batch(out.batch.number)
            return False
        return True

    async def _refused(self, out: JobRun, error: NodeError) -> None:
        """Let the batch wait again that a node has certainly not accepted.

        It goes to another node if there is one.
        """
        state = self.state
        member = out.member
        state.goals.count_for(out, over=True)
        member.drop(out)
        note_refusal(state, member, error)
        await state.run(
            state.db.give_back,
            out.batch.number,
            out.number,
            None,
            reason=str(error),
            now=time.time(),
        )
        member.poll_now()
        state.put_back(out.batch, member.node.name)
        state.check_unfit()

    async def _was_accepted(self, out: JobRun, error: NodeError) -> bool:
        """Find out, after a post with an unknown result, whether the node has the job.

        It is asked for the job id before anything is sent again. Without the job, the attempt is
        given up here.
        """
        state = self.state
        name = out.member.node.name
        deadline = time.time() + state.limits.node_timeout
        logger.warning(
            "%s: it is not known whether job %s was accepted (%s); asking",
            out.member.node,
            out.job,
            error,
        )
        while True:
            try:
                is_known = await self._is_known(out)
            except NodeError as poll_error:
                state.lost_touch(out.member, poll_error)
                if not state.status.sending:
                    return False  # stored as being sent: a resumed crawl asks again
                if time.time() > deadline:
                    why = f"it is not known whether {name} took it ({error})"
                    await self.collector.give_up_job(out, why, FailureKind.HARMLESS)
                    return False
                await asyncio.sleep(state.limits.poll)
                continue
            if not is_known:
                reason = f"{name} did not take it ({error})"
                await self.collector.give_up_job(out, reason, FailureKind.HARMLESS)
            return is_known

    async def _is_known(self, out: JobRun) -> bool:
        """Whether the node knows the job, or has its report."""
        client = self.state.client
        return await client.status(out) is not None or await client.report(out) is not None


def note_refusal(state: SchedulerState, member: NodeState, error: NodeError) -> None:
    """Judge a node that accepted no job.

    If it refused: the first time it may have lost the code, the second time it gets no more.
    """
    if not isinstance(error, SAID_NO):
        state.lost_touch(member, error)
        return
    readiness = member.readiness
    if isinstance(error, ApiRefused) and not readiness.prepared:
        return  # several posts were refused at once: that counts once
    if isinstance(error, (ApiRefused, AuthRefused)) and readiness.forgive_refusal():
        if isinstance(error, ApiRefused):
            readiness.code_lost()
        else:  # the password may be mended until the next poll
            member.liveness.missed(str(error), time.time())
        return
    readiness.mark_unfit(str(error))
    logger.error("%s gets no more work: %s", member.node, error)
