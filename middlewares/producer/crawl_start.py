"""The start of a crawl: its checks, its row, the code on its nodes, its scheduler."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.progress.completion_policy import CompletionPolicy
from scrapyd_dist.scheduling.job_request import JobRequest
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
    asked_for,
    check_mode,
    check_parts,
    check_spider,
    job_settings,
    loop_sender,
    shards_of,
    shared_settings,
    template_of,
    worker_settings,
)
from .crawl_run import CrawlRun
from .discovery import IndexWalk, OwnItems, new_capture
from .preflight import find_project
from .producer_options import read_options
from .status_reporter import CrawlParts, StatusReporter

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapyd_dist.errors import DistError
    from scrapyd_dist.scheduling.batcher import Demand

    from .crawl_code import CrawlCode
    from .crawl_request import CrawlRequest
    from .producer_options import ProducerOptions

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
        asked = asked_for(settings)
        project = find_project(settings.get("SETTINGS_MODULE"), settings.get("BOT_NAME"))
        shards = shards_of(options, spider)
        thread = open_thread(options, project)
        try:
            row = await find_row(thread, options, project, spider.name, asked)
        except BaseException:
            thread.close()
            raise
        counted = partial(count_found, self._crawler)
        self._repository = repository = CrawlRepository(thread, row, options, project, counted)
        await repository.take_up()
        charge_pages_to(self._crawler, repository.home)
        warnings = [*complaints(settings), *await repository.warnings(), *await self._rules(repository, options)]
        for warning in warnings:
            logger.warning("%s", warning)
        code = await repository.code()
        fleet = await CrawlNodes.prepare(options, project, spider.name, repository, code)
        kept, options = await repository.keep_code(fleet.prepared), fleet.options
        index = IndexWalk(await repository.take_shards(shards), template_of(options))
        own = OwnItems(repository.parts)
        spec = await self._spec(repository, fleet, options, spider, asked)
        scheduler = await fleet.scheduler(spec, repository=repository, sender=sender)

        def demand() -> Demand:
            return scheduler.demand(index.more(repository.counts.get("sealed", 0) + capture.buffered, capture.room))

        capture = new_capture(options, self._crawler, demand, project=project.name, key=fleet.prepared.key)
        capture.remember(await repository.fingerprints())
        if options.limit:
            capture.room = max(0, options.limit - repository.counts.get("sealed", 0))
        own.recall(keep=not index.unfinished())
        await scheduler.recover()
        parts = CrawlParts(
            options=options, target=target, repository=repository, fleet=fleet, index=index, capture=capture, own=own,
            scheduler=scheduler, sender=sender, policy=self._policy,
        )  # fmt: skip
        reporter = StatusReporter(
            repository=repository,
            scheduler=scheduler,
            parts=parts,
            warnings=warnings,
            code=[*fleet.prepared.code, *_of_this_process(code, repository)],
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

    async def _rules(self, repository: CrawlRepository, options: ProducerOptions) -> list[str]:
        """Warn of the store's rules.

        Raises:
            ConfigError: the crawl cannot heed them, and was not told to go on without them.
        """
        why = why_not_heeded(self._crawler.settings)
        rules = await repository.rules()
        if not rules:
            return []
        if why and options.heeds:
            raise ConfigError(f"The store has rules of `sdist throttle`, and this crawl cannot heed them. {why}")
        heeding = f"this crawl heeds none of them: {why}" if why else "all processes of this crawl heed them"
        return [f"rules of `sdist throttle` in the store: {rules}; {heeding}"]

    async def _spec(
        self,
        repository: CrawlRepository,
        fleet: CrawlNodes,
        options: ProducerOptions,
        spider: Spider,
        asked: CrawlRequest,
    ) -> JobRequest:
        settings = self._crawler.settings
        return JobRequest(
            crawl=repository.id,
            home=repository.home,
            project=fleet.project.name,
            spider=spider.name,
            version=fleet.prepared.version,
            settings={**worker_settings(options, settings), **job_settings(asked, options)},
            args=asked.args,
            shared=shared_settings(settings),
            feed=options.feed_url is not None,
            collected=await repository.collected(),
            lease=options.lease,
            ways=fleet.ways,
        )


def _of_this_process(code: CrawlCode, repository: CrawlRepository) -> list[str]:
    """Warn where the project was imported before it was known which code the crawl runs."""
    if runs_here(code, repository.folder):
        return []
    why = "This process, which sdist did not start, walks the index with the working tree's code all the same."
    return [f"{why} sdist resume {repository.id} runs one code for both."]


def _log_start(parts: CrawlParts, reporter: StatusReporter) -> None:
    prepared = parts.fleet.prepared
    reporter.warn(*parts.fleet.warnings)
    for note in reporter.code:
        logger.warning("%s", note)
    for name, reason in parts.fleet.unreached.items():
        logger.info("%s is sent its batches: %s", name, reason)
    logger.info(
        "Crawl %s: target requests (%s) %s %d nodes in batches of up to %d; version %s%s; state in %s",
        parts.repository.id,
        parts.target.how,
        "are leased by workers on" if parts.options.leases else "go to",
        len(prepared.probes),
        parts.options.batch_size,
        prepared.version,
        f", uploaded to {', '.join(prepared.uploaded)}" if prepared.uploaded else "",
        parts.fleet.project.state,
    )
