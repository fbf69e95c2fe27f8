"""The worker half: a batch's requests instead of the spider's own start, and an account of what became of each.

The rules it keeps: it never starts the index crawl and never distributes again; each request of the
batch ends as done, gone or failed, or the report says that it did not end. Imports Scrapy and the
standard library only, because it travels in the egg.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider

import scrapyd_dist
from scrapyd_dist.payload import RequestValue, decode

from .codec import from_value
from .part import Part, ReportFile, crawl_folder, free_bytes, remove_old
from .targets import only_rule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from twisted.python.failure import Failure

logger = logging.getLogger(__name__)

#: request meta: which request of the batch this is
INDEX = "distributed_index"
#: 4xx that say "not now" instead of "not there"
NOT_NOW = frozenset({408, 429})
#: seconds between two looks at the disk
DISK_LOOK = 5.0
KEY_FILE = "_key.txt"
REPORT_SCHEMA = 1


def egg_key() -> bytes | None:
    """The key that travelled in this egg, if this code came from one."""
    try:
        return files(scrapyd_dist.__name__).joinpath(KEY_FILE).read_bytes().strip() or None
    except (OSError, KeyError):  # a zip says KeyError
        return None


@dataclass(frozen=True)
class Job:
    """What the coordinator says about this attempt (the setting `DISTRIBUTED_JOB`, JSON)."""

    crawl: str
    batch: int
    attempt: int
    home: str = ""  #: the crawl's folder of files in this node's logs
    start_by: float = 0.0  #: seconds since the epoch after which it must not start; 0 for no limit
    feed: bool = False  #: items go to the project's feed URL instead of the log folder
    collected: list[str] = field(default_factory=list)  #: folders of other crawls, which may go
    version: str = ""

    @property
    def name(self) -> str:
        """The job's id, which names its files as well."""
        return f"{self.crawl}.b{self.batch}.a{self.attempt}"

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Job | None:
        """None when the batch was typed by hand, as in the book."""
        text = settings.get("DISTRIBUTED_JOB")
        return cls(**json.loads(text)) if text else None


class Account:
    """What became of each request of the batch."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._done: set[int] = set()
        self._missed: dict[int, tuple[str, str]] = {}
        self._redirected: dict[int, str] = {}
        self.pages = 0
        self.items = 0

    def done(self, index: int) -> None:
        if index not in self._missed:
            self._done.add(index)

    def missed(self, index: int, kind: str, reason: str) -> None:
        self._done.discard(index)
        self._missed.setdefault(index, (kind, reason))

    def redirected(self, index: int, url: str) -> None:
        self._redirected[index] = url

    def progress(self) -> dict[str, int]:
        return {
            "requests": len(self._urls),
            "done": len(self._done),
            "missed": len(self._missed),
            "pages": self.pages,
            "items": self.items,
        }

    def close(self) -> dict[str, Any]:
        """The account at the end; `unended` are requests that nothing was heard of."""
        kinds: dict[str, list[dict[str, str]]] = {"gone": [], "failed": [], "unended": []}
        for index, (kind, reason) in sorted(self._missed.items()):
            kinds[kind].append({"url": self._urls[index], "reason": reason})
        for index, url in enumerate(self._urls):
            if index in self._done or index in self._missed:
                continue
            if index in self._redirected:
                reason = f"redirected to {self._redirected[index]}, which was filtered"
                kinds["gone"].append({"url": url, "reason": reason})
            else:
                kinds["unended"].append({"url": url, "reason": "nothing was heard of it"})
        return {**self.progress(), **kinds}


def judge(failure: Failure) -> tuple[str, str]:
    """Whether a failed request is gone (the site said so) or failed, and why in one line."""
    error = failure.value
    if isinstance(error, HttpError):
        status = error.response.status
        gone = 400 <= status < 500 and status not in NOT_NOW
        return ("gone" if gone else "failed"), f"HTTP {status}"
    text = str(error).strip().splitlines()
    return "failed", f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


class Worker:
    """The spider middleware of a worker."""

    def __init__(self, crawler: Crawler, requests: list[Request], job: Job | None, problem: str = "") -> None:
        self._crawler = crawler
        self._requests = requests
        self._job = job
        self._problem = problem
        self.account = Account([request.url for request in requests])
        self._started = time.time()
        self._reason = ""
        self._feeds: list[str] = []
        self._part: Part | None = None
        self._report: ReportFile | None = None
        self._folder: Path | None = None
        self._disk_looked = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Worker:
        job = Job.from_settings(crawler.settings)
        requests, problem = _requests(crawler)
        worker = cls(crawler, requests, job, problem)
        worker._connect()
        return worker

    def _connect(self) -> None:
        connect = self._crawler.signals.connect
        connect(self._opened, signals.spider_opened)
        connect(self._item, signals.item_scraped)
        connect(self._scheduled, signals.request_scheduled)
        connect(self._dropped, signals.request_dropped)
        connect(self._feed_closed, signals.feed_slot_closed)
        connect(self._closed, signals.spider_closed)
        connect(self._stopped, signals.engine_stopped)

    # what goes in

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The batch instead of the spider's own start, which is never entered."""
        if self._problem:
            logger.error(self._problem)
            return
        for index, request in enumerate(self._requests):
            yield self._watched(request, index)

    def _watched(self, request: Request, index: int) -> Request:
        meta = {**request.meta, INDEX: index}
        return request.replace(meta=meta, errback=partial(self._failed, index, request.errback))

    def _failed(self, index: int, errback: Any, failure: Failure) -> Any:
        self.account.missed(index, *judge(failure))
        return errback(failure) if errback else failure

    # what comes out

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        self.account.pages += 1
        index = response.meta.get(INDEX)
        try:
            async for output in result:
                if not isinstance(output, Request):
                    yield output
                elif not self._leads_away(output):
                    output.meta.pop(INDEX, None)
                    yield output
        except Exception as error:
            self._raised(index, error)
            raise
        if index is not None:
            self.account.done(index)

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        if not isinstance(exception, HttpError):  # that one came by the errback, and is judged there
            self._raised(response.meta.get(INDEX), exception)

    def _raised(self, index: int | None, error: Exception) -> None:
        if index is not None:
            self.account.missed(index, "failed", f"{type(error).__name__} in the callback: {str(error)[:200]}")

    def _leads_away(self, request: Request) -> bool:
        """A link that a CrawlSpider rule follows belongs to the producer: following it here would crawl on and on."""
        spider = self._crawler.spider
        if not isinstance(spider, CrawlSpider) or request.callback != spider._callback:  # noqa: SLF001 - how Scrapy marks its own
            return False
        self._crawler.stats.inc_value("distributed/links_not_followed")
        return True

    # signals

    def _opened(self, spider: Spider) -> None:
        if self._job is None:
            return
        settings = self._crawler.settings
        self._folder = crawl_folder(settings.get("LOG_FILE"), self._job.home or self._job.crawl)
        if self._folder is None:
            self._problem = self._problem or "This node writes no log files, so there is no way home for items."
            return
        if self._job.start_by and time.time() > self._job.start_by:
            self._problem, self._reason = "This attempt came too late: another one has taken its place.", "superseded"
        if not self._job.feed:
            self._part = Part(self._folder, self._job.name)
        self._report = ReportFile(self._folder, self._job.name, self._progress)
        self._report.start()
        remove_old(self._folder, self._job.collected, settings.getfloat("DISTRIBUTED_KEEP_DAYS", 14))

    def _item(self, item: Any, response: Response | None) -> None:
        if self._part is not None:
            try:
                self._part.add(item)
            except (TypeError, ValueError) as error:
                self._unwritten(error, None if response is None else response.meta.get(INDEX))
                return
            self._look_at_disk()
        self.account.items += 1

    def _unwritten(self, error: Exception, index: int | None) -> None:
        """An item that has no JSON form is lost, and that is said: of its URL, or else of the whole batch."""
        reason = f"its item cannot be written as JSON: {type(error).__name__}: {str(error)[:200]}"
        logger.error(reason)
        if index is not None:
            self.account.missed(index, "failed", reason)
        else:
            self._problem = self._problem or f"An item was lost: {reason}."

    def _look_at_disk(self) -> None:
        now = time.monotonic()
        if self._folder is None or now - self._disk_looked < DISK_LOOK:
            return
        self._disk_looked = now
        if free_bytes(self._folder) < self._crawler.settings.getint("DISTRIBUTED_MIN_FREE", 1 << 30):
            self._close_spider("disk-full")

    def _close_spider(self, reason: str) -> None:
        engine, spider = self._crawler.engine, self._crawler.spider
        assert spider
        if hasattr(engine, "close_spider_async"):
            from scrapy.utils.defer import deferred_from_coro

            deferred_from_coro(engine.close_spider_async(reason=reason))
        else:  # Scrapy 2.13
            engine.close_spider(spider, reason)

    def _scheduled(self, request: Request) -> None:
        # Scrapy filters a redirect that leaves the site without a word: no signal, no failure.
        if INDEX in request.meta and "redirect_urls" in request.meta:
            self.account.redirected(request.meta[INDEX], request.url)

    def _dropped(self, request: Request) -> None:
        index = request.meta.get(INDEX)
        if index is not None:
            self.account.missed(index, "gone", "the same page as another request of this batch")

    def _feed_closed(self, slot: Any) -> None:
        uri = urlsplit(str(slot.uri))
        if uri.netloc:  # the report can be read by whoever may read the node's logs
            uri = uri._replace(netloc=uri.netloc.rpartition("@")[2])
        self._feeds.append(uri.geturl())

    def _closed(self, reason: str) -> None:
        self._reason = self._reason or ("refused" if self._problem else reason)

    def _stopped(self) -> None:
        if self._report is None or self._job is None:
            return
        part = self._part.close() if self._part is not None else None
        self._report.finish(self._final(part))

    # the report

    def _progress(self) -> dict[str, Any]:
        if self._part is not None:
            self._part.flush()
        return {**self._head("running"), **self.account.progress()}

    def _final(self, part: dict[str, Any] | None) -> dict[str, Any]:
        stats = self._crawler.stats.get_stats()
        return {
            **self._head("ended"),
            **self.account.close(),
            "finish_reason": self._reason or "unknown",
            "problem": self._problem,
            "part": part,
            "feeds": self._feeds,
            "feeds_failed": sum(n for name, n in stats.items() if name.startswith("feedexport/failed_count/")),
            "stats": {name: value for name, value in stats.items() if isinstance(value, (int, float, str))},
        }

    def _head(self, state: str) -> dict[str, Any]:
        assert self._job
        return {
            "schema": REPORT_SCHEMA,
            "state": state,
            "crawl": self._job.crawl,
            "batch": self._job.batch,
            "attempt": self._job.attempt,
            "pid": os.getpid(),
            "started": self._started,
            "updated": time.time(),
            "code": {"version": scrapyd_dist.__version__, "file": scrapyd_dist.__file__, "egg": self._job.version},
        }


def _requests(crawler: Crawler) -> tuple[list[Request], str]:
    """The batch's requests, or none and what is wrong with it."""
    spider = crawler.spider
    assert spider
    try:
        values = decode(crawler.settings.get, key=egg_key())
        return [from_value(_with_target(value, crawler), spider) for value in values], ""
    except (ValueError, TypeError, AttributeError) as error:  # PayloadError and CannotTravel among them
        return [], f"This batch cannot be crawled: {error}."


def _with_target(value: RequestValue, crawler: Crawler) -> RequestValue:
    """A bare URL (the book's form) is taken by the project's own target settings."""
    if "rule" in value or "callback" in value:
        return value
    return {**_default_target(crawler), **value}


def _default_target(crawler: Crawler) -> RequestValue:
    settings, spider = crawler.settings, crawler.spider
    rule = settings.getint("DISTRIBUTED_TARGET_RULE", -1)
    if rule >= 0 and isinstance(spider, CrawlSpider):
        return {"rule": rule}
    callbacks = settings.getlist("DISTRIBUTED_TARGET_CALLBACKS")
    if callbacks:
        return {"callback": callbacks[0]}
    found = only_rule(spider)
    return {} if found is None else {"rule": found}
