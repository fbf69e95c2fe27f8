"""The worker that is sent one batch: its requests instead of the spider's own start, and an account of each.

It never starts the index crawl and never distributes again; each request of the batch ends as done, gone, failed or
dead, or the report says that it did not end. Imports Scrapy and the standard library only, because it travels in the
egg.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapyd_dist.batches import FinishReason, meaning, not_made
from scrapyd_dist.errors import DistError
from scrapyd_dist.payload import REPLACES, PayloadError, decode

from ..assignment import Assignment, egg_key
from ..codec import WatchedDict, from_value
from ..engine_compat import close_spider, each, looping_call
from ..targets import with_target
from ..throttle.install import problem_of as throttle_problem
from .base import (
    LOOK,
    SAME_PAGE,
    BaseWorker,
    FilesFolder,
    PartFile,
    follows_rule,
    in_callback,
    plain_stats,
    report_head,
)
from .work_unit import RequestLedger, judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapyd_dist.payload import RequestValue

    from .lease_renewer import LeaseRenewer

logger = logging.getLogger(__name__)
#: request meta: which request of the batch this is
INDEX = "distributed_index"
#: request meta: from which of them it followed, itself included
SOURCE = "distributed_source"


class BuiltRequests(NamedTuple):
    """One of the batch's requests, as far as it can be made here."""

    url: str
    request: Request | None
    reason: str = ""  #: why it cannot, in words
    again: bool = False  #: it was made in an earlier batch, and failed there


class PushWorker(BaseWorker):
    """The spider middleware of a worker that was sent its batch.

    Args:
        crawler: the process.
        made: the batch's requests.
        job: what it was told; None when the batch was typed by hand.
        problem: why it cannot work; empty when it can.
    """

    def __init__(self, crawler: Crawler, made: list[BuiltRequests], job: Assignment | None, problem: str = "") -> None:
        super().__init__(crawler, "attempt", problem)
        self._made, self._job = made, job
        self._row = job.row if job is not None else ""
        urls = [self._row] if self._row else [one.url for one in made]
        self.ledger = RequestLedger(urls, again=any(one.again for one in made))
        self._started = time.time()
        self._feeds: list[str] = []
        self._part: PartFile | None = None  #: None where items go to the project's feed
        self._folder: FilesFolder | None = None
        self._looks: Any = None
        self._looked = 0.0
        self._leases: LeaseRenewer | None = None
        self._no_lease = "nothing was said of a lease"

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PushWorker:
        job = Assignment.from_settings(crawler.settings)
        made, problem = ([], "") if job is not None and job.row else requests_of(crawler)
        worker = cls(crawler, made, job, problem or throttle_problem(crawler))
        for handler, signal in (
            (worker._opened, signals.spider_opened),
            (worker._item, signals.item_scraped),
            (worker._scheduled, signals.request_scheduled),
            (worker._dropped, signals.request_dropped),
            (worker._feed_closed, signals.feed_slot_closed),
            (worker._closed, signals.spider_closed),
            (worker._stopped, signals.engine_stopped),
        ):
            crawler.signals.connect(handler, signal)
        return worker

    # what goes in

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The batch instead of the spider's own start, which is entered for a row of arguments only."""
        if self._problem:
            logger.error(self._problem)
            return
        if self._row:
            async for one in self._whole(start):
                yield one
            return
        for index, one in enumerate(self._made):
            if one.request is None:  # one that the spider has no callback for keeps no other one from its page
                self.ledger.missed(index, "dead", one.reason)
            else:
                yield self._watched(one.request, index)

    async def _whole(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The spider's own start. Scrapy would only log that it failed, and end as if all were done."""
        try:
            async for one in start:
                yield one
        except Exception as error:
            self._problem = self._problem or f"The spider's start failed: {type(error).__name__}: {str(error)[:200]}."
            raise

    def _watched(self, request: Request, index: int) -> Request:
        # Nobody else has this request, and to change it is cheaper than to make another one.
        request.meta[INDEX] = request.meta[SOURCE] = index
        request.errback = WatchedDict(self._failed, index, request.errback)
        return request

    def _failed(self, index: int, errback: Any, failure: Failure) -> Any:
        self.ledger.missed(index, *judge(failure))
        output = errback(failure) if errback else failure
        return output if output is None or isinstance(output, Failure) else self._from_errback(index, output)

    async def _from_errback(self, index: int, output: Any) -> AsyncIterator[Any]:
        """What an errback yields; no middleware sees it where it was the download that failed."""
        async for one in each(output):
            if isinstance(one, Request):
                one.meta.pop(INDEX, None)
                one.meta[SOURCE] = index
            yield one

    # what comes out

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        self.ledger.pages += 1
        index, source = response.meta.get(INDEX), response.meta.get(SOURCE)
        try:
            async for output in result:
                if not isinstance(output, Request):
                    yield output
                elif not self._leads_away(output):
                    output.meta.pop(INDEX, None)
                    if source is not None:
                        output.meta[SOURCE] = source
                    yield output
        except Exception as error:
            self._raised(index, error)
            raise
        if index is not None:
            self.ledger.done(index)

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        if not isinstance(exception, HttpError):  # that one came by the errback, and is judged there
            self._raised(response.meta.get(INDEX), exception)

    def _raised(self, index: int | None, error: Exception) -> None:
        if index is not None:
            self.ledger.missed(index, "failed", in_callback(error))

    def _leads_away(self, request: Request) -> bool:
        if self._row or not follows_rule(self._crawler, request):
            return False
        self._crawler.stats.inc_value("distributed/links_not_followed")
        return True

    # signals

    def _opened(self) -> None:
        job = self._job
        folder = None if job is None else self._find_folder(job)
        if job is None or folder is None:
            return
        if not job.feed:
            self._folder = FilesFolder(folder, self._settings.value("DISTRIBUTED_MIN_FREE"))
            self._part = PartFile(folder, job.name)
            self._looks = looping_call(self._look_around)
            self._looks.start(LOOK, now=False)
        self._take_lease(job)
        self._start_report(folder, job, lambda: self._progress(job))

    def _take_lease(self, job: Assignment) -> None:
        """Hold this attempt in the store, where it can be reached; without that, only HTTP tells who has it."""
        if self._problem or not job.lease:
            return
        from ..store_access import OutOfReach, reach
        from .lease_renewer import LeaseRenewer, clock, guard

        since = clock()
        try:
            store = reach(asdict(job), crawl=job.crawl, home=job.home)
            current = store.lease(job.crawl, job.batch, job.attempt, job.name, job.lease)
        except (OutOfReach, DistError) as error:
            self._no_lease = str(error)
            logger.info("This attempt has no lease: %s", error)
            return
        self._no_lease = ""
        self._leases = leases = LeaseRenewer(
            store, crawl=job.crawl, holder=job.name, seconds=job.lease, lost=self._superseded, patient=True
        )
        if not current:
            self._supersede()
            return

        def why_not(_: Request) -> str:
            """Once another attempt has taken this one's place, not one more request leaves."""
            leases.check()
            return self._late if self._reason == FinishReason.SUPERSEDED.value else ""

        leases.hold(job.batch, job.attempt, since)
        leases.start()
        guard(self._crawler, why_not)

    def _superseded(self, *_: object) -> None:
        self._supersede()
        close_spider(self._crawler, FinishReason.SUPERSEDED)

    def _item(self, item: Any, response: Response | Failure | None) -> None:
        meta = getattr(getattr(response, "request", None), "meta", None) or {}  # a failure has its request, too
        if self._part is not None:
            try:
                self._part.add(item)
            except (TypeError, ValueError) as error:
                self._problem = self._problem or self.ledger.lost_item(meta.get(INDEX), error)
                return
            self._look_around()
        self.ledger.item(meta.get(SOURCE))

    def _look_around(self) -> None:
        now = time.monotonic()
        if self._folder is None or now - self._looked < LOOK:
            return
        self._looked = now
        trouble = self._folder.trouble()
        if trouble:
            reason, problem = trouble
            self._problem = self._problem or problem
            close_spider(self._crawler, reason)

    def _scheduled(self, request: Request) -> None:
        # Scrapy filters a redirect that leaves the site without a word: no signal, no failure.
        if INDEX in request.meta and "redirect_urls" in request.meta:
            self.ledger.redirected(request.meta[INDEX], request.url)

    def _dropped(self, request: Request) -> None:
        index = request.meta.get(INDEX)
        if index is not None:
            self.ledger.missed(index, "gone", SAME_PAGE)

    def _feed_closed(self, slot: Any) -> None:
        if slot.itemcount != self.ledger.items:  # it takes some items only, or is one of several pieces
            self.ledger.located = False
        uri = urlsplit(str(slot.uri))
        if uri.netloc:  # the report can be read by whoever may read the node's logs
            uri = uri._replace(netloc=uri.netloc.rpartition("@")[2])
        self._feeds.append(uri.geturl())

    def _closed(self, reason: str) -> None:
        super()._closed(reason)
        if self._row and meaning(self._reason).asked_for:
            # It did what its settings ask for; Scrapy's own word is in the stats.
            self._reason = FinishReason.FINISHED.value
            self.ledger.done(0)
        elif meaning(self._reason).by_settings:  # the same of a batch: the next attempt would end there as well
            self.ledger.rest, self._reason = not_made(self._reason), FinishReason.FINISHED.value

    def _stopped(self) -> None:
        if self._leases is not None:
            self._leases.stop()
        if self._looks is not None and self._looks.running:
            self._looks.stop()
        if self._report_file is not None and self._job is not None:
            self._report_file.finish(self._final(self._job))

    # the report

    def _progress(self, job: Assignment) -> dict[str, Any]:
        if self._part is not None:
            self._part.flush()
        return {**self._head("running", job), **self.ledger.progress()}

    def _final(self, job: Assignment) -> dict[str, Any]:
        stats, part = self._crawler.stats.get_stats(), None
        try:
            part = self._part.close() if self._part is not None else None
        except OSError as error:
            self._problem = self._problem or f"Its items could not be kept in this node's logs: {error}."
        return {
            **self._head("ended", job),
            **self.ledger.close(),
            "finish_reason": self._reason or "unknown",
            "problem": self._problem,
            "part": part,
            "feeds": self._feeds,
            "feeds_failed": sum(n for name, n in stats.items() if name.startswith("feedexport/failed_count/")),
            "stats": plain_stats(stats),
        }

    def _head(self, state: str, job: Assignment) -> dict[str, Any]:
        lease = {"lease": self._leases is not None, "no_lease": self._no_lease}
        return report_head(state, job.crawl, job.version, self._started, batch=job.batch, attempt=job.attempt, **lease)


def requests_of(crawler: Crawler) -> tuple[list[BuiltRequests], str]:
    """The batch's requests, or none and what is wrong with it."""
    try:
        return [_made(value, crawler) for value in decode(crawler.settings.get, key=egg_key())], ""
    except PayloadError as error:
        return [], f"This batch cannot be crawled: {error}."


def _made(value: RequestValue, crawler: Crawler) -> BuiltRequests:
    assert crawler.spider
    again = REPLACES in value
    try:
        return BuiltRequests(value["url"], from_value(with_target(value, crawler), crawler.spider), again=again)
    except (ValueError, TypeError, AttributeError) as error:  # CannotTravel among them
        return BuiltRequests(value["url"], None, f"it cannot be made here: {error}", again=again)
