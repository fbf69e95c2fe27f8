"""What a crawl tells of itself: its summary and its samples in the store, its warnings, its lines in the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.account.progress import Progress
from scrapyd_dist.account.samples import sample_of
from scrapyd_dist.account.summary import IndexProgress, Snapshot, summary
from scrapyd_dist.batches import Miss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import CrawlState

    from .capture import Capture
    from .index import Index
    from .modes import AnyCoordinator
    from .orders import Orders
    from .own_items import OwnItems
    from .record import Record

logger = logging.getLogger(__name__)

#: seconds between two lines in the log
LOG_EVERY = 10.0


def heeding(why_not: str) -> str:
    """Whether the processes of a crawl heed the rules of the throttle, as a part of a sentence."""
    return f"this crawl heeds none of them: {why_not}" if why_not else "all processes of this crawl heed them"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What there is to tell of: the parts of a crawl that has begun."""

    record: Record
    index: Index
    capture: Capture
    own: OwnItems
    coordinator: AnyCoordinator
    orders: Orders

    @property
    def pages(self) -> int:
        """Index pages that were walked, by earlier processes too."""
        return self.index.pages + self.index.done_before


@dataclass(kw_only=True)
class Telling:
    """Tells; what there is to tell of is set when the crawl begins."""

    warnings: list[str] = field(default_factory=list)
    code: Sequence[str] = ()  #: what is to be said of the code that runs
    message: str = ""  #: one paragraph for people: why it stopped
    unheeded: str = ""  #: why no process of the crawl heeds rules of the throttle
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    scene: Scene = field(init=False)
    _local_missed: dict[str, int] = field(default_factory=lambda: {"gone": 0, "failed": 0})
    _progress: Progress = field(default_factory=Progress)
    _logged: float = field(default_factory=time.monotonic)

    async def begin(self, scene: Scene) -> None:
        """Tell of this from now on, and of what an earlier process left of it."""
        self.scene = scene
        before = await scene.record.missed_before()
        scene.index.failed = before["index"]
        for kind in self._local_missed:
            self._local_missed[kind] = before[kind]
        self._progress.recall(await scene.record.accepted())

    def warn(self, *warnings: str) -> None:
        """Say it in the log, and in every summary from now on."""
        self.warnings += warnings
        for warning in warnings:
            logger.warning("%s", warning)

    def local_missed(self, url: str, kind: str, reason: str) -> None:
        """A request that the producer crawls itself gave no result."""
        self._local_missed[kind] += 1
        self.scene.record.missed(Miss(url=url, kind=kind, reason=reason))

    # what is written down

    async def write_down(self) -> None:
        """The account since the last time, and the misses."""
        scene = self.scene
        scene.record.missed(*scene.index.take_misses(), *scene.capture.take_misses())
        await scene.record.write_down(scene.capture.take_counts())
        if scene.coordinator.work.batches is not None:  # this process is not the only one that adds some
            await scene.record.recount()

    async def enter(self, state: CrawlState, **changes: Any) -> None:
        """The state and the summary, for whoever watches."""
        await self.scene.record.enter(state, self.summary(state), **changes)

    async def sample(self, state: CrawlState | None = None) -> None:
        """How the whole crawl stands, now and then; always when a state is named."""
        record = self.scene.record
        if state is None and not record.sample_due():
            return
        document = self.summary(state or record.state)
        await record.sample(sample_of(document, self.scene.index.take_news()))

    def log_now_and_then(self) -> None:
        """A line in the log, when the last one is some time ago."""
        if time.monotonic() - self._logged < LOG_EVERY:
            return
        self._logged = time.monotonic()
        now = self.summary(self.scene.record.state)
        done, total = now["batches"]["done"], now["batches"]["total"]
        found, items = now["urls_found"], now["items"]
        name = self.scene.record.id
        logger.info("Crawl %s: %d URLs found, %d of %d batches done, %d items", name, found, done, total, items)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""
        scene, record, index = self.scene, self.scene.record, self.scene.index
        coordinator, spec = scene.coordinator, scene.coordinator.spec
        work = coordinator.work
        self._progress.look(coordinator.members, time.monotonic(), own_pages=index.pages, own_items=scene.own.count)
        return summary(
            Snapshot(
                crawl=record.id,
                spider=spec.spider,
                project=spec.project,
                version=spec.version,
                earlier_versions=record.earlier_versions,
                code=self.code,
                state=state.value,
                paused=scene.orders.paused,
                duration=record.ran,
                counts=record.counts,
                buffered=scene.capture.buffered,
                waiting=work.waiting,
                waiting_requests=work.waiting_requests,
                batches=record.batches if work.batches is None else work.batches,
                out=work.out,
                tally=coordinator.tally,
                members=coordinator.members,
                unheeded=self.unheeded,
                index=IndexProgress(pages=scene.pages, total=index.total, failed=index.failed),
                own_items=scene.own.count,
                local_missed=self._local_missed,
                output=self.output,
                misses=self.misses,
                warnings=self.warnings,
                message=self.message,
                progress=self._progress,
            )
        )
