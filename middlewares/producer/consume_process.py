"""The process behind `sdist consume`: it keeps workers running at one frontier, and brings home what they did.

The rules it keeps: one process at a time does so at a frontier; nothing is started before the checks are through; the
next process takes up what this one leaves behind (workers, parts on their way).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.frontier.backlog import UNFAIR
from scrapyd_dist.items.delivery import deliver
from scrapyd_dist.progress.summary import exit_code
from scrapyd_dist.scheduling.job_request import JobRequest, passed_on
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.settings import complaints
from scrapyd_dist.transports.requests import ThreadTransport

from ..throttle.install import why_not_heeded
from .crawl_nodes import CrawlNodes, in_thread, stop_code
from .crawl_repository import CrawlRepository, find_row, open_thread
from .crawl_request import CrawlRequest, check_mode, check_parts, job_settings, shared_settings, worker_settings
from .lifecycle import Lifecycle
from .preflight import find_project
from .process import check_known
from .producer_options import read_options
from .status_reporter import FrontierReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy.settings import Settings

    from scrapyd_dist.items.merging import ItemOutput
    from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
    from scrapyd_dist.scheduling.worker_request import WorkerRequest
    from scrapyd_dist.store.worker_thread import StoreThread
    from scrapyd_dist.transports import AsyncSender

    from .producer_options import ProducerOptions


class FrontierLock:
    """This process's claim to a frontier: the frontier's row names one process."""

    def __init__(self, thread: StoreThread, frontier: str) -> None:
        self._thread = thread
        self._frontier = frontier

    async def take(self, before: tuple[int | None, str]) -> None:
        """From now on the row names this process.

        Args:
            before: the process that the row named when it was seen that none works there; its machine.

        Raises:
            ConfigError: another one was faster.
        """
        claim = self._thread.store.claim
        mine = partial(claim, self._frontier, pid=os.getpid(), host=gethostname(), before=before)
        if not await self._thread(mine):
            raise _taken(self._frontier)

    async def check(self) -> None:
        """Refuse to go on beside another process.

        Raises:
            ConfigError: the frontier is another one's now.
        """
        if not await self.is_mine():
            raise _taken(self._frontier)

    async def is_mine(self) -> bool:
        """Whether the row still names this process."""
        row = await self._thread(self._thread.store.crawl, self._frontier)
        return (row.pid, row.host) == (os.getpid(), gethostname())


def _taken(frontier: str) -> ConfigError:
    return ConfigError(
        f"Another process keeps the workers of the frontier {frontier} running now, and two would start too many."
        f" `sdist status {frontier}` says which one; stop it first, or let it do the work."
    )


def check_staffing(asked: ScalingPolicy, terms: WorkerRequest) -> None:
    """Refuse what contradicts itself; before anything is done.

    Raises:
        ConfigError: workers cannot be started so.
    """
    if terms.fair != UNFAIR and asked.prefix:
        raise ConfigError(
            f"Workers that share slots fairly ({terms.fair}: --fair, DISTRIBUTED_FAIR) take from all of them, and"
            f" --slots {asked.prefix} binds each to one. Leave out one of the two; `-s DISTRIBUTED_FAIR=` takes back"
            " what the project's settings say."
        )


logger = logging.getLogger(__name__)


#: seconds between two looks at the clock, and two summaries
TICK = 0.5


#: exit codes: it failed, not all was found, the time was up, Ctrl-C
FAILED, PARTIAL, TIME_UP, INTERRUPTED = 1, 3, 124, 130


@dataclass(frozen=True, kw_only=True)
class ConsumeRequest:
    """What a person asked for."""

    spider: str
    scaling: ScalingPolicy  #: but for the terms, which are settings
    args: Mapping[str, str] = field(default_factory=dict)  #: of -a
    given: Mapping[str, str] = field(default_factory=dict)  #: of -s
    labels: Sequence[str] = ()
    merge: bool = False  #: whether outputs were named
    rows: bool = False  #: the frontier's rows are arguments, each of which is a job
    before: tuple[int | None, str] = (None, "")  #: the process and machine that the row named when it was looked at


class ConsumeProcess:
    """Starts the consumption of a frontier.

    Args:
        errand: what was asked for.
        settings: the project's, with what was asked for; DISTRIBUTED_CRAWL is the frontier.
        show: is given the summary now and then.
    """

    def __init__(self, errand: ConsumeRequest, settings: Settings, show: Callable[[dict[str, Any]], None]) -> None:
        check_args(errand.args)
        self._errand, self._settings, self._show = errand, settings, show
        self._options = read_options(settings)
        if not errand.rows:
            check_staffing(errand.scaling, self._options.scaling.terms)
        self._project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        self._asked = CrawlRequest(args=errand.args, settings=passed_on(errand.given), given=errand.given)
        self._interrupted = asyncio.Event()
        self._begun = time.monotonic()

    async def run(self) -> int:
        """Do it; the exit code.

        Raises:
            DistError: nothing was started, for this reason.
        """
        options, spider = self._options, self._errand.spider
        check_known(self._settings, spider)
        thread, sender = open_thread(options, self._project), ThreadTransport()
        try:
            lock = FrontierLock(thread, str(options.crawl))
            await lock.take(self._errand.before)
            row = await find_row(thread, options, self._project, spider, self._asked)
            repository = CrawlRepository(thread, row, options, self._project)
            await repository.take_up()
            await thread(thread.store.want, repository.id, "")
            try:
                work = await self._begin(lock, repository, sender)
            except BaseException as error:
                await end_row(lock, repository, CrawlState.STOPPED, FAILED, str(error))
                raise
            return await work.keep()
        finally:
            sender.close()
            thread.close()

    async def _begin(self, lock: FrontierLock, repository: CrawlRepository, sender: AsyncSender) -> ConsumeRun:
        self._listen()
        options, spider = self._options, self._errand.spider
        if not self._errand.rows:
            check_mode(options, self._settings)
            check_parts(self._settings)
        fleet = await CrawlNodes.prepare(options, self._project, spider, repository)
        spec = await self._spec(repository, fleet.prepared.version)
        manager = await fleet.scheduler(spec, repository=repository, sender=sender, staffing=self._errand.scaling)
        await lock.check()
        outputs = repository.outputs(self._settings) if self._errand.merge else []
        if self._errand.merge:
            await _check_parts(repository)
        await manager.recover()
        warnings = [*complaints(self._settings), *await repository.warnings(), *fleet.prepared.warnings]
        reporter = FrontierReporter(
            repository=repository,
            scheduler=manager,
            show=self._show,
            begun=self._begun,
            unheeded=why_not_heeded(self._settings),
            warnings=warnings,
        )
        await reporter.begin()
        for warning in warnings:
            logger.warning("%s", warning)
        await reporter.tell(CrawlState.WORKING, version=fleet.prepared.version, spider=spider)
        if not self._interrupted.is_set():
            manager.start()
        return ConsumeRun(self._errand, options, lock, reporter, fleet, outputs, self._interrupted)

    def _listen(self) -> None:
        """From now on Ctrl-C ends the managing in good order; a second one ends this process as it stands."""

        def signalled() -> None:
            if self._interrupted.is_set():
                os._exit(INTERRUPTED)
            self._interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)

    async def _spec(self, repository: CrawlRepository, version: str | None) -> JobRequest:
        asked = {**worker_settings(self._options, self._settings), **job_settings(self._asked, self._options)}
        labels = {"DISTRIBUTED_LABELS": ",".join(self._errand.labels)} if self._errand.labels else {}
        return JobRequest(
            crawl=repository.id,
            home=repository.home,
            project=self._project.name,
            spider=self._errand.spider,
            version=version,
            settings={**asked, **labels},
            args=self._errand.args,
            shared=shared_settings(self._settings),
            collected=await repository.collected(),
            rows=self._errand.rows,
        )


async def _check_parts(repository: CrawlRepository) -> None:
    """Refuse to merge what came home to another machine.

    Raises:
        ConfigError: some of it did.
    """
    parts = [repository.parts / one.part for one in await repository.accepted() if one.part]
    away = await in_thread(lambda: sum(not part.is_file() for part in parts))
    if away:
        raise ConfigError(
            f"{away:,} of the {len(parts):,} parts of {repository.id} are not in {repository.parts}: they came home to"
            " the machine where it was worked on before. Consume it there, or bring that folder here; or leave out -o,"
            " and merge them later."
        )


async def end_row(
    lock: FrontierLock,
    repository: CrawlRepository,
    state: CrawlState,
    code: int,
    message: str,
    document: dict[str, Any] | None = None,
) -> None:
    """This process keeps no workers running any more; another one's row stays as it is."""
    with suppress(StoreError):
        if await lock.is_mine():
            await repository.end(state, code=code, message=message, summary=document)


class ConsumeRun(Lifecycle):
    """The consumption of a frontier that has begun."""

    def __init__(
        self,
        errand: ConsumeRequest,
        options: ProducerOptions,
        lock: FrontierLock,
        reporter: FrontierReporter,
        fleet: CrawlNodes,
        outputs: list[ItemOutput],
        interrupted: asyncio.Event,
    ) -> None:
        super().__init__(TICK)
        self._errand, self._options, self._lock, self._fleet = errand, options, lock, fleet
        self._reporter, self._repository, self._manager = reporter, reporter.repository, reporter.scheduler
        self._outputs, self._interrupted = outputs, interrupted
        self._failure = asyncio.Event()

    async def keep(self) -> int:
        """Keep workers running until nothing is left to do, they cannot go on, or the process is interrupted.

        Returns:
            The exit code.
        """
        self.run_clock()
        ends = (self._manager.ended(), self._interrupted.wait(), self._failure.wait())
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
            await self._let_go(CrawlState.STOPPED, FAILED, str(error))
            raise

    async def tick(self) -> None:
        """Do what users ask for, and report."""
        await self._lock.check()
        wanted = await self._repository.wanted()
        if wanted == "cancel":
            self._interrupted.set()
        elif (wanted == "pause") != self._manager.paused:
            self._manager.rest(paused=not self._manager.paused)
        await self._reporter.tell(self._repository.state)

    def failed(self, error: BaseException) -> None:
        self._failure.set()  # `keep` raises it

    async def finish(self, reason: str) -> None:
        """Report no more, and start no worker any more."""
        await self.stop_clock()
        await self._manager.stop(reason)

    # end

    async def _end(self) -> int:
        manager = self._manager
        if self._interrupted.is_set():
            return await self._stop("Interrupted", INTERRUPTED)
        if not manager.stopped or manager.incomplete:
            return await self._good_end()
        limit = self._errand.scaling.max_time
        time_up = limit and not manager.failed and time.monotonic() - self._reporter.begun > limit
        return await self._stop(manager.stopped, TIME_UP if time_up else stop_code(manager))

    async def _good_end(self) -> int:
        """Nothing is left to do here: merge what came home, if that was asked for."""
        repository, reporter = self._repository, self._reporter
        backlog = await repository.thread(repository.thread.store.backlog, repository.id)
        if self._errand.scaling.every == 0 and not backlog.drained:
            return await self._stop("The workers are started", 0)
        await self._manager.left()
        await self._manager.stop("")
        await reporter.tell(CrawlState.COLLECTING)
        stored = await repository.for_delivery(self._fleet.prepared.key)
        work = partial(deliver, repository.folder, own=[], outputs=self._outputs, feed_url=None, **stored)
        delivered = await in_thread(work)
        reporter.output, reporter.misses = delivered.outputs, delivered.misses
        if self._manager.incomplete:
            return await self._let_go(CrawlState.INCOMPLETE, PARTIAL, self._how_to_complete())
        code = exit_code(reporter.summary(CrawlState.FINISHED), max_failed=self._options.max_failed)
        if backlog.finished:
            return await self._let_go(CrawlState.FINISHED, code, "")
        prefix = self._errand.scaling.prefix
        return await self._let_go(CrawlState.STOPPED, code, f"Nothing is left in the slots {prefix}*, and others wait.")

    async def _stop(self, why: str, code: int) -> int:
        """Leave before the end of the frontier's work."""
        await self._manager.stop(why)
        return await self._let_go(CrawlState.STOPPED, code, f"{why.rstrip('.')}. {self._how_to_go_on()}")

    def _how_to_go_on(self) -> str:
        return (
            "Jobs that run go on by themselves; the same command takes them up again, and brings their items home:"
            f" sdist consume {self._errand.spider} {self._repository.id}"
        )

    def _how_to_complete(self) -> str:
        return (
            f"{self._manager.stopped} All that it left here is done. Start it again, it goes on in its place; and then:"
            f" sdist consume {self._errand.spider} {self._repository.id}"
        )

    async def _let_go(self, state: CrawlState, code: int, message: str) -> int:
        """Give the frontier's row its end."""
        await self.stop_clock()
        self._reporter.message = message
        await end_row(self._lock, self._repository, state, code, message, self._reporter.summary(state))
        return code
