"""The pictures of the throttle: requests at the site per second, beside the limit that holds; no script in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from scrapyd_dist.report.charts import amount, span, ticks, time_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, LEFT, RIGHT = 760.0, 46.0, 14.0
STYLE = """
:root { --ink: #17212b; --muted: #566472; --rule: #dfe5eb; --paper: #fff; --blue: #0072b2; --orange: #e69f00; --soft: rgba(0, 114, 178, 0.14); }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7edf2; --muted: #9dabb8; --rule: #2b3640; --paper: #161d24; --blue: #4aa8e0; --orange: #e8ac2f; --soft: rgba(74, 168, 224, 0.18); }
}
svg { font: 12px system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
rect { fill: var(--paper); } text { fill: var(--ink); } path { fill: none; stroke-linejoin: round; }
.tick { fill: var(--muted); font-size: 11px; }
.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--rule); } .axis { stroke: var(--muted); } .area { fill: var(--soft); }
.rate { stroke: var(--blue); stroke-width: 2.5; } .limit { stroke: var(--orange); stroke-width: 2; stroke-dasharray: 7 3; }
.change { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 5 3; }
"""


@dataclass(frozen=True)
class Scale:
    """From values to places on the picture."""

    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return round(
            self.begin + (self.end - self.begin) * min(1.0, max(0.0, value / self.high)), 1
        )


@dataclass(kw_only=True)
class Drawing:
    """One picture."""

    height: float
    title: str
    desc: str
    parts: list[str] = field(default_factory=list)

    def path(self, d: str, kind: str) -> None:
        self.parts.append(f'<path d="{d}" class="{kind}"/>')

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label"
    ) -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
        )

    def ground(self, y: Scale, marks: Sequence[float]) -> None:
        for mark in marks:
            self.path(f"M{LEFT:g} {y(mark):g}H{WIDTH - RIGHT:g}", "grid" if mark else "axis")
            self.text(LEFT - 6, y(mark) + 4, amount(mark, marks[-1]), anchor="end", kind="tick")

    def times(self, x: Scale, y: float) -> None:
        for mark in time_ticks(x.high, max(2, int((x.end - x.begin) / 78))):
            self.path(f"M{x(mark):g} {y:g}v4", "axis")
            self.text(
                x(mark),
                y + 17,
                span(mark),
                anchor="end" if x(mark) > WIDTH - 24 else "middle",
                kind="tick",
            )

    def rates(self, values: Sequence[float], step: float, x: Scale, y: Scale) -> None:
        """The stairs of values that hold for a step each."""
        corners = [
            f"{x((at + side) * step):g} {y(value):g}"
            for at, value in enumerate(values)
            for side in (0, 1)
        ]
        stairs = "M" + "L".join(corners)
        self.path(f"{stairs}L{x(len(values) * step):g} {y(0):g}L{x(0):g} {y(0):g}z", "area")
        self.path(stairs, "rate")

    def limit(self, begin: float, end: float, y: float) -> None:
        self.path(f"M{begin:g} {y:g}H{end:g}", "limit")

    def file(self) -> str:
        inside = f"<title>{escape(self.title)}</title><desc>{escape(self.desc)}</desc><style>{STYLE}</style>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {self.height:g}" role="img">{inside}'
            f'<rect width="{WIDTH:g}" height="{self.height:g}"/>{"".join(self.parts)}</svg>'
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """One run whose limit was changed."""

    rates: Sequence[float]  #: requests per second at the site, step by step
    limits: Sequence[
        tuple[float, float]
    ]  #: seconds from the beginning, and requests per second from then on
    step: float = 0.5  #: seconds


@dataclass(frozen=True, kw_only=True)
class Style:
    """What came to the site under one of the four styles."""

    name: str
    rates: Sequence[float]  #: requests per second, second by second
    limit: float  #: requests per second of all budgets together


def changed(data: Change) -> str:
    """The run as a file."""
    height, seconds = 250.0, len(data.rates) * data.step
    marks = ticks(max(*data.rates, *(limit for _, limit in data.limits)) * 1.05)
    x, y = Scale(seconds, LEFT, WIDTH - RIGHT), Scale(marks[-1], height - 30, 26)
    told = ", ".join(f"{limit:g} a second from {at:.1f} s on" for at, limit in data.limits)
    picture = Drawing(
        height=height, desc=f"Limits: {told}.",
        title="Requests at the site per second, two workers, while the limit is changed",
    )  # fmt: skip
    picture.ground(y, marks)
    picture.times(x, y.begin)
    picture.rates(data.rates, data.step, x, y)
    ends = [*(at for at, _ in data.limits[1:]), seconds]
    for (at, limit), end in zip(data.limits, ends, strict=True):
        picture.limit(x(at), x(end), y(limit))
        if at:
            picture.path(f"M{x(at):g} {y.end:g}V{y.begin:g}", "change")
        picture.text(x(at) + 5, 18, f"limit {limit:g} a second", kind="label halo")
    return picture.file()


def styles(found: Sequence[Style]) -> str:
    """The four styles side by side as a file."""
    height, room = 230.0, (WIDTH - LEFT - RIGHT) / len(found)
    marks = ticks(max(max(*one.rates, one.limit) for one in found) * 1.05)
    y = Scale(marks[-1], height - 30, 40)
    means = ", ".join(
        f"{one.name} {sum(one.rates) / len(one.rates):.1f} of {one.limit:g}" for one in found
    )
    picture = Drawing(
        height=height, desc=f"Means: {means}.",
        title="Requests at the site per second: two spiders on two addresses, four styles",
    )  # fmt: skip
    picture.ground(y, marks)
    for at, one in enumerate(found):
        left = LEFT + at * room
        x = Scale(len(one.rates), left, left + room - 16)
        picture.rates(one.rates, 1.0, x, y)
        picture.limit(x.begin, x.end, y(one.limit))
        picture.times(x, y.begin)
        picture.text(left, 16, one.name)
        picture.text(left, 31, f"limit {one.limit:g} a second", kind="tick")
    return picture.file()
