"""The steps that verbs hand to every engine, and what all engines do alike with batches. No IO."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from scrapyd_dist.batches import (
    OUT,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Miss,
    check_step,
    no_step,
    states_before,
)
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import LeaseRequest, NewBatch, SlotCount
from scrapyd_dist.strategy.links import LinkEvent

#: the length of a fingerprint is kept in one byte
_LONGEST = 255
#: seconds for which a worker that found all slots taken counts when they are shared
HUNGRY = 5.0


@dataclass(frozen=True)
class BatchStep:
    """What is changed of a crawl's batches, all of it or nothing, and what has to hold for it."""

    crawl: str
    #: the one that changes, if any
    batch: int = 0
    #: its current attempt, if that changes as well, or the one that is opened
    attempt: int = 0
    #: the attempt's new state, which its old one has to allow; None: it stays
    to: AttemptState | None = None
    #: further fields of the attempt
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: the batch's new state, likewise
    batch_to: BatchState | None = None
    #: further fields of the batch
    batch_changes: Mapping[str, Any] = field(default_factory=dict)
    #: only for the holder of the lease, if one is named
    holder: str | None = None
    #: only an attempt that is not acked
    out: bool = False
    #: the attempt was accepted, and counts no more: only this step leads back from there
    reopens: bool = False
    #: a new attempt of the batch
    opened: Attempt | None = None
    #: misses to be added
    misses: Sequence[Miss] = ()
    #: misses of the batch, which is done, to be removed; each of them has to be there
    retried: Sequence[Miss] = ()
    #: batches to be added
    new: Sequence[NewBatch] = ()
    #: only if none of their fingerprints are there, which are added then
    unseen: bool = False
    #: fingerprints to be added, if they are not there
    prints: Iterable[bytes] = ()
    #: the batch, which is not out, is removed
    dropped: bool = False
    #: with its fingerprints
    forget: bool = False
    #: to be added to the account
    counts: Mapping[str, int] = field(default_factory=dict)
    #: to be kept for the crawl's strategy
    events: Sequence[LinkEvent] = ()

    @property
    def attempt_before(self) -> set[AttemptState]:
        """Return the states that the attempt may have before it changes."""
        if self.to is None:
            return set(AttemptState)
        if self.reopens:
            return {AttemptState.ACCEPTED}
        before = set(states_before(self.to))
        if self.out:
            before.discard(AttemptState.ACKED)
        return before

    @property
    def batch_before(self) -> set[BatchState]:
        """Return the states that the batch may have before it changes."""
        if self.batch_to is None:
            return set(BatchState)
        if self.reopens:
            return {BatchState.DONE}
        return set(states_before(self.batch_to))


def joined(prints: Iterable[bytes]) -> bytes:
    """Return fingerprints as they are kept with a batch: in a row, each behind its length."""
    return b"".join(bytes((len(fingerprint),)) + fingerprint for fingerprint in prints)


def parted(prints: bytes) -> list[bytes]:
    """Return the fingerprints that `joined` has put together."""
    found = []
    start = 0
    while start < len(prints):
        end = start + 1 + prints[start]
        found.append(prints[start + 1 : end])
        start = end
    return found


def prints_of(new: Iterable[NewBatch]) -> list[bytes]:
    """Return all fingerprints of what is about to be added.

    Raises `StoreError` when one is there twice, or is too long to be kept.
    """
    prints: list[bytes] = []
    for batch in new:
        prints += batch.fingerprints
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
    """Return the fingerprints of each part of a batch: its own, else those of the batch, in order.

    Where some requests of the batch have none, it is not known whose they are, unless the batch
    stays in one piece.

    Args:
        whole: the fingerprints of the batch.
        size: the number of its requests.
        parts: what it is split into.
    """
    own = [part.fingerprints for part in parts]
    if any(own):
        return own
    if len(parts) == 1:
        return [tuple(whole)]
    if len(whole) != size:
        return [()] * len(parts)
    rest = iter(whole)
    return [tuple(islice(rest, part.size)) for part in parts]


def slot_counts(rows: Iterable[tuple[str, str, int, int]]) -> list[SlotCount]:
    """Return the slots by name, from rows of slot, state, batches and requests."""
    batches: dict[str, dict[str, int]] = defaultdict(dict)
    requests: dict[str, dict[str, int]] = defaultdict(dict)
    for slot, state, number, size in rows:
        batches[slot][state] = number
        requests[slot][state] = size
    return [
        SlotCount(slot=slot, batches=batches[slot], requests=requests[slot])
        for slot in sorted(batches)
    ]


def check_rows(step: BatchStep, row: Batch, old: AttemptState | None) -> None:
    """Raise what the batch's row, and the state of the attempt, say against the step.

    Raises:
        NothingMatched: there is no such attempt.
        StepRefused: the step is not possible from here.
    """
    _check_attempt(step, row, old)
    if step.batch_to is not None and row.state not in step.batch_before:
        raise no_step(row.state, step.batch_to)
    if step.dropped and row.state in OUT:
        raise StepRefused(
            f"batch {step.batch} is out: a worker has it. It can be removed when that has ended"
        )
    if step.retried and row.state is not BatchState.DONE:
        raise StepRefused(
            f"batch {step.batch} is {row.state.value}; only a batch that is done has failed"
            " requests to retry"
        )


def _check_attempt(step: BatchStep, row: Batch, old: AttemptState | None) -> None:
    what = f"attempt {step.attempt} of batch {step.batch}"
    if step.to is not None:
        if old is None:
            raise NothingMatched(f"crawl {step.crawl} has no {what}.")
        if step.out and old is AttemptState.ACKED:
            raise StepRefused(f"{what} was acked meanwhile")
        if old not in step.attempt_before:
            raise no_step(old, step.to)
        if step.attempt != row.attempts:
            raise StepRefused(f"{what} is over; attempt {row.attempts} is the one that counts")
    if step.opened is not None and old is not None:
        check_step(old, step.opened.state)


def not_listed(wanted: LeaseRequest) -> StepRefused:
    """Return the error of a lease for a worker that the crawl does not list."""
    return StepRefused(f"{wanted.lessee.job} is not listed as a worker of {wanted.crawl}")


def retried_before(step: BatchStep) -> StepRefused:
    """Return what is raised when misses to be retried are not there any more."""
    return StepRefused(
        f"requests of batch {step.batch} of crawl {step.crawl} are being retried already"
    )


def check_parts(batch: int, size: int, parts: Iterable[NewBatch]) -> None:
    """Raise `StoreError` unless the parts of a split batch have as many requests as it has."""
    sizes = [part.size for part in parts]
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise StoreError(
            f"batch {batch} has {size} requests; it cannot be split into parts of {sizes}"
        )


def at_work(crawl: str, out: int, process: str) -> StepRefused:
    """Return why a strategy cannot be reset: batches that are out, or a process that works."""
    if out:
        return StepRefused(
            f"{out} batches of {crawl} are out; its strategy can be reset when they have ended"
        )
    return StepRefused(
        f"{process} works on the strategy of {crawl}; it can be reset when that has ended"
    )
