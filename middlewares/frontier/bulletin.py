"""What the manager of a frontier tells: its summary and its samples in the frontier's row, and to who looks on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.account.progress import Progress
from scrapyd_dist.account.samples import sample_of
from scrapyd_dist.account.summary import Snapshot, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.batches import CrawlState
    from scrapyd_dist.items.delivery import Delivered

    from ..producer.record import Record
    from .managers import AnyManager


@dataclass(kw_only=True)
class Bulletin:
    """Tells of one run of the manager."""

    record: Record
    manager: AnyManager
    show: Callable[[dict[str, Any]], None]  #: is given each summary
    begun: float  #: by the monotonic clock
    unheeded: str = ""  #: why its workers heed no rules of the throttle
    message: str = ""  #: one paragraph for people: why it stopped
    delivered: Delivered | None = None
    warnings: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _progress: Progress = field(default_factory=Progress)

    async def begin(self) -> None:
        """Count what came home before, too."""
        self._progress.recall(await self.record.accepted())

    async def tell(self, state: CrawlState, **changes: Any) -> None:
        """Write the summary down, with other changes of the row, and show it; a sample now and then."""
        # The account is that of those who fill the frontier.
        self._counts = await self.record.thread(self.record.thread.store.counts, self.record.id)
        document = self.summary(state)
        await self.record.enter(state, document, **changes)
        if self.record.sample_due():
            await self.record.sample(sample_of(document, {}))
        self.show(document)

    def summary(self, state: CrawlState) -> dict[str, Any]:
        """The summary document."""
        manager, work = self.manager, self.manager.work
        self._progress.look(manager.members, time.monotonic(), own_pages=0, own_items=0)
        return summary(
            Snapshot(
                crawl=self.record.id,
                spider=manager.spec.spider,
                project=manager.spec.project,
                version=manager.spec.version,
                state=state.value,
                paused=manager.paused,
                duration=time.monotonic() - self.begun,
                counts=self._counts,
                buffered=0,
                waiting=work.waiting,
                waiting_requests=work.waiting_requests,
                batches=work.batches or 0,
                tally=manager.tally,
                members=manager.members,
                unheeded=self.unheeded,
                output=self.delivered.outputs if self.delivered else (),
                misses=self.delivered.misses if self.delivered else None,
                warnings=self.warnings,
                message=self.message,
                progress=self._progress,
            )
        )
