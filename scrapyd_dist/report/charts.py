"""The charts of the page as values: places in percent of the plot, labels, rows of the tables.

No markup: the template draws them. Places count from the left and from the bottom.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from os.path import commonprefix
from typing import NamedTuple

from scrapyd_dist.plurals import counted
from scrapyd_dist.report.series import (
    GROUPS,
    Bar,
    BurnUp,
    Forecast,
    Gantt,
    Heat,
    Runs,
    Spread,
    Statuses,
)

#: shades of the heat map
SHADES = 6
#: up to this number of jobs, each is a bar of its own with its name
NAMED = 400
#: maximum number of lanes
LANES = 240
#: maximum number of nodes with status codes
NODES = 60
#: maximum number of columns
COLUMNS = 160
#: maximum number of rows of a table
ROWS = 50
#: how many times as long as the past the axis of a forecast is, at most
FARTHEST = 20
#: characters of a node's name beside a row
NAME = 18
_STEPS = (1, 2, 2.5, 5, 10)
#: least number -> what it is divided by, and the letter behind it
_UNITS = {1e9: (1e9, "G"), 1e6: (1e6, "M"), 1e4: (1e3, "k")}
_MINUTE = 60
_HOUR = 3600
_DAY = 86_400
#: four weeks, in seconds: the greatest step of an axis of time that is not a multiple of itself
_LONGEST_STEP = 28 * _DAY
_SECOND_STEPS = (1, 2, 5, 10, 15, 30)
_MINUTE_STEPS = (60, 120, 300, 600, 900, 1800)
_HOUR_STEPS = (3600, 7200, 10_800, 21_600, 43_200)  # up to 12 hours
_DAY_STEPS = (_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, _LONGEST_STEP)
_TIME_STEPS = (*_SECOND_STEPS, *_MINUTE_STEPS, *_HOUR_STEPS, *_DAY_STEPS)
_OUTCOMES = ("done", "running", "waiting", "failed")
#: how a group of status codes is drawn
_STATUS_KINDS = dict(
    zip(GROUPS, ("ok", "moved", "banned", "missing", "broken", "silent"), strict=True)
)


class Mark(NamedTuple):
    """A place on an axis, in percent, and the text there."""

    at: float
    text: str


class Piece(NamedTuple):
    """A bar, or a piece of one; `kind` is its CSS class, `title` what the pointer shows."""

    at: float  #: where it begins, in percent
    length: float  #: in percent
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
    """What all charts have in common."""

    label: str  #: for screen readers
    headings: Sequence[str]
    table: Sequence[Sequence[object]]
    marks: Sequence[Mark] = ()  #: of the vertical axis
    times: Sequence[Mark] = ()  #: of the horizontal axis
    legend: Sequence[tuple[str, str]] = ()  #: kind and name


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Lines over time; paths are in a square of 100 by 100, from its upper left corner."""

    lines: Sequence[tuple[str, str]]  #: kind and path
    area: str
    gaps: Sequence[Piece]
    band: str = ""  #: empty without a forecast
    goal: str = ""
    may_end: str = ""


@dataclass(frozen=True, kw_only=True)
class RowChart(Chart):
    """Rows of bars over time, one for each node."""

    rows: Sequence[NodeRow]
    height: int  #: of a lane, in pixels
    step: float = 100.0  #: width of a column of time


@dataclass(frozen=True, kw_only=True)
class ColumnChart(Chart):
    """Columns side by side, with their median as a line."""

    columns: Sequence[Piece]
    median: Mark | None
    note: str
    band: tuple[float, float] | None = None  #: begin and length of the usual range


class _Plane(NamedTuple):
    """The plot of a line chart: the time at its right edge, and the number at its upper one."""

    width: float
    height: float

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the SVG path through points of time and number."""
        places: list[str] = []
        for x, y in points:
            place = f"{percent(x, self.width):g} {100 - percent(y, self.height):g}"
            # Points that fall on one place are drawn once.
            if not places or places[-1] != place:
                places.append(place)
        return "M" + "L".join(places)


def percent(value: float, whole: float) -> float:
    """Return the share of the whole, from 0 to 100."""
    if whole <= 0:
        return 0.0
    return round(100 * min(1.0, max(0.0, value / whole)), 2)


def span(seconds: float) -> str:
    """Return a length of time in words: `0`, `40 s`, `1:30 min`, `2 h`, `1:05 h`, `3 d`."""
    whole = round(seconds)
    if whole == 0:
        return "0"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _clock(*divmod(whole, _MINUTE), "min")
    hours, minutes = divmod(round(whole / _MINUTE), 60)
    if hours < 48:
        return _clock(hours, minutes, "h")
    days, left = divmod(hours, 24)
    return f"{days} d {left} h" if left else f"{days} d"


def _clock(whole: int, sixtieths: int, unit: str) -> str:
    return f"{whole}:{sixtieths:02d} {unit}" if sixtieths else f"{whole} {unit}"


def amount(value: float, like: float = 0.0) -> str:
    """Return a number for an axis: `0`, `2.5`, `950`, `12k`, `3.4M`.

    It is in the unit of `like` if that is greater.
    """
    if value:
        size = max(abs(value), like)
        for least, (unit, letter) in _UNITS.items():
            if size >= least:
                return f"{value / unit:.1f}".removesuffix(".0") + letter
    if abs(value) >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def ticks(high: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers from 0 to the first one that is not below `high`.

    They are whole ones if `high` is 1 or more.
    """
    if high <= 0:
        return [0.0, 1.0]
    step = _round_step(high / count)
    if high >= 1 and step < 10:
        step = max(1.0, math.ceil(step))
    last = math.ceil(high / step - 1e-9)
    return [round(step * i, 10) for i in range(last + 1)]


def _round_step(least: float) -> float:
    power = 10 ** math.floor(math.log10(least))
    step: float = power
    for factor in _STEPS:
        step = power * factor
        if step >= least * 0.999:
            break
    return step


def time_ticks(seconds: float, count: int = 6, *, beyond: bool = False) -> list[float]:
    """Return round times from 0 up to `seconds`, or to the first one that is not below."""
    step = _round_time_step(seconds / count)
    last = math.ceil(seconds / step) if beyond else int(seconds // step)
    return [float(step * i) for i in range(last + 1)]


def _round_time_step(least: float) -> int:
    for step in _TIME_STEPS:
        if step >= least:
            return step
    return math.ceil(least / _LONGEST_STEP) * _LONGEST_STEP


def short_names(names: Sequence[str]) -> list[str]:
    """Return names for rows.

    If any is too long, what all of them end with goes, then what all begin with.
    """
    short = list(names)
    if _should_be_cut(short):
        backwards = [name[::-1] for name in short]
        cut = _length_of_words(commonprefix(backwards))  # noqa: RUF071 - of texts, not of paths
        short = [name[: len(name) - cut] for name in short]
    if _should_be_cut(short):
        cut = _length_of_words(commonprefix(short))  # noqa: RUF071 - of texts, not of paths
        if cut > 1:
            short = [f"…{name[cut:]}" for name in short]
    return short


def _should_be_cut(names: Sequence[str]) -> bool:
    return len(set(names)) > 1 and max(map(len, names)) > NAME


def _length_of_words(text: str) -> int:
    """Return how much of a text can go so that no word and no number is cut in two."""
    length = 0
    for place, letter in enumerate(text, 1):
        if not letter.isalnum():
            length = place
    return length


def burn_up(data: BurnUp) -> LineChart:
    """Return requests found, sent to nodes and ended over time, and when the crawl may end."""
    at = data.at[-1]
    forecast = data.forecast
    last = _end_of_axis(at, forecast)
    ends = {"found": data.found[-1], "sent": data.sent[-1], "ended": data.done[-1]}
    expected = float(forecast.requests) if forecast else 0.0
    marks = ticks(max(*ends.values(), expected, 1.0))
    plane = _Plane(last, marks[-1])
    ended = plane.path([*zip(data.at, data.done, strict=True)])
    band = goal = may_end = ""
    label = (
        f"Requests found, sent to nodes and ended, over time. After {span(at)}: {_in_words(ends)}."
    )
    if forecast:
        may_end = _may_end(at, forecast)
        label += f" At the pace so far {may_end}."
        band = plane.path(_forecast_corners(data, forecast, last)) + "z"
        goal = plane.path([(0.0, expected), (last, expected)])
    return LineChart(
        label=label,
        headings=("after", "found", "sent to nodes", "ended"),
        table=_burn_up_table(data),
        marks=_scale(marks),
        times=_times(last),
        legend=[(f"line-{name}", f"{name} {amount(value)}") for name, value in ends.items()],
        lines=[
            ("line-found", plane.path([*zip(data.at, data.found, strict=True)])),
            ("line-sent", plane.path([*zip(data.at, data.sent, strict=True)])),
            ("line-ended", ended),
        ],
        area=ended + f"L{percent(at, last):g} 100L{percent(data.at[0], last):g} 100z",
        gaps=_pauses(data, last),
        band=band,
        goal=goal,
        may_end=may_end,
    )


def _end_of_axis(at: float, forecast: Forecast | None) -> float:
    """Return the time at the right edge: the end of the forecast, unless that is far away.

    Then the past would be pressed together.
    """
    if forecast is None:
        return at
    return max(at, min(forecast.latest, at * FARTHEST))


def _in_words(ends: Mapping[str, float]) -> str:
    words = []
    for name, value in ends.items():
        words.append(f"{value:,.0f} {name}")
        if name == "sent":
            words[-1] += " to nodes"
    return ", ".join(words)


def _may_end(at: float, forecast: Forecast) -> str:
    return f"it may end in {time_to_end(at, forecast)}"


def time_to_end(at: float, forecast: Forecast) -> str:
    """Return in which time the last request is done, seen from `at`: `56 s`, or `56 s to 2 min`."""
    soonest = span(max(0.0, forecast.soonest - at))
    latest = span(max(0.0, forecast.latest - at))
    return soonest if soonest == latest else f"{soonest} to {latest}"


def _forecast_corners(data: BurnUp, forecast: Forecast, last: float) -> list[tuple[float, float]]:
    """Return the corners of the area between the fastest and the slowest way to the end."""
    at = data.at[-1]
    done = data.done[-1]
    corners = [(at, done)]
    for when in (forecast.soonest, forecast.latest):
        share = min(1.0, (last - at) / (when - at)) if when > at else 1.0
        corners.append((min(when, last), done + (forecast.requests - done) * share))
    if (
        forecast.soonest <= last < forecast.latest
    ):  # the corner in which both limits meet the edge of the plot
        corners.insert(2, (last, float(forecast.requests)))
    return corners


def _burn_up_table(data: BurnUp) -> list[tuple[str, int, int, int]]:
    end = len(data.at) - 1
    shown = {*range(0, end + 1, max(1, end // 20)), end}
    rows = []
    for i in sorted(shown):
        counts = (int(data.found[i]), int(data.sent[i]), int(data.done[i]))
        rows.append((span(data.at[i]), *counts))
    return rows


def _pauses(data: BurnUp, last: float) -> list[Piece]:
    pieces = []
    for begin, end in data.gaps:
        title = f"no process worked on it for {span(end - begin)}"
        pieces.append(_piece(begin, end, last, "idle", title))
    return pieces


def _scale(numbers: Sequence[float]) -> list[Mark]:
    """Return the marks of an axis of numbers that ends with the last of them."""
    high = numbers[-1]
    return [Mark(percent(number, high), amount(number, high)) for number in numbers]


def _times(seconds: float) -> list[Mark]:
    """Return the marks of an axis of time that ends with these seconds."""
    return [Mark(percent(tick, seconds), span(tick)) for tick in time_ticks(seconds, 9)]


def _piece(begin: float, end: float, whole: float, kind: str, title: str = "") -> Piece:
    at = percent(begin, whole)
    return Piece(at, round(percent(end, whole) - at, 2), kind, title)


def heat(data: Heat) -> RowChart:
    """Return the pages per minute of each node in each column of time."""
    columns = len(data.cells[0])
    fewest, slowest = min(zip(data.pages, data.nodes, strict=True))
    rows = []
    for name, node, cells in zip(short_names(data.nodes), data.nodes, data.cells, strict=True):
        rows.append(NodeRow(name, node, [_heat_lane(cells, data.most)]))
    between = [(f"h{shade}", "") for shade in range(1, SHADES)]
    return RowChart(
        label=f"Pages per minute of each node over time. {counted(len(data.nodes), 'node')}, up to"
        f" {amount(data.most)} pages per minute in {span(data.step)}."
        f" The fewest pages in all: {slowest} with {fewest:,.0f}.",
        headings=("node", "pages", "per minute", "at most", "seconds from first to last page"),
        table=_heat_table(data),
        times=_times(columns * data.step),
        legend=[("h0", "0"), *between, (f"h{SHADES}", f"{amount(data.most)} pages/min")],
        rows=rows,
        height=24 if len(data.nodes) <= 12 else 15,
        step=100 / columns,
    )


def _heat_lane(cells: Sequence[float | None], most: float) -> list[Piece]:
    """Return a piece for each run of columns of one shade; a gap in time stays empty."""
    lane = []
    begin = 0
    for shade, run in groupby(_shade(value, most) for value in cells):
        end = begin + len([*run])
        if shade is not None:
            lane.append(_piece(begin, end, len(cells), f"h{shade}"))
        begin = end
    return lane


def _shade(value: float | None, most: float) -> int | None:
    """Return 0 for nothing, else 1 to SHADES; None in a gap."""
    if value is None:
        return None
    if value <= 0 or not most:
        return 0
    return min(SHADES, 1 + int(value / most * SHADES * 0.9999))


def _heat_table(data: Heat) -> list[tuple[str, int, float, float, int]]:
    table = []
    for node, cells, pages in zip(data.nodes, data.cells, data.pages, strict=True):
        at_work = _from_first_to_last(cells)
        mean = round(sum(at_work) / len(at_work), 1) if at_work else 0.0
        seconds = round(len(at_work) * data.step)
        table.append((node, int(pages), mean, max(at_work, default=0.0), seconds))
    return table


def _from_first_to_last(cells: Sequence[float | None]) -> list[float]:
    """Return the columns from the first with a page to the last, without gaps in time.

    Those between without a page count: a slow site has a page in every other column only.
    """
    busy = [place for place, value in enumerate(cells) if value]
    if not busy:
        return []
    return [value for value in cells[busy[0] : busy[-1] + 1] if value is not None]


def jobs(data: Gantt, seconds: float) -> RowChart:
    """Return each job on a lane of its node; `seconds` is the length of the axis."""
    lanes = data.lanes[:LANES]
    pieces = _job_pieces(data.bars, lanes, seconds)
    by_node: dict[str, list[list[Piece]]] = {}
    for node, lane in zip(lanes, pieces, strict=True):
        by_node.setdefault(node, []).append(lane)
    rows = []
    for name, (node, node_lanes) in zip(short_names([*by_node]), by_node.items(), strict=True):
        rows.append(NodeRow(name, node, node_lanes))
    total = Counter(bar.outcome for bar in data.bars)
    legend = []
    sums = []
    for outcome in _OUTCOMES:
        if total[outcome]:
            legend.append((outcome, outcome))
            sums.append(f"{total[outcome]:,} {outcome}")
    bars_in_words = counted(len(data.bars), "batch", "batches")
    nodes_in_words = counted(len(set(data.lanes)), "node")
    return RowChart(
        label=f"Batches on the nodes over time. {bars_in_words} on {nodes_in_words}:"
        f" {', '.join(sums)}.",
        headings=("node", *_OUTCOMES),
        table=_jobs_table(data),
        times=_times(seconds),
        legend=legend,
        rows=rows,
        height=_lane_height(len(lanes)),
    )


def _job_pieces(bars: Sequence[Bar], lanes: Sequence[str], seconds: float) -> list[list[Piece]]:
    """Return the pieces of each lane; of too many jobs, those that touch are joined and unnamed."""
    drawn = [bar for bar in bars if bar.lane < len(lanes)]
    is_named = len(drawn) <= NAMED
    pieces: list[list[Piece]] = [[] for _ in lanes]
    for outcome in _OUTCOMES:
        alike: Sequence[Bar] = [bar for bar in drawn if bar.outcome == outcome]
        if not is_named:
            alike = [*_joined(alike, seconds)]
        for bar in alike:
            title = ""
            if is_named:
                took = span(bar.end - bar.begin)
                title = f"{bar.name} on {lanes[bar.lane]}: {outcome}, {took}"
            pieces[bar.lane].append(_piece(bar.begin, bar.end, seconds, outcome, title))
    return pieces


def _joined(bars: Sequence[Bar], seconds: float) -> Iterator[Bar]:
    """Join the bars of a lane that would touch, so that any number of jobs fits on the page."""
    last: Bar | None = None
    for bar in sorted(bars, key=lambda bar: (bar.lane, bar.begin)):
        if last and _join_in_one(last, bar, seconds):
            last = replace(last, end=max(last.end, bar.end))
            continue
        if last:
            yield last
        last = bar
    if last:
        yield last


def _join_in_one(last: Bar, bar: Bar, seconds: float) -> bool:
    return (
        last.lane == bar.lane
        and bar.begin - last.end < seconds / 1200
        and bar.end - last.begin < seconds / 120
    )


def _jobs_table(data: Gantt) -> list[tuple[object, ...]]:
    counts = Counter((data.lanes[bar.lane], bar.outcome) for bar in data.bars)
    table = []
    for node in dict.fromkeys(data.lanes):
        by_outcome = [counts[node, outcome] for outcome in _OUTCOMES]
        table.append((node, *by_outcome))
    return table


def _lane_height(lanes: int) -> int:
    """Return the height of a lane in pixels."""
    if lanes <= 24:
        return 16
    if lanes <= 60:
        return 10
    return 5


def sorted_values(data: Spread, title: str, unit: str) -> ColumnChart:
    """Return values in descending order, with the median.

    `unit` is `s` for times, else what is counted.
    """
    high = max(data.values[0], data.median, 0.1)
    if unit == "s":
        steps = time_ticks(high, 3, beyond=True)
        marks = [Mark(percent(step, steps[-1]), span(step)) for step in steps]
    else:
        steps = ticks(high, 3)
        marks = _scale(steps)
    greatest = _with_unit(data.values[0], unit)
    median = _with_unit(data.median, unit)
    factor = f": {data.factor:.1f} times" if data.factor else ""
    return ColumnChart(
        label=f"{title}. {len(data.values):,} in all; the greatest is {data.names[0]} with"
        f" {greatest}, the median {median}{factor}.",
        headings=("", "seconds" if unit == "s" else unit),
        table=[*zip(data.names[:ROWS], data.values[:ROWS], strict=True)],
        marks=marks,
        columns=_value_columns(data, steps[-1]),
        median=Mark(percent(data.median, steps[-1]), f"median {median}"),
        note=f"greatest: {data.names[0]}, {greatest}",
    )


def _with_unit(value: float, unit: str) -> str:
    if unit != "s":
        return f"{amount(value)} {unit}"
    return f"{value:.1f} s" if value < 10 else span(value)


def _value_columns(data: Spread, high: float) -> list[Piece]:
    """Return a column for each value; of too many values, each column stands for several."""
    count = min(len(data.values), COLUMNS)
    pieces = []
    for i in range(count):
        value = data.values[i * len(data.values) // count]
        kind = "slow" if data.median and value >= 2 * data.median else ""
        pieces.append(_piece(0, value, high, kind))
    return pieces


def last_runs(data: Runs) -> ColumnChart:
    """Return the items of the last runs, and their usual range."""
    middle = data.median or 0.0
    steps = ticks(max(*data.items, middle + data.mad, 1), 3)
    high = steps[-1]
    label = f"Items of the last runs. This run: {counted(data.items[-1], 'item')}."
    median = band = None
    if data.median is not None:
        label += f" The finished runs before: median {amount(middle)}."
        median = Mark(percent(middle, high), f"median {amount(middle)} ± {amount(data.mad)}")
        low = percent(middle - data.mad, high)
        band = (low, round(percent(middle + data.mad, high) - low, 2))
    kinds = [""] * (len(data.items) - 1) + ["now"]
    columns = []
    for name, items, kind in zip(data.names, data.items, kinds, strict=True):
        columns.append(_piece(0, items, high, kind, f"{name}: {counted(items, 'item')}"))
    return ColumnChart(
        label=label,
        headings=("crawl", "items"),
        table=[*zip(data.names, data.items, strict=True)],
        marks=_scale(steps),
        columns=columns,
        median=median,
        note="this run",
        band=band,
    )


def status_codes(data: Sequence[Statuses]) -> RowChart:
    """Return what sites answered: a stacked row per node, with the share of retried requests."""
    drawn = data[:NODES]
    totals = [sum(statuses.groups.values()) for statuses in drawn]
    most = max(totals, default=0)
    names = short_names([statuses.node for statuses in drawn])
    rows = []
    for name, statuses, total in zip(names, drawn, totals, strict=True):
        lane = _status_lane(statuses, most)
        retried = f"{statuses.retry_rate:.1%}"
        rows.append(NodeRow(name, statuses.node, [lane], amount(total), retried))
    legend = []
    sums = []
    for group in GROUPS:
        count = sum(statuses.groups[group] for statuses in data)
        if count:
            legend.append((_STATUS_KINDS[group], group))
            sums.append(f"{group}: {count:,}")
    legend.append(("", "retried"))
    found: set[str] = set()
    for statuses in data:
        found.update(statuses.codes)
    codes = sorted(found)
    return RowChart(
        label=f"HTTP status codes by node. {', '.join(sums)}.",
        headings=("node", *codes, "no answer", "retries", "of all requests"),
        table=_status_table(data, codes),
        legend=legend,
        rows=rows,
        height=20 if len(drawn) <= 12 else 12,
    )


def _status_lane(statuses: Statuses, most: int) -> list[Piece]:
    lane = []
    begin = 0
    for group, count in statuses.groups.items():
        if count:
            title = f"{statuses.node}: {counted(count, 'time')} {group}"
            lane.append(_piece(begin, begin + count, most, _STATUS_KINDS[group], title))
        begin += count
    return lane


def _status_table(data: Sequence[Statuses], codes: Sequence[str]) -> list[tuple[object, ...]]:
    table = []
    for statuses in data:
        counts = [statuses.codes.get(code, 0) for code in codes]
        silent = statuses.groups["no answer"]
        retried = f"{statuses.retry_rate:.1%}"
        table.append((statuses.node, *counts, silent, statuses.retried, retried))
    return table
