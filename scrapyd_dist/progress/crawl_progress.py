"""Measures how the nodes of a crawl get on, and which of their batches lag behind. No IO."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.joblogs.worker_report import counts_of
from scrapyd_dist.progress.rates import Rate
from scrapyd_dist.scheduling.node_state import JobRun, NodeState

#: seconds that a batch must run before it can be a straggler
SLOW_AFTER = 20.0
#: how many times slower than the median a straggler is
SLOW_BY = 4.0
#: minimum number of batches for the median
SLOW_NEEDS = 3
#: number of ended batches whose pace is kept for the median
REMEMBERED = 200
#: seconds before a batch has a pace
TOO_SHORT = 1.0
#: maximum number of stragglers returned
NAMED = 10


@dataclass(kw_only=True)
class Progress:
    """The progress of a crawl's nodes, updated by `look`."""

    _jobs: dict[str, JobRun] = field(default_factory=dict)  #: jobs that are out
    #: job -> when its first report was read; only of jobs that are out
    _first_reports: dict[str, float] = field(default_factory=dict)
    #: node -> `COUNTS` of its attempts that are no longer out
    _ended: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    #: node -> `COUNTS` of all its attempts
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _node_rates: defaultdict[str, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _whole: Rate = field(default_factory=Rate)  #: rates of the whole crawl
    #: requests per second of the batches that ended last
    _batch_paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _now: float = 0.0  #: of the last update

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Add the accepted attempts of an earlier process."""
        for attempt in attempts:
            self._ended[attempt.node].update(counts_of(attempt.report))

    def update(
        self, members: Sequence[NodeState], now: float, *, own_pages: int = 0, own_items: int = 0
    ) -> None:
        """Update counts and rates at `now` by a monotonic clock.

        `own_pages` and `own_items` are what the producer has crawled itself.
        """
        self._now = now
        jobs: dict[str, JobRun] = {}
        for member in members:
            jobs.update(member.out)
        for job in self._jobs.keys() - jobs.keys():
            self._end(self._jobs[job])
            self._first_reports.pop(job, None)
        self._jobs = jobs
        for job, run in jobs.items():
            if run.report is not None:
                self._first_reports.setdefault(job, now)
        self._count_nodes({member.node.name for member in members})
        whole = Counter(pages=own_pages, items=own_items)
        for name, counts in self._counts.items():
            self._node_rates[name].add(now, counts)
            whole.update(counts)
        self._whole.add(now, whole)

    def _end(self, run: JobRun) -> None:
        self._ended[run.member.node.name].update(_counts(run))
        pace = self._compute_pace(run)
        if pace and run.report is not None and run.report.ended:
            self._batch_paces.append(pace)

    def _count_nodes(self, names: Iterable[str]) -> None:
        self._counts = {name: self._ended[name].copy() for name in names}
        for run in self._jobs.values():
            self._counts[run.member.node.name].update(_counts(run))

    def _compute_age(self, run: JobRun) -> float:
        """Return the seconds since its first report."""
        return self._now - self._first_reports.get(run.job, self._now)

    def _compute_pace(self, run: JobRun) -> float | None:
        """Return its requests per second; None until `TOO_SHORT` seconds after its first report."""
        seconds = self._compute_age(run)
        if not run.report or seconds < TOO_SHORT:
            return None
        return run.report.ended_requests / seconds

    def counts(self, node: str) -> Counter[str]:
        """Return the `COUNTS` of all attempts of a node."""
        return self._counts.get(node, Counter())

    def rates(self, node: str | None = None) -> dict[str, float]:
        """Return the growth per second of the `COUNTS` of a node, or of the whole crawl."""
        rate = self._whole if node is None else self._node_rates[node]
        return rate.rates()

    def stragglers(self) -> list[dict[str, Any]]:
        """Return the batches that are far slower than the others, slowest first."""
        running: list[tuple[JobRun, float]] = []
        paces = list(self._batch_paces)
        for run in self._jobs.values():
            pace = self._compute_pace(run)
            if pace is not None:
                running.append((run, pace))
            if pace:
                paces.append(pace)
        if len(paces) < SLOW_NEEDS:
            return []
        usual = median(paces)
        slow = [(run, pace) for run, pace in running if self._is_slow(run, pace, usual)]
        slow.sort(key=itemgetter(1))
        return [self._describe_straggler(run, pace, usual) for run, pace in slow[:NAMED]]

    def _is_slow(self, run: JobRun, pace: float, usual: float) -> bool:
        # A job without a batch is a worker that leases many.
        is_old = self._compute_age(run) >= SLOW_AFTER
        return pace * SLOW_BY < usual and is_old and run.batch.size > 0

    def _describe_straggler(self, run: JobRun, pace: float, usual: float) -> dict[str, Any]:
        return {
            "batch": run.batch.number,
            "attempt": run.number,
            "job": run.job,
            "node": run.member.node.name,
            "for_s": round(self._compute_age(run)),
            "done": run.report.ended_requests if run.report else 0,
            "of": run.batch.size,
            "times_slower": round(usual / pace, 1) if pace else None,
        }


def _counts(run: JobRun) -> Counter[str]:
    """Return the `COUNTS` of a job, without those that an earlier process has counted."""
    if not run.report:
        return Counter()
    return run.report.counts - run.recalled
