"""What has become of a crawl's batches, in numbers: as it happens, and from what an earlier process left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.batches import BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Attempt, Batch, Miss
    from scrapyd_dist.jobs.outcome import Report


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
    items: int = 0
    gone: int = 0  #: URLs
    failed_urls: int = 0
    dead_urls: int = 0

    def accepted(self, report: Report, misses: Sequence[Miss]) -> None:
        """A batch is done."""
        self.done += 1
        self.requests_done += report.done
        self.pages += report.pages
        self.items += report.items
        self._missed(misses)

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
        for attempt in accepted:
            self.pages += attempt.report.get("pages", 0)
            self.items += attempt.report.get("items", 0)
            self.requests_done += attempt.report.get("done", 0)
        self._missed([miss for miss in misses if miss.batch])

    def _missed(self, misses: Sequence[Miss]) -> None:
        self.gone += sum(miss.kind == "gone" for miss in misses)
        self.failed_urls += sum(miss.kind == "failed" for miss in misses)
        # Those of a dead batch are made at the end: these are for spiders or callbacks that are nowhere.
        self.dead_urls += sum(miss.kind == "dead" for miss in misses)
