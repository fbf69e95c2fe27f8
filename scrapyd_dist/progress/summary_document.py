"""Reads the summary document of a stored crawl, and the counts and labels in it. No IO."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scrapyd_dist.batches import Crawl, CrawlState, MissKind
from scrapyd_dist.settings import LABELS
from scrapyd_dist.time_spans import format_moment

#: version of the summary document
SCHEMA = 1
#: names of the counts of found URLs; `urls_found` is their sum
ACCOUNT = ("offsite", "duplicate", "refused", "local", "sealed")
#: kind of misses -> where a summary counts them
MISSED = {
    MissKind.GONE.value: "gone_urls",
    MissKind.FAILED.value: "failed_urls",
    MissKind.DEAD.value: "dead_urls",
    MissKind.INDEX.value: "index_failed",
}
#: the state of a crawl whose process is gone before its end
DIED = "died"
#: how a warning of fewer items than usual is told from others
UNUSUAL = "are unusually few"
#: values of the states of a crawl that is not at its end
_GOES_ON = {state.value for state in CrawlState if not state.ended}
#: counts of a summary that are 0 before the crawl has begun
_FIRST_COUNTS = (
    "urls_found",
    "urls_distinct",
    *ACCOUNT,
    "pages",
    "items",
    *MISSED.values(),
    "raised_urls",
)
#: lists of a summary that are empty before the crawl has begun
_FIRST_LISTS = (
    "earlier_versions",
    "code",
    "nodes",
    "stragglers",
    "output",
    "differences",
    "warnings",
)
#: a float beyond this is no count that a worker has made
_GREATEST = 1e18


def summary_of(crawl: Crawl) -> dict[str, Any]:
    """Return a stored crawl's summary, with its state, message and exit code now.

    It is the last one of the producer; all zeros if there is none.
    """
    return {
        "crawl": crawl.id,
        "spider": crawl.spider,
        "project": crawl.project,
        "version": crawl.version,
        **(crawl.summary or _make_first_summary()),
        "labels": list(labels_of(crawl)),
        "state": crawl.state.value,
        "message": crawl.message,
        "exit_code": crawl.exit_code,
        "started": format_moment(crawl.created),
        "ended": format_moment(crawl.ended),
    }


def _make_first_summary() -> dict[str, Any]:
    """Return the summary of a crawl whose producer has written none, as one that was refused."""
    return {
        "schema": SCHEMA,
        "paused": False,
        "duration_s": 0.0,
        **dict.fromkeys(_FIRST_COUNTS, 0),
        "batches": dict.fromkeys(("total", "sent", "out", "waiting", "done", "failed", "dead"), 0),
        "requests": dict.fromkeys(("total", "sent", "done", "succeeded"), 0),
        "outlook": {"requests": None, "sure": "at-least", "eta_s": None},
        "per_s": dict.fromkeys(("requests", "pages", "items", "failed"), 0.0),
        "index": {"pages": 0, "total": None, "failed": 0},
        "throttle": {"heeded": True, "reason": "", "nodes": {}},
        "goals": {},
        **{name: [] for name in _FIRST_LISTS},
        **dict.fromkeys(("misses", "goal", "closed_by")),
    }


def learned_slots(crawls: Iterable[Crawl]) -> dict[str, int]:
    """Return the most process slots that crawls have learned of each node, by address.

    A short crawl may not have seen all.
    """
    slots_by_url: dict[str, int] = {}
    for crawl in crawls:
        for node in crawl.summary.get("nodes") or ():
            url = str(node.get("url"))
            slots = int(node.get("learned") or 0)
            slots_by_url[url] = max(slots, slots_by_url.get(url, 0))
    return slots_by_url


def labels_of(crawl: Crawl) -> tuple[str, ...]:
    """Return the labels of a crawl: those of its options, else those in its summary."""
    labels = nested_value(crawl.options, "settings", LABELS) or crawl.summary.get("labels") or ()
    if not isinstance(labels, (list, tuple)):
        return ()
    return tuple(map(str, labels))


def has_labels(labels: Sequence[str], wanted: Sequence[str] | None) -> bool:
    """Tell whether all wanted labels are there; one without a value is any of that name."""
    words = set(labels)
    for label in labels:
        words.add(label.partition("=")[0])
    return words.issuperset(wanted or ())


def nested_value(document: Any, *names: str) -> Any:
    """Return a value of a nested document; None if it is not there."""
    value = document
    for name in names:
        if not hasattr(value, "get"):
            return None
        value = value.get(name)
    return value


def finite_number(value: Any) -> float:
    """Return a finite number that a worker sent or a store has kept; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    if abs(value) < _GREATEST and math.isfinite(value):
        return float(value)
    return 0.0


def count_in(document: Any, *names: str) -> int:
    """Return a count of a nested document; 0 if it is not there."""
    return int(finite_number(nested_value(document, *names)))


def succeeded(document: Mapping[str, Any]) -> int:
    """Return the number of target requests with a result in a summary."""
    return count_in(document, "requests", "succeeded")


def count_done(document: Mapping[str, Any]) -> int:
    """Return the number of target requests that have ended in a summary, as all call `done`."""
    return count_in(document, "requests", "done")


def count_expected(document: Mapping[str, Any]) -> int:
    """Return how many target requests there will be, or as long as that is not known, there are."""
    return count_in(document, "outlook", "requests") or count_in(document, "requests", "total")


def is_paused(summary: Mapping[str, Any]) -> bool:
    """Return whether the crawl is paused, and not at its end."""
    return bool(summary.get("paused")) and summary.get("state") in _GOES_ON
