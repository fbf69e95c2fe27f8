"""What a crawl writes into its row in the store (summary, samples, warnings) and reads there (pause, cancel)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Miss
from scrapyd_dist.progress.node_progress import Progress
from scrapyd_dist.progress.summary import IndexProgress, Snapshot, sample_of, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.crawler import Crawler

    from scrapyd_dist.batches import CrawlState

    from .crawl_repository import CrawlRepository
    from .discovery import Capture, IndexWalk, OwnItems
    from .factory import AnyCoordinator

logger = logging.getLogger(__name__)


class CrawlControl:
    """Follows what users ask of a running crawl through its row in the store."""

    def __init__(self, crawler: Crawler, repository: CrawlRepository, coordinator: AnyCoordinator) -> None:
        self._crawler, self._repository, self._coordinator = crawler, repository, coordinator
        self.cancelled = False

    @property
    def paused(self) -> bool:
        """Whether the crawl rests."""
        return self._coordinator.paused

    async def look(self) -> None:
        """Do what is wanted now, if it is something new."""
        wanted = await self._repository.wanted()
        if wanted == "cancel":
            self._cancel()
        elif (wanted == "pause") != self.paused:
            self._rest(paused=not self.paused)

    def _rest(self, *, paused: bool) -> None:
        engine = self._crawler.engine
        assert engine is not None
        logger.info("The crawl %s", "rests: it sends nothing and walks no index page" if paused else "goes on")
        self._coordinator.rest(paused=paused)
        if paused:
            engine.pause()
        else:
            engine.unpause()

    def _cancel(self) -> None:
        """End it; whoever wants that cancels its jobs, when this process sends no more."""
        if self.cancelled:
            return
        self.cancelled = True
        if self.paused:
            self._rest(paused=False)  # an engine that rests does not close
        self._coordinator.state.stop_now("The crawl was cancelled.")


#: seconds between two lines in the log
LOG_EVERY = 10.0


def heeding(why_not: str) -> str:
    """Whether the processes of a crawl heed the rules of the throttle, as a part of a sentence."""
    return f"this crawl heeds none of them: {why_not}" if why_not else "all processes of this crawl heed them"


@dataclass(frozen=True, kw_only=True)
class StatusSource:
    """What there is to tell of: the parts of a crawl that has begun."""

    repository: CrawlRepository
    index: IndexWalk
    capture: Capture
    own: OwnItems
    coordinator: AnyCoordinator
    control: CrawlControl

    @property
    def pages(self) -> int:
        """Index pages that were walked, by earlier processes too."""
        return self.index.pages + self.index.done_before


@dataclass(kw_only=True)
class StatusReporter:
    """Tells; what there is to tell of is set when the crawl begins."""

    warnings: list[str] = field(default_factory=list)
    code: Sequence[str] = ()  #: what is to be said of the code that runs
    message: str = ""  #: one paragraph for people: why it stopped
    unheeded: str = ""  #: why no process of the crawl heeds rules of the throttle
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    source: StatusSource = field(init=False)
    _local_missed: dict[str, int] = field(default_factory=lambda: {"gone": 0, "failed": 0})
    _progress: Progress = field(default_factory=Progress)
    _logged: float = field(default_factory=time.monotonic)

    async def begin(self, source: StatusSource) -> None:
        """Tell of this from now on, and of what an earlier process left of it."""
        self.source = source
        before = await source.repository.missed_before()
        source.index.failed = before["index"]
        for kind in self._local_missed:
            self._local_missed[kind] = before[kind]
        self._progress.recall(await source.repository.accepted())

    def warn(self, *warnings: str) -> None:
        """Say it in the log, and in every summary from now on."""
        self.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self.source.repository.missed(Miss(url=url, kind=kind, reason=reason))

    # what is written down

    async def write_down(self) -> None:
        """The account since the last time, and the misses."""
        source = self.source
        source.repository.missed(*source.index.take_misses(), *source.capture.take_misses())
        await source.repository.write_down(source.capture.take_counts())
        if source.coordinator.work.batches is not None:  # this process is not the only one that adds some
            await source.repository.recount()

    async def enter(self, state: CrawlState, **changes: Any) -> None:
        """The state and the summary, for whoever watches."""
        await self.source.repository.enter(state, self.summary(state), **changes)

    async def sample(self, state: CrawlState | None = None) -> None:
        """How the whole crawl stands, now and then; always when a state is named."""
        repository = self.source.repository
        if state is None and not repository.sample_due():
            return
        document = self.summary(state or repository.state)
        await repository.sample(sample_of(document, self.source.index.take_news()))

    def log_now_and_then(self) -> None:
        """A line in the log, when the last one is some time ago."""
        if time.monotonic() - self._logged < LOG_EVERY:
            return
        self._logged = time.monotonic()
        now = self.summary(self.source.repository.state)
        done, total = now["batches"]["done"], now["batches"]["total"]
        found, items = now["urls_found"], now["items"]
        name = self.source.repository.id
        logger.info("Crawl %s: %d URLs found, %d of %d batches done, %d items", name, found, done, total, items)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""
        source, repository, index = self.source, self.source.repository, self.source.index
        coordinator, spec = source.coordinator, source.coordinator.spec
        work = coordinator.work
        self._progress.look(coordinator.members, time.monotonic(), own_pages=index.pages, own_items=source.own.count)
        return summary(
            Snapshot(
                crawl=repository.id,
                spider=spec.spider,
                project=spec.project,
                version=spec.version,
                earlier_versions=repository.earlier_versions,
                code=self.code,
                state=state.value,
                paused=source.control.paused,
                duration=repository.ran,
                counts=repository.counts,
                buffered=source.capture.buffered,
                waiting=work.waiting,
                waiting_requests=work.waiting_requests,
                batches=repository.batches if work.batches is None else work.batches,
                out=work.out,
                counters=coordinator.counters,
                members=coordinator.members,
                unheeded=self.unheeded,
                index=IndexProgress(pages=source.pages, total=index.total, failed=index.failed),
                own_items=source.own.count,
                local_missed=self._local_missed,
                output=self.output,
                misses=self.misses,
                warnings=self.warnings,
                message=self.message,
                progress=self._progress,
            )
        )
