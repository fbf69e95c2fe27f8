"""How a pulling worker's batches end: acked with their part, given back untouched, or lost with their lease.

The rule it keeps: a part is whole and synced before its batch is acked, and what is not acked leaves nothing that
could be taken for a result. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.reasons import meaning, not_made

from ..classifier import count_found
from ..worker.lease import Loss
from .leased import LeasedBatch
from .leasing import StoreLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from ..worker.lease import Held
    from .carrying import Carrier
    from .leased import Begun
    from .leasing import Leasing
    from .news import News
    from .report import PullReport

logger = logging.getLogger(__name__)


class Settling:
    """The batches that this worker has, and their ends."""

    leasing: Leasing
    carrier: Carrier

    def __init__(self, crawler: Crawler, report: PullReport, news: News, store_lost: Callable[[str], object]) -> None:
        self._crawler, self._report, self._news = crawler, report, news
        self._store_lost = store_lost
        self._settling: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._away = False  #: the store is lost: nothing can be told to it
        self.held: dict[tuple[int, int], LeasedBatch] = {}

    def changed(self, begun: Begun) -> None:
        """Something of it has ended."""
        if begun.over and isinstance(begun, LeasedBatch):
            # Not at once: what a middleware makes of an exception comes right after the callback's own output.
            asyncio.get_running_loop().call_soon(self._settle_if_over, begun)

    def _settle_if_over(self, batch: LeasedBatch) -> None:
        if batch.over and batch.key in self.held and batch.key not in self._settling:
            self._settling[batch.key] = asyncio.ensure_future(self._settle(batch, "finished"))

    async def _settle(self, batch: LeasedBatch, reason: str) -> None:
        self.carrier.leave(batch)
        fate = "failed"
        try:
            part = await self._whole_part(batch)
            report = self._report.of_batch(batch, part, reason, self._crawler.stats.get_stats())
            finds = batch.finds
            good = reason == "finished" and not batch.problem
            if good:  # before the ack: told twice is better than never; and as the batch's own, which no walk forgets
                await self.leasing.missed([replace(one, batch=batch.key[0]) for one in finds.take_misses()])
            kept = await self.leasing.ack(batch.key, report, finds.found, finds.take_counts())
            if kept is None:
                fate = "lost"
            else:
                count_found(self._crawler, kept)
                fate = "acked" if good else fate
        except StoreLost as error:
            self._lose_store(str(error))
        except Exception as error:  # whatever it is: a batch that is never parted from keeps the worker for ever
            logger.exception("batch %d, attempt %d, cannot be ended", *batch.key)
            self._report.trouble = f"Batch {batch.key[0]} could not be ended: {type(error).__name__}: {error}."
            self.leasing.release(batch.key)  # renewed on and on, it would be out for as long as this worker lives
        self._part_from(batch, fate)

    @staticmethod
    async def _whole_part(batch: LeasedBatch) -> dict[str, Any] | None:
        """What the report says of its part; None when that cannot be had, which is the batch's problem then."""
        try:
            return await asyncio.to_thread(batch.part.close)
        except OSError as error:
            batch.problem = batch.problem or f"Its items could not be kept in this node's logs: {error}."
            return None

    def _part_from(self, batch: LeasedBatch, fate: str) -> None:
        """It is not this worker's any more."""
        self._settling.pop(batch.key, None)
        self.carrier.leave(batch)
        if fate != "acked":
            batch.part.discard()
        self._report.fate(batch, fate)
        self._crawler.stats.inc_value(f"distributed/batches_{fate}")
        self._crawler.stats.inc_value("distributed/requests_left", batch.left)
        self.held.pop(batch.key, None)
        self._news.tell()

    def lost(self, held: Held, loss: Loss) -> None:
        """A lease is lost: no request of its batch is made any more, and nothing is told of it."""
        batch = self.held.get((held.batch, held.attempt))
        if batch is None or batch.key in self._settling:  # the ack itself will tell
            return
        self._part_from(batch, "lost")
        if loss is Loss.AWAY:
            self._lose_store("it has not answered for as long as a lease lasts")

    def _lose_store(self, why: str) -> None:
        if not self._away:
            self._away = True
            self._store_lost(why)

    async def finish(self, reason: str) -> None:
        """The worker ends: settle what is complete, give back what was not begun, and say how far the rest came."""
        while self._settling:
            await asyncio.wait(list(self._settling.values()))
        for batch in list(self.held.values()):
            if batch.key not in self.held:  # its lease was lost meanwhile
                continue
            if self._away:
                self._part_from(batch, "lost")
            elif batch.touched:
                # Under its key, as any other: the lease that ends with the ack is not one that was lost.
                work = self._settle(batch, "finished" if batch.over else self._cut_short(batch, reason))
                self._settling[batch.key] = task = asyncio.ensure_future(work)
                await task
            else:
                batch.part.discard()  # before: who leases it next on this node writes a part of the same name
                self._part_from(batch, "given_back" if await self._give_back(batch.key, reason) else "lost")
        try:
            for one in await self.leasing.unclaimed():
                await self._give_back((one.batch.number, one.attempt), reason)
        except StoreLost as error:
            self._lose_store(str(error))

    @staticmethod
    def _cut_short(batch: LeasedBatch, reason: str) -> str:
        """How it ends. What the settings ended is done as far as that was wanted.

        Scrapy before 2.19 calls it finished when its start has failed; what was not made has not failed.
        """
        if meaning(reason).by_settings:
            batch.account.rest = not_made(reason)
            return "finished"
        return "shutdown" if reason == "finished" else reason

    async def _give_back(self, key: tuple[int, int], reason: str) -> bool:
        try:
            return await self.leasing.give_back(key, f"its worker has ended ({reason})")
        except StoreLost as error:
            self._lose_store(str(error))
            return False
