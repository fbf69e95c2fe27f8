"""`sdist jobs`: every job of every node, with what it really did."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.jobs.judged import STALL, Outcome

from .joblist import TIMEOUT, Json, Nodes, Project, Spider, Timeout

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from scrapyd_dist.transports import Sender

    from .joblist import JobList, Listed
    from .judging import Judged

_STATES = ", ".join(outcome.value for outcome in Outcome)


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("jobs")(jobs)


def jobs(
    state: Annotated[
        Optional[list[Outcome]], typer.Option(help=f"Only jobs in this state: {_STATES}. Repeatable.", metavar="STATE")
    ] = None,
    node: Nodes = None,
    project: Project = None,
    spider: Spider = None,
    since: Annotated[
        Optional[str], typer.Option(metavar="TIME", help="Only jobs that ran in the last 90 (seconds), 30m, 2h.")
    ] = None,
    stall: Annotated[
        float, typer.Option(help="Minutes without progress after which a job is stalled.", min=0.1)
    ] = STALL / 60,
    timeout: Timeout = TIMEOUT,
    as_json: Json = False,
) -> None:
    """List the jobs of all nodes, and what each one really did: a failed job is not a finished one.

    A job of a crawl is judged by its worker's report, any other one by the end
    of its log: finished, failed (errors, a feed that could not be stored),
    cancelled, killed (by `sdist cancel`), died (its log just ends), stalled,
    unknown (no log). Exit code 3 when some nodes did not answer.

    Example: sdist jobs --state failed --since 24h
    """
    from scrapyd_dist.config import load

    from ..crawls.crawl import seconds
    from ..fleet import chosen_nodes
    from .joblist import ask_jobs, make_sender

    span = seconds("--since", since)
    found = load()
    nodes, sender = chosen_nodes(found, node), make_sender()
    listed = ask_jobs(sender, nodes, project=project, spider=spider, timeout=timeout)
    judged = _judged(found.root, sender, _worth(listed, state or ()), stall * 60, timeout)
    rows = _rows(judged, state or (), span)
    if as_json:
        from ..speaking import put_json

        unreached = [str(error) for error in listed.errors]
        put_json({"jobs": rows, "nodes": listed.asked, "unreached": unreached})
    elif rows or not listed.errors:
        _show(rows)
    listed.complain()
    raise typer.Exit(listed.exit_code)


def _worth(listed: JobList, states: Collection[Outcome]) -> list[Listed]:
    """The jobs that can be in one of these states, so that no log is read in vain."""
    from scrapyd_dist.scrapyd.api import JobState

    possible = {
        JobState.PENDING: {Outcome.PENDING},
        JobState.RUNNING: {Outcome.RUNNING, Outcome.STALLED},
        JobState.FINISHED: {outcome for outcome in Outcome if outcome.over},
    }
    return [row for row in listed.jobs if not states or possible[row.state] & set(states)]


def _judged(root: Path, sender: Sender, rows: Sequence[Listed], stall: float, timeout: float) -> list[Judged]:
    """The judgements, in the order of the rows."""
    from scrapyd_dist.scrapyd.sweep import sweep

    from .judging import Judge, kept_of
    from .signals import noted

    judge = Judge(
        sender=sender, kept=kept_of(root, rows), signalled=frozenset(noted(root)), stall=stall, timeout=timeout
    )
    answers = {id(answer.asked): answer.value for answer in sweep(rows, judge.judge)}
    return [judged for row in rows if (judged := answers[id(row)]) is not None]


def _rows(judged: Sequence[Judged], states: Collection[Outcome], span: float | None) -> list[dict[str, Any]]:
    """The rows of `--json`, of these states, and of jobs that ran within the last `span` seconds."""
    offsets = {one.row.place.node.url: one.offset for one in judged if one.offset is not None}
    here = datetime.now(timezone.utc).astimezone().utcoffset() or timedelta()
    rows = []
    for one in judged:
        offset = offsets.get(one.row.place.node.url, here)
        if (not states or one.verdict.outcome in states) and _is_recent(one, offset, span):
            rows.append(_row(one, offset))
    return rows


def _is_recent(one: Judged, offset: timedelta, span: float | None) -> bool:
    last = one.row.ended or (one.row.started if one.verdict.outcome.over else None)
    if span is None or last is None:
        return True  # what waits or runs is of now
    return datetime.now(timezone.utc) - _utc(last, offset) <= timedelta(seconds=span)


def _utc(local: datetime, offset: timedelta) -> datetime:
    return (local - offset).replace(tzinfo=timezone.utc)


def _row(one: Judged, offset: timedelta) -> dict[str, Any]:
    place, verdict = one.row.place, one.verdict
    started, ended = one.row.started, one.row.ended
    return {
        "node": place.node.name,
        "project": place.project,
        "spider": place.spider,
        "job": place.job,
        "crawl": place.crawl,
        "state": verdict.outcome.value,
        "pages": verdict.pages,
        "items": verdict.items,
        "errors": verdict.errors,
        "started": _utc(started, offset).isoformat(timespec="seconds") if started else None,
        "ended": _utc(ended, offset).isoformat(timespec="seconds") if ended else None,
        "duration_s": round((ended - started).total_seconds(), 1) if started and ended else None,
        "reason": verdict.reason,
    }


def _show(rows: Sequence[dict[str, Any]]) -> None:
    from ..crawls import words
    from ..render import table
    from ..speaking import say

    if not rows:
        say("No such job.")
        return
    names = ("node", "spider", "job", "state", "pages", "items", "errors")
    table(
        (*names, "started", "took", ""),
        [
            (
                *(row[name] for name in names),
                _here(row["started"]),
                None if row["duration_s"] is None else words.clock(row["duration_s"]),
                row["reason"],
            )
            for row in rows
        ],
    )


def _here(moment: str | None) -> str | None:
    """A moment by the clock of this machine."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else None
