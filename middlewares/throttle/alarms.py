"""When which line is to be looked at again: many moments, one timer.

Part of the worker half: the standard library only.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lines import Line


class Alarms:
    """One alarm for each line, the earliest that was set.

    Args:
        ring: is called with all lines whose moment has come.
        clock: seconds, by the same clock as the moments.
    """

    def __init__(self, ring: Callable[[list[Line]], None], clock: Callable[[], float]) -> None:
        self._ring, self._clock = ring, clock
        self._heap: list[tuple[float, int, Line]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, line: Line, moment: float | None) -> None:
        """Look at the line at this moment, if no earlier one is set."""
        if moment is None or (line.alarm is not None and line.alarm <= moment):
            return
        line.alarm = moment
        heapq.heappush(self._heap, (moment, next(self._numbers), line))
        if self._heap[0][0] == moment:
            self._set_timer()

    def cancel(self) -> None:
        """Ring no more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, self._heap[0][0] - self._clock())
        self._timer = asyncio.get_event_loop().call_later(delay, self.look)

    def look(self) -> None:
        """Ring for what has come."""
        now, due = self._clock(), []
        while self._heap and self._heap[0][0] <= now:
            moment, _, line = heapq.heappop(self._heap)
            if line.alarm == moment:  # else it was set to an earlier one since, and has rung
                line.alarm = None
                due.append(line)
        if self._heap:
            self._set_timer()
        if due:
            self._ring(due)
