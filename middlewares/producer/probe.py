"""Measure before a crawl what a few index pages and a few detail pages of the site cost.

Their items go nowhere.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapyd_dist.errors import DistError
from scrapyd_dist.forecast import PageCost, Probed
from scrapyd_dist.keys import state_key
from scrapyd_dist.plurals import counted

from ..assignment import PROBE
from ..classifier import Disposition, FoundRequests
from ..targets import find_crawl_target
from ..worker.work_unit import judge_failure
from .crawl_request import check_reactor, find_project
from .index_walk import IndexWalk
from .producer_options import read_options
from .start_pages import shards_of, template_of

#: seconds after which the probe ends with what it has; half of them are for the index
LONGEST = 30.0
#: request meta: the page is a detail page
DETAIL = "distributed_detail"


@dataclass(kw_only=True)
class Stage:
    """Measures pages of one kind.

    The first one is fetched alone: it pays for imports, connections and robots.txt.
    """

    queue: deque[Request] = field(default_factory=deque)  #: requests that may be made
    asked: int = 0  #: requests that were made
    ended: int = 0  #: requests that have a result
    cost: PageCost = field(default_factory=PageCost)
    failure: str = ""  #: why the last page failed that did
    _since: float = 0.0  #: from when processor time counts, in seconds of this process

    def due(self, most: int) -> Iterator[Request]:
        """Yield the requests that are to be made now, of `most` in all."""
        while self.queue and self.asked < most:
            if self.asked and not self.ended:
                return
            self._since = self._since or time.process_time()
            self.asked += 1
            yield self.queue.popleft()

    def came(self, response: Response) -> None:
        """Add the cost of a page whose callback has run to its end."""
        now = time.process_time()
        pages = self.cost.pages + 1
        latency = response.meta.get("download_latency", 0.0)
        mean = self.cost.latency + (latency - self.cost.latency) / pages
        processor = (now - self._since) / max(1, pages - 1)
        self.cost = PageCost(pages=pages, latency=mean, processor=processor)
        if pages == 1:
            self._since = now


class Probe:
    """Fetches a few pages in place of a crawl: the spider middleware of a probe."""

    last: ClassVar["Probe | None"] = None  #: that of this process

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._most = crawler.settings.getint(PROBE)  #: pages of each kind that are fetched
        self._index = Stage()
        self._detail = Stage()
        self._found: list[Request] = []  #: detail pages that index pages have led to
        self._lanes = 0  #: index pages that could be fetched at the same time, so far
        self._start = 0.0  #: seconds of processor time until the first request
        Probe.last = self
        crawler.signals.connect(self._idle, signals.spider_idle)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Sort the spider's start requests, and yield the first index page."""
        try:
            await self._begin(start)
        except DistError as error:
            self._index.failure = str(error)
        except Exception as error:  # noqa: BLE001  (the spider's start may raise anything)
            self._index.failure = f"{type(error).__name__}: {error}"
        for request in self._index.due(self._most):
            yield request

    async def _begin(self, start: AsyncIterator[Any]) -> None:
        """Start the clock, and queue the first pages."""
        settings = self._crawler.settings
        spider = self._crawler.spider
        assert spider
        check_reactor(settings)
        options = read_options(settings)
        loop = asyncio.get_running_loop()
        loop.call_later(LONGEST / 2, self._turn_to_details)
        loop.call_later(LONGEST, sys.exit)  # at once, whatever is under way: what has come is kept
        shards = shards_of(options, spider)
        key = state_key(find_project(settings).state)
        self._walk = IndexWalk(shards, template_of(options))
        self._target = find_crawl_target(spider, settings)
        self._finds = FoundRequests(crawler=self._crawler, key=key)
        if options.sharded:
            for shard in shards:
                self._index.queue.append(self._request(Request(shard.url, dont_filter=True)))
        else:
            async for output in start:
                self._sort(output, start=True)
                if max(len(self._index.queue), len(self._found)) >= self._most:
                    break
        self._lanes = len(self._index.queue)
        self._start = time.process_time()

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        """Sort what a page's callback gives; nothing of it leaves here."""
        stage = self._stage_of(response.meta)
        try:
            async for output in result:
                if stage is self._index:
                    self._sort(output)
        except Exception as error:  # noqa: BLE001  (a callback may raise anything)
            self._ended(stage, f"{type(error).__name__} in the callback: {error}")
            return
        stage.came(response)
        self._ended(stage)
        for nothing in list[Any]():  # neither requests nor items leave here
            yield nothing

    def process_spider_exception(
        self, response: Response, exception: Exception, spider: Spider | None = None
    ) -> None:
        """Note that a page's callback failed."""
        if not isinstance(exception, HttpError):  # that one came by the errback
            self._ended(
                self._stage_of(response.meta),
                f"{type(exception).__name__} in the callback: {exception}",
            )

    def _sort(self, output: Any, *, start: bool = False) -> None:
        """Queue a request as an index page, or keep it as a detail page."""
        spider = self._crawler.spider
        assert spider
        if not isinstance(output, Request):
            return
        if not self._target.takes(output, spider, start=start):
            if start or not self._walk.is_border(output.url):
                self._index.queue.append(self._request(output))
        elif self._finds.keep(output) is Disposition.SEALED:
            self._found.append(self._request(output, **{DETAIL: True}))

    def _request(self, request: Request, **meta: bool) -> Request:
        return request.replace(meta={**request.meta, **meta}, errback=self._failed)

    def _failed(self, failure: Failure) -> Failure:
        request = failure.request  # type: ignore[attr-defined]  # Scrapy adds it
        _, reason = judge_failure(failure)
        self._ended(self._stage_of(request.meta), reason)
        return failure

    def _stage_of(self, meta: Mapping[str, Any]) -> Stage:
        return self._detail if DETAIL in meta else self._index

    def _ended(self, stage: Stage, failure: str = "") -> None:
        stage.ended += 1
        stage.failure = failure or stage.failure
        if not self._detail.asked:
            open_pages = len(self._index.queue) + self._index.asked - self._index.ended
            self._lanes = max(self._lanes, open_pages)
        self._make_requests(stage)

    def _make_requests(self, stage: Stage) -> None:
        engine = self._crawler.engine
        assert engine is not None
        for request in stage.due(self._most):
            engine.crawl(request)

    def _turn_to_details(self) -> None:
        """Ask for no more index pages, but for detail pages that all walks have led to."""
        if not self._detail.asked:
            step = max(1, len(self._found) // self._most)
            self._detail.queue.extend(self._found[::step])
            self._index.asked = max(self._index.asked, self._most)
            self._make_requests(self._detail)

    def _check_reached(self) -> None:
        """Raise DistError if a kind of page was not reached."""
        index = self._index
        stage = self._detail if self._found else index
        why = (stage.failure or f"no answer within {LONGEST:g} s").rstrip(".")
        if not (index.cost.pages or self._found):
            raise DistError(
                f"No index page could be fetched, so nothing can be forecast: {why}. Check the"
                " address of the index (--index, --start-urls, the spider's start), whether the"
                " site lets this machine in (scrapy fetch URL), and what holds it back (sdist"
                " throttle show)."
            )
        if not self._found:
            raise DistError(
                f"What was fetched ({counted(index.cost.pages, 'index page')}) led to no target"
                f" request ({self._target.how}), so nothing can be forecast. Check the links that"
                " the spider extracts there, allowed_domains, and the target (--rule, --callback)."
            )
        if not self._detail.cost.pages:
            raise DistError(
                "None of the detail pages that were tried could be fetched, so nothing can be"
                f" forecast: {why}. Check what the site answers: scrapy fetch {self._found[0].url}"
            )

    def _idle(self) -> None:
        if not self._detail.asked:
            self._turn_to_details()
            if self._detail.asked:
                raise DontCloseSpider

    def result(self) -> Probed:
        """Return what was found out; DistError if a kind of page was not reached."""
        self._check_reached()
        index = self._index
        detail = self._detail
        settings = self._crawler.settings
        sites = len({urlsplit(request.url).netloc for request in self._found})
        each = settings.getfloat("CONCURRENT_REQUESTS_PER_DOMAIN")
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            each = min(each, settings.getfloat("AUTOTHROTTLE_TARGET_CONCURRENCY"))
        return Probed(
            index=index.cost,
            detail=detail.cost,
            targets=len(self._found),
            whole=not index.queue,
            lanes=self._lanes,
            concurrency=min(settings.getint("CONCURRENT_REQUESTS"), sites * each),
            spacing=settings.getfloat("DOWNLOAD_DELAY") / sites,
            start=self._start,
        )
