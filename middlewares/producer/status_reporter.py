"""The status of a crawl or of a consumed frontier, as its row in the store has it: summary, samples, warnings."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.batches import CrawlState, Miss
from scrapyd_dist.progress import Progress, Snapshot, sample_of, summary
from scrapyd_dist.scheduling.scheduler import Scheduler

from ..targets import Target
from .crawl_nodes import CrawlNodes
from .crawl_repository import CrawlRepository
from .discovery import Capture, IndexWalk, OwnItems
from .producer_options import ProducerOptions

logger = logging.getLogger(__name__)
#: seconds between two lines in the log
LOG_EVERY = 10.0


@dataclass(frozen=True, kw_only=True)
class CrawlParts:
    """What a crawl that has begun consists of."""

    options: ProducerOptions
    target: Target
    nodes: CrawlNodes
    index: IndexWalk
    capture: Capture
    own: OwnItems
    on_finish: str  #: a command or an http(s) URL to notify; empty for none


@dataclass(kw_only=True)
class BaseReporter:
    """What the status of a crawl and that of a consumed frontier have in common."""

    repository: CrawlRepository
    scheduler: Scheduler
    warnings: list[str]
    unheeded: str  #: why no process of the crawl heeds rules of the throttle
    message: str = ""  #: one paragraph for people: why it stopped
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    _progress: Progress = field(default_factory=Progress)

    async def recall(self) -> None:
        """Take in what an earlier process left."""
        self._progress.recall(await self.repository.accepted())

    def _summary(self, state: CrawlState, *, own_pages: int = 0, own_items: int = 0, **more: Any) -> dict[str, Any]:
        """The summary document; `more` are fields of a `Snapshot`."""
        scheduler = self.scheduler
        self._progress.look(scheduler.state.members, time.monotonic(), own_pages=own_pages, own_items=own_items)
        return summary(
            Snapshot(
                scheduler=scheduler.state,
                state=state.value,
                counts=self.repository.counts,
                unheeded=self.unheeded,
                output=self.output,
                misses=self.misses,
                warnings=self.warnings,
                message=self.message,
                own_items=own_items,
                progress=self._progress,
                **more,
            )
        )


@dataclass(kw_only=True)
class FrontierReporter(BaseReporter):
    """Writes the status of a frontier that is consumed."""

    show: Callable[[dict[str, Any]], None]  #: is given each summary
    begun: float  #: by the monotonic clock

    async def tell(self, state: CrawlState, **changes: Any) -> None:
        """Write the summary down, with other changes of the row, and show it; a sample now and then."""
        await self.repository.recount()  # the account is that of the producers that fill the frontier
        document = self.summary(state)
        await self.repository.enter(state, document, **changes)
        if self.repository.sample_due():
            await self.repository.sample(sample_of(document, {}))
        self.show(document)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        return self._summary(state, duration=time.monotonic() - self.begun, buffered=0)


@dataclass(kw_only=True)
class StatusReporter(BaseReporter):
    """Writes the status of a crawl that has begun."""

    parts: CrawlParts
    code: Sequence[str]  #: notes on the code that runs
    _local_missed: dict[str, int] = field(default_factory=lambda: {"gone": 0, "failed": 0})
    _logged: float = field(default_factory=time.monotonic)

    async def recall(self) -> None:
        before = await self.repository.missed_before()
        self.parts.index.failed = before["index"]
        for kind in self._local_missed:
            self._local_missed[kind] = before[kind]
        await super().recall()

    def warn(self, *warnings: str) -> None:
        """Write it to the log, and into every summary from now on."""
        self.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self.repository.missed(Miss(url=url, kind=kind, reason=reason))

    # what is written down

    async def write_down(self) -> None:
        """The account since the last time, and the misses."""
        index, capture = self.parts.index, self.parts.capture
        self.repository.missed(*index.take_misses(), *capture.take_misses())
        await self.repository.write_down(capture.take_counts())
        await self.repository.recount()  # workers count, too

    async def enter(self, state: CrawlState, **changes: Any) -> None:
        await self.repository.enter(state, self.summary(state), **changes)

    async def sample(self, state: CrawlState | None = None) -> None:
        """How the whole crawl stands, now and then; always when a state is named."""
        if state is not None or self.repository.sample_due():
            document = self.summary(state or self.repository.state)
            await self.repository.sample(sample_of(document, self.parts.index.take_news()))

    def log_now_and_then(self) -> None:
        """A line in the log, when the last one is some time ago."""
        if time.monotonic() - self._logged < LOG_EVERY:
            return
        self._logged = time.monotonic()
        now = self.summary(self.repository.state)
        found, batches, name = now["urls_found"], now["batches"], self.repository.id
        done, total, items = batches["done"], batches["total"], now["items"]
        logger.info("Crawl %s: %d URLs found, %d of %d batches done, %d items", name, found, done, total, items)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        parts, index = self.parts, self.parts.index
        return self._summary(
            state,
            own_pages=index.pages,
            own_items=parts.own.count,
            earlier_versions=self.repository.earlier_versions,
            code=self.code,
            duration=self.repository.ran,
            buffered=parts.capture.buffered,
            index_pages=index.pages + index.done_before,
            index_total=index.total,
            index_failed=index.failed,
            local_missed=self._local_missed,
        )
