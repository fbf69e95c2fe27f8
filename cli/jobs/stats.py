"""`sdist stats`: what Scrapy counted, added up over the jobs of a crawl or over any jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.joblogs.job_stats import add_up
from scrapyd_dist.joblogs.log_reads import look, survey
from scrapyd_dist.scrapyd.sweep import sweep

from ..candidates import crawls
from ..context import Context
from ..options import Nodes, Timeout
from ..output import Output, say
from .job_list import TIMEOUT, ask_jobs, named, remembered
from .jobs_table import Judge, kept_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.joblogs.job_stats import StatTotal
    from scrapyd_dist.joblogs.joblog import LogFacts

    from .job_list import Listed


def stats(
    *,
    context: Context,
    name: Annotated[
        list[str], typer.Argument(metavar="CRAWL|JOB", autocompletion=crawls, help="Crawls, and ids of jobs.")
    ],
    node: Nodes = None,
    timeout: Timeout = TIMEOUT,
    output: Output,
) -> None:
    """Add up the stats of Scrapy over jobs: sum, least and most of each.

    Of a crawl's batches only the attempts that count are taken. A job without a
    dump of stats, because it runs or died, gives what its log tells: pages,
    items, and how much was logged at each level.

    Example: sdist stats easy-20260102T030405Z
    """
    nodes = context.nodes(node)
    listed = ask_jobs(context.sender, nodes, timeout=timeout)
    rows = named(listed, name, remembered(context, name, nodes))
    judge = Judge(sender=context.sender, kept=kept_of(context.root, rows), timeout=timeout)
    told, silent = _all_stats(judge, rows)
    listed.complain()
    if not told:
        raise NothingMatched(f"None of the {len(rows)} jobs of {', '.join(name)} left stats, nor a log.")
    _show(add_up(told), len(told), silent, output)
    raise typer.Exit(listed.exit_code)


def _all_stats(judge: Judge, rows: Sequence[Listed]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The stats of each job that has any, and the ids of those that have none."""
    told: list[Mapping[str, Any]] = []
    silent = []
    for answer in sweep(rows, lambda row: _stats_of(judge, row)):
        if answer.value:
            told.append(answer.value)
        elif answer.value is not None or answer.error is not None:
            silent.append(answer.asked.place.job)
    return told, sorted(silent)


def _stats_of(judge: Judge, row: Listed) -> Mapping[str, Any] | None:
    """The stats of one job; empty where there are none, None where the job does not count."""
    kept = judge.of_store(row)
    attempt = kept.attempt if kept is not None else None
    if attempt is not None and attempt.state is AttemptState.FAILED:
        return None  # its batch has another attempt, or is dead
    if attempt is not None and attempt.report.get("stats"):
        found: Mapping[str, Any] = attempt.report["stats"]
        return found
    report = judge.report(row)
    if report is not None and report.stats:
        return report.stats
    place = row.place
    seen = look(judge.sender, place.node, place.log, timeout=judge.timeout)
    if seen is None:
        return {}
    if seen.facts.stats is not None:
        return seen.facts.stats
    facts = survey(judge.sender, place.node, place.log, seen.total)
    return _of_log(facts) if facts is not None else {}


def _of_log(facts: LogFacts) -> dict[str, Any]:
    """What a log without a dump tells, under the names that Scrapy has for it."""
    if facts.stats is not None:
        return dict(facts.stats)
    counts: dict[str, Any] = {f"log_count/{level}": count for level, count in sorted(facts.levels.items())}
    if facts.pages is not None:
        counts["response_received_count"] = facts.pages
    if facts.items is not None:
        counts["item_scraped_count"] = facts.items
    return counts


def _show(sums: Mapping[str, StatTotal], jobs: int, silent: Sequence[str], output: Output) -> None:
    rows = []
    for name, one in sums.items():
        told = ", ".join(f"{value} ({count})" if count > 1 else value for value, count in one.values.items())
        numbers = (None, None, None) if one.min is None else (_number(one.sum), _number(one.min), _number(one.max))
        rows.append((name, *numbers, one.jobs, told))
    document = {"jobs": jobs, "silent": silent, "stats": {name: one.document() for name, one in sums.items()}}
    output.table(document, ("stat", "sum", "min", "max", "jobs", ""), rows)
    if silent and not output.as_json:
        say(f"Without stats and log: {', '.join(silent)}.")


def _number(value: float | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else round(value, 3)
