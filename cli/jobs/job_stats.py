"""`sdist jobs stats`: the sums of what Scrapy counted, over named jobs and crawls, or over a window of time."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Annotated, Any

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import StatTotal, add_up
from scrapyd_dist.joblogs.log_reads import look, survey
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import labels_of, number
from scrapyd_dist.report.time_window import ended_since, stats_of_attempt, stats_of_record
from scrapyd_dist.transports import sweep

from ..context import Context
from ..options import Nodes, OnlyLabels, Spider, Timeout, argument, crawls, has_labels, span
from ..output import Output, complain_each, say, some_of
from .job_list import TIMEOUT, JobQuery, Listed
from .jobs_table import Judge, look_back


class PartialStats(dict[str, Any]):
    """What a log without a dump of stats tells, under the names that Scrapy has for it."""


#: how an attempt is counted that is over
_ENDED = {AttemptState.ACCEPTED: Outcome.FINISHED.value, AttemptState.FAILED: Outcome.FAILED.value}


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

    Of a crawl's batches only the attempts that count are taken. A job without a
    dump of stats, because it runs or died, gives what its log tells: pages,
    items, and how much was logged at each level. With --since: of all jobs of
    crawls and of `sdist jobs schedule` that ended since then, from what the store
    remembers of them: pages, items, errors, responses by status code.

    Example: sdist jobs stats --since 24h --label night=1
    """
    if bool(name) == (since is not None) or (name and (label or spider)):
        raise ConfigError(
            "Name crawls and jobs; or say --since TIME, which --label and --spider narrow down. One of the two."
        )
    if since is not None:
        return _window(
            context,
            time.time() - since,
            label,
            spider,
            JobQuery(node=node, timeout=timeout),
            output,
        )
    listed, rows = JobQuery(node=node, timeout=timeout).named(context, name or ())
    judge = Judge(context, rows, timeout=timeout)
    told: list[Mapping[str, Any]] = []
    silent, partial = list[str](), list[str]()
    for answer in sweep(rows, lambda row: _stats_of(judge, row)):
        if answer.value:
            told.append(answer.value)
            if isinstance(answer.value, PartialStats):
                partial.append(answer.asked.job)
        elif answer.value is not None or answer.error is not None:
            silent.append(answer.asked.job)
    complain_each(listed.errors)
    if not told:
        raise NothingMatched(
            f"None of {counted(len(rows), 'job')} of {', '.join(name or ())} left stats, nor a log."
        )
    home = _items_home(context, name or ())
    _show_sums(add_up(told), len(told), sorted(silent), output, partial=sorted(partial), home=home)
    return listed.exit_code


def _items_home(context: Context, names: Sequence[str]) -> dict[str, int]:
    """The items of those that are crawls, as all commands count them: each once, and none of attempts in vain."""
    store = context.store_if_any
    crawls_here = store.crawls() if store is not None else ()
    return {crawl.id: number(crawl.summary, "items") for crawl in crawls_here if crawl.id in names}


def _window(
    context: Context,
    since: float,
    labels: Sequence[str] | None,
    spider: str | None,
    query: JobQuery,
    output: Output,
) -> int:
    """The stats of all jobs that have ended since this moment."""
    nodes, store = context.nodes_if_any(query.node), context.store_if_any
    states, told = Counter[str](), list[Mapping[str, Any]]()

    def is_meant(labels_there: Sequence[str], name: str) -> bool:
        return has_labels(labels_there, labels) and fnmatchcase(name, spider or "*")

    def is_there(url: str) -> bool:
        return not query.node or url in {node.url for node in nodes}

    for record in ended_since(
        look_back(context, nodes, timeout=query.timeout, since=since).records.values(), since
    ):
        if is_meant(record.labels, record.spider) and is_there(record.url):
            states[record.state.value] += 1
            told.append(stats_of_record(record))
    crawls_then = (
        [row for row in store.crawls() if (row.ended or since) >= since]
        if store is not None
        else []
    )
    for attempt in (
        attempt
        for crawl in crawls_then
        if store is not None and is_meant(labels_of(crawl), crawl.spider)
        for attempt in store.attempts(crawl.id, _ENDED.keys())
    ):
        if (attempt.ended_at or 0.0) >= since and is_there(attempt.url):
            states[_ENDED[attempt.state]] += 1
            told += [stats_of_attempt(attempt)] if attempt.state is AttemptState.ACCEPTED else []
    moment = datetime.fromtimestamp(since, timezone.utc).isoformat(timespec="seconds")
    _show_sums(
        add_up(told),
        sum(states.values()),
        [],
        output,
        since=moment,
        states=dict(sorted(states.items())),
    )
    return 0


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
    return {} if judge.came_again(row) else _stats_in_log(judge, row)


def _stats_in_log(judge: Judge, row: Listed) -> Mapping[str, Any]:
    seen = look(judge.sender, row.node, row.log, timeout=judge.timeout)
    facts = seen.facts if seen is not None else None
    if seen is not None and seen.facts.stats is None:
        facts = survey(judge.sender, row.node, row.log, seen.total)
    if facts is None:
        record = judge.memory.of(row)
        return stats_of_record(record) if record is not None and record.state.over else {}
    if facts.stats is not None:
        return facts.stats
    counts = {f"log_count/{level}": count for level, count in sorted(facts.levels.items())}
    others = {"response_received_count": facts.pages, "item_scraped_count": facts.items}
    return PartialStats(
        counts | {name: count for name, count in others.items() if count is not None}
    )


def _show_sums(
    sums: Mapping[str, StatTotal], jobs: int, silent: Sequence[str], output: Output, **more: Any
) -> None:
    rows = []
    for name, one in sums.items():
        told = ", ".join(
            f"{value} ({count})" if count > 1 else value for value, count in one.values.items()
        )
        numbers = (None, None, None) if one.min is None else (one.sum, one.min, one.max)
        rounded = [round(number, 3) if isinstance(number, float) else number for number in numbers]
        rows.append((name, *rounded, one.jobs, told))
    document = {
        "jobs": jobs,
        **more,
        "silent": silent,
        "stats": {name: one.document() for name, one in sums.items()},
    }
    output.table(document, ("stat", "sum", "min", "max", "jobs", ""), rows)
    if states := more.get("states"):
        say(f"Jobs: {', '.join(f'{count:,} {state}' for state, count in states.items())}.")
    if not output.as_json:
        _remark(sums, silent, more.get("partial") or (), more.get("home") or {})


def _remark(
    sums: Mapping[str, StatTotal],
    silent: Sequence[str],
    partial: Sequence[str],
    home: Mapping[str, int],
) -> None:
    if silent:
        say(f"Without stats and log: {some_of(silent)}.")
    if partial:
        say(
            f"Without a dump of stats, so that the sums have their pages, items and levels only: {some_of(partial)}."
        )
    scraped = sums["item_scraped_count"].sum if "item_scraped_count" in sums else 0
    if home and scraped != sum(home.values()):
        told = ", ".join(f"{count:,} of {crawl}" for crawl, count in home.items())
        say(
            f"Items that are home: {told}. Jobs count also what attempts scraped that were given up, and are not home."
        )
