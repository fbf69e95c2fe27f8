"""Take target requests where they leave the spider, before each passes Scrapy's middlewares alone.

What Scrapy's own spider middlewares do to such a request is done all the same, by the method that
Scrapy documents for one request: what is found, statistics, log and order do not change. Where any
other middleware is on that way, or one means more than one request, all goes the usual way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cached_property
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.spidermiddlewares.referer import RefererMiddleware
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from ..engine_compat import origin_text
from ..own_meta import read_mark
from .index_walk import SHARD
from .producer import Producer

#: the place of a middleware that is closer to the spider than any other
CLOSEST = 10_000
#: Scrapy's middlewares that a request may pass twice without another outcome
_KNOWN = frozenset(
    {
        "scrapy.spidermiddlewares.depth.DepthMiddleware",
        "scrapy.spidermiddlewares.metacopy.MetaCopyDetectionMiddleware",
        "scrapy.spidermiddlewares.referer.RefererMiddleware",
        "scrapy.spidermiddlewares.urllength.UrlLengthMiddleware",
    }
)
#: what the names of this program's own modules begin with, and those that are no project's
_OWN = __name__.partition(".")[0] + "."
_NOT_PROJECTS = (_OWN, "scrapy.")
#: request meta that is used up on the way
_USED_UP = "depth_reset"
#: request meta with a policy for this request alone
_OWN_POLICY = "referrer_policy"
#: the header of a page with a policy for its requests
_PAGE_POLICY = "Referrer-Policy"

#: what Scrapy calls `get_processed_request`
Process = Callable[[Request, Response], "Request | None"]


class EarlyCapture:
    """Takes target requests at the spider's output: the spider middleware closest to the spider.

    `SPIDER_MIDDLEWARES` with this class and None switches it off.
    """

    def __init__(self, crawler: Crawler, kinds: list[type[Any]]) -> None:
        """Take requests past middlewares of these kinds, of which a request passes the first first.

        Args:
            crawler: the one of a producer.
            kinds: of Scrapy's own middlewares.
        """
        self._crawler = crawler
        self._kinds = kinds

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> EarlyCapture:
        """Make the middleware.

        Raises:
            NotConfigured: all requests have to go the usual way.
        """
        kinds = find_passed(crawler.settings)
        if kinds is None:
            raise NotConfigured
        return cls(crawler, kinds)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Any = None
    ) -> AsyncIterator[Any]:
        """Yield what the spider yields, without the target requests that can be taken here."""
        producer = self._producer
        # Now: a callback may yield the request of this very page.
        shard = 0 if response.request is None else read_mark(response.request, SHARD, 0)
        processes = self._processes(response)
        async for output in result:
            if (
                not isinstance(output, Request)
                or _USED_UP in output.meta
                or not producer.takes_early(output, response)
            ):
                yield output
                continue
            request = _pass(processes, output, response)
            if request is not None and producer.sort_early(request, shard):
                yield request

    @cached_property
    def _producer(self) -> Producer:
        producer = self._crawler.get_spider_middleware(Producer)
        assert producer is not None, "it is on the way of every request that is taken past others"
        return producer

    @cached_property
    def _passed(self) -> list[Any]:
        """The middlewares that a request passes, in order; some may be switched off."""
        found = [self._crawler.get_spider_middleware(kind) for kind in self._kinds]
        return [middleware for middleware in found if middleware is not None]

    def _processes(self, response: Response) -> list[Process]:
        """Return what each middleware does to a request of this page."""
        processes: list[Process] = []
        for middleware in self._passed:
            if isinstance(middleware, RefererMiddleware):
                processes.append(_PageReferers(middleware, response).process)
            else:
                processes.append(middleware.get_processed_request)
        return processes


def find_passed(settings: BaseSettings) -> list[type[Any]] | None:
    """Return the kinds of the middlewares between the spider and the producer's, outwards.

    None where requests cannot be taken past them: one is not Scrapy's own, or counts a request each
    time that it passes. Nor can they where a middleware of the project's gets exceptions: before
    Scrapy 2.19 it gets each of them once more for each middleware that it comes through.
    """
    if settings.getint("DEPTH_PRIORITY") or settings.getbool("DEPTH_STATS_VERBOSE"):
        return None
    kinds = _load_kinds(settings)
    own = [number for number, kind in enumerate(kinds) if kind.__module__.startswith(_OWN)]
    if not own or any(map(_gets_exceptions, kinds[own[0] :])):
        return None
    passed = kinds[: own[0]]
    paths = {f"{kind.__module__}.{kind.__qualname__}" for kind in passed}
    return passed if paths <= _KNOWN else None


def _load_kinds(settings: BaseSettings) -> list[type[Any]]:
    """Return the classes of all spider middlewares but this one, outwards."""
    components = build_component_list(settings.getwithbase("SPIDER_MIDDLEWARES"))
    kinds = [load_object(component) for component in reversed(components)]
    return [kind for kind in kinds if kind is not EarlyCapture]


def _gets_exceptions(kind: type[Any]) -> bool:
    """Tell whether this is a middleware of the project's that is called with exceptions."""
    if kind.__module__.startswith(_NOT_PROJECTS):
        return False
    return hasattr(kind, "process_spider_exception")


def _pass(processes: list[Process], request: Request, response: Response) -> Request | None:
    """Return what all of them make of a request; None when one drops it."""
    for process in processes:
        processed = process(request, response)
        if processed is None:
            return None
        request = processed
    return request


class _PageReferers:
    """Gives the requests of one page their referer, which is the same for all to one origin.

    The first one to an origin gets it from Scrapy.
    """

    def __init__(self, middleware: RefererMiddleware, response: Response) -> None:
        self._middleware = middleware
        is_scrapys = _is_scrapys(middleware.default_policy)
        self._each_alone = _PAGE_POLICY in response.headers or not is_scrapys
        #: origin, as it is written -> the referer of a request to there, if it has one
        self._referers: dict[str, bytes | None] = {}

    def process(self, request: Request, response: Response) -> Request | None:
        """Do what the middleware would."""
        headers = request.headers
        if self._each_alone or _OWN_POLICY in request.meta or "Referer" in headers:
            return self._middleware.get_processed_request(request, response)
        origin = origin_text(request.url)
        if origin not in self._referers:
            processed = self._middleware.get_processed_request(request, response)
            self._referers[origin] = headers.get("Referer")
            return processed
        referer = self._referers[origin]
        if referer is not None:
            headers["Referer"] = referer
        return request


def _is_scrapys(policy: type[Any]) -> bool:
    """Tell whether a policy of referers is one of Scrapy's, which go by the origin of a request."""
    return policy.__module__ == RefererMiddleware.__module__
