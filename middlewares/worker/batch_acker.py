"""How a leasing worker's batches end and are reported: acked with their part, given back, or lost with their lease.

And how parts leave their node once their batch is done: a frontier may never finish, and its files would grow for ever.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scrapy import Request

from scrapyd_dist.batches import Batch, BatchState, FinishReason, meaning, not_made

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
#: seconds between two sweeps, and files that are looked at in one
EVERY, MOST = 300.0, 1_000
_PART = re.compile(r"\.b(?P<batch>\d+)\.a(?P<attempt>\d+)\.jl")


class LeaseReport:
    """The reports of one worker, and of each of its batches."""

    def __init__(self, job: Assignment) -> None:
        self._job = job
        self._started = time.time()
        self._ended: Counter[str] = Counter(
            RequestLedger([]).progress()
        )  #: of batches that this worker has ended
        self._batches: Counter[str] = Counter()  #: fate of a leased batch -> how many
        self._answers: Counter[str] = Counter()  #: that reports of batches have told
        self.trouble = ""  #: of a batch that could not be ended
        self.public: str | None = (
            None  #: of a worker that introduces itself, the public half of its egg's key
        )
        self.unreached = False  #: the store cannot be used from here, and that will stay so
        self.closed_by = ""  #: the reason for which the project's own code has closed the spider

    def fate(self, batch: BatchUnit, fate: str) -> None:
        """What became of a batch; only an acked one counts in the worker's totals from now on."""
        self._batches[fate] += 1
        if fate == "acked":
            self._ended.update(batch.ledger.progress())

    def of_batch(
        self, batch: BatchUnit, part: dict[str, Any] | None, reason: str, stats: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The final report of an attempt, as a job that was sent one batch would write it.

        What the sites answered is that since the report before, of whichever batch a page was: the sum is right.
        """
        number, attempt = batch.key
        now = Counter({name: value for name, value in stats.items() if name.startswith(ANSWERS)})
        answers, self._answers = now - self._answers, now
        return {
            **self._head("ended", batch.started, batch=number, attempt=attempt),
            **batch.ledger.close(),
            "finish_reason": reason,
            "closed_by": self.closed_by,
            "problem": batch.problem,
            "part": part,
            "feeds": [],
            "feeds_failed": 0,
            "stats": dict(answers),
        }

    def progress(self, held: Collection[BatchUnit]) -> dict[str, Any]:
        sums = Counter(self._ended)
        for batch in held:
            sums.update(batch.ledger.progress())
        return {
            **self._head("running", self._started),
            **sums,
            "batches": {**self._batches, "held": len(held)},
        }

    def final(self, reason: str, problem: str, limit: str, stats: dict[str, Any]) -> dict[str, Any]:
        return {
            **self.progress(()),
            "state": "ended",
            "finish_reason": reason,
            "closed_by": self.closed_by,
            "problem": problem or self.trouble,
            "limit": limit,
            "unreached": self.unreached,
            **({} if self.public is None else {"public": self.public}),
            "part": None,
            "stats": plain_stats(stats),
        }

    def _head(self, state: str, started: float, **more: int) -> dict[str, Any]:
        return report_head(
            state, self._job.crawl, self._job.version, started, worker=self._job.name, **more
        )


class BatchAcker:
    """The batches that this worker has, and their ends."""

    def __init__(self, context: LeaseContext, report: LeaseReport) -> None:
        self._context, self._client, self._crawler, self._report = (
            context,
            context.client,
            context.crawler,
            report,
        )
        self._ending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._away = False  #: the store is lost: nothing can be told to it
        self.held: dict[tuple[int, int], BatchUnit] = {}
        self.waits_for_idle = (
            False  #: no batch is acked before the project's handlers of `spider_idle` were called
        )

    def changed(self, begun: WorkUnit) -> None:
        """Something of it has ended."""
        if begun.over and isinstance(begun, BatchUnit):
            # Not at once: what a middleware makes of an exception comes right after the callback's own output.
            asyncio.get_running_loop().call_soon(self._end_if_over, begun)

    def end_round(self) -> None:
        """Ack the batches that are over."""
        self.waits_for_idle = False
        for batch in list(self.held.values()):
            self.changed(batch)

    def _end_if_over(self, batch: BatchUnit) -> None:
        if (
            self.waits_for_idle
            or not batch.over
            or batch.key not in self.held
            or batch.key in self._ending
        ):
            return
        if any(_is_of(request, batch) for request in pages_in_work(self._crawler)):
            # A middleware beyond ours may yet make a request of its page, or a pipeline of its item.
            asyncio.get_running_loop().call_later(SOON, self._end_if_over, batch)
        else:
            self._ending[batch.key] = asyncio.ensure_future(self._end(batch, "finished"))

    async def _end(self, batch: BatchUnit, reason: str) -> None:
        self._context.tracker.leave(batch)
        fate = "failed"
        try:
            part = await asyncio.to_thread(batch.close_part)
            report = self._report.of_batch(batch, part, reason, self._crawler.stats.get_stats())
            report["changed"] = self._context.tracker.changed_attributes()
            finds = batch.finds
            assert finds is not None
            good = reason == "finished" and not batch.problem
            if (
                good
            ):  # before the ack: better twice than never; as the batch's own, which no walk forgets
                await self._client.missed(
                    [replace(one, batch=batch.key[0]) for one in finds.take_misses()]
                )
            # One that is not good is made again, and told of then.
            events = batch.events() if good else ()
            kept = await self._client.ack(
                batch.key, report, finds.found, finds.take_counts(), events
            )
            if kept is None:
                fate = "lost"
            else:
                count_found(self._crawler, kept)
                fate = "acked" if good else fate
        except StoreLost as error:
            self._lose_store(str(error))
        except Exception as error:  # a batch that never ends would keep the worker for ever
            logger.exception("batch %d, attempt %d, cannot be ended", *batch.key)
            self._report.trouble = (
                f"Batch {batch.key[0]} could not be ended: {type(error).__name__}: {error}."
            )
            self._client.release(
                batch.key
            )  # else its lease would be renewed for as long as this worker lives
        self._part_from(batch, fate)

    def _part_from(self, batch: BatchUnit, fate: str) -> None:
        self._ending.pop(batch.key, None)
        self._context.tracker.leave(batch, acked=fate == "acked")
        if fate != "acked":
            batch.discard_part()
        self._report.fate(batch, fate)
        count(self._crawler, f"batches_{fate}")
        count(self._crawler, "requests_left", batch.left)
        self.held.pop(batch.key, None)
        self._context.notifier.tell()

    def lost(self, key: Key, loss: LeaseLoss) -> None:
        """A lease is lost: no request of its batch is made any more, and nothing is told of it."""
        batch = self.held.get(key)
        if batch is None or batch.key in self._ending:  # the ack itself will tell
            return
        self._part_from(batch, "lost")
        if loss is LeaseLoss.AWAY:
            self._lose_store("it has not answered for as long as a lease lasts")

    def _lose_store(self, why: str) -> None:
        if not self._away:
            self._away = True
            self._context.lose_store(why)

    async def finish(self, reason: str) -> None:
        """The worker ends: ack complete batches, give back those not begun, and report how far the rest came."""
        self._report.closed_by = reason if meaning(reason).closes_crawl else ""
        while self._ending:
            await asyncio.wait(list(self._ending.values()))
        for batch in list(self.held.values()):
            if batch.key not in self.held:  # its lease was lost meanwhile
                continue
            if self._away:
                self._part_from(batch, "lost")
            elif batch.touched:
                # Under its key, as any other: the lease that ends with the ack is not one that was lost.
                done = batch.over and not self.waits_for_idle
                work = self._end(batch, "finished" if done else self._cut_short(batch, reason))
                self._ending[batch.key] = task = asyncio.ensure_future(work)
                await task
            else:
                batch.discard_part()  # before: the next worker of it on this node writes a part of the same name
                self._part_from(
                    batch, "given_back" if await self._give_back(batch.key, reason) else "lost"
                )
        try:
            for one in await self._client.unclaimed():
                await self._give_back((one.batch.number, one.attempt), reason)
        except StoreLost as error:
            self._lose_store(str(error))

    def _cut_short(self, batch: BatchUnit, reason: str) -> str:
        """The finish reason of a batch that is not over; what the settings ended is done as far as that was wanted.

        Scrapy before 2.19 calls it finished when its start has failed; what was not made has not failed.
        """
        ends_crawl = reason == FinishReason.GOAL.value or meaning(reason).closes_crawl
        is_told_to_end = reason == FinishReason.SHUTDOWN.value
        if ends_crawl or (is_told_to_end and self._is_kept_in_part(batch)):
            batch.put_off_rest()
            return "finished"
        if meaning(reason).by_settings:
            batch.ledger.rest = not_made(reason)
            return "finished"
        return "shutdown" if reason == "finished" else reason

    def _is_kept_in_part(self, batch: BatchUnit) -> bool:
        """Whether what this worker has of a batch is kept, and the rest is for another.

        A strategy is told of a whole batch, and a handler of `spider_idle` may have left its work for later.
        """
        return batch.can_be_cut_short and not (self._context.strategy or self.waits_for_idle)

    async def _give_back(self, key: tuple[int, int], reason: str) -> bool:
        try:
            return await self._client.give_back(key, f"its worker has ended ({reason})")
        except StoreLost as error:
            self._lose_store(str(error))
            return False


def _is_of(request: Request, batch: BatchUnit) -> bool:
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
    """Remove a frontier's parts whose batch is done in the store, of this attempt or a later one; how many.

    `batch` gives the batch of a number as the store has it; None where the store does not say.
    """
    removed = 0
    for path in (await asyncio.to_thread(lambda: sorted(folder.glob(f"{crawl}.b*.jl"))))[:MOST]:
        found = _PART.fullmatch(path.name.removeprefix(crawl))
        row = await batch(int(found["batch"])) if found else None
        if (
            found
            and row is not None
            and row.state is BatchState.DONE
            and int(found["attempt"]) <= row.attempts
        ):
            path.unlink(missing_ok=True)  # another worker of this node may sweep as well
            removed += 1
    return removed
