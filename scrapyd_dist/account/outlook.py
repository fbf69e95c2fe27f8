"""Estimates the total number of requests of a crawl and the time left. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

#: fraction of the index that must be walked before the total can be estimated from it
KNOWN_FROM = 0.1


class Sure(str, Enum):
    """How reliable the total number of requests is, as in the summary."""

    KNOWN = "known"  #: the index is walked
    ESTIMATE = "estimate"  #: extrapolated from the walked part of the index
    AT_LEAST = "at-least"  #: a lower bound


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The expected total number of requests, and the time left."""

    requests: int
    sure: Sure
    eta: float | None = None  #: seconds until all requests are done; None if unknown

    @classmethod
    def of(
        cls, *, found: int, done: int, rate: float, finding: bool, pages: int = 0, total_pages: int | None = None
    ) -> Outlook:
        """Compute the outlook.

        Args:
            found: target requests found so far.
            done: target requests done.
            rate: current requests per second.
            finding: whether the index is still being walked.
            pages: index pages walked.
            total_pages: total number of index pages; None if unknown.
        """
        expected, sure = found, Sure.KNOWN
        if finding:
            judged = bool(total_pages) and pages >= KNOWN_FROM * (total_pages or 0)
            sure = Sure.ESTIMATE if judged else Sure.AT_LEAST
            expected = max(found, found * (total_pages or 0) // pages) if judged and pages else found
        left = expected - done
        return cls(requests=expected, sure=sure, eta=left / rate if rate > 0 and left > 0 else None)

    def document(self) -> dict[str, Any]:
        """Return the outlook as a part of the summary document."""
        return {
            "requests": self.requests,
            "sure": self.sure.value,
            "eta_s": None if self.eta is None else round(self.eta, 1),
        }
