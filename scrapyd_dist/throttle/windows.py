"""When the next permits of a key may be used: the arithmetic of rolling windows.

The rule it keeps: what is given out never breaks the terms, whatever was given out or handed back before, and nothing
earlier would have kept them. Whole microseconds; no clock, no IO. Part of the worker half: the standard library only.
(store/script/6_windows.lua says the same in Redis' language; a test holds both to each other.)
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECOND = 1_000_000
#: for how long a grant is kept at least; who hands back a page later than this hands back nothing
REMEMBERED = 60 * SECOND
#: a moment before all others
NEVER = -(1 << 62)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the grants of a key keep to, at one moment; all in microseconds, but the hits."""

    hits: int = 0  #: grants in any `window`; 0: only the gap counts, as where the hits are spread evenly
    window: int = 0
    gap: int = 1  #: between any two; never 0, so that each grant has a moment of its own
    apart: int = 0  #: between one of this key and one of any other key of the domain

    @property
    def memory(self) -> int:
        """For how long grants are kept: longer than they count, so that terms which get harder find some."""
        return max(2 * self.window, 2 * self.gap, REMEMBERED)

    def counted(self, count: int) -> tuple[int, int]:
        """Which earlier grants bound the next `count`: so many, and how many later ones are skipped; from the end."""
        some = min(count, self.hits)
        return some, self.hits - some


def moments(
    count: int, start: int, near: Iterable[int], back: Iterable[int], terms: Terms, others: Sequence[int] = ()
) -> list[int]:
    """The earliest moments for `count` more grants, in order.

    Args:
        count: how many.
        start: none of them is earlier.
        near: the grants later than `start - terms.gap`, in order.
        back: those that `terms.counted(count)` names, in order; fewer, where there are not so many.
        terms: what they keep to.
        others: the grants of the domain's other keys later than `start - terms.apart`, in order.
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
    """The earliest moment, from this one on, that is a gap away from all grants on either side."""
    for at in range(bisect_right(grants, moment - gap), len(grants)):
        if grants[at] - moment >= gap:
            break
        moment = grants[at] + gap
    return moment
