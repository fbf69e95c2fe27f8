"""Run a crawl: check, begin, find, wait for batches, merge, close; only here is the order known.

The rule it keeps: the producer ends only when every batch has ended and the output is closed, or
says how to go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scrapy.crawler import Crawler

from scrapyd_dist.batches import NOT_MADE, Attempt, Crawl, CrawlState, FinishReason, Miss, meaning
from scrapyd_dist.differences import FoundDifference, Trait
from scrapyd_dist.errors import (
    INTERRUPTED,
    PARTIAL,
    ConfigError,
    DistError,
    StoreEmptied,
    StoreError,
    as_store_error,
)
from scrapyd_dist.goals import in_words
from scrapyd_dist.items.delivery import Delivery, accepted_of
from scrapyd_dist.items.json_lines import left_out
from scrapyd_dist.items.merging import OutputNotWritten
from scrapyd_dist.items.repeats import count_repeats
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import Snapshot, count_in, exit_code
from scrapyd_dist.scheduling.batcher import BatchDraft, Demand, portions
from scrapyd_dist.scheduling.fingerprints import FingerprintSet
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.settings import SettingReader, find_warnings
from scrapyd_dist.store.worker_thread import StoreThread

from ..classifier import count_found
from ..engine_compat import close_spider, watch_idle_reason
from ..goal_keeper import GoalKeeper
from ..pause_gate import PauseGate
from ..targets import Target, find_target, guesses
from ..throttle.install import charge_pages_to, why_not_heeded
from ..throttle.install import problem_of as throttle_problem
from .completion_hooks import judge_items, notify_on_finish, read_on_finish, refusal
from .crawl_code import code_of, note_on_process
from .crawl_findings import (
    SESSION_REMEDY,
    ChangedAttributes,
    found_trait,
    login_pages,
    values_as_text,
    walk_findings,
)
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository, find_row, open_thread
from .crawl_request import (
    CrawlRequest,
    asked_for,
    check_crawl,
    find_project,
    for_target,
    loop_sender,
    shards_of,
    template_of,
)
from .difference_finder import kept_by_callbacks
from .discovery import Capture, IndexWalk, OwnItems, new_capture
from .feed_outputs import CrawlOutputs, watches_feeds
from .lifecycle import TICK, Fault, Lifecycle, ending, signals
from .lifecycle import exit_code as process_exit
from .merged_feeds import FeedsNotStored, deliver_to
from .producer_options import read_options
from .status_reporter import StatusReporter

logger = logging.getLogger(__name__)
#: failed URLs that the log names
SHOWN_FAILURES = 3
#: how the reason of a miss begins that the site did not let in
DENIED = ("HTTP 401", "HTTP 403")


class CrawlStart:
    """Starts one crawl, or refuses it."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._on_finish = ""
        self._repository: CrawlRepository | None = None  #: once the crawl has a row

    async def start(self) -> CrawlRun:
        """Check everything, bring the code to the nodes, and start the scheduler.

        DistError if the crawl may not begin.
        """
        settings = self._crawler.settings
        spider = self._crawler.spider
        assert spider
        self._on_finish = read_on_finish(settings)
        options = read_options(settings)
        args, given = asked_for(settings)
        differences = check_crawl(options, settings, spider, args)
        if problem := throttle_problem(self._crawler):
            raise ConfigError(problem)
        sender = loop_sender(settings)
        target = find_target(spider, settings)
        options = for_target(options, target, settings)
        differences += kept_by_callbacks(type(spider), target.methods(spider))
        project = find_project(settings)
        request = CrawlRequest(
            spider=spider.name, options=options, project=project, args=args, given=given
        )
        shards = shards_of(options, spider)
        thread = open_thread(request)
        row = await _find_row(thread, request)
        repository = CrawlRepository(thread, row, request, partial(count_found, self._crawler))
        self._repository = repository
        await repository.take_up()
        charge_pages_to(self._crawler, repository.home)
        rules = await self._warn_of_rules(repository, heeds=options.heeds)
        endangered = await thread(thread.store.warnings)
        guessed = guesses(target, settings)
        warnings = [*find_warnings(settings, vars(spider)), *endangered, *rules]
        for warning in (*differences, *warnings, *guessed):
            logger.warning("%s", warning)
        code = await thread(code_of, row, repository.folder, project.root, request.store)
        nodes = await CrawlNodes.prepare(request, repository, code)
        kept = await repository.keep_code(nodes.prepared)
        options = nodes.request.options  # without leases, where no node reaches the store
        index = IndexWalk(await repository.take_shards(shards), template_of(options))
        # With a feed URL items come as lines of JSON, of which the exporter could not make the
        # spider's items.
        wants_exporter = options.target_feed_url is None and watches_feeds(self._crawler)
        outputs = repository.outputs(settings, wants_exporter=wants_exporter)
        own = OwnItems(repository.parts, typed=outputs.typed)
        spec = await nodes.job_request(
            settings,
            feed=options.target_feed_url is not None,
            typed=outputs.typed,
            lease=options.scaling.terms.lease,
            ways=nodes.ways,
        )
        scheduler = nodes.scheduler(spec, sender=sender, counts=partial(_own_counts, index, own))
        capture = await self._new_capture(nodes, scheduler, index)
        own.recall(keep=not index.unfinished())
        await scheduler.recover()
        snapshot = Snapshot(
            scheduler=scheduler.state,
            earlier_versions=repository.earlier_versions,
            code=[*guessed, *nodes.prepared.code, *note_on_process(code, row, repository.folder)],
            unheeded=why_not_heeded(settings),
            differences=differences,
            warnings=warnings,
        )
        reporter = StatusReporter(
            repository=repository,
            scheduler=scheduler,
            snapshot=snapshot,
            index=index,
            capture=capture,
            own=own,
            publisher=await repository.publisher(),
        )
        await reporter.recall()
        await reporter.write_status(CrawlState.FINDING, **kept)
        scheduler.start()
        run = CrawlRun(self._crawler, target, nodes, reporter, outputs, self._on_finish)
        run.log_start()
        return run

    async def _new_capture(
        self, nodes: CrawlNodes, scheduler: Scheduler, index: IndexWalk
    ) -> Capture:
        """Return what catches target requests; it knows those that the crawl found before."""
        request = nodes.request
        repository = nodes.repository
        thread = repository.thread

        def demand() -> Demand:
            """Return how much work the fleet can use now."""
            found = repository.counts["sealed"] + len(capture.cutter)
            return scheduler.demand(index.more(found, capture.room))

        capture = new_capture(
            request.options,
            self._crawler,
            demand,
            project=request.project.name,
            key=nodes.prepared.key,
        )
        capture.before = await thread(
            lambda: FingerprintSet(thread.store.fingerprints(repository.id))
        )
        if request.options.limit:
            capture.room = max(0, request.options.limit - repository.counts["sealed"])
        return capture

    async def refused(self, error: DistError) -> None:
        """Give the crawl's row its end, and notify `DISTRIBUTED_ON_FINISH`."""
        crawl = self._crawler.settings.get("DISTRIBUTED_CRAWL")
        if self._repository is not None:
            crawl = self._repository.id
            await self._repository.refuse(code=error.exit_code, message=str(error))
            self._repository.thread.close()
        if not self._on_finish:  # a process that is refused for its reactor has no loop to wait in
            return
        name = self._crawler.spider.name if self._crawler.spider else ""
        if wrong := await asyncio.to_thread(
            notify_on_finish, self._on_finish, refusal(crawl, name, error)
        ):
            logger.warning("%s", wrong)

    async def _warn_of_rules(self, repository: CrawlRepository, *, heeds: bool) -> list[str]:
        """Warn of rules in the store.

        ConfigError if the crawl has to heed them (`heeds`), and cannot.
        """
        why = why_not_heeded(self._crawler.settings)
        rules = await repository.rules()
        if not rules:
            return []
        if why and heeds:
            raise ConfigError(
                f"The store has rules of `sdist throttle`, and this crawl cannot heed them. {why}"
            )
        heeding = "all processes of this crawl heed them"
        if why:
            heeding = f"this crawl heeds none of them: {why}"
        return [f"rules of `sdist throttle` in the store: {rules}; {heeding}"]


def _own_counts(index: IndexWalk, own: OwnItems) -> dict[str, int]:
    """Return how much a crawl's own process has done."""
    return {"items": own.count, "pages": index.pages + index.done_before}


class CrawlRun(Lifecycle):
    """Runs one crawl, from its first request to the merged file."""

    def __init__(
        self,
        crawler: Crawler,
        target: Target,
        nodes: CrawlNodes,
        reporter: StatusReporter,
        outputs: CrawlOutputs,
        on_finish: str,
    ) -> None:
        super().__init__()
        self._outputs = outputs
        self._crawler = crawler
        self.target = target
        self._nodes = nodes
        self.reporter = reporter
        self.options = nodes.request.options
        self._on_finish = on_finish
        self.index = reporter.index
        self.capture = reporter.capture
        self._own = reporter.own
        self._scheduler = reporter.scheduler
        self._repository = reporter.repository
        self._done = False  #: the row has its end, and the spider may close
        self._closing = False  #: the spider closes
        self._cancelled = False  #: a user has cancelled the crawl
        #: why nothing more is found, though there may be more
        self._enough = FinishReason.LIMITED.value if self.capture.room == 0 else ""
        self._start_fault = ""  #: how the spider's own start broke off
        self._idle_reason = watch_idle_reason(crawler)
        assert crawler.spider
        travelling = SettingReader(crawler.settings).value("DISTRIBUTED_SPIDER_ATTRIBUTES")
        self._target_callbacks = target.methods(crawler.spider)
        if not self.options.leases:
            travelling = ()
        self._attributes = ChangedAttributes(crawler.spider, travelling)
        #: jobs did not have the attributes that their callbacks read; set when all is found
        self._has_wrong_values = False
        self.goals = GoalKeeper.for_crawler(crawler)
        if self.goals is not None:
            self.goals.open(
                self._repository.thread, self._repository.id, lambda _: self._goal_reached()
            )

    def log_start(self) -> None:
        """Log what was found out about nodes and code, and what begins."""
        prepared = self._nodes.prepared
        self.reporter.warn(*prepared.warnings)
        for note in self.reporter.snapshot.code:
            logger.warning("%s", note)
        for member in prepared.members:
            unreached = member.readiness.unreached
            if unreached:
                logger.info("%s is sent its batches: %s", member.node.name, unreached)
        how = "are leased by workers on" if self.options.leases else "go to"
        uploaded = ""
        if prepared.uploaded:
            uploaded = f", uploaded to {', '.join(prepared.uploaded)}"
        logger.info(
            "Crawl %s: target requests (%s) %s %d nodes in batches of up to %d; version %s%s;"
            " state in %s",
            self._repository.id,
            self.target.how,
            how,
            len(prepared.members),
            self.options.batch_size,
            prepared.version,
            uploaded,
            self._nodes.request.project.state,
        )

    # find

    @property
    def enough(self) -> bool:
        """Return whether nothing more is to be found."""
        return bool(self._enough)

    def found_enough(self, why: str = FinishReason.LIMITED.value) -> None:
        """Find nothing more: what is found is worked on, and then the crawl is finished."""
        if not self._enough:
            self._enough = why
            close_spider(self._crawler, FinishReason.LIMITED.value)

    def _goal_reached(self) -> None:
        """Walk no further; what is not walked is walked when the crawl goes on."""
        if not self.index.walked:
            self.found_enough(FinishReason.GOAL.value)

    def seal(self, *cuts: BatchDraft) -> None:
        """Keep cuts in the store and hand them to the scheduler; in order, beside the crawl."""
        for portion in portions(cuts):
            self.tasks.add(self._seal(portion))

    async def _seal(self, cuts: Sequence[BatchDraft]) -> None:
        keep = self._repository.add_batches if self.options.leases else self._repository.seal
        batches = await keep(cuts, self._nodes.prepared.key, self.capture.take_counts())
        for batch in batches:
            self._scheduler.add(batch)

    def own_item(self, item: Any, shard: int, url: str) -> None:
        """Keep an item of the producer's own pages, which are those of `shard`."""
        try:
            self._own.add(item, shard)
        except (TypeError, ValueError) as error:
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
        log = self._crawler.settings.get("LOG_FILE") or self._repository.folder / "producer.log"
        return str(log) if Path(log).exists() else "the log of this process"

    # the clock

    async def tick(self) -> None:
        """Cut the batches that are due, write the status down, and obey the users' commands."""
        if self._done:
            return
        self.seal(*self.capture.cutter.due(time.monotonic()))
        self._own.flush()
        await self.reporter.write_down()
        if not self._done:
            await self.reporter.write_status(self._repository.state)
        self.reporter.log_now_and_then()
        await self._obey()
        if self._scheduler.enough and not self.index.walked:
            self.found_enough(self._scheduler.enough)
        if self._scheduler.state.ends_early:
            self._goal_reached()
        if self._scheduler.state.stopped:
            self.hold()

    async def _obey(self) -> None:
        """Do what users ask of a running crawl through its row in the store."""
        wanted = await self._repository.wanted()
        if wanted != "cancel":
            if (wanted == "pause") != self._scheduler.state.paused:
                self._rest(paused=not self._scheduler.state.paused)
        elif not self._cancelled:  # the command cancels the jobs, when this process sends no more
            self._cancelled = True
            if self._scheduler.state.paused:
                self._rest(paused=False)  # an engine that rests does not close
            self._scheduler.state.stop_now("The crawl was cancelled.")

    def _rest(self, *, paused: bool) -> None:
        self._scheduler.set_paused(paused=paused)
        PauseGate.for_crawler(self._crawler).rest(paused)

    def failed(self, error: BaseException) -> None:
        """Note that a task failed, and complete what can be completed."""
        super().failed(error)
        self.hold()

    # wait

    def hold(self) -> bool:
        """Return whether the idle spider must stay open for the batches that are out."""
        if not (self._done or self._closing):  # once it closes, `finish` says what is completed
            self.tasks.start("complete", self._complete)
        return not self._done

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
        self._done = True
        if not self._closing:
            close_spider(self._crawler, self._idle_reason())

    async def _break_off(self, error: BaseException) -> None:
        """End in order what cannot be finished, as far as the store lets it."""
        reason = str(error).rstrip(".")
        if isinstance(error, StoreEmptied):
            # There is nothing to go on with, and no row to write it into.
            self.reporter.snapshot.message = f"{reason} ({self._repository.parts})."
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
            self.seal(*self.capture.cutter.due(time.monotonic()))
            if len(self.capture.cutter) == 0:
                return
            await asyncio.sleep(TICK / 2)

    async def _seal_rest(self) -> None:
        self.seal(*self.capture.cutter.cut_rest())
        # What could not be sealed is found again: its shard stays unfinished.
        await self.tasks.settle()
        await self.reporter.write_down()

    async def _found_all(self) -> None:
        index = self.index
        losses: list[str] = []
        ends: list[str] = []
        if not self._enough:
            losses, ends = index.short()
        index.failed += len(losses)
        self._repository.missed(*(Miss(url="", kind="index", reason=text) for text in losses))
        self.reporter.warn(*self.capture.undeliverable(), *losses, *ends)
        await self.reporter.write_down()
        wrong = self._attributes.differing(self.capture.callbacks)
        self._has_wrong_values = bool(wrong)
        self.reporter.differ(*wrong, *walk_findings(index, self.capture, self._repository.counts))
        if self._enough != FinishReason.GOAL.value:
            await self._repository.finish_shards([shard.number for shard in index.unfinished()])
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
        elif self._enough == FinishReason.GOAL.value and not self._scheduler.state.ends_early:
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
            await self._collect()

    async def _collect(self) -> None:
        """Write the output, judge the crawl by what it has, and close its row."""
        reporter = self.reporter
        await reporter.write_status(CrawlState.COLLECTING)
        self._own.close()
        await self._scheduler.make_parts_whole()
        undelivered = await self._publish_own_parts()
        if undelivered:
            # Before any output is written: -o adds to a file that is there.
            await self._scheduler.left()
            await self._stop(undelivered, PARTIAL)
            return
        stored = await self._repository.for_delivery(self._nodes.prepared.key)
        misses = stored["misses"]
        try:
            delivered = await self._deliver(stored)
        except (FeedsNotStored, OutputNotWritten) as error:
            await self._scheduler.left()
            await self._stop(str(error), PARTIAL)
            return
        reporter.note_files(delivered)
        reporter.warn(*delivered.warnings, *self._warn_of_left_out(misses))
        accepted = accepted_of(stored["attempts"])
        await self._report_differences(delivered, accepted)
        logins = login_pages(accepted)
        reporter.warn(*logins)
        where = ", ".join(reporter.snapshot.output) or "the feeds that its manifest lists"
        logger.info(
            "Crawl %s is complete: %d items in %s", self._repository.id, delivered.items, where
        )
        _log_failures(misses, delivered.misses)
        await self._scheduler.left()
        code = await self._judge(delivered, misses, has_logins=bool(logins))
        await self._close_row(CrawlState.FINISHED, code)

    async def _publish_own_parts(self) -> str:
        """Deliver the parts of the producer's own pages; return why not all are delivered."""
        if self._enough == FinishReason.GOAL.value:  # these pages are walked again
            return await self.reporter.published(())
        return await self.reporter.published(self._own.parts())

    async def _deliver(self, stored: dict[str, Any]) -> Delivery:
        """Merge all items into the output; `stored` is what the store has of the crawl."""
        return await deliver_to(
            self._outputs,
            self._crawler,
            self._repository.folder,
            own=self._own.parts(),
            own_items=self._own.count,
            feed_url=self.options.target_feed_url,
            **stored,
        )

    async def _report_differences(self, delivered: Delivery, accepted: Sequence[Attempt]) -> None:
        """Note what differs from `scrapy crawl` and shows only in the finished items and jobs."""
        reporter = self.reporter
        has_feed_url = self.options.target_feed_url is not None
        if delivered.items == 0 and self._repository.counts["sealed"] and not has_feed_url:
            reporter.differ(found_trait(Trait.NO_ITEM))
        reporter.differ(*await asyncio.to_thread(self._find_repeats, accepted))
        reporter.differ(*self._attributes.kept_in_jobs(self._target_callbacks, accepted))
        reporter.differ(*values_as_text(accepted, self._own.as_text))

    async def _judge(self, delivered: Delivery, misses: Sequence[Miss], *, has_logins: bool) -> int:
        """Return the exit code of the finished crawl, with warnings of what speaks against it."""
        options = self.options
        repository = self._repository
        state = self._scheduler.state
        code = exit_code(self.reporter.summary(CrawlState.FINISHED), max_failed=options.max_failed)
        unusual, too_few = await judge_items(options, repository, state.spec, delivered.items)
        self.reporter.warn(*unusual)
        self._tell_faults(too_few, self._start_fault)
        is_empty = not (repository.counts["sealed"] or delivered.items)
        lost_requests = await repository.lost_requests()
        self.reporter.warn(*_warn_of_stray(state.stray_items), *_warn_of_lost(lost_requests))
        if too_few or (self._start_fault and is_empty):
            return 1
        if code:
            return code
        shortfalls = (
            lost_requests,
            delivered.lost,
            state.stray_items,
            state.closed_by,
            self._has_wrong_values,
            self._count_denied_if_most(misses),
            has_logins,
        )
        return PARTIAL if any(shortfalls) else 0

    def _tell_faults(self, *texts: str) -> None:
        """Say why the exit code is not 0, though the crawl is finished.

        `scrapy crawl` shows the log only.
        """
        self.reporter.snapshot.message = " ".join(filter(None, texts))
        if self.reporter.snapshot.message:
            logger.warning("%s", self.reporter.snapshot.message)

    def _find_repeats(self, accepted: Sequence[Attempt]) -> list[FoundDifference]:
        """Find the pages that several batches have found, by items that are there again; blocking.

        One row with the number of these items, or none.
        """
        has_followed = False
        replaced = left_out(accepted)
        parts = {}
        for attempt in accepted:
            has_followed |= count_in(attempt.report, "pages") > count_in(attempt.report, "done")
            if attempt.part:
                parts[self._repository.parts / attempt.part] = replaced.get(attempt.batch, [])
        if not has_followed:
            return []
        repeats = count_repeats(parts)
        if not repeats:
            return []
        return [found_trait(Trait.FOLLOWED_PAGES, counted(repeats, "item"))]

    def _warn_of_left_out(self, misses: Sequence[Miss]) -> list[str]:
        """Warn of what was left out on request."""
        warnings = []
        if self._scheduler.state.ends_early:
            warnings.append(self._describe_early_end())
        elif self._enough == FinishReason.LIMITED.value:
            warnings.append(
                f"The crawl was limited to {self.options.limit:,} target requests (--limit,"
                " DISTRIBUTED_LIMIT); what else there may be was not looked for."
            )
        elif meaning(self._enough).closes_crawl:
            warnings.append(
                f"The spider has closed the walk over the index: {self._enough}. What was found"
                " until then was crawled; what else there may be was not looked for."
            )
        elif self._enough:
            warnings.append(
                f"The walk over the index ended early, as the settings say: {self._enough.upper()}."
            )
        left = sum(miss.reason.startswith(NOT_MADE) for miss in misses)
        if left:
            warnings.append(
                f"{counted(left, 'request was', 'requests were')} not made, since CLOSESPIDER_…"
                " settings ended their jobs, in each of which they count anew; they are in the list"
                " of misses. To try a crawl of a few pages, use --limit."
            )
        if denied := self._count_denied_if_most(misses):
            warnings.append(
                f"{counted(denied, 'page was', 'pages were')} denied (401, 403). {SESSION_REMEDY}"
            )
        return warnings

    def _describe_early_end(self) -> str:
        """Say why the crawl has ended early, and how to go on with what is left."""
        state = self._scheduler.state
        why = f"The spider has closed the crawl: {state.closed_by}."
        if state.goal:
            goal = in_words(state.goal, state.spec.goals[state.goal])
            why = f"The crawl has reached a goal: {goal}."
        is_walked = self._enough != FinishReason.GOAL.value
        if is_walked and not state.backlog.waiting:
            return f"{why} Nothing is left."
        requests = counted(state.backlog.waiting_requests, "request waits", "requests wait")
        batches = counted(state.backlog.waiting, "batch", "batches")
        unwalked = "" if is_walked else ", and the index is not walked to its end"
        return (
            f"{why} {requests} in {batches}{unwalked}. Go on with the rest: sdist resume"
            f" {self._repository.id}"
        )

    def _count_denied_if_most(self, misses: Sequence[Miss]) -> int:
        """Return how many pages were denied if these are more than half of all, else 0."""
        denied = sum(miss.reason.startswith(DENIED) for miss in misses)
        return denied if 2 * denied > self._repository.counts["sealed"] else 0

    # close

    async def close(self, reason: str) -> None:
        """Close with the spider, for whatever reason; called again when the engine has stopped."""
        if self._closing and self._enough and not self._done and signals.came:
            why, _ = ending("shutdown", self._name_log())
            self._scheduler.state.stop_now(why)
        await super().close(reason)

    async def finish(self, reason: str) -> None:
        """Complete the crawl if its settings closed the spider; else stop it if it is not complete.

        Then everything that the crawl has open is closed.
        """
        self._closing = True
        ends_walk = meaning(reason).by_settings or meaning(reason).closes_crawl
        if not self._done and not signals.came and ends_walk:
            process_exit.set(INTERRUPTED)  # as in `_give_up`
            if not self._enough and not self.index.walked:
                self._enough = reason
            await self.tasks.start("complete", self._complete)
        if not self._done:
            await self._give_up(reason)
        else:
            await self._scheduler.stop("")
        await self.stop_clock()
        if self.goals is not None:
            await self.goals.close()
        self.reporter.close()
        await self._tell_on_finish()
        self._scheduler.state.sender.close()
        self._repository.thread.close()

    async def _give_up(self, reason: str) -> None:
        """Stop a crawl that is not complete, and keep what was found."""
        # A second signal may end the process at any of the waits below.
        process_exit.set(INTERRUPTED)
        await self.tasks.cancel("complete")
        try:
            await self._seal_rest()
        except Exception:
            logger.exception("Not everything that was found could be kept; it will be found again")
        why, code = ending(reason, self._name_log())
        await self._scheduler.stop(why)
        self._own.close()
        await self._stop(self._scheduler.state.stopped, code)
        self._done = True

    async def _tell_on_finish(self) -> None:
        """Notify DISTRIBUTED_ON_FINISH; its failure is a warning in the crawl's summary."""
        state = self._repository.state
        document = {**self.reporter.summary(state), "exit_code": process_exit.code}
        wrong = await asyncio.to_thread(notify_on_finish, self._on_finish, document)
        if wrong:
            self.reporter.warn(wrong)
            with suppress(DistError):  # the crawl itself has ended well
                await self._repository.update(summary=self.reporter.summary(state))

    async def _stop(self, reason: str, code: int, state: CrawlState = CrawlState.STOPPED) -> None:
        message = f"{reason} What was found is kept; go on with: sdist resume {self._repository.id}"
        self.reporter.snapshot.message = message
        logger.warning(message)
        await self._close_row(state, code)

    async def _close_row(self, state: CrawlState, code: int) -> None:
        process_exit.set(code)
        summary = self.reporter.summary(state)
        with suppress(DistError):  # the crawl ends without its last sample
            await self.reporter.sample(summary)
        await self._repository.end(
            state, code=code, message=self.reporter.snapshot.message, summary=summary
        )


async def _find_row(thread: StoreThread, request: CrawlRequest) -> Crawl:
    """Return the row of the crawl; without one, the store is left."""
    try:
        return await find_row(thread, request)
    except BaseException:
        thread.close()
        raise


def _log_failures(misses: Sequence[Miss], listed_in: str | None) -> None:
    """Say in the log how many URLs failed: without a command of ours it is all that people see."""
    failed = 0
    reasons: list[str] = []
    for miss in misses:
        if miss.kind == "gone" or miss.reason.startswith(NOT_MADE):
            continue
        failed += 1
        if len(reasons) < SHOWN_FAILURES:
            reasons.append(f"{miss.url}: {miss.reason}")
    if failed:
        logger.warning(
            "%d URLs failed, such as %s. All of them are in %s",
            failed,
            "; ".join(reasons),
            listed_in,
        )


def _warn_of_lost(requests: int) -> list[str]:
    """Warn of requests that the store has lost."""
    if not requests:
        return []
    warning = (
        f"{requests:,} requests are lost: the store came back without its last steps, and with them"
        " the batches of these requests. Only another crawl brings their pages."
    )
    return [warning]


def _warn_of_stray(stray_items: int) -> list[str]:
    """Warn of items that are in no part."""
    if not stray_items:
        return []
    warning = (
        f"{counted(stray_items, 'item is', 'items are')} lost: workers scraped them for pages that"
        " a timer, a signal or an idle handler of the project asked for when its worker had no"
        " batch, so there was no file for them. Ask for such pages in a callback, or use --push,"
        " where all that a job does is of its batch."
    )
    return [warning]
