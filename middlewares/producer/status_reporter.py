"""The status of a crawl, as it is written to its row in the store: summary, samples, warnings."""

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

    from scrapyd_dist.batches import CrawlState
    from scrapyd_dist.progress.completion_policy import CompletionPolicy
    from scrapyd_dist.transports import AsyncSender

    from ..targets import Target
    from .crawl_nodes import CrawlNodes
    from .crawl_repository import CrawlRepository
    from .discovery import Capture, IndexWalk, OwnItems
    from .factory import AnyCoordinator
    from .producer_options import ProducerOptions

logger = logging.getLogger(__name__)


#: seconds between two lines in the log
LOG_EVERY = 10.0


@dataclass(frozen=True, kw_only=True)
class CrawlParts:
    """What a crawl that has begun consists of."""

    options: ProducerOptions
    target: Target
    repository: CrawlRepository
    fleet: CrawlNodes
    index: IndexWalk
    capture: Capture
    own: OwnItems
    scheduler: AnyCoordinator
    sender: AsyncSender
    policy: CompletionPolicy

    @property
    def pages(self) -> int:
        """Index pages that were walked, by earlier processes too."""
        return self.index.pages + self.index.done_before


@dataclass(kw_only=True)
class StatusReporter:
    """Writes the status of a crawl that has begun."""

    parts: CrawlParts
    warnings: list[str]
    code: Sequence[str]  #: notes on the code that runs
    unheeded: str  #: why no process of the crawl heeds rules of the throttle
    message: str = ""  #: one paragraph for people: why it stopped
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    _local_missed: dict[str, int] = field(default_factory=lambda: {"gone": 0, "failed": 0})
    _progress: Progress = field(default_factory=Progress)
    _logged: float = field(default_factory=time.monotonic)

    async def recall(self) -> None:
        """Take in what an earlier process left."""
        before = await self.parts.repository.missed_before()
        self.parts.index.failed = before["index"]
        for kind in self._local_missed:
            self._local_missed[kind] = before[kind]
        self._progress.recall(await self.parts.repository.accepted())

    def warn(self, *warnings: str) -> None:
        """Write it to the log, and into every summary from now on."""
        self.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self.parts.repository.missed(Miss(url=url, kind=kind, reason=reason))

    # what is written down

    async def write_down(self) -> None:
        """The account since the last time, and the misses."""
        parts = self.parts
        parts.repository.missed(*parts.index.take_misses(), *parts.capture.take_misses())
        await parts.repository.write_down(parts.capture.take_counts())
        if parts.scheduler.work.batches is not None:  # workers add batches too
            await parts.repository.recount()

    async def enter(self, state: CrawlState, **changes: Any) -> None:
        """Write the state and the summary."""
        await self.parts.repository.enter(state, self.summary(state), **changes)

    async def sample(self, state: CrawlState | None = None) -> None:
        """How the whole crawl stands, now and then; always when a state is named."""
        repository = self.parts.repository
        if state is None and not repository.sample_due():
            return
        document = self.summary(state or repository.state)
        await repository.sample(sample_of(document, self.parts.index.take_news()))

    def log_now_and_then(self) -> None:
        """A line in the log, when the last one is some time ago."""
        if time.monotonic() - self._logged < LOG_EVERY:
            return
        self._logged = time.monotonic()
        now = self.summary(self.parts.repository.state)
        done, total = now["batches"]["done"], now["batches"]["total"]
        found, items = now["urls_found"], now["items"]
        name = self.parts.repository.id
        logger.info("Crawl %s: %d URLs found, %d of %d batches done, %d items", name, found, done, total, items)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""
        parts, repository, index, scheduler = self.parts, self.parts.repository, self.parts.index, self.parts.scheduler
        spec, work = scheduler.spec, scheduler.work
        self._progress.look(scheduler.members, time.monotonic(), own_pages=index.pages, own_items=parts.own.count)
        return summary(
            Snapshot(
                crawl=repository.id,
                spider=spec.spider,
                project=spec.project,
                version=spec.version,
                earlier_versions=repository.earlier_versions,
                code=self.code,
                state=state.value,
                paused=scheduler.paused,
                duration=repository.ran,
                counts=repository.counts,
                buffered=parts.capture.buffered,
                waiting=work.waiting,
                waiting_requests=work.waiting_requests,
                batches=repository.batches if work.batches is None else work.batches,
                out=work.out,
                counters=scheduler.counters,
                members=scheduler.members,
                unheeded=self.unheeded,
                index=IndexProgress(pages=parts.pages, total=index.total, failed=index.failed),
                own_items=parts.own.count,
                local_missed=self._local_missed,
                output=self.output,
                misses=self.misses,
                warnings=self.warnings,
                message=self.message,
                progress=self._progress,
            )
        )
