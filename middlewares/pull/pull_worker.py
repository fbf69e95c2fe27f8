"""The pulling worker: leases batches, makes their requests, acks each when its part is whole, until no more will come.

The rules it keeps: the spider's own start is entered only when that was asked for; a worker that loses its store makes
no more requests, and says so. Imports Scrapy and the standard library only, because it travels in the egg.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.finish_reasons import FinishReason
from scrapyd_dist.sealing import SealError

from ..assignment import PullAssignment, crawl_key
from ..classifier import Disposition, FoundRequests, RequestClassifier
from ..engine_compat import close_spider, spider_method, under_way
from ..setting_reader import SettingReader, uploading_feeds
from ..slot_routing import SlotHome, SlotRouting
from ..store_access import OutOfReach, reach
from ..targets import Target, find_target
from ..throttle.install import problem_of as throttle_problem
from ..worker.lease_renewer import LeaseRenewer, guard
from ..worker.part import FilesFolder, ReportFile, crawl_folder, remove_old
from .batch_acker import BatchAcker, PullReport, keep_sweeping
from .handshake import introduce
from .lease_client import LeaseClient, Notifier, StoreLost
from .login import Login, LoginState
from .request_feeder import RequestFeeder
from .request_tracker import RequestTracker
from .work_unit import SESSION, mark_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .work_unit import UnitMark, WorkUnit

logger = logging.getLogger(__name__)

#: seconds between two looks at the disk, and at what may have been forgotten
LOOK = 2.0
TOO_LATE = "This worker came too late: another one has taken its place."
NO_LOGS = "This node writes no log files, so there is no way home for items."


class PullWorker:
    """The spider middleware of a pulling worker."""

    def __init__(self, crawler: Crawler, job: PullAssignment) -> None:
        self._crawler, self._job = crawler, job
        self._problem = ""
        self._reason = ""
        self._notifier = Notifier()
        self._report = PullReport(job)
        self._file: ReportFile | None = None
        self._folder: FilesFolder | None = None
        self._acker = BatchAcker(crawler, self._report, self._notifier, self._lose_store)
        self._tracker = RequestTracker(
            crawler, target=_target(crawler), changed=self._changed, again=self._again, crawl=job.crawl
        )
        self._acker.tracker = self._tracker
        self._asking: LoginState
        self._login: Login
        self._looks: list[asyncio.Task[None]] = []
        self._slotting: SlotRouting
        self._key: bytes | None = None  #: of the crawl
        self._renewer: LeaseRenewer | None = None
        self._lease_client: LeaseClient | None = None
        self._feeder: RequestFeeder | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PullWorker:
        puller = cls(crawler, PullAssignment.from_settings(crawler.settings))
        puller._tracker.connect()
        connect = crawler.signals.connect
        connect(puller._opened, signals.spider_opened)
        connect(puller._closed, signals.spider_closed)
        connect(puller._stopped, signals.engine_stopped)
        return puller

    # Scrapy's hooks

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The leased requests instead of the spider's own start."""
        if not await self._begin():
            if self._problem:
                logger.error(self._problem)
            return
        assert self._feeder
        try:
            if not await self._begin_own(start):
                return
            async for request in self._feeder.requests():
                yield request
        except StoreLost as error:
            self._lose_store(str(error))
        except Exception as error:  # Scrapy would only log it, and end as if all were done
            logger.exception("this worker cannot go on")
            self._fail(f"This worker failed: {type(error).__name__}: {error}.", FinishReason.FAILED)

    async def _begin_own(self, start: AsyncIterator[Any]) -> bool:
        """The spider's own start where it comes first, and the login; False when one of them fails."""
        if self._job.start == "first":
            failed = await self._asking(lambda: start)
            if failed:
                self._fail(f"One of the spider's own start requests has failed: {failed}.", FinishReason.START_FAILED)
                return False
        failed = await self._login.enter()
        if failed:
            self._fail(failed, FinishReason.LOGIN_FAILED)
        return not failed

    def _again(self, begun: WorkUnit, mark: UnitMark, request: Request) -> bool:
        return self._login.again(begun, mark, request)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for output in self._tracker.outputs(response, result):
            yield output

    def process_spider_exception(
        self, response: Response, exception: Exception, spider: Spider | None = None
    ) -> Iterable[Any] | None:
        return self._tracker.raised(response, exception)

    def _why_not(self, request: Request) -> str:
        """Asked before a request leaves: those of a batch that was lost do not."""
        assert self._renewer
        self._renewer.check()
        mark = mark_of(request)
        if mark is None:
            return ""
        begun = self._tracker.begun.get(mark.key)
        if begun is None:
            return "its batch is not this worker's any more"
        begun.touched = True
        if self._login.wanted:
            request.meta[SESSION] = self._login.session
        return ""

    # beginning

    def _opened(self) -> None:
        settings, job = self._crawler.settings, self._job
        folder = crawl_folder(settings.get("LOG_FILE"), job.home)
        uploads = uploading_feeds(settings)
        if folder is None:
            self._problem = NO_LOGS
            return
        self._folder = FilesFolder(folder)
        if job.start_by and time.time() > job.start_by:
            self._problem, self._reason = TOO_LATE, FinishReason.SUPERSEDED.value
        elif job.introduce:
            self._report.public, self._problem = introduce(self._crawler, job, uploads)
        elif uploads:
            self._problem = (
                f"The feed {uploads[0]} is uploaded when a job closes; a worker that leases its batches may end before"
                " that, and its items would be lost or twice there."
            )
        self._file = ReportFile(folder, job.name, lambda: self._report.progress(list(self._acker.held.values())))
        self._file.start()
        remove_old(folder, job.collected, SettingReader(settings).value("DISTRIBUTED_KEEP_DAYS"))

    async def _begin(self) -> bool:
        """Open the store; False when nothing can be done here."""
        if self._problem or self._job.introduce:
            return False
        try:
            await self._open_store()
        except OutOfReach as why:
            self._problem = f"The store is out of this worker's reach: {str(why).rstrip('.')}."
            self._report.unreached = why.lasting
        except (ConfigError, StoreLost) as error:
            self._problem = str(error)
        except SealError as error:
            self._problem = f"The key of this crawl cannot be opened: {error}."
        else:
            self._looks.append(asyncio.ensure_future(self._look_around()))
            self._problem = throttle_problem(self._crawler)
        return not self._problem

    async def _open_store(self) -> None:
        job, spider, settings = self._job, self._crawler.spider, self._crawler.settings
        assert spider
        assert self._folder
        self._key = crawl_key(job.told)
        store = await asyncio.to_thread(reach, job.told, crawl=job.crawl, home=job.home)
        renewals = await asyncio.to_thread(reach, job.told, crawl=job.crawl, home=job.home)
        self._renewer = LeaseRenewer(
            renewals, crawl=job.crawl, holder=job.name, seconds=job.lease, lost=self._acker.lost
        )
        self._renewer.start()
        guard(self._crawler, self._why_not)
        self._lease_client = self._acker.lease_client = LeaseClient(job, store, self._renewer, self._key)
        row = await self._lease_client.crawl()
        self._tracker.rules_lead_away = row.kind == "crawl"
        if row.kind == "frontier":  # the folder of a crawl is removed as a whole
            work = keep_sweeping(self._folder.path, job.crawl, self._lease_client.batch)
            self._looks.append(asyncio.ensure_future(work))
        home = SlotHome(project=row.project, spider=row.spider)
        self._slotting = SlotRouting.from_settings(settings, home=home, own=job.other_slot)
        self._asking = LoginState(
            self._crawler,
            job.name,
            tracker=self._tracker,
            lease_client=self._lease_client,
            notifier=self._notifier,
            finds=self._finds,
        )
        self._login = Login(
            self._crawler, spider_method(self._crawler, "DISTRIBUTED_LOGIN"), asking=self._asking,
            tracker=self._tracker, failed=lambda reason: self._fail(reason, FinishReason.LOGIN_FAILED),
        )  # fmt: skip
        self._feeder = RequestFeeder(
            self._crawler,
            job,
            self._folder.path,
            key=self._key,
            lease_client=self._lease_client,
            tracker=self._tracker,
            acker=self._acker,
            notifier=self._notifier,
            finds=self._finds,
            broken=self._fail,
        )

    def _finds(self, salt: str) -> FoundRequests:
        spider = self._crawler.spider
        assert spider
        refuse = self._crawler.settings.get("DISTRIBUTED_UNSENDABLE") == "refuse"
        sorter = RequestClassifier(self._crawler, spider, key=self._key, slotting=self._slotting, salt=salt)
        return FoundRequests(sorter, stay=Disposition.REFUSED if refuse else Disposition.LOCAL)

    # while it works

    def _changed(self, begun: WorkUnit) -> None:
        self._acker.changed(begun)
        if begun.over or (self._feeder is not None and self._feeder.room > 0):
            self._notifier.tell()

    async def _look_around(self) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(LOOK)
            assert self._folder
            trouble = self._folder.trouble(SettingReader(self._crawler.settings).value("DISTRIBUTED_MIN_FREE"))
            if trouble:
                self._fail(self._folder.lost() if trouble is FinishReason.FILES_LOST else "", trouble)
            quiet = 0 if self._login.busy or under_way(self._crawler) else quiet + 1
            if quiet > 1:
                self._forget()

    def _forget(self) -> None:
        """Scrapy has nothing left: what still counts as open went where nobody hears of it."""
        for begun in [one for one in self._tracker.begun.values() if not one.making]:
            if begun.requests:
                logger.warning("nothing was heard of %d requests of batch %d", begun.requests, begun.key[0])
            begun.forget()
            self._changed(begun)

    def _fail(self, problem: str, reason: FinishReason = FinishReason.REFUSED) -> None:
        """End before the work is done."""
        self._problem = self._problem or problem
        self._reason = self._reason or reason.value
        if problem:
            logger.error(problem)
        if self._feeder is not None:
            self._feeder.stopped = True
        self._notifier.tell()
        close_spider(self._crawler, reason)

    def _lose_store(self, why: str) -> None:
        self._fail(f"The store was lost: {why}.", FinishReason.STORE_LOST)

    # the end

    def _closed(self, reason: str) -> None:
        self._reason = self._reason or (FinishReason.REFUSED.value if self._problem else reason)

    async def _stopped(self) -> None:
        for task in self._looks:
            task.cancel()
        if self._feeder is not None:
            self._feeder.stopped = True
            self._notifier.tell()  # Scrapy 2.13 would let the spider's start go on
        if self._lease_client is not None:
            self._lease_client.end()
            await self._acker.finish(self._reason or FinishReason.SHUTDOWN.value)
            self._lease_client.close()
        if self._renewer is not None:
            self._renewer.stop()
        if self._file is not None:
            limit = self._lease_client.limit if self._lease_client else ""
            final = self._report.final(self._reason or "unknown", self._problem, limit, self._crawler.stats.get_stats())
            self._file.finish(final)


def _target(crawler: Crawler) -> Target:
    """Which of the requests that a worker finds go to the frontier; if nothing says so, those that are marked."""
    assert crawler.spider
    try:
        return find_target(crawler.spider, crawler.settings)
    except ConfigError:
        return Target()
