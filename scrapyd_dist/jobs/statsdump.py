"""Parses the stats dump at the end of a Scrapy log, without evaluating it."""

from __future__ import annotations

import ast
import re

#: the value of a stat; a time is a string in ISO format
Stat = int | float | str | bool | None

#: the largest number kept as a number; a larger one becomes text
LARGEST = float(1 << 63)

_LINE = re.compile(r"[{ ](?P<key>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"): (?P<value>.*?)[,}]?\Z")


def read_dump(text: str) -> dict[str, Stat]:
    """Parse a stats dump as Scrapy prints it; unreadable stats are left out.

    Args:
        text: the dump from its opening brace on; it may be truncated.
    """
    whole = _parsed(text.strip())
    if isinstance(whole, ast.Dict):
        pairs = zip(whole.keys, whole.values, strict=True)
        return {str(_value(key)): _value(value) for key, value in pairs if key is not None}
    # An unreadable value or a truncated end must not lose the other stats.
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
        return value if abs(value) <= LARGEST else _text(node)  # infinity and NaN become text
    return value if value is None or isinstance(value, str) else _text(node)


def _text(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError, MemoryError):  # a number with more digits than Python converts
        return "…"


def _time(node: ast.expr) -> str:
    """Convert `datetime.datetime(2026, 11, 20, 23, 5, 1, 44, tzinfo=…)` to ISO format; "" for anything else."""
    if not isinstance(node, ast.Call) or _text(node.func) != "datetime.datetime":
        return ""
    numbers = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, int)]
    if not 3 <= len(numbers) <= 7:
        return ""
    year, month, day, hour, minute, second, micro = [*numbers, 0, 0, 0, 0][:7]
    zone = "+00:00" if any(word.arg == "tzinfo" and "utc" in _text(word.value) for word in node.keywords) else ""
    fraction = f".{micro:06d}" if micro else ""
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}{fraction}{zone}"
