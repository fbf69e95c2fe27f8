"""Draws the parts of a crawl, and what passes between them, as an SVG document that fetches nothing."""
# ruff: noqa: INP001 - a script of its own

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: where the picture lies
PICTURE = Path(__file__).resolve().parent / "pictures" / "how-it-works.svg"
#: the size of the picture, and the height of a line of text, in pixels
WIDTH, HEIGHT, LINE = 800, 390, 18
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 13px; text-anchor: middle; fill: #24292f }
.name { font-weight: bold; font-size: 15px }
.label { fill: #57606a }
rect { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.5 }
.page { fill: #ffffff; stroke: none }
.inner { fill: #ddf4ff }
path { fill: none; stroke: #0969da; stroke-width: 1.8; marker-end: url(#tip) }
marker path { fill: #0969da; stroke: none; marker-end: none }
"""
#: the tip of an arrow
TIP = (
    'id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"'
)
TIP_WAY = '<path d="M0,0 L10,5 L0,10 z"/>'


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of a crawl: its left upper corner, its size, and its lines of text, the name first."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    inner: bool = False  #: whether it lies in another box

    def draw(self) -> Iterator[str]:
        """Yield its SVG elements."""
        kind = ' class="inner"' if self.inner else ""
        yield (
            f'<rect{kind} x="{self.x}" y="{self.y}" width="{self.width}"'
            f' height="{self.height}" rx="6"/>'
        )
        middle = self.x + self.width // 2
        for number, line in enumerate(self.lines):
            is_name = number == 0 and not self.inner
            yield write(line, middle, self.y + 22 + LINE * number, "name" if is_name else "")


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """What passes from one part to another: its way as an SVG path, and where its label stands."""

    way: str
    label: str
    at: tuple[int, int]

    def draw(self) -> Iterator[str]:
        """Yield its SVG elements."""
        yield f'<path d="{self.way}"/>'
        yield write(self.label, *self.at, "label")


def write(text: str, x: int, y: int, kind: str) -> str:
    """Return a line of text about this point."""
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} x="{x}" y="{y}">{escape(text)}</text>'


PARTS = (
    Box(
        x=30, y=100, width=210, height=112,
        lines=("Producer", "walks the index,", "finds target requests,", "starts and watches workers", "by its scheduler"),
    ),
    Box(
        x=320, y=100, width=160, height=112,
        lines=("Store", "a file, or Redis:", "batches, leases,", "what was seen,", "reports"),
    ),
    Box(x=570, y=84, width=200, height=148, lines=("Scrapyd nodes",)),
    Box(x=590, y=118, width=160, height=30, lines=("worker",), inner=True),
    Box(x=590, y=154, width=160, height=30, lines=("worker",), inner=True),
    Box(x=590, y=190, width=160, height=30, lines=("worker",), inner=True),
    Box(x=320, y=312, width=160, height=54, lines=("Site", "of your spider")),
    Box(x=30, y=312, width=96, height=54, lines=("items.jl", "each once")),
)  # fmt: skip
PASSED = (
    Arrow(way="M140,100 V50 H670 V82", label="code, and a job for each worker", at=(400, 42)),
    Arrow(way="M240,156 H318", label="batches", at=(279, 148)),
    Arrow(way="M480,140 H568", label="lease", at=(524, 132)),
    Arrow(way="M570,186 H482", label="ack", at=(524, 204)),
    Arrow(way="M610,232 V264 H210 V214", label="parts with items", at=(400, 256)),
    Arrow(way="M180,212 V339 H318", label="index pages", at=(250, 331)),
    Arrow(way="M700,232 V339 H482", label="target pages", at=(590, 331)),
    Arrow(way="M78,212 V310", label="merged", at=(108, 268)),
)


def draw() -> str:
    """Return the picture as an SVG document."""
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f"<marker {TIP}>{TIP_WAY}</marker>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
    ]
    for part in (*PARTS, *PASSED):
        elements += part.draw()
    return "\n".join([*elements, "</svg>", ""])


if __name__ == "__main__":
    sys.exit(PICTURE.write_text(draw(), encoding="utf-8") == 0)
