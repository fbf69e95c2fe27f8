"""Finds the items to leave out because their requests failed and a retry of them was accepted.

Invariant: an item is left out only if its request had failed and the attempt that retried it is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Attempt

#: runs of items in a part or feed, in order: (index of the first item, count)
Runs = list[tuple[int, int]]

#: report key: a row per missed request: its index in the batch, the kind of miss, its runs of items (None: unknown)
MISSED = "missed_requests"
#: report key: (batch, index in it) of each request that this attempt has retried
AGAIN = "replaces"


def places(report: Mapping[str, Any]) -> dict[int, Runs | None]:
    """Return the index of each failed request in its batch -> the runs of its items, None if unknown."""
    return {
        place: None if runs is None else [(first, count) for first, count in runs]
        for place, _, runs in report.get(MISSED) or ()
    }


def left_out(accepted: Iterable[Attempt]) -> dict[int, Runs]:
    """Return batch -> runs of items to leave out of its accepted attempt.

    Args:
        accepted: all accepted attempts of a crawl.
    """
    attempts = {attempt.batch: attempt for attempt in accepted}
    again: dict[int, set[int]] = {}
    for attempt in attempts.values():
        for batch, place in attempt.report.get(AGAIN) or ():
            again.setdefault(batch, set()).add(place)
    found = {}
    for batch in again.keys() & attempts.keys():
        known = places(attempts[batch].report)
        runs = sorted(run for place in again[batch] for run in known.get(place) or ())
        if runs:
            found[batch] = runs
    return found


def number(runs: Iterable[tuple[int, int]]) -> int:
    """Return the number of items in these runs."""
    return sum(count for _, count in runs)


def without(lines: Iterator[tuple[int, bytes]], runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines except those of items in these runs; a blank line is not an item."""
    rest = iter(runs)
    first, count = next(rest, (None, 0))
    place = -1
    for line in lines:
        if line[1].strip():
            place += 1
            while first is not None and place >= first + count:
                first, count = next(rest, (None, 0))
            if first is not None and place >= first:
                continue
        yield line
