"""The series behind the report: `sdist report --json` gives them, and the page draws them. No IO.

Times are seconds since the crawl began, rates are pages per minute.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from statistics import median
from typing import Any

from scrapyd_dist.batches import Attempt, AttemptState, Crawl
from scrapyd_dist.joblogs.verdict import status_codes
from scrapyd_dist.progress.earlier_runs import RUNS, earlier_runs, is_whole, kind_of
from scrapyd_dist.progress.outlook import FINDING, estimate_outlook
from scrapyd_dist.progress.samples import NUMBER
from scrapyd_dist.progress.summary_document import count_in, finite_number, nested_value, summary_of
from scrapyd_dist.report.facts import Facts, hidden, natural

#: maximum points of a line
POINTS = 240
#: maximum columns of the heat map
COLUMNS = 60
#: maximum rows of the heat map
ROWS = 60
#: seconds without a sample, beyond the usual distance of two, that count as a gap
SILENCE = 10.0
#: parts of the time so far whose pace goes into the forecast
WINDOWS = (0.1, 0.25, 0.5, 1.0)
#: how an attempt ended; one that was refused has made nothing
OUTCOMES = {
    AttemptState.ACCEPTED: "done",
    AttemptState.FAILED: "failed",
    AttemptState.RUNNING: "running",
    AttemptState.ACKED: "running",  # till its part is home
    AttemptState.SENT: "waiting",
    AttemptState.SENDING: "waiting",
}
#: groups of status codes; 403 and 429 are those of a ban
GROUPS = ("2xx", "3xx", "403 and 429", "other 4xx", "5xx", "no answer")

#: first digit of a status code -> its group; else it is an error of the server
_GROUP_OF_DIGIT = {"1": "2xx", "2": "2xx", "3": "3xx", "4": "other 4xx"}
#: status codes that mean a ban
_BANS = frozenset({"403", "429"})
#: seconds by which jobs of one lane may overlap, since the clocks are not exact
_OVERLAP = 0.05


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When a running crawl may end."""

    requests: int  #: expected in all
    sure: str  #: known, estimate or at-least
    soonest: float  #: seconds since the crawl began
    latest: float


@dataclass(frozen=True, kw_only=True)
class BurnUp:
    """Target requests over time: found, sent to nodes, ended."""

    at: tuple[float, ...]  #: the time of each point; the other lines have a number for each
    found: tuple[float, ...]
    sent: tuple[float, ...]
    done: tuple[float, ...]
    gaps: tuple[tuple[float, float], ...] = ()  #: times in which no process worked on the crawl
    forecast: Forecast | None = None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Pages per minute of each node in each column of time; None in a gap."""

    step: float  #: seconds of a column
    nodes: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    pages: tuple[float, ...]  #: of each node in all
    hidden: int = 0  #: number of nodes left out

    @cached_property
    def most(self) -> float:
        """The greatest pages per minute of any node in any column."""
        cells = [cell for cell in chain.from_iterable(self.cells) if cell is not None]
        return max(cells, default=0.0)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One job on a lane of its node."""

    lane: int  #: its place in `Gantt.lanes`
    begin: float
    end: float
    outcome: str  #: a value of OUTCOMES
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
    groups: Mapping[str, int]  #: each of GROUPS -> answers
    codes: Mapping[str, int]
    requests: int
    retried: int

    @property
    def retry_rate(self) -> float:
        """The share of all requests that were retries, from 0 to 1."""
        return self.retried / self.requests if self.requests else 0.0


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Items of the last comparable runs; the last one is this crawl."""

    names: tuple[str, ...]
    items: tuple[int, ...]
    median: float | None = None  #: of the whole runs before; None for fewer than two
    mad: float = 0.0  #: their median absolute deviation


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Number of this crawl's jobs by node and version."""

    versions: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, int]]
    #: version of scrapyd-dist in the job -> jobs
    workers: Mapping[str, int] = field(default_factory=dict)


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


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """What the last sample with it says of the walk of a shard's index."""

    found: float  #: requests
    begun: float  #: seconds since the epoch; 0 if it has not begun
    active: float  #: when it was last active


def series(facts: Facts) -> Series:
    """Return all series of a crawl."""
    walks = _walks(facts)
    return Series(
        burn_up=burn_up(facts),
        heat=heat(facts),
        jobs=gantt(facts),
        shard_sizes=spread((name, walk.found) for name, walk in walks.items()),
        shard_times=spread(_walk_times(walks)),
        job_times=spread(_job_times(facts)),
        statuses=statuses(facts),
        runs=runs(facts),
        versions=versions(facts),
    )


def _walks(facts: Facts) -> dict[str, _Walk]:
    walks = {}
    for _, values in facts.samples:
        for name, row in (values.get("shards") or {}).items():
            if isinstance(row, list) and len(row) == 4:
                _, found, begun, active = map(finite_number, row)
                walks[f"shard {name}"] = _Walk(found=found, begun=begun, active=active)
    return walks


def _walk_times(walks: Mapping[str, _Walk]) -> Iterator[tuple[str, float]]:
    """Yield the seconds that each walk has taken, of those that have begun."""
    for name, walk in walks.items():
        if walk.begun:
            yield name, round(max(0.0, walk.active - walk.begun), 2)


def _job_times(facts: Facts) -> Iterator[tuple[str, float]]:
    """Yield the seconds that each accepted job has taken."""
    for attempt in facts.attempts:
        if attempt.state is AttemptState.ACCEPTED:
            begin, end = span_of(attempt, facts.until)
            yield f"batch {attempt.batch} on {attempt.node}", round(end - begin, 2)


def document(facts: Facts) -> dict[str, Any]:
    """Return what `sdist report --json` prints: summary, series, nodes and misses of a crawl."""
    nodes = [asdict(node) for node in facts.nodes_now]
    misses = [asdict(miss) for miss in facts.misses]
    return {
        "crawl": facts.crawl.id,
        "begun": facts.crawl.created,
        "as_of": facts.until,
        "state": facts.state,
        "summary": _without_passwords(summary_of(facts.crawl)),
        **asdict(series(facts)),
        "nodes_now": nodes,
        "misses": misses,
    }


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, dict):
        return {name: _without_passwords(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_passwords(inner) for inner in value]
    return value


def burn_up(facts: Facts) -> BurnUp | None:
    """Return target requests over time; None for fewer than two samples."""
    if len(facts.samples) < 2:
        return None
    at = _sample_times(facts)
    done = _sampled("done", facts)
    kept = _kept_points(len(at))
    return BurnUp(
        at=tuple(round(when, 2) for when in _picked(at, kept)),
        found=_picked(_sampled("found", facts), kept),
        sent=_picked(_sampled("sent", facts), kept),
        done=_picked(done, kept),
        gaps=tuple(_gaps(at)),
        forecast=_forecast(facts, at, done),
    )


def _sample_times(facts: Facts) -> list[float]:
    """Return when each sample was made, in seconds since the crawl began."""
    return [max(0.0, when - facts.crawl.created) for when, _ in facts.samples]


def _sampled(name: str, facts: Facts) -> list[float]:
    """Return a count of the crawl up to each sample."""
    return _rising(values.get(name) for _, values in facts.samples)


def _rising(values: Iterable[Any]) -> list[float]:
    """Return a count over time that never falls.

    Work that failed and is done again is no step back.
    """
    return list(accumulate(map(finite_number, values), max))


def _kept_points(count: int) -> Sequence[int]:
    """Return which of so many points are drawn: at most POINTS, with the first and the last."""
    last = count - 1
    if last < POINTS:
        return range(count)
    return sorted({round(i * last / (POINTS - 1)) for i in range(POINTS)})


def earlier_index_pages(facts: Facts) -> int:
    """Return the index pages that earlier processes of the crawl walked: each counts from 0 on."""
    counts = []
    for _, values in facts.samples:
        pages = [*(values.get("index") or ()), 0][0]
        counts.append(count_in(pages))
    counts.append(count_in(facts.crawl.summary, "index", "pages"))
    return sum(before for before, after in pairwise(counts) if after < before)


def _picked(values: Sequence[float], places: Iterable[int]) -> tuple[float, ...]:
    return tuple(values[i] for i in places)


def _gaps(at: Sequence[float]) -> list[tuple[float, float]]:
    """Return the times without a sample that are much longer than those between other samples."""
    usual = median(after - before for before, after in pairwise(at))
    gaps = []
    for before, after in pairwise(at):
        # Samples get rarer as the crawl gets older.
        if after - before > SILENCE + 3 * max(usual, after / NUMBER):
            gaps.append((round(before, 2), round(after, 2)))
    return gaps


def _forecast(facts: Facts, at: Sequence[float], done: Sequence[float]) -> Forecast | None:
    """Return when a crawl that goes on may end; None if nothing is left or was done yet."""
    rates = []
    for part in WINDOWS:
        pace = _pace(at, done, part)
        if pace > 0:
            rates.append(pace)
    if not facts.lives or not rates:
        return None
    last = facts.samples[-1][1]
    pages, total_pages = [*(last.get("index") or ()), None, None][:2]
    expected = estimate_outlook(
        found=count_in(last, "sealed"),
        done=int(done[-1]),
        rate=max(rates),
        finding=facts.crawl.state.value in FINDING,
        pages=count_in(pages),
        total_pages=count_in(total_pages) or None,
    )
    left = expected["requests"] - done[-1]
    if left <= 0:
        return None
    return Forecast(
        requests=expected["requests"],
        sure=expected["sure"],
        soonest=round(at[-1] + left / max(rates), 1),
        latest=round(at[-1] + left / min(rates), 1),
    )


def _pace(at: Sequence[float], done: Sequence[float], part: float) -> float:
    """Return the requests per second over the last part of the time since the first one ended."""
    first = 0
    while first < len(done) and not done[first]:
        first += 1
    if first >= len(done) - 1:
        return 0.0
    begin = at[-1] - (at[-1] - at[first]) * part
    i = max(first, min(bisect_right(at, begin) - 1, len(at) - 2))
    if at[-1] <= at[i]:
        return 0.0
    return (done[-1] - done[i]) / (at[-1] - at[i])


def heat(facts: Facts) -> Heat | None:
    """Return pages per minute by node; None if no sample tells of a node's pages.

    Of too many nodes, those with the fewest pages are kept.
    """
    names = _sampled_nodes(facts)
    at = _sample_times(facts)
    if len(at) < 2 or not names or at[-1] <= 0:
        return None
    columns = min(COLUMNS, max(1, int(at[-1] // 2)))
    step = at[-1] / columns
    pages = {name: _pages_of(name, facts) for name in names}
    by_pages = sorted(names, key=lambda name: pages[name][-1])
    shown = sorted(by_pages[:ROWS], key=natural)
    cells = []
    sums = []
    for name in shown:
        cells.append(_per_minute(at, pages[name], step))
        sums.append(pages[name][-1])
    return Heat(
        step=step,
        nodes=tuple(shown),
        cells=tuple(cells),
        pages=tuple(sums),
        hidden=len(names) - len(shown),
    )


def _sampled_nodes(facts: Facts) -> list[str]:
    """Return the nodes that any sample names."""
    names: set[str] = set()
    for _, values in facts.samples:
        names.update(values.get("nodes") or ())
    return sorted(names, key=natural)


def _pages_of(node: str, facts: Facts) -> list[float]:
    """Return a node's pages up to each sample."""
    pages = []
    for _, values in facts.samples:
        row = nested_value(values, "nodes", node) or [0]
        pages.append(row[0])
    return _rising(pages)


def _per_minute(
    at: Sequence[float], pages: Sequence[float], step: float
) -> tuple[float | None, ...]:
    """Return the pages per minute in each column of `step` seconds; None in a gap."""
    gaps = _gaps(at)
    edges = [column * step for column in range(round(at[-1] / step) + 1)]
    cells: list[float | None] = []
    for begin, end in pairwise(edges):
        if _is_in_gap(begin, end, gaps):
            cells.append(None)
        else:
            grown = _value_at(end, at, pages) - _value_at(begin, at, pages)
            cells.append(round(grown / step * 60, 1))
    return tuple(cells)


def _is_in_gap(begin: float, end: float, gaps: Iterable[tuple[float, float]]) -> bool:
    return any(gap_begin <= begin and end <= gap_end for gap_begin, gap_end in gaps)


def _value_at(when: float, at: Sequence[float], values: Sequence[float]) -> float:
    """Return the count at a moment, interpolated between two samples."""
    i = bisect_right(at, when)
    if i == 0:
        return values[0] * (when / at[0] if at[0] else 1.0)
    if i == len(at):
        return values[-1]
    share = (when - at[i - 1]) / (at[i] - at[i - 1]) if at[i] > at[i - 1] else 1.0
    return values[i - 1] + (values[i] - values[i - 1]) * share


def span_of(attempt: Attempt, until: float) -> tuple[float, float]:
    """Return from when to when a job ran, by the clock of this machine.

    A worker reports its times by its node's clock: their distance is right, and what this machine
    knows of the attempt says where they belong.
    """
    begin = attempt.sent_at
    end = max(attempt.ended_at or until, attempt.sent_at)
    started = finite_number(nested_value(attempt.report, "started"))
    ran = finite_number(nested_value(attempt.report, "updated")) - started
    if not started or not 0 <= ran <= end - begin:
        return begin, end
    first = min(max(started, begin), end - ran)
    return first, first + ran


def gantt(facts: Facts) -> Gantt | None:
    """Return all jobs, each on the first free lane of its node; None if no job was sent."""
    lanes: list[str] = []
    free_at: list[float] = []  # of each lane
    bars: list[Bar] = []
    first = 0  # the first lane of the node
    for node, begin, end, attempt in _sent_jobs(facts):
        if lanes and lanes[-1] != node:
            first = len(lanes)
        lane = _free_lane(free_at, first, begin)
        if lane == len(lanes):
            lanes.append(node)
            free_at.append(end)
        free_at[lane] = end
        bar = Bar(
            lane=lane,
            begin=round(begin, 2),
            end=round(end, 2),
            outcome=OUTCOMES[attempt.state],
            name=f"batch {attempt.batch}, attempt {attempt.number}",
        )
        bars.append(bar)
    if not bars:
        return None
    return Gantt(lanes=tuple(lanes), bars=tuple(bars))


def _sent_jobs(facts: Facts) -> list[tuple[str, float, float, Attempt]]:
    """Return node, begin, end and attempt of each job, by node and time."""
    jobs = []
    for attempt in facts.attempts:
        if attempt.state in OUTCOMES:
            begin, end = span_of(attempt, facts.until)
            since_begin = max(0.0, begin - facts.crawl.created)
            since_end = max(0.0, end - facts.crawl.created)
            jobs.append((attempt.node, since_begin, since_end, attempt))
    return sorted(jobs, key=lambda job: (natural(job[0]), *job[:3]))


def _free_lane(free_at: Sequence[float], first: int, begin: float) -> int:
    """Return the first lane from `first` on that is free at `begin`, or the number of lanes."""
    for lane in range(first, len(free_at)):
        if free_at[lane] <= begin + _OVERLAP:
            return lane
    return len(free_at)


def spread(pairs: Iterable[tuple[str, float]]) -> Spread | None:
    """Return names and values, the greatest first; None without values."""
    rows = [(name, finite_number(value)) for name, value in pairs]
    if not rows:
        return None
    rows.sort(key=lambda row: -row[1])
    names, values = zip(*rows, strict=True)
    return Spread(names=names, values=values, median=median(values))


def statuses(facts: Facts) -> tuple[Statuses, ...]:
    """Return one row per node, of all jobs that reported."""
    sums = defaultdict[str, Counter[str]](Counter)
    for attempt in facts.attempts:
        for name, value in (nested_value(attempt.report, "stats") or {}).items():
            sums[attempt.node][str(name)] += count_in(value)
    rows = []
    for node in sorted(sums, key=natural):
        stats = sums[node]
        codes = status_codes(stats)
        requests = stats["downloader/request_count"]
        silent = stats["downloader/exception_count"]
        retried = stats["retry/count"]
        if codes or requests or silent or retried:
            groups = _grouped(codes, silent)
            rows.append(
                Statuses(node=node, groups=groups, codes=codes, requests=requests, retried=retried)
            )
    return tuple(rows)


def _grouped(codes: Mapping[str, int], silent: int) -> dict[str, int]:
    """Return each of GROUPS -> answers; `silent` requests had none."""
    groups = dict.fromkeys(GROUPS, 0)
    groups["no answer"] = silent
    for code, count in codes.items():
        group = "403 and 429" if code in _BANS else _GROUP_OF_DIGIT.get(code[0], "5xx")
        groups[group] += count
    return groups


def runs(facts: Facts) -> Runs | None:
    """Return the items of the last runs; None for the first run."""
    items = []
    before = []
    for run in facts.runs:
        count = count_in(run.summary, "items")
        items.append(count)
        if run.id != facts.crawl.id and is_whole(run):
            before.append(count)
    if not before:
        return None
    middle = None
    mad = 0.0
    if len(before) > 1:
        middle = median(before)
        mad = median(abs(count - middle) for count in before)
    names = tuple(run.id for run in facts.runs)
    return Runs(names=names, items=tuple(items), median=middle, mad=mad)


def find_usual_items(crawls: Iterable[Crawl], wanted: Iterable[Crawl]) -> dict[str, float | None]:
    """Return the median of the items of the earlier runs of each wanted crawl, by its id.

    It is None where there are not two. All crawls are looked through once.
    """
    whole = defaultdict[tuple[str, str, str], list[Crawl]](list)
    for crawl in sorted(crawls, key=attrgetter("created")):
        if is_whole(crawl):
            whole[kind_of(crawl)].append(crawl)
    usual = {}
    for crawl in wanted:
        alike = whole[kind_of(crawl)]
        end = bisect_right(alike, crawl.created, key=attrgetter("created"))
        near = alike[max(0, end - RUNS - 1) : end]  # this crawl may be one of them
        usual[crawl.id] = _find_median_items(near, crawl)
    return usual


def _find_median_items(near: Sequence[Crawl], last: Crawl) -> float | None:
    shown = (*earlier_runs(near, last), last)
    found = runs(Facts(crawl=last, now=last.created, runs=shown))
    return None if found is None else found.median


def versions(facts: Facts) -> Versions | None:
    """Return the versions that ran on each node; None if no job reported its version."""
    nodes = defaultdict[str, Counter[str]](Counter)
    workers = Counter[str]()
    for attempt in facts.attempts:
        if code := nested_value(attempt.report, "code"):
            nodes[attempt.node][
                str(nested_value(code, "egg") or facts.crawl.version or "unknown")
            ] += 1
            workers[str(nested_value(code, "version") or "unknown")] += 1
    if not nodes:
        return None
    found: set[str] = set()
    found.update(*nodes.values())
    ordered = {node: dict(nodes[node]) for node in sorted(nodes, key=natural)}
    return Versions(versions=tuple(sorted(found)), nodes=ordered, workers=dict(workers))
