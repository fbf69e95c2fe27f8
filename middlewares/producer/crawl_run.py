"""Run a crawl that has begun: find, wait for batches, deliver, and close in order.

The rule it keeps: the producer ends only when every batch has ended and the output is closed, or
says how to go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy.crawler import Crawler

from scrapyd_dist.batches import CANCEL, Attempt, CrawlState, FinishReason, Miss, meaning
from scrapyd_dist.differences import Trait
from scrapyd_dist.errors import (
    INTERRUPTED,
    PARTIAL,
    DistError,
    StoreEmptied,
    StoreError,
    as_store_error,
)
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.settings import SettingReader

from ..engine_compat import close_spider, under_way, watch_idle_reason
from ..goal_keeper import GoalKeeper
from ..pause_gate import PauseGate
from ..targets import Target
from ..used_components import PASSED_LISTS, find_used_components
from .completion_hooks import notify_on_finish
from .crawl_findings import ChangedAttributes, found_trait, walk_findings
from .crawl_nodes import CrawlNodes
from .crawl_verdict import CrawlVerdict
from .difference_finder import own_components
from .discovery import BatchSealer
from .lifecycle import TICK, Fault, ending, faults, process_exit, signals
from .run_delivery import NotDelivered, RunDelivery
from .run_order import BaseRun, RunPhase
from .start_watch import StartWatch
from .status_reporter import StatusReporter

logger = logging.getLogger(__name__)
#: why a crawl ends that `sdist stop` or the like has stopped
STOPPED_BY_USER = "The crawl was stopped by a user."


class CrawlRun(BaseRun):
    """Runs one crawl, from its first request to the merged file."""

    def __init__(
        self,
        crawler: Crawler,
        target: Target,
        nodes: CrawlNodes,
        reporter: StatusReporter,
        delivery: RunDelivery,
        *,
        on_finish: str,
    ) -> None:
        super().__init__(reporter)
        self._crawler = crawler
        self.target = target
        self.reporter = reporter
        self._delivery = delivery
        self.options = nodes.request.options
        self._on_finish = on_finish
        self.index = reporter.index
        self.capture = reporter.capture
        self._own = reporter.own
        self.sealer = BatchSealer(
            capture=self.capture,
            repository=self.repository,
            scheduler=self._scheduler,
            tasks=self.tasks,
            key=nodes.prepared.key,
            leases=self.options.leases,
        )
        self._cancelled = False  #: a user has cancelled the crawl
        if self.capture.room.is_used_up:
            self.index.end_early(FinishReason.LIMITED.value)
        self.start_watch = StartWatch()
        self._start_fault = ""  #: how the spider's own start broke off
        self._idle_reason = watch_idle_reason(crawler)
        assert crawler.spider
        travelling = SettingReader(crawler.settings).value("DISTRIBUTED_SPIDER_ATTRIBUTES")
        self._target_callbacks = target.methods(crawler.spider)
        self._leaves_links = bool(target.unfollowed_rules(crawler.spider))
        if not self.options.leases:
            travelling = ()
        self._attributes = ChangedAttributes(
            crawler.spider, travelling, own_components(crawler.settings)
        )
        #: jobs did not have the values that their callbacks read; set when all is found
        self._has_wrong_values = False
        self.goals = GoalKeeper.for_crawler(crawler)
        if self.goals is not None:
            self.goals.open(
                self.repository.thread, self.repository.id, lambda _: self._goal_reached()
            )

    # find

    @property
    def finds_no_more(self) -> bool:
        """Return whether nothing more is to be found."""
        return self.index.early_end is not None

    def find_no_more(self, reason: str = FinishReason.LIMITED.value) -> None:
        """Find nothing more: what is found is worked on, and then the crawl is finished."""
        if not self.finds_no_more:
            self.index.end_early(reason)
            close_spider(self._crawler, FinishReason.LIMITED.value)

    def _goal_reached(self) -> None:
        """Walk no further; what is not walked is walked when the crawl goes on."""
        if not self.index.walked:
            self.find_no_more(FinishReason.GOAL.value)

    def own_item(self, item: Any, shard: int, url: str) -> None:
        """Keep an item of the producer's own pages, which are those of `shard`."""
        try:
            self._own.add(item, shard)
        except OSError:  # the file cannot be written at all
            raise
        except Exception as error:  # noqa: BLE001 - a serializer of the project's may raise anything
            self.reporter.local_missed(url, "failed", f"an item of it has no JSON form: {error}")

    def start_failed(self, error: Exception) -> None:
        """Note that the spider's own start broke off.

        Scrapy ends then as if the spider had had no more to start with.
        """
        self._start_fault = (
            f"The spider's start failed: {Fault.from_exception(error)}. The whole traceback is in"
            f" {self._name_log()}."
        )

    def _name_log(self) -> str:
        """Say where a traceback of this process is."""
        log = self._crawler.settings.get("LOG_FILE") or self.repository.folder / "producer.log"
        return str(log) if Path(log).exists() else "the log of this process"

    # the clock

    async def tick(self) -> None:
        """Cut the batches that are due, write the status down, and obey the users' commands."""
        if self.is_over:
            return
        self.sealer.seal_due()
        self._own.flush()
        await self.reporter.write_down()
        if not self.is_over:
            await self.reporter.write_status(self.repository.state)
        self.reporter.log_now_and_then()
        await self.obey()
        if self.start_watch.waits_in_vain(has_work=self._has_work()):
            self.reporter.differ(found_trait(Trait.START_WAITS))
        if self._scheduler.enough and not self.index.walked:
            self.find_no_more(self._scheduler.enough)
        if self._scheduler.state.ends_early:
            self._goal_reached()
        if self._scheduler.state.stopped:
            self.hold()

    def _has_work(self) -> bool:
        """Return whether anything is to be done, here or on the nodes, besides the start."""
        backlog = self._scheduler.state.backlog
        buffered = len(self.capture.cutter)
        return bool(buffered or backlog.waiting or backlog.out or under_way(self._crawler))

    def cancel(self) -> None:
        """Stop, as a user has asked for; the command cancels the jobs once no more are sent."""
        if self._cancelled:
            return
        self._cancelled = True
        if self._scheduler.state.paused:
            self.rest(paused=False)  # an engine that rests does not close
        self._scheduler.state.stop_now(STOPPED_BY_USER)

    def rest(self, *, paused: bool) -> None:
        """Give out no more work, and let no request leave; or go on with both."""
        super().rest(paused=paused)
        PauseGate.for_crawler(self._crawler).rest(paused)

    def failed(self, error: BaseException) -> None:
        """Note that a task failed, and complete what can be completed."""
        super().failed(error)
        self.hold()

    # wait

    def hold(self) -> bool:
        """Return whether the idle spider must stay open for the batches that are out."""
        if self.phase is RunPhase.RUNNING:  # once it closes, `finish` says what is completed
            self.tasks.start("complete", self._complete)
        return not self.is_over

    async def _complete(self) -> None:
        """Wait for the batches, merge, and let the spider close.

        The index is walked, or no node takes work any more.
        """
        try:
            await self._seal_as_wanted()
            await self._seal_rest()
            if not self._scheduler.state.stopped:
                await self._found_all()
                await self._scheduler.ended()
            await self._end()
        except Exception as error:  # noqa: BLE001  (whatever it is, the crawl ends in order)
            await self._break_off(as_store_error(error))
        closes_spider = self.phase is RunPhase.RUNNING
        self.phase = RunPhase.ENDED
        if closes_spider:
            close_spider(self._crawler, self._idle_reason())

    async def _break_off(self, error: BaseException) -> None:
        """End in order what cannot be finished, as far as the store lets it."""
        reason = str(error).rstrip(".")
        if isinstance(error, StoreEmptied):
            # There is nothing to go on with, and no row to write it into.
            self.reporter.snapshot.message = f"{reason} ({self.repository.parts})."
            logger.error("%s", self.reporter.snapshot.message)
            process_exit.set(error.exit_code)
            return
        if not isinstance(error, StoreError):
            logger.error("The crawl cannot be finished", exc_info=error)
            reason = f"scrapyd-dist itself failed: {type(error).__name__}: {error}"
        with suppress(DistError):  # the store may be what failed; the exit code is set by then
            await self._stop(f"{reason}.", 1)

    async def _seal_as_wanted(self) -> None:
        """Cut what is in no batch yet when the fleet can use it, as before; all is found."""
        self.index.walked = True
        # What workers lease may wait in the store.
        held_back = self.options.batch_adapt and not self.options.leases
        state = self._scheduler.state
        while held_back and not (state.stopped or state.ends_early or self.tasks.fault):
            self.sealer.seal_due()
            if len(self.capture.cutter) == 0:
                return
            await asyncio.sleep(TICK / 2)

    async def _seal_rest(self) -> None:
        self.sealer.seal_rest()
        # What could not be sealed is found again: its shard stays unfinished.
        await self.tasks.settle()
        await self.reporter.write_down()

    async def _found_all(self) -> None:
        index = self.index
        losses, ends = index.close()
        self.repository.missed(*(Miss(url="", kind="index", reason=text) for text in losses))
        self.reporter.warn(*self.capture.undeliverable(), *losses, *ends)
        await self.reporter.write_down()
        callbacks = self.capture.callbacks
        is_wrong = self._attributes.are_surely_wrong(callbacks)
        self._has_wrong_values = is_wrong or self.capture.shared.lose_items
        changed = self._attributes.differing(callbacks)
        self.reporter.differ(*changed, *walk_findings(index, self.capture, self.repository.counts))
        if not index.goes_on_later:
            await self.repository.finish_shards([shard.number for shard in index.unfinished()])
        await self.reporter.write_status(CrawlState.WORKING)
        self._scheduler.no_more()

    async def _end(self) -> None:
        await self.reporter.write_down()  # with what workers have found up to their last batch
        if self._scheduler.state.stopped:
            code = self._scheduler.stop_code
            if self._cancelled or signals.came:
                code = INTERRUPTED
            state = CrawlState.INCOMPLETE if self._scheduler.incomplete else CrawlState.STOPPED
            await self._stop(self._scheduler.state.stopped, code, state)
        elif self.index.goes_on_later and not self._scheduler.state.ends_early:
            await self._stop(
                "The walk over the index was broken off: the store was away, or a worker died whose"
                " work had counted for a goal.",
                3,
            )
        elif not self.options.limits.wait:
            await self._stop(
                "All batches are sent, and nothing waits for them (DISTRIBUTED_WAIT is off).", 0
            )
        else:
            await self._deliver()

    async def _deliver(self) -> None:
        """Write the output, judge the crawl by what it has, and close its row."""
        await self.reporter.write_status(CrawlState.COLLECTING)
        self._own.close()
        lost = await self._scheduler.make_parts_whole()
        if await self._is_to_crawl_again(lost):
            return
        try:
            # The pages of a walk that goes on later are walked again.
            delivered = await self._delivery.deliver(publishes_own=not self.index.goes_on_later)
        except NotDelivered as error:
            await self._scheduler.left()
            await self._stop(str(error), PARTIAL)
            return
        verdict = CrawlVerdict(
            reporter=self.reporter,
            options=self.options,
            delivered=delivered,
            attributes=self._attributes,
            callbacks=self._target_callbacks,
            leaves_links=self._leaves_links,
            index_pages=self.capture.index_pages,
            start_fault=self._start_fault,
            has_wrong_values=self._has_wrong_values,
            components=find_used_components(self._crawler).enabled,
            passed_components=find_used_components(self._crawler, PASSED_LISTS).enabled,
        )
        await verdict.report()
        await self._scheduler.left()
        await self._close_row(CrawlState.FINISHED, await verdict.decide_exit_code())

    async def _is_to_crawl_again(self, lost: Sequence[Attempt]) -> bool:
        """Stop if batches have to be crawled again, as their parts are nowhere any more.

        What was delivered elsewhere is there, and would be there twice. Of a crawl that its spider
        has closed, all that was left would be crawled as well.
        """
        is_closed = bool(self._scheduler.state.closed_by)
        if not lost or is_closed or self.reporter.publisher is not None:
            return False
        reopened = await self._scheduler.reopen(lost)
        if not reopened:
            return False
        parts = counted(len(reopened), "part is", "parts are")
        await self._scheduler.left()
        await self._stop(
            f"{parts} damaged or gone in {self.repository.parts}, and not on the nodes any more:"
            " the requests of these batches wait to be crawled again.",
            PARTIAL,
        )
        return True

    # close

    async def close(self, reason: str) -> None:
        """Close with the spider, for whatever reason; called again when the engine has stopped."""
        if self.phase is RunPhase.CLOSING and self.finds_no_more and signals.came:
            why, _ = await self._explain_end("shutdown")
            self._scheduler.state.stop_now(why)
        await super().close(reason)

    async def finish(self, reason: str) -> None:
        """Complete the crawl if its settings closed the spider; else stop it if it is not complete.

        Then everything that the crawl has open is closed.
        """
        if self.phase is RunPhase.RUNNING:
            self.phase = RunPhase.CLOSING
        ends_walk = meaning(reason).by_settings or meaning(reason).closes_crawl
        if self.phase is RunPhase.CLOSING and not signals.came and ends_walk:
            process_exit.set(INTERRUPTED)  # as in `_give_up`
            if not self.index.walked:
                self.index.end_early(reason)
            await self.tasks.start("complete", self._complete)
        if self.phase is RunPhase.CLOSING:
            await self._give_up(reason)
        else:
            await self._scheduler.stop("")
        await self.stop_clock()
        if self.goals is not None:
            await self.goals.close()
        self.reporter.close()
        await self._tell_on_finish()
        self._scheduler.state.sender.close()
        self.repository.thread.close()

    async def _give_up(self, reason: str) -> None:
        """Stop a crawl that is not complete, and keep what was found."""
        # A second signal may end the process at any of the waits below.
        process_exit.set(INTERRUPTED)
        await self.tasks.cancel("complete")
        try:
            await self._seal_rest()
        except Exception:
            logger.exception("Not everything that was found could be kept; it will be found again")
        why, code = await self._explain_end(reason)
        await self._scheduler.stop(why)
        self._own.close()
        await self._stop(self._scheduler.state.stopped, code)
        self.phase = RunPhase.ENDED

    async def _explain_end(self, reason: str) -> tuple[str, int]:
        """Return why the spider was closed before the crawl was done, and the exit code."""
        why, code = ending(reason, self._name_log())
        if signals.came:
            with suppress(DistError):
                if await self.repository.wanted() == CANCEL:
                    why = STOPPED_BY_USER
        return why, code

    async def _tell_on_finish(self) -> None:
        """Notify DISTRIBUTED_ON_FINISH; its failure is a warning in the crawl's summary."""
        document = await self._describe_end()
        wrong = await asyncio.to_thread(notify_on_finish, self._on_finish, document)
        if wrong:
            self.reporter.warn(wrong)
            summary = self.reporter.summary(self.repository.state)
            with suppress(DistError):  # the crawl itself has ended well
                await self.repository.update(summary=summary)

    async def _describe_end(self) -> dict[str, Any]:
        """Return the summary of the crawl at its end; without its moments if the store is away."""
        document = self.reporter.summary(self.repository.state)
        document["exit_code"] = process_exit.code
        with suppress(DistError):
            return {**summary_of(await self.repository.read_row()), **document}
        return document

    async def _stop(self, reason: str, code: int, state: CrawlState = CrawlState.STOPPED) -> None:
        command = f"sdist resume {self.repository.id}"
        kept = _describe_kept(self._scheduler.state.members, command)
        how = f"go on with: {command}"
        if code == 1 and faults.last is not None:
            how = f"go on, once the code is mended, with: {command} --new-code"
        message = f"{reason} What was found is kept{kept}; {how}"
        self.reporter.snapshot.message = message
        logger.warning(message)
        await self._close_row(state, code)

    async def _close_row(self, state: CrawlState, code: int) -> None:
        process_exit.set(code)
        summary = self.reporter.summary(state)
        with suppress(DistError):  # the crawl ends without its last sample
            await self.reporter.sample(summary)
        await self.repository.end(
            state, code=code, message=self.reporter.snapshot.message, summary=summary
        )


def _describe_kept(members: Sequence[NodeState], command: str) -> str:
    """Return how many requests of batches that are not done were made, and what fetches them."""
    done = 0
    for member in members:
        done += sum(run.succeeded for run in member.out.values())
    if not done:
        return ""
    requests = counted(done, "request was", "requests were")
    return (
        f" ({requests} done in batches under way; `{command}` fetches their items, and makes the"
        " other requests)"
    )
