"""Sums up a crawl that runs: the summary document that its producer stores. No IO."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.differences import FoundDifference
from scrapyd_dist.progress.crawl_progress import Progress
from scrapyd_dist.progress.outlook import FINDING, estimate_outlook
from scrapyd_dist.progress.summary_document import ACCOUNT, SCHEMA
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.settings import LABELS

_OVER = frozenset(state.value for state in CrawlState if state.ended)
#: states in which requests are made
_AT_WORK = FINDING | {"working"}


@dataclass(kw_only=True)
class Snapshot:
    """How a crawl stands: the input of `summarize`."""

    scheduler: SchedulerState
    earlier_versions: Sequence[str] = ()  #: versions that the crawl ran earlier
    code: Sequence[str] = ()  #: remarks on these versions
    state: str = ""
    duration: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)  #: counts of found URLs, by `ACCOUNT`
    buffered: int = 0  #: requests found and not in a batch yet
    unheeded: str = ""  #: why no process of the crawl follows throttle rules; empty if they do
    index_pages: int = 0
    index_total: int | None = None  #: all pages; None if unknown
    index_failed: int = 0
    own_items: int = 0
    #: requests crawled locally in vain: gone, failed
    local_missed: Counter[str] = field(default_factory=Counter)
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    #: from `scrapy crawl`, that people are told of
    differences: list[FoundDifference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    message: str = ""  #: one paragraph for people: why it stopped
    progress: Progress = field(default_factory=Progress)  #: updated with the members


def summarize(snap: Snapshot) -> dict[str, Any]:
    """Return the summary document, schema 1, as described in `docs/reference/json.md`."""
    scheduler = snap.scheduler
    spec = scheduler.spec
    counters = scheduler.counters
    account = {name: snap.counts.get(name, 0) for name in ACCOUNT}
    is_over = _is_over(snap)
    # Once a crawl has ended, what is not home is not done: it waits, to be resumed.
    running = Counter[str]()
    if not is_over:
        running = sum((member.progress() for member in scheduler.members), running)
    # What an ended crawl has failed in, the store tells; before that, reports tell it first.
    failing = 0 if snap.state in _OVER else running["failed"]
    done = counters.requests_done + counters.gone + counters.failed_urls + running["requests"]
    labels = spec.settings.get(LABELS, "").split(",")
    return {
        "schema": SCHEMA,
        "crawl": spec.crawl,
        "spider": spec.spider,
        "project": spec.project,
        "version": spec.version,
        "labels": list(filter(None, labels)),
        "earlier_versions": list(snap.earlier_versions),
        "code": list(snap.code),
        "state": snap.state,
        "paused": scheduler.paused,
        "duration_s": round(snap.duration, 3),
        "urls_found": sum(account.values()) + snap.buffered,
        "urls_distinct": account["sealed"] + account["local"] + account["refused"] + snap.buffered,
        **account,
        "batches": _describe_batches(snap),
        "requests": _describe_requests(snap, done),
        "outlook": _describe_outlook(snap, done),
        "per_s": _rates(snap),
        "pages": snap.index_pages + counters.pages + running["pages"],
        "items": snap.own_items + counters.items + running["items"],
        "gone_urls": counters.gone + snap.local_missed["gone"],
        "failed_urls": counters.failed_urls + failing + snap.local_missed["failed"],
        "raised_urls": counters.raised_urls,
        "dead_urls": counters.dead_urls,
        "index": {
            "pages": snap.index_pages,
            "total": snap.index_total,
            "failed": snap.index_failed,
        },
        "index_failed": snap.index_failed,
        "nodes": _describe_nodes(snap),
        "throttle": _describe_throttle(snap),
        "stragglers": snap.progress.stragglers(),
        "output": list(snap.output),
        "misses": snap.misses,
        "goals": dict(spec.goals),
        "goal": scheduler.goal or None,
        "closed_by": scheduler.closed_by or None,
        "differences": [difference.document for difference in snap.differences],
        "warnings": list(snap.warnings),
        "message": snap.message,
    }


def _is_over(snap: Snapshot) -> bool:
    """Return whether the crawl has ended, and no job of it works on without a producer."""
    return snap.state in _OVER and snap.scheduler.limits.wait


def _describe_batches(snap: Snapshot) -> dict[str, int]:
    backlog = snap.scheduler.backlog
    counters = snap.scheduler.counters
    left = backlog.out if _is_over(snap) else 0
    return {
        "total": backlog.batches,
        "sent": counters.sent,
        "out": backlog.out - left,
        "waiting": backlog.waiting + left,
        "done": counters.done,
        "failed": counters.failed,
        "dead": counters.dead,
    }


def _describe_requests(snap: Snapshot, done: int) -> dict[str, int]:
    backlog = snap.scheduler.backlog
    sealed = snap.counts.get("sealed", 0)
    sent = sealed - backlog.waiting_requests
    succeeded_requests = snap.scheduler.counters.requests_done
    if _is_over(snap):
        sent -= backlog.out_requests
    else:
        for member in snap.scheduler.members:
            succeeded_requests += sum(run.succeeded for run in member.out.values())
    return {"total": sealed, "sent": sent, "done": done, "succeeded": succeeded_requests}


def _describe_outlook(snap: Snapshot, done: int) -> dict[str, Any]:
    rate = 0.0
    if snap.state in _AT_WORK and not snap.scheduler.paused:
        rate = snap.progress.rates()["requests"]
    return estimate_outlook(
        found=snap.counts.get("sealed", 0) + snap.buffered,
        done=done,
        rate=rate,
        finding=snap.state in FINDING,
        pages=snap.index_pages,
        total_pages=snap.index_total,
    )


def _rates(snap: Snapshot, node: str | None = None) -> dict[str, float]:
    """Return the rates; 0 for a paused crawl, even while its last jobs still finish."""
    rates = snap.progress.rates(node)
    if snap.scheduler.paused:
        return dict.fromkeys(rates, 0.0)
    return {name: round(rate, 2) for name, rate in rates.items()}


def _describe_nodes(snap: Snapshot) -> list[dict[str, Any]]:
    """Return a row for each node; one that has come back at another address has one row."""
    members = snap.scheduler.members
    listed = {member.node.name for member in members if not member.left}
    rows: list[dict[str, Any]] = []
    replaced: Counter[tuple[str, str]] = Counter()  #: (name, count) of earlier addresses
    for member in members:
        name = member.node.name
        row = _describe_node(member, snap)
        is_replaced = member.left and name in listed and not (member.up and member.out)
        if is_replaced:
            replaced.update({(name, "jobs"): row["jobs"], (name, "items"): row["items"]})
        else:
            rows.append(row)
    for row in rows:
        for count in ("jobs", "items"):
            row[count] += replaced.pop((row["name"], count), 0)
    return rows


def _describe_node(member: NodeState, snap: Snapshot) -> dict[str, Any]:
    counts = snap.progress.counts(member.node.name)
    runs = [] if _is_over(snap) else list(member.out.values())
    waiting = 0
    unleased = 0
    items = member.items
    for run in runs:
        if run.report is None:
            waiting += 1
        elif run.report.no_lease:
            unleased += 1
        items += run.progress()["items"]
    return {
        "name": member.node.name,
        "url": member.node.url,
        "state": member.state,
        "reason": member.readiness.unfit or member.liveness.down_reason,
        "unreached": member.readiness.unreached,
        "slots": member.capacity.slots,
        "learned": member.capacity.learned,
        "running": len(runs),
        "waiting": waiting,
        "unleased": unleased,
        "jobs": member.jobs,
        "items": items,
        "pages": counts["pages"],
        "failed": counts["failed"],
        "per_s": _rates(snap, member.node.name),
    }


def _describe_throttle(snap: Snapshot) -> dict[str, Any]:
    """Return whether the processes of the crawl follow throttle rules, and which nodes do not."""
    reasons: dict[str, str] = {}
    if not snap.unheeded:
        for member in snap.scheduler.members:
            readiness = member.readiness
            if readiness.throttle_problem and not readiness.unfit:
                reasons[member.node.name] = readiness.throttle_problem
    return {"heeded": not snap.unheeded and not reasons, "reason": snap.unheeded, "nodes": reasons}
