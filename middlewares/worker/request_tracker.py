"""Passes each batch's mark on from its requests to all that follows, and notes how every one ends.

Whatever Scrapy does with a request of a batch (fetches it, redirects it, filters it, fails it,
drops it without a word), it counts as open until then and no longer. Items have no mark: theirs is
that of the response. What is requested or scraped without one is of the page that is in work, if
there is one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import wraps
from typing import Any
from weakref import finalize

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

from scrapyd_dist.errors import SessionExpired
from scrapyd_dist.followed_pages import hash_page

from ..assignment import follows_strategy
from ..classifier import Disposition, FoundRequests, OffsiteFilter
from ..codec import IS_START, STARTS_BATCH, WatchedDict, own_errback
from ..contained import contained_stream
from ..engine_compat import read_generators
from ..goal_keeper import GoalKeeper, GoalReached
from ..own_meta import each_without_marks, hide_marks, show_marks, without_marks
from ..pause_gate import HeldBack
from ..spider_attributes import AttributeWatch
from ..targets import MARK, Target
from .work_unit import (
    BATCH,
    IDLE,
    NO_PAGE,
    OURS,
    PAGE,
    REMEMBERED,
    BatchUnit,
    UnitMark,
    WorkUnit,
    attempt_over,
    count,
    judge_failure,
    mark_of,
    reason_of_pipeline,
)

logger = logging.getLogger(__name__)
#: why a request of a batch is gone that Scrapy's filter of duplicates dropped
SAME_PAGE = "the same page as another request"


def use_marking_components(settings: BaseSettings) -> None:
    """Put in the components that pass marks on; call it before the crawl's components are made."""
    _use_marking_downloader(settings)
    usual = load_object(settings["DUPEFILTER_CLASS"])
    if not issubclass(usual, BatchDupeFilter):
        ours = type("BatchDupeFilter", (BatchDupeFilter,), {"usual": usual})
        settings.set("DUPEFILTER_CLASS", ours, priority="cmdline")
    # What is left of a crawl is in the store; a queue on disk would be this job's alone, and never
    # be read.
    settings.set("JOBDIR", None, priority="cmdline")


def _use_marking_downloader(settings: BaseSettings) -> None:
    """Let a request that a downloader middleware answers with have the mark of the one before."""
    usual = load_object(settings["DOWNLOADER"])
    if hasattr(usual, "marks"):
        return

    # Scrapy reads the signature.
    @wraps(usual.fetch)
    def fetch(self: Any, request: Request, *arguments: Any) -> Any:
        if request.meta.get(IS_START) == STARTS_BATCH:
            del request.meta[IS_START]  # in plain Scrapy, another page led to it
        context = copy_context()
        context.run(PAGE.set, mark_of(request))
        answer = context.run(usual.fetch, self, request, *arguments)
        return answer.addCallback(pass_mark_on, request)

    marking = type(usual.__name__, (usual,), {"fetch": fetch, "marks": True})
    settings.set("DOWNLOADER", marking, priority="cmdline")


def pass_mark_on(answer: Any, request: Request) -> Any:
    """Return the answer to a request.

    If it is another request, made without the first one's meta, it has its mark now.
    """
    mark = mark_of(request)
    if isinstance(answer, Request) and mark is not None and mark_of(answer) is None:
        answer.meta[BATCH] = mark
        if isinstance(request.errback, WatchedDict):
            noting = request.errback
            answer.errback = WatchedDict(noting.func, *noting.args[:-1], own_errback(answer))
    return answer


class BatchDupeFilter(BaseDupeFilter):
    """Filters duplicates by the project's own filter, one for each attempt in this process.

    It is as if each attempt were a process of its own: what follows from one batch is fetched for
    it, whatever the worker has fetched before, and a worker that runs for days does not grow.
    """

    usual: type[BaseDupeFilter]  #: the project's own

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._filters: dict[tuple[int, int] | None, BaseDupeFilter] = {}
        #: whether each request of a batch has its own answer
        self._answers_each = follows_strategy(crawler.settings)
        crawler.signals.connect(self._close_one, attempt_over)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BatchDupeFilter:
        """Make the filter as Scrapy does."""
        return cls(crawler)

    def _filter(self, request: Request) -> BaseDupeFilter:
        """Return the filter of the request's attempt."""
        mark = mark_of(request)
        key = None if mark is None else mark.key
        if key not in self._filters:
            self._filters[key] = build_from_crawler(self.usual, self._crawler)
            self._filters[key].open()
        return self._filters[key]

    def request_seen(self, request: Request) -> bool:
        """Say whether the request is dropped, as its attempt has made the same one."""
        seen = self._filter(request).request_seen(request)
        if seen and self._answers_each:
            mark = mark_of(request)
            # It is another link than the one that has led here, or that was redirected to here.
            if mark is not None and mark.position is not None:
                return False
        return seen

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that was dropped."""
        self._filter(request).log(request, spider)

    def _close_one(self, key: tuple[int, int]) -> None:
        ended = self._filters.pop(key, None)
        if ended is not None:
            ended.close("finished")

    def close(self, reason: str) -> None:
        """Close all filters."""
        while self._filters:
            self._filters.popitem()[1].close(reason)


class RequestTracker:
    """Tracks all that a worker has begun, by batch and attempt.

    Make it when the crawler has its engine. `rules_lead_away`: what a CrawlSpider's rule follows
    belongs to the producer, or to the fleet. `changed` is called whenever something of a unit has
    ended; `target` is None without a frontier; `again` repeats a request whose session has expired,
    or says that it will not.
    """

    def __init__(
        self,
        crawler: Crawler,
        *,
        rules_lead_away: bool,
        changed: Callable[[WorkUnit], None],
        target: Target | None = None,
        again: Callable[[WorkUnit, UnitMark, Request], bool] = lambda *_: False,
    ) -> None:
        assert crawler.spider
        self._crawler = crawler
        self._spider = crawler.spider
        self.changed = changed
        self._again = again
        self._goals = GoalKeeper.for_crawler(crawler)
        self._offsite = OffsiteFilter(crawler)
        self._target = target
        #: the callback of what a CrawlSpider's rules follow, if that is left to the producer
        self._left_callback = (
            _find_left_callback(crawler.spider, target) if rules_lead_away else None
        )
        is_limited = crawler.settings.getint("DISTRIBUTED_LIMIT") > 0
        #: whether only the producer may add target requests: it alone counts how many there are
        self._only_producer_adds = is_limited and rules_lead_away
        self._in_output: set[UnitMark] = set()  #: whose output is passing through Scrapy's chain
        #: whether a plain crawl would drop a request for a page that it had before
        self._is_filtered = _filters_by_fingerprint(crawler.settings)
        self._unread: set[UnitMark] = set()  #: whose errback's output was not asked for yet
        self._repeated: set[UnitMark] = set()  #: whose request is made again in a new session
        #: whose failure no errback has handled, and a middleware may -> is it an error page, which
        #: Scrapy's own drops
        self._refused: dict[UnitMark, bool] = {}
        self.begun: dict[tuple[int, int], WorkUnit] = {}
        #: units whose items are kept, and that take no more; the last ones
        self._acked: dict[tuple[int, int], None] = {}
        #: unit and mark of all that has no mark and is of no page
        self._unmarked: tuple[WorkUnit, UnitMark] | tuple[None, None] = (None, None)
        self._generators = read_generators(crawler.spider)
        #: of the spider, since its first target page
        self._attributes: AttributeWatch | None = None
        self.has_ended = False  #: the last batch is settled, and there will be none
        #: what the project's handlers of `spider_idle` ask for; set while they are called
        self.idle_finds: FoundRequests | None = None
        connect = crawler.signals.connect
        connect(self._on_scheduled, signals.request_scheduled)
        connect(self._on_dropped, signals.request_dropped)
        connect(self._on_item_gone, signals.item_dropped)
        connect(self._on_item_error, signals.item_error)
        connect(self._on_spider_error, signals.spider_error)

    def enter(self, unit: WorkUnit, *, unmarked: bool = False) -> None:
        """Count what becomes of a unit's requests.

        With `unmarked`, all pages without a mark are of it, too: there is no other work.
        """
        self.begun[unit.key] = unit
        if unmarked:
            self._unmarked = unit, UnitMark(*unit.key, None, NO_PAGE)

    def leave(self, unit: WorkUnit, *, acked: bool = False) -> None:
        """Count nothing more of a unit; its requests that are still waiting are not made."""
        if acked:
            self._acked[unit.key] = None
            if len(self._acked) > REMEMBERED:
                del self._acked[next(iter(self._acked))]
        for mark in [mark for mark in self._refused if mark.key == unit.key]:
            del self._refused[mark]
        if self.begun.pop(unit.key, None) is not None:
            self._crawler.signals.send_catch_log(attempt_over, key=unit.key)

    def _find_unit(self, page: Any) -> tuple[WorkUnit | None, UnitMark | None]:
        """Return the unit and the mark of a request, response or failure.

        If it has none, they are those of the page in work, else those of the only work.
        """
        mark = mark_of(page) or PAGE.get()
        if mark is None:
            return self._unmarked
        return self.begun.get(mark.key), mark

    # requests

    def open_request(
        self, request: Request, unit: WorkUnit, index: int | None = None, source: int | None = None
    ) -> Request:
        """Open the request in the account of its unit; return it as Scrapy gets it.

        It has a mark, and an errback that notes its failure. One that has a mark already is copied:
        it is handed over a second time.
        """
        errback = own_errback(request)
        # One with a mark is handed over a second time, or has the whole meta of its response.
        if BATCH in request.meta:
            request = request.replace()
        mark = unit.begin(index, source)
        request.meta[BATCH] = mark
        request.errback = WatchedDict(self._failed, mark, errback)
        return request

    def _route_request(
        self, request: Request, unit: WorkUnit, source: int | None
    ) -> Request | None:
        """Open the request, keep it for the frontier, or drop it and count it.

        Returns it as this worker crawls it, which may be a copy; None if it does not.
        """
        for name in OURS:
            request.meta.pop(name, None)
        left = self._left_callback
        if left is not None and request.callback == left and not request.meta.get(MARK):
            count(self._crawler, "links_not_followed")
            unit.ledger.left_links += 1
            return None
        target = self._target
        if target is not None and unit.finds is not None and target.takes(request, self._spider):
            if self._only_producer_adds:
                count(self._crawler, "links_beyond_limit")
                return None
            if unit.finds.keep(request, source) is not Disposition.LOCAL:
                return None
        return self.open_request(unit.followed(request, source), unit, source=source)

    def _failed(self, mark: UnitMark, errback: Any, failure: Failure) -> Any:
        """Note that a request has failed, and return what its own errback makes of that."""
        PAGE.set(mark)
        unit = self.begun.get(mark.key)
        if unit is None:
            return None
        # A request that is held back has not ended: its batch is for the next worker.
        if isinstance(failure.value, HeldBack):
            return None
        if isinstance(failure.value, GoalReached):  # nothing has failed
            unit.put_off(mark)
            self.changed(unit)
            return None
        request = getattr(failure, "request", None)
        hide_marks(request, OURS)
        try:
            output = failure if errback is None else errback(failure)
        except Exception as error:
            if not self._expired(error, unit, mark, failure):
                _note_failure(unit, mark, failure)
                self._ended(unit, mark)
                raise
            return None
        finally:
            show_marks(request)
        is_handled = not isinstance(output, Failure)
        _note_failure(unit, mark, failure, is_handled=is_handled)
        if not is_handled:
            self._refused[mark] = isinstance(failure.value, HttpError)
        if output is None or not is_handled:
            self._ended(unit, mark)
            return output
        following = self._from_errback(unit, mark, each_without_marks(output, request, OURS))
        self._unread.add(mark)
        # Scrapy 2.13 throws the output away when it was the download that failed.
        finalize(following, self._thrown_away, unit, mark).atexit = False
        return following

    def _thrown_away(self, unit: WorkUnit, mark: UnitMark) -> None:
        if mark in self._unread:
            self._unread.remove(mark)
            self._ended(unit, mark)

    async def _from_errback(
        self, unit: WorkUnit, mark: UnitMark, output: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        self._unread.discard(mark)
        if mark in self._in_output:  # a response was refused: `outputs` is around this
            async for result in output:
                yield result
            return
        try:
            async for result in output:
                if (kept := self._pass_output_on(unit, mark, result)) is not None:
                    yield kept
        except Exception:
            self._ended(unit, mark)
            raise
        self._ended(unit, mark)  # one that was broken off has not: the process ends

    # what pages lead to

    def page_begins(self, response: Response) -> None:
        """Take all that this task does from now on as of this page."""
        PAGE.set(mark_of(response))
        hide_marks(response.request, OURS)
        if self._attributes is None and isinstance(self._find_unit(response)[0], BatchUnit):
            self._attributes = AttributeWatch(self._spider)

    def setting_attributes(self) -> AbstractContextManager[None]:
        """Return a context in which what is set on the spider is no change of a callback's.

        It came with a request.
        """
        if self._attributes is None:
            return nullcontext()
        return self._attributes.setting()

    def changed_attributes(self) -> list[str]:
        """Return which attributes the callbacks have changed since the first target page came."""
        if self._attributes is None:
            return []
        return self._attributes.changed()

    async def outputs(self, response: Response, result: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield a callback's output, marked."""
        unit, mark = self._find_unit(response)
        result = without_marks(result, response.request, OURS)
        if unit is None or mark is None:
            async for output in result:
                # Of a lost batch nothing more is fetched.
                if mark is None or not isinstance(output, Request):
                    yield output
            return
        self._begin_output(unit, mark, response)
        try:
            async for output in contained_stream(result):
                self._take_refused(unit, mark, response)
                if (kept := self._pass_output_on(unit, mark, output)) is not None:
                    yield kept
        except Exception as error:
            _end_broken_off(unit, mark, error, response.url)
            self._ended(unit, mark)
            raise
        else:  # after a break the process ends, or `_on_spider_error` notes the end
            if mark not in self._repeated:
                unit.ledger.done(mark.position)
            self._ended(unit, mark)
        finally:
            self._repeated.discard(mark)
            self._refused.pop(mark, None)
            self._in_output.discard(mark)

    def _begin_output(self, unit: WorkUnit, mark: UnitMark, response: Response) -> None:
        unit.begin_again(mark)
        # Of an error page that was handled, only an output shows that it was not just dropped.
        if not self._refused.get(mark, False):
            self._take_page(unit, mark, response)
        self._in_output.add(mark)

    def _take_refused(self, unit: WorkUnit, mark: UnitMark, response: Response) -> None:
        """Do the same as `_take_page`, if that has not been done."""
        if mark in self._refused:
            self._take_page(unit, mark, response)

    def _take_page(self, unit: WorkUnit, mark: UnitMark, response: Response) -> None:
        """Note that a page has come to a callback, or to a middleware that takes its place."""
        if self._refused.pop(mark, None) is not None:
            unit.ledger.reopen(mark)
        unit.ledger.page(mark.position, response)
        if self._goals is not None:
            self._goals.count("pages")

    def raised(self, response: Response, error: Exception) -> Iterable[Any] | None:
        """Note what a callback has raised; an iterable says that it was taken care of."""
        show_marks(response.request)
        unit, mark = self._find_unit(response)
        if unit is None or mark is None:
            return None
        if self._expired(error, unit, mark, response):
            return ()
        # What a middleware has raised before the callback came by the errback, and is judged there.
        if mark not in self._refused and not isinstance(error, HttpError):
            _end_broken_off(unit, mark, error, response.url)
        self._ended(unit, mark)
        return None

    def _pass_output_on(self, unit: WorkUnit, mark: UnitMark, output: Any) -> Any:
        """Take an output of a page into the account of its unit: a request or an item.

        Returns it as it goes on, a request perhaps as a copy; None if it does not.
        """
        if isinstance(output, Request):
            return self._route_request(output, unit, mark.source)
        if output is not None:
            unit.item_in()
        return output

    def _expired(
        self, error: Exception, unit: WorkUnit, mark: UnitMark, page: Response | Failure
    ) -> bool:
        """Say whether a request is repeated because its session has expired."""
        request = getattr(page, "request", None)
        if not isinstance(error, SessionExpired) or request is None:
            return False
        if not self._again(unit, mark, request):
            return False
        if mark in self._in_output:
            self._repeated.add(mark)
        self._ended(unit, mark)
        return True

    def _ended(self, unit: WorkUnit, mark: UnitMark) -> None:
        unit.end(mark)
        self.changed(unit)

    # signals

    def _on_scheduled(self, request: Request) -> None:
        mark = mark_of(request)
        if mark is not None and mark.key in self._acked:  # made too late to be of its batch
            _unmark(request)
            mark = None
        if mark is None:
            self._adopt(request)
            mark = mark_of(request)
        unit = None if mark is None else self.begun.get(mark.key)
        if unit is None or mark is None:
            return
        if not unit.is_open(mark):
            # Its page was handled, and what handled it has made it again: a middleware's own
            # retry.
            unit.begin_again(mark)
            unit.ledger.reopen(mark)
        if "redirect_urls" in request.meta:
            unit.ledger.redirected(mark.position, request.url)
        if self._offsite.drops(request):
            self._end_offsite(unit, mark, request)

    def _end_offsite(self, unit: WorkUnit, mark: UnitMark, request: Request) -> None:
        """Note the end of a request that Scrapy is going to drop as offsite."""
        why = "it leads to another site than those of the spider's allowed_domains"
        if "redirect_urls" in request.meta:
            why = f"redirected to {request.url}, which was filtered"
        unit.ledger.missed(mark.position, "gone", why)
        self._ended(unit, mark)

    def _adopt(self, request: Request) -> None:
        """Give a request that has no mark to the page that is in work, else to any batch.

        The batch then waits for it. Where there is no batch, it is made all the same, but there is
        no part for its items.

        Raises:
            IgnoreRequest: it is for the fleet, or was dropped.
        """
        # The handlers of `spider_idle` were called by then, or there was no work for them.
        if self.has_ended:
            count(self._crawler, "requests_after_end")
            raise IgnoreRequest
        unit, mark = self._find_unit(None)
        if unit is None:  # a timer, a signal; or the batch of the page is acked meanwhile
            unit = self._newest_batch()
            mark = None if unit is None else UnitMark(*unit.key, None, NO_PAGE)
        if unit is None or mark is None:
            return
        if mark.serial == IDLE:
            self._adopt_idle(request, unit)
            return
        kept = self._route_request(request, unit, mark.source)
        if kept is request:
            return
        if kept is not None:
            self._crawler.engine.crawl(kept)
        raise IgnoreRequest

    def _newest_batch(self) -> WorkUnit | None:
        for unit in reversed(self.begun.values()):
            # One that cannot be read ends at once, and leads to nothing.
            if isinstance(unit, BatchUnit) and (unit.values or unit.row):
                return unit
        return None

    def _adopt_idle(self, request: Request, unit: WorkUnit) -> None:
        """Have a request of an idle handler be made once in the crawl, however many workers ask."""
        assert self.idle_finds is not None
        if self.idle_finds.keep(request) is not Disposition.LOCAL:
            raise IgnoreRequest
        self.open_request(request, unit)

    def _on_dropped(self, request: Request) -> None:
        mark = mark_of(request)
        unit = None if mark is None else self.begun.get(mark.key)
        if unit is not None and mark is not None:
            if "redirect_urls" in request.meta:
                why = f"redirected to {request.url}, {SAME_PAGE}"
                unit.ledger.missed(mark.position, "gone", why)
            else:
                unit.ledger.missed(mark.position, "gone", SAME_PAGE)
                if self._is_filtered:
                    unit.ledger.repeats(mark.position, self._hash_page(request))
            self._ended(unit, mark)

    def note_item(self, item: Any, response: Response | None) -> None:
        """Write an item that was scraped to the part of its page's batch, and count it."""
        unit, mark = self._find_unit(response)
        if mark is None:
            count(self._crawler, "items_of_no_batch")
        elif unit is None:
            # Of a batch that was lost, another attempt brings it.
            is_late = mark.key in self._acked
            count(self._crawler, "items_too_late" if is_late else "items_of_lost_batches")
            logger.warning(
                "an item of batch %d came after its attempt was over; it is not collected",
                mark.batch,
            )
        elif isinstance(unit, BatchUnit):
            unit.item(item, mark)
            if response is not None and self._is_filtered and not unit.row:
                self._note_followed(unit, mark, response)
        else:  # there is no part for those of start requests and logins
            count(self._crawler, "items_of_own_pages")
        self._on_item_gone(response)

    def _note_followed(self, unit: BatchUnit, mark: UnitMark, response: Response) -> None:
        """Note the page of an item, if it is none of the batch's own: others may have it, too."""
        request = response.request
        if request is None or request.dont_filter:
            return
        if unit.ledger.leads_to(mark, request.url):
            unit.ledger.led_to(mark, self._hash_page(request), request.url)

    def _hash_page(self, request: Request) -> bytes:
        fingerprinter = self._crawler.request_fingerprinter
        assert fingerprinter is not None
        return hash_page(fingerprinter.fingerprint(request))

    def _on_spider_error(self, failure: Failure, response: Response | Failure) -> None:
        """Note what a middleware has raised on the output of `outputs`: the rest is not read."""
        unit, mark = self._find_unit(response)
        error = failure.value
        if unit is None or mark is None or error is None or mark not in self._in_output:
            return
        request = getattr(response, "request", None)
        _end_broken_off(unit, mark, error, getattr(request, "url", "a page"))
        self._in_output.discard(mark)
        self._ended(unit, mark)

    def _on_item_error(self, item: Any, response: Response | None, failure: Failure) -> None:
        """Note what a pipeline has raised: plain Scrapy logs it, and the item is gone."""
        unit, mark = self._find_unit(response)
        error = failure.value
        if unit is not None and mark is not None and error is not None:
            unit.ledger.missed(mark.source, "failed", reason_of_pipeline(error), error)
        self._on_item_gone(response)

    def _on_item_gone(self, response: Response | None) -> None:
        unit, _ = self._find_unit(response)
        if unit is not None:
            unit.item_out()
            self.changed(unit)


def _find_left_callback(spider: Spider, target: Target | None) -> Callable[..., Any] | None:
    """Return the callback of requests that a worker does not follow; None if it follows all.

    What a CrawlSpider's rule follows is the producer's, or each worker would crawl on; where the
    target says that rules are followed, it is the fleet's.
    """
    if not isinstance(spider, CrawlSpider) or (target is not None and target.follows):
        return None
    callback: Callable[..., Any] = spider._callback  # noqa: SLF001 - Scrapy's mark
    return callback


def _filters_by_fingerprint(settings: BaseSettings) -> bool:
    """Say whether Scrapy's own filter of duplicates judges the requests of a batch."""
    filter_class = load_object(settings["DUPEFILTER_CLASS"])
    return issubclass(getattr(filter_class, "usual", filter_class), RFPDupeFilter)


def _unmark(request: Request) -> None:
    for name in OURS:
        request.meta.pop(name, None)


def _note_failure(
    unit: WorkUnit, mark: UnitMark, failure: Failure, *, is_handled: bool = False
) -> None:
    """Note that a request gave no page; `is_handled`: an errback of the project took care of it."""
    kind, reason = judge_failure(failure)
    if mark.position is not None or mark.source is None:
        unit.ledger.missed(mark.position, kind, reason, failure.value)
    elif kind == "failed" and not is_handled:
        url = getattr(getattr(failure, "request", None), "url", "a page")
        unit.ledger.follower_failed(mark, f"{url}, to which it led, failed: {reason}")


def _end_broken_off(unit: WorkUnit, mark: UnitMark, error: BaseException, url: str) -> None:
    """Note that the callback of this page has raised: it has failed, or has closed the spider.

    In the second case its request is done.
    """
    if isinstance(error, CloseSpider):
        unit.ledger.done(mark.position)
    elif mark.position is not None or mark.source is None:
        unit.ledger.missed(mark.position, "failed", _in_callback(error), error)
    else:
        unit.ledger.follower_failed(mark, f"{url}, to which it led, failed: {_in_callback(error)}")


def _in_callback(error: BaseException) -> str:
    """Say why a request failed whose callback has raised this."""
    return f"{type(error).__name__} in the callback: {str(error)[:200]}"
