"""Start the consumption of a frontier: from what was asked for to workers that lease from it.

The rule it keeps: one process at a time does so at a frontier, and nothing is started before the
checks are through.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from socket import gethostname
from typing import Any

from scrapy import Spider

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import INTERRUPTED, ConfigError, DistError
from scrapyd_dist.items.merging import is_elsewhere
from scrapyd_dist.keys import state_key
from scrapyd_dist.progress.crawl_summary import Snapshot
from scrapyd_dist.settings import find_warnings
from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.transports import AsyncSender

from ..throttle.install import why_not_heeded
from .callback_check import check_callbacks, job_crawler
from .consume_request import ConsumeRequest
from .consume_run import ConsumeRun, check_mine, in_use
from .crawl_check import check_mode
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository, find_row, open_thread
from .feed_outputs import CrawlOutputs, shown
from .merged_feeds import FeedHost, MergedFeeds, package_of
from .process import check_known
from .run_delivery import RunDelivery
from .run_order import RunStart
from .scrapy_parts import check_parts
from .spider_check import check_spider
from .status_reporter import FrontierReporter
from .strategy_process import StrategyThread

logger = logging.getLogger(__name__)


class FrontierStart(RunStart[type[Spider], CrawlNodes, ConsumeRun]):
    """Starts the consumption of a frontier, or refuses it.

    `show` is given the summary now and then; `began` is when the process was asked for, by the
    monotonic clock.
    """

    def __init__(
        self,
        request: ConsumeRequest,
        *,
        sender: AsyncSender,
        show: Callable[[dict[str, Any]], None],
        began: float,
    ) -> None:
        super().__init__()
        self._request = request
        self._settings = request.settings
        self._sender = sender
        self._interrupted = asyncio.Event()  #: no worker is started any more
        self._show = show
        self._began = began

    def check(self) -> type[Spider]:
        """Return the spider; DistError if the project has none of that name, or it suits no job."""
        kind = check_known(self._settings, self._request.crawl.spider)
        check_spider(kind, self._settings)
        return kind

    # claim

    async def claim(self, checked: type[Spider]) -> CrawlRepository:
        """Make this process the one that consumes the frontier; ConfigError if another one does."""
        thread = open_thread(self._request.crawl)
        try:
            return await self._claim(thread, checked)
        except BaseException:
            thread.close()
            raise

    async def _claim(self, thread: StoreThread, kind: type[Spider]) -> CrawlRepository:
        request = self._request
        crawl = request.crawl
        crawler = None if request.rows else job_crawler(kind, self._settings, crawl.args)
        if crawler is not None:
            await thread(
                check_callbacks,
                thread.store,
                request.frontier,
                crawler,
                key=state_key(crawl.project.state),
                prefix=request.scaling.prefix,
            )
        is_claimed = await thread(
            thread.store.claim,
            request.frontier,
            pid=os.getpid(),
            host=gethostname(),
            before=request.before,
        )
        if not is_claimed:
            raise in_use(request.frontier)
        row = await find_row(thread, crawl)
        repository = CrawlRepository(thread, row, crawl)
        await repository.take_up()
        await thread(thread.store.want, repository.id, "")
        return repository

    # prepare

    async def prepare(self, checked: type[Spider], repository: CrawlRepository) -> CrawlNodes:
        """Bring the code to the nodes; DistError if none can be used.

        From now on Ctrl-C ends the work in good order.
        """
        self._listen()
        crawl = self._request.crawl
        if not self._request.rows:
            check_mode(crawl.options, self._settings)
            check_parts(self._settings)
        return await CrawlNodes.prepare(crawl, repository)

    def _listen(self) -> None:
        """Let Ctrl-C end the work in good order; a second one ends this process as it stands."""

        def signalled() -> None:
            """End in good order; at the second signal at once."""
            if self._interrupted.is_set():
                os._exit(INTERRUPTED)
            self._interrupted.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)

    # begin

    async def begin(self, checked: type[Spider], prepared: CrawlNodes) -> ConsumeRun:
        """Start the workers, or take up those that there are.

        ConfigError if items could not be written where they shall go.
        """
        request = self._request
        settings = self._settings
        repository = prepared.repository
        outputs = repository.outputs(settings) if request.merge else CrawlOutputs()
        host = self._feed_host(checked, outputs)
        spec = await prepared.job_request(settings, rows=request.rows, typed=outputs.typed)
        scheduler = prepared.scheduler(spec, sender=self._sender, staffing=request.scaling)
        await check_mine(repository)
        publisher = await repository.publisher()
        away = await _parts_away(repository) if request.merge else ""
        if away and request.crawl.options.outputs:
            raise ConfigError(away)
        await scheduler.recover()
        endangered = await repository.thread(repository.thread.store.warnings)
        warnings = [
            *find_warnings(settings, request.crawl.args),
            *endangered,
            *prepared.prepared.warnings,
            *self._output_warnings(away),
        ]
        reporter = FrontierReporter(
            repository=repository,
            scheduler=scheduler,
            snapshot=Snapshot(
                scheduler=scheduler.state, unheeded=why_not_heeded(settings), warnings=warnings
            ),
            publisher=publisher,
            show=self._show,
            begun=self._began,
        )
        await reporter.recall()
        for warning in warnings:
            logger.warning("%s", warning)
        version = prepared.prepared.version
        await reporter.write_status(
            CrawlState.WORKING, version=version, spider=request.crawl.spider
        )
        strategy = None
        if not self._interrupted.is_set():
            strategy = await self._begin_strategy(repository)
            scheduler.start()
        delivered = CrawlOutputs() if away else outputs
        return ConsumeRun(
            request,
            reporter,
            RunDelivery(
                reporter=reporter,
                outputs=delivered,
                host=host,
                key=prepared.prepared.key,
                package=self._package if delivered.typed else str,
            ),
            strategy=strategy,
            interrupted=self._interrupted,
            max_failed=prepared.request.options.max_failed,
        )

    async def _begin_strategy(self, repository: CrawlRepository) -> StrategyThread | None:
        """Register the strategy beside the workers, if one decides what is requested."""
        runner = self._request.strategy
        if runner is None:
            return None
        await repository.thread(runner.begin, repository.thread.store)
        return StrategyThread(runner)

    def _output_warnings(self, away: str) -> list[str]:
        """Warn of output that is not written; `away`: why parts cannot be merged."""
        warnings = []
        if away:
            warnings.append(f"no file of all items is written: {away}")
        if self._settings.getdict("FEEDS") and not self._request.rows:
            warnings.append(
                "FEEDS: nothing is written there; -o FILE names the file of a frontier's items."
            )
        return warnings

    def _feed_host(self, kind: type[Spider], outputs: CrawlOutputs) -> FeedHost | None:
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
        host = FeedHost.with_new_spider(kind, self._settings, self._request.crawl.args)
        MergedFeeds(host, outputs.feeds)
        return host

    def _package(self) -> str:
        """Return the project's package, whose modules have the classes of items.

        It is empty if the spider cannot be imported.
        """
        try:
            return package_of(check_known(self._settings, self._request.crawl.spider))
        except DistError as error:
            logger.warning("items keep what their lines of JSON have: %s", error)
            return ""


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
