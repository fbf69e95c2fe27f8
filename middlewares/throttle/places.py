"""How many permits this process may have open at once: those that it is being given, and those that are due.

The rule it keeps: no more are asked for than can leave before they are too old. Part of the worker half: imports Scrapy
for types only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .room import Room

#: seconds over which it is counted how many requests leave
SPAN = 1.0
#: seconds for which permits are asked for ahead of the engine's room, beside those that an answer of the store takes:
#: less than a permit is good for
LEAD = 0.1
#: seconds that an answer takes, at most, as far as permits are asked for ahead
LONGEST_ANSWER = 1.0
#: as many at once, where the engine has enough to do: one question for many costs as much as one for one
TOGETHER = 10
#: open at most, as long as it is not known that more of them leave in time: a free engine takes all at once, but what
#: is on its way there takes its time, too
FEW = 16


class Places:
    """The places of one process.

    Args:
        room: of its engine.
        clock: seconds, never turned back.
    """

    def __init__(self, room: Room, clock: Callable[[], float]) -> None:
        self._room, self._clock = room, clock
        self._since, self._left, self._rate = clock(), 0, 0.0
        self._lead = LEAD

    def saw(self) -> None:
        """A request leaves the queue."""
        self._turn()
        self._left += 1

    def took(self, seconds: float) -> None:
        """An answer of the store took so long."""
        self._lead = LEAD + min(seconds, LONGEST_ANSWER)

    def free(self, open_now: int) -> int:
        """How many more permits are to be asked for now; 0 also where it is better to wait for a few more."""
        self._turn()
        room, ahead = max(0, self._room.of_engine), int(self._rate * self._lead)
        free = min(room + ahead, max(FEW, ahead)) - open_now
        return free if open_now < room or free >= min(TOGETHER, max(1, ahead // 2)) else 0

    def _turn(self) -> None:
        """Once in a while, what was counted is the rate."""
        now = self._clock()
        if now - self._since >= SPAN:
            self._rate, self._left, self._since = self._left / (now - self._since), 0, now
