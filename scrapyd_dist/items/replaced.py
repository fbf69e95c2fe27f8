"""Which items count no more: those of requests that failed, were tried again, and whose later try came home.

The rule it keeps: nothing is left out before the attempt that has it anew is accepted, and only what a request yielded
that had failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Attempt

#: runs of items in a part or feed: the number of the first, from 0, and how many there are; in order
Runs = list[tuple[int, int]]

#: in the kept report: rows of a missed request's place in its batch, its kind, and its runs (None: not known)
MISSED = "missed_requests"
#: in the kept report: pairs of a batch and a place in it, whose requests this attempt has tried again
AGAIN = "replaces"


def places(report: Mapping[str, Any]) -> dict[int, Runs | None]:
    """Place of a failed request in its batch -> where its items are; None where that is not known."""
    return {
        place: None if runs is None else [(first, count) for first, count in runs]
        for place, _, runs in report.get(MISSED) or ()
    }


def left_out(accepted: Iterable[Attempt]) -> dict[int, Runs]:
    """Batch -> what of its accepted attempt's items is left out.

    Args:
        accepted: the accepted attempts of a crawl, all of them.
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
    """How many items there are in them."""
    return sum(count for _, count in runs)


def without(lines: Iterator[tuple[int, bytes]], runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """The lines, each behind its number, but those of items in these runs; an empty line is no item."""
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
