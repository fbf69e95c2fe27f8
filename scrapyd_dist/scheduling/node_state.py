"""The nodes of one crawl and the jobs that run on them, as values and decisions. No IO but the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from scrapyd_dist.batches import Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

if TYPE_CHECKING:
    import asyncio

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

#: process slots assumed for a node that does not state them: Scrapyd's default for one processor
SLOTS_UNKNOWN = 4
#: jobs that may wait on a node beyond its process slots, so that a freed slot is filled at once
AHEAD = 2
#: seconds before a job's end at which the next one is sent: one poll of ours, and one of the node's own queue
SOON = 12.0
#: requests of a first job after which a node's pace is known
TELLING = 10
#: share of the slots whose pace must be known before batch sizes follow it
MOST_SLOTS = 0.8
#: weight of the last job in a node's pace
NEWEST = 0.3
#: seconds after which a wedged node is given one job as a trial
TRIAL_AFTER = 60.0
#: seconds until a worker's end, as far as polls are concerned: one every two seconds is enough, since the store shows
#: its work, and each poll costs its node and this process some milliseconds of CPU
LASTING = 8.0


@dataclass(kw_only=True)
class IdleWatch:
    """The polls in a row that found jobs waiting on a node and none running.

    A job may wait for the node's next poll of its own queue, so polls close together count as one.
    """

    start_delay: float = 0.0  #: longest time from sent to started that was seen there, seconds
    looks: tuple[float, ...] = ()  #: seconds since the epoch, newest last

    @property
    def _apart(self) -> float:
        return max(POLL, self.start_delay)

    def saw(self, load: Load, now: float, *, moved: bool = False) -> None:
        """Take in one poll; `moved`: a job is known to have started or ended since the last one."""
        if load.running or not load.pending or moved:
            self.looks = ()
        elif (
            not self.looks or now < self.looks[-1]
        ):  # after a clock was set back, earlier polls say nothing
            self.looks = (now,)
        elif now - self.looks[-1] > self._apart:
            self.looks = (*self.looks, now)[-KEPT:]

    @property
    def since(self) -> float | None:
        """When the row began that shows that the node starts nothing any more; None without such a row."""
        chain: list[float] = []
        for at in reversed(self.looks):
            if not chain or chain[-1] - at > self._apart:
                chain.append(at)
            if len(chain) == LOOKS:
                return at
        return None

    @property
    def wedged(self) -> bool:
        return self.since is not None


def moved_since(
    started: Iterable[datetime | None],
    *,
    span: float,
    node_now: datetime | None,
    offsets: Iterable[timedelta],
) -> bool:
    """True when one of these jobs started or ended within the last `span` seconds, by the node's UTC clock.

    A node tells local times without their zone: true when it holds with one of the possible offsets from UTC.
    """
    if node_now is None:
        return False
    now = node_now.replace(tzinfo=None)
    ages = [
        (now + offset - at).total_seconds()
        for at in started
        if at is not None
        for offset in offsets
    ]
    return any(-SKEW <= age <= span for age in ages)


def start_delay_of(sent_and_started: Iterable[tuple[float, float]], skew: float = 0.0) -> float:
    """The longest time from sent (by our clock) to started (by the node's, which is `skew` ahead) of jobs, seconds."""
    delays = [started - skew - sent for sent, started in sent_and_started]
    return max((delay for delay in delays if 0 < delay <= DELAY_MAX), default=0.0)


def skew_of(node_now: datetime | None, ours: float) -> float | None:
    """The node's clock (its Date header) minus ours (in the middle of the call), seconds; None where it tells none."""
    # a Date header has whole seconds: the middle of that second is taken
    return None if node_now is None else round(node_now.timestamp() + 0.5 - ours, 1)


class AbandonedJob(NamedTuple):
    """A job that was given up and may not have been told yet."""

    job: str
    project: str = ""  #: where it is not the crawl's own


@dataclass(kw_only=True)
class JobRun:
    """One attempt that is out on a node."""

    batch: Batch
    number: int  #: of the attempt
    job: str
    member: NodeState
    since: float  #: seconds since the epoch when it was sent
    start_by: float  #: seconds since the epoch, by our clock, after which it must not start
    at_once: bool = False  #: a process slot was free for it when it was sent
    posted: bool = False  #: its post has been answered; until then only the poster may end it
    report: WorkerReport | None = None
    changed: float = 0.0  #: when its report last changed, by our clock
    unknown_since: float | None = None  #: since when the node has not known the job
    unheard_since: float | None = None  #: since when there has been no report
    untold_since: float | None = (
        None  #: since when each question about it has failed, though its node answers
    )
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: where it is not the crawl's own
    recalled: Counter[str] = field(
        default_factory=Counter
    )  #: counts of batches that an earlier process accepted
    allowance: dict[str, float] = field(
        default_factory=dict
    )  #: of the crawl's goals, when it was sent
    reserved: int = 0  #: requests in the store that it may make, if it does not ask there
    granted: int = 0  #: how many were reserved when it was sent
    spent: Counter[str] = field(default_factory=Counter)  #: what was counted for them in its place
    to_do: int = field(init=False)  #: requests that have not ended yet

    def __post_init__(self) -> None:
        self.to_do = self.batch.size

    def heard(self, report: WorkerReport, now: float) -> bool:
        """Take in a report; True when it is the first one."""
        first = self.report is None
        self.learn(report)
        if first or self.report != report:
            self.changed = now
        self.report = report
        self.to_do = self.batch.size - report.ended_requests
        if self.member.unproven and report.ended_requests >= TELLING:
            self.member.pace = report.pace
        return first

    def learn(self, report: WorkerReport) -> None:
        """Believe a worker that does not reach the store: it knows better than any guess made here."""
        if report.no_lease and not self.member.deaf:
            self.member.deaf = report.no_lease

    @property
    def given_up(self) -> AbandonedJob:
        return AbandonedJob(self.job, self.project)

    @property
    def to_blame(self) -> bool:
        """True when its death may be caused by its requests."""
        return self.report is not None and self.report.blames_batch

    def progress(self) -> Counter[str]:
        """`WorkerReport.counts` of what is counted nowhere else yet."""
        return self.report.counts if self.report else Counter()

    @property
    def succeeded(self) -> int:
        """At least this many of the ended requests in `progress` gave a result."""
        return max(0, self.progress()["requests"] - self.report.missed) if self.report else 0

    def left(self, now: float) -> float:
        """Seconds until it ends at its pace so far; 0: not known."""
        if self.report is None or not self.report.ended_requests:
            return 0.0
        waiting = self.report.requests - self.report.ended_requests
        pace = self.report.pace or self.report.ended_requests / max(now - self.since, 0.001)
        return waiting / pace


@dataclass(kw_only=True)
class WorkerRun(JobRun):
    """A long-lived job that leases batches; its pseudo batch has the worker's number, and no requests."""

    pool: str
    version: str = ""  #: of another project's code; empty for the crawl's own
    introduces: bool = False  #: it runs only to tell whose code it is
    dismissed: bool = False  #: it was told to end
    counted: Counter[str] = field(
        default_factory=Counter
    )  #: counts of its accepted batches, which are counted there

    @property
    def to_blame(self) -> bool:
        """True unless its report excludes it: it may have died in a batch before it could report."""
        return self.report is None or super().to_blame

    def left(self, now: float) -> float:
        return LASTING

    def progress(self) -> Counter[str]:
        return super().progress() - self.counted


def _event() -> asyncio.Event:
    import asyncio

    return asyncio.Event()


@dataclass(kw_only=True, eq=False)
class NodeState:
    """One node as this crawl knows it."""

    node: Node
    out: dict[str, JobRun] = field(default_factory=dict)
    slots: int = 0
    down_since: float | None = None
    down_reason: str = ""
    prepared: bool = False  #: has the crawl's code
    lost_parts: int = 0  #: parts that could not be fetched from it since the last one that could
    unfit: str = ""  #: why it gets no work although it answers
    unreached: str = (
        ""  #: why its workers do not reach the store, in a crawl that sends it batches then
    )
    deaf: str = ""  #: why its workers cannot follow rules of the throttle
    refusals: int = 0  #: refusals of jobs that it could have taken
    draining: bool = False  #: a user drains it: no new work
    learned: int = 0  #: process slots that it has shown: all in use, or more than were thought possible; 0: not known
    retired: int = (
        0  #: process slots whose workers ended as their settings say, and are not replaced
    )
    left: bool = (
        False  #: it is in no list of nodes any more: no new work, no polls once its jobs have ended
    )
    wedged_since: float | None = None  #: since when it has taken jobs and started none
    trial: bool = False  #: wedged for so long that one job may try it
    idle: IdleWatch = field(default_factory=IdleWatch)
    others: int = 0  #: jobs of others, waiting or running
    pace: float = 0.0  #: requests per second of one job, weighted towards the newest; 0: not known
    unproven: bool = True  #: no job has ended there: its pace is that of a running one
    skew: float = 0.0  #: its clock minus ours, seconds
    #: abandoned jobs that could not be cancelled while it was unreachable
    cancel_later: list[AbandonedJob] = field(default_factory=list)
    jobs: int = 0  #: accepted attempts
    items: int = 0  #: in accepted attempts
    watched: bool = False  #: it is polled
    wake: asyncio.Event = field(default_factory=_event)  #: ends the pause before the next poll
    _proven: int = 1  #: process slots that it has shown, or is about to
    _crowded: int | None = None  #: jobs that ran at the last poll while others waited
    _strange: int = 0  #: jobs of others at the last poll

    def __post_init__(self) -> None:
        self.slots = self.slots or self.node.slots or SLOTS_UNKNOWN

    @property
    def up(self) -> bool:
        return self.down_since is None

    @property
    def down_for(self) -> float:
        """Seconds since it was missed first; 0 while it answers."""
        return 0.0 if self.down_since is None else time.time() - self.down_since

    @property
    def able(self) -> bool:
        """True when it could work, users' wishes aside."""
        return self.up and self.prepared and not self.unfit

    @property
    def usable(self) -> bool:
        """True when it gets work while it has room."""
        waits = self.draining or self.left or (self.wedged_since is not None and not self.trial)
        return self.able and not waits

    @property
    def is_vacated(self) -> bool:
        """Whether its workers are to end."""
        return self.draining or self.left or bool(self.unfit)

    @property
    def crowded_out(self) -> bool:
        """True when jobs of others take all its room."""
        return not self.out and self.wedged_since is None and self.others >= self.slots + AHEAD

    def room(self) -> int:
        """How many more jobs it may get now: those that it can start soon."""
        if not self.usable:
            return 0
        if self.wedged_since is not None:
            return 1 - len(self.out)
        return self.likely_slots + self.ahead - len(self.out) - self.others

    @property
    def ahead(self) -> int:
        """Jobs that may wait there: one for each job that ends soon; a few while its pace is unknown."""
        if not self.pace:
            return AHEAD
        soon = SOON * self.pace
        return min(
            len([1 for out in self.out.values() if out.to_do <= soon]), max(AHEAD, self.slots)
        )

    @property
    def likely_slots(self) -> int:
        """Process slots that batches are cut for: those that it states or has shown, and as many again.

        Too high a guess would make many small batches wait where few large ones could run.
        """
        return self.slots if self.node.slots is not None else min(self.slots, self._proven)

    @property
    def idle_slots(self) -> int:
        """The likely slots that no job runs on or waits for."""
        return max(0, self.likely_slots - len(self.out) - self.others) if self.usable else 0

    @property
    def state(self) -> str:
        """Its state in one word, for a summary."""
        if self.left:
            return "left"
        if self.unfit:
            return "unfit"
        if not self.up:
            return "down"
        return "wedged" if self.wedged_since is not None else "draining" if self.draining else "up"

    # what is learned of it

    def seen(self, load: Load) -> None:
        """It answered. Learns its process slots, unless the target states them: Scrapyd does not tell."""
        self.down_since, self.down_reason = None, ""
        if self.node.slots is not None:
            return
        crowded = load.running if load.pending else None
        if load.running > self.slots:
            self.slots = self.learned = load.running
        elif crowded and crowded == self._crowded:
            self.slots = self.learned = crowded
            self._proven = max(self._proven, crowded)
        elif not load.pending and load.running == self.slots:
            self.slots, self.learned = self.slots + 1, load.running
        if not load.pending and load.running >= self._proven:
            self._proven = load.running * 2
        self._crowded = crowded

    def recall(self, slots: int) -> None:
        """It showed so many process slots in an earlier crawl; 0: it did not."""
        if slots and self.node.slots is None:
            self.slots = self.learned = self._proven = slots

    def weighed(self, load: Load, ours: int | None, now: float) -> None:
        """Judge its load; `ours`: our jobs that it had when it was asked, None when that is not known."""
        if ours is not None:
            strange = max(0, load.pending + load.running - ours)
            # an abandoned job may still be there for a moment: only what two polls agree on belongs to others
            self.others, self._strange = min(strange, self._strange), strange
        if load.running:
            self.wedged_since, self.trial = None, False
        self.idle.saw(load, now)
        if self.idle.wedged:
            if self.wedged_since is None or self.trial:
                self.wedged_since, self.trial = now, False
        elif self.wedged_since is not None and not load.pending:
            self.trial = now - self.wedged_since >= TRIAL_AFTER

    def gave_up_waiting(self, now: float) -> None:
        """Its waiting jobs were taken back since it starts none; another trial comes later."""
        self.wedged_since, self.trial, self.idle.looks = now, False, ()

    def started(self, out: JobRun) -> None:
        """A first report came: learn how long the node took to start the job."""
        if out.at_once and out.report is not None and out.report.started:
            self.idle.start_delay = max(
                self.idle.start_delay, out.report.started - self.skew - out.since
            )
        self.wedged_since, self.trial, self.idle.looks = None, False, ()

    def accepted(self, report: WorkerReport) -> None:
        self.jobs += 1
        self.lost_parts = 0
        self.items += report.items
        if report.pace:
            self.pace = (
                report.pace if self.unproven else self.pace + NEWEST * (report.pace - self.pace)
            )
            self.unproven = False

    def missed(self, reason: str, now: float) -> None:
        if self.down_since is None:
            self.down_since = now
        self.down_reason = reason
        self.idle.looks = ()

    def progress(self) -> Counter[str]:
        """`JobRun.progress` of all jobs that are out."""
        return sum((out.progress() for out in self.out.values()), Counter[str]())


def typical_pace(members: Sequence[NodeState]) -> float:
    """Requests per second of one job on the average slot, by time: slow nodes count fully; 0: not known."""
    known = [(member.slots, member.pace) for member in members if member.pace]
    return (
        sum(slots for slots, _ in known) / sum(slots / pace for slots, pace in known)
        if known
        else 0.0
    )


def settled_pace(members: Sequence[NodeState]) -> float:
    """The typical pace, once that of most slots is known: fast nodes report first. 0 until then."""
    slots = sum(member.slots for member in members if member.usable)
    known = sum(member.slots for member in members if member.usable and member.pace)
    return typical_pace(members) if known >= slots * MOST_SLOTS else 0.0
