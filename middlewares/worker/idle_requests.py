"""Keeps what the idle handlers of a job that was sent its batch ask for, until its report tells.

A worker that leases tells the store with its ack. A job that was sent its batch may not reach the
store: its scheduler adds the requests when it accepts the job, and drops what others have asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scrapy import Request

from scrapyd_dist.frontier.sealed_intake import SEALED_BYTES, SealedIntake, weigh

from ..classifier import Disposition, FoundRequests


@dataclass(kw_only=True, eq=False)
class IdleRequests(FoundRequests):
    """Keeps requests for a report; those for which it has no room are crawled here.

    Without a key nothing can be sealed, so all are crawled here.
    """

    _bytes: int = field(default=0, init=False)  #: of what was kept

    def keep(self, request: Request, source: int | None = None) -> Disposition:
        """Keep a request for the fleet; LOCAL is for this job to crawl itself."""
        if self.key is None or self._bytes > SEALED_BYTES // 2:
            return self._count(Disposition.LOCAL)
        known = len(self.found)
        disposition = super().keep(request, source)
        for found in self.found[known:]:
            self._bytes += weigh(found.value)
        return disposition

    def seal(self) -> str:
        """Return what was asked for as the report has it; empty if that is nothing."""
        intake = SealedIntake(
            requests=self.found, counts=self.take_counts(), misses=self.take_misses()
        )
        is_empty = not (intake.requests or intake.counts or intake.misses)
        return "" if is_empty or self.key is None else intake.seal(self.key)
