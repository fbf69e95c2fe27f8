"""Passes each batch's mark from its requests on to all that follows from them, and notes how every one ends.

Whatever Scrapy does with a request of a batch (fetches it, redirects it, filters it, fails it, drops it without a
word), it counts as open until then and no longer. Items have no mark: theirs is that of the response. What is requested
or scraped without one is of the page that is in work, if there is one.
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
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

from scrapyd_dist.errors import SessionExpired

from ..assignment import follows_strategy
from ..classifier import Disposition, FoundRequests
from ..codec import WatchedDict, own_errback
from ..contained import contained_stream
from ..engine_compat import each, is_offsite, read_generators
from ..goal_keeper import GoalKeeper, GoalReached
from ..pause_gate import HeldBack
from ..spider_attributes import AttributeWatch
from ..targets import MARK, Target
from .work_unit import (
    BATCH,
    IDLE,
    NO_PAGE,
    OURS,
    PAGE,
    BatchUnit,
    UnitMark,
    WorkUnit,
    attempt_over,
    count,
    judge,
    mark_of,
    reason_of_pipeline,
)


def use_marking_components(settings: BaseSettings) -> None:
    """Called before the crawl's components are made."""
    _use_marking_downloader(settings)
    usual = load_object(settings["DUPEFILTER_CLASS"])
    if not issubclass(usual, BatchDupeFilter):
        settings.set(
            "DUPEFILTER_CLASS",
            type("BatchDupeFilter", (BatchDupeFilter,), {"usual": usual}),
            priority="cmdline",
        )
    # What is left of a crawl is in the store; a queue on disk would be this job's alone, and never be read.
    settings.set("JOBDIR", None, priority="cmdline")


def _use_marking_downloader(settings: BaseSettings) -> None:
    """Let a request that a downloader middleware answers with have the mark of the one that it takes the place of."""
    usual = load_object(settings["DOWNLOADER"])
    if hasattr(usual, "marks"):
        return

    # Scrapy looks at the signature.
    @wraps(usual.fetch)
    def fetch(self: Any, request: Request, *arguments: Any) -> Any:
        context = copy_context()
        context.run(PAGE.set, mark_of(request))
        answer = context.run(usual.fetch, self, request, *arguments)
        return answer.addCallback(pass_mark_on, request)

    marking = type(usual.__name__, (usual,), {"fetch": fetch, "marks": True})
    settings.set("DOWNLOADER", marking, priority="cmdline")


def pass_mark_on(answer: Any, request: Request) -> Any:
    """The answer to a request; if it is another request, made without the first one's meta, that has its mark now."""
    mark = mark_of(request)
    if isinstance(answer, Request) and mark is not None and mark_of(answer) is None:
        answer.meta[BATCH] = mark
        if isinstance(request.errback, WatchedDict):
            noting = request.errback
            answer.errback = WatchedDict(noting.func, *noting.args[:-1], own_errback(answer))
    return answer


class BatchDupeFilter(BaseDupeFilter):
    """As many of the project's own filters as there are attempts in this process.

    As if each were a process of its own: what follows from one batch is fetched for it, whatever the worker has
    fetched before, and a worker that runs for days does not grow.
    """

    usual: type[BaseDupeFilter]  #: the project's own

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._filters: dict[tuple[int, int] | None, BaseDupeFilter] = {}
        self._each = follows_strategy(
            crawler.settings
        )  #: each request of a batch has its own answer
        crawler.signals.connect(self._over, attempt_over)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BatchDupeFilter:
        return cls(crawler)

    def _filter(self, request: Request) -> BaseDupeFilter:
        mark = mark_of(request)
        key = None if mark is None else mark.key
        if key not in self._filters:
            self._filters[key] = build_from_crawler(self.usual, self._crawler)
            self._filters[key].open()
        return self._filters[key]

    def request_seen(self, request: Request) -> bool:
        seen = self._filter(request).request_seen(request)
        if (
            seen
            and self._each
            and (mark := mark_of(request)) is not None
            and mark.position is not None
        ):
            return False  # it is another link than the one that has led here, or that it was redirected to
        return seen

    def log(self, request: Request, spider: Spider) -> None:
        self._filter(request).log(request, spider)

    def _over(self, key: tuple[int, int]) -> None:
        gone = self._filters.pop(key, None)
        if gone is not None:
            gone.close("finished")

    def close(self, reason: str) -> None:
        while self._filters:
            self._filters.popitem()[1].close(reason)


logger = logging.getLogger(__name__)
#: why a request of a batch is gone that Scrapy's filter of duplicates dropped
SAME_PAGE = "the same page as another request of this batch"


class RequestTracker:
    """All that a worker has begun, by batch and attempt; the crawler's engine is there by now.

    `rules_lead_away`: what a CrawlSpider's rule follows belongs to the producer, or to the fleet. `changed` is called
    whenever something of a unit has ended; `target` is None without a frontier; `again` repeats a request whose session
    has expired, or says that it will not.
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
        self._crawler, self.changed, self._again, self._goals = (
            crawler,
            changed,
            again,
            GoalKeeper.of(crawler),
        )
        self._target, self._rules_lead_away = target, rules_lead_away
        self._limited = crawler.settings.getint("DISTRIBUTED_LIMIT") > 0
        self._in_output: set[UnitMark] = set()  #: whose output is passing through Scrapy's chain
        self._unread: set[UnitMark] = set()  #: whose errback's output was not asked for yet
        self._repeated: set[UnitMark] = set()
        self._refused: set[UnitMark] = (
            set()
        )  #: whose failure no errback has handled, and a middleware may
        self.begun: dict[tuple[int, int], WorkUnit] = {}
        self._acked: set[tuple[int, int]] = (
            set()
        )  #: units whose items are kept, and that take no more
        self._unmarked: tuple[WorkUnit, UnitMark] | tuple[None, None] = (None, None)
        assert crawler.spider
        self._generators = read_generators(crawler.spider)
        self._attributes: AttributeWatch | None = (
            None  #: of the spider, since its first target page
        )
        self.has_ended = False  #: the last batch is settled, and there will be none
        #: what the project's handlers of `spider_idle` ask for; set while they are called
        self.idle_finds: FoundRequests | None = None
        connect = crawler.signals.connect
        connect(self._scheduled, signals.request_scheduled)
        connect(self._dropped, signals.request_dropped)
        connect(self._item, signals.item_scraped)
        connect(self._no_item, signals.item_dropped)
        connect(self._item_error, signals.item_error)
        connect(self._error, signals.spider_error)

    def enter(self, begun: WorkUnit, *, unmarked: bool = False) -> None:
        """Count what becomes of its requests; `unmarked`: of all pages without a mark, too: there is no other work."""
        self.begun[begun.key] = begun
        if unmarked:
            self._unmarked = begun, UnitMark(*begun.key, None, NO_PAGE)

    def leave(self, begun: WorkUnit, *, acked: bool = False) -> None:
        """Nothing more is counted of it; its requests that are still waiting are not made."""
        if acked:
            self._acked.add(begun.key)
        self._refused = {mark for mark in self._refused if mark.key != begun.key}
        if self.begun.pop(begun.key, None) is not None:
            self._crawler.signals.send_catch_log(attempt_over, key=begun.key)

    def _of(self, page: Any) -> tuple[WorkUnit | None, UnitMark | None]:
        """The unit and the mark of a request, response or failure; else of the page in work; else of the only work."""
        mark = mark_of(page) or PAGE.get()
        return self._unmarked if mark is None else (self.begun.get(mark.key), mark)

    # requests

    def watched(
        self, request: Request, begun: WorkUnit, index: int | None = None, source: int | None = None
    ) -> Request:
        """The request with its mark, and with an errback that notes its failure."""
        errback = own_errback(request)
        if (
            BATCH in request.meta
        ):  # it is handed over a second time, or has the whole meta of its response
            request = request.replace()
        mark = begun.begin(index, source)
        request.meta[BATCH] = mark
        request.errback = WatchedDict(self._failed, mark, errback)
        return request

    def _sorted(self, request: Request, begun: WorkUnit, source: int | None) -> Request | None:
        """The request as this worker crawls it, or None when it is for the frontier, or dropped."""
        for name in OURS:
            request.meta.pop(name, None)
        spider = self._crawler.spider
        assert spider
        # A rule of a CrawlSpider follows such a link: that is the producer's, or each worker would crawl on; where the
        # target says that rules are followed, it is the fleet's.
        is_ruled = isinstance(spider, CrawlSpider) and request.callback == spider._callback
        follows = self._target is not None and self._target.follows
        if self._rules_lead_away and is_ruled and not (follows or request.meta.get(MARK)):
            count(self._crawler, "links_not_followed")
            return None
        if (
            self._target is not None
            and begun.finds is not None
            and self._target.takes(request, spider)
        ):
            if (
                self._limited and self._rules_lead_away
            ):  # the producer alone counts how many there are
                count(self._crawler, "links_beyond_limit")
                return None
            if begun.finds.take(request, source) is not Disposition.LOCAL:
                return None
        return self.watched(begun.followed(request, source), begun, source=source)

    def _failed(self, mark: UnitMark, errback: Any, failure: Failure) -> Any:
        PAGE.set(mark)
        begun = self.begun.get(mark.key)
        if begun is None:
            return None
        if isinstance(
            failure.value, HeldBack
        ):  # it has not ended: its batch is for the next worker
            return None
        if isinstance(failure.value, GoalReached):  # nothing has failed
            begun.put_off(mark)
            self.changed(begun)
            return None
        try:
            output = failure if errback is None else errback(failure)
        except Exception as error:
            if not self._expired(error, begun, mark, failure):
                _note_failure(begun, mark, failure)
                self._ended(begun, mark)
                raise
            return None
        _note_failure(
            begun, mark, failure, is_handled=errback is not None and not isinstance(output, Failure)
        )
        if output is None or isinstance(output, Failure):
            if isinstance(output, Failure):
                self._refused.add(mark)
            self._ended(begun, mark)
            return output
        following = self._from_errback(begun, mark, output)
        self._unread.add(mark)
        # Scrapy 2.13 throws the output away when it was the download that failed.
        finalize(following, self._thrown_away, begun, mark).atexit = False
        return following

    def _thrown_away(self, begun: WorkUnit, mark: UnitMark) -> None:
        if mark in self._unread:
            self._unread.remove(mark)
            self._ended(begun, mark)

    async def _from_errback(
        self, begun: WorkUnit, mark: UnitMark, output: Any
    ) -> AsyncIterator[Any]:
        self._unread.discard(mark)
        if mark in self._in_output:  # a response was refused: `outputs` is around this
            async for one in each(output):
                yield one
            return
        try:
            async for one in each(output):
                if (kept := self._carried(begun, mark, one)) is not None:
                    yield kept
        except Exception:
            self._ended(begun, mark)
            raise
        self._ended(begun, mark)  # one that was broken off has not: the process ends

    # what pages lead to

    def page_begins(self, response: Response) -> None:
        """All that this task does from now on is of this page."""
        PAGE.set(mark_of(response))
        if self._attributes is None and isinstance(self._of(response)[0], BatchUnit):
            assert self._crawler.spider
            self._attributes = AttributeWatch(self._crawler.spider)

    def setting_attributes(self) -> AbstractContextManager[None]:
        """What is set on the spider in this context came with a request: it is no change of a callback's."""
        return nullcontext() if self._attributes is None else self._attributes.setting()

    def changed_attributes(self) -> list[str]:
        """The attributes of the spider that its callbacks have changed since its first target page came."""
        return [] if self._attributes is None else self._attributes.changed()

    async def outputs(self, response: Response, result: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """A callback's output, marked."""
        begun, mark = self._of(response)
        if begun is None or mark is None:
            async for output in result:
                if mark is None or not isinstance(
                    output, Request
                ):  # of a lost batch nothing more is fetched
                    yield output
            return
        self._begin_output(begun, mark, response)
        try:
            async for output in contained_stream(result):
                if (kept := self._carried(begun, mark, output)) is not None:
                    yield kept
        except Exception as error:
            _end_broken_off(begun, mark, error, response.url)
            self._ended(begun, mark)
            raise
        else:  # one that was broken off has not ended: the process ends, or `_error` is told why
            if mark not in self._repeated:
                begun.ledger.done(mark.position)
            self._ended(begun, mark)
        finally:
            self._repeated.discard(mark)
            self._in_output.discard(mark)

    def _begin_output(self, begun: WorkUnit, mark: UnitMark, response: Response) -> None:
        begun.begin_again(mark)
        if (
            mark in self._refused
        ):  # a middleware of the project has handled what was raised before the callback
            self._refused.remove(mark)
            begun.ledger.reopen(mark)
        begun.ledger.page(mark.position, response)
        if self._goals is not None:
            self._goals.count("pages")
        self._in_output.add(mark)

    def raised(self, response: Response, error: Exception) -> Iterable[Any] | None:
        """A callback has raised this; an iterable says that it was taken care of."""
        begun, mark = self._of(response)
        if begun is None or mark is None:
            return None
        if self._expired(error, begun, mark, response):
            return ()
        if not isinstance(error, HttpError):  # that one came by the errback, and is judged there
            _end_broken_off(begun, mark, error, response.url)
        self._ended(begun, mark)
        return None

    def _carried(self, begun: WorkUnit, mark: UnitMark, output: Any) -> Any:
        if isinstance(output, Request):
            return self._sorted(output, begun, mark.source)
        if output is not None:
            begun.item_in()
        return output

    def _expired(
        self, error: Exception, begun: WorkUnit, mark: UnitMark, page: Response | Failure
    ) -> bool:
        """Whether a request is repeated because its session has expired."""
        request = getattr(page, "request", None)
        if (
            not isinstance(error, SessionExpired)
            or request is None
            or not self._again(begun, mark, request)
        ):
            return False
        if mark in self._in_output:
            self._repeated.add(mark)
        self._ended(begun, mark)
        return True

    def _ended(self, begun: WorkUnit, mark: UnitMark) -> None:
        begun.end(mark)
        self.changed(begun)

    # signals

    def _scheduled(self, request: Request) -> None:
        mark = mark_of(request)
        if mark is not None and mark.key in self._acked:  # made too late to be of its batch
            for name in OURS:
                request.meta.pop(name, None)
            mark = None
        if mark is None:
            self._adopt(request)
            mark = mark_of(request)
        begun = None if mark is None else self.begun.get(mark.key)
        if begun is None or mark is None:
            return
        if not begun.is_open(mark):
            # Its page was handled, and what handled it has made it again: a middleware's own retry.
            begun.begin_again(mark)
            begun.ledger.reopen(mark)
        if "redirect_urls" in request.meta:
            begun.ledger.redirected(mark.position, request.url)
        if is_offsite(self._crawler, request):
            why = "it leads to another site than those of the spider's allowed_domains"
            if "redirect_urls" in request.meta:
                why = f"redirected to {request.url}, which was filtered"
            begun.ledger.missed(mark.position, "gone", why)
            self._ended(begun, mark)

    def _adopt(self, request: Request) -> None:
        """Give a request that has no mark to the page that is in work, else to any batch, which then waits for it.

        Where there is no batch, it is made all the same, but there is no part for its items.

        Raises:
            IgnoreRequest: it is for the fleet, or was dropped.
        """
        begun, mark = self._of(None)
        if begun is None:  # a timer, a signal; or the batch of the page is acked meanwhile
            begun = self._newest_batch()
            mark = None if begun is None else UnitMark(*begun.key, None, NO_PAGE)
        if begun is None or mark is None:
            if (
                self.has_ended
            ):  # the handlers of `spider_idle` have been asked, or there was no work for them
                count(self._crawler, "requests_after_end")
                raise IgnoreRequest
            return
        if mark.serial == IDLE:
            self._adopt_idle(request, begun)
            return
        kept = self._sorted(request, begun, mark.source)
        if kept is request:
            return
        if kept is not None:
            self._crawler.engine.crawl(kept)
        raise IgnoreRequest

    def _newest_batch(self) -> WorkUnit | None:
        batches = [unit for unit in self.begun.values() if isinstance(unit, BatchUnit)]
        return batches[-1] if batches else None

    def _adopt_idle(self, request: Request, begun: WorkUnit) -> None:
        """Have what an idle handler asks for be fetched once in the crawl, however many workers' handlers ask."""
        assert self.idle_finds is not None
        if self.idle_finds.take(request) is not Disposition.LOCAL:
            raise IgnoreRequest
        self.watched(request, begun)

    def _dropped(self, request: Request) -> None:
        mark = mark_of(request)
        begun = None if mark is None else self.begun.get(mark.key)
        if begun is not None and mark is not None:
            begun.ledger.missed(mark.position, "gone", SAME_PAGE)
            self._ended(begun, mark)

    def _item(self, item: Any, response: Response | None) -> None:
        begun, mark = self._of(response)
        if mark is None:
            count(self._crawler, "items_of_no_batch")
        elif begun is None:
            # Of a batch that was lost, another attempt brings it.
            count(
                self._crawler,
                "items_too_late" if mark.key in self._acked else "items_of_lost_batches",
            )
            logger.warning(
                "an item of batch %d came after its attempt was over; it is not collected",
                mark.batch,
            )
        elif isinstance(begun, BatchUnit):
            begun.item(item, mark)
        self._no_item(response)

    def _error(self, failure: Failure, response: Response | Failure) -> None:
        """A middleware has raised this that gets the output after `outputs`: the rest of it is not read."""
        begun, mark = self._of(response)
        error = failure.value
        if begun is None or mark is None or error is None or mark not in self._in_output:
            return
        request = getattr(response, "request", None)
        _end_broken_off(begun, mark, error, getattr(request, "url", "a page"))
        self._in_output.discard(mark)
        self._ended(begun, mark)

    def _item_error(self, item: Any, response: Response | None, failure: Failure) -> None:
        """A pipeline has raised: plain Scrapy logs it, and the item is gone."""
        begun, mark = self._of(response)
        error = failure.value
        if begun is not None and mark is not None and error is not None:
            begun.ledger.missed(mark.source, "failed", reason_of_pipeline(error), error)
        self._no_item(response)

    def _no_item(self, response: Response | None) -> None:
        begun, _ = self._of(response)
        if begun is not None:
            begun.item_out()
            self.changed(begun)


def _note_failure(
    begun: WorkUnit, mark: UnitMark, failure: Failure, *, is_handled: bool = False
) -> None:
    """Note that a request gave no page; `is_handled`: an errback of the project has taken care of that."""
    kind, reason = judge(failure)
    if mark.position is not None or mark.source is None:
        begun.ledger.missed(mark.position, kind, reason, failure.value)
    elif kind == "failed" and not is_handled and not _is_unwanted(failure.value):
        url = getattr(getattr(failure, "request", None), "url", "a page")
        begun.ledger.follower_failed(mark, f"{url}, to which it led, failed: {reason}")


def _is_unwanted(error: BaseException | None) -> bool:
    """Whether a component has refused a request, as Scrapy's for robots.txt does: plain Scrapy drops it as well."""
    return isinstance(error, IgnoreRequest) and not isinstance(error, HttpError)


def _end_broken_off(begun: WorkUnit, mark: UnitMark, error: BaseException, url: str) -> None:
    """Note that the callback of this page has raised: it has failed, or has closed the spider, and then it is done."""
    if isinstance(error, CloseSpider):
        begun.ledger.done(mark.position)
    elif mark.position is not None or mark.source is None:
        begun.ledger.missed(mark.position, "failed", _in_callback(error), error)
    else:
        begun.ledger.follower_failed(mark, f"{url}, to which it led, failed: {_in_callback(error)}")


def _in_callback(error: BaseException) -> str:
    """Why a request failed whose callback has raised this."""
    return f"{type(error).__name__} in the callback: {str(error)[:200]}"
