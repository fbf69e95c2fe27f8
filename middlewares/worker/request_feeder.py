"""From leases to batches, and from batches to requests: each is made as its spider would have made it.

The next batch is leased while requests of the last one are still being made. A request that cannot be made here fails
alone, with its reason.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.crawler import Crawler

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.frontier.backlog import Leased
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import PayloadError, RequestValue, decode

from ..codec import ATTRIBUTES, from_value, set_attributes
from ..engine_compat import spider_method
from ..targets import with_target
from .batch_acker import BatchAcker
from .files import PartFile
from .idle_handlers import IdleHandlers
from .lease_client import LeaseContext, Notifier, is_suspect
from .link_events import StrategyBatch
from .request_tracker import RequestTracker
from .work_unit import BatchUnit, count

logger = logging.getLogger(__name__)
#: seconds between two calls for work: few at first, since a crawl begins and ends with short waits
SOON, POLL = 0.05, 0.5
#: unreadable batches after which a worker that could read none ends
UNREADABLE = 3
#: batches that a worker has at one time, about: each has a file open
MOST_HELD = 400
#: requests that are made at one time, where the project sets no limit
UNLIMITED = 100


class UnbuiltRequest(NamedTuple):
    """A request of a batch that cannot be made, and how the ledger counts it."""

    kind: str
    reason: str
    stat: str = "requests_not_made"


class RequestBuilder:
    """Makes the requests of batches; the crawl's key proves that a leased request is its own."""

    def __init__(
        self, crawler: Crawler, key: bytes | None, *, tracker: RequestTracker, notifier: Notifier
    ) -> None:
        self._crawler, self._key, self._tracker, self._notifier = crawler, key, tracker, notifier
        self._hook = spider_method(crawler.spider, crawler.settings, "DISTRIBUTED_REQUEST_HOOK")
        self._attributes: Any = None

    async def requests(self, batch: BatchUnit) -> AsyncIterator[Request]:
        """The requests of this batch that Scrapy does not have yet."""
        while batch.todo:
            index = batch.todo[0]
            await self._take_attributes(batch.values[index])
            made = await self._made(batch, index)
            if batch.key not in self._tracker.begun:  # its lease was lost meanwhile
                return
            batch.todo.popleft()
            if isinstance(made, Request):
                count(self._crawler, "requests_returned")
                yield self._tracker.watched(batch.made(made, index), batch, index)
            else:
                count(self._crawler, made.stat)
                batch.ledger.missed(index, made.kind, made.reason)
        self._tracker.changed(batch)  # it may have been nothing but requests that cannot be made

    async def _made(self, batch: BatchUnit, index: int) -> Request | UnbuiltRequest:
        spider, value = self._crawler.spider, batch.values[index]
        assert spider
        if why := batch.unwanted(index):
            return UnbuiltRequest("gone", why)
        if self._key is None and not batch.sent and (why := _unproven(value)):
            return UnbuiltRequest("dead", why)
        try:
            request = from_value(with_target(value, self._crawler), spider)
        except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
            return UnbuiltRequest("dead", f"it cannot be made here: {error}")
        return request if self._hook is None else await self._hooked(request)

    async def _hooked(self, request: Request) -> Request | UnbuiltRequest:
        assert self._hook
        try:
            answer = self._hook(request)
            kept = await answer if isawaitable(answer) else answer
        except Exception as error:
            logger.exception("the hook for requests failed at %s", request)
            return UnbuiltRequest(
                "failed", f"the hook for requests failed: {type(error).__name__}: {error}"
            )
        if kept is None:
            return UnbuiltRequest("gone", "dropped by the hook", "requests_dropped_by_hook")
        if not isinstance(kept, Request):
            return UnbuiltRequest(
                "failed", f"the hook for requests returned a {type(kept).__name__}"
            )
        return kept

    async def _take_attributes(self, value: RequestValue) -> None:
        """Give the spider the attributes that travel with a request, once all earlier requests have ended.

        A spider has one value of each: an earlier request's callback would get the wrong one without a word.
        """
        wanted = value.get(ATTRIBUTES)
        if wanted is None or wanted == self._attributes:
            return
        while any(begun.busy for begun in self._tracker.begun.values()):
            await self._notifier.wait()
        assert self._crawler.spider
        with self._tracker.setting_attributes():
            set_attributes(value, self._crawler.spider)
        self._attributes = wanted


def _unproven(value: RequestValue) -> str:
    """Why a request is not made without a key that proves it is this project's own."""
    scheme = value["url"].partition(":")[0].lower()
    if scheme in {"http", "https"} and "proxy" not in str(value.get("meta", "")):
        return ""
    return (
        f"it is a request of the kind {scheme}:, or by a proxy, and this code carries no key by which it could be known"
        " whose it is; deploy it with sdist"
    )


class RequestFeeder:
    """Gives Scrapy the requests of one batch after the other; the items of each go to a part in the folder."""

    def __init__(self, context: LeaseContext, acker: BatchAcker, folder: Path) -> None:
        crawler, job = context.crawler, context.job
        self._context, self._acker, self._folder, self._job = context, acker, folder, job
        self._notifier, self._client = context.notifier, context.client
        self._builder = RequestBuilder(
            crawler, self._client.key, tracker=context.tracker, notifier=context.notifier
        )
        self._at_once = crawler.settings.getint("CONCURRENT_REQUESTS") or UNLIMITED
        self._ahead = self._at_once * max(0, job.ahead)
        self._ready = self._at_once + self._ahead
        self._has_pauses = has_pauses(crawler) and not job.fair
        self._of_a_site = of_a_site(crawler) if job.fair else sys.maxsize
        self._enough = max(self._of_a_site, most_of_a_site(crawler))
        self._worked, self._pause = time.monotonic(), SOON
        #: requests that a batch is thought to have, as far as they can be made
        self._size = min(self._ready, job.batch_size, self._of_a_site) if job.fair else self._ready
        self._unread: int | None = 0  #: batches that could not be read; None when one could
        self._idle_handlers = IdleHandlers(context, acker)
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether nothing more is leased."""
        return self._stopped

    def stop(self) -> None:
        """Lease nothing more."""
        self._stopped = True
        self._idle_handlers.stopped = True

    @property
    def room(self) -> int:
        """How many requests Scrapy should have beyond those that it has, and can make."""
        if not self._job.fair:  # asked at every page
            return self._ready - sum(batch.requests for batch in self._acker.held.values())
        return self._ready - sum(
            min(number, self._of_a_site) for number in self._of_sites().values()
        )

    def _of_sites(self) -> Counter[str]:
        """Slot -> requests of it that Scrapy has."""
        of_sites: Counter[str] = Counter()
        for batch in self._acker.held.values():
            of_sites[batch.slot] += batch.requests
        return of_sites

    async def requests(self) -> AsyncIterator[Request]:
        """All that this worker makes; ends when the last batch of it is settled."""
        while not self.stopped and not self._client.limit:
            # Items that a component swallows keep batches open without requests, until Scrapy has run dry once.
            if self.room <= 0 or len(self._acker.held) > min(2 * self._ready, MOST_HELD):
                await self._notifier.wait()
                continue
            enough = {slot for slot, number in self._of_sites().items() if number > self._enough}
            self._idle_handlers.begin_round()
            leased = await self._client.next(-(-self.room // self._size), enough)
            # Opened all at once: a worker that ends gives back each.
            for one, batch in [(one, self._open(one)) for one in leased]:
                if is_suspect(one):
                    await self._settle_round(besides=batch)
                async for request in self._builder.requests(batch):
                    yield request
                if is_suspect(one):
                    await self._settle_round()
            await self._idle_handlers.end_round()
            if not leased and await self._no_more():
                break
        await self._until_settled()
        self._context.tracker.has_ended = True

    async def _settle_round(self, besides: BatchUnit | None = None) -> None:
        """Have the project's idle handlers asked about all batches but one, wait for their ends, and begin anew."""
        await self._idle_handlers.end_round(besides)
        await self._until_settled(besides)
        self._idle_handlers.begin_round()

    async def _until_settled(self, besides: BatchUnit | None = None) -> None:
        """Wait until this worker has no other batch."""
        while not self.stopped and any(batch is not besides for batch in self._acker.held.values()):
            await self._notifier.wait()

    async def _no_more(self) -> bool:
        """Wait a moment for work; whether none will come."""
        if self._acker.held:
            self._worked = time.monotonic()
        elif await self._client.no_more() or 0 < self._job.idle <= time.monotonic() - self._worked:
            return True
        await self._notifier.wait(self._pause)
        self._pause = min(2 * self._pause, POLL)
        return False

    def _open(self, leased: Leased) -> BatchUnit:
        self._worked, self._pause = time.monotonic(), SOON
        row, job, crawler = leased.batch, self._job, self._context.crawler
        values, problem = readable_values(leased.payload.get, self._client.key)
        problem = leased.fault or problem
        if self._has_pauses and values:
            # Of one site with pauses, requests ahead would only be kept from workers that have none.
            one_site = len({site_of(value["url"]) for value in values}) == 1
            self._ready = self._at_once + (0 if one_site else self._ahead)
        # One small batch among large ones must not make this worker take all the rest.
        self._size = max(1, min(len(values), self._of_a_site), self._size // 2)
        part = PartFile(
            self._folder, f"{job.crawl}.b{row.number}.a{leased.attempt}", typed=job.typed
        )
        finds = self._context.finds(f"b{row.number}:")
        kind = StrategyBatch if self._context.strategy else BatchUnit
        batch = kind(
            row.number, leased.attempt, values, part, finds=finds, slot=row.slot, size=row.size
        )
        self._acker.held[batch.key] = batch
        self._context.tracker.enter(batch)
        count(crawler, "batches_leased")
        count(crawler, "requests_leased", row.size)
        if not problem:
            self._unread = None
            return batch
        if self._unread is not None:
            self._unread += 1
            if self._unread >= UNREADABLE:  # the fault is this worker's own, not the batches'
                why = (
                    f"Batch {row.number} cannot be crawled, and none before it could be: {problem}."
                )
                self._context.fail(why, FinishReason.REFUSED)
        batch.problem = problem
        self._acker.changed(batch)
        return batch


def of_a_site(crawler: Crawler) -> int:
    """How many requests of one site keep this process busy: one, where there are pauses between them.

    A worker that shares slots fairly takes work of so many sites that its downloader is busy all the same.
    """
    return 1 if has_pauses(crawler) else most_of_a_site(crawler)


def has_pauses(crawler: Crawler) -> bool:
    """Whether there are pauses between the requests of a site."""
    settings = crawler.settings
    pause = getattr(crawler.spider, "download_delay", None) or settings.getfloat("DOWNLOAD_DELAY")
    return bool(
        pause
        or settings.getbool("AUTOTHROTTLE_ENABLED")
        or settings.getbool("DISTRIBUTED_THROTTLE")
    )


def most_of_a_site(crawler: Crawler) -> int:
    """How many requests of one site may be under way in this process."""
    most = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    return most if most > 0 else UNLIMITED


def readable_values(get: Callable[[str], Any], key: bytes | None) -> tuple[list[RequestValue], str]:
    """The requests that `get` has the settings of, or none and what is wrong with them."""
    try:
        return decode(get, key=key), ""
    except PayloadError as error:
        return [], str(error)
