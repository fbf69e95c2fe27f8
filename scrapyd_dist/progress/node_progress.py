"""The progress of a crawl's nodes: counts, rates, the time that is left, and batches that lag behind. No IO."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from statistics import median
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.joblogs.worker_report import counts_of
from scrapyd_dist.scheduling.node_state import JobRun, NodeState

#: length of the window in seconds
WINDOW = 30.0
#: maximum number of samples per window
KEPT = 60
#: fraction of the index that must be walked before the total can be estimated from it
KNOWN_FROM = 0.1
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
#: what is counted of the work of jobs, also of attempts that failed later; requests that ended, and those that failed
COUNTS = ("requests", "pages", "items", "failed")


@dataclass(kw_only=True)
class Rate:
    """Growth rates of several counts, which are always added together and in the same order."""

    window: float = WINDOW
    _seen: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)
    _last: tuple[float, tuple[float, ...]] | None = None

    def add(self, now: float, *counts: float) -> None:
        """Record the counts at this time."""
        self._last = now, counts
        if not self._seen or now - self._seen[-1][0] >= self.window / KEPT:
            self._seen.append(self._last)
        while len(self._seen) > 1 and self._seen[1][0] <= now - self.window:
            self._seen.popleft()

    @property
    def span(self) -> float:
        """Seconds between the samples that the rates are computed from; 0 before the second sample."""
        return self._last[0] - self._seen[0][0] if self._last and self._seen else 0.0

    def rates(self) -> tuple[float, ...]:
        """Return the growth per second of each count, never below 0, although a retry may decrease a count."""
        if self._last is None:
            return ()
        (_, before), (_, after), span = self._seen[0], self._last, self.span
        return tuple(max(0.0, (b - a) / span) if span > 0 else 0.0 for a, b in zip(before, after, strict=True))


class KnownTotals(str, Enum):
    """How reliable the total number of requests is, as in the summary."""

    KNOWN = "known"  #: the index is walked
    ESTIMATE = "estimate"  #: extrapolated from the walked part of the index
    AT_LEAST = "at-least"  #: a lower bound


def outlook(
    *, found: int, done: int, rate: float, finding: bool, pages: int = 0, total_pages: int | None = None
) -> dict[str, Any]:
    """The expected number of requests, and the seconds that are left, as a part of the summary.

    `rate` is in requests per second; `finding`: the index is still being walked, of which so many pages are.
    """
    expected, sure = found, KnownTotals.KNOWN
    if finding:
        judged = bool(total_pages) and pages >= KNOWN_FROM * (total_pages or 0)
        sure = KnownTotals.ESTIMATE if judged else KnownTotals.AT_LEAST
        expected = max(found, found * (total_pages or 0) // pages) if judged and pages else found
    left = expected - done
    return {"requests": expected, "sure": sure.value, "eta_s": round(left / rate, 1) if rate > 0 and left > 0 else None}


@dataclass(kw_only=True)
class Progress:
    """The progress of a crawl's nodes, updated by `look`."""

    _jobs: dict[str, JobRun] = field(default_factory=dict)  #: jobs that are out
    _heard: dict[str, float] = field(default_factory=dict)  #: of these, when the first report was read
    #: node -> `COUNTS` of its attempts that are no longer out, and of all
    _ended: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _counts: dict[str, Counter[str]] = field(default_factory=dict)
    _paces: defaultdict[str, Rate] = field(default_factory=lambda: defaultdict(Rate))
    _whole: Rate = field(default_factory=Rate)
    _batch_paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _now: float = 0.0

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Add the accepted attempts of an earlier process."""
        for attempt in attempts:
            self._ended[attempt.node].update(counts_of(attempt.report))

    def look(self, members: Sequence[NodeState], now: float, *, own_pages: int = 0, own_items: int = 0) -> None:
        """Update counts and rates at `now` by a monotonic clock, with what the producer has crawled itself."""
        self._now = now
        out = {job: one for member in members for job, one in member.out.items()}
        for job in self._jobs.keys() - out.keys():
            self._end(self._jobs[job])
            self._heard.pop(job, None)
        self._jobs = out
        for job, one in out.items():
            if one.report is not None:
                self._heard.setdefault(job, now)
        names = {member.node.name for member in members}
        self._counts = {name: self._ended[name].copy() for name in names}
        for one in out.values():
            self._counts[one.member.node.name].update(_counts(one))
        whole = Counter(pages=own_pages, items=own_items)
        for name, counts in self._counts.items():
            self._paces[name].add(now, *(counts[count] for count in COUNTS))
            whole.update(counts)
        self._whole.add(now, *(whole[count] for count in COUNTS))

    def _end(self, out: JobRun) -> None:
        self._ended[out.member.node.name].update(_counts(out))
        pace = self._pace(out)
        if pace and out.report is not None and out.report.ended:
            self._batch_paces.append(pace)

    def _age(self, out: JobRun) -> float:
        """Seconds since its first report."""
        return self._now - self._heard.get(out.job, self._now)

    def _pace(self, out: JobRun) -> float | None:
        """Requests per second since its first report; None before `TOO_SHORT` seconds."""
        seconds = self._age(out)
        return out.report.ended_requests / seconds if out.report and seconds >= TOO_SHORT else None

    def counts(self, node: str) -> Counter[str]:
        """Return the `COUNTS` of a node's jobs."""
        return self._counts.get(node, Counter())

    def rates(self, node: str | None = None) -> dict[str, float]:
        """Return the growth per second of the `COUNTS` of a node, or of the whole crawl."""
        pace = self._whole if node is None else self._paces[node]
        return dict(zip(COUNTS, pace.rates() or [0.0] * len(COUNTS), strict=True))

    def stragglers(self) -> list[dict[str, Any]]:
        """Return the batches that are far slower than the others, slowest first, as a part of the summary."""
        running = [(job, pace) for job in self._jobs.values() if (pace := self._pace(job)) is not None]
        known = [*self._batch_paces, *(pace for _, pace in running if pace)]
        if len(known) < SLOW_NEEDS:
            return []
        usual = median(known)
        slow = [
            (job, pace)
            for job, pace in running
            # A job without a batch is a worker that leases many.
            if pace * SLOW_BY < usual and self._age(job) >= SLOW_AFTER and job.batch.size > 0
        ]
        slow.sort(key=itemgetter(1))
        return [
            {
                "batch": job.batch.number,
                "attempt": job.number,
                "job": job.job,
                "node": job.member.node.name,
                "for_s": round(self._age(job)),
                "done": job.report.ended_requests if job.report else 0,
                "of": job.batch.size,
                "times_slower": round(usual / pace, 1) if pace else None,
            }
            for job, pace in slow[:NAMED]
        ]


def _counts(out: JobRun) -> Counter[str]:
    return out.report.counts - out.recalled if out.report else Counter()
