"""Samples of a crawl's summary over time, which the producer records. No IO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: minimum seconds between two samples
EVERY = 1.0
#: approximate maximum of samples per crawl: the interval grows with the crawl's age
NUMBER = 500


def due(now: float, last: float | None, begun: float) -> bool:
    """Whether the next sample is due; all times in seconds of the same clock."""
    return last is None or now - last >= max(EVERY, (now - begun) / NUMBER)


def sample_of(summary: Mapping[str, Any], shards: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a sample as a JSON document.

    Args:
        summary: the current summary of the crawl.
        shards: shard number -> index pages, target requests found, start time, last activity (seconds since the
            epoch); only shards that changed since the last sample.
    """
    requests, index = summary.get("requests") or {}, summary.get("index") or {}
    return {
        "state": summary.get("state"),
        "found": int(summary.get("urls_distinct") or 0) - sum(int(summary.get(n) or 0) for n in ("local", "refused")),
        "sealed": int(requests.get("total") or 0),
        "sent": int(requests.get("sent") or 0),
        "done": int(requests.get("done") or 0),
        "pages": int(summary.get("pages") or 0),
        "items": int(summary.get("items") or 0),
        "index": [int(index.get("pages") or 0), index.get("total")],
        "nodes": {str(node["name"]): _node(node) for node in summary.get("nodes") or ()},
        "shards": {number: list(values) for number, values in shards.items()},
    }


def _node(node: Mapping[str, Any]) -> list[Any]:
    """Return pages, items, number of jobs out, and state."""
    names = ("pages", "items", "running")
    return [*(int(node.get(name) or 0) for name in names), str(node.get("state") or "")]
