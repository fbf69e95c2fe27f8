"""Texts and numbers for people: escaped, without passwords, of a length that fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: height of a line of labels, and about how wide a character of it is
FONT = 12.0
GLYPH = 0.62

#: characters that a document may not have, or that turn the text around them; and half characters, which UTF-8 has not
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_USER = re.compile(r"(://)[^/?#\s]*@")
_MINUTE, _HOUR = 60, 3600


def escape(text: object) -> str:
    """A text as it may stand in HTML or SVG, between tags or in an attribute; without passwords of addresses."""
    plain = _FORBIDDEN.sub("\ufffd", hidden(str(text)))
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        plain = plain.replace(mark, entity)
    return plain


def hidden(text: str) -> str:
    """A text without the user names and passwords of the addresses in it."""
    return _USER.sub(r"\1***@", text)


def short(value: float) -> str:
    """A number with one digit behind the point, if it needs one."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def clipped(text: str, width: float, size: float = FONT) -> str:
    """A text that fits into `width`, cut in its middle if it has to be: names differ at both ends."""
    room = max(3, int(width / (size * GLYPH)))
    if len(text) <= room:
        return text
    head = (room - 1) // 2
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"


def clipped_names(names: Sequence[str], width: float) -> list[str]:
    """Names that fit into `width`: what all of them end with, then what all begin with, goes first."""
    found, room = list(names), width / (FONT * GLYPH)
    if len(set(found)) > 1 and max(map(len, found)) > room:
        end = _boundary(_common([name[::-1] for name in found]))
        found = [name[: len(name) - end] for name in found]
    if len(set(found)) > 1 and max(map(len, found)) > room:
        begin = _boundary(_common(found))
        found = [f"…{name[begin:]}" for name in found] if begin > 1 else found
    return [clipped(name, width) for name in found]


def _common(names: Sequence[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)  # all others lie between them
    return first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _boundary(common: str) -> int:
    """How much of what names have in common can go without cutting a word or a number in two."""
    return max((i + 1 for i, letter in enumerate(common) if not letter.isalnum()), default=0)


def span(seconds: float) -> str:
    """A length of time: `0`, `40 s`, `1:30 min`, `2 h`, `1:05 h`, `3 d`."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s" if whole else "0"
    if whole < _HOUR:
        minutes, rest = divmod(whole, _MINUTE)
        return f"{minutes}:{rest:02d} min" if rest else f"{minutes} min"
    hours, rest = divmod(round(whole / _MINUTE), 60)
    if hours < 48:
        return f"{hours}:{rest:02d} h" if rest else f"{hours} h"
    days, left = divmod(hours, 24)
    return f"{days} d {left} h" if left else f"{days} d"


def amount(value: float, like: float = 0.0) -> str:
    """A number for an axis: `0`, `2.5`, `950`, `12k`, `3.4M`; in the unit of the number that it stands beside."""
    for size, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value and max(abs(value), like) >= size:
            return f"{value / unit:.1f}".removesuffix(".0") + letter
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2f}".rstrip("0").rstrip(".")
