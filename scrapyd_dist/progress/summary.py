"""Samples of a crawl's summary over time, which the producer records. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.progress.node_progress import Progress, outlook
from scrapyd_dist.scheduling.node_state import NodeState

if TYPE_CHECKING:  # commands load this module, for their help too, and need no scheduler
    from scrapyd_dist.scheduling.base import BatchCounters, OpenWork
    from scrapyd_dist.scheduling.job_request import JobRequest

#: minimum seconds between two samples
EVERY = 1.0
#: approximate maximum of samples per crawl: the interval grows with the crawl's age
NUMBER = 500


def due(now: float, last: float | None, begun: float) -> bool:
    """Whether the next sample is due; all times in seconds of the same clock."""
    return last is None or now - last >= max(EVERY, (now - begun) / NUMBER)


def sample_of(summary: Mapping[str, Any], shards: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a sample of the current summary as a JSON document.

    `shards`: shard number -> index pages, target requests found, start time, last activity (seconds since the epoch);
    only shards that changed since the last sample.
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
        "nodes": {  # pages, items, number of jobs out, and state
            str(node["name"]): [
                *(int(node.get(name) or 0) for name in ("pages", "items", "running")),
                str(node.get("state") or ""),
            ]
            for node in summary.get("nodes") or ()
        },
        "shards": {number: list(values) for number, values in shards.items()},
    }


SCHEMA = 1
#: names of the counts of found URLs; `urls_found` is their sum
ACCOUNT = ("offsite", "duplicate", "refused", "local", "sealed")
#: states in which more target requests may be found
_FINDING = ("starting", "finding")


@dataclass(frozen=True, kw_only=True)
class IndexProgress:
    """Progress of the index pages."""

    pages: int = 0
    total: int | None = None  #: None if unknown
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The input of `summary`."""

    spec: JobRequest
    earlier_versions: Sequence[str] = ()  #: versions that the crawl ran earlier
    code: Sequence[str] = ()  #: remarks on these versions
    state: str
    paused: bool = False
    duration: float
    counts: Mapping[str, int]  #: counts of found URLs, by `ACCOUNT`
    buffered: int  #: requests found and not in a batch yet
    work: OpenWork
    out: int | None = None  #: batches that are out; None if each job has one
    counters: BatchCounters
    members: Sequence[NodeState] = ()
    unheeded: str = ""  #: why no process of the crawl follows throttle rules; empty if they do
    index: IndexProgress = field(default_factory=IndexProgress)
    own_items: int = 0
    local_missed: Mapping[str, int] = field(default_factory=dict)  #: requests crawled locally in vain: gone, failed
    output: Sequence[str] = ()
    misses: str | None = None
    warnings: Sequence[str] = ()
    message: str = ""
    progress: Progress = field(default_factory=Progress)  #: updated with the members


def summary(snap: Snapshot) -> dict[str, Any]:
    """Return the summary document, schema 1, as described in `docs/summary.md`."""
    account = {name: snap.counts.get(name, 0) for name in ACCOUNT}
    spec, work, counters = snap.spec, snap.work, snap.counters
    running = sum((member.progress() for member in snap.members), Counter[str]())
    done = counters.requests_done + counters.gone + counters.failed_urls + running["requests"]
    return {
        "schema": SCHEMA,
        "crawl": spec.crawl,
        "spider": spec.spider,
        "project": spec.project,
        "version": spec.version,
        "earlier_versions": list(snap.earlier_versions),
        "code": list(snap.code),
        "state": snap.state,
        "paused": snap.paused,
        "duration_s": round(snap.duration, 3),
        "urls_found": sum(account.values()) + snap.buffered,
        "urls_distinct": account["sealed"] + account["local"] + account["refused"] + snap.buffered,
        **account,
        "batches": {
            "total": work.batches,
            "sent": counters.sent,
            "out": snap.out if snap.out is not None else sum(len(member.out) for member in snap.members),
            "waiting": work.waiting,
            "done": counters.done,
            "failed": counters.failed,
            "dead": counters.dead,
        },
        "requests": {
            "total": account["sealed"],
            "sent": account["sealed"] - work.waiting_requests,
            "done": done,
            "succeeded": counters.requests_done + sum(one.succeeded for m in snap.members for one in m.out.values()),
        },
        "outlook": outlook(
            found=account["sealed"] + snap.buffered,
            done=done,
            rate=snap.progress.rates()["requests"] if snap.state in {*_FINDING, "working"} and not snap.paused else 0.0,
            finding=snap.state in _FINDING,
            pages=snap.index.pages,
            total_pages=snap.index.total,
        ),
        "per_s": _rates(snap),
        "pages": snap.index.pages + counters.pages + running["pages"],
        "items": snap.own_items + counters.items + running["items"],
        "gone_urls": counters.gone + snap.local_missed.get("gone", 0),
        "failed_urls": counters.failed_urls + snap.local_missed.get("failed", 0),
        "dead_urls": counters.dead_urls,
        "index": {"pages": snap.index.pages, "total": snap.index.total, "failed": snap.index.failed},
        "index_failed": snap.index.failed,
        "nodes": [_node(member, snap) for member in snap.members],
        "throttle": _throttle(snap),
        "stragglers": snap.progress.stragglers(),
        "output": list(snap.output),
        "misses": snap.misses,
        "warnings": list(snap.warnings),
        "message": snap.message,
    }


def told(crawl: Crawl) -> dict[str, Any]:
    """Return a stored crawl's summary: the producer's last one, with the current state, message and exit code."""
    known = {"crawl": crawl.id, "spider": crawl.spider, "project": crawl.project, "version": crawl.version}
    now = {"state": crawl.state.value, "message": crawl.message, "exit_code": crawl.exit_code}
    return {**known, **crawl.summary, **now}


def _throttle(snap: Snapshot) -> dict[str, Any]:
    """Return whether the processes of the crawl follow throttle rules, and which nodes do not."""
    deaf = {} if snap.unheeded else {one.node.name: one.deaf for one in snap.members if one.deaf and not one.unfit}
    return {"heeded": not snap.unheeded and not deaf, "reason": snap.unheeded, "nodes": deaf}


def succeeded(document: Mapping[str, Any]) -> int:
    """Return the number of target requests with a result in a summary."""
    requests = document.get("requests") or {}
    if "succeeded" in requests:
        return int(requests["succeeded"] or 0)
    missed = (document.get("gone_urls") or 0) + (document.get("failed_urls") or 0)  # a summary of an earlier version
    return max(0, int((requests.get("done") or 0) - missed))


def _rates(snap: Snapshot, node: str | None = None) -> dict[str, float]:
    """Return the rates; 0 for a paused crawl, even while its last jobs still finish."""
    return {name: 0.0 if snap.paused else round(rate, 2) for name, rate in snap.progress.rates(node).items()}


def _node(member: NodeState, snap: Snapshot) -> dict[str, Any]:
    counts = snap.progress.counts(member.node.name)
    return {
        "name": member.node.name,
        "url": member.node.url,
        "state": member.state,
        "reason": member.unfit or member.down_reason,
        "unreached": member.unreached,
        "slots": member.slots,
        "running": len(member.out),
        "waiting": sum(out.report is None for out in member.out.values()),
        "jobs": member.jobs,
        "items": member.items + member.progress()["items"],
        "pages": counts["pages"],
        "failed": counts["failed"],
        "per_s": _rates(snap, member.node.name),
    }


def exit_code(document: Mapping[str, Any], *, max_failed: int) -> int:
    """Return the exit code of a finished crawl: 0 complete, 3 partial, 1 if every batch is dead."""
    lost = document["failed_urls"] + document["dead_urls"] + document["refused"]
    if document["batches"]["total"] and not document["batches"]["done"] and document["dead_urls"]:
        return 1
    if lost > max_failed or document["index_failed"]:
        return 3
    return 0
