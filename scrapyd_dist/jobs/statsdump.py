"""The dictionary of stats at the end of a Scrapy log, as values. Rule: the text is taken apart, never run."""

from __future__ import annotations

import ast
import re

#: what a stat can be here: a time is its text in ISO form
Stat = int | float | str | bool | None

#: largest number that is summed up; a larger one is its text
LARGEST = float(1 << 63)

_LINE = re.compile(r"[{ ](?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"): (?P<value>.*?)[,}]?\Z")


def read_dump(text: str) -> dict[str, Stat]:
    """The stats in a dump as Scrapy prints it; what cannot be read of it is left out.

    Args:
        text: from the opening brace on; what is cut off at its end costs no more than the stat it is cut in.
    """
    whole = _parsed(text.strip())
    if isinstance(whole, ast.Dict):
        pairs = zip(whole.keys, whole.values, strict=True)
        return {str(_value(key)): _value(value) for key, value in pairs if key is not None}
    # One stat with an odd value, or a torn end, must not cost all the others.
    found: dict[str, Stat] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        key, value = (_parsed(match["key"]), _parsed(match["value"])) if match else (None, None)
        if key is not None and value is not None:
            found[str(_value(key))] = _value(value)
    return found


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Stat:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return _time(node) or _text(node)
    if isinstance(value, (int, float)):
        return value if abs(value) <= LARGEST else _text(node)  # neither is infinity, nor what is no number
    return value if value is None or isinstance(value, str) else _text(node)


def _text(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError, MemoryError):  # a number of more digits than Python writes
        return "…"


def _time(node: ast.expr) -> str:
    """`datetime.datetime(2026, 11, 20, 23, 5, 1, 44, tzinfo=…)` in ISO form; "" for anything else."""
    if not isinstance(node, ast.Call) or _text(node.func) != "datetime.datetime":
        return ""
    numbers = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, int)]
    if not 3 <= len(numbers) <= 7:
        return ""
    year, month, day, hour, minute, second, micro = [*numbers, 0, 0, 0, 0][:7]
    zone = "+00:00" if any(word.arg == "tzinfo" and "utc" in _text(word.value) for word in node.keywords) else ""
    fraction = f".{micro:06d}" if micro else ""
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}{fraction}{zone}"
