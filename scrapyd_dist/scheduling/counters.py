"""Counts the results of a crawl's batches, including those that an earlier process left in the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import AttemptState, BatchState
from scrapyd_dist.items.json_lines import AGAIN, number, places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.batches import Attempt, Batch, Miss
    from scrapyd_dist.frontier.backlog import SlotCount


@dataclass(kw_only=True)
class BatchCounters:
    """Counts of batches, attempts, and requests in them."""

    sent: int = 0  #: attempts that a node accepted
    done: int = 0  #: batches done
    failed: int = 0  #: failed attempts
    dead: int = 0  #: dead batches
    requests_done: int = 0
    pages: int = 0
    items: int = 0  #: items, where those of a retry replace those of the failed request
    gone: int = 0  #: URLs gone
    failed_urls: int = 0
    dead_urls: int = 0
    #: (batch, index in it) of a failed request -> number of its items
    _of_failed: dict[tuple[int, int], int] = field(default_factory=dict)

    def accepted(self, batch: int, report: Mapping[str, Any], misses: Sequence[Miss]) -> None:
        """Count a batch that is done; `report` is what the store keeps of its report."""
        self.done += 1
        self._add(batch, report)
        self._missed(misses)

    def _add(self, batch: int, report: Mapping[str, Any]) -> None:
        self.requests_done += report.get("done", 0)
        self.pages += report.get("pages", 0)
        self.items += report.get("items", 0)
        for earlier, place in report.get(AGAIN) or ():
            self.items -= self._of_failed.pop((earlier, place), 0)
        for place, runs in places(report).items():
            if runs:
                self._of_failed[batch, place] = number(runs)

    def died(self, batch: Batch) -> None:
        """Count a dead batch."""
        self.dead += 1
        self.dead_urls += batch.size

    def recall(self, slots: Sequence[SlotCount], attempts: Sequence[Attempt], misses: Sequence[Miss]) -> None:
        """Count the batches that an earlier process left in the store."""
        done, dead = BatchState.DONE.value, BatchState.DEAD.value
        self.sent = len(attempts)
        self.done = sum(slot.batches.get(done, 0) for slot in slots)
        self.dead = sum(slot.batches.get(dead, 0) for slot in slots)
        self.dead_urls = sum(slot.requests.get(dead, 0) for slot in slots)
        accepted = [attempt for attempt in attempts if attempt.state is AttemptState.ACCEPTED]
        for attempt in sorted(accepted, key=lambda attempt: attempt.batch):  # a retry has a higher batch number
            self._add(attempt.batch, attempt.report)
        self._missed([miss for miss in misses if miss.batch])

    def _missed(self, misses: Sequence[Miss]) -> None:
        self.gone += sum(miss.kind == "gone" for miss in misses)
        self.failed_urls += sum(miss.kind == "failed" for miss in misses)
        # Those of a dead batch are made at the end: these are for spiders or callbacks that are nowhere.
        self.dead_urls += sum(miss.kind == "dead" for miss in misses)
