"""`sdist jobs`: all jobs of all nodes, with a verdict on each.

A verdict is by the store, a worker's report, or the job's log.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Annotated, Any

from scrapyd_dist.batches import Attempt, AttemptState, Crawl, CrawlState, home_of
from scrapyd_dist.errors import NodeError
from scrapyd_dist.job_record import JobRecord, Outcome, key_of_attempt
from scrapyd_dist.joblogs.log_reads import look
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
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls import wording
from ..options import OnlyLabels, has_labels, option, span
from ..output import Listing, complain_each, say, table
from .job_list import TIMEOUT, JobQuery, Listed, ask_jobs, fetch_report, place_row
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


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the store knows about one job of a crawl."""

    crawl: Crawl
    attempt: Attempt | None = (
        None  #: None: a worker, whose word is in the crawl's folder on its node only
    )

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

    stall: seconds without progress after which a job is stalled; timeout: seconds that a node gets for each answer.
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
        self.sender, self.timeout, self._stall = context.sender, timeout, stall
        self._signals = SentSignals(context.root)
        self._latest = _latest_starts(places)
        self._kept = _kept_of(context, places)
        self.memory = memory or JobMemory(context.store_if_any)
        listed = (place for place in places if isinstance(place, Listed))
        self._verdicts = VerdictMemory(
            context.store_if_any, (key for row in listed for key in self._keys(row))
        )

    def judge(self, row: Listed) -> Judged:
        """The judgement; a job that its node does not tell about is unknown, with the reason."""
        record = self.memory.of(row)
        if record is not None and (record.state.over or record.state is Outcome.WAITING):
            return Judged(row=row, verdict=verdict_of(record), record=record)
        if row.silent:
            unknown = Verdict(outcome=Outcome.UNKNOWN, reason=row.silent)
            return Judged(row=row, verdict=unknown, record=record, sure=False)
        if row.state is JobState.PENDING:
            return Judged(row=row, verdict=by_log(row.state, None), record=record)
        try:
            return self._known(row) or self._asked(row, record)
        except NodeError as error:
            outcome = Outcome.RUNNING if row.state is JobState.RUNNING else Outcome.UNKNOWN
            return Judged(
                row=row,
                verdict=Verdict(outcome=outcome, reason=error.short),
                record=record,
                sure=False,
            )

    def _known(self, row: Listed) -> Judged | None:
        """The judgement that was written down when the job had ended."""
        verdict = self._verdicts.of(self._keys(row))
        if verdict is None:
            return None
        told = by_kept(verdict, signalled=self._signals.had_no_time(row))
        return Judged(row=row, verdict=told, offset=offset_of(verdict))

    def _asked(self, row: Listed, record: JobRecord | None) -> Judged:
        """The judgement by what its node has of it; `NodeError` when it does not tell."""
        if self.came_again(row):
            return Judged(
                row=row, verdict=Verdict(outcome=Outcome.UNKNOWN, reason=CAME_AGAIN), record=record
            )
        signalled = self._signals.had_no_time(row) or (record is not None and record.had_no_time)
        kept = self.of_store(row)
        verdict = self._of_ours(row, kept, signalled=signalled) if kept is not None else None
        is_sure = (
            kept is None or kept.crawl.state.ended
        )  # what a crawl had no need of is known at its end
        if verdict is not None:
            return Judged(row=row, verdict=verdict, sure=is_sure)
        seen = look(self.sender, row.node, row.log, timeout=self.timeout)
        needless, of_crawl = kept is not None and kept.needless, row.crawl is not None
        verdict = by_log(
            row.state,
            seen,
            stall=self._stall,
            signalled=signalled,
            needless=needless,
            of_crawl=of_crawl,
        )
        if row.remembered and record is not None:
            verdict = still_there(record, seen, time.time()) or verdict
            if seen is None and verdict.outcome is Outcome.UNKNOWN:
                verdict = replace(verdict, reason=FORGOTTEN)
        offset, silent = (seen.offset, seen.silent) if seen else (None, None)
        lost = row.remembered and seen is None and verdict.outcome is Outcome.UNKNOWN
        return Judged(
            row=row,
            verdict=verdict,
            offset=offset,
            record=record,
            sure=is_sure,
            silent=silent,
            lost=lost,
        )

    def came_again(self, place: Place) -> bool:
        """Whether a later job of this id is listed, so that its log and report are not this one's."""
        started = place.started if isinstance(place, Listed) else None
        return started is not None and started < self._latest.get(_id_of(place), started)

    def _keys(self, row: Listed) -> list[str]:
        """The keys of what may be written down of a job that has ended, the surest first."""
        key = listed_key(row)
        kept = self.of_store(row) if key else None
        ours = key_of_attempt(row.node.url, kept.home, row.job) if kept is not None else ""
        return list(filter(None, (key, ours)))

    def labels(self, place: Place) -> tuple[str, ...]:
        """The labels that the job was given, or its crawl."""
        record, kept = self.memory.of(place), self.of_store(place)
        return (
            record.labels
            if record is not None
            else labels_of(kept.crawl)
            if kept is not None
            else ()
        )

    def all(self, rows: Sequence[Listed]) -> list[Judged]:
        """The judgement of each, in this order; how those ended that are remembered is written down."""
        answers = {answer.asked: answer.value for answer in sweep(rows, self.judge)}
        judged = [one for row in rows if (one := answers[row]) is not None]
        self.memory.learn(judged)
        self._verdicts.learn(judged)
        return judged

    def report(self, place: Place) -> WorkerReport | None:
        """The report that our worker left on the node, if it did and can be found."""
        kept = self.of_store(place)
        if kept is None:
            return None
        return fetch_report(self.sender, place, kept.home, most=REPORT_BYTES, timeout=self.timeout)

    def of_store(self, place: Place) -> Kept | None:
        """What the store knows of this very job; None for one of another crawl that had the same name."""
        kept = self._kept.get(place.job)
        if kept is None or self.came_again(place) or _is_before(place, kept.crawl):
            return None
        is_elsewhere = kept.attempt is not None and kept.attempt.url != place.node.url
        return None if is_elsewhere else kept

    def _of_ours(self, row: Listed, kept: Kept, *, signalled: bool) -> Verdict | None:
        attempt = kept.attempt
        if attempt is not None and attempt.state is AttemptState.ACCEPTED:
            return by_kept_report(attempt.report)
        report = self.report(row)
        if report is not None:
            verdict = by_report(row.state, report, signalled=signalled, needless=kept.needless)
            if verdict.outcome is not Outcome.DIED:
                return verdict
            seen = look(self.sender, row.node, row.log, timeout=self.timeout)
            words = seen.facts.last_error if seen is not None else ""
            return replace(verdict, reason=f"{verdict.reason}; last: {words}") if words else verdict
        if attempt is not None and attempt.state is AttemptState.FAILED and not signalled:
            return Verdict(outcome=Outcome.FAILED, reason=attempt.reason)
        return None


def _id_of(place: Place) -> tuple[str, str, str, str]:
    """What names a job on its node, and its log."""
    return place.node.url, place.project, place.spider, place.job


def _latest_starts(places: Iterable[Place]) -> dict[tuple[str, str, str, str], datetime]:
    """Of each id that is listed, when the last job of it began, by its node's clock."""
    latest: dict[tuple[str, str, str, str], datetime] = {}
    for place in places:
        started = place.started if isinstance(place, Listed) else None
        if started is not None:
            latest[_id_of(place)] = max(started, latest.get(_id_of(place), started))
    return latest


def _is_before(place: Place, crawl: Crawl) -> bool:
    """Whether a job began before there was this crawl, in whatever time zone its node is."""
    started = place.started if isinstance(place, Listed) else None
    begun = datetime.fromtimestamp(crawl.created, timezone.utc).replace(tzinfo=None)
    return started is not None and started + ANY_ZONE < begun


def _kept_of(context: Context, places: Sequence[Place]) -> dict[str, Kept]:
    """What the project's store knows about those of the jobs that belong to its crawls, by job id."""
    wanted = {place.crawl for place in places} - {None}
    store = context.store_if_any if wanted else None
    if store is None:
        return {}
    crawls = [crawl for crawl in store.crawls() if crawl.id in wanted]
    known = {crawl.id: Kept(crawl=crawl) for crawl in crawls}
    workers = {place.job: known[crawl] for place in places if (crawl := place.crawl) in known}
    return workers | {
        attempt.job: Kept(crawl=crawl, attempt=attempt)
        for crawl in crawls
        for attempt in store.attempts(crawl.id)
    }


def look_back(
    context: Context, nodes: Sequence[Node], *, timeout: float = TIMEOUT, since: float | None = None
) -> JobMemory:
    """What is remembered of plain jobs, after the nodes have been asked how those ended that were open.

    since: without those that ended before.
    """
    memory = JobMemory(context.store_if_any, since)
    left = {record.url for record in memory.records.values() if not record.state.over}
    if left:
        listed = ask_jobs(
            context.sender, [node for node in nodes if node.url in left], timeout=timeout
        )
        memory.silent = listed.silent
        rows = [row for row in listed.jobs if row.over] + memory.unlisted(listed, nodes, JobQuery())
        rows = [
            row for row in rows if (record := memory.of(row)) is not None and not record.state.over
        ]
        Judge(context, rows, memory, timeout=timeout).all(rows)
    return memory


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
    listed = query.ask(context, nodes)
    memory = JobMemory(context.store_if_any)
    rows = [*listed.jobs, *memory.unlisted(listed, nodes, query)]
    # No log is read of a job that cannot be in one of the states.
    possible = {
        JobState.PENDING: {Outcome.PENDING},
        JobState.RUNNING: {Outcome.RUNNING, Outcome.STALLED},
        JobState.FINISHED: {outcome for outcome in Outcome if outcome.over},
    }
    worth = [row for row in rows if row.remembered or not state or possible[row.state] & set(state)]
    judge = Judge(context, worth, memory, stall=stall, timeout=query.timeout)
    judged = judge.all([row for row in worth if has_labels(judge.labels(row), label)])
    told = _newest(_rows(judge, judged, state or (), since), limit)
    unreached = [str(error) for error in listed.errors]
    document = {"jobs": told, "nodes": listed.asked, "unreached": unreached}
    if not output.rows(document, "jobs", "job") and (told or not unreached):
        _show(told)
    complain_each(listed.errors)
    return listed.exit_code


def _rows(
    judge: Judge, judged: Sequence[Judged], states: Collection[Outcome], since: float | None
) -> list[dict[str, Any]]:
    """The rows of `--json`, of these states, and of jobs that ran within the last `since` seconds."""
    now, rows, offset_of = datetime.now(timezone.utc), [], offsets_of(judged)
    for one in judged:
        started, ended = one.times(offset_of(one))
        last = ended or (
            started if one.verdict.outcome.over else None
        )  # what waits or runs is of now
        recent = since is None or last is None or now - last <= timedelta(seconds=since)
        if recent and (not states or one.verdict.outcome in states):
            rows.append({**_row(one, started, ended), "labels": [*judge.labels(one.row)]})
    return rows


def _newest(rows: list[dict[str, Any]], most: int | None) -> list[dict[str, Any]]:
    """So many of the rows, in their order: those that have not started, and those that started last."""
    if most is None or len(rows) <= most:
        return rows
    starts = [
        (datetime.fromisoformat(row["started"]).timestamp() if row["started"] else inf)
        for row in rows
    ]
    kept = set(sorted(range(len(rows)), key=lambda at: -starts[at])[:most])
    return [row for at, row in enumerate(rows) if at in kept]


def _row(one: Judged, started: datetime | None, ended: datetime | None) -> dict[str, Any]:
    row, verdict, record = one.row, one.verdict, one.record
    return {
        **place_row(row),
        "node": row.node.name if row.node.url else None,
        "crawl": row.crawl,
        **verdict_row(verdict),
        "codes": dict(verdict.codes),
        "started": started.isoformat(timespec="seconds") if started else None,
        "ended": ended.isoformat(timespec="seconds") if ended else None,
        "duration_s": round((ended - started).total_seconds(), 1) if started and ended else None,
        "reason": verdict.reason,
        "remembered": row.remembered,
        "attempt": record.attempt if record else None,
        "version": record.version if record else None,
        "args": dict(record.args) if record else None,
        "settings": [*record.settings] if record else None,
    }


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """How a job ended and what it did, for `--json`."""
    return {
        "state": verdict.outcome.value,
        "pages": verdict.pages,
        "items": verdict.items,
        "errors": verdict.errors,
    }


def _show(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        say("No such job.")
        return
    names = ("node", "project", "spider", "job", "state", "pages", "items", "errors")
    cells = []
    for row in rows:
        at = datetime.fromisoformat(row["started"]).astimezone() if row["started"] else None
        started = at.strftime("%Y-%m-%d %H:%M:%S") if at else None
        took = None if row["duration_s"] is None else wording.clock(row["duration_s"])
        marked = row["remembered"] and row["state"] != Outcome.WAITING.value
        remark = "; ".join(filter(None, ("remembered" if marked else "", row["reason"])))
        cells.append((*(row[name] for name in names), started, took, remark))
    table((*names, "started", "took", ""), cells)
