"""Moments against a limit: how many lie in a rolling window, how far apart they are, how many there are in a second.

The rule it keeps: moments are compared as whole microseconds, so that one exactly a window later is outside of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


def within(moments: Iterable[float], begin: float, seconds: float) -> list[float]:
    """Those of the `seconds` from `begin` on, in order; the end itself is outside."""
    return sorted(
        moment
        for moment in moments
        if 0 <= round((moment - begin) * _SECOND) < round(seconds * _SECOND)
    )


def part_apart(moments: Iterable[float], least: float) -> float:
    """The part of the gaps between moments that are `least` seconds or longer; 1 where there is no gap."""
    gaps = [later - earlier for earlier, later in pairwise(_micros(moments))]
    return sum(gap >= round(least * _SECOND) for gap in gaps) / len(gaps) if gaps else 1.0


def percentile(values: Sequence[float], part: float) -> float:
    """The least of the values that is not below so many of them; 0 where there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def per_second(
    moments: Iterable[float], begin: float, seconds: float, *, step: float = 0.5
) -> list[float]:
    """The rate in each `step` of the `seconds` from `begin` on."""
    counts = [0] * round(seconds / step)
    for moment in within(moments, begin, len(counts) * step):
        counts[min(len(counts) - 1, int((moment - begin) / step))] += 1
    return [count / step for count in counts]
