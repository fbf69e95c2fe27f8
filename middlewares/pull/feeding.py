"""From leased batches to requests: a pulling worker's next batch comes while the last one is still being made.

The rule it keeps: a request that cannot be made here fails alone, with its reason. Part of the worker half: imports
Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import time
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from scrapy import Request

from scrapyd_dist.payload import PayloadError, decode

from ..codec import ATTRIBUTES, from_value, set_attributes
from ..worker.job import egg_key, with_target
from ..worker.part import Part
from .job import spider_method
from .leased import LeasedBatch
from .leasing import is_suspect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from scrapy.crawler import Crawler

    from scrapyd_dist.frontier.values import Leased
    from scrapyd_dist.payload import RequestValue

    from ..frontier.filling import Finds
    from .carrying import Carrier
    from .job import PullJob
    from .leasing import Leasing
    from .news import News
    from .settling import Settling

logger = logging.getLogger(__name__)

#: seconds between two questions whether there is work
POLL = 0.5
#: requests that are made at one time, where the project sets no limit
UNLIMITED = 100


class Feeder:
    """Gives Scrapy the requests of one batch after the other."""

    def __init__(
        self,
        crawler: Crawler,
        job: PullJob,
        folder: Path,
        *,
        leasing: Leasing,
        carrier: Carrier,
        settling: Settling,
        news: News,
        finds: Callable[[str], Finds],
        broken: Callable[[str], object],
    ) -> None:
        """Nothing is leased before `requests` is asked for one.

        Args:
            crawler: the worker's.
            job: its orders.
            folder: where parts are written.
            leasing: the store.
            carrier: what counts the requests.
            settling: what ends the batches.
            news: tells that something has ended.
            finds: makes room for what a batch leads to.
            broken: is told of a batch that cannot be read.
        """
        self._crawler, self._job, self._folder = crawler, job, folder
        self._leasing, self._carrier, self._settling, self._news = leasing, carrier, settling, news
        self._finds, self._broken = finds, broken
        self._ready = (crawler.settings.getint("CONCURRENT_REQUESTS") or UNLIMITED) * (1 + max(0, job.ahead))
        self._hook = spider_method(crawler, "DISTRIBUTED_REQUEST_HOOK")
        self._attributes: Any = None
        self._worked = time.monotonic()
        self._size = self._ready  #: requests that a batch is thought to have
        self.stopped = False  #: nothing more is leased

    @property
    def room(self) -> int:
        """How many requests Scrapy should have beyond those that it has."""
        return self._ready - sum(batch.requests for batch in self._settling.held.values())

    async def requests(self) -> AsyncIterator[Request]:
        """All that this worker makes; ends when the last batch of it is settled."""
        while not self.stopped and not self._leasing.limit:
            # Items that a component swallows keep batches open without a request: then Scrapy has to run dry once.
            if self.room <= 0 or len(self._settling.held) > 2 * self._ready:
                await self._news.wait()
                continue
            leased = await self._leasing.next(-(-self.room // self._size))
            # Opened all at once: told to end, the worker has to know of each.
            for one, batch in [(one, self._open(one)) for one in leased]:
                if is_suspect(one):
                    await self._until_settled(besides=batch)
                async for request in self._of(batch):
                    yield request
                if is_suspect(one):
                    await self._until_settled()
            if not leased and await self._no_more():
                break
        await self._until_settled()

    async def _until_settled(self, besides: LeasedBatch | None = None) -> None:
        """Wait until this worker has no other batch."""
        while not self.stopped and any(batch is not besides for batch in self._settling.held.values()):
            await self._news.wait()

    async def _no_more(self) -> bool:
        """Wait a moment for work; whether none will come."""
        if self._settling.held:
            self._worked = time.monotonic()
        elif await self._leasing.no_more() or self._idled():
            return True
        await self._news.wait(POLL)
        return False

    def _idled(self) -> bool:
        return bool(self._job.idle) and time.monotonic() - self._worked >= self._job.idle

    def _open(self, leased: Leased) -> LeasedBatch:
        self._worked = time.monotonic()
        number = leased.batch.number
        values, problem = _values(leased)
        # One small batch among large ones must not make this worker take all the rest from the others.
        self._size = max(1, len(values), self._size // 2)
        part = Part(self._folder, f"{self._job.crawl}.b{number}.a{leased.attempt}")
        batch = LeasedBatch(leased, self._job.crawl, values, self._finds(f"b{number}:"), part)
        self._settling.held[batch.key] = batch
        self._carrier.enter(batch)
        self._count("batches_leased")
        self._count("requests_leased", leased.batch.size)
        if problem:
            batch.problem = problem
            self._settling.changed(batch)
            self._broken(f"Batch {number} cannot be crawled: {problem}.")
        return batch

    async def _of(self, batch: LeasedBatch) -> AsyncIterator[Request]:
        while batch.todo:
            index = batch.todo[0]
            await self._take_attributes(batch.values[index])
            request = await self._made(batch, index)
            if batch.key not in self._carrier.begun:  # its lease was lost meanwhile
                return
            batch.todo.popleft()
            if request is not None:
                self._count("requests_returned")
                yield self._carrier.watched(request, batch, index)
        self._settling.changed(batch)  # it may have been nothing but requests that cannot be made

    async def _made(self, batch: LeasedBatch, index: int) -> Request | None:
        """The request, or None and its end in the account."""
        spider = self._crawler.spider
        assert spider
        try:
            request = from_value(with_target(batch.values[index], self._crawler), spider)
        except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
            batch.account.missed(index, "failed", f"it cannot be made here: {error}")
            return None
        return request if self._hook is None else await self._hooked(request, batch, index)

    async def _hooked(self, request: Request, batch: LeasedBatch, index: int) -> Request | None:
        assert self._hook
        try:
            answer = self._hook(request)
            kept = await answer if isawaitable(answer) else answer
        except Exception as error:
            logger.exception("the hook for requests failed at %s", request)
            batch.account.missed(index, "failed", f"the hook for requests failed: {type(error).__name__}: {error}")
            return None
        if kept is not None and not isinstance(kept, Request):
            batch.account.missed(index, "failed", f"the hook for requests returned a {type(kept).__name__}")
            return None
        if kept is None:
            self._count("requests_dropped_by_hook")
            batch.account.missed(index, "gone", "dropped by the hook")
        return kept

    async def _take_attributes(self, value: RequestValue) -> None:
        """Give the spider the attributes that travel with a request; those that went before it are made with theirs.

        A spider has one value of each. To mix requests of two would give callbacks the wrong one without a word.
        """
        wanted = value.get(ATTRIBUTES)
        if wanted is None or wanted == self._attributes:
            return
        while any(begun.busy for begun in self._carrier.begun.values()):
            await self._news.wait()
        assert self._crawler.spider
        set_attributes(value, self._crawler.spider)
        self._attributes = wanted

    def _count(self, name: str, number: int = 1) -> None:
        self._crawler.stats.inc_value(f"distributed/{name}", number)


def _values(leased: Leased) -> tuple[list[RequestValue], str]:
    try:
        return decode(leased.payload.get, key=egg_key()), ""
    except PayloadError as error:
        return [], str(error)
