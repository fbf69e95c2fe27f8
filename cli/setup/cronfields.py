"""The five fields of a crontab line: checked as cron reads them, and translated for systemd's OnCalendar. No IO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from scrapyd_dist.errors import ConfigError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

#: cron's short forms
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field and the values that it stands for."""

    text: str
    values: tuple[int, ...]
    whole: bool  #: it stands for all values there are

    @property
    def starred(self) -> bool:
        """Whether cron takes it for "any": it looks at the first sign only, so `*/2` counts too."""
        return self.text.startswith("*")


@dataclass(frozen=True, kw_only=True)
class Times:
    """When something is to run."""

    text: str  #: the five fields, as a crontab has them
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    def on_calendar(self) -> list[str]:
        """The same for systemd: one expression, or two where either of two days will do."""
        months, clock = _list(self.month, 2), f"{_list(self.hour, 2)}:{_list(self.minute, 2)}:00"
        weekdays = "" if self.weekday.whole else f"{_weekdays(self.weekday.values)} "
        days = _list(self.day, 2)
        if not weekdays or self.day.whole or self.day.starred or self.weekday.starred:
            return [f"{weekdays}*-{months}-{days} {clock}"]
        # Of a day of the month and a day of the week, cron wants one of the two.
        return [f"*-{months}-{days} {clock}", f"{weekdays}*-{months}-* {clock}"]


def read(text: str) -> Times:
    """The times that five fields, or a short form such as @daily, stand for.

    Raises:
        ConfigError: cron would not take them; the text names the field.
    """
    fields = NICKNAMES.get(text.strip().lower(), text).split()
    if len(fields) != 5:
        raise ConfigError(
            f"{text!r} has {len(fields)} fields. A time of cron has five, in quotes: minute, hour, day of the month, "
            "month, day of the week; '0 6 * * *' is every day at six. Or one of: " + ", ".join(NICKNAMES) + "."
        )
    times = Times(
        text=" ".join(fields),
        minute=_field("minute", fields[0], 0, 59),
        hour=_field("hour", fields[1], 0, 23),
        day=_field("day of the month", fields[2], 1, 31),
        month=_field("month", fields[3], 1, 12, _MONTHS),
        weekday=_field("day of the week", fields[4], 0, 7, _DAYS),
    )
    _check_possible(times)
    return times


def _check_possible(times: Times) -> None:
    if not (times.weekday.whole or times.weekday.starred or times.day.starred):
        return
    if min(times.day.values) > max(_LONGEST[month - 1] for month in times.month.values):
        raise ConfigError(
            f"The day of the month {times.day.text!r} never comes in the month {times.month.text!r}: "
            "it would never run."
        )


def _field(name: str, text: str, first: int, last: int, words: tuple[str, ...] = ()) -> Field:
    found: set[int] = set()
    for part in text.split(","):
        found |= set(_part(name, text, part, first, last, words))
    if last == 7:
        found = {value % 7 for value in found}  # cron knows Sunday as 0 and as 7
    values = tuple(sorted(found))
    return Field(text=text, values=values, whole=len(values) == (7 if last == 7 else last - first + 1))


def _part(name: str, text: str, part: str, first: int, last: int, words: tuple[str, ...]) -> range:
    base, slash, step = part.partition("/")
    start, dash, end = base.partition("-")
    if base == "*":
        low, high = first, last if last != 7 else 6
    else:
        low = _value(name, text, start, first, last, words)
        high = _value(name, text, end, first, last, words) if dash else low
        if slash and not dash:
            raise _wrong(
                name, text, f"a step needs a range before it, as in {start}-{last}/{step or 2} or */{step or 2}"
            )
    if low > high:
        raise _wrong(name, text, f"{base} goes backwards")
    if slash and not (step.isascii() and step.isdigit() and int(step) > 0):
        raise _wrong(name, text, f"{step!r} is no step")
    return range(low, high + 1, int(step) if slash else 1)


def _value(name: str, text: str, value: str, first: int, last: int, words: tuple[str, ...]) -> int:
    if value.lower() in words:
        return words.index(value.lower()) + (1 if words is _MONTHS else 0)
    if not re.fullmatch(r"[0-9]{1,2}", value):
        known = f", or {words[0]} to {words[-1]}" if words else ""
        raise _wrong(name, text, f"{value!r} is no number from {first} to {last}{known}")
    if not first <= int(value) <= last:
        raise _wrong(name, text, f"{value} is not between {first} and {last}")
    return int(value)


def _wrong(name: str, text: str, why: str) -> ConfigError:
    return ConfigError(f"The {name} {text!r} is wrong: {why}. The five fields are minute, hour, day, month, weekday.")


def _list(field: Field, digits: int) -> str:
    if field.whole:
        return "*"
    return ",".join(
        f"{low:0{digits}d}" if low == high else f"{low:0{digits}d}..{high:0{digits}d}"
        for low, high in _runs(field.values)
    )


def _weekdays(values: tuple[int, ...]) -> str:
    # systemd's week begins on Monday, and ranges must not go backwards.
    ordered = tuple(sorted((value - 1) % 7 for value in values))
    names = [_DAYS[(value + 1) % 7].capitalize() for value in range(7)]
    return ",".join(names[low] if low == high else f"{names[low]}..{names[high]}" for low, high in _runs(ordered))


def _runs(values: tuple[int, ...]) -> list[tuple[int, int]]:
    """Values in order as runs without a gap; two neighbours stay apart."""
    cuts = [0, *(place for place, (a, b) in enumerate(pairwise(values), 1) if b != a + 1), len(values)]
    runs: list[tuple[int, int]] = []
    for begin, end in pairwise(cuts):
        if end - begin > 2:
            runs.append((values[begin], values[end - 1]))
        else:
            runs += [(value, value) for value in values[begin:end]]
    return runs
