"""Counts the batches and attempts of a crawl, and what came of their requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.batches import (
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Miss,
    is_fault_of_code,
)
from scrapyd_dist.frontier.backlog import SlotCount
from scrapyd_dist.items.json_lines import count_items, places
from scrapyd_dist.payload import REPLACES


@dataclass(kw_only=True)
class BatchCounters:
    """Counts batches, attempts, and requests in them."""

    sent: int = 0  #: attempts that a node accepted
    done: int = 0  #: batches done
    failed: int = 0  #: failed attempts
    dead: int = 0  #: dead batches
    cuts: int = 0  #: cuts that this process has tried
    requests_done: int = 0
    pages: int = 0
    items: int = 0  #: items, where those of a retry replace those of the failed request
    gone: int = 0  #: URLs gone
    failed_urls: int = 0
    raised_urls: int = 0  #: those of `failed_urls` for which the project's own code has raised
    dead_urls: int = 0
    #: (batch, index in it) of a failed request -> number of its items
    _of_failed: dict[tuple[int, int], int] = field(default_factory=dict)

    def accepted(self, batch: int, report: Mapping[str, Any], misses: Sequence[Miss]) -> None:
        """Count a batch that is done; `report` is what the store keeps of its report."""
        self.done += 1
        self.requests_done += report.get("done", 0)
        self.pages += report.get("pages", 0)
        self.items += report.get("items", 0)
        for earlier, place in report.get(REPLACES) or ():
            self.items -= self._of_failed.pop((earlier, place), 0)
        for place, runs in places(report).items():
            if runs:
                self._of_failed[batch, place] = count_items(runs)
        self._missed(misses)

    def post_accepted(self) -> None:
        """Count an attempt that a node has accepted."""
        self.sent += 1

    def leased(self, ended: int, out: int) -> None:
        """Count the attempts that workers have leased: so many have `ended`, and are `out`."""
        self.sent = max(self.sent, ended + out)

    def attempt_failed(self) -> None:
        """Count a failed attempt."""
        self.failed += 1

    def cut_tried(self) -> None:
        """Count a batch that is about to be cut."""
        self.cuts += 1

    def died(self, batch: Batch) -> None:
        """Count a dead batch."""
        self.dead += 1
        self.dead_urls += batch.size

    def recall(
        self, slots: Sequence[SlotCount], attempts: Sequence[Attempt], misses: Sequence[Miss]
    ) -> None:
        """Count the batches that an earlier process left in the store."""
        self.sent = len(attempts)
        self.dead = 0
        self.dead_urls = 0
        dead = BatchState.DEAD.value
        for slot in slots:
            self.dead += slot.batches.get(dead, 0)
            self.dead_urls += slot.requests.get(dead, 0)
        # a retry has a higher batch number
        for attempt in sorted(attempts, key=lambda attempt: attempt.batch):
            if attempt.state is AttemptState.ACCEPTED:
                self.accepted(attempt.batch, attempt.report, ())
        self._missed([miss for miss in misses if miss.batch])

    def _missed(self, misses: Sequence[Miss]) -> None:
        """Count requests that were not made."""
        for miss in misses:
            if miss.kind == "gone":
                self.gone += 1
            elif miss.kind == "failed":
                self.failed_urls += 1
                self.raised_urls += is_fault_of_code(miss.reason)
            elif miss.kind == "dead":
                # Those of a dead batch are made at the end: these are for spiders or callbacks that
                # are nowhere.
                self.dead_urls += 1
