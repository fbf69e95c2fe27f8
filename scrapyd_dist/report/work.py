"""What was done and how: jobs on slots, sizes and durations, status codes, runs, versions. Pure functions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.report.facts import has_items, natural, number, of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.report.facts import Facts

#: how an attempt ended, in words for people
OUTCOMES = {
    AttemptState.ACCEPTED: "done",
    AttemptState.FAILED: "failed",
    AttemptState.RUNNING: "running",
    AttemptState.SENT: "waiting",
    AttemptState.SENDING: "waiting",
}
#: groups of status codes, as a site that does not want us shows in them
GROUPS = ("2xx", "3xx", "403 and 429", "other 4xx", "5xx", "no answer")

_STATUS = re.compile(r"downloader/response_status_count/(\d{3})\Z")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One job on a slot of a node; seconds since the crawl began."""

    lane: int
    begin: float
    end: float
    outcome: str
    name: str  #: `batch 7, attempt 1`


@dataclass(frozen=True, kw_only=True)
class Gantt:
    """All jobs, on as many lanes per node as ran there at one time."""

    lanes: tuple[str, ...]  #: the node of each lane; lanes of one node follow each other
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values, the greatest first, and how far that is from the middle."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    median: float

    @property
    def factor(self) -> float | None:
        """Times that the greatest is of the median: what the slowest costs all others."""
        return self.values[0] / self.median if self.median else None


@dataclass(frozen=True, kw_only=True)
class Statuses:
    """What the sites answered the jobs of one node."""

    node: str
    groups: Mapping[str, int]
    codes: Mapping[str, int]
    requests: int
    retried: int

    @property
    def retry_rate(self) -> float:
        return self.retried / self.requests if self.requests else 0.0


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Items of the last runs of a spider; the last one is this crawl."""

    names: tuple[str, ...]
    items: tuple[int, ...]
    median: float | None = None  #: of the finished runs before; None where there are too few
    mad: float = 0.0  #: their median distance from it


@dataclass(frozen=True, kw_only=True)
class Versions:
    """How many jobs of this crawl each node ran with each version."""

    versions: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, int]]
    workers: Mapping[str, int] = field(default_factory=dict)  #: version of our worker half -> jobs


def span_of(attempt: Attempt, until: float) -> tuple[float, float]:
    """From when to when a job ran, by our clock.

    A worker tells its own times by its node's clock: their distance is right, and what our clock saw
    of the attempt says where they belong.
    """
    begin, end = attempt.sent_at, max(attempt.ended_at or until, attempt.sent_at)
    started, updated = number(of(attempt.report, "started")), number(of(attempt.report, "updated"))
    ran = updated - started
    if not started or not 0 <= ran <= end - begin:
        return begin, end
    first = min(max(started, begin), end - ran)
    return first, first + ran


def gantt(facts: Facts) -> Gantt | None:
    """None where no job was sent."""
    by_node: dict[str, list[tuple[float, float, Attempt]]] = defaultdict(list)
    for attempt in facts.attempts:
        if attempt.state in OUTCOMES:
            begin, end = span_of(attempt, facts.until)
            by_node[attempt.node].append((max(0.0, begin - facts.begun), max(0.0, end - facts.begun), attempt))
    lanes: list[str] = []
    bars: list[Bar] = []
    for node in sorted(by_node, key=natural):
        _lay(sorted(by_node[node], key=lambda row: row[:2]), node, lanes, bars)
    return Gantt(lanes=tuple(lanes), bars=tuple(bars)) if bars else None


def _lay(rows: Iterable[tuple[float, float, Attempt]], node: str, lanes: list[str], bars: list[Bar]) -> None:
    """Each job on the first lane of its node that is free."""
    first, free = len(lanes), list[float]()
    for begin, end, attempt in rows:
        at = next((i for i, since in enumerate(free) if since <= begin + 0.05), len(free))
        if at == len(free):
            free.append(end)
            lanes.append(node)
        free[at] = end
        name = f"batch {attempt.batch}, attempt {attempt.number}"
        outcome = OUTCOMES[attempt.state]
        bars.append(Bar(lane=first + at, begin=round(begin, 2), end=round(end, 2), outcome=outcome, name=name))


def spread(pairs: Iterable[tuple[str, float]]) -> Spread | None:
    """None where there is nothing."""
    rows = sorted(((name, number(value)) for name, value in pairs), key=lambda row: -row[1])
    if not rows:
        return None
    names, values = zip(*rows, strict=True)
    return Spread(names=names, values=values, median=median(values))


def shard_sizes(facts: Facts) -> Spread | None:
    """Target requests that each shard found."""
    return spread((f"shard {name}", row[1]) for name, row in _walks(facts).items())


def shard_times(facts: Facts) -> Spread | None:
    """Seconds that each walk took."""
    rows = _walks(facts).items()
    return spread((f"shard {name}", round(max(0.0, row[3] - row[2]), 2)) for name, row in rows if row[2])


def _walks(facts: Facts) -> dict[str, list[float]]:
    """Pages, found, begun and last heard of, of each shard, as the samples told it last."""
    walks: dict[str, list[float]] = {}
    for _, values in facts.samples:
        for name, row in (values.get("shards") or {}).items():
            if isinstance(row, list) and len(row) == 4:
                walks[name] = [number(value) for value in row]
    return walks


def job_times(facts: Facts) -> Spread | None:
    """Seconds that each job ran whose work counts."""
    rows = []
    for attempt in facts.attempts:
        if attempt.state is AttemptState.ACCEPTED:
            begin, end = span_of(attempt, facts.until)
            rows.append((f"batch {attempt.batch} on {attempt.node}", round(end - begin, 2)))
    return spread(rows)


def statuses(facts: Facts) -> tuple[Statuses, ...]:
    """Of the jobs whose work counts, by node."""
    codes: dict[str, Counter[str]] = defaultdict(Counter)
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in facts.attempts:
        stats = of(attempt.report, "stats") or {}
        for name, value in stats.items():
            if found := _STATUS.match(str(name)):
                codes[attempt.node][found[1]] += int(number(value))
        for name in ("downloader/request_count", "downloader/exception_count", "retry/count"):
            sums[attempt.node][name] += int(number(stats.get(name)))
    names = sorted((node for node in sums if codes[node] or sum(sums[node].values())), key=natural)
    return tuple(_statuses_of(node, codes[node], sums[node]) for node in names)


def _statuses_of(node: str, codes: Mapping[str, int], sums: Mapping[str, int]) -> Statuses:
    groups = dict.fromkeys(GROUPS, 0)
    for code, count in codes.items():
        groups[_group(code)] += count
    groups["no answer"] += sums["downloader/exception_count"]
    retried, requests = sums["retry/count"], sums["downloader/request_count"]
    return Statuses(node=node, groups=groups, codes=dict(sorted(codes.items())), requests=requests, retried=retried)


def _group(code: str) -> str:
    if code in {"403", "429"}:
        return "403 and 429"
    return {"1": "2xx", "2": "2xx", "3": "3xx", "4": "other 4xx"}.get(code[0], "5xx")


def runs(facts: Facts) -> Runs | None:
    """None where this is the first run."""
    rows = [(run.id, int(number(run.summary.get("items")))) for run in facts.runs]
    before = [
        int(number(run.summary.get("items"))) for run in facts.runs if run.id != facts.crawl.id and has_items(run)
    ]
    if not before:
        return None
    names, items = zip(*rows, strict=True)
    middle = median(before) if len(before) > 1 else None
    mad = median(abs(count - middle) for count in before) if middle is not None else 0.0
    return Runs(names=names, items=items, median=middle, mad=mad)


def versions(facts: Facts) -> Versions | None:
    """None where no job has told."""
    nodes: dict[str, Counter[str]] = defaultdict(Counter)
    workers: Counter[str] = Counter()
    for attempt in facts.attempts:
        code = of(attempt.report, "code")
        if code:
            nodes[attempt.node][str(of(code, "egg") or facts.crawl.version or "unknown")] += 1
            workers[str(of(code, "version") or "unknown")] += 1
    found = sorted({version for counts in nodes.values() for version in counts})
    ordered = {node: dict(nodes[node]) for node in sorted(nodes, key=natural)}
    return Versions(versions=tuple(found), nodes=ordered, workers=dict(workers)) if ordered else None
