"""Computes growth rates of counts over a sliding window; the caller passes the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: length of the window in seconds
WINDOW = 30.0
#: maximum number of samples per window
KEPT = 60


@dataclass(kw_only=True)
class Pace:
    """Growth rates of several counts, which are always added together and in the same order."""

    window: float = WINDOW
    _seen: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)
    _last: tuple[float, tuple[float, ...]] | None = None

    def add(self, now: float, *counts: float) -> None:
        """Record the counts at this time."""
        self._last = now, counts
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds between the samples that the rates are computed from; 0 before the second sample."""
        return self._last[0] - self._seen[0][0] if self._last and self._seen else 0.0

    def rates(self) -> tuple[float, ...]:
        """Return the growth per second of each count, never below 0, although a retry may decrease a count."""
        if self._last is None:
            return ()
        (_, before), (_, after), span = self._seen[0], self._last, self.span
        return tuple(max(0.0, (b - a) / span) if span > 0 else 0.0 for a, b in zip(before, after, strict=True))
