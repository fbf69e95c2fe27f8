"""Keep workers running at one frontier, and bring home what they did (`sdist frontier consume`).

The rules it keeps: one process at a time does so at a frontier; nothing is started before the
checks are through; the next process takes up what this one leaves behind (workers, parts on their
way).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Any

from scrapy import Spider
from scrapy.settings import Settings

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import INTERRUPTED, PARTIAL, TIME_UP, ConfigError, DistError, StoreError
from scrapyd_dist.frontier.backlog import UNFAIR, Backlog
from scrapyd_dist.goals import in_words
from scrapyd_dist.items.delivery import accepted_of
from scrapyd_dist.items.merging import OutputNotWritten, is_elsewhere
from scrapyd_dist.keys import state_key
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import Snapshot, exit_code, summary_of
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.settings import find_warnings
from scrapyd_dist.store.worker_thread import StoreThread
from scrapyd_dist.transports import AsyncSender
from scrapyd_dist.transports.requests import ThreadTransport

from ..throttle.install import why_not_heeded
from .callback_check import check_callbacks, job_crawler
from .completion_hooks import notify_on_finish, read_on_finish, refusal
from .crawl_findings import login_pages, values_as_text
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository, find_row, open_thread
from .crawl_request import CrawlRequest, check_mode, check_parts, check_spider, find_project
from .feed_outputs import CrawlOutputs, shown
from .lifecycle import Lifecycle
from .merged_feeds import FeedHost, FeedsNotStored, MergedFeeds, deliver_to, package_of
from .process import check_known
from .producer_options import read_options
from .status_reporter import FrontierReporter
from .strategy_process import StrategyRunner, StrategyThread

logger = logging.getLogger(__name__)
#: the warning of a frontier whose pages gave no item
NO_ITEMS = (
    "not one page gave an item. Pages of URLs that were added without a callback go to parse(),"
    " unless the settings name a target: `sdist frontier add --spider-callback NAME`, or"
    " DISTRIBUTED_TARGET_CALLBACKS"
)


@dataclass(kw_only=True)
class ConsumeProcess:
    """Starts the consumption of a frontier as a user has asked for it: of DISTRIBUTED_CRAWL."""

    settings: Settings
    spider: str
    scaling: ScalingPolicy  #: but for the terms, which are settings
    args: Mapping[str, str] = field(default_factory=dict)  #: of -a
    given: Mapping[str, str] = field(default_factory=dict)  #: of -s
    merge: bool = True  #: whether it stays for the items
    rows: bool = False  #: the frontier's rows are arguments, each of which is a job
    #: the process and machine that the row named when it was looked at
    before: tuple[int | None, str] = (None, "")
    strategy: StrategyRunner | None = None  #: decides beside the workers what is requested
    command: str  #: takes up again what this process leaves
    show: Callable[[dict[str, Any]], None] = lambda _: None  #: is given the summary now and then
    interrupted: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        check_args(self.args)
        self._apply_own_settings()
        options = read_options(self.settings)
        fair = options.scaling.terms.fair
        if not self.rows and self.scaling.prefix and fair != UNFAIR:
            raise ConfigError(
                f"Workers that share slots fairly ({fair}: --fair, DISTRIBUTED_FAIR) take from all"
                f" of them, and --prefix {self.scaling.prefix} binds each to one. Leave out one of"
                " the two; `-s DISTRIBUTED_FAIR=` takes back what the project's settings say."
            )
        self._request = CrawlRequest(
            spider=self.spider,
            options=options,
            project=find_project(self.settings),
            args=self.args,
            given=self.given,
        )
        self._frontier = str(options.crawl)
        self._begun = time.monotonic()
        self._started = False  #: the workers are started: what fails now refuses nothing

    def _apply_own_settings(self) -> None:
        """Let the spider's own settings count, below those of -s, as Scrapy does.

        Where there is no such spider, `run` tells.
        """
        with suppress(DistError):
            check_known(self.settings, self.spider).update_settings(self.settings)

    async def run(self) -> int:
        """Consume the frontier, and notify DISTRIBUTED_ON_FINISH of the end; return the exit code.

        DistError if nothing was started.
        """
        on_finish = read_on_finish(self.settings)
        try:
            document = await self._consume()
        except DistError as error:
            state = CrawlState.STOPPED if self._started else CrawlState.REFUSED
            document = refusal(self._request.options.crawl, self.spider, error)
            document["state"] = state.value
            await _notify(on_finish, document)
            raise
        await _notify(on_finish, document)
        return int(document["exit_code"])

    async def _consume(self) -> dict[str, Any]:
        """Consume the frontier, and return the summary at the end."""
        kind = check_known(self.settings, self.spider)
        check_spider(kind, self.settings)
        thread = open_thread(self._request)
        sender = ThreadTransport()
        try:
            repository = await self._claim(thread, kind)
            try:
                work = await self._begin(repository, sender)
            except BaseException as error:
                await _end_row(repository, CrawlState.STOPPED, 1, str(error))
                raise
            self._started = True
            code = await work.keep()
            row = await thread(thread.store.crawl, self._frontier)
            document = {**summary_of(row), "exit_code": code}
            if self.strategy is not None:
                backlog = await thread(thread.store.strategy_backlog, self._frontier)
                document["strategy"] = backlog.to_document()
            return document
        finally:
            sender.close()
            thread.close()

    async def _claim(self, thread: StoreThread, kind: type[Spider]) -> CrawlRepository:
        """Make this process the one that consumes the frontier; ConfigError if another one does."""
        frontier = self._frontier
        crawler = None if self.rows else job_crawler(kind, self.settings, self.args)
        if crawler is not None:
            await thread(
                check_callbacks,
                thread.store,
                frontier,
                crawler,
                key=state_key(self._request.project.state),
                prefix=self.scaling.prefix,
            )
        is_claimed = await thread(
            thread.store.claim,
            frontier,
            pid=os.getpid(),
            host=gethostname(),
            before=self.before,
        )
        if not is_claimed:
            raise _in_use(frontier)
        row = await find_row(thread, self._request)
        repository = CrawlRepository(thread, row, self._request)
        await repository.take_up()
        await thread(thread.store.want, repository.id, "")
        return repository

    async def _begin(self, repository: CrawlRepository, sender: AsyncSender) -> ConsumeRun:
        """Start the workers, or take up those that there are."""
        self._listen()
        settings = self.settings
        if not self.rows:
            check_mode(self._request.options, settings)
            check_parts(settings)
        nodes = await CrawlNodes.prepare(self._request, repository)
        outputs = repository.outputs(settings) if self.merge else CrawlOutputs()
        host = self._feed_host(outputs)
        spec = await nodes.job_request(settings, rows=self.rows, typed=outputs.typed)
        scheduler = nodes.scheduler(spec, sender=sender, staffing=self.scaling)
        await _check_mine(repository)
        publisher = await repository.publisher()
        away = await _parts_away(repository) if self.merge else ""
        if away and self._request.options.outputs:
            raise ConfigError(away)
        await scheduler.recover()
        endangered = await repository.thread(repository.thread.store.warnings)
        warnings = [
            *find_warnings(settings, self._request.args),
            *endangered,
            *nodes.prepared.warnings,
            *self._output_warnings(away),
        ]
        if away:
            outputs = CrawlOutputs()
        snapshot = Snapshot(
            scheduler=scheduler.state, unheeded=why_not_heeded(settings), warnings=warnings
        )
        reporter = FrontierReporter(
            repository=repository,
            scheduler=scheduler,
            snapshot=snapshot,
            publisher=publisher,
            show=self.show,
            begun=self._begun,
        )
        await reporter.recall()
        for warning in warnings:
            logger.warning("%s", warning)
        await reporter.write_status(
            CrawlState.WORKING, version=nodes.prepared.version, spider=self.spider
        )
        run = ConsumeRun(self, nodes, reporter, outputs, host)
        if not self.interrupted.is_set():
            if self.strategy is not None:
                await repository.thread(self.strategy.begin, repository.thread.store)
                run.strategy = StrategyThread(self.strategy)
            scheduler.start()
        return run

    def _output_warnings(self, away: str) -> list[str]:
        """Warn of output that is not written; `away`: why parts cannot be merged."""
        warnings = []
        if away:
            warnings.append(f"no file of all items is written: {away}")
        if self.settings.getdict("FEEDS") and not self.rows:
            warnings.append(
                "FEEDS: nothing is written there; -o FILE names the file of a frontier's items."
            )
        return warnings

    def _feed_host(self, outputs: CrawlOutputs) -> FeedHost | None:
        """Return what Scrapy's exporter is given in place of a crawler, if it is needed.

        ConfigError if the exporter cannot work.
        """
        if not outputs.feeds:
            return None
        away = [shown(uri) for uri in outputs.feeds if is_elsewhere(uri)]
        if away:
            raise ConfigError(
                "The items of a frontier are written to files of this machine, and"
                f" {', '.join(away)} is none. Name a file with -o, or deliver parts there as they"
                " come: --deliver."
            )
        host = FeedHost.with_new_spider(
            check_known(self.settings, self.spider), self.settings, self.args
        )
        MergedFeeds(host, outputs.feeds)
        return host

    def package(self) -> str:
        """Return the project's package, whose modules have the classes of items.

        It is empty if the spider cannot be imported.
        """
        try:
            return package_of(check_known(self.settings, self.spider))
        except DistError as error:
            logger.warning("items keep what their lines of JSON have: %s", error)
            return ""

    def _listen(self) -> None:
        """Let Ctrl-C end the work in good order; a second one ends this process as it stands."""

        def signalled() -> None:
            """End in good order; at the second signal at once."""
            if self.interrupted.is_set():
                os._exit(INTERRUPTED)
            self.interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)


async def _notify(on_finish: str, document: Mapping[str, Any]) -> None:
    """Notify DISTRIBUTED_ON_FINISH, if it is set, and log what goes wrong."""
    wrong = await asyncio.to_thread(notify_on_finish, on_finish, document)
    if wrong:
        logger.warning("%s", wrong)


def _in_use(frontier: str) -> ConfigError:
    """Return the error of a frontier that another process consumes."""
    return ConfigError(
        f"Another process keeps the workers of the frontier {frontier} running now, and two would"
        f" start too many. `sdist status {frontier}` says which one; stop it first, or let it do"
        " the work."
    )


async def _check_mine(repository: CrawlRepository) -> None:
    """Raise ConfigError if the frontier is another process's by now."""
    if not await repository.is_mine():
        raise _in_use(repository.id)


async def _parts_away(repository: CrawlRepository) -> str:
    """Say why the parts cannot be merged: some are on another machine. Empty if all are here."""
    accepted = await repository.accepted()
    parts = [repository.parts / attempt.part for attempt in accepted if attempt.part]
    away = await asyncio.to_thread(_count_missing, parts)
    if not away:
        return ""
    return (
        f"{away:,} of the {len(parts):,} parts of {repository.id} are not in {repository.parts}:"
        " they came home to the machine where it was worked on before. Consume it there, or bring"
        " that folder here; or leave out -o, and merge them later."
    )


def _count_missing(parts: Iterable[Path]) -> int:
    return sum(not part.is_file() for part in parts)


async def _end_row(
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


class ConsumeRun(Lifecycle):
    """Keeps workers running at a frontier whose consumption has begun."""

    def __init__(
        self,
        wanted: ConsumeProcess,
        nodes: CrawlNodes,
        reporter: FrontierReporter,
        outputs: CrawlOutputs,
        host: FeedHost | None,
    ) -> None:
        super().__init__()
        self._wanted = wanted
        self._nodes = nodes
        self._reporter = reporter
        self._repository = reporter.repository
        self._scheduler = reporter.scheduler
        self._outputs = outputs
        self._host = host  #: stands for a crawler, where Scrapy's exporter writes files
        self._interrupted = wanted.interrupted  #: by Ctrl-C or `sdist cancel`
        self._failure = asyncio.Event()  #: a task of this run has failed
        self.strategy: StrategyThread | None = None

    async def keep(self) -> int:
        """Keep workers running until nothing is left to do, they cannot go on, or Ctrl-C.

        Returns the exit code.
        """
        self.run_clock()
        if self.strategy is not None:
            self.strategy.start()
            self.tasks.start("strategy", self.strategy.ended)
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
        await _check_mine(self._repository)
        wanted = await self._repository.wanted()
        if wanted == "cancel":
            self._interrupted.set()
        elif (wanted == "pause") != self._scheduler.state.paused:
            self._scheduler.set_paused(paused=not self._scheduler.state.paused)
        await self._reporter.write_status(self._repository.state)

    def failed(self, error: BaseException) -> None:
        """Note that a task failed, and end the run."""
        self._failure.set()  # `keep` raises it

    async def finish(self, reason: str) -> None:
        """Report no more, and start no worker any more."""
        await self.stop_clock()
        if self.strategy is not None:
            await self.strategy.stop()
        await self._scheduler.stop(reason)
        self._reporter.close()

    # end

    async def _end(self) -> int:
        scheduler = self._scheduler
        if self.strategy is not None:
            await self.strategy.stop()
        if self._interrupted.is_set():
            return await self._stop("Interrupted", INTERRUPTED)
        if not scheduler.state.stopped or scheduler.incomplete:
            try:
                return await self._good_end()
            except (FeedsNotStored, OutputNotWritten) as error:
                message = (
                    f"{error} All else is done; the same command writes them:"
                    f" {self._wanted.command}"
                )
                return await self._let_go(CrawlState.STOPPED, PARTIAL, message)
        limit = self._wanted.scaling.max_time
        time_up = limit and not scheduler.failed and time.monotonic() - self._reporter.begun > limit
        code = TIME_UP if time_up else scheduler.stop_code
        return await self._stop(scheduler.state.stopped, code)

    async def _good_end(self) -> int:
        """Merge what came home, if that was asked for: nothing is left to do here."""
        repository = self._repository
        reporter = self._reporter
        backlog = await repository.thread(repository.thread.store.backlog, repository.id)
        if self._wanted.scaling.every == 0 and not backlog.drained:
            return await self._stop("The workers are started", 0)
        await self._scheduler.left()
        await self._scheduler.make_parts_whole()
        await self._scheduler.stop("")
        await reporter.write_status(CrawlState.COLLECTING)
        undelivered = await reporter.published([])
        if undelivered:
            message = (
                f"{undelivered} All else is done; the same command delivers them:"
                f" {self._wanted.command}"
            )
            return await self._let_go(CrawlState.STOPPED, PARTIAL, message)
        stored = await repository.for_delivery(self._nodes.prepared.key)
        package = self._wanted.package() if self._outputs.typed else ""
        delivered = await deliver_to(
            self._outputs,
            self._host,
            repository.folder,
            package=package,
            own=[],
            feed_url=None,
            **stored,
        )
        reporter.note_files(delivered)
        accepted = accepted_of(stored["attempts"])
        logins = login_pages(accepted)
        reporter.warn(*delivered.warnings, *map(str, values_as_text(accepted)), *logins)
        if self._scheduler.incomplete:
            message = (
                f"{self._scheduler.state.stopped} All that it left here is done. Start it again, it"
                f" goes on in its place; and then: {self._wanted.command}"
            )
            return await self._let_go(CrawlState.INCOMPLETE, PARTIAL, message)
        code = self._judge(has_losses=bool(delivered.lost or logins))
        if self._scheduler.state.goal:
            return await self._let_go(CrawlState.STOPPED, code, self._describe_goal(backlog))
        if backlog.finished:
            return await self._let_go(CrawlState.FINISHED, code, "")
        prefix = self._wanted.scaling.prefix
        message = f"Nothing is left in the slots {prefix}*, and others wait."
        return await self._let_go(CrawlState.STOPPED, code, message)

    def _judge(self, *, has_losses: bool) -> int:
        """Return the exit code of the work that is done, with a warning if it gave no item."""
        summary = self._reporter.summary(CrawlState.FINISHED)
        may_lack_items = self._wanted.rows or self._wanted.strategy
        if summary["requests"]["done"] and not summary["items"] and not may_lack_items:
            self._reporter.warn(NO_ITEMS)
        code = exit_code(summary, max_failed=self._nodes.request.options.max_failed)
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
            f" their items home: {self._wanted.command}"
        )

    async def _let_go(self, state: CrawlState, code: int, message: str) -> int:
        """Give the frontier's row its end, and return the exit code."""
        await self.stop_clock()
        self._reporter.snapshot.message = message
        await _end_row(self._repository, state, code, message, self._reporter.summary(state))
        return code
