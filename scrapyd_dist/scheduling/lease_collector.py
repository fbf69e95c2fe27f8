"""Ends the attempts of workers: fetches their parts, or puts their batches back into the frontier.

Invariant: an acked batch counts once its part was fetched; the batch of a lost worker waits again.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState, Miss, not_made
from scrapyd_dist.errors import StepRefused
from scrapyd_dist.frontier.backlog import Lessee
from scrapyd_dist.joblogs.worker_report import BadReport, WorkerReport, kept, read_report
from scrapyd_dist.payload import PayloadError, decode
from scrapyd_dist.scheduling.node_state import JobRun
from scrapyd_dist.scheduling.scaling_policy import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapyd_dist.batches import Attempt, Batch
    from scrapyd_dist.frontier.backlog import Backlog, Leased
    from scrapyd_dist.scheduling.base import SchedulerState
    from scrapyd_dist.scheduling.collector import Collector
    from scrapyd_dist.scheduling.node_state import NodeState

logger = logging.getLogger(__name__)

#: batches that are given up in one step
BURIED = 50


@dataclass(kw_only=True)
class LeaseCollector:
    """Finds attempts that have ended in the store, and ends them here."""

    state: SchedulerState
    collector: Collector
    accepted: Callable[[str], None]  #: called with the slot of each accepted batch
    hangs: Callable[[str, str], object] = lambda *_: None  #: called with a worker that renews no lease, and why
    key: bytes | None = None  #: key of encrypted batches
    coming: set[tuple[int, int]] = field(default_factory=set)  #: batch and attempt of parts that are being fetched

    async def look(self, backlog: Backlog) -> None:
        """Fetch what is acked, and put back what has expired."""
        if backlog.acked > len(self.coming):
            for attempt in await self._attempts(AttemptState.ACKED):
                if (
                    attempt.worker
                    and (attempt.batch, attempt.number) not in self.coming
                    and not self._may_come_back(attempt)
                ):
                    self.coming.add((attempt.batch, attempt.number))
                    self.state.spawn(self._bring_home(attempt))
        if backlog.expired:
            expired = await self.state.store(self.state.store.store.expired, self.state.spec.crawl)
            for attempt in [one for one in expired if one.worker]:  # a job that was sent is watched at its node
                reason = f"the lease of {attempt.worker or attempt.job} on {attempt.node} has run out"
                blame = self._is_up(attempt)  # its node answers and it does nothing: treated as if it had died
                await self._give_up(attempt, reason, blame=blame)
                if blame and attempt.worker:
                    self.hangs(attempt.worker, reason)

    async def worker_gone(self, job: str, reason: str, *, blame: bool = False, harmless: bool = False) -> int:
        """A worker has ended: batches that it had leased and not acked wait again.

        Args:
            job: the worker.
            reason: why it ended, for messages.
            blame: whether one of these batches may have killed it.
            harmless: its end says nothing of these batches: none dies of it.

        Returns:
            The number of these batches.
        """
        had = [attempt for attempt in await self._attempts(AttemptState.RUNNING) if attempt.worker == job]
        for attempt in had:
            await self._give_up(attempt, reason, blame=blame, harmless=harmless)
        return len(had)

    async def bury(self, pool: str, reason: str) -> None:
        """Give up all batches that wait in this pool, for this reason."""
        db, crawl = self.state.store.store, self.state.spec.crawl
        async for one in self._take_away(pool):
            await self.state.store(
                db.fail, crawl, one.batch.number, one.attempt, reason=reason, now=time.time(), max_attempts=0
            )
            logger.error("batch %d is dead: %s", one.batch.number, reason)
            self.state.counters.failed += 1
            self.state.counters.died(one.batch)
        self.state.news.set()

    async def leave_out(self, pool: str, reason: str) -> None:
        """Drop what waits in this pool: its workers have ended as their settings say."""
        kind, words = not_made(reason)
        async for one in self._take_away(pool):
            number, size = one.batch.number, one.batch.size
            report = WorkerReport(
                ended=True, updated=time.time(), requests=size, done=0, missed=size, pages=0, items=0,
                finish_reason="finished", errors=0 if kind == "gone" else size,
            )  # fmt: skip
            told = kept(report)
            missed = [Miss(url=url, kind=kind, reason=words, batch=number) for url in self._urls(one)]
            await self.state.store(
                self.state.store.store.accept, self.state.spec.crawl, number, one.attempt, report=told, part="",
                misses=missed, now=time.time(),
            )  # fmt: skip
            self.state.counters.accepted(number, told, missed)
        self.state.news.set()

    def _urls(self, leased: Leased) -> list[str]:
        """The URLs of a batch; as many empty ones when it cannot be read, so that the account balances."""
        try:
            return [value["url"] for value in decode(leased.payload.get, key=self.key)]
        except PayloadError:
            return [""] * leased.batch.size

    async def _take_away(self, pool: str) -> AsyncIterator[Leased]:
        """All batches that wait in a pool, leased so that no worker gets them."""
        db, crawl = self.state.store.store, self.state.spec.crawl
        nobody = Lessee(job=f"{crawl}.nobody", node="", url="")
        slots = [] if pool == ALL else [pool]
        while leased := await self.state.store(
            db.lease_next, crawl, nobody, slots=slots, seconds=60.0, limit=BURIED, now=time.time()
        ):
            for one in leased:
                yield one

    async def _attempts(self, *states: AttemptState) -> list[Attempt]:
        return await self.state.store(self.state.store.store.attempts, self.state.spec.crawl, set(states))

    def _may_come_back(self, attempt: Attempt) -> bool:
        """True when its node is unreachable, and not yet given up."""
        member = self._member(attempt)
        if member is None or member.down_since is None:
            return False
        return time.time() - member.down_since < self.state.limits.node_timeout

    def _is_up(self, attempt: Attempt) -> bool:
        member = self._member(attempt)
        return member is not None and member.up

    def _member(self, attempt: Attempt) -> NodeState | None:
        return next((one for one in self.state.members if one.node.url == attempt.url), None)

    async def _bring_home(self, attempt: Attempt) -> None:
        try:
            await self._end(attempt)
        except StepRefused as error:  # it was given up at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)
        finally:
            self.coming.discard((attempt.batch, attempt.number))
            self.state.news.set()

    async def _end(self, attempt: Attempt) -> None:
        try:
            report = read_report(json.dumps(dict(attempt.report)).encode())
        except BadReport as error:
            await self._give_up(attempt, str(error))
            return
        try:
            await self._end_with(attempt, report)
        finally:
            self._count(attempt.worker, report)

    async def _end_with(self, attempt: Attempt, report: WorkerReport) -> None:
        member = self._member(attempt)
        if member is None:
            await self._give_up(attempt, f"its node {attempt.node} is not in the fleet any more")
            return
        if member.down_since is not None:
            await self._give_up(attempt, f"{attempt.node}, where its part is, does not answer any more")
            return
        batch = await self._batch(attempt)
        out = JobRun(
            batch=batch, number=attempt.number, job=attempt.job, member=member, since=attempt.sent_at,
            start_by=attempt.sent_at, report=report,
        )  # fmt: skip
        if await self.collector.finish(out, report):
            self.accepted(batch.slot)

    def _count(self, worker: str, report: WorkerReport) -> None:
        """Count an ended batch no longer as its worker's progress."""
        for one in self.state.workers():
            if one.job == worker:
                one.came_home(report)

    async def _give_up(self, attempt: Attempt, reason: str, *, blame: bool = False, harmless: bool = False) -> None:
        member = self._member(attempt)
        # a worker on an unreachable node goes on leasing; its batches are not to blame for what happens there
        alone = member is not None and member.down_since is not None and attempt.sent_at > member.down_since
        batch, number = await self._batch(attempt), attempt.number
        out = attempt.state is not AttemptState.ACKED  # its state when it was read
        try:
            await self.collector.give_up(
                batch, number, reason, attempt.node, blame=blame, harmless=harmless or alone, out=out
            )
        except StepRefused as error:  # it was acked, or given back, at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)

    async def _batch(self, attempt: Attempt) -> Batch:
        return await self.state.store(self.state.store.store.batch, self.state.spec.crawl, attempt.batch)
