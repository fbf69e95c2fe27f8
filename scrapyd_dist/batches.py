"""What a crawl is made of (crawl, shard, batch, attempt) and the steps each may take, as one table."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import ConfigError, StepRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: what a crawl may be called: the name goes into job ids, URLs and file names on every node
CRAWL_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
#: the same, with room for a number behind it
_NAME_ROOM = 76
#: what a person may ask of the producer of a crawl that runs
WANTED = frozenset({"", "pause", "cancel"})


class CrawlState(str, Enum):
    """Where a whole crawl stands. The values are what the store keeps."""

    STARTING = "starting"  #: the producer checks the nodes; nothing has been requested yet
    FINDING = "finding"  #: index pages are being walked, batches are being sent
    WORKING = "working"  #: the index is done; batches are still out
    COLLECTING = "collecting"  #: every batch has ended; parts are being merged
    FINISHED = "finished"  #: the output is closed
    STOPPED = "stopped"  #: ended early; `sdist resume` goes on from here
    INCOMPLETE = "incomplete"  #: all that was found is done, but who was finding more is lost; goes on as STOPPED does
    REFUSED = "refused"  #: never started: the configuration, the nodes or the code were not right

    @property
    def ended(self) -> bool:
        """Whether no process works on this crawl any more."""
        return self in {CrawlState.FINISHED, CrawlState.STOPPED, CrawlState.INCOMPLETE, CrawlState.REFUSED}


class BatchState(str, Enum):
    """Where one batch stands. The values are what the store keeps."""

    SEALED = "sealed"  #: in the store, waits for a node
    SENT = "sent"  #: an attempt is open: about to be posted, or posted
    RUNNING = "running"  #: its worker has been heard of
    DONE = "done"  #: one attempt is accepted
    FAILED = "failed"  #: the last attempt ended badly; waits for the next one
    DEAD = "dead"  #: no attempts left
    SPLIT = "split"  #: smaller batches have taken its requests over; it counts for nothing any more


#: The allowed steps of a batch. SENT -> SEALED is a post that the node certainly refused, RUNNING -> SEALED a lease
#: that is given back.
#: DEAD -> SEALED is a person's requeue. SPLIT is how a batch that keeps failing is cut until the bad request is alone.
STEPS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.SEALED: frozenset({BatchState.SENT, BatchState.DEAD, BatchState.SPLIT}),
    BatchState.SENT: frozenset({BatchState.RUNNING, BatchState.DONE, BatchState.FAILED, BatchState.SEALED}),
    BatchState.RUNNING: frozenset({BatchState.DONE, BatchState.FAILED, BatchState.SEALED}),
    BatchState.FAILED: frozenset({BatchState.SENT, BatchState.DEAD, BatchState.SPLIT}),
    BatchState.DONE: frozenset(),
    BatchState.DEAD: frozenset({BatchState.SEALED, BatchState.SPLIT}),
    BatchState.SPLIT: frozenset(),
}

#: a batch in one of these waits for a node
WAITING = frozenset({BatchState.SEALED, BatchState.FAILED})
#: a batch in one of these has an attempt out on a node
OUT = frozenset({BatchState.SENT, BatchState.RUNNING})
#: a batch in one of these is over
ENDED = frozenset({BatchState.DONE, BatchState.DEAD, BatchState.SPLIT})


def check_step(old: BatchState, new: BatchState) -> None:
    """Raise `StepRefused` unless the table allows going from `old` to `new`."""
    if new not in STEPS[old]:
        raise StepRefused(f"a batch that is {old.value} cannot become {new.value}")


def check_crawl_name(name: str) -> str:
    """The name itself, or `ConfigError` when it cannot be a crawl's name."""
    if not CRAWL_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a crawl: it becomes part of job ids and file names on the nodes, so it may only"
            " have letters, digits, '-' and '_', 80 at most."
        )
    return name


def crawl_name(spider: str, now: datetime, taken: Collection[str] = ()) -> str:
    """`<spider>-<YYYYMMDDTHHMMSSZ>`, with a number behind it where that is taken; `now` must know its time zone."""
    stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", spider)[: _NAME_ROOM - len(stamp) - 1] or "crawl"
    names = chain([f"{plain}-{stamp}"], (f"{plain}-{stamp}-{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


def home_of(crawl: str, created: float) -> str:
    """The name of a crawl's folder in the nodes' logs.

    A name may come again (another project, a store that was thrown away): the moment of its making tells
    the crawls apart, so that nobody takes the files of one for those of the other.
    """
    return f"{crawl}.{hashlib.sha256(repr(created).encode()).hexdigest()[:8]}"


def job_id(crawl: str, batch: int, attempt: int) -> str:
    """The Scrapyd job id of one attempt: a node's own job list then explains itself."""
    return f"{crawl}.b{batch}.a{attempt}"


def worker_id(crawl: str, number: int) -> str:
    """The Scrapyd job id of a worker that leases batches."""
    return f"{crawl}.w{number}.a1"


@dataclass(frozen=True, kw_only=True)
class Crawl:
    """One distributed run, as the store keeps it."""

    id: str
    project: str  #: the project's name on the nodes
    spider: str
    state: CrawlState = CrawlState.STARTING
    created: float  #: seconds since the epoch
    kind: str = "crawl"  #: or "frontier": batches that producers fill in and workers lease, with no run of its own
    standing: bool = False  #: a frontier that never finishes: workers there end when they have idled long enough
    ended: float | None = None
    version: str | None = None  #: the code that every attempt of this crawl runs
    options: Mapping[str, Any] = field(default_factory=dict)  #: what was asked for, JSON
    pid: int | None = None  #: the producer's process
    host: str = ""  #: the machine it runs on, where the crawl's folder is
    beat: float | None = None  #: when the producer was last heard of
    exit_code: int | None = None
    message: str = ""  #: one paragraph for people: why it was refused or stopped, and how to go on
    summary: Mapping[str, Any] = field(default_factory=dict)  #: the last known summary, JSON
    wanted: str = ""  #: what a person asked the producer to do, one of `WANTED`; it obeys at its next tick
    #: why nothing of `options` is believed (they are empty then), a paragraph; the store finds it out, and keeps it not
    foreign: str = ""

    @property
    def when_refused(self) -> CrawlState:
        """What it becomes when its producer may not begin: one that has begun before can still be resumed."""
        return CrawlState.REFUSED if self.version is None else CrawlState.STOPPED


class ShardState(str, Enum):
    """Where one shard stands. The values are what the store keeps."""

    OPEN = "open"  #: being walked
    FINISHED = "finished"  #: walked, and all it found is sealed


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One start page of the index crawl, and the range of index pages it walks."""

    number: int
    url: str
    first_page: int | None = None  #: None when the shard is a URL of a list, not a page number
    last_page: int | None = None  #: inclusive
    state: ShardState = ShardState.OPEN


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A list of requests of one spider that travels as one unit; the payload is kept beside it."""

    number: int
    size: int  #: requests
    state: BatchState = BatchState.SEALED
    attempts: int = 0  #: attempts that may have run
    sealed_at: float = 0.0
    reason: str = ""  #: why the last attempt failed
    forgiven: int = 0  #: attempts from before a person requeued it: they do not count against the limit
    parent: int = 0  #: the batch that was split into this one and others; 0 for one that was sealed
    slot: str = ""  #: the frontier slot that it lies in
    priority: int = 0  #: of those that wait in a slot, the highest is leased first


class AttemptState(str, Enum):
    """Where one attempt stands. The values are what the store keeps."""

    SENDING = "sending"  #: written down before the post leaves
    SENT = "sent"  #: the node said ok
    RUNNING = "running"
    ACKED = "acked"  #: the worker that leased it has ended it; its part is on its way home
    ACCEPTED = "accepted"  #: its part counts; one per batch
    FAILED = "failed"
    REFUSED = "refused"  #: the node certainly did not take it


#: The allowed steps of an attempt. REFUSED -> SENDING is its number used again, on any node; RUNNING -> REFUSED is a
#: worker that gives back what it has leased and not begun.
ATTEMPT_STEPS: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.SENDING: frozenset(
        {AttemptState.SENT, AttemptState.RUNNING, AttemptState.ACCEPTED, AttemptState.FAILED, AttemptState.REFUSED}
    ),
    AttemptState.SENT: frozenset({AttemptState.RUNNING, AttemptState.ACCEPTED, AttemptState.FAILED}),
    AttemptState.RUNNING: frozenset(
        {AttemptState.ACCEPTED, AttemptState.FAILED, AttemptState.ACKED, AttemptState.REFUSED}
    ),
    AttemptState.ACKED: frozenset({AttemptState.ACCEPTED, AttemptState.FAILED}),
    AttemptState.ACCEPTED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.REFUSED: frozenset({AttemptState.SENDING, AttemptState.RUNNING}),
}


#: an attempt in one of these is out, and can be leased
LEASABLE = frozenset({AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING})


def check_attempt_step(old: AttemptState, new: AttemptState) -> None:
    """Raise `StepRefused` unless the table allows going from `old` to `new`."""
    if new not in ATTEMPT_STEPS[old]:
        raise StepRefused(f"an attempt that is {old.value} cannot become {new.value}")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One sending of a batch."""

    batch: int
    number: int
    job: str
    node: str  #: the node's name
    url: str  #: the node's base address, without secrets
    state: AttemptState = AttemptState.SENDING
    sent_at: float = 0.0
    ended_at: float | None = None
    reason: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)  #: the worker's report, JSON
    part: str = ""  #: the fetched part, relative to the crawl's folder
    worker: str = ""  #: the job that leased it; empty for a batch that was pushed, whose job is its own


@dataclass(frozen=True, kw_only=True)
class WorkerEntry:
    """One worker that may be at work, as the store lists it."""

    number: int
    job: str
    url: str  #: of its node
    lane: str
    since: float  #: seconds since the epoch when it was sent
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: likewise
    version: str = ""  #: of that project's code
    introduces: bool = False  #: it only says whose code it is


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A URL that gave no result, and why."""

    url: str
    #: `gone` (the site says it is not there), `failed` (it may be), `dead` (nobody can make it: its batch was given up,
    #: or its spider has no such callback), or `index`: a failed index page
    kind: str
    reason: str
    batch: int = 0  #: 0 for the producer's own requests
