"""The process behind `sdist consume`: workers are kept running at one frontier, and what they did comes home.

The rules it keeps: one process at a time does so at a frontier; nothing is started before the checks are through;
what it leaves behind in a hurry (workers, parts on their way) is taken up by the next one.
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
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.items.delivery import deliver
from scrapyd_dist.progress.summary import exit_code
from scrapyd_dist.scheduling.job_request import JobRequest, passed_on
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.transports.threads import ThreadTransport

from ..producer.crawl_nodes import CrawlNodes, in_thread
from ..producer.crawl_repository import CrawlRepository
from ..producer.crawl_request import CrawlRequest, check_parts, job_settings
from ..producer.factory import check_mode, shared_settings, stop_code, worker_settings
from ..producer.preflight import find_project
from ..producer.process import check_known
from ..producer.producer_options import read_options
from ..throttle.install import why_not_heeded
from .frontier_session import FrontierLock, FrontierReporter, check_staffing, new_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy.settings import Settings

    from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy

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
    """One run of the manager at a frontier, from the first check to the merged file.

    Args:
        errand: what was asked for.
        settings: the project's, with what was asked for; DISTRIBUTED_CRAWL is the frontier.
        show: is given the summary now and then.
    """

    _reporter: FrontierReporter
    _ticking: asyncio.Task[None]

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
        check_known(self._settings, self._errand.spider)
        self._repository, self._sender = CrawlRepository(self._options, self._project), ThreadTransport()
        try:
            self._hold = FrontierLock(self._repository)
            frontier = str(self._options.crawl)
            await self._hold.take(frontier, self._errand.spider, self._asked, self._errand.before)
            try:
                await self._begin()
                return await self._keep()
            except BaseException as error:
                await self._let_go(CrawlState.STOPPED, FAILED, str(error))
                raise
        finally:
            self._sender.close()
            self._repository.close()

    # begin

    async def _begin(self) -> None:
        self._listen()
        options, spider = self._options, self._errand.spider
        if not self._errand.rows:
            check_mode(options, self._settings)
            check_parts(self._settings)
        self._fleet = fleet = CrawlNodes(options, self._project, spider, self._repository.where, self._repository.rules)
        prepared = await fleet.prepare(await self._repository.nodes())
        spec, members = await self._spec(prepared.version), await fleet.members()
        self._manager = new_manager(
            options, spec, scaling=self._errand.scaling, fleet=fleet, members=members, repository=self._repository,
            sender=self._sender,
        )  # fmt: skip
        await self._hold.check()
        await self._check_parts()
        await self._manager.recover()
        bulletin = FrontierReporter(
            repository=self._repository,
            manager=self._manager,
            show=self._show,
            begun=self._begun,
            unheeded=why_not_heeded(self._settings),
        )
        await bulletin.begin()
        self._reporter = bulletin
        for warning in (*await self._repository.warnings(), *prepared.warnings):
            logger.warning("%s", warning)
            bulletin.warnings.append(warning)
        await bulletin.tell(CrawlState.WORKING, version=prepared.version, spider=spider)
        if not self._interrupted.is_set():
            self._manager.start()

    async def _check_parts(self) -> None:
        """Refuse to merge what came home to another machine.

        Raises:
            ConfigError: some of it did.
        """
        parts = [self._repository.parts / one.part for one in await self._repository.accepted() if one.part]
        away = await in_thread(lambda: sum(not part.is_file() for part in parts)) if self._errand.merge else 0
        if away:
            raise ConfigError(
                f"{away:,} of the {len(parts):,} parts of {self._repository.id} are not in"
                f" {self._repository.parts}: they came home to the machine where it was worked"
                " on before. Consume it there, or bring that folder here; or leave out -o, and merge them later."
            )

    def _listen(self) -> None:
        """From now on Ctrl-C ends the managing in good order; a second one ends this process as it stands."""

        def signalled() -> None:
            if self._interrupted.is_set():
                os._exit(INTERRUPTED)
            self._interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)

    async def _spec(self, version: str | None) -> JobRequest:
        asked = {**worker_settings(self._options, self._settings), **job_settings(self._asked, self._options)}
        labels = {"DISTRIBUTED_LABELS": ",".join(self._errand.labels)} if self._errand.labels else {}
        return JobRequest(
            crawl=self._repository.id,
            home=self._repository.home,
            project=self._project.name,
            spider=self._errand.spider,
            version=version,
            settings={**asked, **labels},
            args=self._errand.args,
            shared=shared_settings(self._settings),
            collected=await self._repository.collected(),
            rows=self._errand.rows,
        )

    # keep workers running

    async def _keep(self) -> int:
        """Until nothing is left to do, or it cannot go on, or somebody has had enough."""
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        others = [asyncio.create_task(work) for work in (self._manager.ended(), self._interrupted.wait())]
        try:
            await asyncio.wait([self._ticking, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._ticking.done():
                await self._ticking
            return await self._end()
        except StoreError as error:
            raise StoreError(f"{error} {self._how_to_go_on()}") from error
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(self._still(), *others, return_exceptions=True)
            await self._manager.stop("")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            await self._hold.check()
            wanted = await self._repository.wanted()
            if wanted == "cancel":
                self._interrupted.set()
            elif (wanted == "pause") != self._manager.paused:
                self._manager.rest(paused=not self._manager.paused)
            await self._reporter.tell(self._repository.state)

    async def _still(self) -> None:
        """Write nothing from time to time any more."""
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    # end

    async def _end(self) -> int:
        manager = self._manager
        if self._interrupted.is_set():
            return await self._stop("Interrupted", INTERRUPTED)
        if not manager.stopped or manager.incomplete:
            return await self._good_end()
        limit = self._errand.scaling.max_time
        time_up = limit and not manager.failed and time.monotonic() - self._begun > limit
        return await self._stop(manager.stopped, TIME_UP if time_up else stop_code(manager))

    async def _good_end(self) -> int:
        """Nothing is left to do here: merge what came home, if that was asked for."""
        backlog = await self._repository.thread(self._repository.thread.store.backlog, self._repository.id)
        if self._errand.scaling.every == 0 and not backlog.drained:
            return await self._stop("The workers are started", 0)
        await self._manager.left()
        await self._manager.stop("")
        await self._reporter.tell(CrawlState.COLLECTING)
        stored = await self._repository.for_delivery(self._fleet.prepared.key)
        outputs = self._repository.outputs(self._settings) if self._errand.merge else []
        work = partial(deliver, self._repository.folder, own=[], outputs=outputs, feed_url=None, **stored)
        self._reporter.delivered = await in_thread(work)
        if self._manager.incomplete:
            return await self._let_go(CrawlState.INCOMPLETE, PARTIAL, self._how_to_complete())
        code = exit_code(self._reporter.summary(CrawlState.FINISHED), max_failed=self._options.max_failed)
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
        """This process keeps no workers running any more."""
        document = None
        if hasattr(self, "_ticking"):
            await self._still()
        if hasattr(self, "_reporter"):
            self._reporter.message = message
            document = self._reporter.summary(state)
        with suppress(StoreError):
            await self._hold.end(state, code=code, message=message, summary=document)
        return code
