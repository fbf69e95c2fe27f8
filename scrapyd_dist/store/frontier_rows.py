"""What verbs hand to every engine, and what these do alike: fingerprints, which slots, which batches first. No IO."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scrapyd_dist.batches import OUT, Attempt, AttemptState, Batch, BatchState, Miss, check_step
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import NewBatch, SlotCount
from scrapyd_dist.strategy.links import LinkEvent

#: the length of a fingerprint is kept in one byte
_LONGEST = 255
#: seconds for which a worker that found all slots taken counts when they are shared
HUNGRY = 5.0


@dataclass(frozen=True)
class BatchStep:
    """What is changed of a crawl's batches, all of it or nothing, and what has to hold for it."""

    crawl: str
    batch: int = 0  #: the one that changes, if any
    attempt: int = 0  #: its current attempt, if that changes as well, or the one that is opened
    to: AttemptState | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    batch_to: BatchState | None = None
    batch_changes: Mapping[str, Any] = field(default_factory=dict)
    holder: str | None = None  #: only for the holder of the lease, if one is named
    out: bool = False  #: only an attempt that is not acked
    opened: Attempt | None = None  #: a new attempt of the batch
    misses: Sequence[Miss] = ()  #: to be added
    retried: Sequence[
        Miss
    ] = ()  #: misses of the batch, which is done, to be removed; each of them has to be there
    new: Sequence[NewBatch] = ()  #: to be added
    unseen: bool = False  #: only if none of their fingerprints are there, which are added then
    prints: Iterable[bytes] = ()  #: fingerprints to be added, if they are not there
    dropped: bool = False  #: the batch, which is not out, is removed
    forget: bool = False  #: with its fingerprints
    counts: Mapping[str, int] = field(default_factory=dict)  #: to be added to the account
    events: Sequence[LinkEvent] = ()  #: to be kept for the crawl's strategy


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
        raise StoreError(
            "two of the requests that are to be added to a frontier have the same fingerprint"
        )
    if max(map(len, prints), default=0) > _LONGEST:
        raise StoreError(f"a fingerprint can have {_LONGEST} bytes at most")
    return prints


def handed_down(
    whole: Sequence[bytes], size: int, parts: Sequence[NewBatch]
) -> list[tuple[bytes, ...]]:
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
    return [
        SlotCount(slot=slot, batches=batches[slot], requests=requests[slot])
        for slot in sorted(batches)
    ]


def check_rows(step: BatchStep, row: Batch, old: AttemptState | None) -> None:
    """Raise what the batch's row, and the state of the attempt, say against the step."""
    batch, what = step.batch, f"attempt {step.attempt} of batch {step.batch}"
    if step.to is not None:
        if old is None:
            raise NothingMatched(f"crawl {step.crawl} has no {what}.")
        if step.out and old is AttemptState.ACKED:
            raise StepRefused(f"{what} was acked meanwhile")
        check_step(old, step.to)
        if step.attempt != row.attempts:
            raise StepRefused(f"{what} is over; attempt {row.attempts} is the one that counts")
    if step.opened is not None and old is not None:
        check_step(old, step.opened.state)
    if step.batch_to is not None:
        check_step(row.state, step.batch_to)
    if step.dropped and row.state in OUT:
        raise StepRefused(
            f"batch {batch} is out: a worker has it. It can be removed when that has ended"
        )
    if step.retried and row.state is not BatchState.DONE:
        raise StepRefused(
            f"batch {batch} is {row.state.value}; only a batch that is done has failed requests to retry"
        )


def retried_before(step: BatchStep) -> StepRefused:
    return StepRefused(
        f"requests of batch {step.batch} of crawl {step.crawl} are being retried already"
    )


def check_parts(batch: int, size: int, parts: Iterable[NewBatch]) -> None:
    """Raise `StoreError` unless the parts of a split batch have its requests, no more and no fewer."""
    sizes = [part.size for part in parts]
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise StoreError(
            f"batch {batch} has {size} requests; it cannot be split into parts of {sizes}"
        )


def at_work(crawl: str, out: int, process: str) -> StepRefused:
    """Why a strategy cannot be reset: batches that are out, or a process that holds partitions."""
    if out:
        return StepRefused(
            f"{out} batches of {crawl} are out; its strategy can be reset when they have ended"
        )
    return StepRefused(
        f"{process} works on the strategy of {crawl}; it can be reset when that has ended"
    )
