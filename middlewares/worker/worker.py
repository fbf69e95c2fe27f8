"""Makes the requests of batches instead of the spider's own start, and reports what became of each.

A worker never starts the index crawl and never distributes again. Its work is a session: a batch
that it was sent, or batches that it leases.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.settings import SettingReader

from ..assignment import Assignment
from ..contained import contained_start
from ..engine_compat import (
    call_before_errbacks,
    call_every,
    close_spider,
    finish_when_done,
    share_robots_rules,
)
from ..feed_place import connect_at_feeds
from ..own_meta import show_marks
from ..watchdog import install_watchdog as put_in_watchdog
from .files import LOOK, FilesFolder, ReportFile, crawl_folder, remove_old
from .hand_over import find_known_beyond, hand_over
from .lease_client import StoreLost
from .lease_session import LeaseSession
from .sent_session import SentSession, too_late
from .shortcuts import put_in_shortcuts
from .work_unit import WorkRefused

logger = logging.getLogger(__name__)
#: seconds between two turns of the event loop that are noted
TURN = 1.0


class Worker:
    """The spider middleware of a worker; it has no job when its batch was typed by hand."""

    def __init__(self, crawler: Crawler, job: Assignment | None) -> None:
        self._crawler = crawler
        self._job = job
        self._settings = SettingReader(crawler.settings)
        self._problem = ""  #: why it cannot work
        self._reason = ""  #: why it ends before its work is done
        self._folder: FilesFolder | None = None  #: None where items go to the project's feed
        self._report_file: ReportFile | None = None
        self._session: SentSession | LeaseSession | None = None
        self._checks: Any = None  #: timer of `_check_folder`
        self._turns: Any = None  #: timer of `_turn`
        #: what the engine's requests of batches pass; None where each goes through the start
        self._beyond: Sequence[BaseSpiderMiddleware] | None = None
        self._turned = time.time()  #: when the event loop has turned last

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Worker:
        """Make the middleware as Scrapy does, and connect it to the signals."""
        worker = cls(crawler, Assignment.from_settings(crawler.settings))
        connect = crawler.signals.connect
        connect_at_feeds(crawler, worker._item)  # before handlers of spider_opened connect theirs
        connect(worker._opened, signals.spider_opened)
        connect(worker._started, signals.engine_started)
        connect(worker._closed, signals.spider_closed)
        connect(worker._stopped, signals.engine_stopped)
        put_in_watchdog(crawler, worker._has_work)
        return worker

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the session's requests instead of the spider's own start."""
        if self._problem:
            logger.error(self._problem)
        else:
            self._check_folder()  # on a full disk, not one request is made
        if self._problem or self._reason or self._session is None:
            return
        try:
            requests = self._session.requests(contained_start(self._crawler, start))
            if self._beyond is None:
                async for request in requests:
                    yield request
            else:
                await hand_over(self._crawler.engine, self._beyond, requests)
        except (ConfigError, WorkRefused) as error:
            self._problem = str(error)
            logger.error(self._problem)  # noqa: TRY400 - it says all
        except StoreLost as error:
            self._fail(str(error), FinishReason.STORE_LOST)
        except Exception as error:  # Scrapy would only log it, and end as if all were done
            logger.exception("this worker cannot go on")
            self._fail(f"This worker failed: {type(error).__name__}: {error}.", FinishReason.FAILED)

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:
        """Note which page is in work."""
        if self._session is not None and self._session.tracker is not None:
            self._session.tracker.page_begins(response)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        """Yield a page's output, with the mark of its batch."""
        tracker = None if self._session is None else self._session.tracker
        outputs = result if tracker is None else tracker.outputs(response, result)
        async for output in outputs:
            yield output

    def process_spider_exception(
        self, response: Response, exception: Exception, spider: Spider | None = None
    ) -> Iterable[Any] | None:
        """Note what a callback has raised; an iterable says that it was taken care of."""
        tracker = None if self._session is None else self._session.tracker
        return None if tracker is None else tracker.raised(response, exception)

    # signals

    def _item(self, item: Any, response: Response | None) -> None:
        if self._session is not None and self._session.tracker is not None:
            self._session.tracker.note_item(item, response)

    def _started(self) -> None:
        share_robots_rules(self._crawler)
        call_before_errbacks(self._crawler, show_marks)
        put_in_shortcuts(self._crawler)
        if not self._runs_spider:
            self._beyond = find_known_beyond(self._crawler, self)
        is_part = self._job is not None and not self._runs_spider
        finish_when_done(self._crawler, self._is_done, is_part=is_part)

    def _opened(self) -> None:
        job = self._job
        if job is None:
            self._session = SentSession(self._crawler, None, None, self._fail)
            self._problem = self._session.problem
            return
        folder = crawl_folder(self._crawler.settings.get("LOG_FILE"), job.home or job.crawl)
        if folder is None:
            self._problem = "This node writes no log files, so there is no way home for items."
            return
        if job.start_by and time.time() > job.start_by:
            self._problem = too_late(job)
            self._reason = FinishReason.SUPERSEDED.value
        if not job.feed:
            self._folder = FilesFolder(folder, self._settings.value("DISTRIBUTED_MIN_FREE"))
            self._checks = call_every(LOOK, self._check_folder)
        session = LeaseSession if job.leases else SentSession
        self._session = session(self._crawler, job, folder, self._fail)
        self._problem = self._problem or self._session.problem
        self._report_file = ReportFile(
            folder, job.name, self._session.progress, turned=lambda: self._turned
        )
        self._turns = call_every(TURN, self._turn)
        remove_old(folder, job.collected, self._settings.value("DISTRIBUTED_KEEP_DAYS"))

    def _turn(self) -> None:
        self._turned = time.time()

    @property
    def _runs_spider(self) -> bool:
        """Whether the job is a whole run of the spider, with its own start."""
        return self._job is not None and bool(self._job.row)

    def _has_work(self) -> bool:
        """Say whether it works, or should; a worker that leases may be waiting for a batch."""
        return self._session is None or self._session.has_work

    def _is_done(self) -> bool:
        """Say whether it has nothing to do, and nothing has gone wrong."""
        has_failed = bool(self._reason or self._problem)
        return (
            isinstance(self._session, LeaseSession)
            and not self._session.has_work
            and not has_failed
        )

    def _check_folder(self) -> None:
        if self._folder is not None and (trouble := self._folder.trouble()):
            reason, problem = trouble
            self._fail(problem, reason)

    def _fail(self, problem: str, reason: FinishReason) -> None:
        """End before the work is done."""
        self._problem = self._problem or problem
        self._reason = self._reason or reason.value
        if problem:
            logger.error(problem)
        if self._session is not None:
            self._session.stop()
        close_spider(self._crawler, reason.value)

    def _closed(self, reason: str) -> None:
        if self._session is not None:
            self._problem = self._problem or self._session.problem
        if not self._reason:
            self._reason = FinishReason.REFUSED.value if self._problem else reason

    async def _stopped(self) -> None:
        for timer in (self._checks, self._turns):
            if timer is not None and timer.running:
                timer.stop()
        if self._session is None:
            return
        reason = self._reason or FinishReason.SHUTDOWN.value
        report = await self._session.close(reason, self._problem)
        if self._report_file is not None:
            self._report_file.finish(report)
