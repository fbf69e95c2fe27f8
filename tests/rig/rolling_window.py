"""Moments against a limit: how many lie in a rolling window, and how far apart they are.

The rule it keeps: moments are compared as whole microseconds, so that one exactly a window later is outside of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECOND = 1_000_000


def _micros(moments: Iterable[float]) -> list[int]:
    return sorted(round(moment * _SECOND) for moment in moments)


def most_in_window(moments: Iterable[float], window: float) -> int:
    """The most moments in any half-open window of so many seconds, wherever it begins."""
    known, width = _micros(moments), round(window * _SECOND)
    most = first = 0
    for last, moment in enumerate(known):
        while moment - known[first] >= width:
            first += 1
        most = max(most, last - first + 1)
    return most


def part_apart(moments: Iterable[float], least: float) -> float:
    """The part of the gaps between moments that are `least` seconds or longer; 1 where there is no gap."""
    gaps = [later - earlier for earlier, later in pairwise(_micros(moments))]
    return sum(gap >= round(least * _SECOND) for gap in gaps) / len(gaps) if gaps else 1.0
