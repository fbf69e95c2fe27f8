"""The start of a crawl: its checks, its row, the code on its nodes, its scheduler."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.progress.completion_policy import CompletionPolicy
from scrapyd_dist.settings import complaints

from ..classifier import count_found
from ..targets import find_target
from ..throttle.install import charge_pages_to, why_not_heeded
from ..throttle.install import problem_of as throttle_problem
from .completion_hooks import read_wishes, refusal, tell_of_end
from .crawl_code import runs_here
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository, find_row, open_thread
from .crawl_request import (
    CrawlRequest,
    asked_for,
    check_mode,
    check_parts,
    check_spider,
    find_project,
    loop_sender,
    shards_of,
    template_of,
)
from .crawl_run import CrawlRun
from .discovery import IndexWalk, OwnItems, new_capture
from .producer_options import read_options
from .status_reporter import CrawlParts, StatusReporter

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapyd_dist.errors import DistError
    from scrapyd_dist.scheduling.batcher import Demand

    from .crawl_code import CrawlCode

logger = logging.getLogger(__name__)


class CrawlStart:
    """Starts one crawl, or refuses it."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._policy = CompletionPolicy()
        self._repository: CrawlRepository | None = None  #: once the crawl has a row

    async def start(self) -> CrawlRun:
        """Check everything, bring the code to the nodes, and start the scheduler.

        Raises:
            DistError: the crawl may not begin.
        """
        settings, spider = self._crawler.settings, self._crawler.spider
        assert spider
        self._policy = read_wishes(settings)
        options = read_options(settings)
        check_mode(options, settings)
        check_parts(settings)
        if problem := throttle_problem(self._crawler):
            raise ConfigError(problem)
        sender = loop_sender(settings)
        check_spider(spider)
        target = find_target(spider, settings)
        args, given = asked_for(settings)
        project = find_project(settings)
        request = CrawlRequest(spider=spider.name, options=options, project=project, args=args, given=given)
        shards = shards_of(options, spider)
        thread = open_thread(request)
        try:
            row = await find_row(thread, request)
        except BaseException:
            thread.close()
            raise
        self._repository = repository = CrawlRepository(thread, row, request, partial(count_found, self._crawler))
        await repository.take_up()
        charge_pages_to(self._crawler, repository.home)
        rules = await self._rules(repository, heeds=options.heeds)
        warnings = [*complaints(settings), *await repository.warnings(), *rules]
        for warning in warnings:
            logger.warning("%s", warning)
        code = await repository.code()
        nodes = await CrawlNodes.prepare(request, repository, code)
        kept, options = await repository.keep_code(nodes.prepared), nodes.request.options
        index = IndexWalk(await repository.take_shards(shards), template_of(options))
        own = OwnItems(repository.parts)
        feed = options.feed_url is not None
        spec = await nodes.job_request(settings, feed=feed, lease=options.lease, ways=nodes.ways)
        scheduler = await nodes.scheduler(spec, sender=sender)

        def demand() -> Demand:
            return scheduler.demand(index.more(repository.counts.get("sealed", 0) + capture.buffered, capture.room))

        capture = new_capture(options, self._crawler, demand, project=project.name, key=nodes.prepared.key)
        capture.remember(await repository.fingerprints())
        if options.limit:
            capture.room = max(0, options.limit - repository.counts.get("sealed", 0))
        own.recall(keep=not index.unfinished())
        await scheduler.recover()
        parts = CrawlParts(
            options=options, target=target, repository=repository, nodes=nodes, index=index, capture=capture, own=own,
            scheduler=scheduler, sender=sender, policy=self._policy,
        )  # fmt: skip
        reporter = StatusReporter(
            repository=repository,
            scheduler=scheduler,
            parts=parts,
            warnings=warnings,
            code=[*nodes.prepared.code, *_of_this_process(code, repository)],
            unheeded=why_not_heeded(settings),
        )
        await reporter.recall()
        await reporter.enter(CrawlState.FINDING, **kept)
        scheduler.start()
        _log_start(parts, reporter)
        return CrawlRun(self._crawler, parts, reporter)

    async def refused(self, error: DistError) -> None:
        """Give the crawl's row its end, and tell `DISTRIBUTED_ON_FINISH`."""
        crawl = self._crawler.settings.get("DISTRIBUTED_CRAWL")
        if self._repository is not None:
            crawl = self._repository.id
            await self._repository.refuse(code=error.exit_code, message=str(error))
            self._repository.close()
        for wrong in await tell_of_end(self._policy, refusal(crawl, self._crawler.spider, error)):
            logger.warning("%s", wrong)

    async def _rules(self, repository: CrawlRepository, *, heeds: bool) -> list[str]:
        """A warning of the store's rules; ConfigError if the crawl has to heed them (`heeds`), and cannot."""
        why = why_not_heeded(self._crawler.settings)
        rules = await repository.rules()
        if not rules:
            return []
        if why and heeds:
            raise ConfigError(f"The store has rules of `sdist throttle`, and this crawl cannot heed them. {why}")
        heeding = f"this crawl heeds none of them: {why}" if why else "all processes of this crawl heed them"
        return [f"rules of `sdist throttle` in the store: {rules}; {heeding}"]


def _of_this_process(code: CrawlCode, repository: CrawlRepository) -> list[str]:
    """Warn where the project was imported before it was known which code the crawl runs."""
    if runs_here(code, repository.folder):
        return []
    why = "This process, which sdist did not start, walks the index with the working tree's code all the same."
    return [f"{why} sdist resume {repository.id} runs one code for both."]


def _log_start(parts: CrawlParts, reporter: StatusReporter) -> None:
    nodes, prepared = parts.nodes, parts.nodes.prepared
    reporter.warn(*nodes.warnings)
    for note in reporter.code:
        logger.warning("%s", note)
    for member in nodes.members:
        if member.unreached:
            logger.info("%s is sent its batches: %s", member.node.name, member.unreached)
    logger.info(
        "Crawl %s: target requests (%s) %s %d nodes in batches of up to %d; version %s%s; state in %s",
        parts.repository.id,
        parts.target.how,
        "are leased by workers on" if parts.options.leases else "go to",
        len(prepared.probes),
        parts.options.batch_size,
        prepared.version,
        f", uploaded to {', '.join(prepared.uploaded)}" if prepared.uploaded else "",
        nodes.request.project.state,
    )
