"""Whether a node that answers also works, and what keeps one that does not answer. Values and decisions, no IO."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from scrapyd_dist.errors import NodeError, NoReply

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

#: seconds between two looks of a node into its own queue, unless its poll_interval says otherwise
POLL = 5.0
#: looks in a row that have to find work waiting and nothing running
LOOKS = 3
#: looks that are remembered of one node
KEPT = 12
#: seconds of difference between two clocks that are worth a word; a Date header counts whole ones
SKEW = 2.0
#: seconds from accepted to started beyond which a clock is wrong, rather than a node slow
DELAY_MAX = 600.0


class State(str, Enum):
    """How a node stands."""

    UP = "up"
    DOWN = "down"
    REFUSED = "refused"  #: it does not let us in: user name, password, certificate
    BUSY = "busy"  #: connected, and no answer in time: it imports a project, or hangs
    DRAINING = "draining"
    WEDGED = "wedged"  #: work waits there, and nothing is ever started


def state_of(error: NodeError | None, *, wedged: bool = False, draining: bool = False) -> State:
    """The one word for a node; that work is stuck there goes before that it is to get no more."""
    if error is None:
        return State.WEDGED if wedged else State.DRAINING if draining else State.UP
    if error.exit_code == 6:
        return State.REFUSED
    return State.BUSY if isinstance(error, NoReply) else State.DOWN


def apart(start_delay: float) -> float:
    """Seconds by which two looks have to differ to be two.

    Args:
        start_delay: the longest time from accepted to started that was seen on this node.
    """
    return max(POLL, start_delay)


def looked(
    looks: Sequence[float], *, now: float, pending: int, running: int, start_delay: float = 0.0, moved: bool = False
) -> tuple[float, ...]:
    """The looks in a row that found work waiting and nothing running, after one more look.

    Args:
        looks: the row so far, newest last; seconds since the epoch.
        now: when this look was.
        pending: jobs that wait.
        running: jobs that run.
        start_delay: as in `apart`.
        moved: a job was started or ended since the last look, as far as one knows.
    """
    if running or not pending or moved:
        return ()
    if not looks or now < looks[-1]:  # a clock that was set back tells nothing about what was before
        return (now,)
    if now - looks[-1] <= apart(start_delay):
        return tuple(looks)
    return (*looks, now)[-KEPT:]


def is_wedged(looks: Sequence[float], start_delay: float = 0.0) -> bool:
    """Whether these looks are enough to say that the node starts nothing any more.

    A job may wait for the node's next look into its queue, so looks close together count as one.
    """
    return row_of(looks, start_delay) is not None


def row_of(looks: Sequence[float], start_delay: float = 0.0) -> float | None:
    """When the row of looks began that says so; None while there is no such row."""
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
    """Whether one of these jobs was started or ended within the last `span` seconds.

    A node tells its local times without their zone, so it is true when it holds in one of the zones that may be meant.

    Args:
        started: times of the node's jobs, naive.
        span: seconds.
        node_now: the node's clock, UTC.
        offsets: what local time may be ahead of UTC by.
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
        skew: the node's clock minus ours.
    """
    delays = [started - skew - sent for sent, started in sent_and_started]
    return max((delay for delay in delays if 0 < delay <= DELAY_MAX), default=0.0)


def skew_of(node_now: datetime | None, ours: float) -> float | None:
    """The node's clock minus ours, in seconds; None where it does not tell.

    Args:
        node_now: its Date header, which counts whole seconds: the middle of that second is taken.
        ours: the middle of our question and its answer, seconds since the epoch.
    """
    return None if node_now is None else round(node_now.timestamp() + 0.5 - ours, 1)
