"""Calls the project's own handlers of `spider_idle` when a worker has nothing left of its batches.

Scrapy would call them when the worker gets no more work at all. By then its batches are over, so
what a handler makes of a list that callbacks have filled would be of no batch, and lost with its
worker.
"""

from collections.abc import Callable, Mapping
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from twisted.python.failure import Failure

from ..classifier import FoundRequests
from ..engine_compat import project_receivers, under_way
from .lease_client import Notifier
from .request_tracker import RequestTracker
from .work_unit import IDLE, PAGE, BatchUnit, UnitMark

#: seconds between two calls of a handler that keeps the spider open and asks for nothing, as in
#: Scrapy itself
HEARTBEAT = 5.0
#: such calls after which a worker goes on all the same
MOST_HEARTBEATS = 12
#: seconds until it is seen again whether Scrapy has come to rest
SOON = 0.05


class IdleHandlers:
    """Calls the handlers of one worker.

    The batches of a round end when the handlers have nothing more to ask for. What they ask for
    goes to the fleet with one of these batches, as what that has led to.
    """

    def __init__(
        self,
        crawler: Crawler,
        held: Mapping[tuple[int, int], BatchUnit],
        *,
        tracker: RequestTracker,
        notifier: Notifier,
        make_finds: Callable[[str], FoundRequests],
    ) -> None:
        """Call them for the batches that are `held`; `make_finds` makes room for requests."""
        self._crawler = crawler
        self._batches = held
        self._tracker = tracker
        self._notifier = notifier
        self._make_finds = make_finds
        self._finds: FoundRequests | None = None  #: what handlers have asked for
        self.stopped = False

    def begin_round(self) -> bool:
        """Say whether the project has handlers: then no batch may end before they were called.

        Call it before batches are begun.
        """
        if self._finds is not None:
            # Not new ones: those with dont_filter are numbered over all rounds.
            self._finds.forget_known()
        return bool(find_handlers(self._crawler))

    async def end_round(self, besides: BatchUnit | None = None) -> bool:
        """Call the handlers until they ask for nothing more; say whether the batches may end.

        They may not if the worker was stopped meanwhile: no handler was called for them then, and
        they are made again.

        Args:
            besides: a batch of which nothing was made yet; it is of the next round.
        """
        heartbeats = 0
        await self._until_quiet(besides)
        while not self.stopped and heartbeats < MOST_HEARTBEATS and self._held(besides):
            has_work, stays_open = self._call_handlers(besides)
            if not has_work and not stays_open:
                break
            if not has_work:
                heartbeats += 1
                await self._notifier.wait(HEARTBEAT)
            await self._until_quiet(besides)
        return not self.stopped

    def _held(self, besides: BatchUnit | None) -> list[BatchUnit]:
        return [batch for batch in self._batches.values() if batch is not besides]

    def _choose_teller(self, besides: BatchUnit | None) -> BatchUnit:
        """Return the batch with whose end goes to the fleet what handlers ask for.

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
            await self._notifier.wait(SOON)

    def _is_quiet(self, besides: BatchUnit | None) -> bool:
        are_over = all(batch.over for batch in self._held(besides))
        return are_over and not under_way(self._crawler)

    def _call_handlers(self, besides: BatchUnit | None) -> tuple[bool, bool]:
        """Call them; say whether one has asked for anything, and whether one stays open."""
        crawler = self._crawler
        batch = self._choose_teller(besides)
        if self._finds is None:
            self._finds = self._make_finds("idle:")
        finds = self._finds
        self._tracker.idle_finds = finds
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
        has_found = finds.give_to(batch.finds)  # it goes to the fleet with the end of this batch
        has_work = has_found or not self._is_quiet(besides)
        stays_open = False
        for _, answer in answers:
            if isinstance(answer, Failure) and isinstance(answer.value, DontCloseSpider):
                stays_open = True
        return has_work, stays_open


def _rank_as_teller(batch: BatchUnit) -> tuple[bool, bool]:
    return bool(batch.values), not batch.problem


def find_handlers(crawler: Any) -> list[Callable[..., Any]]:
    """Return the project's own handlers of `spider_idle`."""
    return project_receivers(crawler, signals.spider_idle)
