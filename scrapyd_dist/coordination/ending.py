"""How attempts end: accepted with their part at home, or given up, and their batch waits again or is dead.

The rule it keeps: one attempt of a batch is accepted, and its part is home and checked before that
is written down.
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
    """Ends attempts, and writes that down."""

    desk: Desk
    folder: Path  #: where parts are kept
    cuts: Cuts = field(default_factory=Cuts)
    _fetches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES))

    def end(self, out: Out, report: Report) -> None:
        """The worker's last report is there."""
        # Its process slot is free already; the part is fetched beside the next look.
        out.report = report
        out.member.out.pop(out.job, None)
        self.desk.spawn(self._ended(out, report))
        self.desk.pump()

    async def _ended(self, out: Out, report: Report) -> None:
        await self.finish(out, report)

    async def finish(self, out: Out, report: Report) -> bool:
        """Judge an attempt that has ended, and bring its part home; whether it was accepted."""
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
        """Which requests of earlier batches a batch has tried again; by the store, whatever its worker says."""
        payload = await self.desk.store(self.desk.store.store.payload, self.desk.spec.crawl, number)
        try:
            return replaced_by(decode(payload.get, key=self.cuts.key))
        except PayloadError as error:
            logger.warning("what batch %d tries again stays beside it: %s", number, error)
            return []

    async def _bring_home(self, out: Out, report: Report) -> str:
        """The name of the fetched part; none when the items went to a feed."""
        spec = self.desk.spec
        if report.part is None or spec.feed:
            return ""
        async with self._fetches:
            patience = self.desk.limits.node_timeout
            return await fetch_part(
                self.desk.sender, out.member.node, spec.home, out.job, report.part, self.folder, patience
            )

    async def failed(self, out: Out, reason: str, *, blame: bool = False) -> None:
        """Give an attempt up that may still be alive: cancel it before the batch goes elsewhere; `blame` as there."""
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
        """Its batch has waited for its next attempt since it was given up."""

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
        """Write the end of an attempt down; the batch waits for the next one, is cut, or is dead.

        Args:
            batch: the batch.
            number: of the attempt.
            reason: why, in words.
            node: the name of the node that it was on.
            blame: whether the batch itself may have done it.
            harmless: it says nothing of the batch, which is not dead for it, however often it happens.
            out: only if the attempt was not acked meanwhile.
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
            max_attempts=tried + 1 if cut or harmless else most,  # a death in between leaves it waiting, not dead
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
        """Some request of it kills its workers: smaller batches take its requests over."""
        desk, db, crawl = self.desk, self.desk.store.store, self.desk.spec.crawl
        try:
            payload = await desk.store(db.payload, crawl, batch.number)
            pieces = await desk.store(db.split, crawl, batch.number, self.cuts.halves(batch, payload))
        except StepRefused:  # a worker has leased it in between: it is cut when that one has died as well
            logger.warning("batch %d is crawled once more before it is cut", batch.number)
            return
        except ForeignRow as error:  # it was changed since it was sent
            logger.warning("%s", error)
            desk.put_back(replace(batch, state=BatchState.FAILED, attempts=number), "")
            return
        names = " and ".join(str(piece.number) for piece in pieces)
        logger.warning(
            "batch %d is cut after %d attempts: its requests are now batches %s", batch.number, number, names
        )
        desk.cut_up(batch, pieces)
