"""Makes a leasing worker's calls to the store: leases, acks, and whether more work will come."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from scrapy.crawler import Crawler

from scrapyd_dist.batches import AttemptState, Batch, BatchState, Crawl, FinishReason, Miss
from scrapyd_dist.errors import DistError, NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import Leased, LeaseRequest, Lessee, NewBatch, SeenBefore
from scrapyd_dist.frontier.intake import REGISTERED
from scrapyd_dist.frontier.packing import FrontierIntake, add_unseen
from scrapyd_dist.plurals import counted
from scrapyd_dist.store import Store
from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.strategy.links import LinkEvent

from ..assignment import Assignment
from ..classifier import FoundRequests
from .lease_renewer import LeaseRenewer, clock
from .request_tracker import RequestTracker
from .work_unit import REMEMBERED

#: name of a count -> number
Counts = Mapping[str, int]

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: seconds between two calls to a store that does not answer
STORE_RETRY_SECONDS = 1.0
#: seconds for which a worker that ends waits for the store
HURRY = 10.0
#: seconds that a worker waits for batches that may come back: from a worker that died, or whose
#: part may be lost
MAY_RETURN = 5.0
#: batches that one call brings at most
MOST_LEASED = 1_000


class Notifier:
    """Wakes all waiting tasks, each time."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Wake all tasks that wait now."""
        waiting = self._waiting
        self._waiting = set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait until something has changed, or until `timeout` seconds have passed."""
        # A future: before Python 3.12, `wait_for` would begin to wait for an event one turn of the
        # loop later.
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(future, timeout)


def is_suspect(leased: Leased) -> bool:
    """Say whether workers were lost with this batch, or with the one that it was cut from.

    A forgiven loss counts, too: one of its pages may take the whole machine down.
    """
    return leased.batch.tried(leased.attempt) > 1 or leased.batch.parent > 0


def _key_of(leased: Leased) -> tuple[int, int]:
    return leased.batch.number, leased.attempt


class StoreLost(Exception):
    """The store has not answered for as long as a lease lasts, or has forgotten the crawl.

    The text says more.
    """


class Withdrawn(Exception):
    """The crawl does not count on this worker, or not any more; the text is a sentence for its log.

    It was refused after the worker was posted, goes without it, or has given it up: the worker's
    node was away for long, or the node's address leads to another machine.
    """


class LeaseClient:
    """One worker's batches, as the store has them."""

    def __init__(
        self, job: Assignment, store: Store, renewer: LeaseRenewer, key: bytes | None
    ) -> None:
        self._job = job
        self._renewer = renewer
        self.key = key  #: of the crawl, whose batches may be encrypted
        self._db = store
        self._thread = StoreThread(store)
        #: the call of `next` that is under way, or whose batches were not handed over
        self._leasing: asyncio.Task[list[Leased]] | None = None
        self._drained: float | None = None  #: since when nothing is left but what may return
        self._began = time.monotonic()
        self._patience = job.lease  #: seconds
        self._ends = False
        #: leases that this worker has or had, the last ones: a store that comes back without its
        #: last steps gives them again
        self._known: dict[tuple[int, int], None] = {}
        #: those of them that this worker has not begun to end -> when their batch was sealed: a
        #: store that has lost its last steps gives the number of a lost batch to another one
        self._in_work: dict[tuple[int, int], float] = {}
        self.batches = 0  #: leased so far
        self.requests = 0  #: in them

    async def crawl(self) -> Crawl:
        """Return the crawl; StoreLost if that cannot be had, as from all of these."""
        return await self._call(self._db.crawl, self._job.crawl)

    async def is_listed(self) -> bool:
        """Say whether the crawl counts on this worker."""
        entries, _ = await self._call(self._db.workers, self._job.crawl)
        return any(entry.job == self._job.name for entry in entries)

    def begin_time(self) -> None:
        """Let the worker's time begin now: it has waited for its crawl to begin."""
        self._began = time.monotonic()

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        """Lease the next batches, at most `limit`; Withdrawn if the crawl has given this worker up.

        If they are shared fairly, none is of the slots of which there is `enough`.
        """
        self._leasing = asyncio.ensure_future(self._lease_next(limit, enough))
        try:
            leased = await asyncio.shield(self._leasing)
        except Withdrawn:
            self._leasing = None
            raise
        if self._ends:
            return []
        self._leasing = None
        begun: list[Leased] = []
        for lease in leased:
            if self._renewer.holds(_key_of(lease)):
                begun.append(lease)
            else:  # it is lost already, before its batch has begun
                self.release(_key_of(lease))
        return begun

    async def unclaimed(self) -> list[Leased]:
        """Return the batches that the store gave while the worker was told to end."""
        if self._leasing is None:
            return []
        try:
            return await self._leasing
        except Withdrawn:
            return []

    async def _lease_next(self, limit: int, enough: Collection[str]) -> list[Leased]:
        leased = await self._call(self._lease, min(limit, self._count_left()), enough)
        kept: list[Leased] = []
        has_repeated = False
        for lease in leased:
            key = _key_of(lease)
            if self._in_work.get(key) == lease.batch.sealed_at:
                continue  # the store has forgotten that this worker has it: it goes on with it
            if key in self._known:
                await self._fail_repeated(key)
                has_repeated = True
            elif kept and is_suspect(kept[-1]):
                # A batch that kills its worker should take no other with it.
                await self.give_back(key, "one before it is worked on alone")
            else:
                kept.append(lease)
                self._remember(lease)
        if has_repeated and not kept:  # their batches wait for another attempt now
            return await self._lease_next(limit, enough)
        if kept:
            self._drained = None
        self.batches += len(kept)
        self.requests += sum(lease.batch.size for lease in kept)
        return kept

    async def _fail_repeated(self, key: tuple[int, int]) -> None:
        """Give up a lease that this worker has had before: its batch gets another attempt.

        Requests of the first one may still be under way in this process. They bear the number of
        the attempt, and would be counted for the second. One that is given back would come back
        with the same number.
        """
        await self._let_go(
            key,
            self._db.fail,
            self._job.crawl,
            *key,
            reason="the store has lost what its worker did of it",
            now=time.time(),
            max_attempts=sys.maxsize,
            out=True,
        )

    def _remember(self, lease: Leased) -> None:
        key = _key_of(lease)
        self._in_work[key] = lease.batch.sealed_at
        self._known[key] = None
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    def _lease(self, limit: int, enough: Collection[str]) -> list[Leased]:
        since = clock()
        job = self._job
        wanted = LeaseRequest(
            crawl=job.crawl,
            lessee=Lessee(job=job.name, node=job.node, url=job.url),
            seconds=job.lease,
            now=time.time(),
            limit=limit,
            slots=job.slots,
            fair=job.fair,
            enough=enough,
            listed=True,
        )
        try:
            leased = self._db.lease_next(wanted)
        except StepRefused as error:
            raise Withdrawn(f"The crawl goes on without this worker: {error}") from None
        for lease in leased:
            self._renewer.hold(_key_of(lease), since)
        return leased

    @property
    def limit(self) -> str:
        """The limit of this worker that is reached, in words; empty while it may lease more."""
        job = self._job
        if job.max_batches and self.batches >= job.max_batches:
            return counted(job.max_batches, "batch", "batches")
        if job.max_requests and self.requests >= job.max_requests:
            return counted(job.max_requests, "request")
        if job.max_time and time.monotonic() - self._began >= job.max_time:
            return f"{job.max_time:g} s"
        return ""

    def _count_left(self) -> int:
        """Return how many batches one call may bring."""
        if self._job.max_requests:
            return 1
        if self._job.max_batches:
            return self._job.max_batches - self.batches
        return MOST_LEASED

    async def no_more(self) -> bool:
        """Say whether an idle worker that was just given nothing will get no more work."""
        backlog = await self._call(self._db.backlog, self._job.crawl)
        if backlog.finished:
            return True
        if backlog.producers or backlog.standing or (backlog.leased and not self._job.slots):
            self._drained = None
            return False
        if self._job.slots or not (backlog.expired or backlog.acked):
            return True
        self._drained = self._drained or time.monotonic()
        return time.monotonic() - self._drained > MAY_RETURN

    async def ack(
        self,
        key: tuple[int, int],
        report: Mapping[str, Any],
        found: Sequence[FrontierIntake],
        counts: Counts,
        events: Sequence[LinkEvent] = (),
    ) -> dict[str, int] | None:
        """Ack a batch that has led to these requests.

        Returns their counts as kept, or None when its lease was lost.
        """
        kept: dict[str, int] = {}

        def keep(new: Sequence[NewBatch], sums: Counts) -> None:
            # Noted before the call: it may be only the answer that is lost, and the next try is
            # refused.
            kept.clear()
            kept.update(sums)
            self._db.ack(
                self._job.crawl,
                *key,
                self._job.name,
                report=report,
                new=new,
                now=time.time(),
                counts=sums,
                events=events,
            )

        add = partial(
            add_unseen, keep, found, size=self._job.batch_size, key=self.key, counts=counts
        )
        if await self._let_go(key, add) or await self._was_acked(*key):
            return kept
        return None

    async def _was_acked(self, batch: int, attempt: int) -> bool:
        """Say whether the store took the ack all the same.

        Then its answer was lost, and it refused the second try.
        """
        acked = await self._call(self._db.attempts, self._job.crawl, {AttemptState.ACKED})
        if (batch, attempt) in [(row.batch, row.number) for row in acked]:
            return True
        row = await self._call(self._db.batch, self._job.crawl, batch)
        return row.state is BatchState.DONE and row.attempts == attempt

    async def batch(self, number: int) -> Batch | None:
        """Return the batch as the store has it; None when that cannot be had now."""
        with suppress(DistError):
            return await self._thread(self._db.batch, self._job.crawl, number)
        return None

    def release(self, key: tuple[int, int]) -> None:
        """Renew the lease of this attempt no more: it is lost, or nothing can end it."""
        self._in_work.pop(key, None)
        self._renewer.release(key)

    async def give_back(self, key: tuple[int, int], reason: str) -> bool:
        """Give back a batch of which no request was made; say whether the store has taken it."""
        return await self._let_go(
            key,
            self._db.give_back,
            self._job.crawl,
            *key,
            self._job.name,
            reason=reason,
            now=time.time(),
        )

    async def _let_go(
        self, key: tuple[int, int], verb: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> bool:
        """End a lease by a call to the store; say whether the store has taken that."""
        self._in_work.pop(key, None)
        try:
            await self._call(verb, *args, **kwargs)
        except StepRefused as error:
            logger.warning("the store refused the end of batch %d, attempt %d: %s", *key, error)
            return False
        finally:
            self._renewer.release(key)
        return True

    async def add(self, found: Sequence[FrontierIntake], counts: Counts) -> dict[str, int]:
        """Add requests that the worker's own pages have led to; return their counts as kept."""
        keep = partial(self._db.add_batches, self._job.crawl)
        add = partial(
            add_unseen, keep, found, size=self._job.batch_size, key=self.key, counts=counts
        )
        await self._call(self._db.register_producer, self._job.crawl, self._job.name, REGISTERED)
        try:
            _, kept = await self._call(add)
            return kept
        finally:
            await self._call(self._db.sign_off, self._job.crawl, self._job.name)

    async def missed(self, misses: Sequence[Miss]) -> None:
        """Store found requests that no worker can make."""
        if misses:
            await self._call(self._db.add_misses, self._job.crawl, misses)

    async def _call(self, verb: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the store until it answers; StoreLost if it does not for too long."""
        since: float | None = None  # when it did not answer first
        while True:
            try:
                return await self._thread(verb, *args, **kwargs)
            except (StepRefused, SeenBefore):
                raise
            except NothingMatched as error:
                raise StoreLost(str(error)) from None
            except StoreError as error:
                if since is None:
                    since = time.monotonic()
                    logger.warning("the store does not answer, asking again: %s", error)
                elif time.monotonic() - since > self._patience:
                    raise StoreLost(str(error)) from None
            await asyncio.sleep(STORE_RETRY_SECONDS)

    def end(self) -> None:
        """Lease nothing more, and give up calls to the store soon, as the worker ends."""
        self._ends = True
        self._patience = min(self._patience, HURRY)

    def close(self) -> None:
        """Wait for the call that is under way, and close the connection."""
        self._thread.close()


@dataclass(frozen=True, kw_only=True)
class LeaseContext:
    """What the parts of a worker that leases its batches share."""

    crawler: Crawler
    job: Assignment
    client: LeaseClient
    tracker: RequestTracker
    notifier: Notifier
    finds: Callable[[str], FoundRequests]  #: makes room for the requests that pages lead to
    strategy: bool = False  #: these are links of a crawling strategy
    #: ends the worker before its work is done, with a problem
    fail: Callable[[str, FinishReason], None]

    def lose_store(self, why: str) -> None:
        """End the worker, as its store is lost."""
        self.fail(f"The store was lost: {why}.", FinishReason.STORE_LOST)
