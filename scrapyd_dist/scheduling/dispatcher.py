"""Gives each waiting batch a node, an attempt and a post.

Invariants: an attempt is stored before it is posted; a job id that may have been accepted is never posted again.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from scrapyd_dist.batches import Attempt, Batch, job_id
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
from scrapyd_dist.scheduling.base import SchedulerState
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.placement import Placement

logger = logging.getLogger(__name__)

#: answers with which a node refuses a job that it could have taken
SAID_NO = (ApiRefused, AuthRefused, CallRefused, NotFound)


@dataclass(kw_only=True)
class Dispatcher:
    state: SchedulerState
    collector: Collector
    placement: Placement

    def pump(self) -> None:
        """Give waiting batches to nodes, as long as there is room."""
        state = self.state
        if not state.waiting or not state.sending or state.paused or state.ends_early:
            return
        most = state.limits.max_jobs
        limit = max(0, most - sum(len(member.out) for member in state.members)) if most else None
        if state.limits.wait:
            dealt = self.placement.deal(
                state.waiting, state.sent_to, avoid=state.avoid, limit=limit, closing=state.closed
            )
        else:
            dealt = self._all_at_once()[:limit]
        for batch, member in dealt:
            state.waiting.remove(batch)
            self._send(batch, member)

    def _all_at_once(self) -> list[tuple[Batch, NodeState]]:
        """Give every node its share at once: nothing will be sent later."""
        jobs = {member: len(member.out) for member in self.state.sent_to if member.usable}
        dealt = []
        for batch in self.state.waiting if jobs else ():
            member = min(jobs, key=lambda one: jobs[one])
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
        state, node = self.state, out.member.node
        if not await state.reserve(
            out
        ):  # all that is left is reserved for others, which may not use it
            out.member.out.pop(out.job, None)
            state.waiting.appendleft(out.batch)
            return
        attempt = Attempt(
            batch=out.batch.number,
            number=out.number,
            job=out.job,
            node=node.name,
            url=node.url,
            sent_at=out.since,
        )
        try:
            await state.run(state.db.open_attempt, attempt)
        except (NothingMatched, StepRefused) as error:
            if not (state.spec.rows or state.leases):
                raise
            # a row of a frontier may be deleted while it waits here, and any batch leased where workers do that
            logger.info("batch %d is not sent: %s", out.batch.number, error)
            state.count_for(out, over=True)
            out.member.out.pop(out.job, None)
            state.ended(out.batch.number)
            return
        try:
            payload = await state.run(state.db.payload, out.batch.number)
        except ForeignRow as error:
            await self.collector.failed(out, str(error))
            return
        try:
            await state.client.post(out, payload)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(out, error)
                return
            if not await self._was_accepted(out, error):
                return
        state.counters.sent += 1
        await state.run(state.db.sent, out.batch.number, out.number)
        out.posted = True
        out.member.wake.set()

    async def _refused(self, out: JobRun, error: NodeError) -> None:
        """The node certainly did not take it: the batch waits again, for another node if there is one."""
        member, state = out.member, self.state
        state.count_for(out, over=True)
        member.out.pop(out.job, None)
        note_refusal(state, member, error)
        await state.run(
            state.db.give_back,
            out.batch.number,
            out.number,
            None,
            reason=str(error),
            now=time.time(),
        )
        member.wake.set()
        state.put_back(out.batch, member.node.name)
        state.check_unfit()

    async def _was_accepted(self, out: JobRun, error: NodeError) -> bool:
        """After a post with an unknown result, ask the node for the job id before anything is sent again."""
        state, name = self.state, out.member.node.name
        deadline = time.time() + state.limits.node_timeout
        logger.warning(
            "%s: it is not known whether job %s was accepted (%s); asking",
            out.member.node,
            out.job,
            error,
        )
        while True:
            try:
                if (
                    await state.client.status(out) is not None
                    or await state.client.report(out) is not None
                ):
                    return True
            except NodeError as again:
                state.lost_touch(out.member, again)
                if not state.sending:
                    return False  # stored as being sent: a resumed crawl asks again
                if time.time() > deadline:
                    why = f"it is not known whether {name} took it ({error})"
                    await self.collector.failed(out, why, harmless=True)
                    return False
                await asyncio.sleep(state.limits.poll)
                continue
            await self.collector.failed(out, f"{name} did not take it ({error})", harmless=True)
            return False


def note_refusal(state: SchedulerState, member: NodeState, error: NodeError) -> None:
    """A node took no job. If it refused: the first time it may have lost the code, the second time it gets no more."""
    if not isinstance(error, SAID_NO):
        state.lost_touch(member, error)
        return
    if isinstance(error, ApiRefused) and not member.prepared:
        return  # several posts were refused at once: that counts once
    if isinstance(error, ApiRefused) and not member.refusals:
        member.refusals += 1
        member.prepared = False
        return
    if isinstance(error, AuthRefused) and not member.refusals:
        member.refusals += 1
        member.missed(str(error), time.time())  # the password may be mended until the next poll
        return
    member.unfit = str(error)
    logger.error("%s gets no more work: %s", member.node, error)
