"""Growth rates of what is counted of a job, a node or a crawl, and how people see them. No IO.

People see every rate per minute, as in Scrapy's own log; documents say their unit in a name.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

#: length of the window in seconds
WINDOW = 30.0
#: maximum number of samples per window
KEPT = 60
#: what is counted of the work of jobs, also of attempts that failed later: requests that ended,
#: pages, items, and requests that failed
COUNTS = ("requests", "pages", "items", "failed")


def rate_number(per_minute: float) -> str:
    """Return a rate as the number below a heading `/min`: `1,234`, `0.4`, `0`."""
    if per_minute >= 10 or not per_minute:
        return f"{per_minute:,.0f}"
    return f"{per_minute:.2g}"


def describe_rate(per_minute: float) -> str:
    """Return a rate as it stands in a line: `1,234/min`, `0.4/min`, `0/min`."""
    return f"{rate_number(per_minute)}/min"


@dataclass(kw_only=True)
class Rate:
    """Growth rates of the `COUNTS` of a job, a node or a crawl."""

    window: float = WINDOW  #: seconds
    #: (time, counts) of the samples in the window, oldest first, and one from before it
    _seen: deque[tuple[float, Counter[str]]] = field(default_factory=deque)
    _last: tuple[float, Counter[str]] | None = None  #: the latest counts, sampled or not

    def add(self, now: float, counts: Counter[str]) -> None:
        """Record the counts at this time; the caller must not change them later."""
        self._last = (now, counts)
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds between the samples of which the rates are computed; 0 before the second one."""
        if not self._last or not self._seen:
            return 0.0
        first_time, _ = self._seen[0]
        last_time, _ = self._last
        return last_time - first_time

    def rates(self) -> dict[str, float]:
        """Return the growth per second of each count.

        It is never below 0, although a retry may decrease a count.
        """
        if self._last is None or self.span <= 0:
            return dict.fromkeys(COUNTS, 0.0)
        _, before = self._seen[0]
        _, after = self._last
        return {name: max(0.0, (after[name] - before[name]) / self.span) for name in COUNTS}
