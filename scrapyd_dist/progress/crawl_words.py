"""How a crawl stands in a few words, for all that show it. No IO."""

from collections.abc import Mapping
from typing import Any

from scrapyd_dist.progress.crawl_outcome import ended_in_words
from scrapyd_dist.progress.outlook import KnownTotals
from scrapyd_dist.progress.summary_document import count_expected, is_paused
from scrapyd_dist.time_spans import describe_span

#: how sure a total is -> the mark before it
_SURE = {KnownTotals.AT_LEAST.value: "≥ ", KnownTotals.ESTIMATE.value: "≈ "}


def state_of(summary: Mapping[str, Any]) -> str:
    """Return the state of a crawl that its summary tells.

    That is also `paused`, and `finished, 8 failed` where these are missing.
    """
    if is_paused(summary):
        return "paused"
    return ended_in_words(summary)


def outlook(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return how many requests there will be and how long they may take, as far as it is known.

    As in `≈ 6,000`, `≈ 45 s to go`. `≥` is before a number that can only grow, `≈` before one that
    is judged by the part of the index that is walked.
    """
    known = summary.get("outlook") or {}
    mark = _SURE.get(str(known.get("sure")), "")
    expected = count_expected(summary)
    to_go = ""
    if not is_paused(summary) and known.get("eta_s") is not None:
        to_go = f"{mark}{describe_span(float(known['eta_s']))} to go"
    return f"{mark}{expected:,}", to_go
