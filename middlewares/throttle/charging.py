"""The downloader middleware next to the downloader: what leaves for a site is charged here, and nothing else is.

The rule it keeps: a request that waits here holds one of CONCURRENT_REQUESTS, so only those wait that came by no queue.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured

from scrapyd_dist.errors import ConfigError

from ..codec import AGAIN, PERMIT
from ..roles import is_producer, is_worker
from .gate import Gate
from .passes import sent_back

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

#: behind the HTTP cache, whose answers cost nothing, and all else
ORDER = 990


class Charging:
    """Lets requests with a permit pass, and sees to it that others get one."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Charging:
        """What checks a crawl.

        Raises:
            ConfigError: there is no store to ask, and nobody else here who would tell.
            NotConfigured: nothing of the throttle can hold here.
        """
        gate = Gate.of(crawler)
        if not gate.in_force:
            raise NotConfigured
        if gate.problem and not is_worker(crawler.settings) and not is_producer(crawler.settings):
            raise ConfigError(gate.problem)
        return cls(gate)

    def process_request(
        self, request: Request, spider: Spider | None = None
    ) -> Request | Coroutine[None, None, None] | None:
        """Use the request's permit; without one, wait for another: in the queue, if it came from there."""
        if not self._gate.awake:
            return None
        has = self._gate.use(request)
        if has:
            self._goes(request)
            return None
        if has is None and self._gate.left_before(request) and AGAIN not in request.meta:
            return sent_back(request)
        if has is None:
            ready = self._gate.at_once(request)
            if ready is not None:
                request.meta[PERMIT] = ready
                self._goes(request)
                return None
        elif AGAIN not in request.meta:
            return sent_back(request)
        return self._wait(request, page=has is not None)

    async def _wait(self, request: Request, *, page: bool) -> None:
        request.meta[PERMIT] = await self._gate.wait(request, page=page)
        self._goes(request)

    def _goes(self, request: Request) -> None:
        """It leaves as it was before it was sent back."""
        if AGAIN in request.meta:
            request.dont_filter = request.meta.pop(AGAIN)

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Response:
        """An answer that came from nearer than the site: its permit was not used."""
        if self._gate.awake:
            self._gate.forget(request)
        return response

    def process_exception(self, request: Request, exception: Exception, spider: Spider | None = None) -> None:
        """A request that somebody has dropped: the same."""
        self._gate.forget(request)
