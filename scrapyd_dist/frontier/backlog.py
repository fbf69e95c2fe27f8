"""Defines the values of the crawl frontier: new batches, leases, counts per slot, and the backlog.

A frontier is stored as a `Crawl` with batches, like any crawl. A slot is only a name on a batch;
the first write creates it. `slots` chooses the slot of a request. Part of the worker half: imports
the standard library only.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from scrapyd_dist.batches import OUT, WAITING, Attempt, AttemptState, Batch, BatchState, job_id
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.plurals import counted
from scrapyd_dist.settings import SETTINGS

#: most characters of a slot's name
LONGEST_SLOT = 80
#: valid slot names; `@spider` and `@project:spider` hold requests for another spider
SLOT_NAME = re.compile(rf"[A-Za-z0-9_.@:-]{{0,{LONGEST_SLOT}}}")
#: greatest absolute priority: doubles, by which a store may sort, are exact up to here
MAX_PRIORITY = (1 << 53) - 1
#: prefix of the slots of other spiders
OTHER_SPIDER = "@"
#: how workers share slots
FAIR = SETTINGS["DISTRIBUTED_FAIR"].choices
#: "" leases the oldest batch first; `spread` takes the slots in turn; `by-domain` takes them in
#: turn, and a slot belongs to one worker while it holds batches of it
UNFAIR, SPREAD, BY_DOMAIN = FAIR


class SeenBefore(Exception):
    """Some requests, of these fingerprints, are in the frontier already, and nothing was stored."""

    def __init__(self, prints: frozenset[bytes]) -> None:
        super().__init__(
            f"{counted(len(prints), 'request is', 'requests are')} in the frontier already"
        )
        self.prints = prints


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch to be added to a frontier."""

    payload: Mapping[str, str]  #: the settings that carry its requests
    size: int  #: requests
    slot: str = ""
    priority: int = 0
    fingerprints: tuple[bytes, ...] = ()  #: one for each request that must not be added twice
    sealed_at: float = 0.0  #: seconds since the epoch
    parent: int = 0  #: the batch that it is a part of, or 0; set by the store

    def numbered(self, number: int) -> Batch:
        """Return the batch as the store keeps it under this number."""
        return Batch(
            number=number,
            size=self.size,
            sealed_at=self.sealed_at,
            parent=self.parent,
            slot=self.slot,
            priority=self.priority,
        )


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """What every worker of a crawl has to keep to; 0 is no limit."""

    lease: float = 60.0  #: seconds after which a lease that is not renewed expires
    ahead: int = 1  #: further rounds of requests that are kept ready while one is being made
    max_batches: int = 0
    max_requests: int = 0
    max_time: float = 0.0  #: seconds
    idle: float = 0.0  #: seconds without work after which it ends, at a standing frontier
    batch_size: int = 100  #: most requests in a batch of what it finds
    fair: str = UNFAIR  #: how workers share the slots, one of `FAIR`
    start: str = "skip"  #: the spider's own start requests: `skip` them, or make them `first`


@dataclass(frozen=True, kw_only=True)
class Lessee:
    """A worker that leases batches."""

    job: str  #: its Scrapyd job id, which also identifies the holder of a lease
    node: str  #: the node's name
    url: str  #: the node's base address, without secrets


@dataclass(frozen=True, kw_only=True)
class LeaseRequest:
    """What a worker wants of a crawl's batches."""

    crawl: str
    lessee: Lessee
    seconds: float  #: how long a lease is good for, by the store's clock
    now: float  #: when the attempts begin, for display
    limit: int = 1  #: batches at most
    slots: Collection[str] = ()  #: names; without any, all slots but those of other spiders
    fair: str = UNFAIR  #: one of `FAIR`
    enough: Collection[str] = ()  #: slots of which it wants nothing now, if it is `fair`
    #: nothing is leased, and `StepRefused` raised, unless the crawl lists the lessee as its worker
    listed: bool = False

    @property
    def alone(self) -> bool:
        """Whether a slot that it leases from is its own from then on."""
        return self.fair == BY_DOMAIN and not self.slots

    def attempt_at(self, batch: int, number: int) -> Attempt:
        """Return the attempt that the worker's lease of a batch opens."""
        return Attempt(
            batch=batch,
            number=number,
            job=job_id(self.crawl, batch, number),
            node=self.lessee.node,
            url=self.lessee.url,
            state=AttemptState.RUNNING,
            sent_at=self.now,
            worker=self.lessee.job,
        )


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A batch leased to a worker."""

    batch: Batch
    attempt: int
    payload: Mapping[str, str]
    #: why the payload was rejected and is empty, one paragraph; empty for a valid payload
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class SlotCount:
    """Batches and requests in one slot, counted by batch state."""

    slot: str
    batches: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Requests in batches that are not leased."""
        return self.requests.get("sealed", 0) + self.requests.get("failed", 0)


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The backlog of a frontier: batches by state, and its producers."""

    slots: Sequence[SlotCount] = ()
    expired: int = 0  #: batches whose lease has expired and was not reclaimed yet
    acked: int = 0  #: batches whose part is still to be fetched
    producers: Sequence[str] = ()  #: producers that may still add requests, by name
    lost: Sequence[str] = ()  #: producers that missed their heartbeat without signing off, by name
    standing: bool = False

    def _batches(self, states: Collection[BatchState]) -> int:
        count = 0
        for slot in self.slots:
            for state in states:
                count += slot.batches.get(state.value, 0)
        return count

    @cached_property
    def waiting(self) -> int:
        """Batches that are not leased."""
        return self._batches(WAITING)

    @property
    def batches(self) -> int:
        """All batches, those that were cut up counted by their pieces."""
        return self._batches(set(BatchState) - {BatchState.SPLIT})

    @property
    def waiting_requests(self) -> int:
        """Requests in the waiting batches."""
        return sum(slot.waiting for slot in self.slots)

    @cached_property
    def out(self) -> int:
        """Batches that are sent or leased, or whose part is being fetched."""
        return self._batches(OUT)

    @property
    def out_requests(self) -> int:
        """Requests in the batches that are out."""
        count = 0
        for slot in self.slots:
            for state in OUT:
                count += slot.requests.get(state.value, 0)
        return count

    @property
    def leased(self) -> int:
        """Batches that are out, neither expired nor acked."""
        return self.out - self.expired - self.acked

    @property
    def drained(self) -> bool:
        """Whether no batch waits or is leased."""
        return not (self.waiting or self.leased)

    @property
    def finished(self) -> bool:
        """Whether the frontier is done: no batch is left, and every producer has signed off."""
        return self._over and not self.lost

    @property
    def incomplete(self) -> bool:
        """Whether no batch is left, but a producer was lost, so that requests may be missing."""
        return self._over and bool(self.lost)

    @property
    def _over(self) -> bool:
        return self.drained and not (self.expired or self.acked or self.producers or self.standing)


def producer_name(work: str, process: str) -> str:
    """Return the name of a process that does this work among the producers of a frontier.

    A work's name may have the separator, too: names of hosts and processes have none.
    """
    return f"{work}@{process}"


def check_slot_name(slot: str) -> str:
    """Return the name, or raise `ConfigError` if it is not a valid slot name."""
    if not SLOT_NAME.fullmatch(slot):
        raise ConfigError(
            f"{slot!r} cannot name a slot: it may only have letters, digits and the characters"
            " _ . @ : - , 80 at most."
        )
    return slot
