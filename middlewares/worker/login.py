"""A worker's own requests: the spider's start, and its login, again whenever the session has expired.

A request whose session has expired waits for the new login and is made again, a few times at most; one expiry means one
login. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request

from ..classifier import count_found
from ..engine_compat import each
from .work_unit import REPEATED, SESSION, OwnPages

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from ..classifier import FoundRequests
    from .lease_client import LeaseClient, Notifier
    from .request_tracker import RequestTracker
    from .work_unit import UnitMark, WorkUnit

logger = logging.getLogger(__name__)
#: how often one request is made again
MOST = 3
#: what Scrapy notes in meta on the way of one making of a request
WAY = frozenset(
    {"redirect_urls", "redirect_reasons", "redirect_times", "redirect_ttl", "retry_times", "download_latency",
     "download_slot", "download_timeout", REPEATED, SESSION}
)  # fmt: skip


class OwnRequests:
    """Makes a worker's own requests.

    Args:
        finds: makes room for the requests that its pages lead to.
    """

    def __init__(
        self,
        crawler: Crawler,
        name: str,
        *,
        tracker: RequestTracker,
        lease_client: LeaseClient,
        notifier: Notifier,
        finds: Callable[[str], FoundRequests],
    ) -> None:
        self._crawler, self._name = crawler, name
        self._tracker, self._lease_client, self._notifier, self._finds = tracker, lease_client, notifier, finds
        self._times = 0

    async def __call__(self, make: Callable[[], Any]) -> str:
        """Make the requests that `make` gives, and wait for all that follows; why one of them failed, if one did."""
        self._times += 1
        finds = self._finds(f"{self._name}:{self._times}:")
        own = OwnPages(self._tracker.crawl, self._times, finds)
        self._tracker.enter(own)
        try:
            async for output in each(make()):
                if isinstance(output, Request):
                    self._crawler.engine.crawl(self._tracker.watched(output, own))
        except Exception as error:
            logger.exception("the worker's own requests could not be made")
            own.failed = f"{type(error).__name__}: {error}"
        own.making = False
        while not own.over:
            await self._notifier.wait()
        self._tracker.leave(own)
        await self._lease_client.missed(finds.take_misses())
        counts = finds.take_counts()
        if finds.found or counts:
            count_found(self._crawler, await self._lease_client.add(finds.found, counts))
        return own.failed


class Login:
    """The sessions of one worker.

    Args:
        method: gives the requests of a login; None where none is needed.
        failed: is told why a login in the middle of the crawl has failed.
    """

    def __init__(
        self,
        crawler: Crawler,
        method: Callable[[], Any] | None,
        *,
        own_requests: OwnRequests,
        tracker: RequestTracker,
        failed: Callable[[str], object],
    ) -> None:
        self._crawler, self._method, self._own_requests = crawler, method, own_requests
        self._tracker, self._failed = tracker, failed
        self._waiting: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None
        self.session = 0

    @property
    def busy(self) -> bool:
        """Whether requests wait for a login."""
        return self._task is not None

    @property
    def wanted(self) -> bool:
        """Whether there is anything to log in to."""
        return self._method is not None

    async def enter(self) -> str:
        """Log in; why it failed, if it did."""
        reason = "" if self._method is None else await self._own_requests(self._method)
        return f"The login has failed: {reason}." if reason else ""

    def again(self, begun: WorkUnit, mark: UnitMark, request: Request) -> bool:
        """Repeat a request whose session has expired, once there is a new one; False when it will not be repeated."""
        if self._method is None or isinstance(begun, OwnPages) or request.meta.get(REPEATED, 0) >= MOST:
            return False
        self._waiting.append(self._repeat_later(begun, mark, request))
        if self._task is None:
            # One that was made in an earlier session needs no new login.
            needed = request.meta.get(SESSION, self.session) == self.session
            self._task = asyncio.ensure_future(self._renew() if needed else self._repeat())
        return True

    def _repeat_later(self, begun: WorkUnit, mark: UnitMark, request: Request) -> Callable[[], object]:
        again = self._tracker.watched(_afresh(request), begun, mark.position, mark.source)

        def repeat() -> None:
            if begun.key in self._tracker.begun:
                self._crawler.engine.crawl(again)

        return repeat

    async def _renew(self) -> None:
        logger.info("the session has expired; logging in again")
        reason = await self.enter()
        if reason:
            self._failed(reason)
        self.session += 1
        await self._repeat()

    async def _repeat(self) -> None:
        waiting, self._waiting, self._task = self._waiting, [], None
        for repeat in waiting:
            repeat()


def _afresh(request: Request) -> Request:
    """The request as it was at first, to be made once more."""
    first = request.meta.get("redirect_urls")
    meta = {name: value for name, value in request.meta.items() if name not in WAY}
    meta[REPEATED] = request.meta.get(REPEATED, 0) + 1
    return request.replace(url=first[0] if first else request.url, meta=meta, dont_filter=True)
