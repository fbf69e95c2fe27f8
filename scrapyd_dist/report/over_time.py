"""The pictures with time from left to right: burn-up, heat map, and the jobs on the nodes' slots."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from scrapyd_dist.report.svg import Picture, Scale, apart, box, line, tag, ticks
from scrapyd_dist.report.texts import amount, clipped_names, escape, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.report.growth import BurnUp, Heat
    from scrapyd_dist.report.work import Bar, Gantt

#: from this width on a picture is drawn for a wide screen
WIDE = 600
#: shades of the heat map
SHADES = 6
#: jobs up to this number are elements of their own, which say their name under the pointer
NAMED = 400
#: lanes that are drawn, at most
LANES = 240

_LINES = (("found", "found"), ("sent", "sent"), ("done", "ended"))


def burn_up(data: BurnUp, width: float) -> Picture:
    """Found, sent to nodes and ended over time, and when it may end."""
    wide, height = width >= WIDE, 300.0 if width >= WIDE else 240.0
    forecast = data.forecast
    last = data.at[-1] if forecast is None else max(data.at[-1], min(forecast.latest, data.at[-1] * 3))
    most = max(data.found[-1], data.sent[-1], data.done[-1], forecast.requests if forecast else 0.0, 1.0)
    marks = ticks(most)
    left, right = 52.0, width - (112.0 if wide else 12.0)
    x, y = Scale(0, last, left, right), Scale(0, marks[-1], height - 30, 14 if wide else 36)
    picture = Picture(
        name=f"burn-up-{width:g}",
        width=width,
        height=height,
        title="Requests found, sent to nodes and ended, over time",
        desc=f"After {span(data.at[-1])}: {data.found[-1]:,.0f} found, {data.sent[-1]:,.0f} sent to nodes, "
        f"{data.done[-1]:,.0f} ended." + (f" At the pace so far {_may_end(data)}." if forecast else ""),
    )
    picture.add(_hatch(f"idle-{width:g}", "hatch-idle"))
    for begin, end in data.gaps:
        area = (tag("title", text=f"nobody worked on it for {span(end - begin)}"),)
        fill = f"url(#idle-{width:g})"
        size = {"x": x(begin), "y": y.end, "width": x(end) - x(begin), "height": y.begin - y.end}
        picture.add(tag("rect", *area, **size, fill=fill))
    picture.ground(y, marks, left, right)
    picture.times(x, y.begin, last=last)
    if forecast:
        _band(picture, data, x, y)
    _lines(picture, data, x, y)
    _names(picture, data, x, y, wide=wide)
    return picture


def _may_end(data: BurnUp) -> str:
    assert data.forecast  # noqa: S101 - for the checker; the callers have looked
    left = [max(0.0, when - data.at[-1]) for when in (data.forecast.soonest, data.forecast.latest)]
    return f"it may end in {' to '.join(dict.fromkeys(span(seconds) for seconds in left))}"


def _band(picture: Picture, data: BurnUp, x: Scale, y: Scale) -> None:
    assert data.forecast  # noqa: S101 - for the checker; the callers have looked
    at, done, goal = data.at[-1], data.done[-1], float(data.forecast.requests)
    corners = [(x(at), y(done))]
    for when in (data.forecast.soonest, data.forecast.latest):
        share = min(1.0, (x.high - at) / (when - at)) if when > at else 1.0
        corners.append((x(min(when, x.high)), y(done + (goal - done) * share)))
    if data.forecast.latest > x.high:  # the corner where both limits meet the edge of the picture
        corners.insert(2, (x(x.high), y(goal)))
    picture.add(tag("path", tag("title", text=_may_end(data)), d=line(corners) + "z", class_="band"))
    goal_line = f"M{x.begin:.1f} {y(goal):.1f}H{x.end:.1f}"
    picture.add(tag("path", d=goal_line, class_="goal"))
    picture.text(x.end - 4, y.begin - 8, _may_end(data), anchor="end", kind="label halo")


def _lines(picture: Picture, data: BurnUp, x: Scale, y: Scale) -> None:
    ground = f"L{x(data.at[-1]):.1f} {y(0):.1f}L{x(data.at[0]):.1f} {y(0):.1f}z"
    done = line([(x(at), y(value)) for at, value in zip(data.at, data.done, strict=True)])
    picture.add(tag("path", d=done + ground, class_="area-done"))
    for name, _ in _LINES:
        values: Sequence[float] = getattr(data, name)
        points = [(x(at), y(value)) for at, value in zip(data.at, values, strict=True)]
        picture.add(tag("path", d=line(points), class_=f"line line-{name}"))


def _names(picture: Picture, data: BurnUp, x: Scale, y: Scale, *, wide: bool) -> None:
    """What each line is: beside its end where there is room, else above the picture."""
    values = {name: getattr(data, name)[-1] for name, _ in _LINES}
    if not wide:
        at = x.begin - 40
        for name, label in _LINES:
            text = f"{label} {amount(values[name])}"
            picture.add(tag("path", d=f"M{at:.1f} 12h16", class_=f"line line-{name}"))
            picture.text(at + 20, 16, text)
            at += 30 + len(text) * 6.6
        return
    places = apart([y(value) for value in values.values()], 16, y.end, y.begin)
    for (name, label), place in zip(_LINES, places, strict=True):
        picture.add(tag("path", d=f"M{x.end + 6:.1f} {place:.1f}h16", class_=f"line line-{name}"))
        picture.text(x.end + 26, place + 4, f"{label} {amount(values[name])}")


def heat(data: Heat, width: float) -> Picture:
    """Pages per minute of each node in each piece of time."""
    wide = width >= WIDE
    row = 26.0 if len(data.nodes) <= 12 else 16.0
    left, top = (132.0 if wide else 84.0), 34.0
    bottom = top + row * len(data.nodes)
    columns = len(data.cells[0]) if data.cells else 1
    x = Scale(0, columns * data.step, left, width - 14)
    cell = (x.end - x.begin) / columns
    names = clipped_names(data.nodes, left - 14)
    slowest = min(zip(data.pages, data.nodes, strict=True))
    picture = Picture(
        name=f"heat-{width:g}",
        width=width,
        height=bottom + 28,
        title="Pages per minute of each node over time",
        desc=f"{len(data.nodes)} nodes, up to {amount(data.most)} pages per minute in {span(data.step)}. "
        f"The fewest pages in all: {slowest[1]} with {slowest[0]:,.0f}.",
    )
    _shades(picture, data.most, left if wide else 8.0)
    shades: dict[int, list[str]] = defaultdict(list)
    for i, (node, cells) in enumerate(zip(names, data.cells, strict=True)):
        place = top + row * i
        picture.text(left - 8, place + row / 2 + 4, node, anchor="end")
        for column, value in enumerate(cells):
            if value is not None:
                spot = box(left + cell * column + 0.5, place + 1, max(cell - 1, 0.6), row - 2)
                shades[_shade(value, data.most)].append(spot)
    for shade in sorted(shades):
        picture.add(tag("path", d="".join(shades[shade]), class_=f"h{shade}"))
    picture.times(x, bottom + 2)
    return picture


def _shade(value: float, most: float) -> int:
    """0 for nothing, else 1 to SHADES."""
    return 0 if value <= 0 else min(SHADES, 1 + int(value / most * SHADES * 0.9999)) if most else 0


def _shades(picture: Picture, most: float, left: float) -> None:
    """What the shades mean."""
    picture.add(tag("path", d=box(left, 4, 18, 12), class_="h0"))
    picture.text(left + 23, 14, "0")
    for shade in range(1, SHADES + 1):
        picture.add(tag("path", d=box(left + 20 + shade * 20, 4, 18, 12), class_=f"h{shade}"))
    picture.text(left + 26 + (SHADES + 1) * 20, 14, f"{amount(most)} pages/min")


def jobs(data: Gantt, width: float, until: float) -> Picture:
    """Each job on a slot of its node.

    Args:
        data: jobs and lanes.
        width: of the picture.
        until: seconds from the crawl's beginning to the end of the picture.
    """
    wide = width >= WIDE
    lanes = data.lanes[:LANES]
    row = 16.0 if len(lanes) <= 24 else 10.0 if len(lanes) <= 60 else 5.0
    tops, bottom = _tops(lanes, row, 34.0)
    left = 132.0 if wide else 84.0
    x = Scale(0, until, left, width - 14)
    counts = {outcome: sum(bar.outcome == outcome for bar in data.bars) for outcome in _OUTCOMES}
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)
    picture = Picture(
        name=f"jobs-{width:g}",
        width=width,
        height=bottom + 28,
        title="Jobs on the nodes over time",
        desc=f"{len(data.bars):,} jobs on {len(set(data.lanes))} nodes: {told}.",
    )
    picture.add(_hatch(f"failed-{width:g}", "hatch-failed"))
    _legend(picture, [name for name, count in counts.items() if count], left if wide else 8.0, width)
    _lane_names(picture, lanes, tops, row, left, width)
    bars = [bar for bar in data.bars if bar.lane < len(lanes)]
    for bar in bars if len(bars) <= NAMED else ():
        seconds = span(bar.end - bar.begin)
        about = tag("title", text=f"{bar.name} on {lanes[bar.lane]}: {bar.outcome}, {seconds}")
        picture.add(tag("path", about, d=_bar(bar, x, tops, row), **_look(bar.outcome, width)))
    if len(bars) > NAMED:
        for outcome in counts:
            drawn = _joined([bar for bar in bars if bar.outcome == outcome], x)
            if drawn:
                d = "".join(_bar(bar, x, tops, row) for bar in drawn)
                picture.add(tag("path", d=d, **_look(outcome, width)))
    picture.times(x, bottom + 2)
    return picture


_OUTCOMES = ("done", "running", "waiting", "failed")


def _tops(lanes: Sequence[str], row: float, top: float) -> tuple[list[float], float]:
    """Where each lane begins, a little space between the nodes; and where the last one ends."""
    tops: list[float] = []
    for i, node in enumerate(lanes):
        if i:
            top += row + (3 if node != lanes[i - 1] else 0)
        tops.append(top)
    return tops, top + row


def _lane_names(
    picture: Picture, lanes: Sequence[str], tops: Sequence[float], row: float, left: float, width: float
) -> None:
    """The name of each node beside its lanes, where the lanes leave room for it."""
    last = 0.0
    groups = [list(group) for _, group in groupby(range(len(lanes)), key=lambda i: lanes[i])]
    names = clipped_names([lanes[rows[0]] for rows in groups], left - 14)
    for node, rows in zip(names, groups, strict=True):
        middle = (tops[rows[0]] + tops[rows[-1]] + row) / 2
        begin, end = tops[rows[0]], tops[rows[-1]] + row
        picture.add(tag("path", d=box(left, begin, width - 14 - left, end - begin), class_="lane"))
        if middle + 4 - last >= 11:
            picture.text(left - 8, middle + 4, node, anchor="end")
            last = middle + 4


def _bar(bar: Bar, x: Scale, tops: Sequence[float], row: float) -> str:
    begin, end = x(bar.begin), x(bar.end)
    inset = 0.5 if bar.outcome == "failed" else max(0.5, row * 0.15)
    gap = 0.5 if end - begin > 3 else 0.0
    return box(begin, tops[bar.lane] + inset, max(end - begin - gap, 0.8), row - 2 * inset)


def _look(outcome: str, width: float) -> dict[str, str]:
    if outcome == "failed":
        return {"class_": "job-failed", "fill": f"url(#failed-{width:g})"}
    return {"class_": f"job-{outcome}"}


def _joined(bars: Sequence[Bar], x: Scale) -> list[Bar]:
    """Bars that would touch each other on their lane, as one: so no number of jobs makes the page huge."""
    found: list[Bar] = []
    for bar in sorted(bars, key=lambda one: (one.lane, one.begin)):
        last = found[-1] if found else None
        if last and last.lane == bar.lane and x(bar.begin) - x(last.end) < 0.6 and x(bar.end) - x(last.begin) < 6:
            found[-1] = replace(last, end=max(last.end, bar.end))
        else:
            found.append(bar)
    return found


def _legend(picture: Picture, names: Sequence[str], left: float, width: float) -> None:
    at = left
    for name in names:
        picture.add(tag("path", d=box(at, 4, 18, 12), **_look(name, width)))
        picture.text(at + 23, 14, name)
        at += 40 + len(name) * 7


def _hatch(name: str, kind: str) -> str:
    """A pattern of stripes: what it marks is seen without colours, too."""
    stripes = tag("rect", width=6, height=6, class_=f"{kind}-ground") + tag("path", d="M0 0v6", class_=kind)
    return tag(
        "defs",
        tag(
            "pattern",
            stripes,
            id=escape(name),
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        ),
    )
