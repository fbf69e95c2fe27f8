"""Describes the nodes of one crawl and the jobs that run on them. No IO but the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapyd_dist.batches import Attempt, Batch, BatchState, WorkerEntry
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.job_allowance import JobAllowance
from scrapyd_dist.scheduling.liveness import Liveness
from scrapyd_dist.scheduling.node_capacity import NodeCapacity
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scrapyd.api import Load

if TYPE_CHECKING:
    import asyncio

#: jobs that may wait on a node beyond its process slots, so that a freed slot is filled at once
AHEAD = 2
#: seconds before a job's end at which the next one is sent: one poll of ours, and one of the node's
#: own queue
SOON = 12.0
#: requests of a first job after which a node's pace is known
TELLING = 10
#: share of the slots whose pace must be known before batch sizes follow it
MOST_SLOTS = 0.8
#: seconds until a worker's end, as far as polls are concerned: one every two seconds is enough,
#: since the store shows its work, and each poll costs its node and this process some milliseconds
#: of CPU
LASTING = 8.0


class AbandonedJob(NamedTuple):
    """Names a job that was given up, and that its node may not know of yet."""

    job: str
    project: str = ""  #: where it is not the crawl's own


@dataclass
class TimeSpan:
    """Keeps since when something has been so without a break."""

    since: float | None = None  #: seconds since the epoch; None: it is not so

    def goes_on(self, now: float) -> float:
        """Note that it is so now; return for how many seconds it has been."""
        self.since = self.since or now
        return now - self.since

    def end(self) -> None:
        """Note that it is so no more."""
        self.since = None


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
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: where it is not the crawl's own
    #: counts of batches that an earlier process accepted
    recalled: Counter[str] = field(default_factory=Counter)
    #: what it may do without the store; None: it leases its batches, or an earlier process sent it
    allowance: JobAllowance | None = None
    unknown: TimeSpan = field(default_factory=TimeSpan)  #: the node does not know the job
    unheard: TimeSpan = field(default_factory=TimeSpan)  #: there is no report
    #: each question about it fails, though its node answers
    untold: TimeSpan = field(default_factory=TimeSpan)
    to_do: int = field(init=False)  #: requests that have not ended yet

    def __post_init__(self) -> None:
        self.to_do = self.batch.size

    # what happens to it

    def answer_post(self) -> None:
        """Note that its post was answered, and have its node polled at once."""
        self.posted = True
        self.member.poll_now()

    def mark_running(self) -> None:
        """Note that the store has its batch as running."""
        self.batch = replace(self.batch, state=BatchState.RUNNING)

    def allow(self, allowance: JobAllowance) -> None:
        """Set what it may do without the store, before it is posted."""
        self.allowance = allowance

    def accept_report(self, report: WorkerReport, now: float) -> bool:
        """Store a report; return whether it is the first one."""
        first = self.report is None
        self.member.readiness.believe_worker(report.no_lease)
        if first or self.report != report:
            self.changed = now
        self.report = report
        self.to_do = self.batch.size - report.ended_requests
        if report.ended_requests >= TELLING:
            self.member.capacity.note_running_pace(report.pace)
        return first

    def accept_last_report(self, report: WorkerReport) -> None:
        """Store the report of its end."""
        self.report = report

    # how it stands

    @property
    def attempt(self) -> Attempt:
        """Return its attempt as it is stored before the post."""
        node = self.member.node
        return Attempt(
            batch=self.batch.number,
            number=self.number,
            job=self.job,
            node=node.name,
            url=node.url,
            sent_at=self.since,
        )

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
    """Describes a long-lived job that leases batches; `entry` is how the store lists it."""

    entry: WorkerEntry
    dismissed: bool = False  #: it is to end: it was told so, or is told when its node answers
    #: batch and attempt of what it had leased when it may not have heard that it is to end; None:
    #: it was told, or is being told
    unheard_with: frozenset[tuple[int, int]] | None = None
    may_have_heard: bool = False  #: the signal may have reached it, though its node did not say so
    #: polls in a row since then that found nothing leased by it, and it not closing
    _idle_polls: int = 0
    _idle_until: float = 0.0  #: when the report was written that the last of them found
    #: counts of its accepted batches, which are counted there
    counted: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counted = self.recalled.copy()

    @classmethod
    def of_entry(cls, entry: WorkerEntry, member: NodeState, **fields: Any) -> WorkerRun:
        """Return the worker that the store lists so, on this node.

        Where a batch is expected, one with the worker's number and no requests stands for it.
        """
        return cls(
            entry=entry,
            batch=Batch(number=entry.number, size=0, state=BatchState.RUNNING),
            number=1,
            job=entry.job,
            member=member,
            since=entry.since,
            spider=entry.spider,
            project=entry.project,
            **fields,
        )

    @property
    def pool(self) -> str:
        """Return the pool that it leases from."""
        return self.entry.pool

    @property
    def version(self) -> str:
        """Return the version of the code that it runs; empty until that is known."""
        return self.entry.version

    @property
    def introduces(self) -> bool:
        """Return whether it runs only to find out whose code it is."""
        return self.entry.introduces

    def begin_handshake(self) -> None:
        """Let it only say whose code it is."""
        self.entry = replace(self.entry, introduces=True)

    def pin_version(self, version: str) -> None:
        """Let it run this version of its project's code."""
        self.entry = replace(self.entry, version=version)

    def mark_dismissed(self) -> None:
        """Note that it is told to end."""
        self.dismissed = True
        self.unheard_with = None

    def dismiss_again(self, leased: frozenset[tuple[int, int]], *, may_have_heard: bool) -> None:
        """Have it told once more to end, when its node answers.

        `leased`: batch and attempt of what it may be finishing, as it may have heard it.
        """
        self.unheard_with = leased
        self.may_have_heard = may_have_heard
        self._idle_polls = 0

    def goes_on(self, leased: frozenset[tuple[int, int]]) -> bool:
        """Return whether it cannot have heard that it is to end; ask once in a poll of its node.

        It has `leased` batches that it had not when it was told, or is idle and does not close.
        """
        assert self.unheard_with is not None  # noqa: S101 - asked only of one that may not have heard
        if not self.may_have_heard:
            return True
        if leased:
            self._idle_polls = 0
            return bool(leased - self.unheard_with)
        return self._idles_on()

    def _idles_on(self) -> bool:
        """Return whether it has been idle, and not closing, since the signal.

        The first poll has the report from before the signal, and the second one may have.
        """
        report = self.report
        if report is not None and report.closing:
            self._idle_polls = 0
            return False
        self._idle_polls += 1
        is_newer = True
        if report is not None:
            is_newer = report.updated > self._idle_until
            self._idle_until = report.updated
        return self._idle_polls > 2 and is_newer

    def count_home(self, counts: Counter[str]) -> None:
        """Count a batch that has come home no longer as its progress."""
        self.counted.update(counts)

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
    """Describes one node as this crawl knows it, with the jobs that it has there."""

    node: Node
    readiness: Readiness = field(default_factory=Readiness)
    liveness: Liveness = field(default_factory=Liveness)
    capacity: NodeCapacity = field(init=False)
    draining: bool = False  #: a user drains it: no new work
    #: it is in no list of nodes any more: no new work, no polls once its jobs have ended
    left: bool = False
    out: dict[str, JobRun] = field(default_factory=dict)  #: by job id
    #: abandoned jobs that could not be cancelled while it was unreachable
    cancel_later: list[AbandonedJob] = field(default_factory=list)
    jobs: int = 0  #: accepted attempts
    items: int = 0  #: in accepted attempts
    watched: bool = False  #: it is polled
    wake: asyncio.Event = field(default_factory=_event)  #: ends the pause before the next poll

    def __post_init__(self) -> None:
        self.capacity = NodeCapacity(stated=self.node.slots)

    # whether it gets work

    @property
    def up(self) -> bool:
        """Return whether it answers."""
        return self.liveness.up

    @property
    def able(self) -> bool:
        """Return whether it could work, users' wishes aside."""
        return self.up and self.readiness.prepared and not self.readiness.unfit

    @property
    def usable(self) -> bool:
        """Return whether it gets work while it has room."""
        return self.able and not (self.draining or self.left or self.liveness.blocked)

    @property
    def is_vacated(self) -> bool:
        """Return whether its workers are to end."""
        return self.draining or self.left or bool(self.readiness.unfit)

    @property
    def died_before(self) -> bool:
        """Return whether it is a local node that had died before this crawl began.

        It does not come back by itself, as another node does whose machine is restarted.
        """
        is_known = self.up or self.readiness.prepared or self.liveness.has_answered
        return self.node.local and not is_known

    @property
    def crowded_out(self) -> bool:
        """Return whether jobs of others take all its room."""
        if self.out or self.liveness.wedged:
            return False
        return self.capacity.others >= self.capacity.slots + AHEAD

    def room(self) -> int:
        """Return how many more jobs it may get now: those that it can start soon."""
        if not self.usable:
            return 0
        if self.liveness.wedged:
            return 1 - len(self.out)
        slots = self.capacity.likely_slots
        return slots + self.ahead - len(self.out) - self.capacity.others

    def worker_room(self) -> int:
        """Return how many more workers it may get now: none where its jobs are sent."""
        if self.readiness.unreached or not self.usable:
            return 0
        capacity = self.capacity
        return max(0, capacity.slots - len(self.out) - capacity.others - capacity.retired)

    @property
    def ahead(self) -> int:
        """Return how many jobs may wait there: one for each job that ends soon.

        A few may while its pace is unknown.
        """
        if not self.capacity.pace:
            return AHEAD
        soon = SOON * self.capacity.pace
        ending = sum(out.to_do <= soon for out in self.out.values())
        return min(ending, max(AHEAD, self.capacity.slots))

    @property
    def idle_slots(self) -> int:
        """Return the likely slots that no job runs on or waits for."""
        if not self.usable:
            return 0
        return max(0, self.capacity.likely_slots - len(self.out) - self.capacity.others)

    @property
    def state(self) -> str:
        """Return its state in one word, for a summary."""
        if self.left:
            return "left"
        if self.readiness.unfit:
            return "unfit"
        if not self.up:
            return "down"
        if self.liveness.wedged:
            return "wedged"
        return "draining" if self.draining else "up"

    # its place in the fleet

    def leave(self) -> None:
        """Note that it is in no list of nodes any more."""
        self.left = True

    def enter(self, node: Node) -> None:
        """Note that it is listed, with what may have changed of its entry."""
        self.node = node
        self.capacity.restate(node.slots)
        self.left = False

    def drain(self, *, draining: bool) -> None:
        """Note whether a user drains it."""
        self.draining = draining

    # polls

    def begin_watch(self) -> bool:
        """Note that it is polled from now on; return whether it was not."""
        is_new = not self.watched
        self.watched = True
        return is_new

    def end_watch(self) -> None:
        """Note that it is polled no more."""
        self.watched = False

    def begin_poll(self) -> None:
        """Count a call of `poll_now` from now on as one for the next poll."""
        self.wake.clear()

    def poll_now(self) -> None:
        """End the pause before its next poll."""
        self.wake.set()

    def seen(self, load: Load) -> None:
        """Note that it answered, and learn its process slots."""
        self.liveness.answered()
        self.capacity.show(load)

    def weighed(self, load: Load, ours: int | None, now: float) -> None:
        """Judge its load.

        `ours` are our jobs that it had when it was asked, None when that is not known.
        """
        if ours is not None:
            self.capacity.count_others(load, ours)
        self.liveness.weigh(load, now)

    # its jobs

    def add(self, out: JobRun) -> None:
        """Count a job as out there."""
        self.out[out.job] = out

    def drop(self, out: JobRun) -> None:
        """Count a job as out there no more; it may have been dropped before."""
        self.out.pop(out.job, None)

    def ask_last(self, out: JobRun) -> None:
        """Let the other jobs be asked about first the next time."""
        self.out[out.job] = self.out.pop(out.job)

    def cancel_when_up(self, job: AbandonedJob) -> None:
        """Have a job cancelled when it answers again."""
        self.cancel_later.append(job)

    def note_cancelled(self) -> AbandonedJob:
        """Note that the first of the abandoned jobs was cancelled, and return it."""
        return self.cancel_later.pop(0)

    def started(self, out: JobRun) -> None:
        """Learn from a first report how long the node took to start the job."""
        if out.at_once and out.report is not None and out.report.started:
            delay = out.report.started - self.liveness.skew - out.since
            self.liveness.wedge_watch.learn_delay(delay)
        self.liveness.job_started()

    def accepted(self, report: WorkerReport) -> None:
        """Count an accepted attempt, and learn its pace."""
        self.jobs += 1
        self.readiness.part_fetched()
        self.items += report.items
        self.capacity.learn_pace(report)

    def recall_accepted(self, items: int) -> None:
        """Count an attempt with so many items that an earlier process has accepted."""
        self.jobs += 1
        self.items += items

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
        capacity = member.capacity
        if capacity.pace:
            slots += capacity.slots
            seconds += capacity.slots / capacity.pace
    return slots / seconds if slots else 0.0


def settled_pace(members: Sequence[NodeState]) -> float:
    """Return the typical pace, once that of most slots is known: fast nodes report first.

    It is 0 until then.
    """
    slots = 0
    known = 0
    for member in members:
        if member.usable:
            slots += member.capacity.slots
            if member.capacity.pace:
                known += member.capacity.slots
    return typical_pace(members) if known >= slots * MOST_SLOTS else 0.0
