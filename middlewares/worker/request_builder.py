"""From batches to requests: each is made as its spider would have made it.

A request that cannot be made here fails alone, with its reason. Part of the worker half: imports Scrapy and the
standard library only.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request

from ..codec import ATTRIBUTES, from_value, set_attributes
from ..engine_compat import spider_method
from ..targets import with_target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy.crawler import Crawler

    from scrapyd_dist.payload import RequestValue

    from .lease_client import Notifier
    from .request_tracker import RequestTracker
    from .work_unit import BatchUnit

logger = logging.getLogger(__name__)


class UnbuiltRequests(NamedTuple):
    """A leased request that cannot be made, and how the ledger counts it."""

    kind: str
    reason: str
    stat: str = "requests_not_made"


class RequestBuilder:
    """Makes the requests of batches.

    Args:
        crawler: the worker's.
        key: of the crawl, which proves that a leased request is its own.
        tracker: counts the requests.
        notifier: tells that a request has ended.
    """

    def __init__(self, crawler: Crawler, key: bytes | None, *, tracker: RequestTracker, notifier: Notifier) -> None:
        self._crawler, self._key, self._tracker, self._notifier = crawler, key, tracker, notifier
        self._hook = spider_method(crawler, "DISTRIBUTED_REQUEST_HOOK")
        self._attributes: Any = None

    async def requests(self, batch: BatchUnit) -> AsyncIterator[Request]:
        """The requests of this batch that Scrapy does not have yet."""
        while batch.todo:
            index = batch.todo[0]
            await self._take_attributes(batch.values[index])
            made = await self._made(batch, batch.values[index])
            if batch.key not in self._tracker.begun:  # its lease was lost meanwhile
                return
            batch.todo.popleft()
            if isinstance(made, Request):
                self._count("requests_returned")
                yield self._tracker.watched(made, batch, index)
            else:
                self._count(made.stat)
                batch.ledger.missed(index, made.kind, made.reason)
        self._tracker.changed(batch)  # it may have been nothing but requests that cannot be made

    async def _made(self, batch: BatchUnit, value: RequestValue) -> Request | UnbuiltRequests:
        spider = self._crawler.spider
        assert spider
        if self._key is None and not batch.sent and (why := _unproven(value)):
            return UnbuiltRequests("dead", why)
        try:
            request = from_value(with_target(value, self._crawler), spider)
        except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
            return UnbuiltRequests("dead", f"it cannot be made here: {error}")
        return request if self._hook is None else await self._hooked(request)

    async def _hooked(self, request: Request) -> Request | UnbuiltRequests:
        assert self._hook
        try:
            answer = self._hook(request)
            kept = await answer if isawaitable(answer) else answer
        except Exception as error:
            logger.exception("the hook for requests failed at %s", request)
            return UnbuiltRequests("failed", f"the hook for requests failed: {type(error).__name__}: {error}")
        if kept is None:
            return UnbuiltRequests("gone", "dropped by the hook", "requests_dropped_by_hook")
        if not isinstance(kept, Request):
            return UnbuiltRequests("failed", f"the hook for requests returned a {type(kept).__name__}")
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
        set_attributes(value, self._crawler.spider)
        self._attributes = wanted

    def _count(self, name: str, number: int = 1) -> None:
        self._crawler.stats.inc_value(f"distributed/{name}", number)


def _unproven(value: RequestValue) -> str:
    """Why a request is not made without a key that proves it is this project's own."""
    scheme = value["url"].partition(":")[0].lower()
    if scheme in {"http", "https"} and "proxy" not in str(value.get("meta", "")):
        return ""
    return (
        f"it is a request of the kind {scheme}:, or by a proxy, and this code carries no key by which it could be known"
        " whose it is; deploy it with sdist"
    )
