"""Defines the values of a crawl, such as batch and attempt, and the tables of state changes."""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from scrapyd_dist.errors import ConfigError, StepRefused

#: valid crawl names: they become part of job ids, URLs and file names on nodes
CRAWL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
#: maximum length of a generated name before a number is appended
_NAME_ROOM = 76
# What the processes of a running crawl may be asked for through its row. A command asks for the
# first two; the producer asks the workers to close, when one of them has closed its spider.
PAUSE = "pause"
CANCEL = "cancel"
CLOSE = "close"
#: all of these, and "" for nothing
WANTED = frozenset({"", PAUSE, CANCEL, CLOSE})


class MissKind(str, Enum):
    """Why a URL gave no result."""

    GONE = "gone"
    FAILED = "failed"
    DEAD = "dead"
    INDEX = "index"


#: the kinds of misses, in words for users
MISSES = {
    MissKind.GONE.value: (
        "gone (the site does not give them: 404, 403 …; or dropped, as by scrapy crawl)"
    ),
    MissKind.FAILED.value: "failed (the site may have them; see the reason)",
    MissKind.DEAD.value: "given up: with their batch, or since no spider can make them",
    MissKind.INDEX.value: (
        "of the index failed, so URLs there are unknown; only a new crawl asks for them again"
    ),
}
#: how the reason of a miss says that the project's code has raised
_RAISED = re.compile(r"\w+ in (?:the callback|a pipeline): ")
#: prefix of the reason of a miss whose request was not made because settings ended the job
NOT_MADE = "not made"
#: kind, in a worker's report, of requests that were not made as their job ended early: they wait
#: in new batches
PUT_OFF = "put-off"
#: their reason, until they are in these batches
PUT_OFF_REASON = "not made yet: its job ended early, and it waits in a new batch"


class CrawlState(str, Enum):
    """The state of a crawl, as stored."""

    STARTING = "starting"  #: the producer checks the nodes; no request has been made yet
    FINDING = "finding"  #: the producer walks index pages and sends batches
    WORKING = "working"  #: the index is done; batches are still out
    COLLECTING = "collecting"  #: every batch has ended; parts are being merged
    FINISHED = "finished"  #: the output is complete
    STOPPED = "stopped"  #: ended early; `sdist resume` continues it
    #: all found requests are done, but a producer was lost; can be resumed like STOPPED
    INCOMPLETE = "incomplete"
    REFUSED = "refused"  #: never started, because of the configuration, the nodes or the code

    @property
    def ended(self) -> bool:
        """Whether the crawl has ended, so that no process works on it."""
        return self in {
            CrawlState.FINISHED,
            CrawlState.STOPPED,
            CrawlState.INCOMPLETE,
            CrawlState.REFUSED,
        }


class BatchState(str, Enum):
    """The state of a batch, as stored."""

    SEALED = "sealed"  #: in the store, waiting for a node
    SENT = "sent"  #: an attempt is about to be posted, or was posted
    RUNNING = "running"  #: its worker was seen running
    DONE = "done"  #: one attempt is accepted
    FAILED = "failed"  #: the last attempt failed; waiting for a retry
    DEAD = "dead"  #: no attempts left
    SPLIT = "split"  #: replaced by smaller batches with its requests; no longer counted


#: Allowed state changes of a batch. SENT -> SEALED: the node certainly refused the post.
#: RUNNING -> SEALED: a worker returned its lease. DEAD -> SEALED: a requeue by command. SPLIT: a
#: batch that keeps failing is split until the bad request is alone.
STEPS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.SEALED: frozenset({BatchState.SENT, BatchState.DEAD, BatchState.SPLIT}),
    BatchState.SENT: frozenset(
        {BatchState.RUNNING, BatchState.DONE, BatchState.FAILED, BatchState.SEALED}
    ),
    BatchState.RUNNING: frozenset({BatchState.DONE, BatchState.FAILED, BatchState.SEALED}),
    BatchState.FAILED: frozenset({BatchState.SENT, BatchState.DEAD, BatchState.SPLIT}),
    BatchState.DONE: frozenset(),
    BatchState.DEAD: frozenset({BatchState.SEALED, BatchState.SPLIT}),
    BatchState.SPLIT: frozenset(),
}
#: states of a batch that waits for a node
WAITING = frozenset({BatchState.SEALED, BatchState.FAILED})
#: states of a batch with an attempt out on a node
OUT = frozenset({BatchState.SENT, BatchState.RUNNING})


def check_crawl_name(name: str, what: str = "crawl") -> str:
    """Return the name, or raise `ConfigError` if it is not valid for a crawl or frontier."""
    if not CRAWL_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a {what}: it becomes part of job ids and file names on the"
            " nodes, so it may only have letters, digits, '-' and '_', 80 at most, and does not"
            " begin with '-'."
        )
    return name


def crawl_name(spider: str, now: datetime, taken: Collection[str] = ()) -> str:
    """Return `<spider>-<YYYYMMDDTHHMMSSZ>`, with a number appended if that is taken.

    `now` must have a time zone.
    """
    stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    room = _NAME_ROOM - len(stamp) - len("-")
    prefix = re.sub(r"[^A-Za-z0-9_-]+", "-", spider).lstrip("-")[:room] or "crawl"
    name = f"{prefix}-{stamp}"
    number = 1
    while name in taken:
        number += 1
        name = f"{prefix}-{stamp}-{number}"
    return name


def home_of(crawl: str, created: float) -> str:
    """Return the name of a crawl's folder in the nodes' logs.

    A name may be used again (by another project, or after a store was deleted); the creation time
    keeps the files of such crawls apart.
    """
    digest = hashlib.sha256(repr(created).encode()).hexdigest()
    return f"{crawl}.{digest[:8]}"


def job_id(home: str, batch: int, attempt: int) -> str:
    """Return the Scrapyd job id of an attempt, readable in a node's job list.

    It begins with the crawl's folder on the nodes, `home_of`: another project may have a crawl of
    that name there. The id of a leased attempt, which is no job on a node but names a part in that
    folder, begins with the crawl's name.
    """
    return f"{home}.b{batch}.a{attempt}"


def worker_id(home: str, number: int) -> str:
    """Return the Scrapyd job id of a worker that leases batches; it begins with `home_of`."""
    return f"{home}.w{number}.a1"


@dataclass(frozen=True, kw_only=True)
class Crawl:
    """A crawl or a frontier, as stored."""

    id: str
    project: str  #: the project's name on the nodes
    spider: str
    state: CrawlState = CrawlState.STARTING
    created: float  #: seconds since the epoch
    #: or "frontier": filled by producers and leased by workers, without a run of its own
    kind: str = "crawl"
    standing: bool = False  #: whether the frontier never finishes; its workers end after idling
    ended: float | None = None
    version: str | None = None  #: the project version that every attempt runs
    options: Mapping[str, Any] = field(default_factory=dict)  #: options of the crawl, JSON
    pid: int | None = None  #: process id of the producer
    host: str = ""  #: host of the producer, where the crawl's folder is
    beat: float | None = None  #: the producer's last heartbeat, seconds since the epoch
    exit_code: int | None = None
    #: one paragraph for users: why the crawl was refused or stopped, and how to continue
    message: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)  #: the last known summary, JSON
    wanted: str = ""  #: one of `WANTED`, obeyed within seconds
    #: one paragraph on why the signature of `options` was rejected (they are empty then); computed,
    #: never stored
    foreign: str = ""

    @property
    def when_refused(self) -> CrawlState:
        """The state after its producer could not start.

        A crawl that had started before can still be resumed.
        """
        return CrawlState.REFUSED if self.version is None else CrawlState.STOPPED


class ShardState(str, Enum):
    """The state of a shard, as stored."""

    OPEN = "open"  #: being walked
    FINISHED = "finished"  #: walked, and every request it found is in a batch


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A start page of the index crawl, and the range of index pages walked from it."""

    number: int
    url: str
    first_page: int | None = None  #: None if the shard is a URL of a list
    last_page: int | None = None  #: inclusive
    state: ShardState = ShardState.OPEN


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A list of requests of one spider that is sent or leased as one unit.

    The payload is stored separately.
    """

    number: int
    size: int  #: requests
    state: BatchState = BatchState.SEALED
    attempts: int = 0  #: attempts that may have run
    sealed_at: float = 0.0
    reason: str = ""  #: why the last attempt failed
    #: attempts of before it was begun anew: it was dead and requeued, or its part was lost
    earlier: int = 0
    #: attempts since then that do not count against the limit: lost without the batch's fault
    forgiven: int = 0
    parent: int = 0  #: the batch that was split into this one and others, or 0
    slot: str = ""  #: its frontier slot
    priority: int = 0  #: the highest in a slot is leased first

    def tried(self, number: int) -> int:
        """Return how many attempts it has had since it was new, up to that of this number."""
        return number - self.earlier

    def counted(self, number: int) -> int:
        """Return how many of those count against the limit."""
        return self.tried(number) - self.forgiven


def as_left(batch: Batch, crawl: Crawl) -> Batch:
    """Return a batch as the crawl has it.

    Once that has ended none is out, and what was out waits to be resumed.
    """
    if crawl.kind != "crawl" or not crawl.state.ended or batch.state not in OUT:
        return batch
    return replace(
        batch, state=BatchState.SEALED, reason=batch.reason or "it was out when the crawl ended"
    )


class AttemptState(str, Enum):
    """The state of an attempt, as stored."""

    SENDING = "sending"  #: stored before it is posted
    SENT = "sent"  #: the node accepted the post
    RUNNING = "running"
    ACKED = "acked"  #: its worker has acked the lease; its part is still to be fetched
    ACCEPTED = "accepted"  #: its part counts; one per batch
    FAILED = "failed"
    REFUSED = "refused"  #: the node certainly did not take it


#: Allowed state changes of an attempt. REFUSED -> SENDING: its number is used again, on any node.
#: RUNNING -> REFUSED: a worker returns a lease that it has not begun.
ATTEMPT_STEPS: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.SENDING: frozenset(
        {
            AttemptState.SENT,
            AttemptState.RUNNING,
            AttemptState.ACCEPTED,
            AttemptState.FAILED,
            AttemptState.REFUSED,
        }
    ),
    AttemptState.SENT: frozenset(
        {AttemptState.RUNNING, AttemptState.ACCEPTED, AttemptState.FAILED}
    ),
    AttemptState.RUNNING: frozenset(
        {AttemptState.ACCEPTED, AttemptState.FAILED, AttemptState.ACKED, AttemptState.REFUSED}
    ),
    AttemptState.ACKED: frozenset({AttemptState.ACCEPTED, AttemptState.FAILED}),
    AttemptState.ACCEPTED: frozenset(),
    AttemptState.FAILED: frozenset(),
    AttemptState.REFUSED: frozenset({AttemptState.SENDING, AttemptState.RUNNING}),
}
#: states of an attempt that is out and can be leased
LEASABLE = frozenset({AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING})


def states_before(new: BatchState | AttemptState) -> list[Any]:
    """Return the states from which a batch, or an attempt, may change to this one."""
    steps: Mapping[Any, frozenset[Any]] = ATTEMPT_STEPS
    if isinstance(new, BatchState):
        steps = STEPS
    return [old for old, allowed in steps.items() if new in allowed]


def check_step(old: BatchState | AttemptState, new: BatchState | AttemptState) -> None:
    """Raise `StepRefused` unless a batch, or an attempt, may change from `old` to `new`."""
    if old not in states_before(new):
        raise no_step(old, new)


def no_step(old: BatchState | AttemptState, new: BatchState | AttemptState) -> StepRefused:
    """Return the error of a batch, or an attempt, that may not change from `old` to `new`."""
    noun = "a batch" if isinstance(new, BatchState) else "an attempt"
    return StepRefused(f"{noun} that is {old.value} cannot become {new.value}")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a batch."""

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
    part: str = ""  #: path of the fetched part, relative to the crawl's folder
    worker: str = ""  #: job id of the worker that leased it; empty for a pushed batch


@dataclass(frozen=True, kw_only=True)
class WorkerEntry:
    """One worker that may be at work, as the store lists it."""

    number: int
    job: str
    url: str  #: of its node
    pool: str
    since: float  #: seconds since the epoch when it was sent
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: likewise
    version: str = ""  #: of that project's code
    introduces: bool = False  #: it only says whose code it is


@dataclass(frozen=True, kw_only=True)
class Miss:
    """A URL without a result, and the reason."""

    url: str
    kind: str  #: the value of a `MissKind`
    reason: str
    batch: int = 0  #: 0 for requests of the producer


class FinishReason(str, Enum):
    """The finish reasons that this program uses."""

    FINISHED = "finished"  #: the same as Scrapy's
    SHUTDOWN = "shutdown"  #: the same as Scrapy's
    SUPERSEDED = "superseded"  #: the job came too late, or another one has taken its place
    REFUSED = "refused"  #: the job could not start: its input or its node is unsuitable
    FAILED = "failed"  #: an error of this program
    DISK_FULL = "disk-full"
    FILES_LOST = "files-lost"  #: the job's folder was deleted, including its part
    STORE_LOST = "store-lost"
    THROTTLE_FAILED = "throttle-failed"
    LOGIN_FAILED = "login-failed"
    START_FAILED = "start-failed"
    LIMITED = "limited"  #: the producer has found as many requests as its limit allows
    TIMEOUT = "timeout"  #: the job has run for longer than DISTRIBUTED_JOB_TIMEOUT
    #: it had work, and no page and no item for longer than DISTRIBUTED_STALL_TIMEOUT
    STALLED = "stalled"
    #: the whole crawl has reached a goal, or its spider has closed it; what was not made waits
    GOAL = "goal"


@dataclass(frozen=True, kw_only=True)
class ReasonMeaning:
    """The consequences of a finish reason."""

    blames_batch: bool = False  #: whether the batch may have caused the end
    in_order: bool = False  #: whether it is a normal end for a leasing worker
    by_signal: bool = False  #: whether the job was told to end
    asked_for: bool = False  #: whether the job has done its work, as far as its settings allow
    by_settings: bool = False  #: whether settings ended the job early; a retry would end there, too
    #: whether the project's code has closed the spider (`CloseSpider`, `engine.close_spider`), and
    #: so the whole crawl
    closes_crawl: bool = False


#: for finish reasons that are not in the table: a project's own
_UNKNOWN = ReasonMeaning(in_order=True, closes_crawl=True)
_MEANINGS: dict[str, ReasonMeaning] = {
    "": ReasonMeaning(blames_batch=True),
    **{reason.value: ReasonMeaning() for reason in FinishReason},
    FinishReason.FINISHED.value: ReasonMeaning(in_order=True, asked_for=True),
    FinishReason.SHUTDOWN.value: ReasonMeaning(in_order=True, by_signal=True),
    FinishReason.SUPERSEDED.value: ReasonMeaning(by_signal=True),
    FinishReason.GOAL.value: ReasonMeaning(in_order=True, asked_for=True),
    FinishReason.LIMITED.value: ReasonMeaning(in_order=True, asked_for=True, by_settings=True),
    FinishReason.TIMEOUT.value: ReasonMeaning(in_order=True, blames_batch=True),
    FinishReason.STALLED.value: ReasonMeaning(blames_batch=True),
    # Scrapy's MEMUSAGE_LIMIT_MB
    "memusage_exceeded": ReasonMeaning(blames_batch=True),
    # Scrapy's CloseSpider settings: after a time or a count, or after too many errors
    **{
        f"closespider_{limit}": ReasonMeaning(in_order=True, asked_for=True, by_settings=True)
        for limit in ("timeout", "itemcount", "pagecount", "timeout_no_item", "pagecount_no_item")
    },
    "closespider_errorcount": ReasonMeaning(in_order=True, by_settings=True),
}


def meaning(finish_reason: str) -> ReasonMeaning:
    """Return the consequences of a finish reason in a report or log.

    An unknown one is of the project's own code.
    """
    return _MEANINGS.get(finish_reason, _UNKNOWN)


def is_fault_of_code(reason: str) -> bool:
    """Return whether a miss with this reason is one since a callback or a pipeline has raised."""
    return _RAISED.search(reason) is not None


def not_made(finish_reason: str) -> tuple[str, str]:
    """Return kind and reason of the misses whose requests were not made as settings ended a job."""
    kind = "gone" if meaning(finish_reason).asked_for else "failed"
    return kind, f"{NOT_MADE}: {finish_reason.upper()} ended the job before"
