"""Does the work of a job that was sent one batch, or the arguments of a whole run.

All that the job does belongs to it. Each request of the batch ends as done, gone, failed or dead,
or the report says that it did not end.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.crawler import Crawler

from scrapyd_dist.batches import FinishReason, meaning
from scrapyd_dist.errors import DistError
from scrapyd_dist.store import Store
from scrapyd_dist.store.store_thread import StoreThread

from ..assignment import Assignment, egg_key, follows_strategy
from ..engine_compat import close_spider, guard_downloads
from ..goal_keeper import PATIENCE, STORE_RETRY_SECONDS, GoalKeeper
from ..pause_gate import PauseGate
from ..store_access import OutOfReach, reach
from ..throttle.install import problem_of as throttle_problem
from ..used_components import find_used_components
from .files import PartFile, plain_stats, report_head
from .idle_handlers import IdleHandlers, find_handlers
from .idle_requests import IdleRequests
from .lease_client import Notifier
from .lease_renewer import LeaseRenewer, clock
from .request_feeder import ReadPayload, RequestBuilder, read_payload
from .request_tracker import RequestTracker
from .unheard import keep_closing_unheard
from .work_unit import BatchUnit, WorkRefused

logger = logging.getLogger(__name__)


def too_late(job: Assignment) -> str:
    """Say why a job that another one has replaced makes no request."""
    kind = "worker" if job.leases else "attempt"
    return f"This {kind} came too late: another one has taken its place."


class SentSession:
    """The session of a job that was sent its batch, which ends with the process.

    A batch that was typed by hand has no job and no folder.
    """

    def __init__(
        self,
        crawler: Crawler,
        job: Assignment | None,
        folder: Path | None,
        fail: Callable[[str, FinishReason], None],
    ) -> None:
        self._crawler = crawler
        self._job = job or Assignment(crawl="")
        self._fail = fail
        payload = ReadPayload([])
        if not self._job.row:
            payload = read_payload(crawler.settings.get, egg_key())
        #: why no request is made; empty while requests may be made
        self._refused = self._find_refusal(payload.problem, is_typed=job is None)
        self.has_work = True  #: till it ends
        #: what the project's handlers of `spider_idle` ask for
        self._idle_requests = self._make_finds("")
        self._batch = BatchUnit(
            self._job.batch,
            self._job.attempt,
            payload.values,
            self._open_part(folder),
            finds=self._idle_requests,
            row=self._job.row,
            sent=True,
        )
        self._notifier = Notifier()
        self._feeds: list[str] = []  #: addresses of the project's feeds, without passwords
        self.tracker = RequestTracker(
            crawler, rules_lead_away=not self._job.row, changed=lambda _: self._notifier.wake()
        )
        self.tracker.enter(self._batch, unmarked=True)
        self._leases: LeaseRenewer | None = None  #: while the attempt is held in the store
        self._goals = GoalKeeper.for_crawler(crawler)
        self._no_lease = "" if self._job.lease else "nothing was said of a lease"
        crawler.signals.connect(self._feed_closed, signals.feed_slot_closed)
        self._idle_handlers = IdleHandlers(
            crawler,
            {self._batch.key: self._batch},
            tracker=self.tracker,
            notifier=self._notifier,
            make_finds=self._make_finds,
        )

    def _find_refusal(self, fault: str, *, is_typed: bool) -> str:
        """Say why the batch cannot be crawled here; empty if it can. `fault` is its payload's."""
        if fault:
            refusal = f"This batch cannot be crawled: {fault}."
        else:
            refusal = throttle_problem(self._crawler)
        if follows_strategy(self._crawler.settings) and not is_typed:
            refusal = (
                "A job that is sent a batch cannot tell a strategy of it: crawls with a strategy"
                " need workers that lease. Name nodes that reach the store, and set"
                " DISTRIBUTED_MODE to pull."
            )
        return refusal

    def _make_finds(self, salt: str) -> IdleRequests:
        """Make room for what handlers of `spider_idle` ask for."""
        stay = self._crawler.settings.get("DISTRIBUTED_UNSENDABLE")
        return IdleRequests(crawler=self._crawler, key=egg_key(), stay=stay, salt=salt)

    def _open_part(self, folder: Path | None) -> PartFile | None:
        """Open the file of the job's items; None where they go to the project's feed."""
        if folder is None or self._job.feed:
            return None
        return PartFile(folder, self._job.name, typed=self._job.typed)

    @property
    def problem(self) -> str:
        """Why this cannot be crawled, or its result is useless; empty when it can."""
        return self._refused or self._batch.problem

    async def requests(self, start: AsyncIterator[Any]) -> AsyncIterator[Request]:
        """Yield the batch; the spider's own start is entered for a row of arguments only.

        Raises:
            WorkRefused: another attempt has taken this one's place, or the start has failed.
        """
        if self._job.lease:
            await self._hold_lease()
        if self._goals is not None:
            await self._keep_to_goals(self._goals)
        if not self._job.row:
            builder = RequestBuilder(
                self._crawler, egg_key(), tracker=self.tracker, notifier=self._notifier
            )
            async for request in builder.requests(self._batch):
                yield request
            # A batch that was typed by hand is none of a crawl's, whose fleet could be asked.
            if self._job.crawl and self._idle_handlers.begin_round():
                await self._end_with_handlers()
            return
        try:
            async for output in start:
                if isinstance(output, Request):
                    yield self.tracker.open_request(output, self._batch)
                else:
                    yield output
        except Exception as error:  # Scrapy would only log it, and end as if all were done
            logger.exception("the spider's start failed")
            why = f"The spider's start failed: {type(error).__name__}: {str(error)[:200]}."
            raise WorkRefused(why) from error

    async def _end_with_handlers(self) -> None:
        """Call the project's handlers of `spider_idle` when the batch is over, and end the job.

        One may keep the spider open for ever.
        """
        unheard = asyncio.ensure_future(keep_closing_unheard(self._crawler, self.tracker))
        try:
            is_whole = await self._idle_handlers.end_round()
        finally:
            unheard.cancel()
        if is_whole:
            self.tracker.has_ended = True
            close_spider(self._crawler, FinishReason.FINISHED.value)

    async def _hold_lease(self) -> None:
        """Hold this attempt in the store, where it can be reached.

        Without that, only HTTP tells which job has it.
        """
        job = self._job
        since = clock()
        try:
            store = await self._reach()
            current, wanted = await asyncio.to_thread(self._take_lease, store)
        except (OutOfReach, DistError) as error:
            self._no_lease = str(error)
            logger.info("This attempt has no lease: %s", error)
            return
        self._leases = leases = LeaseRenewer(
            store,
            crawl=job.crawl,
            holder=job.name,
            seconds=job.lease,
            lost=lambda *_: self._lose_place(),
            patient=True,
            obey=self._obey,
        )
        if not current:
            self._lose_place()
            raise WorkRefused(too_late(job))
        leases.hold(self._batch.key, since)
        leases.start()

        def why_not(_: Request) -> str:
            leases.check()
            return self._refused

        # Once another attempt has taken this one's place, not one more request leaves.
        guard_downloads(self._crawler, why_not)
        self._obey(wanted)

    def _take_lease(self, store: Store) -> tuple[bool, str]:
        """Take the lease, or close the store with which that fails. Blocking.

        Returns whether this attempt is the current one, and what the crawl was asked for.
        """
        job = self._job
        try:
            current = store.lease(job.crawl, job.batch, job.attempt, job.name, job.lease)
            return current, store.wanted(job.crawl)
        except BaseException:
            store.close()
            raise

    async def _reach(self) -> Store:
        """Return the crawl's store.

        A job that may make no request without its word waits for it a while.

        Raises:
            OutOfReach: it cannot be reached from here, or is away for too long.
        """
        deadline = time.monotonic()
        if self._needs_store:
            deadline += PATIENCE
        while True:
            try:
                return await asyncio.to_thread(reach, self._job)
            except OutOfReach as error:
                if error.lasting or time.monotonic() >= deadline:
                    raise
                logger.info(
                    "The store is away, and no request leaves until it has said how many may: %s",
                    error,
                )
            await asyncio.sleep(STORE_RETRY_SECONDS)

    @property
    def _needs_store(self) -> bool:
        """Whether requests are counted for a goal, and none are reserved for this job."""
        return "requests" in self._job.goals and "requests" not in self._job.allowance

    def _obey(self, wanted: str) -> None:
        """Do what the crawl was asked for through its row."""
        if PauseGate.for_crawler(self._crawler).obey(wanted):
            self._fail("", FinishReason.GOAL)

    async def _keep_to_goals(self, goals: GoalKeeper) -> None:
        """Keep to the crawl's goals by the counts in the store, where it can be reached.

        Else by what was left when this job was sent.
        """

        def reached(_: str) -> None:
            self._fail("", FinishReason.GOAL)

        store = None
        if not self._no_lease:
            try:
                store = await self._reach()
            except OutOfReach as error:  # it was there a moment ago
                logger.info("This job keeps to what was left when it was sent: %s", error)
        if store is not None:
            goals.open(StoreThread(store), self._job.crawl, reached, own=True)
            return
        allowance = dict(self._job.allowance)
        if self._needs_store:
            allowance["requests"] = 0.0
        goals.open_alone(allowance, reached)

    def _lose_place(self) -> None:
        self._refused = too_late(self._job)
        self._fail(self._refused, FinishReason.SUPERSEDED)

    def _feed_closed(self, slot: Any) -> None:
        ledger = self._batch.ledger
        # A feed with another count takes some items only, or is one of several pieces.
        if slot.itemcount != ledger.items:
            ledger.located = False
        uri = urlsplit(str(slot.uri))
        if uri.netloc:  # whatever may read the node's logs may read the report
            uri = uri._replace(netloc=uri.netloc.rpartition("@")[2])
        self._feeds.append(uri.geturl())

    def stop(self) -> None:
        """Count no more; Scrapy asks a spider that is closed for no more requests."""
        if self._goals is not None:
            self._goals.stop()
        self._idle_handlers.stopped = True
        self._notifier.wake()

    # the report

    def progress(self) -> dict[str, Any]:
        """Return the report of a job that goes on."""
        if self._batch.part is not None:
            self._batch.part.flush()
        return {**self._head("running"), **self._batch.ledger.progress()}

    async def close(self, reason: str, problem: str) -> dict[str, Any]:
        """End the batch, and return the job's last report."""
        if self._goals is not None:
            await self._goals.close()
        batch = self._batch
        stats = self._crawler.stats.get_stats()
        closed_by = reason if meaning(reason).closes_crawl and not batch.row else ""
        if batch.settle_rest(reason, keeps_part=self._keeps_part()):
            reason = FinishReason.FINISHED.value  # Scrapy's own word for the end is in the stats
        if self._leases is not None:
            self._leases.stop()
        part = batch.close_part()
        failed_feeds = 0
        for name, number in stats.items():
            if name.startswith("feedexport/failed_count/"):
                failed_feeds += number
        return {
            **self._head("ended"),
            **batch.ledger.close(),
            "finish_reason": reason,
            "closed_by": closed_by,
            "problem": problem or batch.problem,
            "part": part,
            "idle_requests": self._idle_requests.seal(),
            "changed": self.tracker.changed_attributes(),
            **find_used_components(self._crawler).document,
            "feeds": self._feeds,
            "feeds_failed": failed_feeds,
            "stats": plain_stats(stats),
        }

    def _keeps_part(self) -> bool:
        """Say whether what this job has of its batch is kept when it is told to end.

        A feed is stored as it is, and a handler of `spider_idle` may have left its work for later.
        """
        is_whole = self._batch.row or self._job.feed or not self._job.crawl
        return not is_whole and not find_handlers(self._crawler)

    def _head(self, state: str) -> dict[str, Any]:
        """Return what each report of the job begins with."""
        job = self._job
        return report_head(
            state,
            job.crawl,
            job.version,
            self._batch.started,
            batch=job.batch,
            attempt=job.attempt,
            lease=self._leases is not None,
            no_lease=self._no_lease,
        )
