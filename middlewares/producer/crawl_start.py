"""Start a crawl: from the settings of its process to the scheduler that gives out its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scrapy.crawler import Crawler

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConfigError, CrawlFailed, DistError
from scrapyd_dist.progress.crawl_summary import Snapshot
from scrapyd_dist.scheduling.fingerprints import FingerprintSet
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.settings import find_warnings
from scrapyd_dist.store.store_thread import StoreThread

from ..classifier import count_found
from ..slot_routing import SlotRouting
from ..targets import describe_target
from ..throttle.install import charge_pages_to, why_not_heeded
from ..throttle.install import problem_of as throttle_problem
from .completion_hooks import notify_on_finish, read_on_finish, refusal
from .crawl_check import CheckedCrawl, check_asked, check_target
from .crawl_code import code_of, note_on_process
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository, find_row, open_thread
from .crawl_request import CrawlRequest, check_reactor, loop_sender
from .crawl_run import CrawlRun
from .discovery import Capture, FleetDemand, OwnItems, RequestRoom, new_cutter
from .early_start import EarlyStart, tell_of_workers
from .feed_outputs import CrawlOutputs, watches_feeds
from .index_walk import IndexWalk
from .run_delivery import RunDelivery
from .run_order import RunStart
from .start_pages import template_of
from .status_reporter import StatusReporter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PreparedCrawl:
    """Holds the nodes of a crawl, which have its code, and what was noticed on the way there."""

    nodes: CrawlNodes
    code_notes: Sequence[str]  #: remarks on the target and on the code that is run
    warnings: Sequence[str]
    kept: dict[str, Any]  #: what the row gets with its new state


class CrawlStart(RunStart[CheckedCrawl, PreparedCrawl, CrawlRun]):
    """Starts one crawl, or refuses it."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__()
        self._crawler = crawler
        self._on_finish = ""

    # check

    def check(self) -> CheckedCrawl:
        """Return what was asked for; ConfigError if the crawl, or this process, cannot do that."""
        settings = self._crawler.settings
        spider = self._crawler.spider
        assert spider
        self._on_finish = read_on_finish(settings)
        asked = check_asked(settings, spider)
        if problem := throttle_problem(self._crawler):
            raise ConfigError(problem)
        check_reactor(settings)
        return check_target(asked, settings, spider)

    # claim

    async def claim(self, checked: CheckedCrawl) -> CrawlRepository:
        """Open the store, and let the crawl's row name this process; it is a new row, or its own.

        DistError if the store or the row cannot be used.
        """
        early = await self._find_early(checked.request)
        repository = await (early.row() if early else self.open_row(checked.request))
        self.repository = repository
        charge_pages_to(self._crawler, repository.home)
        return repository

    async def _find_early(self, request: CrawlRequest) -> EarlyStart | None:
        """Return what was begun earlier for this request; for another one it is withdrawn."""
        early = EarlyStart.for_crawler(self._crawler)
        if early is None or early.request == request:
            return early
        await early.leave(self._crawler)
        return None

    async def open_row(self, request: CrawlRequest) -> CrawlRepository:
        """Open the store, and let the crawl's row name this process; errors as of `claim`."""
        thread = open_thread(request)
        row = await _find_row(thread, request)
        repository = CrawlRepository(thread, row, request, partial(count_found, self._crawler))
        self.repository = repository  # now: there is a row that says why the crawl is refused
        await repository.take_up()
        return repository

    # prepare

    async def prepare(self, checked: CheckedCrawl, repository: CrawlRepository) -> PreparedCrawl:
        """Warn of what was noticed; bring the code to the nodes, and keep it with the crawl.

        DistError if the crawl cannot heed the store's rules, or no node can be used.
        """
        settings = self._crawler.settings
        request = checked.request
        rules = await self._warn_of_rules(repository, heeds=request.options.heeds)
        endangered = await repository.thread(repository.thread.store.warnings)
        guessed = describe_target(checked.target, settings)
        found = find_warnings(settings, vars(self._crawler.spider))
        warnings = [*found, *endangered, *rules]
        for warning in (*checked.differences, *warnings, *guessed):
            logger.warning("%s", warning)
        early = EarlyStart.for_crawler(self._crawler)
        nodes = await (early.nodes() if early else self.find_nodes(request, repository))
        kept = await repository.keep_code(nodes.prepared)
        on_process = note_on_process(nodes.code, repository.row, repository.folder)
        return PreparedCrawl(
            nodes=nodes,
            code_notes=[*guessed, *nodes.prepared.code, *on_process],
            warnings=warnings,
            kept=kept,
        )

    async def find_nodes(self, request: CrawlRequest, repository: CrawlRepository) -> CrawlNodes:
        """Find the nodes, and bring them the code.

        DistError if the crawl cannot heed the store's rules, or no node can be used.
        """
        await self._warn_of_rules(repository, heeds=request.options.heeds)
        row = repository.row
        root = request.project.root
        code = await repository.thread(code_of, row, repository.folder, root, request.store)
        return await CrawlNodes.prepare(request, repository, code)

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

    # begin

    async def begin(self, checked: CheckedCrawl, prepared: PreparedCrawl) -> CrawlRun:
        """Take up the shards, batches and jobs of an earlier process, and start the scheduler."""
        nodes = prepared.nodes
        repository = nodes.repository
        options = nodes.request.options  # without leases, where no node reaches the store
        index = IndexWalk(await repository.take_shards(checked.shards), template_of(options))
        outputs = self._choose_outputs(nodes)
        own = OwnItems(repository.parts, typed=outputs.typed)
        scheduler = await self._new_scheduler(nodes, index, own)
        if early := EarlyStart.for_crawler(self._crawler):
            await early.settle(scheduler.state.spec)
        capture = await self._new_capture(nodes, scheduler, index)
        own.recall(keep=not index.unfinished())
        await scheduler.recover()
        reporter = StatusReporter(
            repository=repository,
            scheduler=scheduler,
            snapshot=self._new_snapshot(checked, prepared, scheduler),
            index=index,
            capture=capture,
            own=own,
            publisher=await repository.publisher(),
        )
        await reporter.recall()
        await reporter.write_status(CrawlState.FINDING, **prepared.kept)
        scheduler.start()
        delivery = RunDelivery(
            reporter=reporter,
            outputs=outputs,
            host=self._crawler,
            key=nodes.prepared.key,
            own=own,
            feed_url=options.target_feed_url,
        )
        run = CrawlRun(
            self._crawler, checked.target, nodes, reporter, delivery, on_finish=self._on_finish
        )
        _log_start(checked, nodes, reporter)
        return run

    def _choose_outputs(self, nodes: CrawlNodes) -> CrawlOutputs:
        """Return where the items go."""
        # With a feed URL items come as lines of JSON, of which the exporter could not make the
        # spider's items.
        has_feed_url = nodes.request.options.target_feed_url is not None
        wants_exporter = not has_feed_url and watches_feeds(self._crawler)
        return nodes.repository.outputs(self._crawler.settings, wants_exporter=wants_exporter)

    async def describe_jobs(self, nodes: CrawlNodes) -> JobRequest:
        """Return what all jobs of the crawl have in common."""
        options = nodes.request.options
        return await nodes.job_request(
            self._crawler.settings,
            feed=options.target_feed_url is not None,
            typed=self._choose_outputs(nodes).typed,
            lease=options.scaling.terms.lease,
            ways=nodes.ways,
        )

    async def _new_scheduler(self, nodes: CrawlNodes, index: IndexWalk, own: OwnItems) -> Scheduler:
        """Return the scheduler of the crawl's batches, which has not begun."""
        spec = await self.describe_jobs(nodes)
        counts = partial(_own_counts, index, own)
        return nodes.scheduler(spec, sender=loop_sender(self._crawler.settings), counts=counts)

    async def _new_capture(
        self, nodes: CrawlNodes, scheduler: Scheduler, index: IndexWalk
    ) -> Capture:
        """Return what catches target requests; it knows those that the crawl found before."""
        repository = nodes.repository
        options = nodes.request.options
        room = RequestRoom.within(options.limit, repository.counts["sealed"])
        demand = FleetDemand(scheduler=scheduler, repository=repository, index=index, room=room)
        thread = repository.thread
        before = await thread(lambda: FingerprintSet(thread.store.fingerprints(repository.id)))
        return Capture(
            crawler=self._crawler,
            cutter=new_cutter(options, demand),
            key=nodes.prepared.key,
            stay=options.unsendable,
            slotting=self._new_slotting(nodes.request),
            room=room,
            before=before,
        )

    def _new_slotting(self, request: CrawlRequest) -> SlotRouting | None:
        """Return what chooses the slots of requests; None where batches are sent."""
        if not request.options.leases:
            return None
        return SlotRouting.from_settings(
            self._crawler.settings, project=request.project.name, spider=request.spider
        )

    def _new_snapshot(
        self, checked: CheckedCrawl, prepared: PreparedCrawl, scheduler: Scheduler
    ) -> Snapshot:
        """Return what the summary is made of, with all that is known before the first request."""
        return Snapshot(
            scheduler=scheduler.state,
            earlier_versions=prepared.nodes.repository.earlier_versions,
            code=list(prepared.code_notes),
            unheeded=why_not_heeded(self._crawler.settings),
            differences=list(checked.differences),
            warnings=list(prepared.warnings),
        )

    # refuse

    async def refused(self, error: DistError) -> None:
        """Give the crawl's row its end, and notify `DISTRIBUTED_ON_FINISH`."""
        crawl = self._crawler.settings.get("DISTRIBUTED_CRAWL")
        # Also where this start has no row yet: the early one may be about to claim it.
        early = EarlyStart.for_crawler(self._crawler)
        if early is not None and await early.withdraw():
            error = CrawlFailed(tell_of_workers(str(error)), error.exit_code)
        if self.repository is not None:
            crawl = self.repository.id
            await self.repository.refuse(code=error.exit_code, message=str(error))
            self.repository.thread.close()
        if not self._on_finish:  # a process that is refused for its reactor has no loop to wait in
            return
        name = self._crawler.spider.name if self._crawler.spider else ""
        if wrong := await asyncio.to_thread(
            notify_on_finish, self._on_finish, refusal(crawl, name, error)
        ):
            logger.warning("%s", wrong)


def start_early(crawler: Crawler) -> None:
    """Begin the start of a crawl, if it passes the checks that need no engine.

    What it does not pass is told in its turn, by another `CrawlStart`.
    """
    settings = crawler.settings
    spider = crawler.spider
    assert spider
    try:
        read_on_finish(settings)
        check_reactor(settings)
        checked = check_target(check_asked(settings, spider), settings, spider)
    except Exception:  # noqa: BLE001  (the project's code may raise anything)
        return
    EarlyStart(checked.request, CrawlStart(crawler)).begin(crawler)


async def _find_row(thread: StoreThread, request: CrawlRequest) -> Crawl:
    """Return the row of the crawl; without one, the store is left."""
    try:
        return await find_row(thread, request)
    except BaseException:
        thread.close()
        raise


def _own_counts(index: IndexWalk, own: OwnItems) -> dict[str, int]:
    """Return how much a crawl's own process has done."""
    return {"items": own.count, "pages": index.pages + index.done_before}


def _log_start(checked: CheckedCrawl, nodes: CrawlNodes, reporter: StatusReporter) -> None:
    """Log what was found out about nodes and code, and what begins."""
    prepared = nodes.prepared
    options = nodes.request.options
    reporter.warn(*prepared.warnings)
    for note in reporter.snapshot.code:
        logger.warning("%s", note)
    for member in prepared.members:
        unreached = member.readiness.unreached
        if unreached:
            logger.info("%s is sent its batches: %s", member.node.name, unreached)
    how = "are leased by workers on" if options.leases else "go to"
    uploaded = ""
    if prepared.uploaded:
        uploaded = f", uploaded to {', '.join(prepared.uploaded)}"
    logger.info(
        "Crawl %s: target requests (%s) %s %d nodes in batches of up to %d; version %s%s;"
        " state in %s",
        reporter.repository.id,
        checked.target.how,
        how,
        len(prepared.members),
        options.batch_size,
        prepared.version,
        uploaded,
        nodes.request.project.state,
    )
