"""The moments of the store's clock by this process's own; the rule it keeps: a permit may be used late, never early.

Part of the worker half: the standard library only.
"""

from __future__ import annotations

import math

#: seconds for which a comparison of the two clocks is good: they drift
FRESH = 10.0
#: seconds by which an answer seems to come later than others where the store's clock was set back, or the store is slow
SET_BACK = 0.1


class Moments:
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
