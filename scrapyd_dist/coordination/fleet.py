"""The nodes of one crawl as they are now, and the attempts that are out on them. Values and decisions, no IO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from scrapyd_dist.coordination.health import is_wedged, looked
from scrapyd_dist.coordination.poison import blames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.batches import Batch
    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Load

#: process slots of a node that does not say: what Scrapyd makes of one processor
SLOTS_UNKNOWN = 4
#: jobs that may wait on a node beyond its process slots, so that a freed slot never waits for us
AHEAD = 2
#: seconds before a job's end in which the one after it is sent: a look of ours, and one of the node into its queue
SOON = 12.0
#: requests of its first job that have to be done until a node's pace can be told
TELLING = 10
#: share of the slots whose pace has to be known before batches are cut by it
MOST_SLOTS = 0.8
#: how much the last job's pace counts for a node's
NEWEST = 0.3
#: seconds after which a node that had started nothing is given one job to see whether it works again
TRIAL_AFTER = 60.0


class GivenUp(NamedTuple):
    """A job that nobody wants any more, and that may not know it."""

    job: str
    project: str = ""  #: where it is not the crawl's own


@dataclass(kw_only=True)
class Out:
    """One attempt that is out on a node."""

    batch: Batch
    number: int  #: of the attempt
    job: str
    member: Member
    since: float  #: seconds since the epoch when it was sent
    start_by: float  #: seconds since the epoch, by our clock, after which it must not start
    at_once: bool = False  #: a process slot was free for it when it was sent
    posted: bool = False  #: the fate of its post is known; until then only who posts it may end it
    report: Report | None = None
    changed: float = 0.0  #: when its report last changed, by our clock
    unknown_since: float | None = None  #: since when the node says it knows no such job
    unheard_since: float | None = None  #: since when it has had no report
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: likewise
    recalled: tuple[int, int, int] = (0, 0, 0)  #: of its requests, pages and items, those of an earlier process's time
    to_do: int = field(init=False)  #: requests that have not ended yet

    def __post_init__(self) -> None:
        self.to_do = self.batch.size

    def heard(self, report: Report, now: float) -> bool:
        """Take in a report; whether it is the first one."""
        first = self.report is None
        if report.no_lease and not self.member.deaf:  # it knows better than any guess of ours
            self.member.deaf = report.no_lease
        if first or self.report != report:
            self.changed = now
        self.report = report
        self.to_do = self.batch.size - report.ended_requests
        if self.member.unproven and report.ended_requests >= TELLING:
            self.member.pace = report.pace
        return first

    @property
    def given_up(self) -> GivenUp:
        """What is to be cancelled of it."""
        return GivenUp(self.job, self.project)

    @property
    def to_blame(self) -> bool:
        """Whether its death may be the doing of what it worked on."""
        return blames(self.report)

    def progress(self) -> tuple[int, int, int]:
        """Requests ended, pages and items that count nowhere else yet."""
        report = self.report
        return (report.ended_requests, report.pages, report.items) if report else (0, 0, 0)

    @property
    def succeeded(self) -> int:
        """Of the requests that ended and count nowhere else yet, those that gave a result; at least so many."""
        return max(0, self.progress()[0] - self.report.missed) if self.report else 0

    def left(self, now: float) -> float:
        """Seconds until it ends, judged by its pace so far; 0 when nothing is known."""
        if self.report is None or not self.report.ended_requests:
            return 0.0
        waiting = self.report.requests - self.report.ended_requests
        pace = self.report.pace or self.report.ended_requests / max(now - self.since, 0.001)
        return waiting / pace


@dataclass(kw_only=True, eq=False)
class Member:
    """One node as this crawl knows it."""

    node: Node
    out: dict[str, Out] = field(default_factory=dict)
    slots: int = 0
    down_since: float | None = None
    down_reason: str = ""
    prepared: bool = False  #: has the crawl's code
    unfit: str = ""  #: why it gets no work though it answers
    deaf: str = ""  #: why its workers cannot heed rules of the throttle
    refusals: int = 0  #: jobs it refused that it could have taken
    draining: bool = False  #: a person wants it to get no new work
    retired: int = 0  #: process slots whose workers have done what their settings wanted, and get no other one
    left: bool = False  #: it is in no list of nodes any more: no new work, and nobody looks once it has none
    wedged_since: float | None = None  #: it takes jobs and starts none
    trial: bool = False  #: wedged for so long that one job may try it
    idle_looks: tuple[float, ...] = ()  #: see `health.looked`
    start_delay: float = 0.0  #: longest time from sent to started where a slot was free, seconds
    others: int = 0  #: jobs there that are not ours, waiting or running
    pace: float = 0.0  #: requests per second of one job; the newest count most. 0: not known
    unproven: bool = True  #: no job has ended there: its pace is that of one that runs
    skew: float = 0.0  #: its clock minus ours, seconds
    cancel_later: list[GivenUp] = field(default_factory=list)  #: jobs given up while it could not be reached
    jobs: int = 0  #: accepted attempts
    items: int = 0  #: of accepted attempts
    _proven: int = 1  #: process slots that it has shown, or is about to
    _crowded: int | None = None  #: jobs that ran at the last look while others waited
    _strange: int = 0  #: jobs at the last look that were not ours

    def __post_init__(self) -> None:
        self.slots = self.slots or self.node.slots or SLOTS_UNKNOWN

    @property
    def up(self) -> bool:
        return self.down_since is None

    @property
    def able(self) -> bool:
        """Whether it could work, were it not for what people want."""
        return self.down_since is None and self.prepared and not self.unfit

    @property
    def usable(self) -> bool:
        """Whether it gets work, when it has room."""
        return (
            self.down_since is None
            and self.prepared
            and not self.unfit
            and not self.draining
            and not self.left
            and (self.wedged_since is None or self.trial)
        )

    @property
    def crowded_out(self) -> bool:
        """Whether other people's jobs take all the room it has."""
        return not self.out and self.wedged_since is None and self.others >= self.slots + AHEAD

    def room(self) -> int:
        """How many more jobs it may be given now: what it can start soon, and not what others have put there."""
        if not self.usable:
            return 0
        if self.wedged_since is not None:
            return 1 - len(self.out)
        return self.slots + self.ahead - len(self.out) - self.others

    @property
    def ahead(self) -> int:
        """Jobs that may wait there: one for each job that ends soon; while its pace is not known, a few."""
        if not self.pace:
            return AHEAD
        soon = SOON * self.pace
        return min(len([1 for out in self.out.values() if out.to_do <= soon]), max(AHEAD, self.slots))

    @property
    def likely_slots(self) -> int:
        """Process slots to cut batches for: those that it states or has shown, and as many again that may be there.

        A guess that is too high would make many small batches wait where few large ones could run.
        """
        return self.slots if self.node.slots is not None else min(self.slots, self._proven)

    @property
    def idle_slots(self) -> int:
        """Of the likely ones, those that nothing of anybody waits for."""
        return max(0, self.likely_slots - len(self.out) - self.others) if self.usable else 0

    @property
    def free_slots(self) -> int:
        """Process slots that nothing of anybody waits for."""
        return max(0, self.slots - len(self.out) - self.others) if self.usable else 0

    @property
    def state(self) -> str:
        """One word for a summary."""
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
            self.slots = load.running
        elif crowded and crowded == self._crowded:
            self.slots = crowded
            self._proven = max(self._proven, crowded)
        elif not load.pending and load.running == self.slots:
            self.slots += 1
        if not load.pending and load.running >= self._proven:
            self._proven = load.running * 2
        self._crowded = crowded

    def weighed(self, load: Load, ours: int | None, now: float) -> None:
        """Judge what it has to do.

        Args:
            load: its answer.
            ours: our jobs that it had when it was asked; None when that is not known.
            now: seconds since the epoch.
        """
        if ours is not None:
            strange = max(0, load.pending + load.running - ours)
            # A job that was given up may still be there for a moment: what two looks agree in is somebody else's.
            self.others, self._strange = min(strange, self._strange), strange
        if load.running:
            self.wedged_since, self.trial = None, False
        self.idle_looks = looked(
            self.idle_looks, now=now, pending=load.pending, running=load.running, start_delay=self.start_delay
        )
        if is_wedged(self.idle_looks, self.start_delay):
            if self.wedged_since is None or self.trial:
                self.wedged_since, self.trial = now, False
        elif self.wedged_since is not None and not load.pending:
            self.trial = now - self.wedged_since >= TRIAL_AFTER

    def gave_up_waiting(self, now: float) -> None:
        """Its jobs were taken back since it starts none; another trial comes later."""
        self.wedged_since, self.trial, self.idle_looks = now, False, ()

    def started(self, out: Out) -> None:
        """A first report came: how long the node took to start the job."""
        if out.at_once and out.report is not None and out.report.started:
            self.start_delay = max(self.start_delay, out.report.started - self.skew - out.since)
        self.wedged_since, self.trial, self.idle_looks = None, False, ()

    def accepted(self, report: Report) -> None:
        """An attempt there ended well."""
        self.jobs += 1
        self.items += report.items
        if report.pace:
            self.pace = report.pace if self.unproven else self.pace + NEWEST * (report.pace - self.pace)
            self.unproven = False

    def missed(self, reason: str, now: float) -> None:
        """It did not answer."""
        if self.down_since is None:
            self.down_since = now
        self.down_reason = reason
        self.idle_looks = ()

    def progress(self) -> tuple[int, int, int]:
        """Requests ended, pages and items of the attempts that are out."""
        rows = [(0, 0, 0), *(out.progress() for out in self.out.values())]
        requests, pages, items = (sum(column) for column in zip(*rows, strict=True))
        return requests, pages, items


def typical_pace(members: Sequence[Member]) -> float:
    """Requests per second of one job somewhere in the fleet; 0: not known.

    It is the pace at which a batch takes as long as it does on the average slot: slow nodes count fully.
    """
    known = [(member.slots, member.pace) for member in members if member.pace]
    return sum(slots for slots, _ in known) / sum(slots / pace for slots, pace in known) if known else 0.0


def settled_pace(members: Sequence[Member]) -> float:
    """The typical pace, once that of most slots is known: fast nodes are heard of first. 0 until then."""
    slots = sum(member.slots for member in members if member.usable)
    known = sum(member.slots for member in members if member.usable and member.pace)
    return typical_pace(members) if known >= slots * MOST_SLOTS else 0.0
