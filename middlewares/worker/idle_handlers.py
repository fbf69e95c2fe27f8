"""Calls the project's own handlers of `spider_idle` when a worker has nothing left of its batches.

They are those that it has leased. Scrapy would call them when the worker gets no more work at all.
By then its batches are acked, so what a handler makes of a list that callbacks have filled would be
of no batch, and lost with its worker.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from twisted.python.failure import Failure

from scrapyd_dist.batches import FinishReason

from ..classifier import FoundRequests
from ..engine_compat import close_spider, project_receivers, under_way
from .batch_acker import BatchAcker
from .lease_client import LeaseContext
from .work_unit import IDLE, PAGE, BatchUnit, UnitMark

logger = logging.getLogger(__name__)
#: seconds between two calls of a handler that keeps the spider open and asks for nothing, as in
#: Scrapy itself
HEARTBEAT = 5.0
#: such calls after which a worker goes on all the same
MOST_HEARTBEATS = 12
#: seconds until it is seen again whether Scrapy has come to rest
SOON = 0.05


class IdleHandlers:
    """Calls the handlers of one worker.

    The batches of a round are acked when the handlers have nothing more to ask for.
    """

    def __init__(self, context: LeaseContext, acker: BatchAcker) -> None:
        self._context = context
        self._acker = acker
        self._finds: FoundRequests | None = None  #: what handlers have asked for
        self.stopped = False

    def begin_round(self) -> None:
        """Hold acks back where the project has handlers; call it before batches are leased."""
        self._acker.waits_for_idle = bool(find_handlers(self._context.crawler))
        if self._finds is not None:
            # Not new ones: those with dont_filter are numbered over all rounds.
            self._finds.forget_known()

    async def end_round(self, besides: BatchUnit | None = None) -> None:
        """Call the handlers until they ask for nothing more, and let the batches be acked.

        Args:
            besides: a batch of which nothing was made yet; it is of the next round.
        """
        if not self._acker.waits_for_idle:
            return
        heartbeats = 0
        await self._until_quiet(besides)
        while not self.stopped and heartbeats < MOST_HEARTBEATS and self._held(besides):
            has_work, stays_open = self._call_handlers(besides)
            if not has_work and not stays_open:
                break
            if not has_work:
                heartbeats += 1
                await self._context.notifier.wait(HEARTBEAT)
            await self._until_quiet(besides)
        if not self.stopped:  # else they are made again: no handler was called for them
            self._acker.end_round()

    def _held(self, besides: BatchUnit | None) -> list[BatchUnit]:
        return [batch for batch in self._acker.held.values() if batch is not besides]

    def _choose_teller(self, besides: BatchUnit | None) -> BatchUnit:
        """Return the batch with whose ack goes to the fleet what handlers ask for.

        It is the last one: one that can be read, if there is one, as a strategy knows links by
        their page only; and a whole one, if there is one, as the items of others are dropped.
        """
        best: BatchUnit | None = None
        for batch in self._held(besides):
            if best is None or _rank_as_teller(batch) >= _rank_as_teller(best):
                best = batch
        assert best is not None
        return best

    async def _until_quiet(self, besides: BatchUnit | None) -> None:
        """Wait until the batches are over, and Scrapy has nothing left."""
        while not self.stopped and not self._is_quiet(besides):
            await self._context.notifier.wait(SOON)

    def _is_quiet(self, besides: BatchUnit | None) -> bool:
        are_over = all(batch.over for batch in self._held(besides))
        return are_over and not under_way(self._context.crawler)

    def _call_handlers(self, besides: BatchUnit | None) -> tuple[bool, bool]:
        """Call them; say whether one has asked for anything, and whether one stays open."""
        crawler = self._context.crawler
        batch = self._choose_teller(besides)
        if self._finds is None:
            self._finds = self._context.finds("idle:")
        finds = self._finds
        self._context.tracker.idle_finds = finds
        token = PAGE.set(UnitMark(*batch.key, None, IDLE))
        try:
            answers = crawler.signals.send_catch_log(
                signals.spider_idle, spider=crawler.spider, dont_log=(DontCloseSpider, CloseSpider)
            )
        finally:
            PAGE.reset(token)
        # `CloseSpider` says that the whole crawl has nothing left. Whether that is so is known when
        # this worker ends.
        assert batch.finds is not None
        has_found = finds.give_to(batch.finds)  # it goes to the fleet with the ack of this batch
        has_work = has_found or not self._is_quiet(besides)
        stays_open = False
        for _, answer in answers:
            if isinstance(answer, Failure) and isinstance(answer.value, DontCloseSpider):
                stays_open = True
        return has_work, stays_open


def _rank_as_teller(batch: BatchUnit) -> tuple[bool, bool]:
    return bool(batch.values), not batch.problem


class IdleLimit:
    """Ends a job that has nothing left of its batch, though a handler keeps its spider open.

    A handler that asks for nothing is waited for as long as in a worker that leases.
    """

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        self._since: float | None = None  #: since when there has been nothing to do
        crawler.signals.connect(self._on_idle, signals.spider_idle)
        crawler.signals.connect(self._on_scheduled, signals.request_scheduled)

    def _on_scheduled(self) -> None:
        self._since = None

    def _on_idle(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > MOST_HEARTBEATS * HEARTBEAT:
            logger.warning(
                "a handler of spider_idle keeps the spider open, and asks for nothing: it is closed"
            )
            close_spider(self._crawler, FinishReason.FINISHED.value)


def find_handlers(crawler: Any) -> list[Callable[..., Any]]:
    """Return the project's own handlers of `spider_idle`."""
    return project_receivers(crawler, signals.spider_idle)
