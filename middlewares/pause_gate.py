"""Holds the requests of one process, while its crawl rests, at the last moment before they leave.

Part of the worker half.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapyd_dist.batches import CLOSE, PAUSE

from .engine_compat import is_closing
from .goal_keeper import GoalReached

logger = logging.getLogger(__name__)
#: seconds between two looks of a held request whether it may leave
LOOK = 0.2


class HeldBack(GoalReached):
    """The request was held, and is not made: this process ends."""


class PauseGate:
    """Holds the requests of one crawler; what is on its way already comes to its end."""

    _all: ClassVar[WeakKeyDictionary[Crawler, PauseGate]] = WeakKeyDictionary()

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.rests = False  #: whether the requests are held
        handlers: Any = getattr(crawler.engine.downloader, "handlers", None)
        if hasattr(handlers, "download_request_async"):
            handlers.download_request_async = self._held(handlers.download_request_async)
        elif handlers is not None:  # Scrapy before 2.14
            handlers.download_request = self._held_deferred(handlers.download_request)

    @classmethod
    def for_crawler(cls, crawler: Crawler) -> PauseGate:
        """Return the gate of this crawler, whose engine is there.

        It is made after guards that ask when a request was let go.
        """
        if crawler not in cls._all:
            cls._all[crawler] = cls(crawler)
        return cls._all[crawler]

    @classmethod
    def closed(cls, crawler: Crawler) -> bool:
        """Tell whether the requests of this crawler are held; any thread may call it."""
        gate = cls._all.get(crawler)
        return gate is not None and gate.rests

    def obey(self, wanted: str) -> bool:
        """Hold the requests, or let them go, as a word of `batches.WANTED` says.

        Returns whether the crawl is to be closed, which is its session's work.
        """
        self.rest(wanted == PAUSE)
        return wanted == CLOSE

    def rest(self, rests: bool) -> None:
        """Hold all requests from now on, or let them go."""
        if rests == self.rests:
            return
        if rests:
            logger.info("The crawl rests: no request leaves")
            self.rests = True
            self._crawler.engine.pause()
        else:
            logger.info("The crawl goes on")
            self.rests = False
            self._crawler.engine.unpause()

    async def _wait(self) -> None:
        while self.rests:
            if is_closing(self._crawler):
                raise HeldBack("not made: the crawl rests, and this process ends")
            await asyncio.sleep(LOOK)

    def _held(self, download: Callable[..., Any]) -> Callable[..., Any]:
        async def later(request: Request, *rest: Any) -> Any:
            await self._wait()
            return await download(request, *rest)

        return later

    def _held_deferred(self, download: Callable[..., Any]) -> Callable[..., Any]:
        async def later(request: Request, *rest: Any) -> Any:
            await self._wait()
            return await maybe_deferred_to_future(download(request, *rest))

        def held(request: Request, *rest: Any) -> Any:
            if self.rests:
                return deferred_from_coro(later(request, *rest))
            return download(request, *rest)

        return held
