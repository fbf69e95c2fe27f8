"""Bisects a batch that kills its workers, until the request that does it is alone and named.

Invariant: only failures that the batch may have caused count; a lost node never gets a batch cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.batches import meaning
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.payload import decode, fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.joblogs.worker_report import WorkerReport
    from scrapyd_dist.scheduling.counters import BatchCounters

#: attempts of a single request
ALONE = 2
#: most cuts per crawl: a spider that dies on every tenth page has to be corrected
CUTS = 200
#: most cuts while no batch has succeeded: code that fails on every page has to be corrected
BLIND = 10


def blames(report: WorkerReport | None) -> bool:
    """True when the batch may have caused its worker's death: it had begun, and no known cause ended it."""
    return report is not None and meaning(report.finish_reason).blames_batch


@dataclass(kw_only=True)
class PoisonBisector:
    """Decides when a batch is cut, and cuts it."""

    key: bytes | None = None  #: key of encrypted batches
    made: int = 0

    def attempts(self, batch: Batch, most: int) -> int:
        """The attempts of a batch that may kill its workers: a piece of a cut batch is cut again at once."""
        if not batch.parent:
            return most
        return min(most, 1 if batch.size > 1 else ALONE)

    def wants(self, batch: Batch, counters: BatchCounters) -> bool:
        """Whether to cut it now that its attempts are used up."""
        return batch.size > 1 and self.made < (CUTS if counters.done else BLIND)

    def halves(self, batch: Batch, payload: Mapping[str, str]) -> list[NewBatch]:
        """Its two halves in the same slot; more when a half does not fit into one job."""
        self.made += 1
        values = decode(payload.get, key=self.key)
        middle = (len(values) + 1) // 2
        pieces = fit(values[:middle], key=self.key) + fit(values[middle:], key=self.key)
        return [
            NewBatch(payload=settings, size=len(piece), slot=batch.slot, priority=batch.priority)
            for piece, settings in pieces
        ]
