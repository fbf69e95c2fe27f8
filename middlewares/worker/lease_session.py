"""The work of a job that leases its batches, until none will come: each is acked when its part is whole.

The spider's own start is entered only when that was asked for; a worker that loses its store makes no more requests.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapyd_dist.batches import CLOSE, PAUSE, Crawl, FinishReason
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import SealError, public_half
from scrapyd_dist.settings import uploading_feeds
from scrapyd_dist.store.worker_thread import StoreThread

from ..assignment import Assignment, egg_key, follows_strategy
from ..classifier import FoundRequests, count_found
from ..engine_compat import each, is_closing, spider_method, under_way
from ..goal_keeper import GoalKeeper
from ..pause_gate import PauseGate
from ..slot_routing import SlotRouting, hides_addon
from ..store_access import OutOfReach, reach
from ..targets import Target, find_links, find_target
from ..throttle.install import problem_of as throttle_problem
from .batch_acker import BatchAcker, LeaseReport, keep_sweeping
from .files import LOOK
from .lease_client import LeaseClient, LeaseContext, Notifier, StoreLost
from .lease_renewer import Key, LeaseLoss, LeaseRenewer
from .link_events import PageLinks
from .request_feeder import RequestFeeder
from .request_tracker import RequestTracker
from .work_unit import (
    REPEATED,
    SESSION,
    BatchUnit,
    RequestLedger,
    UnitMark,
    WorkRefused,
    WorkUnit,
    mark_of,
)

Fail = Callable[
    [str, FinishReason], None
]  # a problem, and why the worker ends before its work is done

logger = logging.getLogger(__name__)
#: how often one request is made again
MOST_REPEATS = 3
#: what Scrapy notes in meta on the way of one making of a request
WAY = frozenset(
    {
        "redirect_urls",
        "redirect_reasons",
        "redirect_times",
        "redirect_ttl",
        "retry_times",
        "download_latency",
        "download_slot",
        "download_timeout",
        REPEATED,
        SESSION,
    }
)


def introduce(crawler: Crawler, job: Assignment, uploads: Sequence[str]) -> tuple[str, str]:
    """The public half of this egg's key ("" without one), and why this code cannot work for the crawl ("" if it can).

    `uploads` are the project's feeds that are stored elsewhere when a job closes.
    """
    key, why = egg_key(), ""
    if hides_addon(crawler.spidercls.custom_settings or {}):
        why = (
            f"the custom_settings of the spider {crawler.spidercls.name} set ADDONS, which hides the add-on that its"
            ' workers need; add "scrapyd_dist.Addon": 500 to it there, and deploy again'
        )
    elif uploads:
        why = (
            f"its setting FEEDS has {uploads[0]}, which is uploaded when a job closes, and what a worker lost on its"
            " way would be in it all the same; take it out of FEEDS, and deploy again"
        )
    elif key is None:
        why = "its code carries no key; deploy it with sdist deploy --all, in its folder"
    elif job.needs_client and find_spec("redis") is None:
        why = (
            "this crawl's store is a Redis server, and neither its code nor the node has the client; name the same"
            " store in its project, and deploy again, or install the package redis on the node"
        )
    return ("" if key is None else public_half(key)), why


class OwnRequests:
    """Makes a worker's own requests: the spider's start, and its login, again whenever the session has expired.

    A request whose session has expired waits for the new login and is made again, a few times at most; one expiry means
    one login.
    """

    def __init__(self, context: LeaseContext) -> None:
        self._context, self._tracker, self._crawler = context, context.tracker, context.crawler
        spider, settings = self._crawler.spider, self._crawler.settings
        self.log_in = spider_method(
            spider, settings, "DISTRIBUTED_LOGIN"
        )  #: None where the spider has no login
        self.waiting: list[tuple[WorkUnit, Request]] = []  #: for a login
        self._task: asyncio.Task[None] | None = None
        self._times = self.session = 0

    async def make(self, make: Callable[[], Any]) -> str:
        """Make the requests that `make` gives, and wait for all that follows; why one of them failed, if one did."""
        self._times += 1
        # These pages are no links of a strategy, and what they lead to is none.
        salt = f"{self._context.job.name}:{self._times}:"
        finds = None if self._context.strategy else self._context.finds(salt)
        own = WorkUnit(0, self._times, finds, RequestLedger([]))
        own.making = True
        self._tracker.enter(own)
        try:
            async for output in each(make()):
                if isinstance(output, Request):
                    self._crawler.engine.crawl(self._tracker.watched(output, own))
        except Exception as error:
            logger.exception("the worker's own requests could not be made")
            own.ledger.failed = f"{type(error).__name__}: {error}"
        own.making = False
        while not own.over:
            await self._context.notifier.wait()
        self._tracker.leave(own)
        if finds is not None:
            await self._keep(finds)
        return own.ledger.failed

    async def _keep(self, finds: FoundRequests) -> None:
        client = self._context.client
        await client.missed(finds.take_misses())
        counts = finds.take_counts()
        if finds.found or counts:
            count_found(self._crawler, await client.add(finds.found, counts))

    async def enter(self) -> bool:
        """Log in, where the spider has a login; False ends the worker, as it has failed."""
        reason = "" if self.log_in is None else await self.make(self.log_in)
        if reason:
            self._context.fail(f"The login has failed: {reason}.", FinishReason.LOGIN_FAILED)
        return not reason

    def again(self, begun: WorkUnit, mark: UnitMark, request: Request) -> bool:
        """Repeat a request whose session has expired, once there is a new one; False when it will not be repeated."""
        if (
            self.log_in is None
            or not isinstance(begun, BatchUnit)
            or request.meta.get(REPEATED, 0) >= MOST_REPEATS
        ):
            return False
        self.waiting.append(
            (begun, self._tracker.watched(_afresh(request), begun, mark.position, mark.source))
        )
        if self._task is None:
            # One that was made in an earlier session needs no new login.
            expired = request.meta.get(SESSION, self.session) == self.session
            self._task = asyncio.ensure_future(self._repeat(expired=expired))
        return True

    async def _repeat(self, *, expired: bool) -> None:
        if expired:
            logger.info("the session has expired; logging in again")
            await self.enter()
            self.session += 1
        waiting, self.waiting, self._task = self.waiting, [], None
        for begun, request in waiting:
            if begun.key in self._tracker.begun:
                self._crawler.engine.crawl(request)


def _afresh(request: Request) -> Request:
    """The request as it was at first, to be made once more."""
    first = request.meta.get("redirect_urls")
    meta = {name: value for name, value in request.meta.items() if name not in WAY}
    meta[REPEATED] = request.meta.get(REPEATED, 0) + 1
    return request.replace(url=first[0] if first else request.url, meta=meta, dont_filter=True)


class LeasedWork:
    """The parts of a worker that leases its batches, once its store is open, and what they tell each other."""

    def __init__(
        self,
        crawler: Crawler,
        job: Assignment,
        folder: Path,
        report: LeaseReport,
        *,
        renewer: LeaseRenewer,
        client: LeaseClient,
        crawl: Crawl,
        fail: Fail,
    ) -> None:
        if follows_strategy(crawler.settings) and (why := _unfit_for_strategy(crawl, job)):
            raise WorkRefused(why)
        self._crawler, self._renewer = crawler, renewer
        self._slotting = SlotRouting.from_settings(
            crawler.settings, project=crawl.project, spider=crawl.spider, own=job.other_slot
        )
        assert crawler.spider
        tracker = RequestTracker(
            crawler,
            rules_lead_away=crawl.kind == "crawl",
            changed=self._changed,
            target=_target(crawler),
            again=lambda *expired: self._own_requests.again(*expired),
        )
        self.context = context = LeaseContext(
            crawler=crawler,
            job=job,
            client=client,
            tracker=tracker,
            notifier=Notifier(),
            finds=self._finds,
            strategy=follows_strategy(crawler.settings),
            fail=fail,
        )
        self.acker = BatchAcker(context, report)
        self._own_requests = OwnRequests(context)
        self.feeder = RequestFeeder(context, self.acker, folder)
        self._tasks = [asyncio.ensure_future(self._keep_forgetting())]
        if crawl.kind == "frontier":  # the folder of a crawl is removed as a whole
            self._tasks.append(
                asyncio.ensure_future(keep_sweeping(folder, job.crawl, client.batch))
            )
        renewer.guard(crawler, self._why_not)

    async def begin(self, start: AsyncIterator[Any]) -> bool:
        """The spider's own start where it comes first, and the login; False when one of them fails."""
        if self.context.job.start == "first" and (
            failed := await self._own_requests.make(lambda: start)
        ):
            why = f"One of the spider's own start requests has failed: {failed}."
            self.context.fail(why, FinishReason.START_FAILED)
            return False
        return await self._own_requests.enter()

    def _why_not(self, request: Request) -> str:
        """Asked before a request leaves: those of a batch that was lost do not."""
        mark = mark_of(request)
        if mark is None:
            return ""
        begun = self.context.tracker.begun.get(mark.key)
        if begun is None:
            return "its batch is not this worker's any more"
        begun.touched = True
        if self._own_requests.log_in is not None:
            request.meta[SESSION] = self._own_requests.session
        return ""

    def _finds(self, salt: str) -> FoundRequests:
        crawler, key = self._crawler, self.context.client.key
        stay = crawler.settings.get("DISTRIBUTED_UNSENDABLE")
        if self.context.strategy:
            return PageLinks(
                crawler=crawler, key=key, slotting=self._slotting, stay=stay or "refuse"
            )
        return FoundRequests(
            crawler=crawler, key=key, stay=stay, slotting=self._slotting, salt=salt
        )

    def _changed(self, begun: WorkUnit) -> None:
        self.acker.changed(begun)
        if begun.over or self.feeder.room > 0:
            self.context.notifier.tell()

    async def _keep_forgetting(self) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(LOOK)
            quiet = 0 if self._own_requests.waiting or under_way(self._crawler) else quiet + 1
            if quiet > 1 and not is_closing(
                self._crawler
            ):  # what was held by a pause has not ended
                self._forget()

    def _forget(self) -> None:
        """Scrapy has nothing left: requests that still count as open have ended without a word."""
        for begun in [one for one in self.context.tracker.begun.values() if not one.making]:
            if begun.requests:
                logger.warning(
                    "nothing was heard of %d requests of batch %d", begun.requests, begun.key[0]
                )
            begun.forget()
            self._changed(begun)

    def stop(self) -> None:
        self.feeder.stop()
        self.context.notifier.tell()  # Scrapy 2.13 would let the spider's start go on

    async def close(self, reason: str) -> None:
        """End all batches, and leave the store."""
        for task in self._tasks:
            task.cancel()
        self.stop()
        self.context.client.end()
        await self.acker.finish(reason)
        self.context.client.close()
        self._renewer.stop()


def _unfit_for_strategy(crawl: Crawl, job: Assignment) -> str:
    """Why a worker cannot work for a strategy in this crawl; empty if it can."""
    if crawl.kind != "frontier":
        return (
            "DISTRIBUTED_STRATEGY is set, and this crawl has no strategy: take it out of the project's settings;"
            " `sdist strategy run` gives it to its workers."
        )
    if job.start == "first":
        return (
            "The spider's own start has no place in a crawl with a strategy, which is told its seeds; set"
            " DISTRIBUTED_START to skip."
        )
    return ""


def _target(crawler: Crawler) -> Target:
    """What goes to the frontier, or to the strategy.

    Raises:
        ConfigError: the project names links for its strategy that there are not.
    """
    assert crawler.spider
    if follows_strategy(crawler.settings):
        return find_links(crawler.spider, crawler.settings)
    try:
        return find_target(crawler.spider, crawler.settings)
    except ConfigError:  # nothing says which requests go to the frontier: those that are marked
        return Target()


class LeaseSession:
    """The work of a job that leases its batches, from its own start requests and the login to the last ack."""

    def __init__(self, crawler: Crawler, job: Assignment, folder: Path, fail: Fail) -> None:
        self._crawler, self._job, self._folder, self._fail = crawler, job, folder, fail
        self._report = LeaseReport(job)
        self._work: LeasedWork | None = None  #: while the store is open
        self.tracker: RequestTracker | None = None  #: likewise
        self._goals = GoalKeeper.of(crawler)
        uploads, self.problem = uploading_feeds(crawler.settings), ""
        if job.introduce:
            self._report.public, self.problem = introduce(crawler, job, uploads)
        elif uploads:
            self.problem = (
                f"The feed {uploads[0]} is uploaded when a job closes; a worker that leases its batches may end before"
                " that, and its items would be lost or twice there."
            )

    async def requests(self, start: AsyncIterator[Any]) -> AsyncIterator[Request]:
        """The leased requests instead of the spider's own start, which comes first where that was asked for.

        Raises:
            WorkRefused: the store or the key cannot be opened, or the throttle cannot work here.
            StoreLost: the store does not answer.
            ConfigError: a setting makes no sense.
        """
        if self._job.introduce:
            return
        self._work = work = await self._open()
        self.tracker = work.context.tracker
        if problem := throttle_problem(self._crawler):
            raise WorkRefused(problem)
        try:
            if await work.begin(start):
                async for request in work.feeder.requests():
                    yield request
        except StoreLost as error:
            work.context.lose_store(str(error))

    async def _open(self) -> LeasedWork:
        job = self._job
        try:
            key = job.crawl_key()
            store = await asyncio.to_thread(reach, job)
            renewals = await asyncio.to_thread(reach, job)
            if self._goals is not None:
                counts = StoreThread(await asyncio.to_thread(reach, job))
                self._goals.open(
                    counts, job.crawl, lambda _: self._fail("", FinishReason.GOAL), own=True
                )
        except OutOfReach as why:
            text = f"The store is out of this worker's reach: {str(why).rstrip('.')}."
            if not why.lasting:
                raise StoreLost(text) from None
            self._report.unreached = True
            raise WorkRefused(text) from None
        except SealError as error:
            raise WorkRefused(f"The key of this crawl cannot be opened: {error}.") from None

        def lost(key: Key, loss: LeaseLoss) -> None:
            work.acker.lost(key, loss)

        renewer = LeaseRenewer(
            renewals,
            crawl=job.crawl,
            holder=job.name,
            seconds=job.lease,
            lost=lost,
            heed=self._heed,
        )
        client = LeaseClient(job, store, renewer, key)
        try:
            crawl = await client.crawl()
            work = LeasedWork(
                self._crawler,
                job,
                self._folder,
                self._report,
                renewer=renewer,
                client=client,
                crawl=crawl,
                fail=self._fail,
            )
        except BaseException:
            client.close()
            renewer.stop()
            raise
        self._heed(crawl.wanted)
        renewer.start()
        return work

    def _heed(self, wanted: str) -> None:
        """Do what the crawl was asked for through its row."""
        PauseGate.of(self._crawler).rest(wanted == PAUSE)
        if wanted == CLOSE:
            self._fail("", FinishReason.GOAL)

    @property
    def has_work(self) -> bool:
        """Whether something that it has begun has not come to its end."""
        return self.tracker is not None and not all(
            begun.over for begun in self.tracker.begun.values()
        )

    def progress(self) -> dict[str, Any]:
        return self._report.progress(list(self._work.acker.held.values()) if self._work else ())

    def stop(self) -> None:
        if self._goals is not None:
            self._goals.stop()
        if self._work is not None:
            self._work.stop()

    async def close(self, reason: str, problem: str) -> dict[str, Any]:
        """End all batches, and leave the store; the worker's last report."""
        limit = ""
        if self._goals is not None:
            await self._goals.close()
        so_far = self.progress()
        if (
            reason == FinishReason.TIMEOUT
            and self.has_work
            and not so_far["done"] + so_far["missed"]
        ):
            problem = problem or "timeout: not one of its requests has ended"
        if self._work is not None:
            await self._work.close(reason)
            limit = self._work.context.client.limit
        return self._report.final(reason, problem, limit, self._crawler.stats.get_stats())
