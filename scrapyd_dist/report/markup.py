"""Pieces of the page: tables, cards, figures with their tables behind them. Texts are escaped here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapyd_dist.report.texts import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapyd_dist.report.svg import Picture

#: widths that pictures are drawn for: a screen, a telephone, and a third of a screen
WIDE, NARROW, THIRD = 880, 320, 300
#: what stands where there is no value
NOTHING = "\u2013"


def cell(value: object) -> str:
    """A table's cell; numbers stand to the right."""
    if value is None:
        return f'<td class="number">{NOTHING}</td>'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    text = str(value)
    return (
        f'<td class="foreign"><bdi>{escape(text)}</bdi></td>'
        if len(text) > 24
        else f"<td><bdi>{escape(text)}</bdi></td>"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table that is moved sideways in itself where it is too wide."""
    numbers = {i for row in rows[:1] for i, value in enumerate(row) if isinstance(value, (int, float)) or value is None}
    head = "".join(
        f'<th scope="col"{" class=number" if i in numbers else ""}>{escape(name)}</th>'
        for i, name in enumerate(headings)
    )
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def behind(what: str, content: str) -> str:
    """What is shown when somebody asks for it."""
    return f"<details><summary>{escape(what)}</summary>{content}</details>"


def both(draw: Callable[[float], Picture]) -> str:
    """A picture, drawn for a wide and for a narrow screen; one of them is shown."""
    wide, narrow = draw(WIDE).markup(), draw(NARROW).markup()
    return f'<figure><div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'


def section(title: str, hint: str, *content: str) -> str:
    """A part of the page with its heading and a sentence on what to see in it."""
    about = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return f"<section><h2>{escape(title)}</h2>{about}{''.join(content)}</section>"


def cards(rows: Sequence[tuple[str, Any, str]]) -> str:
    """The numbers of a crawl: name, number, and a word on it."""
    pieces = []
    for name, value, note in rows:
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        small = f"<small>{escape(note)}</small>" if note else ""
        pieces.append(f"<div><dt>{escape(name)}</dt><dd>{escape(shown)}{small}</dd></div>")
    return f'<dl class="cards">{"".join(pieces)}</dl>'


def items(lines: Sequence[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li><bdi>{escape(line)}</bdi></li>' for line in lines)}</ul>"
