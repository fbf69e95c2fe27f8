"""Packs requests into new batches: those that were found, or that take the place of a batch.

Invariant: of the requests that are added, those that the frontier has seen are counted as
duplicates, and all others are added in one step. Part of the worker half: imports the standard
library only.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import TypeVar

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.payload import RequestValue, decode, fit

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierIntake:
    """A request to be added to a frontier."""

    value: RequestValue
    fingerprint: bytes
    slot: str = ""
    priority: int = 0


def pack(found: Sequence[FrontierIntake], *, size: int, key: bytes | None) -> list[NewBatch]:
    """Pack requests into batches of one slot and priority.

    A batch has at most `size` requests, fewer if they encode large.

    Raises:
        TooLarge: a single request does not fit into a batch.
        PayloadError: a request must be encrypted, and there is no key.
    """
    batches: list[NewBatch] = []
    place = attrgetter("slot", "priority")
    for _, group in groupby(sorted(found, key=place), key=place):
        requests = list(group)
        for start in range(0, len(requests), size):
            batches += _seal(requests[start : start + size], key)
    return batches


def pack_cuts(cuts: Iterable[Sequence[FrontierIntake]], *, key: bytes | None) -> list[NewBatch]:
    """Return each cut, of one slot and priority, as a batch; in the order of `pack`.

    A cut becomes more than one batch if it encodes too large. Raises as `pack`.
    """
    batches: list[NewBatch] = []
    for cut in sorted(cuts, key=lambda cut: (cut[0].slot, cut[0].priority)):
        batches += _seal(cut, key)
    return batches


def _seal(requests: Sequence[FrontierIntake], key: bytes | None) -> list[NewBatch]:
    """Return requests of one slot and priority as a batch that is sealed now."""
    return make_batches(
        [request.value for request in requests],
        key=key,
        slot=requests[0].slot,
        priority=requests[0].priority,
        fingerprints=[request.fingerprint for request in requests],
        sealed_at=time.time(),
    )


def add_unseen(
    add: Callable[[Sequence[NewBatch], Mapping[str, int]], T],
    found: Iterable[FrontierIntake],
    *,
    size: int,
    key: bytes | None,
    counts: Mapping[str, int] | None = None,
) -> tuple[T, dict[str, int]]:
    """Add the requests that the frontier does not have yet, and count all of them.

    `add` stores batches and counts in one step, or raises `SeenBefore`: it calls the store's
    `add_batches` or `ack`. `counts` are those of requests that were filtered out earlier. Of
    requests with the same fingerprint, the first is added, in batches of at most `size`. Returns
    the result of `add`, and the counts that it stored, including `sealed` and `duplicate`.
    """
    return _add_unseen(
        add, [list(found)], lambda left: pack(left[0], size=size, key=key), counts or {}
    )


def add_unseen_cuts(
    add: Callable[[Sequence[NewBatch], Mapping[str, int]], T],
    cuts: Iterable[Sequence[FrontierIntake]],
    *,
    key: bytes | None,
    counts: Mapping[str, int],
) -> tuple[T, dict[str, int]]:
    """Add requests as `add_unseen` does, each cut of one slot and priority as a batch."""
    return _add_unseen(add, cuts, lambda left: pack_cuts(filter(None, left), key=key), counts)


def _add_unseen(
    add: Callable[[Sequence[NewBatch], Mapping[str, int]], T],
    groups: Iterable[Sequence[FrontierIntake]],
    pack_groups: Callable[[list[list[FrontierIntake]]], list[NewBatch]],
    counts: Mapping[str, int],
) -> tuple[T, dict[str, int]]:
    """Add what is new of these groups of requests, which `pack_groups` makes batches of."""
    left: list[list[FrontierIntake]] = []
    found = 0
    seen: set[bytes] = set()
    for group in groups:
        found += len(group)
        left.append(_without(group, seen))
        seen.update(request.fingerprint for request in group)
    while True:
        kept = sum(map(len, left))
        sums = dict(counts)
        sums["sealed"] = sums.get("sealed", 0) + kept
        sums["duplicate"] = sums.get("duplicate", 0) + found - kept
        sums = {name: number for name, number in sums.items() if number}
        try:
            return add(pack_groups(left), sums), sums
        except SeenBefore as error:
            left = [_without(group, error.prints) for group in left]


def _without(requests: Iterable[FrontierIntake], prints: Collection[bytes]) -> list[FrontierIntake]:
    """Return the requests whose fingerprints are not these, the first one of each fingerprint."""
    first: dict[bytes, FrontierIntake] = {}
    for request in requests:
        if request.fingerprint not in prints:
            first.setdefault(request.fingerprint, request)
    return list(first.values())


def make_batches(
    values: Sequence[RequestValue],
    *,
    key: bytes | None,
    slot: str = "",
    priority: int = 0,
    fingerprints: Iterable[bytes] = (),
    sealed_at: float = 0.0,
) -> list[NewBatch]:
    """Return these requests as one batch, or as several if they encode too large for one job.

    `fingerprints` are those of the requests, in their order; without any, the store may be given
    the same requests twice. `sealed_at` is in seconds since the epoch.

    Raises:
        TooLarge: a single request does not fit into a batch.
        PayloadError: a request must be encrypted, and there is no key.
    """
    prints = iter(fingerprints)
    batches = []
    for piece, payload in fit(values, key=key):
        batch = NewBatch(
            payload=payload,
            size=len(piece),
            slot=slot,
            priority=priority,
            fingerprints=tuple(islice(prints, len(piece))),
            sealed_at=sealed_at,
        )
        batches.append(batch)
    return batches


def make_batches_like(
    batch: Batch, values: Sequence[RequestValue], *, key: bytes | None
) -> list[NewBatch]:
    """Return new batches of these requests, in the slot of the given one."""
    return make_batches(values, key=key, slot=batch.slot, priority=batch.priority)


def halve_batch(batch: Batch, payload: Mapping[str, str], *, key: bytes | None) -> list[NewBatch]:
    """Return the two halves of a batch; more if one does not fit into one job."""
    values = decode(payload.get, key=key)
    middle = (len(values) + 1) // 2
    first_half = make_batches_like(batch, values[:middle], key=key)
    return first_half + make_batches_like(batch, values[middle:], key=key)


def move_batch(batch: Batch, payload: Mapping[str, str], slot: str) -> NewBatch:
    """Return a batch of the same requests, in another slot."""
    return NewBatch(payload=payload, size=batch.size, slot=slot, priority=batch.priority)
