"""Estimates how many requests a crawl will have made, and how long they take. No IO."""

from enum import Enum
from typing import Any

#: fraction of the index that must be walked before the total can be estimated from it
KNOWN_FROM = 0.1
#: states in which more target requests may be found
FINDING = frozenset({"starting", "finding"})


class KnownTotals(str, Enum):
    """How reliable the total number of requests is, as in the summary."""

    KNOWN = "known"  #: the index is walked
    ESTIMATE = "estimate"  #: extrapolated from the walked part of the index
    AT_LEAST = "at-least"  #: a lower bound


def estimate_outlook(
    *,
    found: int,
    done: int,
    rate: float,
    finding: bool,
    pages: int = 0,
    total_pages: int | None = None,
) -> dict[str, Any]:
    """Return the expected number of requests, and the seconds that are left, for the summary.

    `found` and `done` are requests; `rate` is in requests per second. `finding`: the index is still
    being walked; `pages` of its `total_pages` are.
    """
    expected = found
    reliability = KnownTotals.KNOWN
    if finding:
        reliability = KnownTotals.AT_LEAST
        if total_pages and pages >= KNOWN_FROM * total_pages:
            reliability = KnownTotals.ESTIMATE
            if pages:
                expected = max(found, found * total_pages // pages)
    left = expected - done
    seconds = None
    if rate > 0 and left > 0:
        seconds = round(left / rate, 1)
    return {"requests": expected, "sure": reliability.value, "eta_s": seconds}
