"""The charts of the page as values: places in percent of the plot, labels, and the rows of the table behind each.

No markup: the template draws them. Places count from the left and from the bottom.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from os.path import commonprefix
from typing import NamedTuple

from scrapyd_dist.plurals import counted
from scrapyd_dist.report.series import GROUPS, Bar, BurnUp, Gantt, Heat, Runs, Spread, Statuses

#: shades of the heat map
SHADES = 6
#: up to this number of jobs, each is a bar of its own with its name
NAMED = 400
#: maximum number of lanes, of nodes with status codes, of columns, and of rows of a table
LANES, NODES, COLUMNS, ROWS = 240, 60, 160, 50
#: characters of a node's name beside a row
NAME = 18
_STEPS = (1, 2, 2.5, 5, 10)
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28)),
)
_OUTCOMES = ("done", "running", "waiting", "failed")
_STATUS_KINDS = dict(
    zip(GROUPS, ("ok", "moved", "banned", "missing", "broken", "silent"), strict=True)
)


class Mark(NamedTuple):
    at: float
    text: str


class Piece(NamedTuple):
    """A bar, or a piece of one: where it begins, its length, its look, and what the pointer shows."""

    at: float
    length: float
    kind: str
    title: str


class NodeRow(NamedTuple):
    """A node's row of a chart."""

    name: str
    title: str  #: the whole name
    lanes: Sequence[Sequence[Piece]]
    total: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    label: str  #: for screen readers
    headings: Sequence[str]
    table: Sequence[Sequence[object]]
    marks: Sequence[Mark] = ()  #: of the vertical axis
    times: Sequence[Mark] = ()  #: of the horizontal axis
    legend: Sequence[tuple[str, str]] = ()  #: look and name


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Lines over time; paths are in a square of 100 by 100, from its upper left corner."""

    lines: Sequence[tuple[str, str]]  #: look and path
    area: str
    gaps: Sequence[Piece]
    band: str = ""  #: empty without a forecast
    goal: str = ""
    may_end: str = ""


@dataclass(frozen=True, kw_only=True)
class RowChart(Chart):
    rows: Sequence[NodeRow]
    height: int  #: of a lane, in pixels
    step: float = 100.0  #: width of a column of time


@dataclass(frozen=True, kw_only=True)
class ColumnChart(Chart):
    columns: Sequence[Piece]
    median: Mark | None
    note: str
    band: tuple[float, float] | None = None  #: begin and length of the usual range


def percent(value: float, whole: float) -> float:
    """The share of the whole, from 0 to 100."""
    return round(100 * min(1.0, max(0.0, value / whole)), 2) if whole > 0 else 0.0


def span(seconds: float) -> str:
    """A length of time: `0`, `40 s`, `1:30 min`, `2 h`, `1:05 h`, `3 d`."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s" if whole else "0"
    if whole < _HOUR:
        minutes, rest = divmod(whole, _MINUTE)
        return f"{minutes}:{rest:02d} min" if rest else f"{minutes} min"
    hours, rest = divmod(round(whole / _MINUTE), 60)
    if hours < 48:
        return f"{hours}:{rest:02d} h" if rest else f"{hours} h"
    days, left = divmod(hours, 24)
    return f"{days} d {left} h" if left else f"{days} d"


def amount(value: float, like: float = 0.0) -> str:
    """A number for an axis: `0`, `2.5`, `950`, `12k`, `3.4M`; in the unit of `like` if that is greater."""
    for size, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value and max(abs(value), like) >= size:
            return f"{value / unit:.1f}".removesuffix(".0") + letter
    return (
        f"{value:,.0f}"
        if abs(value) >= 10 or value == int(value)
        else f"{value:.2f}".rstrip("0").rstrip(".")
    )


def ticks(high: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to the first one that is not below `high`, about `count` of them; whole ones from 1 up."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * 0.999)
    if high >= 1:
        step = max(1.0, math.ceil(step) if step < 10 else step)
    last = math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(last + 1)]


def time_ticks(seconds: float, count: int = 6, *, beyond: bool = False) -> list[float]:
    """Round times from 0 up to `seconds`, or to the first one that is not below."""
    wanted = seconds / count
    step = next(
        (step for step in _TIME_STEPS if step >= wanted),
        math.ceil(wanted / (28 * _DAY)) * 28 * _DAY,
    )
    return [
        float(step * i)
        for i in range((math.ceil(seconds / step) if beyond else int(seconds // step)) + 1)
    ]


def short_names(names: Sequence[str]) -> list[str]:
    """Names for rows: if any is too long, what all of them end with goes, then what all begin with."""
    found = list(names)
    for side in (-1, 1):
        if len(set(found)) > 1 and max(map(len, found)) > NAME:
            same = commonprefix([name[::side] for name in found])
            # No word and no number is cut in two.
            cut = max((i + 1 for i, letter in enumerate(same) if not letter.isalnum()), default=0)
            if side == 1 and cut > 1:
                found = [f"…{name[cut:]}" for name in found]
            elif side == -1:
                found = [name[: len(name) - cut] for name in found]
    return found


def burn_up(data: BurnUp) -> LineChart:
    """Found, sent to nodes and ended over time, and when the crawl may end."""
    at, forecast = data.at[-1], data.forecast
    last = at if forecast is None else max(at, min(forecast.latest, at * 3))
    ends = {"found": data.found[-1], "sent": data.sent[-1], "ended": data.done[-1]}
    marks = ticks(max(*ends.values(), forecast.requests if forecast else 0.0, 1.0))

    def path(points: Sequence[tuple[float, float]]) -> str:
        places = [f"{percent(x, last):g} {100 - percent(y, marks[-1]):g}" for x, y in points]
        return "M" + "L".join(place for place, _ in groupby(places))

    def line(values: Sequence[float]) -> str:
        return path([*zip(data.at, values, strict=True)])

    band = goal = may_end = ""
    if forecast:
        left = [max(0.0, when - at) for when in (forecast.soonest, forecast.latest)]
        may_end = f"it may end in {' to '.join(dict.fromkeys(map(span, left)))}"
        corners = [(at, data.done[-1])]
        for when in (forecast.soonest, forecast.latest):
            share = min(1.0, (last - at) / (when - at)) if when > at else 1.0
            corners.append(
                (min(when, last), data.done[-1] + (forecast.requests - data.done[-1]) * share)
            )
        if forecast.latest > last:  # the corner in which both limits meet the edge of the plot
            corners.insert(2, (last, float(forecast.requests)))
        band, goal = (
            path(corners) + "z",
            path([(0.0, float(forecast.requests)), (last, float(forecast.requests))]),
        )
    said = ", ".join(
        f"{value:,.0f} {'sent to nodes' if name == 'sent' else name}"
        for name, value in ends.items()
    )
    step = max(1, (len(data.at) - 1) // 20)
    gaps = [
        _piece(a, b, last, "idle", f"no process worked on it for {span(b - a)}")
        for a, b in data.gaps
    ]
    shown = sorted({*range(0, len(data.at), step), len(data.at) - 1})
    return LineChart(
        label=f"Requests found, sent to nodes and ended, over time. After {span(at)}: {said}."
        + (f" At the pace so far {may_end}." if forecast else ""),
        headings=("after", "found", "sent to nodes", "ended"),
        table=[
            (span(data.at[i]), int(data.found[i]), int(data.sent[i]), int(data.done[i]))
            for i in shown
        ],
        marks=[Mark(percent(mark, marks[-1]), amount(mark, marks[-1])) for mark in marks],
        times=_times(last),
        legend=[(f"line-{name}", f"{name} {amount(value)}") for name, value in ends.items()],
        lines=[
            ("line-found", line(data.found)),
            ("line-sent", line(data.sent)),
            ("line-ended", line(data.done)),
        ],
        area=line(data.done) + f"L{percent(at, last):g} 100L{percent(data.at[0], last):g} 100z",
        gaps=gaps,
        band=band,
        goal=goal,
        may_end=may_end,
    )


def _times(seconds: float) -> list[Mark]:
    return [Mark(percent(tick, seconds), span(tick)) for tick in time_ticks(seconds, 9)]


def _piece(begin: float, end: float, whole: float, kind: str, title: str = "") -> Piece:
    at = percent(begin, whole)
    return Piece(at, round(percent(end, whole) - at, 2), kind, title)


def heat(data: Heat) -> RowChart:
    """Pages per minute of each node in each column of time."""
    columns = len(data.cells[0])
    slowest = min(zip(data.pages, data.nodes, strict=True))
    rows, table = [], []
    for name, node, cells, pages in zip(
        short_names(data.nodes), data.nodes, data.cells, data.pages, strict=True
    ):
        shades = [
            *enumerate(None if value is None else _shade(value, data.most) for value in cells)
        ]
        runs = [
            (shade, [i for i, _ in run]) for shade, run in groupby(shades, key=lambda cell: cell[1])
        ]
        lane = [
            _piece(run[0], run[-1] + 1, columns, f"h{shade}")
            for shade, run in runs
            if shade is not None
        ]
        rows.append(NodeRow(name, node, [lane]))
        busy = [value for value in cells if value]
        mean = round(sum(busy) / len(busy), 1) if busy else 0.0
        table.append((node, int(pages), mean, max(busy, default=0.0), round(len(busy) * data.step)))
    between = [(f"h{shade}", "") for shade in range(1, SHADES)]
    return RowChart(
        label=f"Pages per minute of each node over time. {counted(len(data.nodes), 'node')}, up to"
        f" {amount(data.most)} pages per "
        f"minute in {span(data.step)}. The fewest pages in all: {slowest[1]} with {slowest[0]:,.0f}.",
        headings=("node", "pages", "per minute while it worked", "at most", "seconds at work"),
        table=table,
        times=_times(columns * data.step),
        legend=[("h0", "0"), *between, (f"h{SHADES}", f"{amount(data.most)} pages/min")],
        rows=rows,
        height=24 if len(data.nodes) <= 12 else 15,
        step=100 / columns,
    )


def _shade(value: float, most: float) -> int:
    """0 for nothing, else 1 to SHADES."""
    return min(SHADES, 1 + int(value / most * SHADES * 0.9999)) if value > 0 and most else 0


def jobs(data: Gantt, seconds: float) -> RowChart:
    """Each job on a lane of its node; seconds: the length of the axis."""
    lanes = data.lanes[:LANES]
    bars = [bar for bar in data.bars if bar.lane < len(lanes)]
    named = len(bars) <= NAMED
    pieces: list[list[Piece]] = [[] for _ in lanes]
    for outcome in _OUTCOMES:
        some = [bar for bar in bars if bar.outcome == outcome]
        for bar in some if named else _joined(some, seconds):
            title = (
                f"{bar.name} on {lanes[bar.lane]}: {outcome}, {span(bar.end - bar.begin)}"
                if named
                else ""
            )
            pieces[bar.lane].append(_piece(bar.begin, bar.end, seconds, outcome, title))
    groups = {
        node: [pieces[i] for i, _ in rows]
        for node, rows in groupby(enumerate(lanes), key=lambda lane: lane[1])
    }
    counts = Counter((data.lanes[bar.lane], bar.outcome) for bar in data.bars)
    nodes, total = dict.fromkeys(data.lanes), Counter(bar.outcome for bar in data.bars)
    said = ", ".join(f"{total[outcome]:,} {outcome}" for outcome in _OUTCOMES if total[outcome])
    return RowChart(
        label=f"Jobs on the nodes over time. {counted(len(data.bars), 'job')} on {counted(len(nodes), 'node')}:"
        f" {said}.",
        headings=("node", *_OUTCOMES),
        table=[(node, *(counts[node, outcome] for outcome in _OUTCOMES)) for node in nodes],
        times=_times(seconds),
        legend=[(outcome, outcome) for outcome in _OUTCOMES if total[outcome]],
        rows=[
            NodeRow(name, node, groups[node])
            for name, node in zip(short_names([*groups]), groups, strict=True)
        ],
        height=16 if len(lanes) <= 24 else 10 if len(lanes) <= 60 else 5,
    )


def _joined(bars: Sequence[Bar], seconds: float) -> Iterator[Bar]:
    """Join bars of a lane that would touch: the page's size is bounded whatever the number of jobs."""
    last: Bar | None = None
    for bar in sorted(bars, key=lambda one: (one.lane, one.begin)):
        close = last and last.lane == bar.lane and bar.begin - last.end < seconds / 1200
        if last and close and bar.end - last.begin < seconds / 120:
            last = replace(last, end=max(last.end, bar.end))
            continue
        if last:
            yield last
        last = bar
    if last:
        yield last


def sorted_values(data: Spread, title: str, unit: str) -> ColumnChart:
    """Values in descending order, with the median; `unit` is `s` for times, else what is counted."""
    seconds = unit == "s"

    def said(value: float) -> str:
        return (
            (f"{value:.1f} s" if value < 10 else span(value))
            if seconds
            else f"{amount(value)} {unit}"
        )

    high = max(data.values[0], data.median, 0.1)
    marks = time_ticks(high, 3, beyond=True) if seconds else ticks(high, 3)
    count = min(len(data.values), COLUMNS)  # of more values, each column stands for several
    values = [data.values[i * len(data.values) // count] for i in range(count)]
    factor = f": {data.factor:.1f} times" if data.factor else ""
    return ColumnChart(
        label=f"{title}. {len(data.values):,} in all; the greatest is {data.names[0]} with {said(data.values[0])}, "
        f"the median {said(data.median)}{factor}.",
        headings=("", "seconds" if seconds else unit),
        table=[*zip(data.names[:ROWS], data.values[:ROWS], strict=True)],
        marks=[
            Mark(percent(tick, marks[-1]), span(tick) if seconds else amount(tick, marks[-1]))
            for tick in marks
        ],
        columns=[
            _piece(0, value, marks[-1], "slow" if data.median and value >= 2 * data.median else "")
            for value in values
        ],
        median=Mark(percent(data.median, marks[-1]), f"median {said(data.median)}"),
        note=f"greatest: {data.names[0]}, {said(data.values[0])}",
    )


def last_runs(data: Runs) -> ColumnChart:
    """Items of the last runs, and their usual range."""
    median, mad = data.median or 0.0, data.mad
    marks = ticks(max(*data.items, median + mad, 1), 3)
    known = data.median is not None
    kinds = [*[""] * (len(data.items) - 1), "now"]
    low = percent(median - mad, marks[-1])
    return ColumnChart(
        label=f"Items of the last runs. This run: {counted(data.items[-1], 'item')}."
        + (f" The finished runs before: median {amount(median)}." if known else ""),
        headings=("crawl", "items"),
        table=[*zip(data.names, data.items, strict=True)],
        marks=[Mark(percent(tick, marks[-1]), amount(tick, marks[-1])) for tick in marks],
        columns=[
            _piece(0, items, marks[-1], kind, f"{name}: {counted(items, 'item')}")
            for name, items, kind in zip(data.names, data.items, kinds, strict=True)
        ],
        median=Mark(percent(median, marks[-1]), f"median {amount(median)} ± {amount(mad)}")
        if known
        else None,
        note="this run",
        band=(low, round(percent(median + mad, marks[-1]) - low, 2)) if known else None,
    )


def status_codes(data: Sequence[Statuses]) -> RowChart:
    """What sites answered, a stacked row per node, with the share of the requests that were retries."""
    drawn = data[:NODES]
    most = max((sum(one.groups.values()) for one in drawn), default=0)
    sums = {group: sum(one.groups[group] for one in data) for group in GROUPS}
    rows = []
    for name, one in zip(short_names([one.node for one in drawn]), drawn, strict=True):
        lane, begin = [], 0
        for group, count in one.groups.items():
            if count:
                title = f"{one.node}: {counted(count, 'time')} {group}"
                lane.append(_piece(begin, begin + count, most, _STATUS_KINDS[group], title))
            begin += count
        rows.append(NodeRow(name, one.node, [lane], amount(begin), f"{one.retry_rate:.1%}"))
    codes, table = sorted({code for one in data for code in one.codes}), []
    for one in data:
        counts = [one.codes.get(code, 0) for code in codes]
        table.append(
            (one.node, *counts, one.groups["no answer"], one.retried, f"{one.retry_rate:.1%}")
        )
    return RowChart(
        label="HTTP status codes by node. "
        + ", ".join(f"{group}: {n:,}" for group, n in sums.items() if n)
        + ".",
        headings=("node", *codes, "no answer", "retries", "of all requests"),
        table=table,
        legend=[
            *((_STATUS_KINDS[group], group) for group, n in sums.items() if n),
            ("", "retried"),
        ],
        rows=rows,
        height=20 if len(drawn) <= 12 else 12,
    )
