"""Samples: how a whole crawl stood at one moment, as the producer writes it down now and then. Values, no IO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: seconds between two samples, at least
EVERY = 1.0
#: samples of a crawl, at most about: the older it is, the longer the pause
NUMBER = 500


def due(now: float, last: float | None, begun: float) -> bool:
    """Whether it is time for the next sample; all three in seconds of the same clock."""
    return last is None or now - last >= max(EVERY, (now - begun) / NUMBER)


def sample_of(summary: Mapping[str, Any], shards: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One sample, a JSON document.

    Args:
        summary: of the crawl, now.
        shards: shard number -> index pages, target requests found on them, begun, last heard of (seconds since
            the epoch); only those that changed since the last sample.
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
    """Pages, items, jobs that are out, state."""
    names = ("pages", "items", "running")
    return [*(int(node.get(name) or 0) for name in names), str(node.get("state") or "")]
