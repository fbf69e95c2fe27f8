"""Lists jobs with a verdict on each, as documents that a table, JSON or a page can show."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from heapq import nlargest
from math import inf
from operator import itemgetter
from typing import Any

from scrapyd_dist.errors import NodeError
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs.verdict import NEEDLESS, STALL, Place, Verdict
from scrapyd_dist.progress.summary_document import has_labels
from scrapyd_dist.scrapyd.api import JobState

from .job_judge import JobJudge
from .job_list import JobFilter, JobList, ListedJob
from .job_memory import JobMemory
from .job_site import JobSite
from .judged_job import JudgedJob, offsets_of


@dataclass(frozen=True, kw_only=True)
class JobChoice:
    """Which of the jobs are listed."""

    states: frozenset[Outcome] = frozenset()  #: in one of these; empty for any
    labels: Sequence[str] | None = None  #: with all of these
    since: timedelta | None = None  #: that ran so short a time ago
    most: int | None = None  #: so many, the newest
    #: of those that are over only so many are looked at, the last ones: older ones are not read
    newest: int | None = None
    stall: float = STALL  #: seconds without progress after which a job is stalled


@dataclass(frozen=True, kw_only=True)
class JobRows:
    """The jobs of a project, a document for each, and what the nodes answered."""

    rows: Sequence[Mapping[str, Any]]
    listed: JobList
    #: workers left out, which were told to end before they had worked
    needless: int = 0

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """Why those nodes did not answer that count."""
        return self.listed.errors

    def document(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        unreached = list(map(str, self.errors))
        return {"jobs": self.rows, "nodes": self.listed.asked, "unreached": unreached}


def list_jobs(
    site: JobSite, wanted: JobFilter, chosen: JobChoice, names: Sequence[str] = ()
) -> JobRows:
    """Return what each job really did that the nodes list, or that the store remembers.

    names: only jobs with these ids, and those of these crawls; NothingMatched if there is none.
    Workers that their crawl had no need of are left out unless they are named, or their state is
    asked for.
    """
    if names:
        listed, jobs = wanted.named(site, names, gone_too=True)
        last = _last_listed(jobs, chosen.newest)
        rows = _judge_jobs(site, wanted, chosen, last, _remembered(site, wanted, chosen, 0))
        return JobRows(rows=_newest(rows, chosen.most), listed=listed)
    listed = wanted.list_jobs(site)
    most = chosen.newest
    while True:
        memory = _remembered(site, wanted, chosen, most)
        has_all = most is None or max(len(listed.jobs), len(memory.records)) < most
        last = [*_last_listed(listed.jobs, most), *memory.unlisted(listed, wanted)]
        found = _judge_jobs(site, wanted, chosen, last, memory)
        rows = _without_needless(found, chosen.states)
        needless = len(found) - len(rows)
        if most is None or has_all or most - needless >= (chosen.newest or 0):
            return JobRows(rows=_newest(rows, chosen.most), listed=listed, needless=needless)
        most *= 2  # those that are left out stand in the place of others


def _remembered(site: JobSite, wanted: JobFilter, chosen: JobChoice, most: int | None) -> JobMemory:
    """Return what the store remembers; of jobs that are over so many, the last ones."""
    since = None
    if chosen.since is not None:
        since = time.time() - chosen.since.total_seconds()
    return JobMemory(site.store, since, site.messenger, most=most, nodes=wanted.nodes)


def _judge_jobs(
    site: JobSite,
    wanted: JobFilter,
    chosen: JobChoice,
    jobs: list[ListedJob],
    memory: JobMemory,
) -> list[dict[str, Any]]:
    """Return a document for each of the jobs that is chosen."""
    memory.read_named(job.job for job in jobs)
    jobs = _may_be_chosen(jobs, chosen.states)
    judge = JobJudge(site, jobs, memory, stall=chosen.stall, timeout=wanted.timeout)
    labelled = [job for job in jobs if has_labels(judge.labels(job), chosen.labels)]
    return _find_rows(judge, judge.all(labelled), chosen)


def _without_needless(
    rows: list[dict[str, Any]], states: Collection[Outcome]
) -> list[dict[str, Any]]:
    """Return the rows without workers that never worked, unless their state is asked for."""
    if Outcome.CANCELLED in states:
        return rows
    return [row for row in rows if row["reason"] != NEEDLESS]


def _last_listed(jobs: Sequence[ListedJob], most: int | None) -> list[ListedJob]:
    """Return the jobs that are not over, and so many of the others, which began last.

    Those of which only the store knows have no time; they come after all that have one.
    """
    if most is None or len(jobs) <= most:
        return [*jobs]

    def order(place: int) -> tuple[str, int]:
        started = jobs[place].started
        return started.isoformat() if started else "", place

    over = [place for place, job in enumerate(jobs) if job.over]
    kept = {*nlargest(most, over, key=order)}
    return [job for place, job in enumerate(jobs) if not job.over or place in kept]


def _may_be_chosen(jobs: list[ListedJob], states: Collection[Outcome]) -> list[ListedJob]:
    """Leave out jobs that cannot be in one of the states, so that their logs are not read."""
    if not states:
        return jobs
    return [job for job in jobs if job.remembered or _may_be_in(job, states)]


def _may_be_in(row: ListedJob, states: Collection[Outcome]) -> bool:
    """Tell whether a job can be in one of the states, as far as its node tells."""
    if row.state is JobState.PENDING:
        return Outcome.PENDING in states
    if row.state is JobState.RUNNING:
        return Outcome.RUNNING in states or Outcome.STALLED in states
    return any(state.over for state in states)


def _find_rows(
    judge: JobJudge, judged: Sequence[JudgedJob], chosen: JobChoice
) -> list[dict[str, Any]]:
    """Return a document for each of these jobs that is chosen by how it ended, and when."""
    now = datetime.now(timezone.utc)
    offset_of = offsets_of(judged)
    rows = []
    for job in judged:
        started, ended = job.times(offset_of(job))
        last = ended
        if last is None and job.verdict.outcome.over:
            last = started  # what waits or runs is of now
        is_recent = chosen.since is None or last is None or now - last <= chosen.since
        if is_recent and (not chosen.states or job.verdict.outcome in chosen.states):
            row = _row(job, started, ended)
            row["labels"] = [*judge.labels(job.row)]
            rows.append(row)
    return rows


def _newest(rows: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """Return so many of the rows, in their order.

    These are those that have not started, and then those that started last.
    """
    if most is None or len(rows) <= most:
        return rows
    by_start = sorted(enumerate(rows), key=lambda entry: -_start_in(entry[1]))
    newest = sorted(by_start[:most], key=itemgetter(0))
    return [row for _, row in newest]


def newest_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return documents of jobs: those that have not started yet, then those that started last."""
    return sorted(rows, key=lambda row: -_start_in(row))


def choose_first_jobs(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return so many jobs, in their order: those that run, those that wait, then the newest."""
    if len(rows) <= most:
        return [*rows]
    places = sorted(range(len(rows)), key=lambda place: _rank_job(rows[place]))
    return [rows[place] for place in sorted(places[:most])]


def _rank_job(row: Mapping[str, Any]) -> tuple[int, float]:
    """Return what a job is sorted by: the sooner it is to be listed, the lower."""
    state = Outcome(row["state"])
    started = 0.0
    if row["started"]:
        started = datetime.fromisoformat(row["started"]).timestamp()
    if state in {Outcome.RUNNING, Outcome.STALLED}:
        return 0, -started
    return 2 if state.over else 1, -started


def _start_in(row: Mapping[str, Any]) -> float:
    """Return when the job of a row began, in seconds since the epoch; infinity if it has not.

    Of a job that is over without a known beginning it is when it was scheduled.
    """
    began = row["started"]
    if not began and Outcome(row["state"]).over:
        began = row["scheduled"]
    if not began:
        return inf
    return datetime.fromisoformat(began).timestamp()


def _row(job: JudgedJob, started: datetime | None, ended: datetime | None) -> dict[str, Any]:
    row = job.row
    verdict = job.verdict
    duration = None
    if started is not None and ended is not None:
        duration = round((ended - started).total_seconds(), 1)
    return {
        **place_row(row),
        "node": row.node.name if row.node.url else None,
        "crawl": row.crawl,
        **verdict_row(verdict),
        "codes": dict(verdict.codes),
        "started": _iso(started),
        "ended": _iso(ended),
        "duration_s": duration,
        "reason": verdict.reason,
        "remembered": row.remembered,
        **_record_fields(job.record),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _record_fields(record: JobRecord | None) -> dict[str, Any]:
    if record is None:
        return dict.fromkeys(("attempt", "version", "args", "settings", "scheduled"))
    scheduled = datetime.fromtimestamp(record.posted or record.created, timezone.utc)
    return {
        "scheduled": _iso(scheduled),
        "attempt": record.attempt,
        "version": record.version,
        "args": dict(record.args),
        "settings": [*record.settings],
    }


def place_row(place: Place) -> dict[str, Any]:
    """Return what names a job, for JSON."""
    return {
        "node": place.node.name,
        "project": place.project,
        "spider": place.spider,
        "job": place.job,
    }


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Return how a job ended and what it did, for JSON."""
    return {
        "state": verdict.outcome.value,
        "pages": verdict.pages,
        "items": verdict.items,
        "errors": verdict.errors,
    }
