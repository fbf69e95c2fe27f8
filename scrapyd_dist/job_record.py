"""Plain jobs as values: what is remembered of a job that `sdist schedule` has started, and how jobs end.

Invariant: of settings only the names are told, since their values may be secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Outcome(str, Enum):
    """The state of a job, or its outcome."""

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
        return self not in {Outcome.PENDING, Outcome.RUNNING, Outcome.STALLED}


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job that was started here, as the store remembers it. Times are seconds since the epoch."""

    id: str
    spider: str
    project: str
    version: str
    created: float  #: when it was written down, just before it was posted
    node: str = ""  #: name of its node
    url: str = ""  #: of its node, without credentials
    labels: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  #: names of the settings that it was given
    state: Outcome = Outcome.PENDING
    started: float | None = None
    ended: float | None = None
    reason: str = ""  #: of its state, a few words
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    codes: Mapping[str, int] = field(default_factory=dict)  #: number of responses by status code
