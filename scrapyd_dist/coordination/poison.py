"""A batch that kills its workers is cut in halves, until the request that does it is alone and has a name.

The rule it keeps: only what the batch itself may have done counts against it; a node that goes away
never gets a batch cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.frontier.values import NewBatch
from scrapyd_dist.payload import decode, fit
from scrapyd_dist.reasons import meaning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.account.tally import Tally
    from scrapyd_dist.batches import Batch
    from scrapyd_dist.jobs.outcome import Report

#: attempts of a request that is alone at last
ALONE = 2
#: cuts of one crawl: a spider that dies on every tenth page is to be corrected, not isolated page by page
CUTS = 200
#: cuts as long as no batch has gone well: code that cannot do any page is not the fault of one
BLIND = 10


def blames(report: Report | None) -> bool:
    """Whether a worker's death may be its batch's doing: it had begun, and nothing of ours or of its node ended it."""
    return report is not None and meaning(report.finish_reason).blames_batch


@dataclass(kw_only=True)
class Cuts:
    """Decides when a batch is cut, and cuts it."""

    key: bytes | None = None  #: of batches that travel encrypted
    made: int = 0

    def attempts(self, batch: Batch, most: int) -> int:
        """How many attempts a batch gets that is to blame: a piece of a cut one is cut again at once."""
        if not batch.parent:
            return most
        return min(most, 1 if batch.size > 1 else ALONE)

    def wants(self, batch: Batch, tally: Tally) -> bool:
        """Whether to cut it now that its attempts are used up."""
        return batch.size > 1 and self.made < (CUTS if tally.done else BLIND)

    def halves(self, batch: Batch, payload: Mapping[str, str]) -> list[NewBatch]:
        """Its two halves (more, when a half does not fit into one job), in its slot."""
        self.made += 1
        values = decode(payload.get, key=self.key)
        middle = (len(values) + 1) // 2
        pieces = fit(values[:middle], key=self.key) + fit(values[middle:], key=self.key)
        return [
            NewBatch(payload=settings, size=len(piece), slot=batch.slot, priority=batch.priority)
            for piece, settings in pieces
        ]
