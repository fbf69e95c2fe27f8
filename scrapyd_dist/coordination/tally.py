"""What has become of a crawl's batches, in numbers: as it happens, and from what an earlier process left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import BatchState
from scrapyd_dist.items.replaced import AGAIN, number, places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.batches import Attempt, Batch, Miss


@dataclass(kw_only=True)
class Tally:
    """Batches, attempts and the requests in them."""

    sent: int = 0  #: attempts that a node took
    done: int = 0  #: batches
    failed: int = 0  #: attempts
    dead: int = 0  #: batches
    cut: int = 0  #: batches that are there because others were cut
    requests_done: int = 0
    pages: int = 0
    items: int = 0  #: that count: those of a request that was tried again are the later ones
    gone: int = 0  #: URLs
    failed_urls: int = 0
    dead_urls: int = 0
    #: batch and place of a failed request that has items -> how many
    _of_failed: dict[tuple[int, int], int] = field(default_factory=dict)

    def accepted(self, batch: int, report: Mapping[str, Any], misses: Sequence[Miss]) -> None:
        """A batch is done; of its report, this is what the store keeps."""
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
        """A batch is dead."""
        self.dead += 1
        self.dead_urls += batch.size

    def recall(self, batches: Sequence[Batch], accepted: Sequence[Attempt], misses: Sequence[Miss]) -> None:
        """Count what an earlier process left in the store."""
        for batch in batches:
            self.sent += batch.attempts
            self.done += batch.state is BatchState.DONE
            if batch.state is BatchState.DEAD:
                self.died(batch)
        for attempt in sorted(accepted, key=lambda attempt: attempt.batch):  # what is tried again was there before
            self._add(attempt.batch, attempt.report)
        self._missed([miss for miss in misses if miss.batch])

    def _missed(self, misses: Sequence[Miss]) -> None:
        self.gone += sum(miss.kind == "gone" for miss in misses)
        self.failed_urls += sum(miss.kind == "failed" for miss in misses)
        # Those of a dead batch are made at the end: these are for spiders or callbacks that are nowhere.
        self.dead_urls += sum(miss.kind == "dead" for miss in misses)
