"""Defines what one setting is: its kind, its range, its default, and which jobs get it.

Part of the worker half: imports the standard library only.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .errors import ConfigError

#: seconds; longer than any crawl, and no clock of the system overflows
LONGEST = 86400.0 * 36525
#: the largest number where a row says nothing else
MOST = 10**9


class ValueKind(Enum):
    """What a value must be, as an error says it."""

    YES_NO = "True or False"
    WHOLE = "a whole number"
    SECONDS = "a number of seconds, or a time such as 30m, 2h or 7d"
    NUMBER = "a number"
    TEXT = "text"
    CHOICE = "one of the choices"
    LIST = "a list of texts"
    MAPPING = "a mapping with names as keys"
    FILES = 'a list with {"path": FILE} for each file'


#: least and most of a number, where its row says nothing else; None: it is more than 0
_RANGES: Mapping[ValueKind, tuple[float | None, float]] = {
    ValueKind.WHOLE: (0, MOST),
    ValueKind.SECONDS: (None, LONGEST),
    ValueKind.NUMBER: (None, MOST),
}
#: what Scrapy reads as true, and as false
_YES = (True, 1, "1", "True", "true")
_NO = (False, 0, "0", "False", "false")
#: a span of time as text
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: characters of a wrong value that an error shows
_SHOWN = 100


class Travels(Enum):
    """Which jobs of a crawl get the setting, besides what settings.py says: that is in the egg.

    They get what was given on the command line or, where the row says so, what is in force.
    """

    NOWHERE = "none"
    CALL = "every job, in other words: as its arguments, or in its assignment"
    JOBS = "every job of the crawl's own project"
    FLEET = "every job, also those of other projects"
    LIMITS = "every job; those of other projects get what is in force"
    LEASING = "workers that lease, which find target requests as well"
    SLOTS = "workers that lease; those of other projects get what is in force"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One `DISTRIBUTED_` setting: its name, what its value may be, and where it is read."""

    name: str  #: in full
    kind: ValueKind
    default: Any = None  #: None: not set
    help: str  #: one line of Markdown
    option: str = ""  #: of `sdist crawl`; of `sdist frontier consume` with its name before it
    metavar: str = ""  #: what stands for the value in the option's help; empty: by its kind
    least: float | None = None  #: the least number; None: that of its kind
    most: float | None = None  #: the greatest one; None: that of its kind
    must_be: str = ""  #: what an error says, where the kind says too little
    choices: tuple[str, ...] = ()  #: of a number: words that are allowed as well
    pull_only: bool = False  #: jobs that are sent their batch ignore it
    travels: Travels = Travels.NOWHERE
    #: jobs get the value also where it is the default, or of the project's own settings
    in_force: bool = False
    secret: bool = False  #: may hold a password
    variable: str = ""  #: of the environment, which goes before the setting
    cluster: str = ""  #: the setting of Scrapy Cluster that means the same

    @property
    def default_text(self) -> str:
        """The default as documents and `sdist config` show it; empty for none."""
        if self.default is None:
            return ""
        if type(self.default) is float:
            return f"{self.default:g}"
        return str(self.default)

    @property
    def field(self) -> str:
        """The field of the option's value: `max_time` for `frontier consume --max-time`."""
        flag = self.option.rpartition(" ")[2].partition("/")[0]
        return flag.lstrip("-").replace("-", "_")

    def judged(self, value: Any, name: str = "") -> Any:
        """Return the value as its kind, which may also be written as text, as on a command line.

        Raises:
            ConfigError: it is of another kind, or out of its range; the message calls it `name`,
                else the setting.
        """
        subject = name or self.name
        if not self.secret:
            subject = f"{subject} is {_shorten(value)}, and"
        try:
            converted = _convert(self.kind, value, self.choices)
        except (TypeError, ValueError, LookupError, OverflowError, RecursionError):
            raise ConfigError(f"{subject} must be {self._describe_kind()}.") from None
        if self.kind not in _RANGES or converted in self.choices:
            return converted
        if limit := self._describe_exceeded_limit(converted):
            raise ConfigError(f"{subject} must be {limit}.")
        return converted

    def _describe_kind(self) -> str:
        if self.kind is ValueKind.CHOICE:
            choices = " or ".join(filter(None, self.choices))
            if choices:
                return choices
        return self.must_be or self.kind.value

    def _describe_exceeded_limit(self, value: float) -> str:
        """Return the limit that the number is beyond, in words; empty when it is in its range."""
        least, most = self._get_range()
        unit = " seconds" if self.kind is ValueKind.SECONDS else ""
        if value > most:
            days = f" ({most / 86400:,.0f} days)" if unit and most >= 86400 else ""
            return f"{_group_digits(most)}{unit}{days} or less"
        if least is None:
            return f"more than 0{unit}" if value <= 0 else ""
        return f"{_group_digits(least)}{unit} or more" if value < least else ""

    def _get_range(self) -> tuple[float | None, float]:
        """Return the least and the greatest number; a least of None means more than 0."""
        least, most = _RANGES[self.kind]
        if self.least is not None:
            least = self.least
        if self.most is not None:
            most = self.most
        return least, most

    @property
    def plain_help(self) -> str:
        """The help without Markdown, as a terminal shows it."""
        text = re.sub(r" \(\[[^]]+\]\([^)]+\)\)|`", "", self.help)
        return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def read_seconds(name: str, text: str) -> float:
    """Return a span of time such as `90`, `90s`, `30m`, `2h`, `7d` in seconds, more than 0.

    Raises:
        ConfigError: it is none; the message calls it `name`.
    """
    return float(Setting(name=name, kind=ValueKind.SECONDS, help="").judged(text))


def _convert(kind: ValueKind, value: Any, words: tuple[str, ...]) -> Any:
    """Return the value as this kind; text is read as Scrapy reads it.

    TypeError, ValueError, LookupError or OverflowError if it is none.
    """
    if kind is ValueKind.YES_NO:
        return _convert_yes_no(value)
    if kind in (ValueKind.LIST, ValueKind.FILES):
        return _convert_list(kind, value)
    if kind is ValueKind.MAPPING:
        return _convert_mapping(value)
    if kind is ValueKind.CHOICE and value not in words:
        raise ValueError
    if kind in (ValueKind.TEXT, ValueKind.CHOICE):
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError
        return os.fspath(value)
    if isinstance(value, str) and value in words:
        return value
    return _convert_number(kind, value)


def _convert_yes_no(value: Any) -> bool:
    if value not in (*_YES, *_NO):
        raise ValueError
    return value in _YES


def _convert_mapping(value: Any) -> dict[str, Any]:
    mapping = dict(json.loads(value) if isinstance(value, str) else value)
    # `dict` takes a list of pairs as well, which is no mapping.
    if isinstance(value, (list, tuple)):
        raise TypeError
    for key in mapping:
        if not isinstance(key, str):
            raise TypeError
    return mapping


def _convert_list(kind: ValueKind, value: Any) -> tuple[Any, ...]:
    entries: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple, set, frozenset)):
        raise TypeError
    for entry in entries:
        text = entry["path"] if kind is ValueKind.FILES else entry
        if not isinstance(text, (str, os.PathLike)):
            raise TypeError
    return tuple(entries)


def _convert_number(kind: ValueKind, value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    if kind is ValueKind.WHOLE:
        return _convert_whole_number(value)
    span = None
    if kind is ValueKind.SECONDS and isinstance(value, str):
        span = _SPAN.fullmatch(value.strip())
    number = float(span[1]) * _UNITS[span[2]] if span else float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _convert_whole_number(value: Any) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+(\.0)?\s*", str(value)):
        raise ValueError
    if "." in str(value):
        return int(float(value))
    return int(value)


def _group_digits(number: float) -> str:
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.16g}"


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        text = "a number without an end"
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"
