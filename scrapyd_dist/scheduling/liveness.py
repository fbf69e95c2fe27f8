"""Judges whether a node answers and starts the jobs that it takes, and how its clock differs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scrapyd_dist.scrapyd.api import Load

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
#: seconds after which a wedged node is given one job as a trial
TRIAL_AFTER = 60.0


@dataclass(kw_only=True)
class WedgeWatch:
    """Keeps the polls in a row that found jobs waiting on a node and none running.

    A job may wait for the node's next poll of its own queue, so polls close together count as one.
    """

    start_delay: float = 0.0  #: longest time from sent to started that was seen there, seconds
    looks: tuple[float, ...] = ()  #: seconds since the epoch, newest last

    @property
    def _apart(self) -> float:
        """Least seconds between two polls that count as two."""
        return max(POLL, self.start_delay)

    def saw(self, load: Load, now: float, *, moved: bool = False) -> None:
        """Add one poll; `moved`: a job is known to have started or ended since the last one."""
        if load.running or not load.pending or moved:
            self.looks = ()
            return
        # after a clock was set back, earlier polls say nothing
        if not self.looks or now < self.looks[-1]:
            self.looks = (now,)
        elif now - self.looks[-1] > self._apart:
            self.looks = (*self.looks, now)[-KEPT:]

    def restart(self, *looks: float) -> None:
        """Forget the polls so far; `looks` are those that count, in seconds since the epoch."""
        self.looks = looks

    def learn_delay(self, seconds: float) -> None:
        """Note how long a job took there from sent to started; the longest counts."""
        self.start_delay = max(self.start_delay, seconds)

    @property
    def since(self) -> float | None:
        """Return when the row of polls began that shows that the node starts nothing.

        It is None without such a row.
        """
        chain: list[float] = []
        for at in reversed(self.looks):
            if not chain or chain[-1] - at > self._apart:
                chain.append(at)
            if len(chain) == LOOKS:
                return at
        return None

    @property
    def wedged(self) -> bool:
        """Return whether the node takes jobs and starts none."""
        return self.since is not None


def moved_since(
    started: Iterable[datetime | None],
    *,
    span: float,
    node_now: datetime | None,
    offsets: Collection[timedelta],
) -> bool:
    """Return whether one of these jobs started or ended within the last `span` seconds.

    The node's UTC clock, `node_now`, counts. A node reports local times without their zone: it is
    true when it holds with one of the possible `offsets` from UTC.
    """
    if node_now is None:
        return False
    now = node_now.replace(tzinfo=None)
    for at in started:
        if at is None:
            continue
        for offset in offsets:
            if -SKEW <= (now + offset - at).total_seconds() <= span:
                return True
    return False


def start_delay_of(sent_and_started: Iterable[tuple[float, float]], skew: float = 0.0) -> float:
    """Return the longest time from sent to started of these jobs, in seconds.

    They were sent by our clock, and started by the node's, which is `skew` seconds ahead.
    """
    longest = 0.0
    for sent, started in sent_and_started:
        delay = started - skew - sent
        if longest < delay <= DELAY_MAX:
            longest = delay
    return longest


def skew_of(node_now: datetime | None, ours: float) -> float | None:
    """Return the node's clock minus ours, in seconds; None where it reports none.

    `node_now` is its Date header, `ours` our clock in the middle of the call.
    """
    if node_now is None:
        return None
    # a Date header has whole seconds: the middle of that second is taken
    return round(node_now.timestamp() + 0.5 - ours, 1)


@dataclass(kw_only=True)
class Liveness:
    """Keeps since when a node has not answered, and since when it has started none of its jobs."""

    down_since: float | None = None  #: seconds since the epoch when it was missed first
    down_reason: str = ""
    has_answered: bool = False  #: whether it has answered a poll of this crawl
    skew: float = 0.0  #: its clock minus ours, seconds
    wedged_since: float | None = None  #: since when it has taken jobs and started none
    trial: bool = False  #: wedged for so long that one job may try it
    wedge_watch: WedgeWatch = field(default_factory=WedgeWatch)

    @property
    def up(self) -> bool:
        """Return whether it answers."""
        return self.down_since is None

    @property
    def down_for(self) -> float:
        """Return the seconds since it was missed first; 0 while it answers."""
        return 0.0 if self.down_since is None else time.time() - self.down_since

    @property
    def wedged(self) -> bool:
        """Return whether it takes jobs and starts none; one may be there as a trial."""
        return self.wedged_since is not None

    @property
    def blocked(self) -> bool:
        """Return whether it is wedged, and not even a trial is due."""
        return self.wedged and not self.trial

    def missed(self, reason: str, now: float) -> None:
        """Note that it did not answer, and why."""
        if self.down_since is None:
            self.down_since = now
        self.down_reason = reason
        self.wedge_watch.restart()

    def answered(self) -> None:
        """Note that it answered."""
        self.down_since = None
        self.down_reason = ""
        self.has_answered = True

    def note_skew(self, skew: float) -> None:
        """Note by how many seconds its clock is ahead of ours."""
        self.skew = skew

    def weigh(self, load: Load, now: float) -> None:
        """Judge by its load whether it starts jobs."""
        if load.running:
            self.wedged_since = None
            self.trial = False
        self.wedge_watch.saw(load, now)
        if self.wedge_watch.wedged:
            if self.wedged_since is None or self.trial:
                self.wedged_since = now
                self.trial = False
        elif self.wedged_since is not None and not load.pending:
            self.trial = now - self.wedged_since >= TRIAL_AFTER

    def gave_up_waiting(self, now: float) -> None:
        """Note that its waiting jobs were taken back since it starts none; a trial comes later."""
        self._watch_anew(wedged_since=now)

    def job_started(self) -> None:
        """Note that it has started a job."""
        self._watch_anew(wedged_since=None)

    def _watch_anew(self, *, wedged_since: float | None) -> None:
        """Begin to watch anew whether it starts jobs."""
        self.wedged_since = wedged_since
        self.trial = False
        self.wedge_watch.restart()
