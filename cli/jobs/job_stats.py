"""`sdist jobs stats`: adds up what Scrapy counted, over named jobs and crawls, or over a time."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Annotated, Any

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import LogFacts, StatTotal, add_up
from scrapyd_dist.joblogs.log_reads import read_log_end, survey
from scrapyd_dist.nodes import nodes_by_url
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import count_in, labels_of
from scrapyd_dist.report.time_window import ended_since, stats_of_attempt, stats_of_record
from scrapyd_dist.transports import sweep

from ..context import Context
from ..options import Nodes, OnlyLabels, Spider, Timeout, argument, crawls, has_labels, span
from ..output import Output, complain_each, say, some_of
from .job_list import TIMEOUT, JobQuery, Listed
from .jobs_table import Judge, look_back

#: how an attempt is counted that is over
_ENDED = {AttemptState.ACCEPTED: Outcome.FINISHED.value, AttemptState.FAILED: Outcome.FAILED.value}


class PartialStats(dict[str, Any]):
    """What a log without a dump of stats tells, under the names that Scrapy has for it."""


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
    names = name or ()
    if bool(names) == (since is not None) or (names and (label or spider)):
        raise ConfigError(
            "Name crawls and jobs; or say --since TIME, which --label and --spider narrow down. One"
            " of the two."
        )
    query = JobQuery(node=node, timeout=timeout)
    if since is not None:
        window = _Window(context, time.time() - since, label, spider, query)
        window.add_jobs()
        window.add_attempts()
        window.show(output)
        return 0
    return _of_jobs(context, query, names, output)


def _of_jobs(context: Context, query: JobQuery, names: Sequence[str], output: Output) -> int:
    """Add up the stats of these jobs and crawls."""
    listed, rows = query.named(context, names)
    judge = Judge(context, rows, timeout=query.timeout)
    found: list[Mapping[str, Any]] = []
    silent: list[str] = []
    partial: list[str] = []
    for answer in sweep(rows, lambda row: _stats_of(judge, row)):
        if answer.value:
            found.append(answer.value)
            if isinstance(answer.value, PartialStats):
                partial.append(answer.asked.job)
        elif answer.value is not None or answer.error is not None:
            silent.append(answer.asked.job)
    complain_each(listed.errors)
    if not found:
        raise NothingMatched(
            f"None of {counted(len(rows), 'job')} of {', '.join(names)} left stats, nor a log."
        )
    home = _items_home(context, names)
    silent.sort()
    partial.sort()
    sums = add_up(found)
    _show_sums(sums, len(found), silent, output, partial=partial, home=home)
    if not output.as_json:
        _remark(sums, silent, partial, home)
    return listed.exit_code


def _items_home(context: Context, names: Sequence[str]) -> dict[str, int]:
    """Return the items of those that are crawls, as all commands count them.

    Each is counted once, and none of attempts in vain.
    """
    store = context.store_if_any
    if store is None:
        return {}
    items = {}
    for crawl in store.crawls():
        if crawl.id in names:
            items[crawl.id] = count_in(crawl.summary, "items")
    return items


class _Window:
    """The stats of all jobs that have ended since a moment, in seconds since the epoch."""

    def __init__(
        self,
        context: Context,
        since: float,
        labels: Sequence[str] | None,
        spider: str | None,
        query: JobQuery,
    ) -> None:
        self._context = context
        self._since = since
        self._labels = labels
        self._spider = spider or "*"
        self._query = query
        self._nodes = context.nodes_if_any(query.node)
        self._store = context.store_if_any
        self._urls = nodes_by_url(self._nodes).keys()
        self._states = Counter[str]()  #: how many ended how
        self._stats: list[Mapping[str, Any]] = []

    def add_jobs(self) -> None:
        """Add the plain jobs, after a look at how those ended that are open."""
        memory = look_back(
            self._context, self._nodes, timeout=self._query.timeout, since=self._since
        )
        for record in ended_since(memory.records.values(), self._since):
            if self._means(record.labels, record.spider) and self._is_there(record.url):
                self._states[record.state.value] += 1
                self._stats.append(stats_of_record(record))

    def add_attempts(self) -> None:
        """Add the attempts of crawls; of a batch that failed nothing but the number."""
        if self._store is None:
            return
        for crawl in self._store.crawls():
            is_of_then = (crawl.ended or self._since) >= self._since
            if not is_of_then or not self._means(labels_of(crawl), crawl.spider):
                continue
            for attempt in self._store.attempts(crawl.id, _ENDED.keys()):
                self._add(attempt)

    def _add(self, attempt: Attempt) -> None:
        if (attempt.ended_at or 0.0) < self._since or not self._is_there(attempt.url):
            return
        self._states[_ENDED[attempt.state]] += 1
        if attempt.state is AttemptState.ACCEPTED:
            self._stats.append(stats_of_attempt(attempt))

    def _means(self, labels: Sequence[str], spider: str) -> bool:
        return has_labels(labels, self._labels) and fnmatchcase(spider, self._spider)

    def _is_there(self, url: str) -> bool:
        return not self._query.node or url in self._urls

    def show(self, output: Output) -> None:
        """Show the sums, and how many jobs ended how."""
        moment = datetime.fromtimestamp(self._since, timezone.utc).isoformat(timespec="seconds")
        states = dict(sorted(self._states.items()))
        count = sum(states.values())
        _show_sums(add_up(self._stats), count, [], output, since=moment, states=states)
        if states:
            parts = [f"{count:,} {state}" for state, count in states.items()]
            say(f"Jobs: {', '.join(parts)}.")


def _stats_of(judge: Judge, row: Listed) -> Mapping[str, Any] | None:
    """Return the stats of one job; empty where there are none, None where it does not count."""
    kept = judge.of_store(row)
    if kept is not None and kept.attempt is not None:
        attempt = kept.attempt
        if attempt.state is AttemptState.FAILED:
            return None  # its batch has another attempt, or is dead
        if attempt.report.get("stats"):
            found: Mapping[str, Any] = attempt.report["stats"]
            return found
    report = judge.report(row)
    if report is not None and report.stats:
        return report.stats
    if judge.came_again(row):
        return {}
    return _stats_in_log(judge, row)


def _stats_in_log(judge: Judge, row: Listed) -> Mapping[str, Any]:
    """Return the stats by the job's log; without a log, by what is remembered of the job."""
    seen = read_log_end(judge.sender, row.node, row.log, timeout=judge.timeout)
    if seen is None:
        return _remembered_stats(judge, row)
    facts: LogFacts | None = seen.facts
    if seen.facts.stats is None:
        facts = survey(judge.sender, row.node, row.log, seen.total)
    if facts is None:
        return _remembered_stats(judge, row)
    if facts.stats is not None:
        return facts.stats
    counts = PartialStats()
    for level, count in sorted(facts.levels.items()):
        counts[f"log_count/{level}"] = count
    if facts.pages is not None:
        counts["response_received_count"] = facts.pages
    if facts.items is not None:
        counts["item_scraped_count"] = facts.items
    return counts


def _remembered_stats(judge: Judge, row: Listed) -> Mapping[str, Any]:
    record = judge.memory.record_of(row)
    if record is None or not record.state.over:
        return {}
    return stats_of_record(record)


def _show_sums(
    sums: Mapping[str, StatTotal], jobs: int, silent: Sequence[str], output: Output, **more: Any
) -> None:
    """Show the sums; silent: jobs without stats; more: what the document has beside them."""
    rows = []
    documents = {}
    for name, total in sums.items():
        rows.append((name, *_numbers(total), total.jobs, _values(total)))
        documents[name] = total.document()
    document = {"jobs": jobs, **more, "silent": silent, "stats": documents}
    output.table(document, ("stat", "sum", "min", "max", "jobs", ""), rows)


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
            "Without a dump of stats, so that the sums have their pages, items and levels only:"
            f" {some_of(partial)}."
        )
    scraped = sums.get("item_scraped_count", StatTotal()).sum
    if home and scraped != sum(home.values()):
        counts = [f"{count:,} of {crawl}" for crawl, count in home.items()]
        say(
            f"Items that are home: {', '.join(counts)}. Jobs count also what attempts scraped that"
            " were given up, and are not home."
        )
