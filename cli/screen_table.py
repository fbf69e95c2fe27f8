"""Lays a table out for a terminal: no heading breaks, and each reason is seen.

No IO. Into a pipe goes the whole table: see `output.plain_lines`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

#: what a cell shorter than its own text has in place of the rest
CUT = "…"
#: what stands before a line below a row
_INDENT = "  "
#: columns of the terminal between two cells, and where that is too much
_GAPS = (2, 1)
#: columns of the terminal that a name keeps, at least
_LEAST = 6
#: headings of texts that are short, and would say something else if they were cut
_WHOLE = frozenset({"state", "age", "took", "latency", "clock", "batches"})
_NUMBER = re.compile(r"-|-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; a cell is text of one line."""

    heading: str
    cells: tuple[str, ...]

    @property
    def is_number(self) -> bool:
        """Whether all cells are numbers: these stand at the right, and are never cut."""
        return all(map(_NUMBER.fullmatch, self.cells))

    @property
    def width(self) -> int:
        """The columns of the terminal that its widest text takes."""
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def least(self) -> int:
        """The columns of the terminal that it has to have; names can be cut."""
        if self.is_number or self.heading in _WHOLE:
            return self.width
        return min(self.width, max(cell_len(self.heading), _LEAST))

    def shorten(self, shortened: Mapping[str, Callable[[str], str]]) -> "Column":
        """Return the column with what its heading has for its cells, if anything."""
        shorten = shortened.get(self.heading)
        if shorten is None:
            return self
        return Column(heading=self.heading, cells=tuple(map(shorten, self.cells)))


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """What gives way in a table that is too wide, by its heading."""

    shortened: Mapping[str, Callable[[str], str]]  #: what returns the shorter form of a cell
    left_out: Sequence[str]  #: columns that may be missing, in turn
    below: Collection[str]  #: columns that may stand below each row, with the last one


def screen_lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    narrowing: Narrowing,
    colour_of: Callable[[str], str],
) -> list[Text]:
    """Return the table as lines for a terminal of so many columns.

    Where it is too wide, these give way in turn: cells that have a shorter form; the last column,
    which then stands below each row; columns that may be left out; others that may stand below;
    and the middle of names.
    """
    columns = []
    for heading, *cells in zip(headings, *rows, strict=True):
        columns.append(Column(heading=heading, cells=tuple(cells)))
    columns, below = _part(columns, width, narrowing)
    layout = _make_layout(columns, width)
    titles = [column.heading.upper() for column in columns]
    lines = [_cut(layout.line(titles, lambda _title: "bold"), width)]
    for place in range(len(rows)):
        cells = [column.cells[place] for column in columns]
        lines.append(_cut(layout.line(cells, colour_of), width))
        lines += _lines_below(below, place, width)
    return lines


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _part(
    columns: list[Column], width: int, narrowing: Narrowing
) -> tuple[list[Column], list[Column]]:
    """Return the columns of the rows, and those that stand below the rows."""
    if _fit(columns, width):
        return columns, []
    columns = [column.shorten(narrowing.shortened) for column in columns]
    if _fit(columns, width):
        return columns, []
    beside = _leave_out(columns[:-1], width, narrowing.left_out)
    if _fit(beside, width):
        return beside, columns[-1:]
    above, below = _divide(beside, narrowing.below)
    return above, [*below, columns[-1]]


def _leave_out(columns: list[Column], width: int, headings: Sequence[str]) -> list[Column]:
    """Return the columns without the first of these headings that make them fit."""
    for heading in headings:
        if not _fit(columns, width):
            columns, _ = _divide(columns, {heading})
    return columns


def _divide(
    columns: Sequence[Column], headings: Collection[str]
) -> tuple[list[Column], list[Column]]:
    """Return the columns without these headings, and those with them."""
    others = [column for column in columns if column.heading not in headings]
    chosen = [column for column in columns if column.heading in headings]
    return others, chosen


def _fit(columns: Sequence[Column], width: int) -> bool:
    gaps = _GAPS[0] * (len(columns) - 1)
    return sum(column.width for column in columns) + gaps <= width


def _cut_widths(columns: Sequence[Column], room: int) -> list[int]:
    """Return the widths of the columns: the widest names give way until the sum is the room."""
    widths = [column.width for column in columns]
    while sum(widths) > room:
        wide = [place for place, column in enumerate(columns) if widths[place] > column.least]
        if not wide:
            break
        widest = max(wide, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How the lines of a table are filled."""

    columns: Sequence[Column]
    widths: Sequence[int]
    gap: str

    def line(self, cells: Sequence[str], colour_of: Callable[[str], str]) -> Text:
        """Return a line with these cells; numbers stand at the right."""
        line = Text()
        for cell, column, width in zip(cells, self.columns, self.widths, strict=True):
            shown = cut_middle(cell, width)
            room = " " * (width - cell_len(shown))
            before = room if column.is_number else ""
            after = "" if column.is_number else room
            line.append(before)
            line.append(shown, style=colour_of(cell))
            line.append(f"{after}{self.gap}")
        line.rstrip()
        return line


def _make_layout(columns: Sequence[Column], width: int) -> _Layout:
    """Return the widest layout for a terminal of so many columns, else the narrowest there is."""
    for gap in _GAPS:
        room = width - gap * (len(columns) - 1)
        widths = _cut_widths(columns, room)
        layout = _Layout(columns=columns, widths=widths, gap=" " * gap)
        if sum(widths) <= room:
            break
    return layout


def _lines_below(columns: Sequence[Column], place: int, width: int) -> list[Text]:
    """Return what stands below a row, wrapped and never cut; none without a text there.

    Texts that are too wide for one line have one each, at least.
    """
    cells = [column.cells[place] for column in columns]
    texts = [cell for cell in cells if cell not in ("", "-")]
    if not texts:
        return []
    room = width - len(_INDENT)
    if cell_len("  ".join(texts)) <= room:
        texts = ["  ".join(texts)]
    lines: list[Text] = []
    for text in texts:
        # The console is asked for no more than how text flows.
        wrapped = Text(text).wrap(Console(width=room), room, overflow="fold")
        lines += [Text(_INDENT) + line for line in wrapped]
    return lines


def cut_middle(text: str, width: int) -> str:
    """Return a name in so many columns of the terminal; a longer one keeps both its ends."""
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 2
    end = set_cell_size(text[::-1], tail)[::-1]
    return f"{set_cell_size(text, width - 1 - tail)}{CUT}{end}"
