"""`sdist jobs`: lists all jobs of all nodes, with a verdict on each.

A verdict is by the store, a worker's report, or the job's log.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.verdict import STALL
from scrapyd_dist.jobs.job_rows import JobChoice, list_jobs, newest_first
from scrapyd_dist.plurals import counted
from scrapyd_dist.time_spans import describe_age, describe_span

from ..context import Context
from ..options import OnlyLabels, option, span
from ..output import Listing, complain_each, say, table
from .job_query import JobQuery

_STATES = ", ".join(outcome.value for outcome in Outcome)
_COLUMNS = ("node", "project", "spider", "job", "state", "pages", "items", "errors")


def list_(
    *,
    context: Context,
    state: Annotated[
        list[Outcome] | None,
        option(
            f"Only jobs in this state: {_STATES}. One that hangs is stalled, and not running."
            " Repeatable.",
            metavar="STATE",
        ),
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
    have forgotten them. Workers that a crawl had no need of are left out, unless
    --state cancelled asks for them.

    Example: sdist jobs --state failed --since 24h
    """
    wanted = query.job_filter(context, context.nodes_if_any(query.node))
    chosen = JobChoice(
        states=frozenset(state or ()),
        labels=label,
        since=None if since is None else timedelta(seconds=since),
        most=limit,
        stall=stall,
    )
    found = list_jobs(context.job_site, wanted, chosen)
    if not found.rows and found.listed.lacking == found.listed.asked > 0:
        raise NothingMatched(
            f"No node has the project {wanted.project!r}."
            " `sdist code versions --projects` lists those there are."
        )
    rows = newest_first(found.rows)
    if not output.rows({**found.document(), "jobs": rows}, "jobs", "job"):
        _show(rows, is_complete=not found.errors)
        if found.needless and not state:
            workers = counted(found.needless, "worker")
            say(f"{workers} that crawls had no need of: sdist jobs --state cancelled")
    complain_each(found.errors)
    return found.listed.exit_code


def _show(rows: Sequence[Mapping[str, Any]], *, is_complete: bool) -> None:
    if not rows:
        if is_complete:
            say("No such job.")
        return
    headings, cells = jobs_table(rows, time.time())
    table(headings, cells, below=("job",))  # whole, since commands are given it


def jobs_table(
    rows: Sequence[Mapping[str, Any]], now: float
) -> tuple[list[str], list[list[object]]]:
    """Return headings and cells of the documents of jobs; now: in seconds since the epoch.

    Jobs of one project have no column for it.
    """
    names = list(_COLUMNS)
    if len({row["project"] for row in rows}) == 1:
        names.remove("project")
    cells = []
    for row in rows:
        values = [row[name] for name in names]
        cells.append([*values, *_times(row, now), _remarks(row)])
    return [*names, "age", "took", ""], cells


def _times(row: Mapping[str, Any], now: float) -> tuple[str | None, str | None]:
    """Return how long ago a job began, and how long it took."""
    age = None
    if row["started"]:
        age = describe_age(now - datetime.fromisoformat(row["started"]).timestamp())
    took = None
    if row["duration_s"] is not None:
        took = describe_span(row["duration_s"])
    return age, took


def _remarks(row: Mapping[str, Any]) -> str:
    remarks = []
    if row["remembered"] and row["state"] != Outcome.WAITING.value:
        remarks.append("remembered")
    if row["reason"]:
        remarks.append(row["reason"])
    return "; ".join(remarks)
