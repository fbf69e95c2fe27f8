"""How fast a job gets on, by the lines of its log. Values only; memory is the same for any log.

The rule it keeps: what the log does not say is None, never 0.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapyd_dist.jobs.joblog import Line

#: seconds of a log that are enough to count by; below that, what Scrapy itself says of the last minute is better
ENOUGH = 5.0
#: seconds that a rate looks back
MINUTE = 60.0

_TOLD = re.compile(
    r"Crawled (?P<pages>\d{1,16}) pages \(at (?P<pages_rate>-?\d{1,16}) pages/min\),"
    r" scraped (?P<items>\d{1,16}) items \(at (?P<items_rate>-?\d{1,16}) items/min\)"
)
_ENGINE, _SCRAPER, _LOGSTATS = "scrapy.core.engine", "scrapy.core.scraper", "scrapy.extensions.logstats"
_BAD = frozenset({"ERROR", "CRITICAL"})


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Per minute."""

    pages: float | None = None
    items: float | None = None
    errors: float | None = None  #: lines of level ERROR and above


@dataclass(kw_only=True)
class LogCounts:
    """Counts the lines of one log as they are read on, from some place of it."""

    pages: int = 0  #: since it is read
    items: int = 0
    errors: int = 0
    detailed: bool = False  #: the log has lines of level DEBUG, so pages and items can be counted in it
    _first: datetime | None = None
    _told: tuple[int, int, int, int] | None = None  #: pages, pages per minute, items, items per minute, by Scrapy
    _before: tuple[int, int] = (0, 0)  #: pages and items that had been counted by then
    #: for each second of the log's last minute that has lines: the counts before it
    _seconds: deque[tuple[datetime, tuple[int, int, int]]] = field(default_factory=deque)

    def take(self, line: Line) -> None:
        """The next line."""
        if not line.head or line.at is None:
            return
        self._note(line.at)
        if line.level == "DEBUG":
            self.detailed = True
            self.pages += line.logger == _ENGINE and line.text.startswith("Crawled (", line.begins)
            self.items += line.logger == _SCRAPER and line.text.startswith("Scraped from ", line.begins)
        elif line.level in _BAD:
            self.errors += 1
        elif is_told(line) and (told := _TOLD.match(line.message)):
            self._told = int(told[1]), int(told[2]), int(told[3]), int(told[4])
            self._before = self.pages, self.items

    def _note(self, at: datetime) -> None:
        self._first = self._first or at
        if not self._seconds or at != self._seconds[-1][0]:
            self._seconds.append((at, (self.pages, self.items, self.errors)))
            while (at - self._seconds[0][0]).total_seconds() >= MINUTE or len(self._seconds) > 2 * MINUTE:
                self._seconds.popleft()

    @property
    def all_pages(self) -> int | None:
        """Pages since the job began; None where that cannot be told."""
        return None if self._told is None else self._told[0] + self.pages - self._before[0]

    @property
    def all_items(self) -> int | None:
        """Items since the job began; None where that cannot be told."""
        return None if self._told is None else self._told[2] + self.items - self._before[1]

    def rates(self, silent: float = 0.0) -> Rates:
        """The rates of the last minute.

        Args:
            silent: seconds since the last line.
        """
        if self._first is None:
            return Rates()
        if silent >= MINUTE:
            return Rates(pages=0.0, items=0.0, errors=0.0)
        last = self._seconds[-1][0]
        begins = last - timedelta(seconds=MINUTE - silent)
        before = next(counts for at, counts in self._seconds if at > begins or at == last)
        span = min(MINUTE, (last - self._first).total_seconds() + silent)
        pages, items, errors = (
            (now - then) * 60 / max(span, 1.0)
            for now, then in zip((self.pages, self.items, self.errors), before, strict=True)
        )
        # Its first word, at the very start, is always that there was nothing yet.
        if self.detailed and (span >= ENOUGH or self._told is None or not self._told[0]):
            return Rates(pages=pages, items=items, errors=errors)
        if self._told is None:
            return Rates(errors=errors)
        return Rates(pages=max(0.0, float(self._told[1])), items=max(0.0, float(self._told[3])), errors=errors)


def is_told(line: Line) -> bool:
    """Whether Scrapy says in this line how far it is, as it does each minute."""
    return line.head and line.logger == _LOGSTATS and line.text.startswith("Crawled ", line.begins)
