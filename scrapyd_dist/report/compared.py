"""The pictures that compare: sorted sizes and durations, status codes by node, items of the last runs."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from scrapyd_dist.report.svg import Picture, Scale, box, line, tag, ticks, time_ticks
from scrapyd_dist.report.texts import amount, clipped, clipped_names, span
from scrapyd_dist.report.work import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.report.work import Runs, Spread, Statuses

WIDE = 600
#: bars that are drawn, at most; of more, each stands for several
BARS = 160
#: nodes whose status codes are drawn
ROWS = 60
_KINDS = ("ok", "moved", "banned", "missing", "broken", "silent")


def sorted_bars(data: Spread, width: float, *, name: str, title: str, unit: str) -> Picture:
    """Values, the greatest first, with the median line.

    Args:
        data: the values.
        width: of the picture.
        name: of the picture.
        title: of the picture.
        unit: `s` for times, else what is counted.
    """
    height = 190.0
    told = _teller(unit)
    factor = data.factor
    values = _fewer(data.values)
    most = max(data.values[0], data.median, 0.1)
    marks = time_ticks(most, 3, beyond=True) if unit == "s" else ticks(most, 3)
    left, right = 52.0, width - 14
    y = Scale(0, marks[-1], height - 26, 24)
    picture = Picture(
        name=f"{name}-{width:g}",
        width=width,
        height=height,
        title=title,
        desc=f"{len(data.values):,} in all; the greatest is {data.names[0]} with {told(data.values[0])}, the median "
        f"{told(data.median)}" + (f": {factor:.1f} times." if factor else "."),
    )
    picture.ground(y, marks, left, right, times=unit == "s")
    _bars(picture, values, data.median, Scale(0, len(values), left, right), y)
    middle = y(data.median)
    picture.add(tag("path", d=f"M{left:.1f} {middle:.1f}H{right:.1f}", class_="median"))
    picture.text(right, min(middle - 5, y.begin - 6), f"median {told(data.median)}", anchor="end", kind="label halo")
    picture.text(left, height - 8, f"greatest: {clipped(data.names[0], (right - left) * 0.5)}, {told(data.values[0])}")
    return picture


def _bars(picture: Picture, values: list[float], median: float, x: Scale, y: Scale) -> None:
    """One bar for each value; those of twice the median have another colour, and are the first ones anyway."""
    thick = min((x(1) - x(0)) * 0.8, 40.0)
    slow = sum(bool(median) and value >= 2 * median for value in values)
    bars = [box(x(i + 0.5) - thick / 2, y(value), thick, y.begin - y(value)) for i, value in enumerate(values)]
    for kind, some in (("bar-slow", bars[:slow]), ("bar", bars[slow:])):
        if some:
            picture.add(tag("path", d="".join(some), class_=kind))


def _teller(unit: str) -> Callable[[float], str]:
    if unit == "s":
        return lambda value: f"{value:.1f} s" if value < 10 else span(value)
    return lambda value: f"{amount(value)} {unit}"


def _fewer(values: tuple[float, ...]) -> list[float]:
    if len(values) <= BARS:
        return list(values)
    return [values[i * len(values) // BARS] for i in range(BARS)]


def status_codes(data: tuple[Statuses, ...], width: float) -> Picture:
    """What sites answered, stacked, one row per node, with the part of the requests that were retries."""
    wide, rows = width >= WIDE, data[:ROWS]
    row = 26.0 if len(rows) <= 12 else 16.0
    left, right = (132.0 if wide else 84.0), width - (104.0 if wide else 58.0)
    kinds = [group for group in GROUPS if any(one.groups[group] for one in rows)]
    places, legend = _places(kinds, 8.0 if not wide else left, width)
    top = legend + 26
    most = max((sum(one.groups.values()) for one in rows), default=1)
    x = Scale(0, most or 1, left, right)
    sums = {group: sum(one.groups[group] for one in data) for group in kinds}
    picture = Picture(
        name=f"status-{width:g}",
        width=width,
        height=top + row * len(rows) + 10,
        title="HTTP status codes by node",
        desc=", ".join(f"{group}: {count:,}" for group, count in sums.items()) + ".",
    )
    _patterns(picture, width)
    for group, (at, line_) in zip(kinds, places, strict=True):
        picture.add(tag("path", d=box(at, line_ - 10, 14, 12), **_look(group, width)))
        picture.text(at + 19, line_, group)
    picture.text(width - 8, top - 6, "retried", anchor="end", kind="tick")
    names = clipped_names([one.node for one in rows], left - 14)
    for i, (name, one) in enumerate(zip(names, rows, strict=True)):
        place = top + row * i
        picture.text(left - 8, place + row / 2 + 4, name, anchor="end")
        _stack(picture, one, kinds, x, place + 3, row - 6)
        if wide:
            whole = sum(one.groups.values())
            picture.text(x(whole) + 6, place + row / 2 + 4, amount(whole), kind="tick")
        picture.text(width - 8, place + row / 2 + 4, f"{one.retry_rate:.1%}", anchor="end")
    return picture


def _stack(picture: Picture, one: Statuses, kinds: list[str], x: Scale, top: float, height: float) -> None:
    """What one node was answered, piece by piece."""
    ends = list(accumulate(one.groups[group] for group in kinds))
    for group, end in zip(kinds, ends, strict=True):
        begin = end - one.groups[group]
        if one.groups[group]:
            about = tag("title", text=f"{one.node}: {one.groups[group]:,} times {group}")
            wide = max(x(end) - x(begin), 1.5)
            picture.add(tag("path", about, d=box(x(begin), top, wide, height), **_look(group, picture.width)))


def _places(kinds: list[str], left: float, width: float) -> tuple[list[tuple[float, float]], float]:
    """Where the names of the groups stand, in as many lines as they need; and the last line."""
    places, at, down = [], left, 14.0
    for group in kinds:
        room = 30 + len(group) * 6.8
        if at + room > width and at > left:
            at, down = left, down + 18
        places.append((at, down))
        at += room
    return places, down


def _look(group: str, width: float) -> dict[str, str]:
    kind = _KINDS[GROUPS.index(group)]
    if kind in {"banned", "broken", "silent"}:
        return {"class_": f"status-{kind}", "fill": f"url(#{kind}-{width:g})"}
    return {"class_": f"status-{kind}"}


def _patterns(picture: Picture, width: float) -> None:
    marks = {"banned": "M0 0v6", "broken": "M0 0v6M0 3h6", "silent": "M2 3h2"}
    for kind, mark in marks.items():
        ground = tag("rect", width=6, height=6, class_=f"fill-{kind}") + tag("path", d=mark, class_="mark")
        turned = "rotate(45)" if kind != "silent" else None
        pattern = tag(
            "pattern",
            ground,
            id=f"{kind}-{width:g}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
            patternTransform=turned,
        )
        picture.add(tag("defs", pattern))


def last_runs(data: Runs, width: float) -> Picture:
    """Items of the last runs, and where they usually are."""
    height, left, right = 210.0, 52.0, width - 14
    marks = ticks(max(*data.items, (data.median or 0) + data.mad, 1), 3)
    y = Scale(0, marks[-1], height - 30, 20)
    picture = Picture(
        name=f"runs-{width:g}",
        width=width,
        height=height,
        title="Items of the last runs",
        desc=f"This run: {data.items[-1]:,} items."
        + (f" The finished runs before: median {amount(data.median)}." if data.median is not None else ""),
    )
    step = (right - left) / len(data.items)
    if data.median is not None:
        high, low = y(data.median + data.mad), y(max(0.0, data.median - data.mad))
        picture.add(tag("rect", x=left, y=high, width=right - left, height=max(low - high, 1.0), class_="usual"))
    picture.ground(y, marks, left, right)
    for i, (name, count) in enumerate(zip(data.names, data.items, strict=True)):
        kind = "bar-now" if i == len(data.items) - 1 else "bar"
        thick = min(step * 0.7, 48.0)
        d = box(left + step * (i + 0.5) - thick / 2, y(count), thick, y.begin - y(count))
        picture.add(tag("path", tag("title", text=f"{name}: {count:,} items"), d=d, class_=kind))
    if data.median is not None:
        picture.add(tag("path", d=line([(left, y(data.median)), (right, y(data.median))]), class_="median"))
        label = f"median {amount(data.median)} ± {amount(data.mad)}"
        picture.text(left + 4, max(y(data.median + data.mad) - 6, 12), label, kind="label halo")
    at = left + step * (len(data.items) - 0.5)
    picture.text(min(at, right), height - 12, "this run", anchor="end" if at > right - 30 else "middle")
    return picture
