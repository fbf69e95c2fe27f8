"""Describes the nodes of one crawl and the jobs that run on them. No IO but the clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
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
#: seconds before a job's end at which the next one is sent: one poll of ours, and one of the node's
#: own queue
SOON = 12.0
#: requests of a first job after which a node's pace is known
TELLING = 10
#: share of the slots whose pace must be known before batch sizes follow it
MOST_SLOTS = 0.8
#: weight of the last job in a node's pace
NEWEST = 0.3
#: seconds after which a wedged node is given one job as a trial
TRIAL_AFTER = 60.0
#: seconds until a worker's end, as far as polls are concerned: one every two seconds is enough,
#: since the store shows its work, and each poll costs its node and this process some milliseconds
#: of CPU
LASTING = 8.0


@dataclass(kw_only=True)
class IdleWatch:
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


class AbandonedJob(NamedTuple):
    """Names a job that was given up, and that its node may not know of yet."""

    job: str
    project: str = ""  #: where it is not the crawl's own


@dataclass(kw_only=True)
class JobRun:
    """Describes one attempt that is out on a node."""

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
    #: since when each question about it has failed, though its node answers
    untold_since: float | None = None
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: where it is not the crawl's own
    #: counts of batches that an earlier process accepted
    recalled: Counter[str] = field(default_factory=Counter)
    #: name -> what is left of each of the crawl's goals, when it was sent
    allowance: dict[str, float] = field(default_factory=dict)
    reserved: int = 0  #: requests in the store that it may make, if it does not ask there
    granted: int = 0  #: how many were reserved when it was sent
    spent: Counter[str] = field(default_factory=Counter)  #: what was counted for them in its place
    to_do: int = field(init=False)  #: requests that have not ended yet

    def __post_init__(self) -> None:
        self.to_do = self.batch.size

    def accept_report(self, report: WorkerReport, now: float) -> bool:
        """Store a report; return whether it is the first one."""
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
        """Believe a worker that does not reach the store: it knows better than any guess here."""
        if report.no_lease and not self.member.throttle_problem:
            self.member.throttle_problem = report.no_lease

    @property
    def given_up(self) -> AbandonedJob:
        """Return this job as one to be cancelled."""
        return AbandonedJob(self.job, self.project)

    @property
    def to_blame(self) -> bool:
        """Return whether its death may be caused by its requests."""
        return self.report is not None and self.report.blames_batch

    def progress(self) -> Counter[str]:
        """Return `WorkerReport.counts` of what is counted nowhere else yet."""
        return self.report.counts if self.report else Counter()

    @property
    def succeeded(self) -> int:
        """Return how many of the ended requests in `progress` gave a result, at least."""
        if self.report is None:
            return 0
        return max(0, self.progress()["requests"] - self.report.missed)

    def left(self, now: float) -> float:
        """Return the seconds until it ends at its pace so far; 0: not known."""
        if self.report is None or not self.report.ended_requests:
            return 0.0
        waiting = self.report.requests - self.report.ended_requests
        pace = self.report.pace or self.report.ended_requests / max(now - self.since, 0.001)
        return waiting / pace


@dataclass(kw_only=True)
class WorkerRun(JobRun):
    """Describes a long-lived job that leases batches.

    Its pseudo batch has the worker's number, and no requests.
    """

    pool: str
    version: str = ""  #: of another project's code; empty for the crawl's own
    introduces: bool = False  #: it runs only to find out whose code it is
    dismissed: bool = False  #: it was told to end
    #: counts of its accepted batches, which are counted there
    counted: Counter[str] = field(default_factory=Counter)

    @property
    def to_blame(self) -> bool:
        """Return whether its requests may have caused its death; its report may exclude it.

        It may have died in a batch before it could report.
        """
        return self.report is None or super().to_blame

    def left(self, now: float) -> float:  # noqa: ARG002 - a worker has no known end
        """Return `LASTING`: it ends when there is no more work."""
        return LASTING

    def progress(self) -> Counter[str]:
        """Return the counts of what it has done in batches that are not accepted yet."""
        return super().progress() - self.counted


def _event() -> asyncio.Event:
    import asyncio  # noqa: PLC0415 - the help of a command, which needs the names here only, loads no event loop

    return asyncio.Event()


@dataclass(kw_only=True, eq=False)
class NodeState:
    """Describes one node as this crawl knows it."""

    node: Node
    out: dict[str, JobRun] = field(default_factory=dict)  #: by job id
    slots: int = 0  #: process slots: stated, learned, or assumed
    down_since: float | None = None  #: seconds since the epoch when it was missed first
    down_reason: str = ""
    prepared: bool = False  #: has the crawl's code
    lost_parts: int = 0  #: parts that could not be fetched from it since the last one that could
    unfit: str = ""  #: why it gets no work although it answers
    #: why its workers do not reach the store, in a crawl that sends it batches then
    unreached: str = ""
    throttle_problem: str = ""  #: why its workers cannot follow rules of the throttle
    refusals: int = 0  #: refusals of jobs that it could have taken
    draining: bool = False  #: a user drains it: no new work
    #: process slots that it has shown: all in use, or more than were thought possible; 0: not known
    learned: int = 0
    #: process slots whose workers ended as their settings say, and are not replaced
    retired: int = 0
    #: it is in no list of nodes any more: no new work, no polls once its jobs have ended
    left: bool = False
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
        """Return whether it answers."""
        return self.down_since is None

    @property
    def down_for(self) -> float:
        """Return the seconds since it was missed first; 0 while it answers."""
        return 0.0 if self.down_since is None else time.time() - self.down_since

    @property
    def able(self) -> bool:
        """Return whether it could work, users' wishes aside."""
        return self.up and self.prepared and not self.unfit

    @property
    def usable(self) -> bool:
        """Return whether it gets work while it has room."""
        waits = self.draining or self.left or (self.wedged_since is not None and not self.trial)
        return self.able and not waits

    @property
    def is_vacated(self) -> bool:
        """Return whether its workers are to end."""
        return self.draining or self.left or bool(self.unfit)

    @property
    def crowded_out(self) -> bool:
        """Return whether jobs of others take all its room."""
        return not self.out and self.wedged_since is None and self.others >= self.slots + AHEAD

    def room(self) -> int:
        """Return how many more jobs it may get now: those that it can start soon."""
        if not self.usable:
            return 0
        if self.wedged_since is not None:
            return 1 - len(self.out)
        return self.likely_slots + self.ahead - len(self.out) - self.others

    @property
    def ahead(self) -> int:
        """Return how many jobs may wait there: one for each job that ends soon.

        A few may while its pace is unknown.
        """
        if not self.pace:
            return AHEAD
        soon = SOON * self.pace
        ending = sum(out.to_do <= soon for out in self.out.values())
        return min(ending, max(AHEAD, self.slots))

    @property
    def likely_slots(self) -> int:
        """Return the process slots that batches are cut for: those it states or has shown.

        Of those that it has only shown, twice as many count. Too high a guess would make many small
        batches wait where few large ones could run.
        """
        if self.node.slots is not None:
            return self.slots
        return min(self.slots, self._proven)

    @property
    def idle_slots(self) -> int:
        """Return the likely slots that no job runs on or waits for."""
        if not self.usable:
            return 0
        return max(0, self.likely_slots - len(self.out) - self.others)

    @property
    def state(self) -> str:
        """Return its state in one word, for a summary."""
        if self.left:
            return "left"
        if self.unfit:
            return "unfit"
        if not self.up:
            return "down"
        if self.wedged_since is not None:
            return "wedged"
        return "draining" if self.draining else "up"

    # what is learned about the node

    def seen(self, load: Load) -> None:
        """Note that it answered, and learn its process slots, unless the target states them.

        Scrapyd does not report them.
        """
        self.down_since = None
        self.down_reason = ""
        if self.node.slots is not None:
            return
        crowded = load.running if load.pending else None
        if load.running > self.slots:
            self._learn_slots(load.running)
        elif crowded and crowded == self._crowded:
            self._learn_slots(crowded)
            self._proven = max(self._proven, crowded)
        elif not load.pending and load.running == self.slots:
            # all are in use and nothing waits: there may be one more
            self.learned = load.running
            self.slots += 1
        if not load.pending and load.running >= self._proven:
            self._proven = load.running * 2
        self._crowded = crowded

    def _learn_slots(self, slots: int) -> None:
        self.slots = slots
        self.learned = slots

    def recall(self, slots: int) -> None:
        """Start from the process slots that it showed in an earlier crawl; 0: it showed none."""
        if slots and self.node.slots is None:
            self._learn_slots(slots)
            self._proven = slots

    def weighed(self, load: Load, ours: int | None, now: float) -> None:
        """Judge its load.

        `ours` are our jobs that it had when it was asked, None when that is not known.
        """
        if ours is not None:
            strange = max(0, load.pending + load.running - ours)
            # an abandoned job may still be there for a moment: only what two polls agree on belongs
            # to others
            self.others = min(strange, self._strange)
            self._strange = strange
        if load.running:
            self.wedged_since = None
            self.trial = False
        self.idle.saw(load, now)
        if self.idle.wedged:
            if self.wedged_since is None or self.trial:
                self.wedged_since = now
                self.trial = False
        elif self.wedged_since is not None and not load.pending:
            self.trial = now - self.wedged_since >= TRIAL_AFTER

    def gave_up_waiting(self, now: float) -> None:
        """Note that its waiting jobs were taken back since it starts none; a trial comes later."""
        self._watch_anew(wedged_since=now)

    def started(self, out: JobRun) -> None:
        """Learn from a first report how long the node took to start the job."""
        if out.at_once and out.report is not None and out.report.started:
            delay = out.report.started - self.skew - out.since
            self.idle.start_delay = max(self.idle.start_delay, delay)
        self._watch_anew(wedged_since=None)

    def _watch_anew(self, *, wedged_since: float | None) -> None:
        """Begin to watch anew whether it starts jobs."""
        self.wedged_since = wedged_since
        self.trial = False
        self.idle.looks = ()

    def accepted(self, report: WorkerReport) -> None:
        """Count an accepted attempt, and learn its pace."""
        self.jobs += 1
        self.lost_parts = 0
        self.items += report.items
        if not report.pace:
            return
        if self.unproven:
            self.pace = report.pace
        else:
            self.pace += NEWEST * (report.pace - self.pace)
        self.unproven = False

    def missed(self, reason: str, now: float) -> None:
        """Note that it did not answer, and why."""
        if self.down_since is None:
            self.down_since = now
        self.down_reason = reason
        self.idle.looks = ()

    def progress(self) -> Counter[str]:
        """Return the sum of `JobRun.progress` of all jobs that are out."""
        total: Counter[str] = Counter()
        for out in self.out.values():
            total += out.progress()
        return total


def typical_pace(members: Sequence[NodeState]) -> float:
    """Return the requests per second of one job on the average slot; 0: not known.

    The average is by time: slow nodes count fully.
    """
    slots = 0
    seconds = 0.0  # that these slots take for one request each, added up
    for member in members:
        if member.pace:
            slots += member.slots
            seconds += member.slots / member.pace
    return slots / seconds if slots else 0.0


def settled_pace(members: Sequence[NodeState]) -> float:
    """Return the typical pace, once that of most slots is known: fast nodes report first.

    It is 0 until then.
    """
    slots = 0
    known = 0
    for member in members:
        if member.usable:
            slots += member.slots
            if member.pace:
                known += member.slots
    return typical_pace(members) if known >= slots * MOST_SLOTS else 0.0
