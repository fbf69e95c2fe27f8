"""Puts a crawl in numbers: its progress and rates, its summary, and samples of that. No IO."""

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
    from scrapyd_dist.scheduling.scheduler_state import SchedulerState

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
#: what is counted of the work of jobs, also of attempts that failed later: requests that ended,
#: pages, items, and requests that failed
COUNTS = ("requests", "pages", "items", "failed")
#: the state of a crawl whose process is gone before its end
DIED = "died"
#: how a warning of fewer items than usual is told from others
UNUSUAL = "are unusually few"
#: values of the states of a crawl that is not at its end
_GOES_ON = {state.value for state in CrawlState if not state.ended}
#: kind of misses -> where a summary counts them
MISSED = {
    "gone": "gone_urls",
    "failed": "failed_urls",
    "dead": "dead_urls",
    "index": "index_failed",
}
#: version of the summary document
SCHEMA = 1
#: names of the counts of found URLs; `urls_found` is their sum
ACCOUNT = ("offsite", "duplicate", "refused", "local", "sealed")
#: minimum seconds between two samples
EVERY = 1.0
#: approximate maximum of samples per crawl: the interval grows with the crawl's age
NUMBER = 500
_OVER = frozenset(state.value for state in CrawlState if state.ended)
#: states in which more target requests may be found
_FINDING = ("starting", "finding")
#: states in which requests are made
_AT_WORK = frozenset({*_FINDING, "working"})
#: counts of a summary that are 0 before the crawl has begun
_FIRST_COUNTS = (
    "urls_found",
    "urls_distinct",
    *ACCOUNT,
    "pages",
    "items",
    "gone_urls",
    "failed_urls",
    "dead_urls",
    "index_failed",
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


@dataclass(kw_only=True)
class Rate:
    """Growth rates of the `COUNTS` of a job, a node or a crawl."""

    window: float = WINDOW  #: seconds
    #: (time, counts) of the samples in the window, oldest first, and one from before it
    _seen: deque[tuple[float, Counter[str]]] = field(default_factory=deque)
    _last: tuple[float, Counter[str]] | None = None  #: the latest counts, sampled or not

    def add(self, now: float, counts: Counter[str]) -> None:
        """Record the counts at this time; the caller must not change them later."""
        self._last = (now, counts)
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds between the samples of which the rates are computed; 0 before the second one."""
        if not self._last or not self._seen:
            return 0.0
        first_time, _ = self._seen[0]
        last_time, _ = self._last
        return last_time - first_time

    def rates(self) -> dict[str, float]:
        """Return the growth per second of each count.

        It is never below 0, although a retry may decrease a count.
        """
        if self._last is None or self.span <= 0:
            return dict.fromkeys(COUNTS, 0.0)
        _, before = self._seen[0]
        _, after = self._last
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


@dataclass(kw_only=True)
class Progress:
    """The progress of a crawl's nodes, updated by `look`."""

    _jobs: dict[str, JobRun] = field(default_factory=dict)  #: jobs that are out
    #: job -> when its first report was read; only of jobs that are out
    _first_reports: dict[str, float] = field(default_factory=dict)
    #: node -> `COUNTS` of its attempts that are no longer out
    _ended: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: node -> `COUNTS` of all its attempts
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _node_rates: defaultdict[str, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _whole: Rate = field(default_factory=Rate)  #: rates of the whole crawl
    #: requests per second of the batches that ended last
    _batch_paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _now: float = 0.0  #: of the last update

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Add the accepted attempts of an earlier process."""
        for attempt in attempts:
            self._ended[attempt.node].update(counts_of(attempt.report))

    def update(
        self, members: Sequence[NodeState], now: float, *, own_pages: int = 0, own_items: int = 0
    ) -> None:
        """Update counts and rates at `now` by a monotonic clock.

        `own_pages` and `own_items` are what the producer has crawled itself.
        """
        self._now = now
        jobs: dict[str, JobRun] = {}
        for member in members:
            jobs.update(member.out)
        for job in self._jobs.keys() - jobs.keys():
            self._end(self._jobs[job])
            self._first_reports.pop(job, None)
        self._jobs = jobs
        for job, run in jobs.items():
            if run.report is not None:
                self._first_reports.setdefault(job, now)
        self._count_nodes({member.node.name for member in members})
        whole = Counter(pages=own_pages, items=own_items)
        for name, counts in self._counts.items():
            self._node_rates[name].add(now, counts)
            whole.update(counts)
        self._whole.add(now, whole)

    def _end(self, run: JobRun) -> None:
        self._ended[run.member.node.name].update(_counts(run))
        pace = self._compute_pace(run)
        if pace and run.report is not None and run.report.ended:
            self._batch_paces.append(pace)

    def _count_nodes(self, names: Iterable[str]) -> None:
        self._counts = {name: self._ended[name].copy() for name in names}
        for run in self._jobs.values():
            self._counts[run.member.node.name].update(_counts(run))

    def _compute_age(self, run: JobRun) -> float:
        """Return the seconds since its first report."""
        return self._now - self._first_reports.get(run.job, self._now)

    def _compute_pace(self, run: JobRun) -> float | None:
        """Return its requests per second; None until `TOO_SHORT` seconds after its first report."""
        seconds = self._compute_age(run)
        if not run.report or seconds < TOO_SHORT:
            return None
        return run.report.ended_requests / seconds

    def counts(self, node: str) -> Counter[str]:
        """Return the `COUNTS` of all attempts of a node."""
        return self._counts.get(node, Counter())

    def rates(self, node: str | None = None) -> dict[str, float]:
        """Return the growth per second of the `COUNTS` of a node, or of the whole crawl."""
        rate = self._whole if node is None else self._node_rates[node]
        return rate.rates()

    def stragglers(self) -> list[dict[str, Any]]:
        """Return the batches that are far slower than the others, slowest first."""
        running: list[tuple[JobRun, float]] = []
        paces = list(self._batch_paces)
        for run in self._jobs.values():
            pace = self._compute_pace(run)
            if pace is not None:
                running.append((run, pace))
            if pace:
                paces.append(pace)
        if len(paces) < SLOW_NEEDS:
            return []
        usual = median(paces)
        slow = [(run, pace) for run, pace in running if self._is_slow(run, pace, usual)]
        slow.sort(key=itemgetter(1))
        return [self._describe_straggler(run, pace, usual) for run, pace in slow[:NAMED]]

    def _is_slow(self, run: JobRun, pace: float, usual: float) -> bool:
        # A job without a batch is a worker that leases many.
        is_old = self._compute_age(run) >= SLOW_AFTER
        return pace * SLOW_BY < usual and is_old and run.batch.size > 0

    def _describe_straggler(self, run: JobRun, pace: float, usual: float) -> dict[str, Any]:
        return {
            "batch": run.batch.number,
            "attempt": run.number,
            "job": run.job,
            "node": run.member.node.name,
            "for_s": round(self._compute_age(run)),
            "done": run.report.ended_requests if run.report else 0,
            "of": run.batch.size,
            "times_slower": round(usual / pace, 1) if pace else None,
        }


def _counts(run: JobRun) -> Counter[str]:
    """Return the `COUNTS` of a job, without those that an earlier process has counted."""
    if not run.report:
        return Counter()
    return run.report.counts - run.recalled


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
    #: requests crawled locally in vain: gone, failed
    local_missed: Counter[str] = field(default_factory=Counter)
    output: Sequence[str] = ()
    misses: str | None = None  #: path of the list of URLs without a result
    #: from `scrapy crawl`, that people are told of
    differences: list[FoundDifference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    message: str = ""  #: one paragraph for people: why it stopped
    progress: Progress = field(default_factory=Progress)  #: updated with the members


def summary(snap: Snapshot) -> dict[str, Any]:
    """Return the summary document, schema 1, as described in `docs/reference/summary.md`."""
    scheduler = snap.scheduler
    spec = scheduler.spec
    counters = scheduler.counters
    account = {name: snap.counts.get(name, 0) for name in ACCOUNT}
    is_over = _is_over(snap)
    # Once a crawl has ended, what is not home is not done: it waits, to be resumed.
    running = Counter[str]()
    if not is_over:
        running = sum((member.progress() for member in scheduler.members), running)
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
        "failed_urls": counters.failed_urls + snap.local_missed["failed"],
        "dead_urls": counters.dead_urls,
        "index": {
            "pages": snap.index_pages,
            "total": snap.index_total,
            "failed": snap.index_failed,
        },
        "index_failed": snap.index_failed,
        "nodes": [_describe_node(member, snap) for member in scheduler.members],
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
    return outlook(
        found=snap.counts.get("sealed", 0) + snap.buffered,
        done=done,
        rate=rate,
        finding=snap.state in _FINDING,
        pages=snap.index_pages,
        total_pages=snap.index_total,
    )


def _rates(snap: Snapshot, node: str | None = None) -> dict[str, float]:
    """Return the rates; 0 for a paused crawl, even while its last jobs still finish."""
    rates = snap.progress.rates(node)
    if snap.scheduler.paused:
        return dict.fromkeys(rates, 0.0)
    return {name: round(rate, 2) for name, rate in rates.items()}


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


def as_left(batch: Batch, crawl: Crawl) -> Batch:
    """Return a batch as the crawl has it.

    Once that has ended none is out, and what was out waits to be resumed.
    """
    if crawl.kind != "crawl" or not crawl.state.ended or batch.state not in OUT:
        return batch
    return replace(
        batch, state=BatchState.SEALED, reason=batch.reason or "it was out when the crawl ended"
    )


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


def exit_code(document: Mapping[str, Any], *, max_failed: int) -> int:
    """Return the exit code of a finished crawl: 0 complete, 3 partial, 1 if every batch is dead."""
    lost = document["failed_urls"] + document["dead_urls"] + document["refused"]
    if document["batches"]["total"] and not document["batches"]["done"] and document["dead_urls"]:
        return 1
    if lost > max_failed or document["index_failed"]:
        return 3
    return 0


def ended_in_words(document: Mapping[str, Any]) -> str:
    """Return the state of a crawl in words, such as `finished, 8 failed`.

    What may be missing is named as its exit code says.
    """
    state = str(nested_value(document, "state") or "")
    code = nested_value(document, "exit_code")
    if state != CrawlState.FINISHED.value or not code:
        return state
    losses = {
        "failed": count_in(document, "failed_urls") + count_in(document, "dead_urls"),
        "refused": count_in(document, "refused"),
        "index pages failed": count_in(document, "index_failed"),
        "batches left": count_in(document, "batches", "waiting"),
    }
    phrases = [f"{count:,} {name}" for name, count in losses.items() if count]
    return ", ".join([state, *(phrases or [f"exit code {code}"])])


def next_command(document: Mapping[str, Any]) -> str:
    """Return the arguments of `sdist` that continue a crawl which has ended and is not whole.

    They are empty if it is whole.
    """
    crawl = nested_value(document, "crawl")
    state = nested_value(document, "state")
    if state in {CrawlState.STOPPED.value, CrawlState.INCOMPLETE.value, DIED}:
        return f"resume {crawl}"
    if state != CrawlState.FINISHED.value or not nested_value(document, "exit_code"):
        return ""
    if count_in(document, "batches", "waiting"):  # its spider has closed it
        return f"resume {crawl}"
    # What the producer crawled itself is in no batch, and cannot be tried again.
    in_batches = count_in(document, "requests", "done") > succeeded(document)
    if count_in(document, "failed_urls") and in_batches:
        return f"crawls retry {crawl} --failed-urls"
    if count_in(document, "dead_urls"):
        return f"crawls retry {crawl}"
    return ""


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


def is_paused(summary: Mapping[str, Any]) -> bool:
    """Return whether the crawl is paused, and not at its end."""
    return bool(summary.get("paused")) and summary.get("state") in _GOES_ON
