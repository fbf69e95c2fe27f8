"""What verbs hand to every engine, and what these do alike: fingerprints, which slots, which batches first. No IO."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scrapyd_dist.batches import OUT, Attempt, AttemptState, BatchState, Miss, job_id
from scrapyd_dist.errors import StepRefused, StoreError
from scrapyd_dist.frontier.backlog import Lessee, NewBatch, SlotCount

#: the length of a fingerprint is kept in one byte
_LONGEST = 255
#: seconds for which a worker that found all slots taken counts when they are shared
HUNGRY = 5.0


@dataclass(frozen=True)
class AttemptMove:
    """A step of a batch's current attempt, and of the batch with it, with the changes of their rows."""

    crawl: str
    batch: int
    number: int
    to: AttemptState
    changes: Mapping[str, Any] = field(default_factory=dict)
    batch_to: BatchState | None = None
    batch_changes: Mapping[str, Any] = field(default_factory=dict)
    misses: Sequence[Miss] = ()
    new: Sequence[NewBatch] = ()  #: batches that are added in the same step
    counts: Mapping[str, int] = field(default_factory=dict)  #: what is added to the account
    holder: str | None = None  #: only for the holder of the lease, if one is named
    out: bool = False  #: only an attempt that is not acked


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    """What one worker wants of a crawl's batches; `QueueStore.lease_next` says what each means."""

    crawl: str
    lessee: Lessee
    slots: tuple[str, ...]
    seconds: float
    limit: int
    fair: bool
    alone: bool  #: what it takes from is its own from then on
    enough: set[str]  #: grows as one slot after the other has its turn
    now: float

    def attempt_at(self, batch: int, number: int) -> Attempt:
        """The attempt that the worker's lease of a batch opens."""
        job, lessee = job_id(self.crawl, batch, number), self.lessee
        return Attempt(
            batch=batch, number=number, job=job, node=lessee.node, url=lessee.url, state=AttemptState.RUNNING,
            sent_at=self.now, worker=lessee.job,
        )  # fmt: skip


def joined(prints: Iterable[bytes]) -> bytes:
    """Fingerprints as they are kept with a batch: one after the other, each behind its length."""
    return b"".join(bytes((len(one),)) + one for one in prints)


def parted(prints: bytes) -> list[bytes]:
    """The same, back."""
    found, at = [], 0
    while at < len(prints):
        end = at + 1 + prints[at]
        found.append(prints[at + 1 : end])
        at = end
    return found


def prints_of(new: Iterable[NewBatch]) -> list[bytes]:
    """All fingerprints of what is about to be added; `StoreError` when one is there twice, or cannot be kept."""
    prints = [one for batch in new for one in batch.fingerprints]
    if len(set(prints)) < len(prints):
        raise StoreError("two of the requests that are to be added to a frontier have the same fingerprint")
    if max(map(len, prints), default=0) > _LONGEST:
        raise StoreError(f"a fingerprint can have {_LONGEST} bytes at most")
    return prints


def handed_down(whole: Sequence[bytes], size: int, parts: Sequence[NewBatch]) -> list[tuple[bytes, ...]]:
    """The fingerprints of each part of a batch of `size`: its own, else those of the batch, in its order.

    Where some requests of the batch have none, it cannot be told whose they are, unless it stays in one piece.
    """
    if any(part.fingerprints for part in parts):
        return [part.fingerprints for part in parts]
    if len(parts) == 1:
        return [tuple(whole)]
    if len(whole) != size:
        return [() for _ in parts]
    rest = iter(whole)
    return [tuple(islice(rest, part.size)) for part in parts]


def slot_counts(rows: Iterable[tuple[str, str, int, int]]) -> list[SlotCount]:
    """The slots by name, from rows of slot, state, batches and requests."""
    batches: dict[str, dict[str, int]] = defaultdict(dict)
    requests: dict[str, dict[str, int]] = defaultdict(dict)
    for slot, state, number, size in rows:
        batches[slot][state], requests[slot][state] = number, size
    return [SlotCount(slot=slot, batches=batches[slot], requests=requests[slot]) for slot in sorted(batches)]


def lost_lease(batch: int, attempt: int, holder: str) -> StepRefused:
    return StepRefused(f"{holder} does not hold attempt {attempt} of batch {batch}: it is over, or another worker's")


def over(batch: int, attempt: int, current: object) -> StepRefused:
    return StepRefused(f"attempt {attempt} of batch {batch} is over; attempt {current} is the one that counts")


def check_not_out(number: int, state: BatchState) -> None:
    """Raise `StepRefused` for a batch that a worker has."""
    if state in OUT:
        raise StepRefused(f"batch {number} is out: a worker has it. It can be removed when that has ended")


def check_done(batch: int, state: BatchState) -> None:
    """Raise `StepRefused` unless a batch is done."""
    if state is not BatchState.DONE:
        raise StepRefused(f"batch {batch} is {state.value}; only a batch that is done has failed requests to retry")


def check_parts(batch: int, size: int, parts: Iterable[NewBatch]) -> None:
    """Raise `StoreError` unless the parts of a split batch have its requests, no more and no fewer."""
    sizes = [part.size for part in parts]
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise StoreError(f"batch {batch} has {size} requests; it cannot be split into parts of {sizes}")
