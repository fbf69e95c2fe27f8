"""Gives each waiting batch a node, an attempt and a post.

Invariants: an attempt is stored before it is posted; a job id that may have been accepted is never posted again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.batches import Attempt, job_id
from scrapyd_dist.coordination.fleet import Out
from scrapyd_dist.coordination.placement import Hand
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

if TYPE_CHECKING:
    from scrapyd_dist.batches import Batch
    from scrapyd_dist.coordination.desk import Desk
    from scrapyd_dist.coordination.ending import Endings
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.coordination.placement import Placement

logger = logging.getLogger(__name__)

#: answers with which a node refuses a job that it could have taken
SAID_NO = (ApiRefused, AuthRefused, CallRefused, NotFound)


@dataclass(kw_only=True)
class Dispatch:
    """Gives waiting batches to nodes."""

    desk: Desk
    endings: Endings
    placement: Placement

    def pump(self) -> None:
        """Give waiting batches to nodes, as long as there is room."""
        desk = self.desk
        if not desk.waiting or not desk.sending or desk.paused:
            return
        dealt = self._deal() if desk.limits.wait else self._all_at_once()
        for batch, member in dealt:
            desk.waiting.remove(batch)
            self._send(batch, member)

    def _deal(self) -> list[tuple[Batch, Member]]:
        desk, most = self.desk, self.desk.limits.max_jobs
        limit = max(0, most - sum(len(member.out) for member in desk.members)) if most else None
        hand = Hand(avoid=desk.avoid, limit=limit, closing=desk.closed)
        return self.placement.deal(desk.waiting, desk.members, hand)

    def _all_at_once(self) -> list[tuple[Batch, Member]]:
        """Give every node its share at once: nothing will be sent later."""
        jobs = {member: len(member.out) for member in self.desk.members if member.usable}
        dealt = []
        for batch in self.desk.waiting if jobs else ():
            member = min(jobs, key=lambda one: jobs[one])
            jobs[member] += 1
            dealt.append((batch, member))
        most = self.desk.limits.max_jobs
        return dealt[: max(0, most - sum(len(member.out) for member in self.desk.members))] if most else dealt

    def _send(self, batch: Batch, member: Member) -> None:
        number = batch.attempts + 1
        now = time.time()
        out = Out(
            batch=batch,
            number=number,
            job=job_id(self.desk.spec.crawl, batch.number, number),
            member=member,
            since=now,
            start_by=now + self.desk.limits.start_timeout,
            at_once=member.free_slots > 0,
        )
        member.out[out.job] = out
        task = self.desk.spawn(self._post(out))
        self.desk.posts.add(task)
        task.add_done_callback(self.desk.posts.discard)

    async def _post(self, out: Out) -> None:
        desk, node = self.desk, out.member.node
        db, crawl = desk.store.store, desk.spec.crawl
        attempt = Attempt(
            batch=out.batch.number, number=out.number, job=out.job, node=node.name, url=node.url, sent_at=out.since
        )
        try:
            await desk.store(db.open_attempt, crawl, attempt)
        except (NothingMatched, StepRefused) as error:
            if not desk.spec.rows:
                raise
            # at a frontier, a row may be deleted while it waits here
            logger.warning("batch %d is not sent: %s", out.batch.number, error)
            out.member.out.pop(out.job, None)
            desk.ended(out.batch.number)
            return
        try:
            payload = await desk.store(db.payload, crawl, out.batch.number)
        except ForeignRow as error:
            await self.endings.failed(out, str(error))
            return
        try:
            await desk.calls.post(out, payload)
        except NodeError as error:
            if not error.maybe_accepted:
                await self._refused(out, error)
                return
            if not await self._was_accepted(out, error):
                return
        desk.tally.sent += 1
        await desk.store(db.sent, crawl, out.batch.number, out.number)
        out.posted = True
        desk.wake(out.member).set()

    async def _refused(self, out: Out, error: NodeError) -> None:
        """The node certainly did not take it: the batch waits again, for another node if there is one."""
        member, desk = out.member, self.desk
        member.out.pop(out.job, None)
        if isinstance(error, SAID_NO):
            said_no(member, error)
        else:
            desk.lost_touch(member, error)
        await desk.store(
            desk.store.store.refused, desk.spec.crawl, out.batch.number, out.number, str(error), time.time()
        )
        desk.wake(member).set()
        desk.put_back(out.batch, member.node.name)
        desk.check_unfit()

    async def _was_accepted(self, out: Out, error: NodeError) -> bool:
        """After a post with an unknown result, ask the node for the job id before anything is sent again."""
        desk, name = self.desk, out.member.node.name
        deadline = time.time() + desk.limits.node_timeout
        logger.warning("%s: it is not known whether job %s was accepted (%s); asking", out.member.node, out.job, error)
        while True:
            try:
                if await desk.calls.status(out) is not None or await desk.calls.report(out) is not None:
                    return True
            except NodeError as again:
                desk.lost_touch(out.member, again)
                if not desk.sending:
                    return False  # stored as being sent: a resumed crawl asks again
                if time.time() > deadline:
                    await self.endings.failed(out, f"nobody knows whether {name} took it ({error})")
                    return False
                await asyncio.sleep(desk.limits.poll)
                continue
            await self.endings.failed(out, f"{name} did not take it ({error})")
            return False


def said_no(member: Member, error: NodeError) -> None:
    """The node answers and refuses. The first time it may have lost the code; the second time it gets no more work."""
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
