"""A worker's own requests: the spider's start, and its login, again whenever the session has expired.

A request whose session has expired waits for the new login and is made again, a few times at most; one expiry means one
login.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from scrapy import Request

from scrapyd_dist.batches import FinishReason

from ..classifier import count_found
from ..engine_compat import each, spider_method
from .work_unit import REPEATED, SESSION, OwnPages

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lease_client import LeaseContext
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
    """Makes a worker's own requests, and keeps count of its sessions."""

    def __init__(self, context: LeaseContext) -> None:
        self._context, self._tracker, self._crawler = context, context.tracker, context.crawler
        self._log_in = spider_method(context.crawler, "DISTRIBUTED_LOGIN")
        self._waiting: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._times = self.session = 0

    async def make(self, make: Callable[[], Any]) -> str:
        """Make the requests that `make` gives, and wait for all that follows; why one of them failed, if one did."""
        self._times += 1
        client, finds = self._context.client, self._context.finds(f"{self._context.job.name}:{self._times}:")
        own = OwnPages(self._tracker.crawl, self._times, finds)
        self._tracker.enter(own)
        try:
            async for output in each(make()):
                if isinstance(output, Request):
                    self._crawler.engine.crawl(self._tracker.watched(output, own))
        except Exception as error:
            logger.exception("the worker's own requests could not be made")
            own.ledger.failed = f"{type(error).__name__}: {error}"
        own.making = False
        while not own.over:
            await self._context.notifier.wait()
        self._tracker.leave(own)
        await client.missed(finds.take_misses())
        counts = finds.take_counts()
        if finds.found or counts:
            count_found(self._crawler, await client.add(finds.found, counts))
        return own.ledger.failed

    @property
    def busy(self) -> bool:
        """Whether requests wait for a login."""
        return self._task is not None

    @property
    def has_login(self) -> bool:
        return self._log_in is not None

    async def enter(self) -> bool:
        """Log in, where the spider has a login; False ends the worker, as it has failed."""
        reason = "" if self._log_in is None else await self.make(self._log_in)
        if reason:
            self._context.fail(f"The login has failed: {reason}.", FinishReason.LOGIN_FAILED)
        return not reason

    def again(self, begun: WorkUnit, mark: UnitMark, request: Request) -> bool:
        """Repeat a request whose session has expired, once there is a new one; False when it will not be repeated."""
        if self._log_in is None or isinstance(begun, OwnPages) or request.meta.get(REPEATED, 0) >= MOST:
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
        await self.enter()
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
