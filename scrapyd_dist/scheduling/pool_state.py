"""The state of a crawl whose batches are leased from the store; here are only their counts. Makes no calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.scheduling.base import SchedulerState
from scrapyd_dist.scheduling.node_state import JobRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.frontier.backlog import SlotCount
    from scrapyd_dist.joblogs.worker_report import WorkerReport

#: seconds until a worker's end, as far as polls are concerned: one every two seconds is enough, since the store shows
#: its work, and each poll costs its node and this process some milliseconds of CPU
LASTING = 8.0
#: the backlog before the first look at the store
UNKNOWN = Backlog(waiting=0, leased=0, expired=0, acked=0)
#: most slots that a message names
NAMED = 5


@dataclass(kw_only=True)
class WorkerRun(JobRun):
    """A long-lived job that leases batches; its pseudo batch has the worker's number, and no requests."""

    pool: str
    slots: tuple[str, ...] = ()  #: slots that it leases from; none: all but those of other spiders
    version: str = ""  #: of another project's code; empty for the crawl's own
    introduces: bool = False  #: it runs only to tell whose code it is
    dismissed: bool = False  #: it was told to end
    counted: tuple[int, int, int] = (
        0,
        0,
        0,
    )  #: requests, pages and items of its accepted batches, which are counted there

    @property
    def to_blame(self) -> bool:
        """True unless its report excludes it: it may have died in a batch before it could report."""
        return self.report is None or super().to_blame

    def left(self, now: float) -> float:  # noqa: ARG002 - nobody knows
        return LASTING

    def came_home(self, report: WorkerReport) -> None:
        """Count one of its batches, which was accepted."""
        requests, pages, items = self.counted
        self.counted = (requests + report.ended_requests, pages + report.pages, items + report.items)

    def came_home_before(self, report: Mapping[str, Any]) -> None:
        """Count a batch that an earlier process accepted; `report` is what the store keeps of it."""
        done, missed, pages, items = (int(report.get(name) or 0) for name in ("done", "missed", "pages", "items"))
        requests, pages_before, items_before = self.counted
        self.recalled = self.counted = (requests + done + missed, pages_before + pages, items_before + items)

    def progress(self) -> tuple[int, int, int]:
        requests, pages, items = (now - home for now, home in zip(super().progress(), self.counted, strict=True))
        return max(0, requests), max(0, pages), max(0, items)


@dataclass(kw_only=True)
class PoolState(SchedulerState):
    """The state of one frontier; `open` has the numbers of its workers."""

    backlog: Backlog = UNKNOWN
    slots: Sequence[SlotCount] = ()
    done: asyncio.Event = field(default_factory=asyncio.Event)  #: nothing will be added any more, or it was stopped
    news: asyncio.Event = field(default_factory=asyncio.Event)  #: the store should be polled at once

    @property
    def waits(self) -> int:
        return self.backlog.waiting

    @property
    def which_work(self) -> str:
        names = [repr(one.slot) for one in self.slots if one.slot and one.waiting]
        if not names:
            return ""
        others = f" and {len(names) - NAMED:,} others" if len(names) > NAMED else ""
        return f" of the slot{'s' if names[1:] else ''} {', '.join(names[:NAMED])}{others}"

    def workers(self) -> Iterator[WorkerRun]:
        """All workers that are out."""
        return (out for member in self.members for out in member.out.values() if isinstance(out, WorkerRun))

    def put_back(self, batch: Batch, avoid: str) -> None:  # noqa: ARG002 - it is in the store
        self.news.set()

    def cut_up(self, batch: Batch, pieces: Sequence[Batch]) -> None:  # noqa: ARG002 - likewise
        self.news.set()

    def ended(self, batch: int) -> None:  # noqa: ARG002 - likewise
        self.news.set()

    def check_over(self) -> None:
        """Nothing to do: the store tells when the crawl is over."""

    def stop_now(self, reason: str) -> None:
        super().stop_now(reason)
        self.done.set()
        self.news.set()

    def close(self) -> None:
        super().close()
        self.done.set()
