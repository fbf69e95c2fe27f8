"""The series behind the report, as `sdist report --json` gives them and the page draws them. No IO.

Times are seconds since the crawl began, rates are pages per minute.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.joblogs.verdict import status_codes
from scrapyd_dist.progress import NUMBER, finite, number, of, outlook, told
from scrapyd_dist.report.facts import Facts, has_items, hidden, natural

#: maximum points of a line
POINTS = 240
#: maximum columns and rows of the heat map
COLUMNS, ROWS = 60, 60
#: seconds without a sample, beyond the usual distance of two, that count as a gap
SILENCE = 10.0
#: parts of the time so far whose pace goes into the forecast
WINDOWS = (0.1, 0.25, 0.5, 1.0)
#: how an attempt ended
OUTCOMES = {
    AttemptState.ACCEPTED: "done",
    AttemptState.FAILED: "failed",
    AttemptState.RUNNING: "running",
    AttemptState.SENT: "waiting",
    AttemptState.SENDING: "waiting",
}
#: groups of status codes; 403 and 429 are those of a ban
GROUPS = ("2xx", "3xx", "403 and 429", "other 4xx", "5xx", "no answer")

_COUNTS = ("downloader/request_count", "downloader/exception_count", "retry/count")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When a running crawl may end."""

    requests: int  #: expected in all
    sure: str  #: known, estimate or at-least
    soonest: float
    latest: float


@dataclass(frozen=True, kw_only=True)
class BurnUp:
    """Target requests over time: found, sent to nodes, ended."""

    at: tuple[float, ...]
    found: tuple[float, ...]
    sent: tuple[float, ...]
    done: tuple[float, ...]
    gaps: tuple[tuple[float, float], ...] = ()  #: times in which no process worked on the crawl
    forecast: Forecast | None = None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Pages per minute of each node in each column of time; None in a gap."""

    step: float
    nodes: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    pages: tuple[float, ...]  #: of each node in all
    hidden: int = 0  #: number of nodes left out

    @cached_property
    def most(self) -> float:
        return max((cell for row in self.cells for cell in row if cell is not None), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One job on a lane of its node."""

    lane: int
    begin: float
    end: float
    outcome: str
    name: str  #: `batch 7, attempt 1`


@dataclass(frozen=True, kw_only=True)
class Gantt:
    """All jobs; a node has as many lanes as jobs ran on it at one time."""

    lanes: tuple[str, ...]  #: the node of each lane; lanes of one node follow each other
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values in descending order."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    median: float

    @property
    def factor(self) -> float | None:
        """The straggler factor: the greatest value divided by the median."""
        return self.values[0] / self.median if self.median else None


@dataclass(frozen=True, kw_only=True)
class Statuses:
    """Status codes of one node's jobs."""

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
    median: float | None = None  #: of the finished runs before; None for fewer than two
    mad: float = 0.0  #: their median absolute deviation


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Number of this crawl's jobs by node and version."""

    versions: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, int]]
    workers: Mapping[str, int] = field(
        default_factory=dict
    )  #: version of scrapyd-dist in the job -> jobs


@dataclass(frozen=True, kw_only=True)
class Series:
    """All series of a crawl; None or empty without data."""

    burn_up: BurnUp | None
    heat: Heat | None
    jobs: Gantt | None
    shard_sizes: Spread | None
    shard_times: Spread | None
    job_times: Spread | None
    statuses: tuple[Statuses, ...]
    runs: Runs | None
    versions: Versions | None


def series(facts: Facts) -> Series:
    walks: dict[
        str, list[float]
    ] = {}  # pages, requests found, start and last activity, as the last sample says
    for _, values in facts.samples:
        for name, row in (values.get("shards") or {}).items():
            if isinstance(row, list) and len(row) == 4:
                walks[f"shard {name}"] = [finite(value) for value in row]
    times = {
        name: round(max(0.0, end - begin), 2) for name, (_, _, begin, end) in walks.items() if begin
    }
    jobs = [
        (f"batch {one.batch} on {one.node}", span_of(one, facts.until))
        for one in facts.attempts
        if one.state is AttemptState.ACCEPTED
    ]
    return Series(
        burn_up=burn_up(facts),
        heat=heat(facts),
        jobs=gantt(facts),
        shard_sizes=spread((name, found) for name, (_, found, _, _) in walks.items()),
        shard_times=spread(times.items()),
        job_times=spread((name, round(end - begin, 2)) for name, (begin, end) in jobs),
        statuses=statuses(facts),
        runs=runs(facts),
        versions=versions(facts),
    )


def document(facts: Facts) -> dict[str, Any]:
    return {
        "crawl": facts.crawl.id,
        "begun": facts.crawl.created,
        "as_of": facts.until,
        "state": facts.state,
        "summary": _without_passwords(told(facts.crawl)),
        **asdict(series(facts)),
        "nodes_now": [asdict(node) for node in facts.nodes_now],
        "misses": [asdict(miss) for miss in facts.misses],
    }


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: _without_passwords(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_passwords(one) for one in value]
    return value


def burn_up(facts: Facts) -> BurnUp | None:
    """Return None for fewer than two samples."""
    if len(facts.samples) < 2:
        return None
    at = [max(0.0, when - facts.crawl.created) for when, _ in facts.samples]
    lines = {
        name: _rising(values.get(name) for _, values in facts.samples)
        for name in ("found", "sent", "done")
    }
    last = len(at) - 1
    kept = (
        sorted({round(i * last / (POINTS - 1)) for i in range(POINTS)})
        if last >= POINTS
        else range(last + 1)
    )
    return BurnUp(
        at=tuple(round(at[i], 2) for i in kept),
        gaps=tuple(_gaps(at)),
        forecast=_forecast(facts, at, lines["done"]),
        **{name: tuple(line[i] for i in kept) for name, line in lines.items()},
    )


def _rising(values: Iterable[Any]) -> list[float]:
    """A count over time that never falls: work that failed and is done again is no step back."""
    return list(accumulate(map(finite, values), max))


def _gaps(at: Sequence[float]) -> list[tuple[float, float]]:
    """Times without a sample that are much longer than those between other samples."""
    usual = median(b - a for a, b in pairwise(at))
    return [
        (round(a, 2), round(b, 2))
        for a, b in pairwise(at)
        if b - a > SILENCE + 3 * max(usual, b / NUMBER)
    ]


def _forecast(facts: Facts, at: Sequence[float], done: Sequence[float]) -> Forecast | None:
    rates = [rate for part in WINDOWS if (rate := _rate(at, done, part)) > 0]
    if not facts.lives or not rates:
        return None
    last = facts.samples[-1][1]
    pages, total_pages = [*(last.get("index") or ()), None, None][:2]
    expected = outlook(
        found=number(last, "sealed"),
        done=int(done[-1]),
        rate=max(rates),
        finding=facts.crawl.state.value in {"starting", "finding"},
        pages=number(pages),
        total_pages=number(total_pages) or None,
    )
    left = expected["requests"] - done[-1]
    if left <= 0:
        return None
    soonest, latest = (round(at[-1] + left / rate, 1) for rate in (max(rates), min(rates)))
    return Forecast(
        requests=expected["requests"], sure=expected["sure"], soonest=soonest, latest=latest
    )


def _rate(at: Sequence[float], done: Sequence[float], part: float) -> float:
    """Requests per second over the last part of the time since the first one ended."""
    first = next((i for i, value in enumerate(done) if value), len(done))
    if first >= len(done) - 1:
        return 0.0
    begin = at[-1] - (at[-1] - at[first]) * part
    i = max(first, min(bisect_right(at, begin) - 1, len(at) - 2))
    return (done[-1] - done[i]) / (at[-1] - at[i]) if at[-1] > at[i] else 0.0


def heat(facts: Facts) -> Heat | None:
    """Return None if no sample tells of a node's pages. Of too many nodes, those with the fewest pages are kept."""
    names = sorted(
        {name for _, values in facts.samples for name in values.get("nodes") or ()}, key=natural
    )
    at = [max(0.0, when - facts.crawl.created) for when, _ in facts.samples]
    if len(at) < 2 or not names or at[-1] <= 0:
        return None
    step = at[-1] / max(1, min(COLUMNS, int(at[-1] // 2) or 1))
    lines = {
        name: _rising((of(row, "nodes", name) or [0])[0] for _, row in facts.samples)
        for name in names
    }
    shown = sorted(sorted(names, key=lambda name: lines[name][-1])[:ROWS], key=natural)
    return Heat(
        step=step,
        nodes=tuple(shown),
        cells=tuple(_per_minute(at, lines[name], step) for name in shown),
        pages=tuple(lines[name][-1] for name in shown),
        hidden=len(names) - len(shown),
    )


def _per_minute(
    at: Sequence[float], pages: Sequence[float], step: float
) -> tuple[float | None, ...]:
    gaps = _gaps(at)
    edges = [column * step for column in range(round(at[-1] / step) + 1)]
    return tuple(
        None
        if any(a <= begin and end <= b for a, b in gaps)
        else round((_value(at, pages, end) - _value(at, pages, begin)) / step * 60, 1)
        for begin, end in pairwise(edges)
    )


def _value(at: Sequence[float], values: Sequence[float], when: float) -> float:
    """The count at a moment, interpolated between two samples."""
    i = bisect_right(at, when)
    if i == 0:
        return values[0] * (when / at[0] if at[0] else 1.0)
    if i == len(at):
        return values[-1]
    share = (when - at[i - 1]) / (at[i] - at[i - 1]) if at[i] > at[i - 1] else 1.0
    return values[i - 1] + (values[i] - values[i - 1]) * share


def span_of(attempt: Attempt, until: float) -> tuple[float, float]:
    """Return from when to when a job ran, by the clock of this machine.

    A worker reports its times by its node's clock: their distance is right, and what this machine knows
    of the attempt says where they belong.
    """
    begin, end = attempt.sent_at, max(attempt.ended_at or until, attempt.sent_at)
    started, updated = finite(of(attempt.report, "started")), finite(of(attempt.report, "updated"))
    ran = updated - started
    if not started or not 0 <= ran <= end - begin:
        return begin, end
    first = min(max(started, begin), end - ran)
    return first, first + ran


def gantt(facts: Facts) -> Gantt | None:
    """Return None if no job was sent. Each job is on the first free lane of its node."""
    jobs = []
    for attempt in facts.attempts:
        if attempt.state in OUTCOMES:
            begin, end = (
                max(0.0, when - facts.crawl.created) for when in span_of(attempt, facts.until)
            )
            jobs.append((natural(attempt.node), attempt.node, begin, end, attempt))
    lanes, bars, free, first = list[str](), list[Bar](), list[float](), 0
    for _, node, begin, end, attempt in sorted(jobs, key=lambda row: row[:4]):
        if lanes and lanes[-1] != node:
            first = len(lanes)
        lane = next((i for i in range(first, len(lanes)) if free[i] <= begin + 0.05), len(lanes))
        if lane == len(lanes):
            lanes.append(node)
            free.append(end)
        free[lane] = end
        name, outcome = f"batch {attempt.batch}, attempt {attempt.number}", OUTCOMES[attempt.state]
        bars.append(
            Bar(lane=lane, begin=round(begin, 2), end=round(end, 2), outcome=outcome, name=name)
        )
    return Gantt(lanes=tuple(lanes), bars=tuple(bars)) if bars else None


def spread(pairs: Iterable[tuple[str, float]]) -> Spread | None:
    """Return None without values."""
    rows = sorted(((name, finite(value)) for name, value in pairs), key=lambda row: -row[1])
    if not rows:
        return None
    names, values = zip(*rows, strict=True)
    return Spread(names=names, values=values, median=median(values))


def statuses(facts: Facts) -> tuple[Statuses, ...]:
    """Return one row per node, of all jobs that reported."""
    sums = defaultdict[str, Counter[str]](Counter)
    for attempt in facts.attempts:
        for name, value in (of(attempt.report, "stats") or {}).items():
            sums[attempt.node][str(name)] += number(value)
    rows = []
    for node in sorted(sums, key=natural):
        stats = sums[node]
        codes = status_codes(stats)
        requests, silent, retried = (stats[name] for name in _COUNTS)
        if codes or requests or silent or retried:
            groups = _groups(codes, silent)
            rows.append(
                Statuses(node=node, groups=groups, codes=codes, requests=requests, retried=retried)
            )
    return tuple(rows)


def _groups(codes: Mapping[str, int], silent: int) -> dict[str, int]:
    groups = {**dict.fromkeys(GROUPS, 0), "no answer": silent}
    for code, count in codes.items():
        usual = {"1": "2xx", "2": "2xx", "3": "3xx", "4": "other 4xx"}.get(code[0], "5xx")
        groups["403 and 429" if code in {"403", "429"} else usual] += count
    return groups


def runs(facts: Facts) -> Runs | None:
    """Return None for the first run."""
    items = [number(run.summary, "items") for run in facts.runs]
    before = [
        n
        for n, run in zip(items, facts.runs, strict=True)
        if run.id != facts.crawl.id and has_items(run)
    ]
    if not before:
        return None
    middle = median(before) if len(before) > 1 else None
    mad = median(abs(count - middle) for count in before) if middle is not None else 0.0
    return Runs(
        names=tuple(run.id for run in facts.runs), items=tuple(items), median=middle, mad=mad
    )


def versions(facts: Facts) -> Versions | None:
    """Return None if no job reported its version."""
    nodes = defaultdict[str, Counter[str]](Counter)
    workers = Counter[str]()
    for attempt in facts.attempts:
        if code := of(attempt.report, "code"):
            nodes[attempt.node][str(of(code, "egg") or facts.crawl.version or "unknown")] += 1
            workers[str(of(code, "version") or "unknown")] += 1
    found = sorted({version for counts in nodes.values() for version in counts})
    ordered = {node: dict(nodes[node]) for node in sorted(nodes, key=natural)}
    return (
        Versions(versions=tuple(found), nodes=ordered, workers=dict(workers)) if ordered else None
    )
