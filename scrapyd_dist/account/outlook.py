"""How much there is to do and how long it may take, as far as that can be known. Values and decisions, no IO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

#: part of the index that must be walked before the number of requests can be judged by it
KNOWN_FROM = 0.1


class Sure(str, Enum):
    """How sure a number of requests is. The values are what the summary has."""

    KNOWN = "known"  #: the index is walked
    ESTIMATE = "estimate"  #: by the part of the index that is walked
    AT_LEAST = "at-least"  #: there are more, and nobody knows how many


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """How many requests there will be in all, and when the last one is done."""

    requests: int
    sure: Sure
    eta: float | None = None  #: seconds; None where it cannot be told

    @classmethod
    def of(
        cls, *, found: int, done: int, rate: float, finding: bool, pages: int = 0, total_pages: int | None = None
    ) -> Outlook:
        """What is known now.

        Args:
            found: target requests so far.
            done: of these.
            rate: requests that are done per second, now.
            finding: whether the index is still walked.
            pages: index pages that are walked.
            total_pages: of these; None where nobody knows.
        """
        expected, sure = found, Sure.KNOWN
        if finding:
            judged = bool(total_pages) and pages >= KNOWN_FROM * (total_pages or 0)
            sure = Sure.ESTIMATE if judged else Sure.AT_LEAST
            expected = max(found, found * (total_pages or 0) // pages) if judged and pages else found
        left = expected - done
        return cls(requests=expected, sure=sure, eta=left / rate if rate > 0 and left > 0 else None)

    def document(self) -> dict[str, Any]:
        """As the summary has it."""
        return {
            "requests": self.requests,
            "sure": self.sure.value,
            "eta_s": None if self.eta is None else round(self.eta, 1),
        }
