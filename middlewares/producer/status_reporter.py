"""The status of a crawl or of a consumed frontier, as its row in the store has it: summary, samples, warnings."""

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
from scrapyd_dist.progress import Snapshot, sample_of, summary
from scrapyd_dist.scheduling.scheduler import Scheduler

from .crawl_repository import CrawlRepository
from .discovery import Capture, IndexWalk, OwnItems

logger = logging.getLogger(__name__)
#: seconds between two lines in the log
LOG_EVERY = 10.0


@dataclass(kw_only=True)
class BaseReporter(ABC):
    """What the status of a crawl and that of a consumed frontier have in common."""

    repository: CrawlRepository
    scheduler: Scheduler
    snapshot: Snapshot  #: what the summary is made of; each `summary` brings it up to date
    publisher: PartPublisher | None = None  #: delivers accepted parts, where that was asked for

    @abstractmethod
    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""

    async def recall(self) -> None:
        """Take in what an earlier process left, and deliver what it has not delivered."""
        self.snapshot.progress.recall(await self.repository.accepted())
        if self.publisher is not None:
            self.scheduler.state.accepted = self.publisher.add
            self.publisher.start(self.warn)

    async def published(self, own: Sequence[Path]) -> str:
        """Wait for the end of deliveries, with these items of the producer; gives what is wrong, if anything is."""
        if self.publisher is None:
            return ""
        patience = self.scheduler.state.limits.node_timeout
        return await asyncio.to_thread(self.publisher.finish, own, patience)

    def note_files(self, left: Delivery) -> None:
        """These files are what the summary names as its output."""
        manifest = () if self.publisher is None else (self.publisher.address,)
        self.snapshot.output, self.snapshot.misses = (*left.outputs, *manifest), left.misses

    def close(self) -> None:
        """Deliver nothing more."""
        if self.publisher is not None:
            self.publisher.close()

    def warn(self, *warnings: str) -> None:
        """Write it to the log, and into every summary from now on."""
        self.snapshot.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def differ(self, *found: FoundDifference) -> None:
        """Write what differs from `scrapy crawl` to the log, and into every summary from now on."""
        self.snapshot.differences += found
        for one in found:
            logger.warning("%s", one)

    async def tell(self, state: CrawlState, **changes: Any) -> dict[str, Any]:
        """Write the state and the summary down, with other changes of the row; a sample now and then."""
        document = self.summary(state)
        await self.repository.enter(state, document, **changes)
        if self.repository.sample_due():
            await self.sample(document)
        return document

    async def sample(self, document: dict[str, Any]) -> None:
        """Write down how the whole crawl stands."""
        await self.repository.sample(sample_of(document, {}))

    def _summary(self, state: CrawlState, *, own_pages: int = 0) -> dict[str, Any]:
        now = self.snapshot
        now.state, now.counts = state.value, self.repository.counts
        now.progress.look(
            now.scheduler.members, time.monotonic(), own_pages=own_pages, own_items=now.own_items
        )
        return summary(now)


@dataclass(kw_only=True)
class FrontierReporter(BaseReporter):
    """Writes the status of a frontier that is consumed."""

    show: Callable[[dict[str, Any]], None]  #: is given each summary
    begun: float  #: by the monotonic clock

    async def tell(self, state: CrawlState, **changes: Any) -> dict[str, Any]:
        await (
            self.repository.recount()
        )  # the account is that of the producers that fill the frontier
        document = await super().tell(state, **changes)
        self.show(document)
        return document

    def summary(self, state: CrawlState) -> dict[str, Any]:
        self.snapshot.duration = time.monotonic() - self.begun
        return self._summary(state)


@dataclass(kw_only=True)
class StatusReporter(BaseReporter):
    """Writes the status of a crawl that has begun."""

    index: IndexWalk
    capture: Capture
    own: OwnItems
    _logged: float = field(default_factory=time.monotonic)

    async def recall(self) -> None:
        before = await self.repository.missed_before()
        self.index.failed = before["index"]
        self.snapshot.local_missed = Counter(gone=before["gone"], failed=before["failed"])
        await super().recall()

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self.snapshot.local_missed[kind] += 1
        self.repository.missed(Miss(url=url, kind=kind, reason=reason))

    async def write_down(self) -> None:
        """The account since the last time, and the misses."""
        self.repository.missed(*self.index.take_misses(), *self.capture.take_misses())
        await self.repository.write_down(self.capture.take_counts())
        await self.repository.recount()  # workers count, too

    async def sample(self, document: dict[str, Any]) -> None:
        await self.repository.sample(sample_of(document, self.index.take_news()))

    def log_now_and_then(self) -> None:
        """A line in the log, when the last one is some time ago."""
        if time.monotonic() - self._logged < LOG_EVERY:
            return
        self._logged = time.monotonic()
        now = self.summary(self.repository.state)
        found, batches, name = now["urls_found"], now["batches"], self.repository.id
        done, total, items = batches["done"], batches["total"], now["items"]
        logger.info(
            "Crawl %s: %d URLs found, %d of %d batches done, %d items",
            name,
            found,
            done,
            total,
            items,
        )

    def summary(self, state: CrawlState) -> dict[str, Any]:
        index, now = self.index, self.snapshot
        now.duration, now.buffered, now.own_items = (
            self.repository.ran,
            len(self.capture.cutter),
            self.own.count,
        )
        now.index_pages, now.index_total, now.index_failed = (
            index.pages + index.done_before,
            index.total,
            index.failed,
        )
        return self._summary(state, own_pages=index.pages)
