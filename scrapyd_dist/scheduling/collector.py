"""Ends attempts: accepts them with their part, or gives them up and lets the batch wait again, be cut or die.

Invariant: one attempt of a batch is accepted, after its part was fetched and checked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import ForeignRow, NodeError, StepRefused
from scrapyd_dist.items.merging import PartLost, fetch_part
from scrapyd_dist.joblogs.worker_report import WorkerReport, kept, misses, refusal
from scrapyd_dist.payload import PayloadError, decode, replaced_by
from scrapyd_dist.scheduling.poison import PoisonBisector, blames

if TYPE_CHECKING:
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.scheduling.base import SchedulerState
    from scrapyd_dist.scheduling.node_state import JobRun

logger = logging.getLogger(__name__)

#: parts that are fetched at the same time
FETCHES = 4


@dataclass(kw_only=True)
class Collector:
    """Ends attempts, and stores how."""

    state: SchedulerState
    folder: Path  #: the folder of fetched parts
    bisector: PoisonBisector = field(default_factory=PoisonBisector)
    _fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))

    def end(self, out: JobRun, report: WorkerReport) -> None:
        """The worker's final report is there."""
        # its process slot is free already; the part is fetched while the next poll runs
        out.report = report
        out.member.out.pop(out.job, None)
        self.state.spawn(self._ended(out, report))
        self.state.pump()

    async def _ended(self, out: JobRun, report: WorkerReport) -> None:
        await self.finish(out, report)

    async def finish(self, out: JobRun, report: WorkerReport) -> bool:
        """Judge an ended attempt and fetch its part; True when it was accepted."""
        reason = refusal(report, out.batch.size, feed=self.state.spec.feed)
        if reason:
            await self.give_up(out.batch, out.number, reason, out.member.node.name, blame=blames(report))
            return False
        try:
            part = await self._bring_home(out, report)
        except PartLost as error:
            await self.give_up(out.batch, out.number, str(error), out.member.node.name)
            return False
        await self._accept(out, report, part)
        return True

    async def _accept(self, out: JobRun, report: WorkerReport, part: str) -> None:
        found = misses(report, out.batch.number)
        words = kept(report, await self._replaced(out.batch.number) if report.replaces else ())
        await self.state.store(
            self.state.store.store.accept,
            self.state.spec.crawl,
            out.batch.number,
            out.number,
            report=words,
            part=part,
            misses=found,
            now=time.time(),
        )
        self.state.counters.accepted(out.batch.number, words, found)
        out.member.accepted(report)
        self.state.ended(out.batch.number)

    async def _replaced(self, number: int) -> list[tuple[int, int]]:
        """The requests of earlier batches that this batch retried, as the store has them, whatever the worker says."""
        payload = await self.state.store(self.state.store.store.payload, self.state.spec.crawl, number)
        try:
            return replaced_by(decode(payload.get, key=self.bisector.key))
        except PayloadError as error:
            logger.warning("what batch %d tries again stays beside it: %s", number, error)
            return []

    async def _bring_home(self, out: JobRun, report: WorkerReport) -> str:
        """The name of the fetched part; empty when the items went to a feed."""
        spec = self.state.spec
        if report.part is None or spec.feed:
            return ""
        async with self._fetches:
            patience = self.state.limits.node_timeout
            return await fetch_part(
                self.state.sender, out.member.node, spec.home, out.job, report.part, self.folder, patience
            )

    async def failed(self, out: JobRun, reason: str, *, blame: bool = False) -> None:
        """Give up an attempt that may still run: its job is cancelled before the batch goes elsewhere."""
        member = out.member
        member.out.pop(out.job, None)
        try:
            if member.up:
                await self.state.client.cancel(member, out.given_up)
            else:
                member.cancel_later.append(out.given_up)
        except NodeError as error:
            member.cancel_later.append(out.given_up)
            self.state.lost_touch(member, error)
        await self.give_up(out.batch, out.number, reason, member.node.name, blame=blame)

    async def give_up(
        self,
        batch: Batch,
        number: int,
        reason: str,
        node: str = "",
        *,
        blame: bool = False,
        harmless: bool = False,
        out: bool = False,
    ) -> None:
        """Store the end of a failed attempt; the batch waits for the next one, is cut, or is dead.

        Args:
            batch: the batch.
            number: of the attempt.
            reason: why it failed, for messages.
            node: name of the attempt's node, which the next attempt avoids.
            blame: whether the batch itself may have killed its worker.
            harmless: the failure says nothing about the batch, which never dies of it.
            out: fail the attempt only if it was not acked meanwhile.
        """
        logger.warning("batch %d, attempt %d: %s", batch.number, number, reason)
        most, tried = self.state.limits.max_attempts, number - batch.forgiven
        most = self.bisector.attempts(batch, most) if blame else most
        cut = blame and tried >= most and self.bisector.wants(batch, self.state.counters)
        state = await self.state.store(
            self.state.store.store.fail,
            self.state.spec.crawl,
            batch.number,
            number,
            reason=reason,
            now=time.time(),
            out=out,
            max_attempts=tried + 1
            if cut or harmless
            else most,  # a failure that does not count leaves it waiting, not dead
        )
        self.state.counters.failed += 1
        if cut:
            await self._cut(batch, number)
        elif state is BatchState.DEAD:
            logger.error("batch %d is dead after %d attempts: %s", batch.number, number, reason)
            self.state.counters.died(batch)
            self.state.ended(batch.number)
        else:
            self.state.put_back(replace(batch, state=state, attempts=number, reason=reason), node)

    async def _cut(self, batch: Batch, number: int) -> None:
        """One of its requests kills workers: smaller batches take its requests over."""
        state, db, crawl = self.state, self.state.store.store, self.state.spec.crawl
        try:
            payload = await state.store(db.payload, crawl, batch.number)
            pieces = await state.store(db.split, crawl, batch.number, self.bisector.halves(batch, payload))
        except StepRefused:  # a worker leased it meanwhile: it is cut if that one dies as well
            logger.warning("batch %d is crawled once more before it is cut", batch.number)
            return
        except ForeignRow as error:  # the stored row was changed by another program
            logger.warning("%s", error)
            state.put_back(replace(batch, state=BatchState.FAILED, attempts=number), "")
            return
        names = " and ".join(str(piece.number) for piece in pieces)
        logger.warning(
            "batch %d is cut after %d attempts: its requests are now batches %s", batch.number, number, names
        )
        state.cut_up(batch, pieces)
