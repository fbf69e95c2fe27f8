"""Drawing by hand: elements, scales, ticks, axes, and labels that do not overlap.

The rule it keeps: every text and every attribute is escaped here, so that no caller has to think of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.report.texts import amount, escape, short, span

if TYPE_CHECKING:
    from collections.abc import Sequence


_STEPS = (1, 2, 2.5, 5, 10)
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 14, 28)),
)


def tag(name: str, *content: str, text: object = None, **attributes: object) -> str:
    """An element.

    Args:
        name: of the element.
        content: markup inside it.
        text: text inside it, escaped here.
        attributes: by name; `_` stands for `-`, one at the end is dropped; those that are None are left out.
    """
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    told = "".join(f' {name}="{short(value) if isinstance(value, float) else escape(value)}"' for name, value in pairs)
    inside = "".join(content) + ("" if text is None else escape(text))
    return (
        f"<{name}{told}>{inside}</{name}>"
        if inside or name not in {"path", "rect", "line", "circle", "use"}
        else f"<{name}{told}/>"
    )


@dataclass(frozen=True)
class Scale:
    """From values to places on the picture."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return self.begin + (self.end - self.begin) * min(1.0, max(0.0, share))


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
    step = next((step for step in _TIME_STEPS if step >= wanted), math.ceil(wanted / (28 * _DAY)) * 28 * _DAY)
    return [float(step * i) for i in range((math.ceil(seconds / step) if beyond else int(seconds // step)) + 1)]


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places of labels, moved so that they are `gap` from each other and between `low` and `high`, if there is room."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [min(max(places[i], low), high) for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    found = [0.0] * len(places)
    for i, place in zip(order, moved, strict=True):
        found[i] = place
    return found


def line(points: Sequence[tuple[float, float]]) -> str:
    """The path through these points; those that lie on top of each other are left out."""
    pieces: list[str] = []
    for x, y in points:
        piece = f"{short(x)} {short(y)}"
        if not pieces or pieces[-1] != piece:
            pieces.append(piece)
    return "M" + "L".join(pieces) if pieces else ""


def box(x: float, y: float, width: float, height: float) -> str:
    """A rectangle, as a piece of a path: thousands of them are one element."""
    return f"M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"


@dataclass(kw_only=True)
class Picture:
    """One drawing, with what a screen reader says of it."""

    name: str  #: unique on the page; what it defines is called after it
    width: float
    height: float
    title: str
    desc: str
    _parts: list[str] = field(default_factory=list)

    def add(self, *parts: str) -> None:
        """Draw on top of what is there."""
        self._parts += parts

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label") -> None:
        """A label; `y` is its base line."""
        self.add(tag("text", text=text, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=kind))

    def ground(self, scale: Scale, values: Sequence[float], left: float, right: float, *, times: bool = False) -> None:
        """The horizontal lines of a picture and what they mean: numbers, or lengths of time."""
        for value in values:
            y = scale(value)
            self.add(tag("path", d=f"M{short(left)} {short(y)}H{short(right)}", class_="axis" if not value else "grid"))
            shown = span(value) if times else amount(value, values[-1])
            self.text(left - 6, y + 4, shown, anchor="end", kind="tick")

    def times(self, scale: Scale, y: float, *, last: float | None = None) -> None:
        """The axis of time below a picture."""
        room = max(2, int((scale.end - scale.begin) / 78))
        for value in time_ticks(scale.high if last is None else last, room):
            x = scale(value)
            self.add(tag("path", d=f"M{short(x)} {short(y)}v4", class_="axis"))
            at_end = x > self.width - 24
            self.text(x, y + 17, span(value), anchor="end" if at_end else "middle", kind="tick")

    def markup(self) -> str:
        """The element, for a page that has the styles."""
        return self._svg()

    def file(self, style: str) -> str:
        """A file of its own."""
        ground = tag("rect", width=self.width, height=self.height, class_="paper")
        return self._svg(tag("style", style), ground, xmlns="http://www.w3.org/2000/svg")

    def _svg(self, *first: str, **attributes: object) -> str:
        about = (
            tag("title", text=self.title, id=f"{self.name}-title"),
            tag("desc", text=self.desc, id=f"{self.name}-desc"),
        )
        return tag(
            "svg",
            *about,
            *first,
            *self._parts,
            **attributes,
            viewBox=f"0 0 {short(self.width)} {short(self.height)}",
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
        )
