"""Values for jobs: what is remembered of those that `sdist jobs schedule` starts, and how they end.

Invariant: of settings only the names are told, since their values may be secrets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from typing import Any

#: the moment since which no job has ended: only open records are asked for
OPEN_ONLY = math.inf


class Outcome(str, Enum):
    """The state of a job, or its outcome."""

    #: in the store, on no node: for a limit, for other jobs, or for its next attempt
    WAITING = "waiting"
    PENDING = "pending"  #: waiting for a process slot; of a record: posted, and not seen to be over
    RUNNING = "running"
    STALLED = "stalled"  #: running without progress
    FINISHED = "finished"  #: completed without errors
    FAILED = "failed"  #: ended with errors
    CANCELLED = "cancelled"  #: asked to stop, and shut down gracefully
    KILLED = "killed"  #: ended by a signal that this program sent
    DIED = "died"  #: ended without closing the spider
    UNKNOWN = "unknown"  #: neither log nor report tells

    @property
    def over(self) -> bool:
        """Whether the job has ended, as far as is known."""
        return self not in {Outcome.WAITING, Outcome.PENDING, Outcome.RUNNING, Outcome.STALLED}


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What a job has come to: the same in a verdict, as one is kept, and in the job's record."""

    reason: str = ""  #: of its state, a few words
    pages: int | None = None
    items: int | None = None
    errors: int | None = None  #: number of log entries of level ERROR and CRITICAL
    codes: Mapping[str, int] = field(default_factory=dict)  #: number of responses by status code

    @property
    def result(self) -> dict[str, Any]:
        """These fields by name, to make another value with the same result."""
        return {one.name: getattr(self, one.name) for one in fields(JobResult)}


@dataclass(frozen=True, kw_only=True)
class JobVerdict(JobResult):
    """How a job ended, with its counts, as it was seen first.

    The log or the report that says so may be removed later.
    """

    key: str  #: of `key_of_listed` or `key_of_attempt`
    at: float  #: seconds since the epoch when it was written down
    state: Outcome
    offset: float | None = None  #: its node's local time minus UTC in seconds, where its log told


def key_of_listed(url: str, project: str, job: str, started: datetime) -> str:
    """Return the key of a job by what its node lists: an id may come again, at another time."""
    return f"{url} {project} {job} {started.isoformat()}"


def key_of_attempt(url: str, home: str, job: str) -> str:
    """Return the key of a crawl's job; `home` is the crawl's folder in the nodes' logs."""
    return f"{url} {home}/{job}"


@dataclass(frozen=True, kw_only=True)
class JobRecord(JobResult):
    """A job that was started here, as the store remembers it. Times are seconds since the epoch."""

    id: str
    spider: str
    project: str
    version: str
    created: float  #: when it was written down
    posted: float | None = None  #: when it was about to be posted; None while it waits
    node: str = ""  #: name of its node
    url: str = ""  #: of its node, without credentials
    labels: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  #: names of the settings that it was given
    state: Outcome = Outcome.PENDING
    started: float | None = None
    ended: float | None = None
    lost: bool = False  #: its node has nothing of it any more, or is gone: perhaps it never ran
    # The rest is for a job that waits, or that has further attempts.
    attempt: int = 1
    first: str = ""  #: id of the first attempt, if this is a later one
    retries: int = 0  #: further attempts after the first one
    #: `spider=2`: at most two jobs of this spider at once; or of a label's value
    limits: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  #: jobs, crawls and labels that it follows, `NAME:OUTCOME`
    priority: float | None = None
    place: int = 0  #: among the jobs of one command
    sealed: str = ""  #: the settings with their values, encrypted; "" when it needs none any more
    wanted_project: str = ""  #: the name of the project, if it was named and is not each node's own
    on: str = ""  #: name of the one node that will do
    among: tuple[str, ...] = ()  #: names of the nodes that will do; () for all
    tried: tuple[str, ...] = ()  #: urls of the nodes of its earlier attempts
    #: that `sdist jobs cancel` was about to send it: it is not tried again
    signals: tuple[str, ...] = ()

    @property
    def had_no_time(self) -> bool:
        """Whether it was sent KILL or a second INT, and so could not log how it ends."""
        return "KILL" in self.signals or len(self.signals) > 1

    @property
    def at(self) -> float:
        """When it ended; until then when it was posted, and the end of time while it waits.

        So a job that waits is never old enough to be forgotten.
        """
        if self.ended:
            return self.ended
        if self.state is Outcome.WAITING:
            return math.inf
        return self.posted or self.created

    @property
    def waits_for(self) -> str:
        """What keeps a waiting job from starting, in a few words."""
        predecessors = [f"after {name}" for name in self.after]
        limits = [f"limit {limit}" for limit in self.limits]
        return "; ".join(predecessors + limits) or "for a node"

    def end(self, state: Outcome, now: float, reason: str, *, lost: bool = False) -> "JobRecord":
        """Return what is remembered once it has ended; now: seconds since the epoch."""
        return replace(self, state=state, ended=now, reason=reason, lost=lost)
