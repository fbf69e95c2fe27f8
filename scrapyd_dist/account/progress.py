"""Tracks the progress of nodes: counts of work done, rates, and stragglers among batches. No IO.

Invariant: work counts when it is done, so an attempt that fails later does not decrease a rate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from scrapyd_dist.account.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.coordination.fleet import Member, Out

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


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of work done by jobs, including attempts that failed later."""

    requests: int = 0  #: requests that ended, successfully or not
    pages: int = 0
    items: int = 0
    failed: int = 0  #: requests

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            requests=self.requests + other.requests,
            pages=self.pages + other.pages,
            items=self.items + other.items,
            failed=self.failed + other.failed,
        )


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A batch that is far slower than the others."""

    batch: int
    attempt: int
    job: str
    node: str
    seconds: float  #: seconds since its worker's first report
    done: int  #: requests
    size: int
    slower: float | None  #: how many times slower than the median; None if no request is done


@dataclass(kw_only=True)
class _Job:
    """An attempt; its `Out` holds its last report."""

    out: Out
    heard: float | None = None  #: when its first report was read

    @property
    def is_batch(self) -> bool:
        """Whether it is a pushed batch, not a worker that leases many."""
        return self.out.batch.size > 0

    @property
    def done(self) -> int:
        return self.out.report.ended_requests if self.out.report else 0

    def counts(self) -> Counts:
        report = self.out.report
        if report is None:
            return Counts()
        requests, pages, items = self.out.recalled
        return Counts(
            requests=max(0, report.ended_requests - requests),
            pages=max(0, report.pages - pages),
            items=max(0, report.items - items),
            failed=report.failed_requests,
        )

    def age(self, now: float) -> float:
        """Seconds since its first report."""
        return now - self.heard if self.heard is not None else 0.0

    def pace(self, now: float) -> float | None:
        """Requests per second since its first report; None before `TOO_SHORT` seconds."""
        seconds = self.age(now)
        return self.done / seconds if seconds >= TOO_SHORT else None


@dataclass(kw_only=True)
class Progress:
    """The progress of a crawl's nodes, updated by `look`."""

    _jobs: dict[str, _Job] = field(default_factory=dict)  #: jobs that are out
    _ended: dict[str, Counts] = field(default_factory=dict)  #: counts of attempts that are no longer out, by node
    _counts: dict[str, Counts] = field(default_factory=dict)  #: counts of all attempts, by node
    _paces: dict[str, Pace] = field(default_factory=dict)
    _whole: Pace = field(default_factory=Pace)
    _batch_paces: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _now: float = 0.0

    def recall(self, attempts: Iterable[Attempt]) -> None:
        """Add the accepted attempts of an earlier process."""
        for attempt in attempts:
            report = attempt.report
            done, missed = int(report.get("done") or 0), int(report.get("missed") or 0)
            counts = Counts(
                requests=done + missed,
                pages=int(report.get("pages") or 0),
                items=int(report.get("items") or 0),
                failed=int(report.get("errors") or 0),
            )
            self._ended[attempt.node] = self._ended.get(attempt.node, Counts()) + counts

    def look(self, members: Sequence[Member], now: float, *, own_pages: int = 0, own_items: int = 0) -> None:
        """Update counts and rates.

        Args:
            members: all nodes.
            now: seconds of a monotonic clock.
            own_pages: pages that the producer itself has crawled.
            own_items: items that the producer has made from them.
        """
        self._now = now
        out = {job: one for member in members for job, one in member.out.items()}
        for job in self._jobs.keys() - out.keys():
            self._end(self._jobs.pop(job), now)
        for job, one in out.items():
            known = self._jobs.setdefault(job, _Job(out=one))
            if known.heard is None and one.report is not None:
                known.heard = now
        self._add_up(members, now)
        whole = sum(self._counts.values(), Counts())
        self._whole.add(now, whole.requests, whole.pages + own_pages, whole.items + own_items, whole.failed)

    def _end(self, job: _Job, now: float) -> None:
        name = job.out.member.node.name
        self._ended[name] = self._ended.get(name, Counts()) + job.counts()
        pace = job.pace(now)
        if pace and job.out.report is not None and job.out.report.ended:
            self._batch_paces.append(pace)

    def _add_up(self, members: Sequence[Member], now: float) -> None:
        self._counts = {member.node.name: self._ended.get(member.node.name, Counts()) for member in members}
        for job in self._jobs.values():
            name = job.out.member.node.name
            self._counts[name] = self._counts.get(name, Counts()) + job.counts()
        for name, counts in self._counts.items():
            pace = self._paces.setdefault(name, Pace())
            pace.add(now, counts.requests, counts.pages, counts.items, counts.failed)

    def counts(self, node: str) -> Counts:
        """Return the counts of a node's jobs."""
        return self._counts.get(node, Counts())

    def rates(self, node: str | None = None) -> tuple[float, float, float, float]:
        """Return requests, pages, items and failed requests per second of a node, or of the whole crawl."""
        pace = self._whole if node is None else self._paces.get(node)
        found = pace.rates() if pace is not None else ()
        requests, pages, items, failed = found or (0.0, 0.0, 0.0, 0.0)
        return requests, pages, items, failed

    def stragglers(self) -> list[Straggler]:
        """Return the batches that are far slower than the others, slowest first."""
        running = {job: pace for job, one in self._jobs.items() if (pace := one.pace(self._now)) is not None}
        known = [*self._batch_paces, *(pace for pace in running.values() if pace)]
        if len(known) < SLOW_NEEDS:
            return []
        usual = median(known)
        slow = [
            job
            for job, pace in running.items()
            if pace * SLOW_BY < usual and self._jobs[job].age(self._now) >= SLOW_AFTER and self._jobs[job].is_batch
        ]
        slow.sort(key=lambda job: running[job])
        return [self._straggler(self._jobs[job], running[job], usual) for job in slow[:NAMED]]

    def _straggler(self, job: _Job, pace: float, usual: float) -> Straggler:
        return Straggler(
            batch=job.out.batch.number,
            attempt=job.out.number,
            job=job.out.job,
            node=job.out.member.node.name,
            seconds=job.age(self._now),
            done=job.done,
            size=job.out.batch.size,
            slower=usual / pace if pace else None,
        )
