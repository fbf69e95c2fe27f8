"""Makes batches of leases, and requests of batches, each as its spider would have made it.

The next batch is leased while requests of the last one are still being made. A request that cannot
be made here fails alone, with its reason.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.crawler import Crawler

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.frontier.backlog import Leased
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import PayloadError, RequestValue, decode

from ..codec import ATTRIBUTES, IS_START, STARTS_BATCH, from_value, set_attributes
from ..engine_compat import spider_method
from ..targets import with_target
from .batch_acker import BatchAcker
from .files import PartFile
from .idle_handlers import IdleHandlers
from .lease_client import LeaseContext, Notifier, StoreLost, is_suspect
from .link_events import StrategyBatch
from .request_tracker import RequestTracker
from .work_unit import BatchUnit, count

logger = logging.getLogger(__name__)
#: seconds between the first two calls for work: few, since a crawl begins and ends with short waits
SOON = 0.05
#: maximum seconds between two calls for work
POLL = 0.5
#: unreadable batches after which a worker that could read none ends
UNREADABLE = 3
#: batches that a worker has at one time, about: each has a file open
MOST_HELD = 400
#: requests that are made at one time, where the project sets no limit
UNLIMITED = 100


class UnbuiltRequest(NamedTuple):
    """A request of a batch that cannot be made, and how the ledger counts it."""

    kind: str  #: of miss
    reason: str
    stat: str = "requests_not_made"


class RequestBuilder:
    """Makes the requests of batches; the crawl's key proves that a leased request is its own."""

    def __init__(
        self, crawler: Crawler, key: bytes | None, *, tracker: RequestTracker, notifier: Notifier
    ) -> None:
        self._crawler = crawler
        self._key = key
        self._tracker = tracker
        self._notifier = notifier
        self._hook = spider_method(crawler.spider, crawler.settings, "DISTRIBUTED_REQUEST_HOOK")
        self._attributes: Any = None  #: that the spider was given last

    async def requests(self, batch: BatchUnit) -> AsyncIterator[Request]:
        """Yield the requests of this batch that Scrapy does not have yet."""
        while batch.todo:
            index = batch.todo[0]
            await self._set_attributes(batch.values[index])
            made = await self._make(batch, index)
            if batch.key not in self._tracker.begun:  # its lease was lost meanwhile
                return
            batch.todo.popleft()
            if isinstance(made, Request):
                count(self._crawler, "requests_returned")
                # Scrapy's queues need it; it is removed before downloader middlewares see it.
                made.meta.setdefault(IS_START, STARTS_BATCH)
                yield self._tracker.open_request(batch.made(made, index), batch, index)
            else:
                count(self._crawler, made.stat)
                batch.ledger.missed(index, made.kind, made.reason)
        self._tracker.changed(batch)  # it may have been nothing but requests that cannot be made

    async def _make(self, batch: BatchUnit, index: int) -> Request | UnbuiltRequest:
        spider = self._crawler.spider
        value = batch.values[index]
        assert spider
        if why := batch.unwanted(index):
            return UnbuiltRequest("gone", why)
        if self._key is None and not batch.sent and (why := _unproven(value)):
            return UnbuiltRequest("dead", why)
        try:
            request = from_value(with_target(value, self._crawler), spider)
        except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
            return UnbuiltRequest("dead", f"it cannot be made here: {error}")
        if self._hook is None:
            return request
        return await self._pass_through_hook(request)

    async def _pass_through_hook(self, request: Request) -> Request | UnbuiltRequest:
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

    async def _set_attributes(self, value: RequestValue) -> None:
        """Give the spider the attributes that travel with a request.

        That waits until all earlier requests have ended. A spider has one value of each: an earlier
        request's callback would get the wrong one without a word.
        """
        wanted = value.get(ATTRIBUTES)
        if wanted is None or wanted == self._attributes:
            return
        while any(unit.busy for unit in self._tracker.begun.values()):
            await self._notifier.wait()
        assert self._crawler.spider
        with self._tracker.setting_attributes():
            set_attributes(value, self._crawler.spider)
        self._attributes = wanted


def _unproven(value: RequestValue) -> str:
    """Say why a request is not made without a key that proves it is this project's own."""
    scheme = value["url"].partition(":")[0].lower()
    if scheme in {"http", "https"} and "proxy" not in str(value.get("meta", "")):
        return ""
    return (
        f"it is a request of the kind {scheme}:, or by a proxy, and this code carries no key by"
        " which it could be known whose it is; deploy it with sdist"
    )


class RequestFeeder:
    """Gives Scrapy the requests of one batch after the other.

    The items of each batch go to a part in the folder.
    """

    def __init__(self, context: LeaseContext, acker: BatchAcker, folder: Path) -> None:
        crawler = context.crawler
        job = context.job
        self._context = context
        self._acker = acker
        self._folder = folder
        self._job = job
        self._notifier = context.notifier
        self._client = context.client
        self._builder = RequestBuilder(
            crawler, self._client.key, tracker=context.tracker, notifier=context.notifier
        )
        self._at_once = crawler.settings.getint("CONCURRENT_REQUESTS") or UNLIMITED
        self._ahead = self._at_once * max(0, job.ahead)
        #: requests that Scrapy should have at one time
        self._ready = self._at_once + self._ahead
        self._has_pauses = has_pauses(crawler) and not job.fair
        #: requests of one site that count towards those that Scrapy should have
        self._of_a_site = sys.maxsize
        #: requests that a batch is thought to have, as far as they can be made
        self._size = self._ready
        if job.fair:
            self._of_a_site = enough_of_a_site(crawler)
            self._size = min(self._ready, job.batch_size, self._of_a_site)
        #: requests of one site above which nothing more of it is leased
        self._enough = max(self._of_a_site, most_of_a_site(crawler))
        self._worked = time.monotonic()  #: when there was work last
        self._pause = SOON  #: seconds until the next call for work
        self._had_batch = False  #: whether it had one at the last call that brought none
        self._unread: int | None = 0  #: batches that could not be read; None when one could
        self._idle_handlers = IdleHandlers(
            crawler,
            acker.held,
            tracker=context.tracker,
            notifier=context.notifier,
            make_finds=context.finds,
        )
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
        if not self._job.fair:  # computed at every page
            return self._ready - sum(batch.requests for batch in self._acker.held.values())
        by_site = self._count_by_site().values()
        return self._ready - sum(min(number, self._of_a_site) for number in by_site)

    def _count_by_site(self) -> Counter[str]:
        """Return slot -> requests of it that Scrapy has."""
        numbers: Counter[str] = Counter()
        for batch in self._acker.held.values():
            numbers[batch.slot] += batch.requests
        return numbers

    async def requests(self) -> AsyncIterator[Request]:
        """Yield all that this worker makes; the end comes when its last batch is settled."""
        while not self.stopped and not self._client.limit:
            if self._has_enough():
                await self._notifier.wait()
                continue
            self._begin_round()
            leased = await self._lease()
            for lease, batch in leased:
                is_alone = is_suspect(lease)
                if is_alone:
                    await self._settle_round(besides=batch)
                async for request in self._builder.requests(batch):
                    yield request
                if is_alone:
                    await self._settle_round()
            await self._end_round()
            if not leased and await self._no_more():
                break
        await self._until_settled()
        self._context.tracker.has_ended = True

    def _has_enough(self) -> bool:
        """Say whether nothing is leased for now.

        Items that a component swallows keep batches open without requests, until Scrapy has run dry
        once.
        """
        return self.room <= 0 or len(self._acker.held) > min(2 * self._ready, MOST_HELD)

    async def _lease(self) -> list[tuple[Leased, BatchUnit]]:
        """Lease batches, and open them all at once: a worker that ends gives back each."""
        enough = set()
        for slot, number in self._count_by_site().items():
            if number > self._enough:
                enough.add(slot)
        wanted = -(-self.room // self._size)  # rounded up
        limit = max(1, min(wanted, MOST_HELD - len(self._acker.held)))
        leased = await self._client.next(limit, enough)
        try:
            return [(lease, self._open(lease)) for lease in leased]
        except Exception as error:
            # This error says more than that the store is away as well, where their leases expire.
            with suppress(StoreLost):
                await self._give_back_unopened(leased, f"its worker cannot begin it: {error}")
            raise

    async def _give_back_unopened(self, leased: Sequence[Leased], reason: str) -> None:
        """Give back those of these batches that this worker does not hold."""
        for lease in leased:
            key = (lease.batch.number, lease.attempt)
            if key not in self._acker.held:
                await self._client.give_back(key, reason)

    def _begin_round(self) -> None:
        """Hold acks back where the project has handlers of `spider_idle`."""
        self._acker.waits_for_idle = self._idle_handlers.begin_round()

    async def _end_round(self, besides: BatchUnit | None = None) -> None:
        """Call the project's idle handlers for all batches but one, and let these be acked."""
        if self._acker.waits_for_idle and await self._idle_handlers.end_round(besides):
            self._acker.end_round()

    async def _settle_round(self, besides: BatchUnit | None = None) -> None:
        """Call the project's idle handlers for all batches but one, and wait for their ends."""
        await self._end_round(besides)
        await self._until_settled(besides)
        self._begin_round()

    async def _until_settled(self, besides: BatchUnit | None = None) -> None:
        """Wait until this worker has no other batch."""
        while not self.stopped and self._has_other_batch(besides):
            await self._notifier.wait()

    def _has_other_batch(self, besides: BatchUnit | None) -> bool:
        return any(batch is not besides for batch in self._acker.held.values())

    async def _no_more(self) -> bool:
        """Wait a moment for work; say whether none will come."""
        has_batch = bool(self._acker.held)
        if self._had_batch and not has_batch:
            self._pause = SOON  # the crawl may end with its last batch, or the next one come
        self._had_batch = has_batch
        if has_batch:
            self._worked = time.monotonic()
        elif await self._client.no_more() or 0 < self._job.idle <= time.monotonic() - self._worked:
            return True
        await self._notifier.wait(self._pause)
        self._pause = min(2 * self._pause, POLL)
        return False

    def _open(self, leased: Leased) -> BatchUnit:
        """Make the unit of a leased batch, with a file for its items.

        Raises:
            OSError: there can be no such file; the batch is not to blame.
        """
        self._worked = time.monotonic()
        self._pause = SOON
        row = leased.batch
        name = f"{self._job.crawl}.b{row.number}.a{leased.attempt}"
        part = PartFile(self._folder, name, typed=self._job.typed)
        try:
            batch = self._make_batch(leased, part)
        except Exception:
            part.discard()
            raise
        self._acker.held[batch.key] = batch
        self._context.tracker.enter(batch)
        count(self._context.crawler, "batches_leased")
        count(self._context.crawler, "requests_leased", row.size)
        if batch.problem:
            self._note_unreadable(row.number, batch.problem)
            self._acker.changed(batch)
        else:
            self._unread = None
        return batch

    def _make_batch(self, leased: Leased, part: PartFile) -> BatchUnit:
        """Make the unit of a batch; one of nothing, with a problem, where it cannot be begun.

        What its requests make the project's own code raise, they would make it raise again in each
        attempt. So it has to cost one.
        """
        payload = read_payload(leased.payload.get, self._client.key)
        problem = leased.fault or payload.problem
        try:
            self._adjust_to(payload.values)
            batch = self._make_unit(leased, payload.values, part)
        except Exception as error:
            logger.exception("batch %d cannot be begun", leased.batch.number)
            batch = self._make_unit(leased, [], part)
            why = f"it cannot be begun: {type(error).__name__}: {str(error)[:200]}"
            problem = problem or why
        batch.problem = problem
        return batch

    def _make_unit(self, leased: Leased, values: list[RequestValue], part: PartFile) -> BatchUnit:
        row = leased.batch
        finds = self._context.finds(f"b{row.number}:")
        kind = StrategyBatch if self._context.strategy else BatchUnit
        return kind(
            row.number, leased.attempt, values, part, finds=finds, slot=row.slot, size=row.size
        )

    def _adjust_to(self, values: Sequence[RequestValue]) -> None:
        """Take this batch as a sign of what the next ones are like."""
        if self._has_pauses and values:
            # Of one site with pauses, requests ahead would only be kept from workers that have
            # none.
            sites = {site_of(value["url"]) for value in values}
            self._ready = self._at_once
            if len(sites) > 1:
                self._ready += self._ahead
        # One small batch among large ones must not make this worker take all the rest.
        self._size = max(1, min(len(values), self._of_a_site), self._size // 2)

    def _note_unreadable(self, number: int, problem: str) -> None:
        """Count a batch that cannot be read; end the worker if it cannot read any."""
        if self._unread is None:
            return
        self._unread += 1
        if self._unread >= UNREADABLE:  # the fault is this worker's own, not the batches'
            why = f"Batch {number} cannot be crawled, and none before it could be: {problem}."
            self._context.fail(why, FinishReason.REFUSED)


def enough_of_a_site(crawler: Crawler) -> int:
    """Return how many requests of one site keep this process busy.

    It is one where there are pauses between them. A worker that shares slots fairly takes work of
    so many sites that its downloader is busy all the same.
    """
    return 1 if has_pauses(crawler) else most_of_a_site(crawler)


def has_pauses(crawler: Crawler) -> bool:
    """Say whether there are pauses between the requests of a site."""
    settings = crawler.settings
    pause = getattr(crawler.spider, "download_delay", None) or settings.getfloat("DOWNLOAD_DELAY")
    return bool(
        pause
        or settings.getbool("AUTOTHROTTLE_ENABLED")
        or settings.getbool("DISTRIBUTED_THROTTLE")
    )


def most_of_a_site(crawler: Crawler) -> int:
    """Return how many requests of one site may be under way in this process."""
    most = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    return most if most > 0 else UNLIMITED


class ReadPayload(NamedTuple):
    """The requests of a batch; none where they cannot be read."""

    values: list[RequestValue]
    problem: str = ""  #: why they cannot be read


def read_payload(get: Callable[[str], Any], key: bytes | None) -> ReadPayload:
    """Read the requests that `get` has the settings of; what is wrong with them is no exception."""
    try:
        return ReadPayload(decode(get, key=key))
    except PayloadError as error:
        return ReadPayload([], str(error))
