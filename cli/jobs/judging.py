"""The judgement on many jobs, side by side: by the store, by our worker's report, else by the end of the log."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import NodeError
from scrapyd_dist.jobs.judged import STALL, Outcome, Verdict, by_log, by_report

from .joblist import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta
    from pathlib import Path

    from scrapyd_dist.batches import Attempt
    from scrapyd_dist.jobs.outcome import Report
    from scrapyd_dist.transports import Sender

    from .joblist import Listed
    from .signals import Key

#: bytes of a report that are read; it lists failed URLs
REPORT_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the store knows about one job of a crawl."""

    home: str  #: the crawl's folder in the nodes' logs
    attempt: Attempt | None = None  #: None: a worker, whose word is in that folder only


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One job and the judgement on it."""

    row: Listed
    verdict: Verdict
    offset: timedelta | None = None  #: the node's local time minus UTC, where its log tells


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Judges jobs; may be used by many threads at once."""

    sender: Sender
    kept: Mapping[str, Kept] = field(default_factory=dict)  #: by job id
    signalled: frozenset[Key] = frozenset()
    stall: float = STALL
    timeout: float = TIMEOUT

    def judge(self, row: Listed) -> Judged:
        """The judgement; a job that its node does not tell about is unknown, with the reason."""
        from scrapyd_dist.scrapyd.api import JobState

        from .signals import key_of

        signalled = key_of(row.place) in self.signalled
        if row.state is JobState.PENDING:
            return Judged(row=row, verdict=by_log(row.state, None))
        try:
            verdict = self._of_ours(row, signalled=signalled)
            if verdict is not None:
                return Judged(row=row, verdict=verdict)
            return self._of_any(row, signalled=signalled)
        except NodeError as error:
            outcome = Outcome.RUNNING if row.state is JobState.RUNNING else Outcome.UNKNOWN
            return Judged(row=row, verdict=Verdict(outcome=outcome, reason=error.short))

    def report(self, row: Listed) -> Report | None:
        """The report that our worker left on the node, if it did and can be found."""
        from scrapyd_dist.jobs.outcome import BadReport, read_report, report_path
        from scrapyd_dist.scrapyd import api

        kept = self.of_store(row)
        if kept is None:
            return None
        call = api.fetch(report_path(kept.home, row.place.job), start=0, limit=REPORT_MAX)
        chunk = self.sender.send(row.place.node, call, timeout=self.timeout)
        try:
            return read_report(chunk.body) if chunk is not None else None
        except BadReport:
            return None

    def of_store(self, row: Listed) -> Kept | None:
        """What the store knows of this very job."""
        kept = self.kept.get(row.place.job)
        elsewhere = kept is not None and kept.attempt is not None and kept.attempt.url != row.place.node.url
        return None if elsewhere else kept

    def _of_ours(self, row: Listed, *, signalled: bool) -> Verdict | None:
        from scrapyd_dist.batches import AttemptState

        kept = self.of_store(row)
        if kept is None:
            return None
        attempt = kept.attempt
        if attempt is not None and attempt.state is AttemptState.ACCEPTED:
            return _accepted(attempt.report)
        report = self.report(row)
        if report is not None:
            return by_report(row.state, report, signalled=signalled)
        if attempt is not None and attempt.state is AttemptState.FAILED and not signalled:
            return Verdict(outcome=Outcome.FAILED, reason=attempt.reason)
        return None

    def _of_any(self, row: Listed, *, signalled: bool) -> Judged:
        from scrapyd_dist.jobs.logreads import look

        seen = look(self.sender, row.place.node, row.place.log, timeout=self.timeout)
        verdict = by_log(row.state, seen, stall=self.stall, signalled=signalled)
        return Judged(row=row, verdict=verdict, offset=seen.offset if seen else None)


def _accepted(report: Mapping[str, Any]) -> Verdict:
    stats = report.get("stats") or {}
    missed = int(report.get("missed") or 0)
    return Verdict(
        outcome=Outcome.FINISHED,
        reason=f"{missed} URLs missed" if missed else "",
        pages=int(report.get("pages") or 0),
        items=int(report.get("items") or 0),
        errors=int(stats.get("log_count/ERROR") or 0) + int(stats.get("log_count/CRITICAL") or 0),
    )


def kept_of(root: Path, rows: Iterable[Listed]) -> dict[str, Kept]:
    """What the project's store knows about those of the jobs that belong to its crawls, by job id."""
    from scrapyd_dist.batches import home_of

    from ..storing import maybe_store

    rows = list(rows)
    wanted = {row.place.crawl for row in rows} - {None}
    store = maybe_store(root) if wanted else None
    if store is None:
        return {}
    with closing(store):
        crawls = [crawl for crawl in store.crawls() if crawl.id in wanted]
        homes = {crawl.id: home_of(crawl.id, crawl.created) for crawl in crawls}
        jobs = {row.place.job: row.place.crawl for row in rows}
        workers = {job: Kept(home=homes[crawl]) for job, crawl in jobs.items() if crawl in homes}
        return workers | {
            attempt.job: Kept(home=homes[crawl.id], attempt=attempt)
            for crawl in crawls
            for attempt in store.attempts(crawl.id)
        }
