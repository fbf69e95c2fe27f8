"""Ends a leasing worker's batches and reports them: acked with their part, given back, or lost.

It also removes parts from their node once their batch is done: a frontier may never finish, and its
files would grow for ever.
"""

import asyncio
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scrapy import Request

from scrapyd_dist.batches import Batch, BatchState, FinishReason, meaning

from ..assignment import Assignment
from ..classifier import count_found
from ..engine_compat import pages_in_work
from .files import plain_stats, report_head
from .lease_client import LeaseContext, StoreLost
from .lease_renewer import Key, LeaseLoss
from .work_unit import BatchUnit, RequestLedger, WorkUnit, count, mark_of

logger = logging.getLogger(__name__)
#: of Scrapy's statistics those that a batch's report has a share of: what the sites answered
ANSWERS = (
    "downloader/response_status_count/",
    "downloader/request_count",
    "downloader/exception_count",
    "retry/count",
)
#: seconds until it is seen again whether Scrapy has done with a page
SOON = 0.02
#: seconds between two sweeps
EVERY = 300.0
#: maximum number of files that one sweep checks
MOST = 1_000
_PART = re.compile(r"\.b(?P<batch>\d+)\.a(?P<attempt>\d+)\.jl")


class LeaseReport:
    """The reports of one worker, and of each of its batches."""

    def __init__(self, job: Assignment) -> None:
        self._job = job
        self._started = time.time()
        #: counts of the batches that this worker has acked
        self._ended: Counter[str] = Counter(RequestLedger([]).progress())
        self._batches: Counter[str] = Counter()  #: how a leased batch has ended -> how many
        self._answers: Counter[str] = Counter()  #: that are in reports of batches
        #: what the report of each batch says of the project's components
        self.components: Mapping[str, list[str]] = {}
        self.trouble = ""  #: of a batch that could not be ended
        #: of a worker that introduces itself, the public half of its egg's key
        self.public: str | None = None
        self.unreached = False  #: the store cannot be used from here, and that will stay so
        self.closed_by = ""  #: the reason for which the project's own code has closed the spider

    def note_outcome(self, batch: BatchUnit, outcome: str) -> None:
        """Note what became of a batch; only an acked one counts in the worker's totals."""
        self._batches[outcome] += 1
        if outcome == "acked":
            self._ended.update(batch.ledger.progress())

    def batch_report(
        self, batch: BatchUnit, part: dict[str, Any] | None, reason: str, stats: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the final report of an attempt, as a job that was sent one batch would write it.

        What the sites answered is that since the report before, of whichever batch a page was: the
        sum is right.
        """
        number, attempt = batch.key
        now = Counter({name: value for name, value in stats.items() if name.startswith(ANSWERS)})
        answers = now - self._answers
        self._answers = now
        return {
            **self._head("ended", batch.started, batch=number, attempt=attempt),
            **batch.ledger.close(),
            "finish_reason": reason,
            "closed_by": self.closed_by,
            "problem": batch.problem,
            "part": part,
            **self.components,
            "feeds": [],
            "feeds_failed": 0,
            "stats": dict(answers),
        }

    def take_back(self, report: Mapping[str, Any]) -> None:
        """Note that the store has not taken this report of a batch; the next tells its share."""
        self._answers.subtract(report["stats"])

    def progress(self, held: Collection[BatchUnit]) -> dict[str, Any]:
        """Return the report of a worker that goes on and holds these batches."""
        sums = Counter(self._ended)
        for batch in held:
            sums.update(batch.ledger.progress())
        return {
            **self._head("running", self._started),
            **sums,
            "batches": {**self._batches, "held": len(held)},
        }

    def final(self, reason: str, problem: str, limit: str, stats: dict[str, Any]) -> dict[str, Any]:
        """Return the last report of the worker."""
        report = {
            **self.progress(()),
            "state": "ended",
            "finish_reason": reason,
            "closed_by": self.closed_by,
            "problem": problem or self.trouble,
            "limit": limit,
            "unreached": self.unreached,
        }
        if self.public is not None:
            report["public"] = self.public
        report["part"] = None
        report["stats"] = plain_stats(stats)
        return report

    def _head(self, state: str, started: float, **more: int) -> dict[str, Any]:
        return report_head(
            state, self._job.crawl, self._job.version, started, worker=self._job.name, **more
        )


class BatchAcker:
    """Keeps the batches that this worker has, and ends them."""

    def __init__(self, context: LeaseContext, report: LeaseReport) -> None:
        self._context = context
        self._client = context.client
        self._crawler = context.crawler
        self._report = report
        self._ending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._away = False  #: the store is lost: nothing can be written to it
        self.held: dict[tuple[int, int], BatchUnit] = {}
        #: held while a batch goes from those that are held to those that have ended
        self._parting = threading.Lock()
        #: no batch is acked before the project's handlers of `spider_idle` were called
        self.waits_for_idle = False

    def changed(self, unit: WorkUnit) -> None:
        """Ack the unit soon if nothing of it is left; call this when something of it has ended."""
        if unit.over and isinstance(unit, BatchUnit):
            # Not at once: what a middleware makes of an exception comes right after the callback's
            # own output.
            asyncio.get_running_loop().call_soon(self._end_if_over, unit)

    def progress(self) -> dict[str, Any]:
        """Return the report of the worker, in which each batch counts once; for any thread."""
        with self._parting:
            return self._report.progress(list(self.held.values()))

    def end_round(self) -> None:
        """Ack the batches that are over."""
        self.waits_for_idle = False
        for batch in list(self.held.values()):
            self.changed(batch)

    def _end_if_over(self, batch: BatchUnit) -> None:
        if self.waits_for_idle or not batch.over or batch.key not in self.held:
            return
        if any(_is_from(batch, request) for request in pages_in_work(self._crawler)):
            # A middleware beyond ours may yet make a request of its page, or a pipeline of its
            # item.
            asyncio.get_running_loop().call_later(SOON, self._end_if_over, batch)
        else:
            self._begin_end(batch, partial(self._end, batch, "finished"))

    def _begin_end(self, batch: BatchUnit, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin the end of a batch, unless it has begun: a batch ends once, whatever ends it.

        It may come to its own end while its worker, which ends, waits for the end of another one.
        """
        if batch.key not in self._ending:
            self._ending[batch.key] = asyncio.ensure_future(work())

    async def _end(self, batch: BatchUnit, reason: str) -> None:
        """Close a batch's part, report the batch to the store, and part from it."""
        self._context.tracker.leave(batch)
        outcome = "failed"
        is_known = True
        try:
            part = await asyncio.to_thread(batch.close_part)
            report = self._report.batch_report(batch, part, reason, self._crawler.stats.get_stats())
            report["changed"] = self._context.tracker.changed_attributes()
            is_good = reason == "finished" and not batch.problem
            is_known = False  # whatever fails now, the store may have taken the ack before
            outcome = await self._ack(batch, report, is_good=is_good)
            is_known = True
        except StoreLost as error:
            self._lose_store(str(error))
        except Exception as error:  # a batch that never ends would keep the worker for ever
            logger.exception("batch %d, attempt %d, cannot be ended", *batch.key)
            self._report.trouble = (
                f"Batch {batch.key[0]} could not be ended: {type(error).__name__}: {error}."
            )
            # Else its lease would be renewed for as long as this worker lives.
            self._client.release(batch.key)
        self._part_from(batch, outcome, is_known=is_known)

    async def _ack(self, batch: BatchUnit, report: dict[str, Any], *, is_good: bool) -> str:
        """Ack a batch with all that it has led to, and return how it has ended."""
        finds = batch.finds
        assert finds is not None
        misses = finds.take_misses() if is_good else finds.take_misses_of_no_page()
        # Before the ack: better twice than never; as the batch's own, which no walk forgets.
        await self._client.missed([replace(miss, batch=batch.key[0]) for miss in misses])
        events = batch.events(is_good=is_good)
        kept = await self._client.ack(batch.key, report, finds.found, finds.take_counts(), events)
        if kept is None:
            self._report.take_back(report)
            return "lost"
        count_found(self._crawler, kept)
        return "acked" if is_good else "failed"

    def _part_from(self, batch: BatchUnit, outcome: str, *, is_known: bool = True) -> None:
        """Have nothing more to do with a batch, of which this became, as far as is known."""
        self._ending.pop(batch.key, None)
        self._context.tracker.leave(batch, acked=outcome == "acked")
        if outcome != "acked" and is_known:
            batch.discard_part()
        with self._parting:
            self._report.note_outcome(batch, outcome)
            self.held.pop(batch.key, None)
        count(self._crawler, f"batches_{outcome}")
        count(self._crawler, "requests_left", batch.left)
        self._context.notifier.wake()

    def lost(self, key: Key, loss: LeaseLoss) -> None:
        """Give up a batch whose lease is lost: no request of it is made, and nothing reported."""
        batch = self.held.get(key)
        if batch is None or batch.key in self._ending:  # the ack itself will find out
            return
        self._client.release(key)
        self._part_from(batch, "lost")
        if loss is LeaseLoss.AWAY:
            self._lose_store("it has not answered for as long as a lease lasts")

    def _lose_store(self, why: str) -> None:
        if not self._away:
            self._away = True
            self._context.lose_store(why)

    async def finish(self, reason: str) -> None:
        """End the worker: ack complete batches, give back those not begun, and report the rest."""
        self._report.closed_by = reason if meaning(reason).closes_crawl else ""
        while self._ending:
            await asyncio.wait(list(self._ending.values()))
        for batch in list(self.held.values()):
            if batch.key not in self.held:  # it has ended by itself, or its lease was lost
                continue
            self._begin_end(batch, partial(self._end_early, batch, reason))
            await self._ending[batch.key]
        try:
            for leased in await self._client.unclaimed():
                await self._give_back((leased.batch.number, leased.attempt), reason)
        except StoreLost as error:
            self._lose_store(str(error))

    async def _end_early(self, batch: BatchUnit, reason: str) -> None:
        """End a batch as far as it came, or give it back if nothing of it was begun."""
        if self._away:
            self._part_from(batch, "lost")
        elif batch.touched:
            await self._end(batch, self._reason_at_end(batch, reason))
        else:
            # Before it is given back: the next worker of it on this node writes a part of the same
            # name.
            batch.discard_part()
            is_back = await self._give_back(batch.key, reason)
            self._part_from(batch, "given_back" if is_back else "lost")

    def _reason_at_end(self, batch: BatchUnit, reason: str) -> str:
        """Return the finish reason of a batch whose worker ends for this reason."""
        if batch.over and not self.waits_for_idle:
            return FinishReason.FINISHED.value
        # A strategy gets the events of a whole batch, and a handler of `spider_idle` may have left
        # its work for later.
        keeps_part = not (self._context.strategy or self.waits_for_idle)
        if batch.settle_rest(reason, keeps_part=keeps_part):
            return FinishReason.FINISHED.value
        # Scrapy before 2.19 calls it finished when its start has failed.
        is_unsettled = reason == FinishReason.FINISHED.value
        return FinishReason.SHUTDOWN.value if is_unsettled else reason

    async def _give_back(self, key: tuple[int, int], reason: str) -> bool:
        """Give back an attempt of which nothing was made; say whether the store has taken it."""
        try:
            return await self._client.give_back(key, f"its worker has ended ({reason})")
        except StoreLost as error:
            self._lose_store(str(error))
            return False


def _is_from(batch: BatchUnit, request: Request) -> bool:
    mark = mark_of(request)
    return mark is not None and mark.key == batch.key


async def keep_sweeping(
    folder: Path, crawl: str, batch: Callable[[int], Awaitable[Batch | None]]
) -> None:
    """Sweep now, and then from time to time, until it is cancelled."""
    while True:
        removed = await sweep(folder, crawl, batch)
        if removed:
            logger.info("%d files whose items are home were removed from %s", removed, folder)
        await asyncio.sleep(EVERY)


async def sweep(folder: Path, crawl: str, batch: Callable[[int], Awaitable[Batch | None]]) -> int:
    """Remove a frontier's parts whose batch is done in the store, of this attempt or a later one.

    `batch` gives the batch of a number as the store has it; None where the store does not say.
    Returns how many were removed.
    """
    removed = 0
    paths = await asyncio.to_thread(lambda: sorted(folder.glob(f"{crawl}.b*.jl")))
    for path in paths[:MOST]:
        found = _PART.fullmatch(path.name.removeprefix(crawl))
        if found is None:
            continue
        row = await batch(int(found["batch"]))
        if row is None or row.state is not BatchState.DONE:
            continue
        if int(found["attempt"]) <= row.attempts:
            path.unlink(missing_ok=True)  # another worker of this node may sweep as well
            removed += 1
    return removed
