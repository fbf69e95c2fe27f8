"""Report the status of a crawl or of a consumed frontier to its row: summary, samples, warnings."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import CrawlState, Miss
from scrapyd_dist.differences import FoundDifference
from scrapyd_dist.items.delivery import Delivery
from scrapyd_dist.items.publisher import PartPublisher
from scrapyd_dist.progress.crawl_summary import Snapshot, summarize
from scrapyd_dist.progress.samples import sample_of
from scrapyd_dist.scheduling.scheduler import Scheduler

from .crawl_repository import CrawlRepository
from .discovery import Capture, OwnItems
from .index_walk import IndexWalk
from .standstill import StandstillWatch

logger = logging.getLogger(__name__)
#: seconds between two lines in the log
LOG_EVERY = 10.0


@dataclass(kw_only=True)
class BaseReporter(ABC):
    """Reports what a crawl and a consumed frontier have in common."""

    repository: CrawlRepository
    scheduler: Scheduler
    snapshot: Snapshot  #: what the summary is made of; each `summary` brings it up to date
    publisher: PartPublisher | None = None  #: delivers accepted parts, where that was asked for

    @abstractmethod
    def summary(self, state: CrawlState) -> dict[str, Any]:
        """Return the summary document."""

    async def recall(self) -> None:
        """Take in what an earlier process left, and deliver what it has not delivered."""
        self.snapshot.progress.recall(await self.repository.accepted())
        if self.publisher is not None:
            self.scheduler.state.on_accepted(self.publisher.add)
            self.publisher.start(self.warn)

    async def published(self, own: Sequence[Path]) -> str:
        """Wait for the end of deliveries, with these items of the producer.

        Returns what is wrong, empty if nothing is.
        """
        if self.publisher is None:
            return ""
        patience = self.scheduler.state.limits.node_timeout
        return await asyncio.to_thread(self.publisher.finish, own, patience)

    def note_files(self, left: Delivery) -> None:
        """Let the summary name these files as its output."""
        self.snapshot.output = left.outputs
        if self.publisher is not None:
            self.snapshot.output = (*left.outputs, self.publisher.address)
        self.snapshot.misses = left.misses

    def close(self) -> None:
        """Deliver nothing more."""
        if self.publisher is not None:
            self.publisher.close()

    def warn(self, *warnings: str) -> None:
        """Write warnings to the log, and into every summary from now on."""
        self.snapshot.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def differ(self, *found: FoundDifference) -> None:
        """Write what differs from `scrapy crawl` to the log, and into every summary from now on.

        What was written before is left out.
        """
        for difference in found:
            if not self._is_written(difference):
                self.snapshot.differences.append(difference)
                logger.warning("%s", difference)

    def _is_written(self, found: FoundDifference) -> bool:
        """Return whether the row of a difference was written with these names before."""
        is_row_written = False
        names = set(found.found)
        for row in self.snapshot.differences:
            if row.difference is found.difference:
                is_row_written = True
                names.difference_update(row.found)
        return is_row_written and not names

    async def write_status(self, state: CrawlState, **changes: Any) -> dict[str, Any]:
        """Write the state and the summary down, with other changes of the row.

        A sample comes with them now and then. Returns the summary.
        """
        document = self.summary(state)
        await self.repository.enter(state, document, **changes)
        if self.repository.sample_due():
            await self.sample(document)
        return document

    async def sample(self, document: dict[str, Any]) -> None:
        """Write down how the whole crawl stands."""
        await self.repository.sample(sample_of(document, {}))

    def _summarize(self, state: CrawlState, *, own_pages: int = 0) -> dict[str, Any]:
        """Bring the snapshot up to date in what all reporters have, and return its summary."""
        snapshot = self.snapshot
        snapshot.state = state.value
        snapshot.counts = self.repository.counts
        snapshot.progress.update(
            snapshot.scheduler.members,
            time.monotonic(),
            own_pages=own_pages,
            own_items=snapshot.own_items,
        )
        return summarize(snapshot)


@dataclass(kw_only=True)
class FrontierReporter(BaseReporter):
    """Writes the status of a frontier that is consumed."""

    show: Callable[[dict[str, Any]], None]  #: is given each summary
    begun: float  #: by the monotonic clock

    async def write_status(self, state: CrawlState, **changes: Any) -> dict[str, Any]:
        """Write the state and the summary down, and show the summary."""
        # The account is that of the producers that fill the frontier.
        await self.repository.recount()
        document = await super().write_status(state, **changes)
        self.show(document)
        return document

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """Return the summary of the frontier's consumption by this process."""
        self.snapshot.duration = time.monotonic() - self.begun
        return self._summarize(state)


@dataclass(kw_only=True)
class StatusReporter(BaseReporter):
    """Writes the status of a crawl that has begun."""

    index: IndexWalk
    capture: Capture
    own: OwnItems
    #: when the status was logged last, by the monotonic clock
    _logged: float = field(default_factory=time.monotonic)
    _standstill: StandstillWatch = field(
        default_factory=lambda: StandstillWatch(time.monotonic()), init=False
    )

    async def recall(self) -> None:
        """Take in what an earlier process left, and what it has missed with its own requests."""
        before = await self.repository.missed_before()
        self.index.recall(failed=before["index"])
        self.snapshot.local_missed = Counter(gone=before["gone"], failed=before["failed"])
        await super().recall()

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """Count a request that the producer crawls itself, and that gave no result."""
        self.snapshot.local_missed[kind] += 1
        self.repository.missed(Miss(url=url, kind=kind, reason=reason))

    async def write_down(self) -> None:
        """Write down the account since the last time, and the misses."""
        self.repository.missed(*self.index.take_misses(), *self.capture.take_misses())
        await self.repository.write_down(self.capture.take_counts())
        await self.repository.recount()  # workers count, too

    async def sample(self, document: dict[str, Any]) -> None:
        """Write down how the whole crawl and its walks stand."""
        await self.repository.sample(sample_of(document, self.index.take_news()))

    def log_now_and_then(self) -> None:
        """Log the status, when it was logged some time ago, and warn if nothing is new for long."""
        now = time.monotonic()
        if now - self._logged < LOG_EVERY:
            return
        self._logged = now
        document = self.summary(self.repository.state)
        if warning := self._standstill.note(document, now):
            self.warn(warning)
        logger.info(
            "Crawl %s: %d URLs found, %d of %d batches done, %d items",
            self.repository.id,
            document["urls_found"],
            document["batches"]["done"],
            document["batches"]["total"],
            document["items"],
        )

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """Return the summary of the crawl."""
        index = self.index
        snapshot = self.snapshot
        snapshot.duration = self.repository.ran
        snapshot.buffered = len(self.capture.cutter)
        snapshot.own_items = self.own.count
        snapshot.index_pages = index.pages + index.done_before
        snapshot.index_total = index.total
        snapshot.index_failed = index.failed
        return self._summarize(state, own_pages=index.pages)
