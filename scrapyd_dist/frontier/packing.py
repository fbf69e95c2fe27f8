"""Makes new batches of requests: to be added, to take the place of a batch, or to halve it."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.payload import RequestValue, decode, fit


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
