"""The pictures of the throttle: requests at the site per second, beside the limit that holds; no script in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapyd_dist.report.page import style
from scrapyd_dist.report.svg import Picture, Scale, line, tag, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, LEFT, RIGHT = 760.0, 46.0, 14.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One run whose limit was changed."""

    rates: Sequence[float]  #: requests per second at the site, step by step
    limits: Sequence[tuple[float, float]]  #: seconds from the beginning, and requests per second from then on
    step: float = 0.5  #: seconds


@dataclass(frozen=True, kw_only=True)
class Style:
    """What came to the site under one of the four styles."""

    name: str
    rates: Sequence[float]  #: requests per second, second by second
    limit: float  #: requests per second of all budgets together


def _stairs(values: Sequence[float], step: float, x: Scale, y: Scale) -> str:
    """The path through values that hold for a step each."""
    corners = [(x((at + side) * step), y(value)) for at, value in enumerate(values) for side in (0, 1)]
    return line(corners)


def _rates(picture: Picture, values: Sequence[float], step: float, x: Scale, y: Scale) -> None:
    stairs = _stairs(values, step, x, y)
    ground = f"L{x(len(values) * step):.1f} {y(0):.1f}L{x(0):.1f} {y(0):.1f}z"
    picture.add(tag("path", d=stairs + ground, class_="area-done"), tag("path", d=stairs, class_="line line-done"))


def changed(data: Change) -> str:
    """The run as a file."""
    height, seconds = 250.0, len(data.rates) * data.step
    marks = ticks(max(*data.rates, *(limit for _, limit in data.limits)) * 1.05)
    x, y = Scale(0, seconds, LEFT, WIDTH - RIGHT), Scale(0, marks[-1], height - 30, 26)
    told = ", ".join(f"{limit:g} a second from {at:.1f} s on" for at, limit in data.limits)
    picture = Picture(
        name="throttle-change", width=WIDTH, height=height, desc=f"Limits: {told}.",
        title="Requests at the site per second, two workers, while the limit is changed",
    )  # fmt: skip
    picture.ground(y, marks, LEFT, WIDTH - RIGHT)
    picture.times(x, y.begin)
    _rates(picture, data.rates, data.step, x, y)
    ends = [*(at for at, _ in data.limits[1:]), seconds]
    for (at, limit), end in zip(data.limits, ends, strict=True):
        _limit(picture, x(at), x(end), y(limit))
        if at:
            picture.add(tag("path", d=f"M{x(at):.1f} {y.end}V{y.begin}", class_="median"))
        picture.text(x(at) + 5, 18, f"limit {limit:g} a second", kind="label halo")
    return picture.file(style("picture.css"))


def _limit(picture: Picture, begin: float, end: float, y: float) -> None:
    picture.add(tag("path", d=f"M{begin:.1f} {y:.1f}H{end:.1f}", class_="line line-sent"))


def styles(found: Sequence[Style]) -> str:
    """The four styles side by side as a file."""
    height, room = 230.0, (WIDTH - LEFT - RIGHT) / len(found)
    marks = ticks(max(max(*one.rates, one.limit) for one in found) * 1.05)
    y = Scale(0, marks[-1], height - 30, 40)
    means = ", ".join(f"{one.name} {sum(one.rates) / len(one.rates):.1f} of {one.limit:g}" for one in found)
    picture = Picture(
        name="throttle-styles", width=WIDTH, height=height, desc=f"Means: {means}.",
        title="Requests at the site per second: two spiders on two addresses, four styles",
    )  # fmt: skip
    picture.ground(y, marks, LEFT, WIDTH - RIGHT)
    for at, one in enumerate(found):
        left = LEFT + at * room
        x = Scale(0, len(one.rates), left, left + room - 16)
        _rates(picture, one.rates, 1.0, x, y)
        _limit(picture, x.begin, x.end, y(one.limit))
        picture.times(x, y.begin)
        picture.text(left, 16, one.name)
        picture.text(left, 31, f"limit {one.limit:g} a second", kind="tick")
    return picture.file(style("picture.css"))
