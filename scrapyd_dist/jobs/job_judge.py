"""Judges jobs: what each really did, by the store, its worker's report, or its log.

The rule it keeps: a node that does not answer decides nothing, and what was said once of a finished
job stays.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.errors import NodeError
from scrapyd_dist.job_record import JobRecord, Outcome, key_of_attempt
from scrapyd_dist.joblogs.log_reads import LogExcerpt, read_log_end
from scrapyd_dist.joblogs.report_reads import fetch_report
from scrapyd_dist.joblogs.verdict import (
    REFUSED,
    STALL,
    Place,
    Verdict,
    by_kept,
    by_kept_report,
    by_log,
    by_report,
)
from scrapyd_dist.joblogs.worker_report import REPORT_BYTES, WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.summary_document import labels_of
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.transports import sweep

from .job_list import TIMEOUT, JobFilter, ListedJob, ask_jobs
from .job_memory import JobMemory
from .job_site import JobSite
from .judged_job import JudgedJob
from .sent_signals import SentSignals
from .verdict_memory import VerdictMemory, listed_key, offset_of

#: seconds for which a job that was written down may still be on its way to its node
ON_ITS_WAY = 300.0
#: seconds without a line, after which a job that its node has forgotten is over; Scrapy writes one
#: each minute
SILENCE = 180.0
#: seconds after a post in which it says nothing that the node does not list the job
JUST_POSTED = 15.0
#: of a job that may go on, since a node's processes outlive it
LOST = "lost: its node does not list it; it is over if its log is still for 3 min"
#: why it is not known how a job ended
FORGOTTEN = "its node forgot it before a command looked, and has no log of it"
#: why it is not known how a job ended whose id was given to another one after it
CAME_AGAIN = "a later job has its id, and the log is that one's"
#: more than a node's local time is behind UTC
ANY_ZONE = timedelta(hours=15)


@dataclass(frozen=True, kw_only=True)
class CrawlJob:
    """What the store knows about one job of a crawl."""

    crawl: Crawl
    #: None of a worker, whose report is in the crawl's folder on its node only
    attempt: Attempt | None = None

    @property
    def home(self) -> str:
        """The crawl's folder in the nodes' logs."""
        return home_of(self.crawl.id, self.crawl.created)

    @property
    def needless(self) -> bool:
        """Whether it is a worker, and its crawl has finished without it."""
        return self.crawl.state is CrawlState.FINISHED and self.attempt is None

    @property
    def of_refused(self) -> bool:
        """Whether it is a worker that was posted before its crawl was refused.

        It has made no request, and what is wrong is said of the crawl.
        """
        return self.crawl.state is CrawlState.REFUSED and self.attempt is None


class JobJudge:
    """Judges jobs, by what the store knows of them too; may be used by many threads at once.

    places: all jobs that are listed; memory: what is remembered of them, read if left out;
    stall: seconds without progress after which a job is stalled; timeout: seconds that a node gets
    for each answer.
    """

    def __init__(
        self,
        site: JobSite,
        places: Sequence[Place],
        memory: JobMemory | None = None,
        *,
        stall: float = STALL,
        timeout: float = TIMEOUT,
    ) -> None:
        self.sender = site.sender
        self.timeout = timeout
        self._stall = stall
        self._signals = SentSignals(site.root)
        self._latest = _latest_starts(places)
        self._crawl_jobs = _find_crawl_jobs(site, places)
        self.memory = memory or _memory_of(site, places)
        keys: list[str] = []
        for place in places:
            if isinstance(place, ListedJob):
                keys += self._keys(place)
        self._verdicts = VerdictMemory(site.store, keys, site.messenger)

    def judge(self, row: ListedJob) -> JudgedJob:
        """Return the judgement; a job whose node does not answer is unknown, with the reason."""
        record = self.memory.record_of(row)
        if record is not None and (record.state.over or record.state is Outcome.WAITING):
            return JudgedJob(row=row, verdict=verdict_of(record), record=record)
        if row.silent:
            unknown = Verdict(outcome=Outcome.UNKNOWN, reason=row.silent)
            return JudgedJob(row=row, verdict=unknown, record=record, sure=False)
        if row.state is JobState.PENDING:
            return JudgedJob(row=row, verdict=by_log(row.state, None), record=record)
        try:
            return self._read_known(row) or self._judge_by_node(row, record)
        except NodeError as error:
            outcome = Outcome.RUNNING if row.state is JobState.RUNNING else Outcome.UNKNOWN
            unknown = Verdict(outcome=outcome, reason=error.short)
            return JudgedJob(row=row, verdict=unknown, record=record, sure=False)

    def _read_known(self, row: ListedJob) -> JudgedJob | None:
        """Return the judgement that was written down when the job had ended."""
        known = self._verdicts.find(self._keys(row))
        if known is None:
            return None
        verdict = by_kept(known, signalled=self._signals.had_no_time(row))
        return JudgedJob(row=row, verdict=verdict, offset=offset_of(known))

    def _judge_by_node(self, row: ListedJob, record: JobRecord | None) -> JudgedJob:
        """Return the judgement by what its node has of the job; NodeError without an answer."""
        if self.came_again(row):
            unknown = Verdict(outcome=Outcome.UNKNOWN, reason=CAME_AGAIN)
            return JudgedJob(row=row, verdict=unknown, record=record)
        signalled = self._signals.had_no_time(row)
        if record is not None and record.had_no_time:
            signalled = True
        crawl_job = self.crawl_job_of(row)
        if crawl_job is None:
            return self._judge_by_log(row, record, None, signalled=signalled)
        if crawl_job.of_refused and row.state is JobState.FINISHED:
            refused = Verdict(outcome=Outcome.CANCELLED, reason=REFUSED)
            return JudgedJob(row=row, verdict=refused)
        verdict = self._judge_ours(row, crawl_job, signalled=signalled)
        if verdict is None:
            return self._judge_by_log(row, record, crawl_job, signalled=signalled)
        # What a crawl had no need of is known at its end.
        return JudgedJob(row=row, verdict=verdict, sure=crawl_job.crawl.state.ended)

    def _judge_by_log(
        self,
        row: ListedJob,
        record: JobRecord | None,
        crawl_job: CrawlJob | None,
        *,
        signalled: bool,
    ) -> JudgedJob:
        seen = read_log_end(self.sender, row.node, row.log, timeout=self.timeout)
        verdict = by_log(
            row.state,
            seen,
            stall=self._stall,
            signalled=signalled,
            needless=crawl_job is not None and crawl_job.needless,
            of_crawl=row.crawl is not None,
        )
        if row.remembered and record is not None:
            verdict = _of_forgotten(record, verdict, seen)
        is_unknown = verdict.outcome is Outcome.UNKNOWN
        offset = None
        silent = None
        if seen is not None:
            offset = seen.offset
            silent = seen.silent
        return JudgedJob(
            row=row,
            verdict=verdict,
            offset=offset,
            record=record,
            sure=crawl_job is None or crawl_job.crawl.state.ended,
            silent=silent,
            lost=row.remembered and seen is None and is_unknown,
        )

    def came_again(self, place: Place) -> bool:
        """Tell whether a later job of this id is listed, which has this one's log and report."""
        started = _start_of(place)
        return started is not None and started < self._latest.get(_id_of(place), started)

    def _keys(self, row: ListedJob) -> list[str]:
        """Return the keys of what may be written down of a job that has ended, the surest first."""
        key = listed_key(row)
        if not key:
            return []
        crawl_job = self.crawl_job_of(row)
        if crawl_job is None:
            return [key]
        return [key, key_of_attempt(row.node.url, crawl_job.home, row.job)]

    def labels(self, place: Place) -> tuple[str, ...]:
        """Return the labels that the job was given, or its crawl."""
        record = self.memory.record_of(place)
        if record is not None:
            return record.labels
        crawl_job = self.crawl_job_of(place)
        if crawl_job is not None:
            return labels_of(crawl_job.crawl)
        return ()

    def all(self, rows: Sequence[ListedJob]) -> list[JudgedJob]:
        """Return the judgement of each, in this order, and write down how those ended."""
        answers = {}
        for answer in sweep(rows, self.judge):
            answers[answer.asked] = answer.value
        judged = []
        for row in rows:
            job = answers[row]
            if job is not None:
                judged.append(job)
        self.memory.learn(judged)
        self._verdicts.learn(judged)
        return judged

    def report(self, place: Place) -> WorkerReport | None:
        """Return the report that our worker left on the node, if it did and can be found."""
        crawl_job = self.crawl_job_of(place)
        if crawl_job is None:
            return None
        return fetch_report(
            self.sender, place, crawl_job.home, most=REPORT_BYTES, timeout=self.timeout
        )

    def crawl_job_of(self, place: Place) -> CrawlJob | None:
        """Return what the store knows of this very job.

        None also for a job of another crawl that had the same name.
        """
        crawl_job = self._crawl_jobs.get(place.job)
        if crawl_job is None or self.came_again(place) or _is_before(place, crawl_job.crawl):
            return None
        attempt = crawl_job.attempt
        if attempt is None or place.node.url == attempt.url:
            return crawl_job
        # A node may be back at another address.
        return crawl_job if place.node.name == attempt.node else None

    def _judge_ours(
        self, row: ListedJob, crawl_job: CrawlJob, *, signalled: bool
    ) -> Verdict | None:
        """Return the verdict by the store or the worker's report; None if neither says a thing."""
        attempt = crawl_job.attempt
        if attempt is not None and attempt.state is AttemptState.ACCEPTED:
            return by_kept_report(attempt.report)
        report = self.report(row)
        if report is not None:
            verdict = by_report(row.state, report, signalled=signalled, needless=crawl_job.needless)
            if verdict.outcome is Outcome.DIED:
                return self._judge_died(row, report, verdict)
            return verdict
        if attempt is not None and attempt.state is AttemptState.FAILED and not signalled:
            return Verdict(outcome=Outcome.FAILED, reason=attempt.reason)
        return None

    def _judge_died(self, row: ListedJob, report: WorkerReport, verdict: Verdict) -> Verdict:
        """Return the verdict on a worker whose report has no end, with what its log says of it."""
        seen = read_log_end(self.sender, row.node, row.log, timeout=self.timeout)
        if seen is None:
            return verdict
        if seen.facts.was_told_to_end:
            verdict = by_report(row.state, report, told_to_end=True)
        if verdict.outcome is not Outcome.DIED or not seen.facts.last_error:
            return verdict
        return replace(verdict, reason=f"{verdict.reason}; last: {seen.facts.last_error}")


def _memory_of(site: JobSite, places: Sequence[Place]) -> JobMemory:
    """Return what is remembered of these jobs, and of the open ones."""
    nodes = dict.fromkeys(place.node for place in places)
    memory = JobMemory(site.store, messenger=site.messenger, most=0, nodes=nodes)
    memory.read_named(place.job for place in places)
    return memory


def _id_of(place: Place) -> tuple[str, str, str, str]:
    """Return what names a job on its node, and its log."""
    return place.node.url, place.project, place.spider, place.job


def _start_of(place: Place) -> datetime | None:
    return place.started if isinstance(place, ListedJob) else None


def _latest_starts(places: Iterable[Place]) -> dict[tuple[str, str, str, str], datetime]:
    """Return when the last job of each listed id began, by its node's clock."""
    latest: dict[tuple[str, str, str, str], datetime] = {}
    for place in places:
        started = _start_of(place)
        if started is not None:
            latest[_id_of(place)] = max(started, latest.get(_id_of(place), started))
    return latest


def _is_before(place: Place, crawl: Crawl) -> bool:
    """Tell whether a job began before there was this crawl, in whatever time zone its node is."""
    started = _start_of(place)
    begun = datetime.fromtimestamp(crawl.created, timezone.utc).replace(tzinfo=None)
    return started is not None and started + ANY_ZONE < begun


def _of_forgotten(record: JobRecord, verdict: Verdict, seen: LogExcerpt | None) -> Verdict:
    """Return the verdict on a job that its node does not list; verdict: that by its log."""
    open_still = still_there(record, seen, time.time())
    if open_still is not None:
        return open_still
    if seen is None and verdict.outcome is Outcome.UNKNOWN:
        return replace(verdict, reason=FORGOTTEN)
    return verdict


def _find_crawl_jobs(site: JobSite, places: Sequence[Place]) -> dict[str, CrawlJob]:
    """Return what the project's store knows of those jobs that are of its crawls, by their ids."""
    named: dict[str, list[str]] = {}  # the listed jobs of each crawl
    for place in places:
        if place.crawl is not None:
            named.setdefault(place.crawl, []).append(place.job)
    store = site.store if named else None
    if store is None:
        return {}
    workers: dict[str, CrawlJob] = {}
    attempts: dict[str, CrawlJob] = {}
    for crawl in store.crawls():
        if crawl.id not in named:
            continue
        workers |= dict.fromkeys(named[crawl.id], CrawlJob(crawl=crawl))
        for attempt in store.attempts(crawl.id):
            attempts[attempt.job] = CrawlJob(crawl=crawl, attempt=attempt)
    return workers | attempts


@dataclass(frozen=True, kw_only=True)
class SettledJobs:
    """What is remembered of plain jobs, after their nodes were asked."""

    memory: JobMemory
    silent: frozenset[str] = frozenset()  #: base addresses of the nodes that did not answer

    @property
    def records(self) -> Collection[JobRecord]:
        """All that is remembered, a record for each attempt."""
        return self.memory.records.values()


def settle_jobs(
    site: JobSite,
    nodes: Sequence[Node],
    *,
    timeout: float = TIMEOUT,
    since: float | None = None,
    most: int | None = None,
) -> SettledJobs:
    """Return what is remembered of plain jobs, after asking the nodes how the open ones ended.

    since: without those that ended before, in seconds since the epoch; most: so many of those that
    ended, the last ones; timeout: seconds.
    """
    memory = JobMemory(site.store, since, site.messenger, most=most, nodes=nodes)
    urls = set[str]()
    for record in memory.records.values():
        if not record.state.over:
            urls.add(record.url)
    if not urls:
        return SettledJobs(memory=memory)
    asked = [node for node in nodes if node.url in urls]
    listed = ask_jobs(site.sender, asked, timeout=timeout)
    rows = _to_judge(listed.jobs, memory)
    rows += _to_judge(memory.unlisted(listed, JobFilter(nodes=nodes)), memory)
    JobJudge(site, rows, memory, timeout=timeout).all(rows)
    return SettledJobs(memory=memory, silent=listed.silent)


def _to_judge(rows: Iterable[ListedJob], memory: JobMemory) -> list[ListedJob]:
    """Return those of the jobs that are over, and are remembered as open."""
    found = []
    for row in rows:
        record = memory.record_of(row)
        if record is not None and row.over and not record.state.over:
            found.append(row)
    return found


def verdict_of(record: JobRecord) -> Verdict:
    """Return the verdict that is remembered; a job that waits has what it waits for as reason."""
    verdict = Verdict(outcome=record.state, **record.result)
    if record.state is Outcome.WAITING:
        return replace(verdict, reason=record.waits_for)
    return verdict


def is_quiet(seen: LogExcerpt) -> bool:
    """Tell whether the log of a job that its node does not list says that it is over."""
    return bool(seen.facts.closed) or seen.silent is None or seen.silent >= SILENCE


def still_there(record: JobRecord, seen: LogExcerpt | None, now: float) -> Verdict | None:
    """Return what is said of a job that its node does not list; None if it is over.

    A node that was killed leaves its jobs running. seen: its log, if there is one.
    """
    if seen is None:
        posted = record.posted or record.created
        if now - posted >= ON_ITS_WAY:
            return None
        reason = LOST if now - posted >= JUST_POSTED else ""
        return Verdict(outcome=Outcome.PENDING, reason=reason)
    if is_quiet(seen):
        return None
    return Verdict(
        outcome=Outcome.RUNNING,
        reason=LOST,
        pages=seen.facts.pages if seen.facts.has_counts else None,
        items=seen.facts.items if seen.facts.has_counts else None,
    )
