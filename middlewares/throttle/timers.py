"""Clocks and timers of the throttle: the store's clock, one timer for many moments, and calls beside the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .domain_queue import DomainQueue

#: seconds for which a comparison of the two clocks is good: they drift
FRESH = 10.0


#: seconds by which an answer seems to come later than others where the store's clock was set back, or the store is slow
SET_BACK = 0.1


class ClockOffset:
    """Compares the two clocks at each answer of the store.

    An answer comes later than the store has looked at its clock, by a time that nobody knows: of several comparisons
    the one with the least delay is the best. Before the first one, every moment is too far away to come.
    """

    def __init__(self) -> None:
        self._least = math.inf  #: our clock less the store's, since `_since`
        self._before = math.inf  #: the same of the time before that
        self._since = -math.inf

    @property
    def _offset(self) -> float:
        return min(self._least, self._before)

    def saw(self, received: float, said: float) -> None:
        """The store has said that its clock is at `said`, in an answer that was here at `received` by our clock."""
        offset = received - said
        if offset > self._offset + SET_BACK:
            self._before, self._least, self._since = math.inf, offset, received
        elif received - self._since > FRESH:
            self._before, self._least, self._since = self._least, offset, received
        else:
            self._least = min(self._least, offset)

    def ours(self, moment: float) -> float:
        """A moment of the store's clock, by ours."""
        return moment + self._offset

    def stores(self, moment: float) -> float:
        """A moment of our clock, by the store's."""
        return moment - self._offset


T = TypeVar("T")


async def beside(work: Callable[[], T], unwanted: Callable[[T], object]) -> T:
    """What a blocking call gives.

    Args:
        work: the call; it raises nothing.
        unwanted: called with its answer where the answer comes too late.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def take(found: T) -> None:
        if answer.done():
            unwanted(found)
        else:
            answer.set_result(found)

    def run() -> None:
        found = work()
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(take, found)

    threading.Thread(target=run, name="sdist-beside", daemon=True).start()
    return await answer


class Timers:
    """One alarm for each line, the earliest that was set.

    Args:
        ring: is called with all lines whose moment has come.
        clock: seconds, by the same clock as the moments.
    """

    def __init__(self, ring: Callable[[list[DomainQueue]], None], clock: Callable[[], float]) -> None:
        self._ring, self._clock = ring, clock
        self._heap: list[tuple[float, int, DomainQueue]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, line: DomainQueue, moment: float | None) -> None:
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
