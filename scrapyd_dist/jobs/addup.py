"""Adds up the stats of many jobs: numbers are summed, other values are counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: maximum number of distinct values counted per stat
VALUES_MAX = 20
#: stats of which only the first and last value are kept
_TIMES = frozenset({"start_time", "finish_time"})


@dataclass(kw_only=True)
class Sum:
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


def add_up(stats: Iterable[Mapping[str, Any]]) -> dict[str, Sum]:
    """Add up each stat over all jobs; returns name -> sum, sorted by name.

    Args:
        stats: the stats of each job, as Scrapy collects them.
    """
    sums: dict[str, Sum] = {}
    for one in stats:
        for name, value in one.items():
            found = sums.setdefault(name, Sum())
            if name in _TIMES:
                found.add_time(value)
            else:
                found.add(value)
    return dict(sorted(sums.items()))
