"""How fast counts grow, over the last seconds. Values only: the clock is handed in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: seconds that a rate looks back
WINDOW = 30.0
#: looks that are kept for it, at most
KEPT = 60


@dataclass(kw_only=True)
class Pace:
    """How fast some counts grow; they are added together, and always in the same order."""

    window: float = WINDOW
    _seen: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)
    _last: tuple[float, tuple[float, ...]] | None = None

    def add(self, now: float, *counts: float) -> None:
        """What has been counted up to this moment."""
        self._last = now, counts
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds that the rates are taken over; 0 when nothing can be told yet."""
        return self._last[0] - self._seen[0][0] if self._last and self._seen else 0.0

    def rates(self) -> tuple[float, ...]:
        """Each count's growth per second, never below 0: what failed and is done again is no step back."""
        if self._last is None:
            return ()
        (_, before), (_, after), span = self._seen[0], self._last, self.span
        return tuple(max(0.0, (b - a) / span) if span > 0 else 0.0 for a, b in zip(before, after, strict=True))
