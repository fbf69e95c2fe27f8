"""Keep target requests from being crawled here: the spider middleware of a producer.

The rule it keeps: every request that the spider makes is an index page (crawled here), or ends in
the account; none is dropped without being counted.
"""

from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from ..classifier import Disposition
from ..codec import WatchedDict, is_dropped, mark_start, own_errback
from ..contained import contained_start, contained_stream
from ..engine_compat import call_before_errbacks
from ..feed_place import connect_at_feeds
from ..goal_keeper import GoalReached
from ..own_meta import each_without_marks, hide_marks, read_mark, show_marks, without_marks
from ..worker.work_unit import judge_failure, reason_of_pipeline
from .crawl_run import CrawlRun
from .crawl_start import CrawlStart
from .index_walk import PAGE, SHARD
from .lifecycle import LifecycleMiddleware, begin

#: request meta: a target request that the producer crawls itself
LOCAL = "distributed_local"
#: the marks of a request of this process; no two have the same first one
MARKS = (PAGE, SHARD, LOCAL)


class Producer(LifecycleMiddleware["CrawlRun"]):
    """Finds the requests of a crawl: the spider middleware of its producer."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        connect = crawler.signals.connect
        connect(self._started, signals.engine_started)
        connect_at_feeds(crawler, self._item)
        connect(self._item_error, signals.item_error)
        connect(self._dropped, signals.request_dropped)
        connect(self._idle, signals.spider_idle)
        # A receiver that disconnects itself while it is called makes Scrapy pass over the next one.
        connect(self._idle_again, signals.spider_idle)
        #: requests that were sorted early, and what that has raised
        self._sorted_early: dict[Request, BaseException | None] = {}
        self._failed_requests: WeakSet[Request] = WeakSet()  #: that are judged already
        self._in_output: WeakSet[Request] = WeakSet()  #: whose page's output is sorted now

    def _started(self) -> None:
        call_before_errbacks(self._crawler, show_marks)

    # what goes in

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the shards' start pages, or those of the spider's own start.

        Nothing at all when the crawl is refused.
        """
        start_of_crawl = CrawlStart(self._crawler)
        run = await begin(start_of_crawl.start, start_of_crawl.refused)
        self._run = run
        if run is None or run.finds_no_more:
            return
        index = run.index
        if run.options.sharded:
            for shard in index.unfinished():
                yield self._index_request(run, Request(shard.url, dont_filter=True), shard.number)
            return
        if not index.unfinished():
            return
        own = index.unfinished()[0].number
        try:
            with run.start_watch.running():
                async for output in contained_start(self._crawler, start):
                    if not isinstance(output, Request):
                        yield output
                        continue
                    mark_start(output)
                    if (kept := self._sort(run, output, own)) is not None:
                        yield kept
        except Exception as error:
            run.start_failed(error)
            why = f"the spider's start failed: {type(error).__name__}: {str(error)[:200]}"
            index.lost(own, index.asked(own), "", why)
            raise

    def _index_request(self, run: CrawlRun, request: Request, shard: int) -> Request:
        return self._watched(request, {SHARD: shard, PAGE: run.index.asked(shard)})

    def _watched(self, request: Request, marks: dict[str, Any]) -> Request:
        """Return the request itself, with marks in its meta.

        A copy of a request of a class of the project's own may lack its fields.
        """
        request.meta.update(marks)
        self._failed_requests.discard(request)
        request.errback = WatchedDict(self._failed, own_errback(request))
        return request

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:
        """Hide our marks from the callback."""
        hide_marks(response.request, MARKS)

    # what comes out

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        """Keep target requests from this process, and note what became of an index page."""
        run = self.run
        request = response.request
        assert request is not None
        shard = read_mark(request, SHARD, 0)
        # Now: a callback may yield this very request again, with another number.
        page = read_mark(request, PAGE)
        self._in_output.add(request)
        try:
            async for output in without_marks(contained_stream(result), request, MARKS):
                if not isinstance(output, Request):
                    yield output
                elif (kept := self._sort(run, output, shard, response)) is not None:
                    yield kept
        except CloseSpider:  # the page is done, as far as its callback wanted it
            self._came(response, shard, page)
            raise
        except Exception as error:
            why = f"{type(error).__name__} in the callback: {str(error)[:200]}"
            self._lost(response.meta, response.url, "failed", why)
            raise
        finally:
            self._in_output.discard(request)
        self._came(response, shard, page)

    def takes_early(self, request: Request, response: Response) -> bool:
        """Tell whether `sort_early` may sort a request that a callback of this page has made."""
        run = self._run
        if run is None or run.finds_no_more or _has_mark(response, LOCAL):
            return False
        assert self._crawler.spider
        return run.target.takes(request, self._crawler.spider)

    def sort_early(self, request: Request, shard: int) -> bool:
        """Sort a target request in before it comes out of the spider's page.

        Returns whether it has to come all the same: it is to be crawled here, or could not be
        sorted, which is raised then.
        """
        _remove_marks(request)
        try:
            if self._sort_target(self.run, request, shard) is None:
                return False
        except BaseException as error:  # noqa: BLE001  (it is raised where it is always raised)
            self._sorted_early[request] = error
        else:
            self._sorted_early[request] = None
        return True

    def _sorted_before(self, request: Request) -> Request:
        """Return a request that was sorted early, or raise what that has raised."""
        error = self._sorted_early.pop(request)
        if error is not None:
            raise error
        return request

    def _came(self, response: Response, shard: int, page: int | None) -> None:
        """Note that the callback of an index page has ended; `page` is the request's number."""
        if page is not None:
            self.run.index.came(shard, page, _first_url(response))
            if self.run.goals is not None:
                self.run.goals.count("pages")

    def process_spider_exception(
        self, response: Response, exception: Exception, spider: Spider | None = None
    ) -> None:
        """Count a page as failed that a callback or a middleware has refused."""
        show_marks(response.request)
        # What was raised before the callback came by the errback, and is counted there.
        is_judged = response.request in self._failed_requests
        if not is_judged and not isinstance(exception, (HttpError, CloseSpider)):
            why = f"{type(exception).__name__}: {str(exception)[:200]}"
            self._lost(response.meta, _first_url(response), "failed", why)

    def _sort(
        self, run: CrawlRun, request: Request, shard: int, page: Response | Request | None = None
    ) -> Request | None:
        """Return the request as the producer crawls it.

        `page` is what it comes from; None for the spider's start. None when it is for the fleet, or
        is not crawled at all.
        """
        if request in self._sorted_early:
            return self._sorted_before(request)
        _remove_marks(request)
        spider = self._crawler.spider
        assert spider
        if run.finds_no_more:
            return None
        if page is not None and LOCAL in page.meta:
            return request  # what a locally crawled page leads to stays here as well
        if run.target.takes(request, spider, start=page is None):
            return self._sort_target(run, request, shard)
        if page is not None and run.options.sharded and run.index.is_border(request.url):
            return None
        return self._new_index_request(run, request, shard)

    def _new_index_request(self, run: CrawlRun, request: Request, shard: int) -> Request | None:
        """Return a request of the index; None where it was found as a target request before."""
        if not run.capture.has_found(request):
            return self._index_request(run, request, shard)
        self._crawler.stats.inc_value("dupefilter/filtered")
        return None

    def _sort_target(self, run: CrawlRun, request: Request, shard: int) -> Request | None:
        """Hand a target request on to the fleet; return it if the producer crawls it itself."""
        disposition, cut = run.capture.sort_in(request, shard)
        if cut is not None:
            run.sealer.seal(cut)
        if run.capture.room.is_used_up:
            run.find_no_more()
        if disposition is Disposition.SEALED:
            run.index.found(shard)
        if disposition is not Disposition.LOCAL:
            return None
        # A filter of the project's own has let it pass, and would not let it pass again.
        request.dont_filter = request.dont_filter or run.capture.has_filter
        return self._watched(request, {SHARD: shard, LOCAL: True})

    # failures

    def _failed(self, errback: Any, failure: Failure) -> Any:
        if isinstance(failure.value, GoalReached):  # its shard stays unfinished
            return None
        request = failure.request  # type: ignore[attr-defined]  # Scrapy adds it
        url = request.url if LOCAL in request.meta else _first_url(request)
        self._failed_requests.add(request)
        kind, reason = judge_failure(failure)
        dropped = is_dropped(failure.value)
        self._lost(request.meta, url, kind, reason, is_dropped=dropped)
        if errback is None:
            return failure
        hide_marks(request, MARKS)
        try:
            output = errback(failure)
        finally:
            show_marks(request)
        if output is None or isinstance(output, Failure):
            return output
        return self._from_errback(request, each_without_marks(output, request, MARKS))

    async def _from_errback(
        self, request: Request, outputs: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what an errback makes of a failure; its requests are sorted as a callback's are."""
        # That of a page that was refused comes to `process_spider_output`.
        is_sorted_later = request in self._in_output
        shard = read_mark(request, SHARD, 0)
        is_local = read_mark(request, LOCAL) is not None
        async for output in outputs:
            if is_sorted_later or not isinstance(output, Request):
                yield output
            elif is_local:  # it may be this very page once more, which has to be counted
                yield self._watched(output, {SHARD: shard, LOCAL: True})
            elif (kept := self._sort(self.run, output, shard, request)) is not None:
                yield kept

    def _lost(
        self, meta: dict[str, Any], url: str, kind: str, reason: str, *, is_dropped: bool = False
    ) -> None:
        """List a page that failed for good, and let its walk go on behind it.

        `is_dropped`: a component has dropped it, as in a plain crawl.
        """
        run = self.run
        if LOCAL in meta or is_dropped:
            run.reporter.local_missed(url, kind, reason)
        if PAGE not in meta:
            return
        shard = meta[SHARD]
        following = run.index.lost(shard, meta[PAGE], url, reason, is_dropped=is_dropped)
        if following is not None and not run.index.is_border(following):
            request = Request(following, dont_filter=True)
            self._crawler.engine.crawl(self._index_request(run, request, shard))

    # signals

    def _item(self, item: Any, response: Response | None) -> None:
        if self._run is None:
            return
        if response is None:
            self._run.own_item(item, 0, "")
        else:
            shard = 0 if response.request is None else read_mark(response.request, SHARD, 0)
            self._run.own_item(item, shard, response.url)

    def _item_error(self, response: Response | None, failure: Failure) -> None:
        """Count an item as lost whose pipeline has raised: plain Scrapy only logs that."""
        if self._run is not None and failure.value is not None:
            url = response.url if response is not None else ""
            self._run.reporter.local_missed(url, "failed", reason_of_pipeline(failure.value))

    def _dropped(self, request: Request) -> None:
        if PAGE in request.meta and self._run is not None:  # seen before: nothing is lost
            self._run.index.dropped(request.meta[SHARD], request.meta[PAGE])

    def _idle(self) -> None:
        if self._run is not None and self._run.hold():
            raise DontCloseSpider

    def _idle_again(self) -> None:
        self._idle()


def _remove_marks(request: Request) -> None:
    """Remove the marks of another request: a callback may have passed its response's meta on."""
    for name in MARKS:
        request.meta.pop(name, None)


def _has_mark(response: Response, name: str) -> bool:
    return response.request is not None and read_mark(response.request, name) is not None


def _first_url(page: Response | Request) -> str:
    """Return the address that was asked for first, before redirects."""
    redirected: list[str] = page.meta.get("redirect_urls", [])
    return redirected[0] if redirected else page.url
