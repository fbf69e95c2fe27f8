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
from scrapyd_dist.coordination.poison import Cuts, blames
from scrapyd_dist.errors import ForeignRow, NodeError, StepRefused
from scrapyd_dist.items.collect import PartLost, fetch_part
from scrapyd_dist.jobs.outcome import Report, kept, misses, refusal
from scrapyd_dist.payload import PayloadError, decode, replaced_by

if TYPE_CHECKING:
    from pathlib import Path

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.coordination.desk import Desk
    from scrapyd_dist.coordination.fleet import Out

logger = logging.getLogger(__name__)

#: parts that are fetched at the same time
FETCHES = 4


@dataclass(kw_only=True)
class Endings:
    """Ends attempts, and stores how."""

    desk: Desk
    folder: Path  #: the folder of fetched parts
    cuts: Cuts = field(default_factory=Cuts)
    _fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))

    def end(self, out: Out, report: Report) -> None:
        """The worker's final report is there."""
        # its process slot is free already; the part is fetched while the next poll runs
        out.report = report
        out.member.out.pop(out.job, None)
        self.desk.spawn(self._ended(out, report))
        self.desk.pump()

    async def _ended(self, out: Out, report: Report) -> None:
        await self.finish(out, report)

    async def finish(self, out: Out, report: Report) -> bool:
        """Judge an ended attempt and fetch its part; True when it was accepted."""
        reason = refusal(report, out.batch.size, feed=self.desk.spec.feed)
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

    async def _accept(self, out: Out, report: Report, part: str) -> None:
        found = misses(report, out.batch.number)
        words = kept(report, await self._replaced(out.batch.number) if report.replaces else ())
        await self.desk.store(
            self.desk.store.store.accept,
            self.desk.spec.crawl,
            out.batch.number,
            out.number,
            report=words,
            part=part,
            misses=found,
            now=time.time(),
        )
        self.desk.tally.accepted(out.batch.number, words, found)
        out.member.accepted(report)
        self.desk.ended(out.batch.number)

    async def _replaced(self, number: int) -> list[tuple[int, int]]:
        """The requests of earlier batches that this batch retried, as the store has them, whatever the worker says."""
        payload = await self.desk.store(self.desk.store.store.payload, self.desk.spec.crawl, number)
        try:
            return replaced_by(decode(payload.get, key=self.cuts.key))
        except PayloadError as error:
            logger.warning("what batch %d tries again stays beside it: %s", number, error)
            return []

    async def _bring_home(self, out: Out, report: Report) -> str:
        """The name of the fetched part; empty when the items went to a feed."""
        spec = self.desk.spec
        if report.part is None or spec.feed:
            return ""
        async with self._fetches:
            patience = self.desk.limits.node_timeout
            return await fetch_part(
                self.desk.sender, out.member.node, spec.home, out.job, report.part, self.folder, patience
            )

    async def failed(self, out: Out, reason: str, *, blame: bool = False) -> None:
        """Give up an attempt that may still run: its job is cancelled before the batch goes elsewhere."""
        member = out.member
        member.out.pop(out.job, None)
        try:
            if member.up:
                await self.desk.calls.cancel(member, out.given_up)
            else:
                member.cancel_later.append(out.given_up)
        except NodeError as error:
            member.cancel_later.append(out.given_up)
            self.desk.lost_touch(member, error)
        await self.give_up(out.batch, out.number, reason, member.node.name, blame=blame)

    async def cancelled(self, job: str) -> None:
        """Nothing to do: the batch was put back when the attempt was given up."""

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
        most, tried = self.desk.limits.max_attempts, number - batch.forgiven
        most = self.cuts.attempts(batch, most) if blame else most
        cut = blame and tried >= most and self.cuts.wants(batch, self.desk.tally)
        state = await self.desk.store(
            self.desk.store.store.fail,
            self.desk.spec.crawl,
            batch.number,
            number,
            reason=reason,
            now=time.time(),
            out=out,
            max_attempts=tried + 1
            if cut or harmless
            else most,  # a failure that does not count leaves it waiting, not dead
        )
        self.desk.tally.failed += 1
        if cut:
            await self._cut(batch, number)
        elif state is BatchState.DEAD:
            logger.error("batch %d is dead after %d attempts: %s", batch.number, number, reason)
            self.desk.tally.died(batch)
            self.desk.ended(batch.number)
        else:
            self.desk.put_back(replace(batch, state=state, attempts=number, reason=reason), node)

    async def _cut(self, batch: Batch, number: int) -> None:
        """One of its requests kills workers: smaller batches take its requests over."""
        desk, db, crawl = self.desk, self.desk.store.store, self.desk.spec.crawl
        try:
            payload = await desk.store(db.payload, crawl, batch.number)
            pieces = await desk.store(db.split, crawl, batch.number, self.cuts.halves(batch, payload))
        except StepRefused:  # a worker leased it meanwhile: it is cut if that one dies as well
            logger.warning("batch %d is crawled once more before it is cut", batch.number)
            return
        except ForeignRow as error:  # the stored row was changed by another program
            logger.warning("%s", error)
            desk.put_back(replace(batch, state=BatchState.FAILED, attempts=number), "")
            return
        names = " and ".join(str(piece.number) for piece in pieces)
        logger.warning(
            "batch %d is cut after %d attempts: its requests are now batches %s", batch.number, number, names
        )
        desk.cut_up(batch, pieces)
