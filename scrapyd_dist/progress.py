"""A crawl in numbers: counts, rates, the time that is left, slow batches; its summary, and samples of that. No IO."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import OUT, Attempt, Batch, BatchState, Crawl, CrawlState
from scrapyd_dist.differences import FoundDifference
from scrapyd_dist.joblogs.worker_report import counts_of
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.settings import LABELS

if TYPE_CHECKING:  # commands load this module, for their help too, and need no scheduler
    from scrapyd_dist.scheduling.base import SchedulerState

#: length of the window in seconds
WINDOW = 30.0
#: maximum number of samples per window
KEPT = 60
#: fraction of the index that must be walked before the total can be estimated from it
KNOWN_FROM = 0.1
#: seconds that a batch must run before it can be a straggler
SLOW_AFTER = 20.0
#: how many times slower than the median a straggler is
SLOW_BY = 4.0
#: minimum number of batches for the median
SLOW_NEEDS = 3
#: number of ended batches whose pace is kept for the median
REMEMBERED = 200
#: seconds before a batch has a pace
TOO_SHORT = 1.0
#: maximum number of stragglers returned
NAMED = 10
#: what is counted of the work of jobs, also of attempts that failed later; requests that ended, and those that failed
COUNTS = ("requests", "pages", "items", "failed")
#: the state of a crawl whose process is gone before its end
DIED = "died"
#: kind of misses -> where a summary counts them
MISSED = {
    "gone": "gone_urls",
    "failed": "failed_urls",
    "dead": "dead_urls",
    "index": "index_failed",
}


@dataclass(kw_only=True)
class Rate:
    """Growth rates of the `COUNTS` of a job, a node or a crawl."""

    window: float = WINDOW
    _seen: deque[tuple[float, Counter[str]]] = field(default_factory=deque)
    _last: tuple[float, Counter[str]] | None = None

    def add(self, now: float, counts: Counter[str]) -> None:
        """Record the counts at this time; they are not changed later."""
        self._last = now, counts
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds between the samples that the rates are computed from; 0 before the second sample."""
        return self._last[0] - self._seen[0][0] if self._last and self._seen else 0.0

    def rates(self) -> dict[str, float]:
        """Return the growth per second of each count, never below 0, although a retry may decrease a count."""
        if self._last is None or self.span <= 0:
            return dict.fromkeys(COUNTS, 0.0)
        before, after = self._seen[0][1], self._last[1]
        return {name: max(0.0, (after[name] - before[name]) / self.span) for name in COUNTS}


class KnownTotals(str, Enum):
    """How reliable the total number of requests is, as in the summary."""

    KNOWN = "known"  #: the index is walked
    ESTIMATE = "estimate"  #: extrapolated from the walked part of the index
    AT_LEAST = "at-least"  #: a lower bound


def outlook(
    *,
    found: int,
    done: int,
    rate: float,
    finding: bool,
    pages: int = 0,
    total_pages: int | None = None,
) -> dict[str, Any]:
    """The expected number of requests, and the seconds that are left, as a part of the summary.

    `rate` is in requests per second; `finding`: the index is still being walked, of which so many pages are.
    """
    expected, sure = found, KnownTotals.KNOWN
    if finding:
        judged = bool(total_pages) and pages >= KNOWN_FROM * (total_pages or 0)
        sure = KnownTotals.ESTIMATE if judged else KnownTotals.AT_LEAST
        expected = max(found, found * (total_pages or 0) // pages) if judged and pages else found
    left = expected - done
    return {
        "requests": expected,
        "sure": sure.value,
        "eta_s": round(left / rate, 1) if rate > 0 and left > 0 else None,
    }


@dataclass(kw_only=True)
class Progress:
    """The progress of a crawl's nodes, updated by `look`."""

    _jobs: dict[str, JobRun] = field(default_factory=dict)  #: jobs that are out
    _heard: dict[str, float] = field(
        default_factory=dict
    )  #: of these, when the first report was read
    #: node -> `COUNTS` of its attempts that are no longer out, and of all
    _ended: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _paces: defaultdict[str, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _whole: Rate = field(default_factory=Rate)
    _batch_paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _now: float = 0.0

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Add the accepted attempts of an earlier process."""
        for attempt in attempts:
            self._ended[attempt.node].update(counts_of(attempt.report))

    def look(
        self, members: Sequence[NodeState], now: float, *, own_pages: int = 0, own_items: int = 0
    ) -> None:
        """Update counts and rates at `now` by a monotonic clock, with what the producer has crawled itself."""
        self._now = now
        out = {job: one for member in members for job, one in member.out.items()}
        for job in self._jobs.keys() - out.keys():
            self._end(self._jobs[job])
            self._heard.pop(job, None)
        self._jobs = out
        for job, one in out.items():
            if one.report is not None:
                self._heard.setdefault(job, now)
        names = {member.node.name for member in members}
        self._counts = {name: self._ended[name].copy() for name in names}
        for one in out.values():
            self._counts[one.member.node.name].update(_counts(one))
        whole = Counter(pages=own_pages, items=own_items)
        for name, counts in self._counts.items():
            self._paces[name].add(now, counts)
            whole.update(counts)
        self._whole.add(now, whole)

    def _end(self, out: JobRun) -> None:
        self._ended[out.member.node.name].update(_counts(out))
        pace = self._pace(out)
        if pace and out.report is not None and out.report.ended:
            self._batch_paces.append(pace)

    def _age(self, out: JobRun) -> float:
        """Seconds since its first report."""
        return self._now - self._heard.get(out.job, self._now)

    def _pace(self, out: JobRun) -> float | None:
        """Requests per second since its first report; None before `TOO_SHORT` seconds."""
        seconds = self._age(out)
        return out.report.ended_requests / seconds if out.report and seconds >= TOO_SHORT else None

    def counts(self, node: str) -> Counter[str]:
        return self._counts.get(node, Counter())

    def rates(self, node: str | None = None) -> dict[str, float]:
        """Return the growth per second of the `COUNTS` of a node, or of the whole crawl."""
        return (self._whole if node is None else self._paces[node]).rates()

    def stragglers(self) -> list[dict[str, Any]]:
        """Return the batches that are far slower than the others, slowest first, as a part of the summary."""
        running = [
            (job, pace) for job in self._jobs.values() if (pace := self._pace(job)) is not None
        ]
        known = [*self._batch_paces, *(pace for _, pace in running if pace)]
        if len(known) < SLOW_NEEDS:
            return []
        usual = median(known)
        slow = [
            (job, pace)
            for job, pace in running
            # A job without a batch is a worker that leases many.
            if pace * SLOW_BY < usual and self._age(job) >= SLOW_AFTER and job.batch.size > 0
        ]
        slow.sort(key=itemgetter(1))
        return [
            {
                "batch": job.batch.number,
                "attempt": job.number,
                "job": job.job,
                "node": job.member.node.name,
                "for_s": round(self._age(job)),
                "done": job.report.ended_requests if job.report else 0,
                "of": job.batch.size,
                "times_slower": round(usual / pace, 1) if pace else None,
            }
            for job, pace in slow[:NAMED]
        ]


def _counts(out: JobRun) -> Counter[str]:
    return out.report.counts - out.recalled if out.report else Counter()


SCHEMA = 1
#: names of the counts of found URLs; `urls_found` is their sum
ACCOUNT = ("offsite", "duplicate", "refused", "local", "sealed")
_OVER = frozenset(state.value for state in CrawlState if state.ended)
#: states in which more target requests may be found
_FINDING = ("starting", "finding")


@dataclass(kw_only=True)
class Snapshot:
    """How a crawl stands: the input of `summary`."""

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
    local_missed: Counter[str] = field(
        default_factory=Counter
    )  #: requests crawled locally in vain: gone, failed
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    differences: list[FoundDifference] = field(
        default_factory=list
    )  #: from `scrapy crawl`, that people are told of
    warnings: list[str] = field(default_factory=list)
    message: str = ""  #: one paragraph for people: why it stopped
    progress: Progress = field(default_factory=Progress)  #: updated with the members


def summary(snap: Snapshot) -> dict[str, Any]:
    """Return the summary document, schema 1, as described in `docs/reference/summary.md`."""
    account = {name: snap.counts.get(name, 0) for name in ACCOUNT}
    state = snap.scheduler
    spec, backlog, counters = state.spec, state.backlog, state.counters
    # Once a crawl has ended, what is not home is not done: it waits, to be resumed.
    is_over = snap.state in _OVER and state.limits.wait
    running = (
        Counter[str]()
        if is_over
        else sum((member.progress() for member in state.members), Counter[str]())
    )
    out = [] if is_over else [one for member in state.members for one in member.out.values()]
    left, left_requests = (backlog.out, backlog.out_requests) if is_over else (0, 0)
    done = counters.requests_done + counters.gone + counters.failed_urls + running["requests"]
    return {
        "schema": SCHEMA,
        "crawl": spec.crawl,
        "spider": spec.spider,
        "project": spec.project,
        "version": spec.version,
        "labels": [label for label in spec.settings.get(LABELS, "").split(",") if label],
        "earlier_versions": list(snap.earlier_versions),
        "code": list(snap.code),
        "state": snap.state,
        "paused": state.paused,
        "duration_s": round(snap.duration, 3),
        "urls_found": sum(account.values()) + snap.buffered,
        "urls_distinct": account["sealed"] + account["local"] + account["refused"] + snap.buffered,
        **account,
        "batches": {
            "total": backlog.batches,
            "sent": counters.sent,
            "out": backlog.out - left,
            "waiting": backlog.waiting + left,
            "done": counters.done,
            "failed": counters.failed,
            "dead": counters.dead,
        },
        "requests": {
            "total": account["sealed"],
            "sent": account["sealed"] - backlog.waiting_requests - left_requests,
            "done": done,
            "succeeded": counters.requests_done + sum(one.succeeded for one in out),
        },
        "outlook": outlook(
            found=account["sealed"] + snap.buffered,
            done=done,
            rate=snap.progress.rates()["requests"]
            if snap.state in {*_FINDING, "working"} and not state.paused
            else 0.0,
            finding=snap.state in _FINDING,
            pages=snap.index_pages,
            total_pages=snap.index_total,
        ),
        "per_s": _rates(snap),
        "pages": snap.index_pages + counters.pages + running["pages"],
        "items": snap.own_items + counters.items + running["items"],
        "gone_urls": counters.gone + snap.local_missed["gone"],
        "failed_urls": counters.failed_urls + snap.local_missed["failed"],
        "dead_urls": counters.dead_urls,
        "index": {
            "pages": snap.index_pages,
            "total": snap.index_total,
            "failed": snap.index_failed,
        },
        "index_failed": snap.index_failed,
        "nodes": [_node(member, snap, is_over=is_over) for member in state.members],
        "throttle": _throttle(snap),
        "stragglers": snap.progress.stragglers(),
        "output": list(snap.output),
        "misses": snap.misses,
        "goals": dict(spec.goals),
        "goal": state.goal or None,
        "closed_by": state.closed_by or None,
        "differences": [one.document for one in snap.differences],
        "warnings": list(snap.warnings),
        "message": snap.message,
    }


def as_left(batch: Batch, crawl: Crawl) -> Batch:
    """Return a batch as the crawl has it: once that has ended none is out, and what was out waits to be resumed."""
    if crawl.kind != "crawl" or not crawl.state.ended or batch.state not in OUT:
        return batch
    return replace(
        batch, state=BatchState.SEALED, reason=batch.reason or "it was out when the crawl ended"
    )


def told(crawl: Crawl) -> dict[str, Any]:
    """Return a stored crawl's summary: the producer's last one, or zeros, with its state, message and exit code now."""
    known = {
        "crawl": crawl.id,
        "spider": crawl.spider,
        "project": crawl.project,
        "version": crawl.version,
    }
    now = {"state": crawl.state.value, "message": crawl.message, "exit_code": crawl.exit_code}
    return {**known, **(crawl.summary or _nothing_yet()), "labels": [*labels_of(crawl)], **now}


def _nothing_yet() -> dict[str, Any]:
    """Return the summary of a crawl whose producer has written none, such as one that was refused."""
    totals = (
        "urls_found",
        "urls_distinct",
        *ACCOUNT,
        "pages",
        "items",
        "gone_urls",
        "failed_urls",
        "dead_urls",
    )
    return {
        "schema": SCHEMA,
        "paused": False,
        "duration_s": 0.0,
        **dict.fromkeys((*totals, "index_failed"), 0),
        "batches": dict.fromkeys(("total", "sent", "out", "waiting", "done", "failed", "dead"), 0),
        "requests": dict.fromkeys(("total", "sent", "done", "succeeded"), 0),
        "outlook": {"requests": None, "sure": "at-least", "eta_s": None},
        "per_s": dict.fromkeys(("requests", "pages", "items", "failed"), 0.0),
        "index": {"pages": 0, "total": None, "failed": 0},
        "throttle": {"heeded": True, "reason": "", "nodes": {}},
        "goals": {},
        **{
            name: []
            for name in (
                "earlier_versions",
                "code",
                "nodes",
                "stragglers",
                "output",
                "differences",
                "warnings",
            )
        },
        **dict.fromkeys(("misses", "goal", "closed_by")),
    }


def learned_slots(crawls: Iterable[Crawl]) -> dict[str, int]:
    """The most process slots of each node, by address, that crawls have learned: a short one may not have seen all."""
    found = dict[str, int]()
    for crawl in crawls:
        for node in crawl.summary.get("nodes") or ():
            url, slots = str(node.get("url")), int(node.get("learned") or 0)
            found[url] = max(slots, found.get(url, 0))
    return found


def labels_of(crawl: Crawl) -> tuple[str, ...]:
    """Return the labels of a crawl: those that it was asked for with, else those that its producer told."""
    asked = of(crawl.options, "settings", LABELS) or crawl.summary.get("labels") or ()
    return tuple(map(str, asked)) if isinstance(asked, (list, tuple)) else ()


def _throttle(snap: Snapshot) -> dict[str, Any]:
    """Return whether the processes of the crawl follow throttle rules, and which nodes do not."""
    members = () if snap.unheeded else snap.scheduler.members
    deaf = {one.node.name: one.deaf for one in members if one.deaf and not one.unfit}
    return {"heeded": not snap.unheeded and not deaf, "reason": snap.unheeded, "nodes": deaf}


def of(document: Any, *names: str) -> Any:
    """Return a value of a nested document; None if it is not there."""
    for name in names:
        document = document.get(name) if hasattr(document, "get") else None
    return document


def finite(value: Any) -> float:
    """Return a finite number that a worker sent or a store has kept; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if abs(value) < 1e18 and math.isfinite(value) else 0.0


def number(document: Any, *names: str) -> int:
    """Return a count of a nested document; 0 if it is not there."""
    return int(finite(of(document, *names)))


def succeeded(document: Mapping[str, Any]) -> int:
    """Return the number of target requests with a result in a summary."""
    return number(document, "requests", "succeeded")


def _rates(snap: Snapshot, node: str | None = None) -> dict[str, float]:
    """Return the rates; 0 for a paused crawl, even while its last jobs still finish."""
    return {
        name: 0.0 if snap.scheduler.paused else round(rate, 2)
        for name, rate in snap.progress.rates(node).items()
    }


def _node(member: NodeState, snap: Snapshot, *, is_over: bool) -> dict[str, Any]:
    counts = snap.progress.counts(member.node.name)
    out = () if is_over else member.out.values()
    return {
        "name": member.node.name,
        "url": member.node.url,
        "state": member.state,
        "reason": member.unfit or member.down_reason,
        "unreached": member.unreached,
        "slots": member.slots,
        "learned": member.learned,
        "running": len(out),
        "waiting": sum(one.report is None for one in out),
        "unleased": sum(bool(one.report and one.report.no_lease) for one in out),
        "jobs": member.jobs,
        "items": member.items + sum(one.progress()["items"] for one in out),
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


def ended_in_words(document: Mapping[str, Any]) -> str:
    """Return the state of a crawl in words: `finished, 8 failed` where items may be missing, as its exit code says."""
    state, code = str(of(document, "state") or ""), of(document, "exit_code")
    if state != CrawlState.FINISHED.value or not code:
        return state
    lost = {
        "failed": number(document, "failed_urls") + number(document, "dead_urls"),
        "refused": number(document, "refused"),
        "index pages failed": number(document, "index_failed"),
        "batches left": number(document, "batches", "waiting"),
    }
    told_of = [f"{count:,} {what}" for what, count in lost.items() if count]
    return ", ".join([state, *(told_of or [f"exit code {code}"])])


def way_on(document: Mapping[str, Any]) -> str:
    """Return the arguments of `sdist` that go on with a crawl that has ended and is not whole; empty if it is."""
    crawl, state = of(document, "crawl"), of(document, "state")
    if state in {CrawlState.STOPPED.value, CrawlState.INCOMPLETE.value, DIED}:
        return f"resume {crawl}"
    if state != CrawlState.FINISHED.value or not of(document, "exit_code"):
        return ""
    if number(document, "batches", "waiting"):  # its spider has closed it
        return f"resume {crawl}"
    # What the producer crawled itself is in no batch, and cannot be tried again.
    in_batches = number(document, "requests", "done") > succeeded(document)
    if number(document, "failed_urls") and in_batches:
        return f"crawls retry {crawl} --failed-urls"
    return f"crawls retry {crawl}" if number(document, "dead_urls") else ""


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
    requests, index = summary["requests"], summary["index"]
    return {
        "state": summary["state"],
        "found": summary["urls_distinct"] - summary["local"] - summary["refused"],
        "sealed": requests["total"],
        "sent": requests["sent"],
        "done": requests["done"],
        "pages": summary["pages"],
        "items": summary["items"],
        "index": [index["pages"], index["total"]],
        "nodes": {  # pages, items, number of jobs out, and state
            node["name"]: [node["pages"], node["items"], node["running"], node["state"]]
            for node in summary["nodes"]
        },
        "shards": {number: list(values) for number, values in shards.items()},
    }
