"""Judges whether a node that answers also works, and why one does not answer. Values and decisions, no IO."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from scrapyd_dist.errors import NodeError, NoReply

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

#: seconds between two polls of a node's own queue, Scrapyd's default
POLL = 5.0
#: polls in a row that have to find jobs waiting and none running
LOOKS = 3
#: polls that are kept per node
KEPT = 12
#: seconds of clock skew that are worth a message; a Date header has whole seconds
SKEW = 2.0
#: seconds from accepted to started beyond which a clock must be wrong
DELAY_MAX = 600.0


class State(str, Enum):
    """The state of a node."""

    UP = "up"
    DOWN = "down"
    REFUSED = "refused"  #: it refuses us: user name, password, certificate
    BUSY = "busy"  #: connected, but no answer in time: it imports a project, or hangs
    DRAINING = "draining"
    WEDGED = "wedged"  #: jobs wait there, and none is ever started


def state_of(error: NodeError | None, *, wedged: bool = False, draining: bool = False) -> State:
    """The state of a node; wedged goes before draining."""
    if error is None:
        return State.WEDGED if wedged else State.DRAINING if draining else State.UP
    if error.exit_code == 6:
        return State.REFUSED
    return State.BUSY if isinstance(error, NoReply) else State.DOWN


def apart(start_delay: float) -> float:
    """Seconds between two polls below which they count as one.

    Args:
        start_delay: longest time from accepted to started that was seen on this node, seconds.
    """
    return max(POLL, start_delay)


def looked(
    looks: Sequence[float], *, now: float, pending: int, running: int, start_delay: float = 0.0, moved: bool = False
) -> tuple[float, ...]:
    """The polls in a row that found jobs waiting and none running, after one more poll.

    Args:
        looks: the row so far, newest last; seconds since the epoch.
        now: the time of this poll.
        pending: jobs that wait.
        running: jobs that run.
        start_delay: as in `apart`.
        moved: whether a job is known to have started or ended since the last poll.
    """
    if running or not pending or moved:
        return ()
    if not looks or now < looks[-1]:  # after a clock was set back, earlier polls say nothing
        return (now,)
    if now - looks[-1] <= apart(start_delay):
        return tuple(looks)
    return (*looks, now)[-KEPT:]


def is_wedged(looks: Sequence[float], start_delay: float = 0.0) -> bool:
    """True when these polls show that the node starts nothing any more.

    A job may wait for the node's next poll of its own queue, so polls close together count as one.
    """
    return row_of(looks, start_delay) is not None


def row_of(looks: Sequence[float], start_delay: float = 0.0) -> float | None:
    """When the row of polls began that shows it; None without such a row."""
    chain: list[float] = []
    for at in reversed(looks):
        if not chain or chain[-1] - at > apart(start_delay):
            chain.append(at)
        if len(chain) == LOOKS:
            return at
    return None


def moved_since(
    started: Iterable[datetime | None], *, span: float, node_now: datetime | None, offsets: Iterable[timedelta]
) -> bool:
    """True when one of these jobs started or ended within the last `span` seconds.

    A node tells local times without their zone: true when it holds in one of the possible zones.

    Args:
        started: times of the node's jobs, naive.
        span: seconds.
        node_now: the node's clock, UTC.
        offsets: possible offsets of local time from UTC.
    """
    if node_now is None:
        return False
    now = node_now.replace(tzinfo=None)
    ages = [(now + offset - at).total_seconds() for at in started if at is not None for offset in offsets]
    return any(-SKEW <= age <= span for age in ages)


def start_delay_of(sent_and_started: Iterable[tuple[float, float]], skew: float = 0.0) -> float:
    """The longest time from sent to started among these jobs, seconds.

    Args:
        sent_and_started: for each job, when it was sent by our clock and started by the node's.
        skew: the node's clock minus ours, seconds.
    """
    delays = [started - skew - sent for sent, started in sent_and_started]
    return max((delay for delay in delays if 0 < delay <= DELAY_MAX), default=0.0)


def skew_of(node_now: datetime | None, ours: float) -> float | None:
    """The node's clock minus ours, in seconds; None where the node does not tell.

    Args:
        node_now: its Date header; the middle of that second is taken.
        ours: the middle of our request and its answer, seconds since the epoch.
    """
    return None if node_now is None else round(node_now.timestamp() + 0.5 - ours, 1)
