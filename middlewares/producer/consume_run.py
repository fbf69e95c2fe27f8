"""Keep workers running at a frontier whose consumption has begun, and bring home what they did.

The rule it keeps: the next process takes up what this one leaves behind (workers, parts on their
way).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import INTERRUPTED, PARTIAL, TIME_UP, ConfigError, DistError, StoreError
from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.goals import in_words
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import crawl_exit_code

from .consume_request import ConsumeRequest
from .crawl_findings import (
    describe_disabled,
    describe_own_items,
    describe_stray_items,
    partly_off,
    values_as_text,
)
from .crawl_repository import CrawlRepository
from .run_delivery import Delivered, NotDelivered, RunDelivery
from .run_order import BaseRun
from .status_reporter import FrontierReporter
from .strategy_process import StrategyThread

logger = logging.getLogger(__name__)
#: the warning of a frontier whose pages gave no item
NO_ITEMS = (
    "not one page gave an item. Pages of URLs that were added without a callback go to parse(),"
    " unless the settings name a target: `sdist frontier add --spider-callback NAME`, or"
    " DISTRIBUTED_TARGET_CALLBACKS"
)


def in_use(frontier: str) -> ConfigError:
    """Return the error of a frontier that another process consumes."""
    return ConfigError(
        f"Another process keeps the workers of the frontier {frontier} running now, and two would"
        f" start too many. `sdist status {frontier}` says which one; stop it first, or let it do"
        " the work."
    )


async def check_mine(repository: CrawlRepository) -> None:
    """Raise ConfigError if the frontier is another process's by now."""
    if not await repository.is_mine():
        raise in_use(repository.id)


async def end_row(
    repository: CrawlRepository,
    state: CrawlState,
    code: int,
    message: str,
    document: dict[str, Any] | None = None,
) -> None:
    """Write down that this process keeps no workers running; another one's row stays as it is."""
    with suppress(DistError):
        if await repository.is_mine():
            await repository.end(state, code=code, message=message, summary=document)


class ConsumeRun(BaseRun):
    """Keeps workers running at a frontier whose consumption has begun."""

    def __init__(
        self,
        request: ConsumeRequest,
        reporter: FrontierReporter,
        delivery: RunDelivery,
        *,
        strategy: StrategyThread | None,
        interrupted: asyncio.Event,
        max_failed: int,
    ) -> None:
        super().__init__(reporter)
        self._request = request
        self._reporter = reporter
        self._delivery = delivery
        self._strategy = strategy  #: decides beside the workers what is requested
        self._interrupted = interrupted  #: by Ctrl-C or `sdist cancel`
        self._max_failed = max_failed  #: failed requests with which the work is still good
        self._failure = asyncio.Event()  #: a task of this run has failed

    async def keep(self) -> int:
        """Keep workers running until nothing is left to do, they cannot go on, or Ctrl-C.

        Returns the exit code.
        """
        self.run_clock()
        if self._strategy is not None:
            self._strategy.start()
            self.tasks.start("strategy", self._strategy.ended)
        ends = (self._scheduler.ended(), self._interrupted.wait(), self._failure.wait())
        waits = [asyncio.ensure_future(end) for end in ends]
        try:
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                await self.tasks.settle()
                return await self._end()
            except StoreError as error:
                raise StoreError(f"{error} {self._how_to_go_on()}") from error
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
                await self.close("")
        except BaseException as error:
            await self._let_go(CrawlState.STOPPED, 1, str(error))
            raise

    async def tick(self) -> None:
        """Obey the users' commands, and write the status down; ConfigError if the row is lost."""
        await check_mine(self.repository)
        await self.obey()
        await self._reporter.write_status(self.repository.state)

    def cancel(self) -> None:
        """End in good order, as a user has asked for."""
        self._interrupted.set()

    def failed(self, error: BaseException) -> None:
        """Note that a task failed, and end the run."""
        self._failure.set()  # `keep` raises it

    async def finish(self, reason: str) -> None:
        """Report no more, and start no worker any more."""
        await self.stop_clock()
        if self._strategy is not None:
            await self._strategy.stop()
        await self._scheduler.stop(reason)
        self._reporter.close()

    # end

    async def _end(self) -> int:
        scheduler = self._scheduler
        if self._strategy is not None:
            await self._strategy.stop()
        if self._interrupted.is_set():
            return await self._stop("Interrupted", INTERRUPTED)
        if not scheduler.state.stopped or scheduler.incomplete:
            return await self._deliver()
        limit = self._request.scaling.max_time
        time_up = limit and not scheduler.failed and time.monotonic() - self._reporter.begun > limit
        code = TIME_UP if time_up else scheduler.stop_code
        return await self._stop(scheduler.state.stopped, code)

    async def _deliver(self) -> int:
        """Merge what came home, if that was asked for: nothing is left to do here."""
        repository = self.repository
        reporter = self._reporter
        backlog = await repository.thread(repository.thread.store.backlog, repository.id)
        if self._request.scaling.every == 0 and not backlog.drained:
            return await self._stop("The workers are started", 0)
        await self._scheduler.left()
        await self._scheduler.make_parts_whole()
        await self._scheduler.stop("")
        await reporter.write_status(CrawlState.COLLECTING)
        try:
            delivered = await self._delivery.deliver()
        except NotDelivered as error:
            message = (
                f"{error} All else is done; the same command {error.again} them:"
                f" {self._request.command}"
            )
            return await self._let_go(CrawlState.STOPPED, PARTIAL, message)
        as_text = map(str, values_as_text(delivered.accepted))
        off = describe_disabled(delivered.accepted)
        reporter.warn(*delivered.delivery.warnings, *as_text, *off, *delivered.logins)
        return await self._close(backlog, delivered)

    async def _close(self, backlog: Backlog, delivered: Delivered) -> int:
        """Judge the work by what was delivered, and give the row its end."""
        if self._scheduler.incomplete:
            message = (
                f"{self._scheduler.state.stopped} All that it left here is done. Start it again, it"
                f" goes on in its place; and then: {self._request.command}"
            )
            return await self._let_go(CrawlState.INCOMPLETE, PARTIAL, message)
        losses = (
            delivered.delivery.lost,
            delivered.logins,
            self._scheduler.state.stray_items,
            partly_off(delivered.accepted),
        )
        code = self._judge(has_losses=any(losses))
        if self._scheduler.state.goal:
            return await self._let_go(CrawlState.STOPPED, code, self._describe_goal(backlog))
        if backlog.finished:
            return await self._let_go(CrawlState.FINISHED, code, "")
        prefix = self._request.scaling.prefix
        message = f"Nothing is left in the slots {prefix}*, and others wait."
        return await self._let_go(CrawlState.STOPPED, code, message)

    def _judge(self, *, has_losses: bool) -> int:
        """Return the exit code of the work that is done, with a warning if it gave no item."""
        summary = self._reporter.summary(CrawlState.FINISHED)
        may_lack_items = self._request.rows or self._request.strategy
        if summary["requests"]["done"] and not summary["items"] and not may_lack_items:
            self._reporter.warn(NO_ITEMS)
        code = crawl_exit_code(summary, max_failed=self._max_failed)
        if not code and has_losses:
            return PARTIAL
        return code

    def _describe_goal(self, backlog: Backlog) -> str:
        """Say which goal is reached, and what is left."""
        state = self._scheduler.state
        reached = in_words(state.goal, state.spec.goals[state.goal])
        requests = counted(backlog.waiting_requests, "request waits", "requests wait")
        batches = counted(backlog.waiting, "batch", "batches")
        return f"A goal is reached: {reached}. {requests} in {batches}."

    async def _stop(self, why: str, code: int) -> int:
        """Leave before the end of the frontier's work."""
        await self._scheduler.stop(why)
        message = f"{why.rstrip('.')}. {self._how_to_go_on()}"
        return await self._let_go(CrawlState.STOPPED, code, message)

    def _how_to_go_on(self) -> str:
        return (
            "Jobs that run go on by themselves; the same command takes them up again, and brings"
            f" their items home: {self._request.command}"
        )

    async def _let_go(self, state: CrawlState, code: int, message: str) -> int:
        """Give the frontier's row its end, and return the exit code."""
        await self.stop_clock()
        state_of_work = self._scheduler.state
        self._reporter.warn(*describe_stray_items(state_of_work.stray_items))
        self._reporter.warn(*describe_own_items(state_of_work.own_items))
        self._reporter.snapshot.message = message
        await end_row(self.repository, state, code, message, self._reporter.summary(state))
        return code
