"""The stats that Scrapy dumps at the end of a log, read as values and added up over jobs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


#: maximum number of distinct values counted per stat
VALUES_MAX = 20


#: stats of which only the first and last value are kept
_TIMES = frozenset({"start_time", "finish_time"})


@dataclass(kw_only=True)
class StatTotal:
    """One stat over many jobs."""

    jobs: int = 0  #: number of jobs with this stat
    sum: float = 0
    min: float | None = None
    max: float | None = None
    values: Counter[str] = field(default_factory=Counter)  #: counts of values that are not numbers

    def add(self, value: object) -> None:
        self.jobs += 1
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.sum += value
            self.min = value if self.min is None else min(self.min, value)
            self.max = value if self.max is None else max(self.max, value)
        elif str(value) in self.values or len(self.values) < VALUES_MAX:
            self.values[str(value)] += 1

    def add_time(self, value: object) -> None:
        """Add a time; only the first and the last are kept."""
        self.jobs += 1
        seen = sorted({*self.values, str(value)})
        self.values = Counter({seen[0]: 1, seen[-1]: 1})

    def document(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints."""
        numbers = {} if self.min is None else {"sum": self.sum, "min": self.min, "max": self.max}
        return {"jobs": self.jobs, **numbers, **({"values": dict(self.values)} if self.values else {})}


def add_up(stats: Iterable[Mapping[str, Any]]) -> dict[str, StatTotal]:
    """Add up each stat over all jobs; returns name -> sum, sorted by name.

    Args:
        stats: the stats of each job, as Scrapy collects them.
    """
    sums: dict[str, StatTotal] = {}
    for one in stats:
        for name, value in one.items():
            found = sums.setdefault(name, StatTotal())
            if name in _TIMES:
                found.add_time(value)
            else:
                found.add(value)
    return dict(sorted(sums.items()))
