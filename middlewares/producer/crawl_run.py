"""The life of one distributed crawl inside its producer: begin, find, wait, close; the one place that knows the order.

The rules it keeps: nothing is requested before the checks are through; the producer ends only when
every batch has ended and the output is closed, or says how to go on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState, Miss
from scrapyd_dist.errors import ConfigError, DistError, StoreError
from scrapyd_dist.finish_reasons import NOT_MADE, FinishReason, meaning
from scrapyd_dist.items.delivery import deliver
from scrapyd_dist.progress.completion_policy import CompletionPolicy
from scrapyd_dist.progress.summary import exit_code
from scrapyd_dist.scheduling.batcher import portions
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.settings import complaints

from ..classifier import count_found
from ..engine_compat import close_spider
from ..targets import Target, find_target
from ..throttle.install import charge_pages_to, why_not_heeded
from ..throttle.install import problem_of as throttle_problem
from .crawl_code import runs_here
from .crawl_end import Fault, ending, faults, judge_items, read_wishes, refusal, signals, tell_of_end
from .crawl_end import exit_code as process_exit
from .crawl_nodes import CrawlNodes, in_thread
from .crawl_repository import CrawlRepository
from .crawl_request import (
    CrawlRequest,
    asked_for,
    check_parts,
    check_spider,
    job_settings,
    loop_sender,
    shards_of,
    template_of,
)
from .discovery import IndexWalk, OwnItems
from .factory import check_mode, new_capture, new_coordinator, shared_settings, stop_code, worker_settings
from .preflight import find_project
from .producer_options import ProducerOptions, read_options
from .status_reporter import CrawlControl, StatusReporter, StatusSource, heeding
from .task_group import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler

    from scrapyd_dist.scheduling.batcher import BatchDraft, Demand

    from .crawl_code import CrawlCode
    from .discovery import Capture
    from .factory import AnyCoordinator
    from .preflight import Prepared

logger = logging.getLogger(__name__)

#: seconds between two looks at the clock: ages of batches, counts, the summary
TICK = 0.5
#: index pages after which it can be guessed what the others will give
KNOWN_PAGES = 5
#: a signal ended it; `sdist resume` goes on
INTERRUPTED = 130


class CrawlRun:
    """One crawl, from the first check to the merged file."""

    options: ProducerOptions
    target: Target
    repository: CrawlRepository
    index: IndexWalk
    capture: Capture
    coordinator: AnyCoordinator
    fleet: CrawlNodes

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._begun = self._walked = self._done = self._closing = False
        self._enough = ""  #: why nothing more is found, though there may be more
        self._tasks = TaskGroup(self.hold)
        self._policy = CompletionPolicy()
        self._reporter = StatusReporter()
        self._start_fault = ""

    # begin

    async def begin(self) -> bool:
        """Check, deploy, and start the coordinator; False when the crawl is refused (which is said then)."""
        signals.look_out()
        faults.listen()
        try:
            await self._begin()
        except DistError as error:
            await self._refuse(error)
        except Exception as error:  # nothing may be half begun, and nobody may be left waiting
            logger.exception("The crawl cannot begin")
            await self._refuse(DistError(f"scrapyd-dist itself failed: {type(error).__name__}: {error}."))
        return self._begun

    async def _begin(self) -> None:
        settings, spider = self._crawler.settings, self._crawler.spider
        assert spider
        self._policy = read_wishes(settings)
        self.options = options = read_options(settings)
        check_mode(options, settings)
        check_parts(settings)
        if problem := throttle_problem(self._crawler):
            raise ConfigError(problem)
        self._sender = loop_sender(settings)
        check_spider(spider)
        self.target = find_target(spider, settings)
        asked = asked_for(settings)
        self._project = project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        shards = shards_of(options, spider)
        self.repository = repository = CrawlRepository(options, project, partial(count_found, self._crawler))
        await repository.take_row(spider.name, asked)
        charge_pages_to(self._crawler, repository.home)
        self._reporter.warn(*complaints(settings), *await repository.warnings())
        await self._look_for_rules()
        self.fleet = fleet = CrawlNodes(options, project, spider.name, repository.where, repository.rules)
        code = await repository.code()
        self._prepared = prepared = await fleet.prepare(await repository.nodes(), code)
        told = await repository.keep_code(prepared)
        self._reporter.code = [*prepared.code, *self._of_this_process(code)]
        self.index = IndexWalk(await repository.take_shards(shards), template_of(options))
        self.capture = new_capture(options, self._crawler, self._demand, project=project.name, key=prepared.key)
        self.capture.remember(await repository.fingerprints())
        if options.limit:
            self.capture.room = max(0, options.limit - repository.counts.get("sealed", 0))
            self._enough = "" if self.capture.room else FinishReason.LIMITED.value
        self._own = OwnItems(repository.parts)
        self._own.recall(keep=not self.index.unfinished())
        spec, members = await self._spec(asked), await fleet.members()
        self.coordinator = new_coordinator(
            options, spec, fleet=fleet, members=members, repository=repository, sender=self._sender
        )
        self._control = CrawlControl(self._crawler, repository, self.coordinator)
        await self.coordinator.recover()
        source = StatusSource(
            repository=repository, index=self.index, capture=self.capture, own=self._own,
            coordinator=self.coordinator, control=self._control,
        )  # fmt: skip
        await self._reporter.begin(source)
        self.coordinator.start()
        self._begun = True
        await self._reporter.enter(CrawlState.FINDING, **told)
        self._tasks.start("tick", self._tick)
        self._say_hello(prepared)

    def _of_this_process(self, code: CrawlCode) -> list[str]:
        """Where the project was imported before it was known which code the crawl runs."""
        if runs_here(code, self.repository.folder):
            return []
        why = "This process, which sdist did not start, walks the index with the working tree's code all the same."
        return [f"{why} sdist resume {self.repository.id} runs one code for both."]

    async def _look_for_rules(self) -> None:
        """Say whether this crawl heeds the rules of the store.

        Raises:
            ConfigError: it cannot, and was not told to go on without them.
        """
        self._reporter.unheeded = why = why_not_heeded(self._crawler.settings)
        rules = await self.repository.rules()
        if not rules:
            return
        if why and self.options.heeds:
            raise ConfigError(f"The store has rules of `sdist throttle`, and this crawl cannot heed them. {why}")
        self._reporter.warn(f"rules of `sdist throttle` in the store: {rules}; {heeding(why)}")

    async def _spec(self, asked: CrawlRequest) -> JobRequest:
        options, settings = self.options, self._crawler.settings
        assert self._crawler.spider
        return JobRequest(
            crawl=self.repository.id,
            home=self.repository.home,
            project=self._project.name,
            spider=self._crawler.spider.name,
            version=self._prepared.version,
            settings={**worker_settings(options, settings), **job_settings(asked, options)},
            args=asked.args,
            shared=shared_settings(settings),
            feed=options.feed_url is not None,
            collected=await self.repository.collected(),
            lease=options.lease,
            ways=self.fleet.ways,
        )

    def _demand(self) -> Demand:
        """What the fleet can use, and what may still be found."""
        pages, total = self._reporter.source.pages, self.index.total
        known = total is not None and pages >= KNOWN_PAGES
        found = self.repository.counts.get("sealed", 0) + self.capture.buffered
        more = found / pages * (total - pages) if total is not None and known else None
        if self.capture.room is not None:
            more = float(self.capture.room) if more is None else min(more, self.capture.room)
        return self.coordinator.demand(0.0 if self._walked else more)

    async def _refuse(self, error: DistError) -> None:
        logger.error("%s", error)
        process_exit.set(error.exit_code, refusal=str(error))
        taken = getattr(getattr(self, "repository", None), "id", None)  # None: refused before it had a row
        if taken is not None:
            await self.repository.refuse(code=error.exit_code, message=str(error))
            self.repository.close()
        crawl = taken or self._crawler.settings.get("DISTRIBUTED_CRAWL")
        self._reporter.warn(*await tell_of_end(self._policy, refusal(crawl, self._crawler.spider, error)))

    def _say_hello(self, prepared: Prepared) -> None:
        self._reporter.warn(*self.fleet.warnings)
        for note in self._reporter.code:
            logger.warning("%s", note)
        logger.info(
            "Crawl %s: target requests (%s) %s %d nodes in batches of up to %d; version %s%s; state in %s",
            self.repository.id,
            self.target.how,
            "are leased by workers on" if self.options.pull else "go to",
            len(prepared.probes),
            self.options.batch_size,
            prepared.version,
            f", uploaded to {', '.join(prepared.uploaded)}" if prepared.uploaded else "",
            self._project.state,
        )

    # find

    @property
    def enough(self) -> bool:
        """Whether nothing more is to be found."""
        return bool(self._enough)

    def found_enough(self, why: str = FinishReason.LIMITED.value) -> None:
        """Find nothing more: what is found is worked on, and then the crawl is finished."""
        if not self._enough:
            self._enough = why
            close_spider(self._crawler, FinishReason.LIMITED)

    def seal(self, *cuts: BatchDraft) -> None:
        """Keep cuts in the store and hand them to the coordinator; in order, beside the crawl."""
        for some in portions(cuts):
            self._tasks.add(self._seal(some))

    async def _seal(self, cuts: Sequence[BatchDraft]) -> None:
        keep = self.repository.add_batches if self.options.pull else self.repository.seal
        for batch in await keep(cuts, self._prepared.key, self.capture.take_counts()):
            self.coordinator.add(batch)

    def own_item(self, item: Any, shard: int, url: str) -> None:
        """An item of the producer's own pages."""
        if not self._begun:
            return
        try:
            self._own.add(item, shard)
        except (TypeError, ValueError) as error:
            reason = f"an item of it has no JSON form: {error}"
            self.local_missed(url, "failed", reason)

    def start_failed(self, error: Exception) -> None:
        """The spider's own start broke off; Scrapy ends then as if it had had no more to start with."""
        self._start_fault = f"The spider's start failed: {Fault.of(error)}. The whole traceback is in {self._log()}."

    def _log(self) -> str:
        """Where a traceback of this process is."""
        log = self._crawler.settings.get("LOG_FILE") or self.repository.folder / "producer.log"
        return str(log) if Path(log).exists() else "the log of this process"

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._reporter.local_missed(url, kind, reason)

    # wait

    def hold(self) -> bool:
        """The spider is idle: whether it must stay open for the batches that are out."""
        if self._done or not self._begun:
            return False
        self._tasks.start("finish", self._finish)
        return True

    async def _finish(self) -> None:
        """The index is walked, or no node takes work any more: wait for the batches, merge, let the spider close."""
        try:
            await self._seal_as_wanted()
            await self._seal_rest()
            if not self.coordinator.stopped:
                await self._found_all()
                await self.coordinator.ended()
            await self._end()
        except Exception as error:
            logger.exception("The crawl cannot be finished")
            with suppress(StoreError):  # the store may be what failed; the exit code is set by then
                await self._stop(f"scrapyd-dist itself failed: {type(error).__name__}: {error}.", 1)
        self._done = True
        if not self._closing:
            self._close_spider()

    async def _seal_as_wanted(self) -> None:
        """All is found: what is in no batch yet is cut when the fleet can use it, as before."""
        self._walked = True
        held_back = self.options.batch_adapt and not self.options.pull  # what workers lease may wait in the store
        while held_back and not (self.coordinator.stopped or self._tasks.fault):
            self.seal(*self.capture.due())
            if not self.capture.buffered:
                return
            await asyncio.sleep(TICK / 2)

    async def _seal_rest(self) -> None:
        self.seal(*self.capture.rest())
        await self._tasks.settle()  # what could not be sealed is found again: its shard stays unfinished
        await self._reporter.write_down()

    async def _found_all(self) -> None:
        losses, ends = ([], []) if self._enough else self.index.short()
        self.index.failed += len(losses)
        self.repository.missed(*(Miss(url="", kind="index", reason=text) for text in losses))
        self._reporter.warn(*self.capture.stayed(), *losses, *ends)
        await self._reporter.write_down()
        await self.repository.finish_shards([shard.number for shard in self.index.unfinished()])
        await self._reporter.enter(CrawlState.WORKING)
        self.coordinator.no_more()

    async def _end(self) -> None:
        await self._reporter.write_down()  # with what workers have found up to their last batch
        if self.coordinator.stopped:
            asked = self._control.cancelled or signals.came
            code = INTERRUPTED if asked else stop_code(self.coordinator)
            state = CrawlState.INCOMPLETE if self.coordinator.incomplete else CrawlState.STOPPED
            await self._stop(self.coordinator.stopped, code, state)
        elif not self.options.limits.wait:
            await self._stop("All batches are sent, and nothing waits for them (DISTRIBUTED_WAIT is off).", 0)
        else:
            await self._collect()

    async def _collect(self) -> None:
        await self._reporter.enter(CrawlState.COLLECTING)
        self._own.close()
        stored = await self.repository.for_delivery(self._prepared.key)
        outputs = self.repository.outputs(self._crawler.settings, self._crawler)
        feed_url = self.options.feed_url
        work = partial(
            deliver, self.repository.folder, own=self._own.parts(), outputs=outputs, feed_url=feed_url, **stored
        )
        delivered = await in_thread(work)
        self._reporter.output, self._reporter.misses = delivered.outputs, delivered.misses
        self._reporter.warn(*delivered.warnings, *self._told_of_limits(stored["misses"]))
        where = ", ".join(delivered.outputs) or "the feeds that its manifest lists"
        logger.info("Crawl %s is complete: %d items in %s", self.repository.id, delivered.items, where)
        await self.coordinator.left()
        code = exit_code(self._reporter.summary(CrawlState.FINISHED), max_failed=self.options.max_failed)
        unusual, too_few = await judge_items(self._policy, self.repository, self.coordinator.spec, delivered.items)
        self._reporter.warn(*unusual)
        self._reporter.message = " ".join(filter(None, (too_few, self._start_fault)))
        came_to_nothing = self._start_fault and not (self.repository.counts.get("sealed") or delivered.items)
        await self._close_row(CrawlState.FINISHED, 1 if too_few or came_to_nothing else code)

    def _told_of_limits(self, misses: Sequence[Miss]) -> list[str]:
        """What was left out on request."""
        told = []
        if self._enough == FinishReason.LIMITED.value:
            told.append(
                f"The crawl was limited to {self.options.limit:,} target requests (--limit, DISTRIBUTED_LIMIT); what"
                " else there may be was not looked for."
            )
        elif self._enough:
            told.append(f"The walk over the index ended early, as the settings say: {self._enough.upper()}.")
        left = sum(miss.reason.startswith(NOT_MADE) for miss in misses)
        if left:
            told.append(
                f"{left:,} requests were not made, since CLOSESPIDER_… settings ended their jobs, in each of which they"
                " count anew; they are in the list of misses. To try a crawl of a few pages, use --limit."
            )
        return told

    # close

    async def close(self, reason: str) -> None:
        """The spider closes, for whatever reason; called again when the engine has stopped."""
        if not self._begun:
            return
        if self._closing and self._enough and not self._done and signals.came:
            self.coordinator.state.stop_now(ending("shutdown", self._log())[0])
        await asyncio.shield(self._tasks.start("close", partial(self._close, reason)))

    async def _close(self, reason: str) -> None:
        self._closing = True
        if not self._done and not signals.came and meaning(reason).by_settings:
            process_exit.set(INTERRUPTED)  # as below
            self._enough = self._enough or ("" if self._walked else reason)
            await self._tasks.start("finish", self._finish)
        if not self._done:
            process_exit.set(INTERRUPTED)  # a second signal may end the process at any of the waits below
            await self._tasks.cancel("finish")
            try:
                await self._seal_rest()
            except Exception:
                logger.exception("Not everything that was found could be kept; it will be found again")
            why, code = ending(reason, self._log())
            await self.coordinator.stop(why)
            self._own.close()
            await self._stop(self.coordinator.stopped, code)
            self._done = True
        else:
            await self.coordinator.stop("")
        await self._tasks.cancel("tick")
        await self._tell_of_end()
        self._sender.close()
        self.repository.close()

    async def _stop(self, reason: str, code: int, state: CrawlState = CrawlState.STOPPED) -> None:
        self._reporter.message = f"{reason} What was found is kept; go on with: sdist resume {self.repository.id}"
        logger.warning(self._reporter.message)
        await self._close_row(state, code)

    async def _close_row(self, state: CrawlState, code: int) -> None:
        process_exit.set(code)
        with suppress(StoreError):  # a picture of it is no reason not to end it
            await self._reporter.sample(state)
        await self.repository.end(
            state, code=code, message=self._reporter.message, summary=self._reporter.summary(state)
        )

    async def _tell_of_end(self) -> None:
        state = self.repository.state
        wrong = await tell_of_end(self._policy, {**self._reporter.summary(state), "exit_code": process_exit.code})
        if wrong:
            self._reporter.warn(*wrong)
            with suppress(StoreError):  # the crawl itself has ended well
                await self.repository.amend(self._reporter.summary(state))

    def _close_spider(self) -> None:
        engine, spider = self._crawler.engine, self._crawler.spider
        assert spider
        if hasattr(engine, "close_spider_async"):
            self._tasks.start("close spider", partial(engine.close_spider_async, reason="finished"))
        else:  # Scrapy 2.13
            engine.close_spider(spider, "finished")

    # the clock, and what it writes down

    async def _tick(self) -> None:
        while not self._done:
            await asyncio.sleep(TICK)
            self.seal(*self.capture.due())
            self._own.flush()
            await self._reporter.write_down()
            if not self._done:
                await self._reporter.enter(self.repository.state)
                await self._reporter.sample()
            self._reporter.log_now_and_then()
            await self._control.look()
            if self.coordinator.enough and not self._walked:
                self.found_enough(self.coordinator.enough)
            if self.coordinator.stopped:
                self.hold()
