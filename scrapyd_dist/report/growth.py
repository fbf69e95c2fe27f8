"""How a crawl grew: found, sent and done over time, when it may end, and what each node did in each piece of time.

Pure functions from the store's samples; times are seconds since the crawl began.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING

from scrapyd_dist.progress.node_progress import Eta
from scrapyd_dist.progress.summary import NUMBER
from scrapyd_dist.report.facts import natural, number, of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.report.facts import Facts, Sample

#: points of a line, at most
POINTS = 240
#: pieces of time in the heat map
COLUMNS = 60
#: nodes in it
ROWS = 60
#: seconds without a sample, beyond those between two, from which nobody worked on the crawl
SILENCE = 10.0
#: parts of the time so far whose pace is taken for a forecast
WINDOWS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When a crawl that runs may end."""

    requests: int  #: that there may be in all
    sure: str  #: known, estimate or at-least
    soonest: float
    latest: float


@dataclass(frozen=True, kw_only=True)
class BurnUp:
    """Target requests over time: found, given to nodes, done."""

    at: tuple[float, ...]
    found: tuple[float, ...]
    sent: tuple[float, ...]
    done: tuple[float, ...]
    gaps: tuple[tuple[float, float], ...] = ()  #: when nobody worked on it
    forecast: Forecast | None = None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Pages per minute of each node in each piece of time; None where nobody looked."""

    step: float
    nodes: tuple[str, ...]
    cells: tuple[tuple[float | None, ...], ...]
    pages: tuple[float, ...]  #: of each node in all
    hidden: int = 0  #: nodes that are left out

    @cached_property
    def most(self) -> float:
        return max((cell for row in self.cells for cell in row if cell is not None), default=0.0)


def burn_up(facts: Facts) -> BurnUp | None:
    """None where there are too few samples to draw a line."""
    if len(facts.samples) < 2:
        return None
    at = [max(0.0, when - facts.begun) for when, _ in facts.samples]
    lines = {name: _rising(facts.samples, name) for name in ("found", "sent", "done")}
    forecast = _forecast(facts, at, lines["done"])
    kept = _thinned(len(at))
    return BurnUp(
        at=tuple(round(at[i], 2) for i in kept),
        found=tuple(lines["found"][i] for i in kept),
        sent=tuple(lines["sent"][i] for i in kept),
        done=tuple(lines["done"][i] for i in kept),
        gaps=tuple(_gaps(at)),
        forecast=forecast,
    )


def _rising(samples: Sequence[Sample], name: str) -> list[float]:
    """A count over time; what failed and is done again is no step back."""
    return list(accumulate((number(values.get(name)) for _, values in samples), max))


def _thinned(count: int) -> list[int]:
    """Which of the points are kept: evenly, with the first and the last."""
    if count <= POINTS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS)})


def _gaps(at: Sequence[float]) -> list[tuple[float, float]]:
    """Times without a sample that are much longer than those between other samples."""
    usual = median(b - a for a, b in pairwise(at))
    return [(round(a, 2), round(b, 2)) for a, b in pairwise(at) if b - a > SILENCE + 3 * max(usual, b / NUMBER)]


def _forecast(facts: Facts, at: Sequence[float], done: Sequence[float]) -> Forecast | None:
    rates = [rate for part in WINDOWS if (rate := _rate(at, done, part)) > 0]
    if not facts.lives or not rates:
        return None
    last, state = facts.samples[-1][1], facts.crawl.state.value
    walked = [*(last.get("index") or ()), None, None][:2]
    outlook = Eta.of(
        found=int(number(last.get("sealed"))),
        done=int(done[-1]),
        rate=max(rates),
        finding=state in {"starting", "finding"},
        pages=int(number(walked[0])),
        total_pages=int(number(walked[1])) or None,
    )
    left = outlook.requests - done[-1]
    if left <= 0:
        return None
    soonest, latest = (round(at[-1] + left / rate, 1) for rate in (max(rates), min(rates)))
    return Forecast(requests=outlook.requests, sure=outlook.sure.value, soonest=soonest, latest=latest)


def _rate(at: Sequence[float], done: Sequence[float], part: float) -> float:
    """Requests per second over the last part of the time in which any were done."""
    first = next((i for i, value in enumerate(done) if value), len(done))
    if first >= len(done) - 1:
        return 0.0
    begin = at[-1] - (at[-1] - at[first]) * part
    i = max(first, min(bisect_right(at, begin) - 1, len(at) - 2))
    return (done[-1] - done[i]) / (at[-1] - at[i]) if at[-1] > at[i] else 0.0


def heat(facts: Facts, columns: int = COLUMNS) -> Heat | None:
    """None where no sample tells of a node's pages."""
    samples = facts.samples
    names = sorted({name for _, values in samples for name in values.get("nodes") or ()}, key=natural)
    if len(samples) < 2 or not names:
        return None
    at = [max(0.0, when - facts.begun) for when, _ in samples]
    step = at[-1] / max(1, min(columns, int(at[-1] // 2) or 1))
    if step <= 0:
        return None
    lines = {name: _pages(samples, name) for name in names}
    shown = _most_telling(lines)
    return Heat(
        step=step,
        nodes=tuple(shown),
        cells=tuple(tuple(_per_minute(at, lines[name], step)) for name in shown),
        pages=tuple(lines[name][-1] for name in shown),
        hidden=len(names) - len(shown),
    )


def _pages(samples: Sequence[Sample], node: str) -> list[float]:
    told = ((of(values, "nodes", node) or [0])[0] for _, values in samples)
    return list(accumulate(map(number, told), max))


def _most_telling(lines: dict[str, list[float]]) -> list[str]:
    """All nodes; of too many, those with the fewest pages, since they are what one looks for."""
    if len(lines) <= ROWS:
        return list(lines)
    slow = set(sorted(lines, key=lambda name: lines[name][-1])[:ROWS])
    return [name for name in lines if name in slow]


def _per_minute(at: Sequence[float], pages: Sequence[float], step: float) -> list[float | None]:
    gaps = _gaps(at)
    cells: list[float | None] = []
    for column in range(round(at[-1] / step)):
        begin, end = column * step, (column + 1) * step
        if any(a <= begin and end <= b for a, b in gaps):
            cells.append(None)
        else:
            cells.append(round((_value(at, pages, end) - _value(at, pages, begin)) / step * 60, 1))
    return cells


def _value(at: Sequence[float], values: Sequence[float], when: float) -> float:
    """The count at a moment, on the line between two samples."""
    i = bisect_right(at, when)
    if i == 0:
        return values[0] * (when / at[0] if at[0] else 1.0)
    if i == len(at):
        return values[-1]
    share = (when - at[i - 1]) / (at[i] - at[i - 1]) if at[i] > at[i - 1] else 1.0
    return values[i - 1] + (values[i] - values[i - 1]) * share
