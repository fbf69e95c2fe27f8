"""Does the work of a job that leases its batches, until none will come.

Each batch is acked when its part is whole. The spider's own start is entered only when that was
asked for; a worker that loses its store makes no more requests.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapyd_dist.batches import Crawl, CrawlState, FinishReason
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.keys import SealError, public_half
from scrapyd_dist.settings import uploading_feeds
from scrapyd_dist.store.engines import FIRST_CLIENT, find_engine_by_client
from scrapyd_dist.store.store_thread import StoreThread

from ..assignment import Assignment, egg_key, follows_strategy
from ..classifier import FoundRequests, count_found
from ..codec import mark_start
from ..engine_compat import each, guard_downloads, is_closing, spider_method
from ..goal_keeper import GoalKeeper
from ..own_meta import read_mark
from ..pause_gate import PauseGate
from ..slot_routing import SlotRouting, hides_addon
from ..store_access import OutOfReach, reach_several
from ..targets import Target, find_crawl_target, find_links, find_target
from ..throttle.install import problem_of as throttle_problem
from ..used_components import find_used_components
from .batch_acker import BatchAcker, LeaseReport, keep_sweeping
from .lease_client import LeaseClient, LeaseContext, Notifier, StoreLost, Withdrawn
from .lease_renewer import Key, LeaseLoss, LeaseRenewer
from .link_events import PageLinks
from .request_feeder import RequestFeeder
from .request_tracker import RequestTracker
from .unheard import keep_closing_unheard
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

#: takes a problem, and why the worker ends before its work is done
Fail = Callable[[str, FinishReason], None]

logger = logging.getLogger(__name__)
#: seconds between two looks whether a crawl has begun
BEGUN_EVERY = 0.1
#: what an early worker logs whose crawl was refused, or does not need it
WITHOUT = "This worker was posted before its crawl, and the crawl goes without it"
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
    """Return the public half of this egg's key, and why this code cannot work for the crawl.

    Each is empty if there is none. `uploads` are the project's feeds that are stored elsewhere when
    a job closes.
    """
    key = egg_key()
    why = ""
    if hides_addon(crawler.spidercls.custom_settings or {}):
        why = (
            f"the custom_settings of the spider {crawler.spidercls.name} set ADDONS, which hides"
            ' the add-on that its workers need; add "scrapyd_dist.Addon": 500 to it there, and'
            " deploy again"
        )
    elif uploads:
        why = (
            f"its setting FEEDS has {uploads[0]}, which is uploaded when a job closes, and what a"
            " worker lost on its way would be in it all the same; take it out of FEEDS, and deploy"
            " again"
        )
    elif key is None:
        why = "its code carries no key; deploy it with sdist deploy --all, in its folder"
    elif job.needs_client:
        why = _why_no_client(job.client or FIRST_CLIENT)
    if key is None:
        return "", why
    return public_half(key), why


def _why_no_client(client: str) -> str:
    """Return why the code cannot reach a store that needs this package; empty if it can."""
    if find_spec(client) is not None:
        return ""
    engine = find_engine_by_client(client)
    title = "of a kind that this code does not know" if engine is None else engine.title
    return (
        f"this crawl's store is {title}, and neither its code nor the node has the client; name the"
        f" same store in its project, and deploy again, or install the package {client} on the node"
    )


class OwnRequests:
    """Makes a worker's own requests: the spider's start, and its login.

    It logs in again whenever the session has expired. A request whose session has expired waits for
    the new login and is made again, a few times at most; one expiry means one login.
    """

    def __init__(self, context: LeaseContext) -> None:
        self._context = context
        self._tracker = context.tracker
        self._crawler = context.crawler
        #: None where the spider has no login
        self.log_in = spider_method(
            self._crawler.spider, self._crawler.settings, "DISTRIBUTED_LOGIN"
        )
        self.waiting: list[tuple[WorkUnit, Request]] = []  #: for a login
        self._task: asyncio.Task[None] | None = None  #: the login that is under way
        self._times = 0  #: that own requests were made
        self.session = 0  #: number of the session

    async def make(self, make: Callable[[], Any], *, is_start: bool = False) -> str:
        """Make the requests that `make` gives, and wait for all that follows.

        `is_start`: they are those of the spider's own start. Returns why one of them failed, if one
        did.
        """
        self._times += 1
        # These pages are no links of a strategy, and what they lead to is none.
        salt = f"{self._context.job.name}:{self._times}:"
        finds = None if self._context.strategy else self._context.finds(salt)
        own = WorkUnit(0, self._times, finds, RequestLedger([]))
        own.making = True
        self._tracker.enter(own)
        try:
            async for output in each(make()):
                if not isinstance(output, Request):
                    continue
                if is_start:
                    mark_start(output)
                self._crawler.engine.crawl(self._tracker.open_request(output, own))
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
        """Log in, where the spider has a login; say whether the worker can go on."""
        if self.log_in is None:
            return True
        reason = await self.make(self.log_in)
        if reason:
            self._context.fail(f"The login has failed: {reason}.", FinishReason.LOGIN_FAILED)
        return not reason

    def again(self, unit: WorkUnit, mark: UnitMark, request: Request) -> bool:
        """Repeat a request whose session has expired, once there is a new one.

        Returns False when it will not be repeated.
        """
        if self.log_in is None or not isinstance(unit, BatchUnit):
            return False
        if read_mark(request, REPEATED, 0) >= MOST_REPEATS:
            return False
        repeated = self._tracker.open_request(_afresh(request), unit, mark.position, mark.source)
        self.waiting.append((unit, repeated))
        if self._task is None:
            # One that was made in an earlier session needs no new login.
            expired = read_mark(request, SESSION, self.session) == self.session
            self._task = asyncio.ensure_future(self._repeat(expired=expired))
        return True

    async def _repeat(self, *, expired: bool) -> None:
        if expired:
            logger.info("the session has expired; logging in again")
            await self.enter()
            self.session += 1
        waiting = self.waiting
        self.waiting = []
        self._task = None
        for unit, request in waiting:
            if unit.key in self._tracker.begun:
                self._crawler.engine.crawl(request)


def _afresh(request: Request) -> Request:
    """Return the request as it was at first, to be made once more."""
    redirected = request.meta.get("redirect_urls")
    meta = {name: value for name, value in request.meta.items() if name not in WAY}
    meta[REPEATED] = read_mark(request, REPEATED, 0) + 1
    url = redirected[0] if redirected else request.url
    return request.replace(url=url, meta=meta, dont_filter=True)


class LeasedWork:
    """Holds the parts of a worker that leases its batches, once its store is open."""

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
        self._crawler = crawler
        self._renewer = renewer
        self._slotting = SlotRouting.from_settings(
            crawler.settings, project=crawl.project, spider=crawl.spider, own=job.other_slot
        )
        assert crawler.spider
        tracker = RequestTracker(
            crawler,
            rules_lead_away=crawl.kind == "crawl",
            changed=self._changed,
            target=_target(crawler, crawl.kind),
            again=self._repeat_expired,
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
        unheard = keep_closing_unheard(crawler, tracker, lambda: bool(self._own_requests.waiting))
        self._tasks = [asyncio.ensure_future(unheard)]
        if crawl.kind == "frontier":  # the folder of a crawl is removed as a whole
            sweeping = keep_sweeping(folder, job.crawl, client.batch)
            self._tasks.append(asyncio.ensure_future(sweeping))
        guard_downloads(crawler, self._why_not)

    async def begin(self, start: AsyncIterator[Any]) -> bool:
        """Make the spider's own start where it comes first, and log in; False when one fails."""
        if self.context.job.start == "first":
            reason = await self._own_requests.make(lambda: start, is_start=True)
            if reason:
                why = f"One of the spider's own start requests has failed: {reason}."
                self.context.fail(why, FinishReason.START_FAILED)
                return False
        return await self._own_requests.enter()

    def _why_not(self, request: Request) -> str:
        """Say why a request must not leave, as those of a batch that was lost; empty if it may."""
        self._renewer.check()
        mark = mark_of(request)
        if mark is None:
            return ""
        unit = self.context.tracker.begun.get(mark.key)
        if unit is None:
            return "its batch is not this worker's any more"
        unit.touched = True
        if self._own_requests.log_in is not None:
            request.meta[SESSION] = self._own_requests.session
        return ""

    def _finds(self, salt: str) -> FoundRequests:
        """Make room for the requests that pages lead to."""
        crawler = self._crawler
        key = self.context.client.key
        stay = crawler.settings.get("DISTRIBUTED_UNSENDABLE")
        if self.context.strategy:
            return PageLinks(
                crawler=crawler, key=key, slotting=self._slotting, stay=stay or "refuse"
            )
        return FoundRequests(
            crawler=crawler, key=key, stay=stay, slotting=self._slotting, salt=salt
        )

    def _repeat_expired(self, unit: WorkUnit, mark: UnitMark, request: Request) -> bool:
        """Repeat a request whose session has expired; False when it will not be repeated."""
        return self._own_requests.again(unit, mark, request)

    def _changed(self, unit: WorkUnit) -> None:
        self.acker.changed(unit)
        if unit.over or self.feeder.room > 0:
            self.context.notifier.wake()

    def stop(self) -> None:
        """Lease nothing more."""
        self.feeder.stop()
        self.context.notifier.wake()  # Scrapy 2.13 would let the spider's start go on

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
    """Say why a worker cannot work for a strategy in this crawl; empty if it can."""
    if crawl.kind != "frontier":
        return (
            "DISTRIBUTED_STRATEGY is set, and this crawl has no strategy: take it out of the"
            " project's settings; `sdist strategy run` gives it to its workers."
        )
    if job.start == "first":
        return (
            "The spider's own start has no place in a crawl with a strategy, which is told its"
            " seeds; set DISTRIBUTED_START to skip."
        )
    return ""


def _target(crawler: Crawler, kind: str) -> Target:
    """Return what goes to the frontier or the strategy, in a "crawl" or a "frontier".

    Raises:
        ConfigError: the project names links for its strategy that there are not.
    """
    assert crawler.spider
    if follows_strategy(crawler.settings):
        return find_links(crawler.spider, crawler.settings)
    try:
        if kind == "crawl":
            return find_crawl_target(crawler.spider, crawler.settings)
        return find_target(crawler.spider, crawler.settings)
    except ConfigError:  # nothing says which requests go to the frontier: those that are marked
        return Target()


async def _wait_for_begin(client: LeaseClient, crawl: Crawl) -> Crawl:
    """Wait until the crawl of an early worker has begun; return its row then.

    Raises:
        Withdrawn: it was refused, its process has died, or it has withdrawn this worker.
        StoreLost: the store does not answer, or has forgotten the crawl.
    """
    while crawl.state is CrawlState.STARTING:
        if await client.no_more():
            raise Withdrawn(WITHOUT)
        await asyncio.sleep(BEGUN_EVERY)
        crawl = await client.crawl()
    if crawl.state.ended or not await client.is_listed():
        raise Withdrawn(WITHOUT)
    return crawl


class LeaseSession:
    """The session of a job that leases its batches.

    It goes from the job's own start requests and the login to the last ack.
    """

    def __init__(self, crawler: Crawler, job: Assignment, folder: Path, fail: Fail) -> None:
        self._crawler = crawler
        self._job = job
        self._folder = folder
        self._fail = fail
        self._report = LeaseReport(job)
        self._report.components = find_used_components(crawler).document
        self._work: LeasedWork | None = None  #: while the store is open
        self.tracker: RequestTracker | None = None  #: likewise
        self._goals = GoalKeeper.for_crawler(crawler)
        uploads = uploading_feeds(crawler.settings)
        self.problem = ""  #: why the job cannot work; empty when it can
        if job.introduce:
            self._report.public, self.problem = introduce(crawler, job, uploads)
        elif uploads:
            self.problem = (
                f"The feed {uploads[0]} is uploaded when a job closes; a worker that leases its"
                " batches may end before that, and its items would be lost or twice there."
            )

    async def requests(self, start: AsyncIterator[Any]) -> AsyncIterator[Request]:
        """Yield the leased requests; the spider's own start comes first where that was asked for.

        Raises:
            WorkRefused: the store or the key cannot be opened, or the throttle cannot work here.
            StoreLost: the store does not answer.
            ConfigError: a setting makes no sense.
        """
        if self._job.introduce:
            return
        try:
            self._work = work = await self._open()
            async for request in self._work_off(work, start):
                yield request
        except Withdrawn as why:
            logger.info("%s", why)
            self._fail("", FinishReason.SUPERSEDED)

    async def _work_off(
        self, work: LeasedWork, start: AsyncIterator[Any]
    ) -> AsyncIterator[Request]:
        """Yield the requests that are leased from this open store."""
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
        """Open the store, and make the worker's parts."""
        job = self._job
        try:
            key = job.crawl_key()
            number = 2 if self._goals is None else 3
            store, renewals, *others = await asyncio.to_thread(reach_several, job, number)
        except OutOfReach as why:
            text = f"The store is out of this worker's reach: {str(why).rstrip('.')}."
            if not why.lasting:
                raise StoreLost(text) from None
            self._report.unreached = True
            raise WorkRefused(text) from None
        except SealError as error:
            raise WorkRefused(f"The key of this crawl cannot be opened: {error}.") from None
        if self._goals is not None:
            self._goals.open(StoreThread(others[0]), job.crawl, self._end_at_goal, own=True)

        def lost(key: Key, loss: LeaseLoss) -> None:
            work.acker.lost(key, loss)

        renewer = LeaseRenewer(
            renewals,
            crawl=job.crawl,
            holder=job.name,
            seconds=job.lease,
            lost=lost,
            obey=self._obey,
        )
        client = LeaseClient(job, store, renewer, key)
        try:
            crawl = await client.crawl()
            if job.early:
                crawl = await _wait_for_begin(client, crawl)
                client.begin_time()
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
        self._obey(crawl.wanted)
        renewer.start()
        return work

    def _end_at_goal(self, _: str) -> None:
        self._fail("", FinishReason.GOAL)

    def _obey(self, wanted: str) -> None:
        """Do what the crawl was asked for through its row."""
        if PauseGate.for_crawler(self._crawler).obey(wanted):
            self._fail("", FinishReason.GOAL)

    @property
    def has_work(self) -> bool:
        """Whether something that it has begun has not come to its end."""
        if self.tracker is None:
            return False
        return not all(unit.over for unit in self.tracker.begun.values())

    def progress(self) -> dict[str, Any]:
        """Return the report of a job that goes on."""
        closing = is_closing(self._crawler)
        if self._work is None:
            return {**self._report.progress(()), "closing": closing}
        return {**self._work.acker.progress(), "closing": closing}

    def stop(self) -> None:
        """Lease and count nothing more."""
        if self._goals is not None:
            self._goals.stop()
        if self._work is not None:
            self._work.stop()

    async def close(self, reason: str, problem: str) -> dict[str, Any]:
        """End all batches, leave the store, and return the worker's last report."""
        limit = ""
        if self._goals is not None:
            await self._goals.close()
        so_far = self.progress()
        has_ended_none = not so_far["done"] + so_far["missed"]
        if reason == FinishReason.TIMEOUT and self.has_work and has_ended_none:
            problem = problem or "timeout: not one of its requests has ended"
        if self._work is not None:
            await self._work.close(reason)
            limit = self._work.context.client.limit
        return self._report.final(reason, problem, limit, self._crawler.stats.get_stats())
