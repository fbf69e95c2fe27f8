"""Learns how many jobs a node runs at once, how many of them are others', and how fast one is."""

from dataclasses import dataclass, field

from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.scrapyd.api import Load

#: process slots assumed for a node that does not state them: Scrapyd's default for one processor
SLOTS_UNKNOWN = 4
#: weight of the last job in a node's pace
NEWEST = 0.3


def jobs_per_slot(jobs: int, slots: int | None) -> float:
    """Return how full a node is; `slots`: its process slots, None where they are not known."""
    return jobs / (slots or SLOTS_UNKNOWN)


@dataclass(kw_only=True)
class NodeCapacity:
    """Keeps the process slots of a node, and the requests per second of a job there."""

    stated: int | None  #: process slots by its target; None: they are learned
    slots: int = field(init=False)  #: process slots: stated, learned, or assumed
    #: process slots that it has shown: all in use, or more than were thought possible; 0: not known
    learned: int = 0
    #: process slots whose workers ended as their settings say, and are not replaced
    retired: int = 0
    others: int = 0  #: jobs of others, waiting or running
    pace: float = 0.0  #: requests per second of one job, weighted towards the newest; 0: not known
    unproven: bool = True  #: no job has ended there: its pace is that of a running one
    _proven: int = 1  #: process slots that it has shown, or is about to
    _crowded: int | None = None  #: jobs that ran at the last poll while others waited
    _strange: int = 0  #: jobs of others at the last poll

    def __post_init__(self) -> None:
        self.slots = self.stated or SLOTS_UNKNOWN

    @property
    def likely_slots(self) -> int:
        """Return the process slots that batches are cut for: those it states or has shown.

        Of those that it has only shown, twice as many count. Too high a guess would make many small
        batches wait where few large ones could run.
        """
        if self.stated is not None:
            return self.slots
        return min(self.slots, self._proven)

    def restate(self, slots: int | None) -> None:
        """Believe what its target states now; None: nothing, and what it has shown counts."""
        self.stated = slots
        if slots is not None:
            self.slots = slots

    def recall(self, slots: int) -> None:
        """Start from the process slots that it showed in an earlier crawl; 0: it showed none."""
        if slots and self.stated is None:
            self._learn_slots(slots)
            self._proven = slots

    def show(self, load: Load) -> None:
        """Learn its process slots from its load, unless the target states them.

        Scrapyd does not report them.
        """
        if self.stated is not None:
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

    def count_others(self, load: Load, ours: int) -> None:
        """Count the jobs of others in its load, of which so many are `ours`."""
        strange = max(0, load.pending + load.running - ours)
        # an abandoned job may still be there for a moment: only what two polls agree on belongs to
        # others
        self.others = min(strange, self._strange)
        self._strange = strange

    def retire_slot(self) -> None:
        """Note that a worker ended as its settings say, and gets no successor."""
        self.retired += 1

    def note_running_pace(self, pace: float) -> None:
        """Take the pace of a running job, as long as none has ended there."""
        if self.unproven:
            self.pace = pace

    def learn_pace(self, report: WorkerReport) -> None:
        """Learn the pace of a job that has ended."""
        if not report.pace:
            return
        if self.unproven:
            self.pace = report.pace
        else:
            self.pace += NEWEST * (report.pace - self.pace)
        self.unproven = False
