"""The worker that leases its batches: makes their requests, acks each when its part is whole, until no more will come.

The spider's own start is entered only when that was asked for; a worker that loses its store makes no more requests.
Imports Scrapy and the standard library only, because it travels in the egg.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import SealError, public_half
from scrapyd_dist.settings import uploading_feeds

from ..assignment import PullAssignment, crawl_key, egg_key
from ..classifier import Disposition, FoundRequests, RequestClassifier
from ..engine_compat import close_spider, spider_method, under_way
from ..slot_routing import SlotHome, SlotRouting, hides_addon
from ..store_access import OutOfReach, reach
from ..targets import Target, find_target
from ..throttle.install import problem_of as throttle_problem
from .base import LOOK, BaseWorker, FilesFolder
from .batch_acker import BatchAcker, PullReport, keep_sweeping
from .lease_client import LeaseClient, Notifier, StoreLost
from .lease_renewer import LeaseRenewer, guard
from .login import Login, OwnRequests
from .request_feeder import RequestFeeder
from .request_tracker import RequestTracker
from .work_unit import SESSION, mark_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapyd_dist.batches import Crawl

    from .lease_renewer import HeldLease, LeaseLoss
    from .work_unit import UnitMark, WorkUnit

    Fail = Callable[[str, FinishReason], None]  # a problem, and why the worker ends before its work is done


def introduce(crawler: Crawler, job: PullAssignment, uploads: Sequence[str]) -> tuple[str, str]:
    """The public half of this egg's key ("" without one), and why this code cannot work for the crawl ("" if it can).

    Args:
        crawler: of the spider that the work is for.
        job: what the worker was told.
        uploads: the project's feeds that are stored elsewhere when a job closes.
    """
    key = egg_key()
    return ("" if key is None else public_half(key)), _why_not(crawler, job, uploads, key)


def _why_not(crawler: Crawler, job: PullAssignment, uploads: Sequence[str], key: bytes | None) -> str:
    if hides_addon(crawler.spidercls.custom_settings or {}):
        return (
            f"the custom_settings of the spider {crawler.spidercls.name} set ADDONS, which hides the add-on that its"
            ' workers need; add "scrapyd_dist.Addon": 500 to it there, and deploy again'
        )
    if uploads:
        return (
            f"its setting FEEDS has {uploads[0]}, which is uploaded when a job closes, and what a worker lost on its"
            " way would be in it all the same; take it out of FEEDS, and deploy again"
        )
    if key is None:
        return "its code carries no key; deploy it with sdist deploy-all, in its folder"
    if job.needs_client and find_spec("redis") is None:
        return (
            "this crawl's store is a Redis server, and neither its code nor the node has the client; name the same"
            " store in its project, and deploy again, or install the package redis on the node"
        )
    return ""


logger = logging.getLogger(__name__)


class PullSession:
    """The parts of a worker whose store is open, and what they tell each other.

    Args:
        crawler: the worker's.
        job: what it was told.
        folder: for parts and the report.
        report: counts what becomes of batches.
        renewer: of leases.
        client: the store.
        crawl: the crawl's row.
        fail: ends the worker.

    Attributes:
        client: the store.
        feeder: gives the requests.
    """

    def __init__(
        self, crawler: Crawler, job: PullAssignment, folder: FilesFolder, report: PullReport, *,
        renewer: LeaseRenewer, client: LeaseClient, crawl: Crawl, fail: Fail,
    ) -> None:  # fmt: skip
        self._crawler, self._job, self._folder, self._fail = crawler, job, folder, fail
        self._renewer, self.client, self._notifier = renewer, client, Notifier()
        self._key = crawl_key(job.told)
        home = SlotHome(project=crawl.project, spider=crawl.spider)
        self._slotting = SlotRouting.from_settings(crawler.settings, home=home, own=job.other_slot)
        self.tracker = RequestTracker(
            crawler, crawl=job.crawl, target=_target(crawler), rules_lead_away=crawl.kind == "crawl",
            changed=self._changed, again=self._again,
        )  # fmt: skip
        self.acker = BatchAcker(
            crawler, report, lease_client=client, tracker=self.tracker, notifier=self._notifier,
            store_lost=self.lose_store,
        )  # fmt: skip
        self._own_requests = OwnRequests(
            crawler, job.name, tracker=self.tracker, lease_client=client, notifier=self._notifier, finds=self._finds
        )
        self._login = Login(
            crawler, spider_method(crawler, "DISTRIBUTED_LOGIN"), own_requests=self._own_requests, tracker=self.tracker,
            failed=lambda reason: fail(reason, FinishReason.LOGIN_FAILED),
        )  # fmt: skip
        self.feeder = RequestFeeder(
            crawler, job, folder.path, key=self._key, lease_client=client, tracker=self.tracker, acker=self.acker,
            notifier=self._notifier, finds=self._finds, broken=lambda problem: fail(problem, FinishReason.REFUSED),
        )  # fmt: skip
        self._tasks = [asyncio.ensure_future(self._look_around())]
        if crawl.kind == "frontier":  # the folder of a crawl is removed as a whole
            self._tasks.append(asyncio.ensure_future(keep_sweeping(folder.path, job.crawl, client.batch)))
        guard(crawler, self._why_not)

    @classmethod
    async def open(
        cls, crawler: Crawler, job: PullAssignment, folder: FilesFolder, report: PullReport, fail: Fail
    ) -> PullSession:
        """Open the store.

        Raises:
            OutOfReach: it cannot be opened here, or is another one.
            StoreLost: it does not answer any more.
            ConfigError: a setting makes no sense.
            SealError: the crawl's key cannot be opened.
        """
        key = crawl_key(job.told)
        store = await asyncio.to_thread(reach, job.told, crawl=job.crawl, home=job.home)
        renewals = await asyncio.to_thread(reach, job.told, crawl=job.crawl, home=job.home)

        def lost(held: HeldLease, loss: LeaseLoss) -> None:
            session.acker.lost(held, loss)

        renewer = LeaseRenewer(renewals, crawl=job.crawl, holder=job.name, seconds=job.lease, lost=lost)
        client = LeaseClient(job, store, renewer, key)
        try:
            row = await client.crawl()
            session = cls(crawler, job, folder, report, renewer=renewer, client=client, crawl=row, fail=fail)
        except BaseException:
            client.close()
            renewer.stop()
            raise
        renewer.start()
        return session

    async def begin(self, start: AsyncIterator[Any]) -> bool:
        """The spider's own start where it comes first, and the login; False when one of them fails."""
        if self._job.start == "first":
            failed = await self._own_requests(lambda: start)
            if failed:
                self._fail(f"One of the spider's own start requests has failed: {failed}.", FinishReason.START_FAILED)
                return False
        failed = await self._login.enter()
        if failed:
            self._fail(failed, FinishReason.LOGIN_FAILED)
        return not failed

    def _why_not(self, request: Request) -> str:
        """Asked before a request leaves: those of a batch that was lost do not."""
        self._renewer.check()
        mark = mark_of(request)
        if mark is None:
            return ""
        begun = self.tracker.begun.get(mark.key)
        if begun is None:
            return "its batch is not this worker's any more"
        begun.touched = True
        if self._login.wanted:
            request.meta[SESSION] = self._login.session
        return ""

    def _again(self, begun: WorkUnit, mark: UnitMark, request: Request) -> bool:
        return self._login.again(begun, mark, request)

    def _finds(self, salt: str) -> FoundRequests:
        spider = self._crawler.spider
        assert spider
        refuse = self._crawler.settings.get("DISTRIBUTED_UNSENDABLE") == "refuse"
        sorter = RequestClassifier(self._crawler, spider, key=self._key, slotting=self._slotting, salt=salt)
        return FoundRequests(sorter, stay=Disposition.REFUSED if refuse else Disposition.LOCAL)

    def _changed(self, begun: WorkUnit) -> None:
        self.acker.changed(begun)
        if begun.over or self.feeder.room > 0:
            self._notifier.tell()

    async def _look_around(self) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(LOOK)
            trouble = self._folder.trouble()
            if trouble:
                reason, problem = trouble
                self._fail(problem, reason)
            quiet = 0 if self._login.busy or under_way(self._crawler) else quiet + 1
            if quiet > 1:
                self._forget()

    def _forget(self) -> None:
        """Scrapy has nothing left: requests that still count as open have ended without a word."""
        for begun in [one for one in self.tracker.begun.values() if not one.making]:
            if begun.requests:
                logger.warning("nothing was heard of %d requests of batch %d", begun.requests, begun.key[0])
            begun.forget()
            self._changed(begun)

    def lose_store(self, why: str) -> None:
        """End the worker, as its store is lost."""
        self._fail(f"The store was lost: {why}.", FinishReason.STORE_LOST)

    def stop(self) -> None:
        """Lease nothing more."""
        self.feeder.stopped = True
        self._notifier.tell()  # Scrapy 2.13 would let the spider's start go on

    async def close(self, reason: str) -> None:
        """End all batches, and leave the store."""
        for task in self._tasks:
            task.cancel()
        self.stop()
        self.client.end()
        await self.acker.finish(reason)
        self.client.close()
        self._renewer.stop()


class PullWorker(BaseWorker):
    """The spider middleware of a worker that leases its batches."""

    def __init__(self, crawler: Crawler, job: PullAssignment) -> None:
        super().__init__(crawler, "worker")
        self._job, self._report = job, PullReport(job)
        self._folder: FilesFolder | None = None
        self._session: PullSession | None = None  #: while the store is open

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> PullWorker:
        worker = cls(crawler, PullAssignment.from_settings(crawler.settings))
        connect = crawler.signals.connect
        connect(worker._opened, signals.spider_opened)
        connect(worker._closed, signals.spider_closed)
        connect(worker._stopped, signals.engine_stopped)
        return worker

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The leased requests instead of the spider's own start."""
        if not self._problem and not self._job.introduce and self._folder is not None:
            await self._open_session(self._folder)
        session = self._session
        if self._problem or session is None:
            if self._problem:
                logger.error(self._problem)
            return
        try:
            if not await session.begin(start):
                return
            async for request in session.feeder.requests():
                yield request
        except StoreLost as error:
            session.lose_store(str(error))
        except Exception as error:  # Scrapy would only log it, and end as if all were done
            logger.exception("this worker cannot go on")
            self._fail(f"This worker failed: {type(error).__name__}: {error}.", FinishReason.FAILED)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for output in self._session.tracker.outputs(response, result) if self._session else result:
            yield output

    def process_spider_exception(
        self, response: Response, exception: Exception, spider: Spider | None = None
    ) -> Iterable[Any] | None:
        return self._session.tracker.raised(response, exception) if self._session else None

    def _opened(self) -> None:
        job = self._job
        folder, uploads = self._find_folder(job), uploading_feeds(self._crawler.settings)
        if folder is None:
            return
        self._folder = FilesFolder(folder, self._settings.value("DISTRIBUTED_MIN_FREE"))
        if not self._problem and job.introduce:
            self._report.public, self._problem = introduce(self._crawler, job, uploads)
        elif not self._problem and uploads:
            self._problem = (
                f"The feed {uploads[0]} is uploaded when a job closes; a worker that leases its batches may end before"
                " that, and its items would be lost or twice there."
            )
        self._start_report(folder, job, self._progress)

    def _progress(self) -> dict[str, Any]:
        return self._report.progress(list(self._session.acker.held.values()) if self._session else ())

    async def _open_session(self, folder: FilesFolder) -> None:
        try:
            self._session = await PullSession.open(self._crawler, self._job, folder, self._report, self._fail)
        except OutOfReach as why:
            self._problem = f"The store is out of this worker's reach: {str(why).rstrip('.')}."
            self._report.unreached = why.lasting
        except (ConfigError, StoreLost) as error:
            self._problem = str(error)
        except SealError as error:
            self._problem = f"The key of this crawl cannot be opened: {error}."
        else:
            self._problem = throttle_problem(self._crawler)

    def _fail(self, problem: str, reason: FinishReason) -> None:
        """End before the work is done."""
        self._problem = self._problem or problem
        self._reason = self._reason or reason.value
        if problem:
            logger.error(problem)
        if self._session is not None:
            self._session.stop()
        close_spider(self._crawler, reason)

    async def _stopped(self) -> None:
        limit = ""
        if self._session is not None:
            await self._session.close(self._reason or FinishReason.SHUTDOWN.value)
            limit = self._session.client.limit
        if self._report_file is not None:
            stats = self._crawler.stats.get_stats()
            self._report_file.finish(self._report.final(self._reason or "unknown", self._problem, limit, stats))


def _target(crawler: Crawler) -> Target:
    """Which of the requests that a worker finds go to the frontier; if nothing says so, those that are marked."""
    assert crawler.spider
    try:
        return find_target(crawler.spider, crawler.settings)
    except ConfigError:
        return Target()
