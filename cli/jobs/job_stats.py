"""`sdist jobs stats`: adds up what Scrapy counted, over named jobs and crawls, or over a time."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.joblogs.joblog import StatTotal
from scrapyd_dist.jobs.job_list import TIMEOUT
from scrapyd_dist.jobs.job_sums import (
    NamedSums,
    SpiderSums,
    WindowSums,
    sum_ended_jobs,
    sum_named_jobs,
)
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.time_spans import describe_typed_span

from ..context import Context
from ..options import Nodes, OnlyLabels, Spider, Timeout, argument, crawls, span
from ..output import Output, complain_each, put, say, table
from .job_query import JobQuery


def stats(
    *,
    context: Context,
    name: Annotated[
        list[str] | None, argument("CRAWL|JOB", "Crawls, and ids of jobs.", crawls)
    ] = None,
    since: Annotated[
        float | None,
        span("--since", "Instead: of all jobs that ended in the last 90 (seconds), 30m, 24h."),
    ] = None,
    label: OnlyLabels = None,
    spider: Spider = None,
    node: Nodes = None,
    timeout: Timeout = TIMEOUT,
    output: Output,
) -> int:
    """Add up the stats of Scrapy over jobs: sum, least and most of each.

    Each batch of a crawl counts as a job where it was sent to a node, and each
    worker where they lease their batches. Of batches only the attempts that count
    are taken. A job without a dump of stats, because it runs or died, gives what
    its log tells: pages, items, and how much was logged at each level.

    With --since: of all jobs of `sdist jobs schedule` and all batches of crawls
    that ended since then, from what the store remembers of them: pages, items,
    errors, responses by status code; first by spider, where FAILED has what failed
    or died. Each attempt at a batch counts as a job; JOBS says how many left a stat.

    Example: sdist jobs stats --since 24h --label night=1
    """
    names = name or ()
    if bool(names) == (since is not None) or (names and (label or spider)):
        raise ConfigError(
            "Name crawls and jobs; or say --since TIME, which --label and --spider narrow down. One"
            " of the two."
        )
    if since is not None:
        query = JobQuery(node=node, spider=spider, timeout=timeout)
        wanted = query.job_filter(context, context.nodes_if_any(node))
        window = sum_ended_jobs(context.job_site, wanted, time.time() - since, label)
        _show_window(window, since, output)
        return 0
    wanted = JobQuery(node=node, timeout=timeout).job_filter(context)
    found = sum_named_jobs(context.job_site, wanted, names)
    complain_each(found.errors)
    _show_sums(found.document(), found.sums, output)
    if not output.as_json:
        _remark(found)
    return found.listed.exit_code


def _show_window(found: WindowSums, span: float, output: Output) -> None:
    """Show the sums by spider and by stat, and how many jobs ended how.

    span: seconds up to now in which they ended.
    """
    if not found.states:
        if not output.document(found.document()):
            say(f"No such job ended in the last {describe_typed_span(span)}.")
        return
    if not output.as_json:
        _show_spiders(found.spiders)
    _show_sums(found.document(), found.sums, output)
    parts = [f"{count:,} {state}" for state, count in found.states.items()]
    say(f"Jobs: {', '.join(parts)}.{_describe_batches(found.batches)}")
    if not output.as_json and any(total.jobs < found.jobs for total in found.sums.values()):
        say(
            f"The column JOBS says how many of the {counted(found.jobs, 'job')} left a stat: not"
            " all leave all of them."
        )


def _show_spiders(spiders: Sequence[SpiderSums]) -> None:
    """Print what the jobs of each spider have come to, and an empty line."""
    rows = [tuple(asdict(sums).values()) for sums in spiders]
    table([one.name for one in fields(SpiderSums)], rows)
    put("")


def _describe_batches(count: int) -> str:
    """Return what to say of jobs that are batches of crawls; empty if there are none."""
    if not count:
        return ""
    if count == 1:
        return " Of them, 1 is a batch of a crawl: each batch counts as a job."
    return f" Of them, {count:,} are batches of crawls: each batch counts as a job."


def _show_sums(document: Mapping[str, Any], sums: Mapping[str, StatTotal], output: Output) -> None:
    rows = []
    for name, total in sums.items():
        rows.append((name, *_numbers(total), total.jobs, _values(total)))
    output.table(document, ("stat", "sum", "min", "max", "jobs", "values"), rows)


def _numbers(total: StatTotal) -> list[float | None]:
    """Return sum, least and most, rounded for the table; None for a stat that is no number."""
    if total.min is None:
        return [None, None, None]
    numbers: list[float | None] = []
    for value in (total.sum, total.min, total.max):
        rounded = round(value, 3) if isinstance(value, float) else value
        numbers.append(rounded)
    return numbers


def _values(total: StatTotal) -> str:
    """Return the values that are no numbers, with how many jobs have each."""
    values = []
    for value, count in total.values.items():
        values.append(f"{value} ({count})" if count > 1 else value)
    return ", ".join(values)


def _remark(found: NamedSums) -> None:
    if found.silent:
        say(f"Without stats and log: {some_of(found.silent)}.")
    if found.partial:
        say(
            "Without a dump of stats, so that the sums have their pages, items and levels only:"
            f" {some_of(found.partial)}."
        )
    home = found.home
    scraped = found.sums.get("item_scraped_count", StatTotal()).sum
    if home and scraped != sum(home.values()):
        counts = [f"{count:,} of {crawl}" for crawl, count in home.items()]
        say(
            f"Items that are home: {', '.join(counts)}. Jobs count also what attempts scraped that"
            " were given up, and are not home."
        )
