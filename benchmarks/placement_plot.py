"""The picture of the simulation: how much longer than the ideal each rule takes, as dots on one scale; no script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, LEFT, RIGHT, TOP, LINE = 860, 330, 40, 56, 18
#: the greatest ratio that the scale shows; beyond it a dot stands at the edge
MOST = 2.5
COLOURS = ("#8a8f98", "#b7791f", "#6b46c1", "#2f855a", "#2b6cb0")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 } .head { font-weight: 600 } .grid { stroke: #ddd }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .grid { stroke: #444 } .ground { fill: #16181c } }
.ground { fill: #fff }
"""


def _x(ratio: float) -> float:
    return LEFT + (min(ratio, MOST) - 1) / (MOST - 1) * (WIDTH - LEFT - RIGHT)


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `simulation.py` as a picture, group by group."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["nodes"], row["kind"]), []).append(row)
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    parts: list[str] = []
    y: float = TOP
    for (nodes, kind), members in groups.items():
        parts.append(f'<text class="head" x="12" y="{y + 4}">{nodes} nodes, {escape(kind)}</text>')
        for row in members:
            y += LINE
            parts += _line(row, y, COLOURS[rules.index(row["rule"]) % len(COLOURS)])
        y += LINE * 1.6
    return _whole(parts, height=round(y))


def _line(row: Mapping[str, Any], y: float, colour: str) -> list[str]:
    middle, worst = _x(row["ratio"]), _x(row["worst"])
    beyond = " →" if row["ratio"] > MOST else ""
    return [
        f'<text x="30" y="{y + 4}">{escape(row["rule"])}</text>',
        f'<line x1="{middle:.1f}" x2="{worst:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{middle:.1f}" cy="{y}" r="5" fill="{colour}"/>',
        f'<text x="{max(middle, worst) + 9:.1f}" y="{y + 4}">{row["ratio"]:.2f}{beyond}</text>',
    ]


def _whole(parts: Sequence[str], *, height: int) -> str:
    ticks = [1 + step * 0.25 for step in range(int((MOST - 1) / 0.25) + 1)]
    grid = [
        f'<line class="grid" x1="{_x(t):.1f}" x2="{_x(t):.1f}" y1="40" y2="{height - 12}"/>'
        for t in ticks
    ]
    names = [f'<text x="{_x(t):.1f}" y="34" text-anchor="middle">{t:g}</text>' for t in ticks]
    title = "Time of a crawl, as a multiple of the ideal (dot: median, line: to the worst)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{title}</title><style>{STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
            f'<text class="head" x="12" y="16">{title}</text>',
            *grid,
            *names,
            *parts,
            "</svg>\n",
        ]
    )
