"""Takes up what an earlier process of a crawl has left, or what its store has lost."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from scrapyd_dist.batches import PUT_OFF_REASON, Attempt, AttemptState
from scrapyd_dist.frontier.slots import spider_of_slot
from scrapyd_dist.scheduling.attempt_failure import FailureKind
from scrapyd_dist.scheduling.collector import Collector
from scrapyd_dist.scheduling.membership import Membership
from scrapyd_dist.scheduling.node_state import AbandonedJob, JobRun, NodeState
from scrapyd_dist.scheduling.scheduler_state import SchedulerState

logger = logging.getLogger(__name__)

#: states of an attempt that is out, or whose part is being fetched
_OUT = frozenset(
    {AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACKED}
)


@dataclass(kw_only=True)
class Recovery:
    """Takes up sent jobs by what the store has of them."""

    state: SchedulerState
    collector: Collector
    membership: Membership
    #: batch and attempt of jobs that are out by the store, at the last poll, and not here
    _lost: frozenset[tuple[int, int]] = frozenset()

    async def put_off_rest(self, accepted: Sequence[Attempt]) -> None:
        """Put off what the accepted attempts have left, if an earlier process died over that."""
        misses = await self.state.run(self.state.db.misses)
        if any(miss.reason == PUT_OFF_REASON for miss in misses):
            for attempt in accepted:
                await self.collector.put_off(attempt.batch, attempt.report)

    def recall_accepted(self, accepted: Sequence[Attempt]) -> None:
        """Count the accepted attempts at their nodes."""
        members: dict[str, NodeState] = {}
        for member in self.state.members:
            members.setdefault(member.node.name, member)
        for attempt in accepted:
            if attempt.node in members:
                member = members[attempt.node]
                member.recall_accepted(attempt.report.get("items", 0))

    async def recover_jobs(self, attempts: Sequence[Attempt]) -> None:
        """Cancel the jobs of failed attempts again, and take up those that are out."""
        for attempt in attempts:
            if attempt.state is AttemptState.FAILED and not attempt.worker:
                self._cancel_again(attempt)
        for attempt in attempts:
            if _is_sent_and_out(attempt):
                await self._take_up(attempt)

    async def take_up_lost(self) -> None:
        """Go on with what the store knows, where it has lost steps: as a server that failed over.

        By then no job is out here any more, and the store says that some are: twice in a row, so
        that no step is under way between the two.
        """
        state = self.state
        if self._has_jobs():
            self._lost = frozenset()
            return
        if not state.backlog.leased:
            return
        attempts = await state.run(state.db.attempts)
        out = [attempt for attempt in attempts if _is_sent_and_out(attempt)]
        seen = frozenset((attempt.batch, attempt.number) for attempt in out)
        is_certain = seen == self._lost
        self._lost = seen
        if not (seen and is_certain):
            return
        logger.warning(
            "the store has lost the end of %d jobs, which was known here: they are asked again",
            len(out),
        )
        self._lost = frozenset()
        for attempt in out:
            await self._take_up(attempt)

    def _has_jobs(self) -> bool:
        """Whether a batch is sent, or about to be."""
        if self.state.queue.open or self.state.tasks.posts:
            return True
        return any(member.out for member in self.state.sent_to)

    async def _take_up(self, attempt: Attempt) -> None:
        """Watch a job that is out, or give it up if its node has gone."""
        batch = await self.state.run(self.state.db.batch, attempt.batch)
        self.state.queue.take_up(batch)
        member = self.state.member_at(attempt.url)
        if member is None:
            self._cancel_again(attempt)
            reason = f"its node {attempt.node} is not in the fleet any more"
            kind = FailureKind.HARMLESS
            await self.collector.give_up(batch, attempt.number, reason, kind=kind)
            return
        out = JobRun(
            batch=batch,
            number=attempt.number,
            job=attempt.job,
            member=member,
            since=attempt.sent_at,
            start_by=time.time() + self.state.limits.start_timeout,
            posted=True,
            spider=spider_of_slot(batch.slot)[1],
        )
        member.add(out)

    def _cancel_again(self, attempt: Attempt) -> None:
        """Cancel this job again: the earlier process may have died before it told its node."""
        member = self.state.member_at(attempt.url)
        if member is not None:
            member.cancel_when_up(AbandonedJob(attempt.job))
        else:
            self.membership.cancel_on_return(attempt.url, AbandonedJob(attempt.job))


def _is_sent_and_out(attempt: Attempt) -> bool:
    """Whether this is the attempt of a job that was sent, and that has not ended by the store."""
    return attempt.state in _OUT and not attempt.worker
