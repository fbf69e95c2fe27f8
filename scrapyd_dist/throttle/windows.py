"""Computes the next permits of a key: the arithmetic of rolling windows, in whole microseconds. No clock, no IO.

Invariant: grants never break the terms, whatever was granted or returned before, and are the earliest that keep them.
Part of the worker half: imports the standard library only. store/script/6_windows.lua is the same in Lua; a test
compares the two.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECOND = 1_000_000
#: minimum time for which a grant is kept; a page returned later is not credited
REMEMBERED = 60 * SECOND
#: earlier than any time
NEVER = -(1 << 62)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The limits on the grants of a key; times in microseconds."""

    hits: int = 0  #: maximum grants in any `window`; 0: only the gap applies, as if the hits are spread evenly
    window: int = 0
    gap: int = 1  #: minimum time between two grants; never 0, so that each grant has its own time
    apart: int = 0  #: minimum time between a grant of this key and one of another key of the domain

    @property
    def memory(self) -> int:
        """How long grants are kept: longer than they count, so that stricter terms can still be applied to them."""
        return max(2 * self.window, 2 * self.gap, REMEMBERED)

    def counted(self, count: int) -> tuple[int, int]:
        """Return how many earlier grants bound the next `count`, and how many of the latest to skip before them."""
        some = min(count, self.hits)
        return some, self.hits - some


def moments(
    count: int, start: int, near: Iterable[int], back: Iterable[int], terms: Terms, others: Sequence[int] = ()
) -> list[int]:
    """Return the earliest times for `count` more grants, in order.

    Args:
        count: number of grants.
        start: the earliest allowed time.
        near: grants later than `start - terms.gap`, in order.
        back: the grants that `terms.counted(count)` selects, in order; fewer if there are not as many.
        terms: the limits.
        others: grants of the domain's other keys later than `start - terms.apart`, in order.
    """
    near, back, given = list(near), list(back), []
    back = [NEVER] * (terms.counted(count)[0] - len(back)) + back
    for at in range(count):
        if terms.hits:
            start = max(start, back[at] + terms.window)
        start = _clear_of_all(near, others, start, terms)
        insort(near, start)
        insort(back, start)
        given.append(start)
    return given


def _clear_of_all(near: Sequence[int], others: Sequence[int], moment: int, terms: Terms) -> int:
    while True:
        own = _clear_of(near, moment, terms.gap)
        moment = _clear_of(others, own, terms.apart)
        if moment == own:
            return moment


def _clear_of(grants: Sequence[int], moment: int, gap: int) -> int:
    """Return the earliest time from `moment` on that is at least `gap` away from every grant."""
    for at in range(bisect_right(grants, moment - gap), len(grants)):
        if grants[at] - moment >= gap:
            break
        moment = grants[at] + gap
    return moment
