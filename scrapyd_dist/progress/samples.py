"""Samples of a summary, which the report draws. No IO."""

from collections.abc import Mapping, Sequence
from typing import Any

#: minimum seconds between two samples
EVERY = 1.0
#: approximate maximum of samples per crawl: the interval grows with the crawl's age
NUMBER = 500


def is_sample_due(now: float, last: float | None, begun: float) -> bool:
    """Return whether the next sample is due; all times are seconds of the same clock."""
    return last is None or now - last >= max(EVERY, (now - begun) / NUMBER)


def sample_of(summary: Mapping[str, Any], shards: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a sample of the current summary as a JSON document.

    `shards`: shard number -> index pages, target requests found, start time, last activity (seconds
    since the epoch); only shards that changed since the last sample.
    """
    requests = summary["requests"]
    index = summary["index"]
    nodes: dict[str, list[Any]] = {}
    for node in summary["nodes"]:
        nodes[node["name"]] = [node["pages"], node["items"], node["running"], node["state"]]
    return {
        "state": summary["state"],
        "found": summary["urls_distinct"] - summary["local"] - summary["refused"],
        "sealed": requests["total"],
        "sent": requests["sent"],
        "done": requests["done"],
        "pages": summary["pages"],
        "items": summary["items"],
        "index": [index["pages"], index["total"]],
        "nodes": nodes,
        "shards": {number: list(values) for number, values in shards.items()},
    }
