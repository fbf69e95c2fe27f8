"""Tables, for a terminal or for a pipe; rule: into a pipe nothing is cut and nothing is coloured."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .output import one_line, put

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = {
    "up": "green", "down": "red", "unfit": "red", "failed": "red", "refused": "red", "died": "red",
    "uploaded": "green", "present": "green", "finished": "green", "stopped": "yellow", "incomplete": "yellow",
}  # fmt: skip


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output."""
    cells = [[_text(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _rich_table(headings, cells)
        return
    for line in plain_lines(headings, cells):
        put(line)


def plain_lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The table as lines, in columns that are as wide as their widest cell."""
    everything = [[heading.upper() for heading in headings], *rows]
    widths = [max(len(row[column]) for row in everything) for column in range(len(headings))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in everything
    ]


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        drawn.add_column(heading.upper(), overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console().print(drawn)


def _text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else one_line(str(cell))
