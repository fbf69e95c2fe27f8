"""Decides what becomes of a batch after a failed attempt; no IO.

A batch that kills its workers is bisected, until the request that does it is alone and named.
"""

from dataclasses import dataclass
from enum import Enum

from scrapyd_dist.batches import Batch
from scrapyd_dist.scheduling.batch_counters import BatchCounters

#: attempts of a batch that may be forgiven until it is begun anew: they are lost with nodes that
#: are restarted or away, and a page may be what ends them
SPARED = 20
#: attempts of a single request that may kill its workers
ALONE = 2
#: most cuts per crawl: a spider that dies on every tenth page has to be corrected
CUTS = 200
#: most cuts while no batch has succeeded: code that fails on every page has to be corrected
BLIND = 10


class FailureKind(Enum):
    """Says what a failed attempt tells of its batch.

    One that costs no attempt does so after all where there were too many of them (`SPARED`).
    """

    COUNTED = "counted"  #: it costs an attempt
    SUSPECT = "suspect"  #: it costs an attempt, and the batch may have killed its worker
    HARMLESS = "harmless"  #: it costs none, or after too many of them counts as `COUNTED`
    #: it costs none, as a node was restarted, or after too many of them counts as `SUSPECT`
    RESTART = "restart"

    @classmethod
    def of_worker(cls, *, to_blame: bool) -> "FailureKind":
        """Return the kind for a worker whose requests may be, or are not, to blame."""
        return cls.SUSPECT if to_blame else cls.COUNTED

    @property
    def is_harmless(self) -> bool:
        """Return whether it costs no attempt while there are few such failures."""
        return self in {FailureKind.HARMLESS, FailureKind.RESTART}

    @property
    def is_suspect(self) -> bool:
        """Return whether the batch may have killed its worker, where the failure counts."""
        return self in {FailureKind.SUSPECT, FailureKind.RESTART}

    @property
    def made_harmless(self) -> "FailureKind":
        """Return the kind of the same failure where it is not to cost an attempt."""
        return FailureKind.RESTART if self.is_suspect else FailureKind.HARMLESS


@dataclass(frozen=True, kw_only=True)
class AfterFailure:
    """Says what becomes of a batch after a failed attempt.

    Neither forgiven nor cut, it waits again, or is dead once it has had `max_attempts` that count.
    """

    max_attempts: int
    is_forgiven: bool = False  #: the attempt does not count
    is_cut: bool = False  #: smaller batches take its place


def decide_after_failure(
    batch: Batch, number: int, kind: FailureKind, *, max_attempts: int, counters: BatchCounters
) -> AfterFailure:
    """Decide what becomes of a batch whose attempt with this number has failed."""
    if kind.is_harmless and batch.forgiven < SPARED:
        return AfterFailure(is_forgiven=True, max_attempts=max_attempts)
    if not kind.is_suspect:
        return AfterFailure(max_attempts=max_attempts)
    most = most_attempts(batch, max_attempts)
    counted = batch.counted(number)
    if counted < most or not may_be_cut(batch, counters):
        return AfterFailure(max_attempts=most)
    # until it is cut it waits, and is not dead
    return AfterFailure(is_cut=True, max_attempts=counted + 1)


def most_attempts(batch: Batch, most: int) -> int:
    """Return how many attempts a batch gets that may kill its workers.

    A piece of a cut batch is cut again at once.
    """
    if not batch.parent:
        return most
    return min(most, 1 if batch.size > 1 else ALONE)


def may_be_cut(batch: Batch, counters: BatchCounters) -> bool:
    """Return whether to cut a batch now that its attempts are used up."""
    return batch.size > 1 and counters.cuts < (CUTS if counters.done else BLIND)
