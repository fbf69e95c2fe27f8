"""Ends the attempts of workers: fetches their parts, or puts their batches back into the frontier.

Invariant: an acked batch counts once its part was fetched; the batch of a lost worker waits again.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState, Miss
from scrapyd_dist.coordination.fleet import Out
from scrapyd_dist.errors import StepRefused
from scrapyd_dist.frontier.values import Lessee
from scrapyd_dist.jobs.outcome import BadReport, Report, kept, read_report
from scrapyd_dist.managing.staffing import ALL
from scrapyd_dist.payload import PayloadError, decode
from scrapyd_dist.reasons import not_made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapyd_dist.batches import Attempt, Batch
    from scrapyd_dist.coordination.ending import Endings
    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.frontier.values import Backlog, Leased
    from scrapyd_dist.managing.frontdesk import FrontDesk

logger = logging.getLogger(__name__)

#: batches that are given up in one step
BURIED = 50


@dataclass(kw_only=True)
class Returning:
    """Finds attempts that have ended in the store, and ends them here."""

    desk: FrontDesk
    endings: Endings
    accepted: Callable[[str], None]  #: called with the slot of each accepted batch
    hangs: Callable[[str, str], object] = lambda *_: None  #: called with a worker that renews no lease, and why
    key: bytes | None = None  #: key of encrypted batches
    coming: set[tuple[int, int]] = field(default_factory=set)  #: batch and attempt of parts that are being fetched

    async def look(self, backlog: Backlog) -> None:
        """Fetch what is acked, and put back what has expired."""
        if backlog.acked > len(self.coming):
            for attempt in await self._attempts(AttemptState.ACKED):
                if (attempt.batch, attempt.number) not in self.coming and not self._may_come_back(attempt):
                    self.coming.add((attempt.batch, attempt.number))
                    self.desk.spawn(self._bring_home(attempt))
        if backlog.expired:
            for attempt in await self.desk.store(self.desk.store.store.expired, self.desk.spec.crawl):
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

    async def take_back_pushed(self) -> None:
        """Put back batches that an earlier process sent to nodes: workers lease them now."""
        for attempt in await self._attempts(AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING):
            if not attempt.worker:
                await self._give_up(attempt, "batches of this crawl are leased by workers now")

    async def bury(self, lane: str, reason: str) -> None:
        """Give up all batches that wait in this lane, for this reason."""
        db, crawl = self.desk.store.store, self.desk.spec.crawl
        async for one in self._take_away(lane):
            await self.desk.store(
                db.fail, crawl, one.batch.number, one.attempt, reason=reason, now=time.time(), max_attempts=0
            )
            logger.error("batch %d is dead: %s", one.batch.number, reason)
            self.desk.tally.failed += 1
            self.desk.tally.died(one.batch)
        self.desk.news.set()

    async def leave_out(self, lane: str, reason: str) -> None:
        """Drop what waits in this lane: its workers have ended as their settings say."""
        kind, words = not_made(reason)
        async for one in self._take_away(lane):
            number, size = one.batch.number, one.batch.size
            report = Report(
                ended=True, updated=time.time(), requests=size, done=0, missed=size, pages=0, items=0,
                finish_reason="finished", errors=0 if kind == "gone" else size,
            )  # fmt: skip
            told = kept(report)
            missed = [Miss(url=url, kind=kind, reason=words, batch=number) for url in self._urls(one)]
            await self.desk.store(
                self.desk.store.store.accept, self.desk.spec.crawl, number, one.attempt, report=told, part="",
                misses=missed, now=time.time(),
            )  # fmt: skip
            self.desk.tally.accepted(number, told, missed)
        self.desk.news.set()

    def _urls(self, leased: Leased) -> list[str]:
        """The URLs of a batch; as many empty ones when it cannot be read, so that the account balances."""
        try:
            return [value["url"] for value in decode(leased.payload.get, key=self.key)]
        except PayloadError:
            return [""] * leased.batch.size

    async def _take_away(self, lane: str) -> AsyncIterator[Leased]:
        """All batches that wait in a lane, leased so that no worker gets them."""
        db, crawl = self.desk.store.store, self.desk.spec.crawl
        nobody = Lessee(job=f"{crawl}.nobody", node="", url="")
        slots = [] if lane == ALL else [lane]
        while leased := await self.desk.store(
            db.lease_next, crawl, nobody, slots=slots, seconds=60.0, limit=BURIED, now=time.time()
        ):
            for one in leased:
                yield one

    async def _attempts(self, *states: AttemptState) -> list[Attempt]:
        return await self.desk.store(self.desk.store.store.attempts, self.desk.spec.crawl, set(states))

    def _may_come_back(self, attempt: Attempt) -> bool:
        """True when its node is unreachable, and not yet given up."""
        member = self._member(attempt)
        if member is None or member.down_since is None:
            return False
        return time.time() - member.down_since < self.desk.limits.node_timeout

    def _is_up(self, attempt: Attempt) -> bool:
        member = self._member(attempt)
        return member is not None and member.up

    def _member(self, attempt: Attempt) -> Member | None:
        return next((one for one in self.desk.members if one.node.url == attempt.url), None)

    async def _bring_home(self, attempt: Attempt) -> None:
        try:
            await self._end(attempt)
        except StepRefused as error:  # it was given up at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)
        finally:
            self.coming.discard((attempt.batch, attempt.number))
            self.desk.news.set()

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

    async def _end_with(self, attempt: Attempt, report: Report) -> None:
        member = self._member(attempt)
        if member is None:
            await self._give_up(attempt, f"its node {attempt.node} is not in the fleet any more")
            return
        if member.down_since is not None:
            await self._give_up(attempt, f"{attempt.node}, where its part is, does not answer any more")
            return
        batch = await self._batch(attempt)
        out = Out(
            batch=batch, number=attempt.number, job=attempt.job, member=member, since=attempt.sent_at,
            start_by=attempt.sent_at, report=report,
        )  # fmt: skip
        if await self.endings.finish(out, report):
            self.accepted(batch.slot)

    def _count(self, worker: str, report: Report) -> None:
        """Count an ended batch no longer as its worker's progress."""
        for one in self.desk.workers():
            if one.job == worker:
                one.came_home(report)

    async def _give_up(self, attempt: Attempt, reason: str, *, blame: bool = False, harmless: bool = False) -> None:
        member = self._member(attempt)
        # a worker on an unreachable node goes on leasing; its batches are not to blame for what happens there
        alone = member is not None and member.down_since is not None and attempt.sent_at > member.down_since
        batch, number = await self._batch(attempt), attempt.number
        out = attempt.state is not AttemptState.ACKED  # its state when it was read
        try:
            await self.endings.give_up(
                batch, number, reason, attempt.node, blame=blame, harmless=harmless or alone, out=out
            )
        except StepRefused as error:  # it was acked, or given back, at the same moment
            logger.info("batch %d, attempt %d: %s", attempt.batch, attempt.number, error)

    async def _batch(self, attempt: Attempt) -> Batch:
        return await self.desk.store(self.desk.store.store.batch, self.desk.spec.crawl, attempt.batch)
