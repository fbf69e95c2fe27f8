"""`sdist jobs`: lists all jobs of all nodes, with a verdict on each.

A verdict is by the store, a worker's report, or the job's log.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from math import inf
from operator import itemgetter
from typing import Annotated, Any

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.errors import NodeError
from scrapyd_dist.job_record import JobRecord, Outcome, key_of_attempt
from scrapyd_dist.joblogs.log_reads import LogExcerpt, read_log_end
from scrapyd_dist.joblogs.report_reads import fetch_report
from scrapyd_dist.joblogs.verdict import (
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
from scrapyd_dist.progress import labels_of
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.time_spans import describe_span
from scrapyd_dist.transports import sweep

from ..context import Context
from ..options import OnlyLabels, has_labels, option, span
from ..output import Listing, complain_each, say, table
from .job_list import TIMEOUT, JobQuery, Listed, ask_jobs, place_row
from .job_memory import JobMemory, Judged, offsets_of, still_there, verdict_of
from .signals import SentSignals
from .verdict_memory import VerdictMemory, listed_key, offset_of

_STATES = ", ".join(outcome.value for outcome in Outcome)
#: why it is not known how a job ended
FORGOTTEN = "its node forgot it before a command looked, and has no log of it"
#: why it is not known how a job ended whose id was given to another one after it
CAME_AGAIN = "a later job has its id, and the log is that one's"
#: more than a node's local time is behind UTC
ANY_ZONE = timedelta(hours=15)
_COLUMNS = ("node", "project", "spider", "job", "state", "pages", "items", "errors")


@dataclass(frozen=True, kw_only=True)
class Kept:
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


class Judge:
    """Judges jobs, by what the store knows of them too; may be used by many threads at once.

    places: all jobs that are listed; memory: what is remembered of plain jobs, read if left out;
    stall: seconds without progress after which a job is stalled; timeout: seconds that a node gets
    for each answer.
    """

    def __init__(
        self,
        context: Context,
        places: Sequence[Place],
        memory: JobMemory | None = None,
        *,
        stall: float = STALL,
        timeout: float = TIMEOUT,
    ) -> None:
        self.sender = context.sender
        self.timeout = timeout
        self._stall = stall
        self._signals = SentSignals(context.root)
        self._latest = _latest_starts(places)
        self._kept = _kept_of(context, places)
        self.memory = memory or JobMemory(context.store_if_any)
        keys: list[str] = []
        for place in places:
            if isinstance(place, Listed):
                keys += self._keys(place)
        self._verdicts = VerdictMemory(context.store_if_any, keys)

    def judge(self, row: Listed) -> Judged:
        """Return the judgement; a job whose node does not answer is unknown, with the reason."""
        record = self.memory.record_of(row)
        if record is not None and (record.state.over or record.state is Outcome.WAITING):
            return Judged(row=row, verdict=verdict_of(record), record=record)
        if row.silent:
            unknown = Verdict(outcome=Outcome.UNKNOWN, reason=row.silent)
            return Judged(row=row, verdict=unknown, record=record, sure=False)
        if row.state is JobState.PENDING:
            return Judged(row=row, verdict=by_log(row.state, None), record=record)
        try:
            return self._read_known(row) or self._judge_by_node(row, record)
        except NodeError as error:
            outcome = Outcome.RUNNING if row.state is JobState.RUNNING else Outcome.UNKNOWN
            unknown = Verdict(outcome=outcome, reason=error.short)
            return Judged(row=row, verdict=unknown, record=record, sure=False)

    def _read_known(self, row: Listed) -> Judged | None:
        """Return the judgement that was written down when the job had ended."""
        known = self._verdicts.find(self._keys(row))
        if known is None:
            return None
        verdict = by_kept(known, signalled=self._signals.had_no_time(row))
        return Judged(row=row, verdict=verdict, offset=offset_of(known))

    def _judge_by_node(self, row: Listed, record: JobRecord | None) -> Judged:
        """Return the judgement by what its node has of the job; NodeError without an answer."""
        if self.came_again(row):
            unknown = Verdict(outcome=Outcome.UNKNOWN, reason=CAME_AGAIN)
            return Judged(row=row, verdict=unknown, record=record)
        signalled = self._signals.had_no_time(row)
        if record is not None and record.had_no_time:
            signalled = True
        kept = self.of_store(row)
        if kept is None:
            return self._judge_by_log(row, record, None, signalled=signalled)
        verdict = self._judge_ours(row, kept, signalled=signalled)
        if verdict is None:
            return self._judge_by_log(row, record, kept, signalled=signalled)
        # What a crawl had no need of is known at its end.
        return Judged(row=row, verdict=verdict, sure=kept.crawl.state.ended)

    def _judge_by_log(
        self, row: Listed, record: JobRecord | None, kept: Kept | None, *, signalled: bool
    ) -> Judged:
        seen = read_log_end(self.sender, row.node, row.log, timeout=self.timeout)
        verdict = by_log(
            row.state,
            seen,
            stall=self._stall,
            signalled=signalled,
            needless=kept is not None and kept.needless,
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
        return Judged(
            row=row,
            verdict=verdict,
            offset=offset,
            record=record,
            sure=kept is None or kept.crawl.state.ended,
            silent=silent,
            lost=row.remembered and seen is None and is_unknown,
        )

    def came_again(self, place: Place) -> bool:
        """Tell whether a later job of this id is listed, which has this one's log and report."""
        started = _start_of(place)
        return started is not None and started < self._latest.get(_id_of(place), started)

    def _keys(self, row: Listed) -> list[str]:
        """Return the keys of what may be written down of a job that has ended, the surest first."""
        key = listed_key(row)
        if not key:
            return []
        kept = self.of_store(row)
        if kept is None:
            return [key]
        return [key, key_of_attempt(row.node.url, kept.home, row.job)]

    def labels(self, place: Place) -> tuple[str, ...]:
        """Return the labels that the job was given, or its crawl."""
        record = self.memory.record_of(place)
        if record is not None:
            return record.labels
        kept = self.of_store(place)
        if kept is not None:
            return labels_of(kept.crawl)
        return ()

    def all(self, rows: Sequence[Listed]) -> list[Judged]:
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
        kept = self.of_store(place)
        if kept is None:
            return None
        return fetch_report(self.sender, place, kept.home, most=REPORT_BYTES, timeout=self.timeout)

    def of_store(self, place: Place) -> Kept | None:
        """Return what the store knows of this very job.

        None also for a job of another crawl that had the same name.
        """
        kept = self._kept.get(place.job)
        if kept is None or self.came_again(place) or _is_before(place, kept.crawl):
            return None
        is_elsewhere = kept.attempt is not None and kept.attempt.url != place.node.url
        if is_elsewhere:
            return None
        return kept

    def _judge_ours(self, row: Listed, kept: Kept, *, signalled: bool) -> Verdict | None:
        """Return the verdict by the store or the worker's report; None if neither says a thing."""
        attempt = kept.attempt
        if attempt is not None and attempt.state is AttemptState.ACCEPTED:
            return by_kept_report(attempt.report)
        report = self.report(row)
        if report is not None:
            verdict = by_report(row.state, report, signalled=signalled, needless=kept.needless)
            if verdict.outcome is not Outcome.DIED:
                return verdict
            seen = read_log_end(self.sender, row.node, row.log, timeout=self.timeout)
            if seen is None or not seen.facts.last_error:
                return verdict
            return replace(verdict, reason=f"{verdict.reason}; last: {seen.facts.last_error}")
        if attempt is not None and attempt.state is AttemptState.FAILED and not signalled:
            return Verdict(outcome=Outcome.FAILED, reason=attempt.reason)
        return None


def _id_of(place: Place) -> tuple[str, str, str, str]:
    """Return what names a job on its node, and its log."""
    return place.node.url, place.project, place.spider, place.job


def _start_of(place: Place) -> datetime | None:
    return place.started if isinstance(place, Listed) else None


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


def _kept_of(context: Context, places: Sequence[Place]) -> dict[str, Kept]:
    """Return what the project's store knows of those jobs that are of its crawls, by their ids."""
    named: dict[str, list[str]] = {}  # the listed jobs of each crawl
    for place in places:
        if place.crawl is not None:
            named.setdefault(place.crawl, []).append(place.job)
    store = context.store_if_any if named else None
    if store is None:
        return {}
    workers: dict[str, Kept] = {}
    attempts: dict[str, Kept] = {}
    for crawl in store.crawls():
        if crawl.id not in named:
            continue
        workers |= dict.fromkeys(named[crawl.id], Kept(crawl=crawl))
        for attempt in store.attempts(crawl.id):
            attempts[attempt.job] = Kept(crawl=crawl, attempt=attempt)
    return workers | attempts


def look_back(
    context: Context, nodes: Sequence[Node], *, timeout: float = TIMEOUT, since: float | None = None
) -> JobMemory:
    """Return what is remembered of plain jobs, after asking the nodes how the open ones ended.

    since: without those that ended before, in seconds since the epoch; timeout: seconds.
    """
    memory = JobMemory(context.store_if_any, since)
    urls = set[str]()
    for record in memory.records.values():
        if not record.state.over:
            urls.add(record.url)
    if not urls:
        return memory
    asked = [node for node in nodes if node.url in urls]
    listed = ask_jobs(context.sender, asked, timeout=timeout)
    memory.silent = listed.silent
    rows = _to_judge(listed.jobs, memory)
    rows += _to_judge(memory.unlisted(listed, nodes, JobQuery()), memory)
    Judge(context, rows, memory, timeout=timeout).all(rows)
    return memory


def _to_judge(rows: Iterable[Listed], memory: JobMemory) -> list[Listed]:
    """Return those of the jobs that are over, and are remembered as open."""
    found = []
    for row in rows:
        record = memory.record_of(row)
        if record is not None and row.over and not record.state.over:
            found.append(row)
    return found


def list_(
    *,
    context: Context,
    state: Annotated[
        list[Outcome] | None,
        option(f"Only jobs in this state: {_STATES}. Repeatable.", metavar="STATE"),
    ] = None,
    query: JobQuery,
    label: OnlyLabels = None,
    since: Annotated[
        float | None, span("--since", "Only jobs that ran in the last 90 (seconds), 30m, 2h.")
    ] = None,
    stall: Annotated[
        float, option("Time without progress after which a job is stalled.", min=1)
    ] = STALL,
    limit: Annotated[
        int | None, option("Only so many jobs, the newest.", "--limit", "-n", metavar="N", min=1)
    ] = None,
    output: Listing,
) -> int:
    """List the jobs of all nodes, and what each one really did: a failed job is not a finished one.

    A job of a crawl is judged by its worker's report, any other one by the end
    of its log: finished, failed (errors, a feed that could not be stored),
    cancelled, killed (by `sdist jobs cancel`), died (its log just ends), stalled,
    unknown (no log, or one in which LOG_LEVEL, LOG_FORMAT or the like hides the
    end). What was said once of a finished job stays, whatever is removed from its
    node. Exit code 3 when some nodes did not answer. Jobs of `sdist jobs schedule`
    are remembered in the store: they are listed as "remembered" when their nodes
    have forgotten them.

    Example: sdist jobs --state failed --since 24h
    """
    nodes = context.nodes_if_any(query.node)
    listed = query.list_jobs(context, nodes)
    memory = JobMemory(context.store_if_any)
    rows = [*listed.jobs, *memory.unlisted(listed, nodes, query)]
    states = set(state or ())
    if states:
        # No log is read of a job that cannot be in one of the states.
        rows = [row for row in rows if row.remembered or _may_be_in(row, states)]
    judge = Judge(context, rows, memory, stall=stall, timeout=query.timeout)
    chosen = [row for row in rows if has_labels(judge.labels(row), label)]
    jobs = _newest(_rows(judge, judge.all(chosen), states, since), limit)
    unreached = list(map(str, listed.errors))
    document = {"jobs": jobs, "nodes": listed.asked, "unreached": unreached}
    if not output.rows(document, "jobs", "job"):
        _show(jobs, is_complete=not unreached)
    complain_each(listed.errors)
    return listed.exit_code


def _may_be_in(row: Listed, states: Collection[Outcome]) -> bool:
    """Tell whether a job can be in one of the states, as far as its node tells."""
    if row.state is JobState.PENDING:
        return Outcome.PENDING in states
    if row.state is JobState.RUNNING:
        return Outcome.RUNNING in states or Outcome.STALLED in states
    return any(state.over for state in states)


def _rows(
    judge: Judge, judged: Sequence[Judged], states: Collection[Outcome], since: float | None
) -> list[dict[str, Any]]:
    """Return the rows of `--json`, of these states, and of jobs that ran so many seconds ago."""
    now = datetime.now(timezone.utc)
    offset_of = offsets_of(judged)
    rows = []
    for job in judged:
        started, ended = job.times(offset_of(job))
        last = ended
        if last is None and job.verdict.outcome.over:
            last = started  # what waits or runs is of now
        is_recent = since is None or last is None or now - last <= timedelta(seconds=since)
        if is_recent and (not states or job.verdict.outcome in states):
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


def _start_in(row: Mapping[str, Any]) -> float:
    """Return when the job of a row began, in seconds since the epoch; infinity if it has not."""
    if not row["started"]:
        return inf
    return datetime.fromisoformat(row["started"]).timestamp()


def _row(job: Judged, started: datetime | None, ended: datetime | None) -> dict[str, Any]:
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
        return dict.fromkeys(("attempt", "version", "args", "settings"))
    return {
        "attempt": record.attempt,
        "version": record.version,
        "args": dict(record.args),
        "settings": [*record.settings],
    }


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """Return how a job ended and what it did, for `--json`."""
    return {
        "state": verdict.outcome.value,
        "pages": verdict.pages,
        "items": verdict.items,
        "errors": verdict.errors,
    }


def _show(rows: Sequence[dict[str, Any]], *, is_complete: bool) -> None:
    if not rows:
        if is_complete:
            say("No such job.")
        return
    cells = [_cells(row) for row in rows]
    table((*_COLUMNS, "started", "took", ""), cells)


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    started = None
    if row["started"]:
        at = datetime.fromisoformat(row["started"]).astimezone()
        started = at.strftime("%Y-%m-%d %H:%M:%S")
    took = None
    if row["duration_s"] is not None:
        took = describe_span(row["duration_s"])
    remarks = []
    if row["remembered"] and row["state"] != Outcome.WAITING.value:
        remarks.append("remembered")
    if row["reason"]:
        remarks.append(row["reason"])
    values = [row[name] for name in _COLUMNS]
    return (*values, started, took, "; ".join(remarks))
