"""Adds up what Scrapy counted, over named jobs and crawls, or over all that ended in a time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.errors import NodeError, NothingMatched
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import LogFacts, StatTotal, add_up
from scrapyd_dist.joblogs.log_reads import read_log_end, survey
from scrapyd_dist.nodes import PresentNodes
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.summary_document import count_in, has_labels, labels_of
from scrapyd_dist.report.time_window import ended_since, stats_of_attempt, stats_of_record
from scrapyd_dist.store import Store
from scrapyd_dist.transports import sweep

from .job_judge import JobJudge, settle_jobs
from .job_list import JobFilter, JobList, ListedJob
from .job_site import JobSite

#: how an attempt is counted that is over
_ENDED = {AttemptState.ACCEPTED: Outcome.FINISHED, AttemptState.FAILED: Outcome.FAILED}
#: how a job ends that went wrong by itself
_WENT_WRONG = {Outcome.FAILED, Outcome.DIED}


class PartialStats(dict[str, Any]):
    """What a log without a dump of stats tells, under the names that Scrapy has for it."""


@dataclass(frozen=True, kw_only=True)
class NamedSums:
    """The stats of named jobs and crawls, added up."""

    sums: Mapping[str, StatTotal]
    jobs: int  #: that left something to add up
    silent: Sequence[str]  #: jobs without stats and log
    partial: Sequence[str]  #: jobs without a dump of stats: of them only what their logs tell
    home: Mapping[str, int]  #: crawl -> its items, each once, and none of attempts in vain
    listed: JobList

    @property
    def errors(self) -> tuple[NodeError, ...]:
        """Why those nodes did not answer that count."""
        return self.listed.errors

    def document(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "jobs": self.jobs,
            "partial": self.partial,
            "home": self.home,
            "silent": self.silent,
            "stats": _stat_documents(self.sums),
        }


@dataclass(kw_only=True)
class SpiderSums:
    """What the jobs of one spider have come to."""

    spider: str
    jobs: int = 0
    failed: int = 0  #: jobs that failed or died
    pages: int = 0
    items: int = 0
    errors: int = 0  #: log entries of level ERROR and CRITICAL

    def add(self, state: Outcome, stats: Mapping[str, Any]) -> None:
        """Add a job by how it ended and by what it counted."""
        self.jobs += 1
        if state in _WENT_WRONG:
            self.failed += 1
        self.pages += _count_in(stats, "response_received_count")
        self.items += _count_in(stats, "item_scraped_count")
        self.errors += _count_in(stats, "log_count/ERROR") + _count_in(stats, "log_count/CRITICAL")


def _count_in(stats: Mapping[str, Any], name: str) -> int:
    """Return a count in the stats of a job; 0 if it is not there, or no whole number."""
    value = stats.get(name)
    return value if isinstance(value, int) else 0


@dataclass(frozen=True, kw_only=True)
class WindowSums:
    """The stats of all jobs that have ended since a moment, added up."""

    since: float  #: seconds since the epoch
    batches: int  #: how many of the jobs are attempts of crawls at their batches
    spiders: Sequence[SpiderSums]  #: sorted by name
    sums: Mapping[str, StatTotal]
    states: Mapping[str, int]  #: how many ended how

    @property
    def jobs(self) -> int:
        """How many have ended."""
        return sum(self.states.values())

    def document(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        moment = datetime.fromtimestamp(self.since, timezone.utc)
        return {
            "jobs": self.jobs,
            "batches": self.batches,
            "since": moment.isoformat(timespec="seconds"),
            "states": self.states,
            "spiders": [asdict(sums) for sums in self.spiders],
            "silent": [],
            "stats": _stat_documents(self.sums),
        }


def _stat_documents(sums: Mapping[str, StatTotal]) -> dict[str, Any]:
    return {name: total.document() for name, total in sums.items()}


def sum_named_jobs(site: JobSite, wanted: JobFilter, names: Sequence[str]) -> NamedSums:
    """Add up the stats of these jobs and crawls.

    Raises:
        NothingMatched: none of them left stats or a log, or there is no such job.
    """
    listed, rows = wanted.named(site, names)
    judge = JobJudge(site, rows, timeout=wanted.timeout)
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
    if not found:
        site.messenger.complain_each(listed.errors)
        raise NothingMatched(
            f"None of {counted(len(rows), 'job')} of {', '.join(names)} left stats, nor a log."
        )
    return NamedSums(
        sums=add_up(found),
        jobs=len(found),
        silent=sorted(silent),
        partial=sorted(partial),
        home=_count_items_home(site.store, names),
        listed=listed,
    )


def _count_items_home(store: Store | None, names: Sequence[str]) -> dict[str, int]:
    """Return the items of those that are crawls, as all commands count them."""
    if store is None:
        return {}
    items = {}
    for crawl in store.crawls():
        if crawl.id in names:
            items[crawl.id] = count_in(crawl.summary, "items")
    return items


def sum_ended_jobs(
    site: JobSite, wanted: JobFilter, since: float, labels: Sequence[str] | None
) -> WindowSums:
    """Add up the stats of all jobs that have ended since then.

    These are plain jobs, after a look at how those ended that are open, and the attempts of crawls.
    since: seconds since the epoch; labels: of the jobs that count, None for any.
    """
    window = _Window(since=since, wanted=wanted, labels=labels)
    window.add_jobs(site)
    plain = window.states.total()
    if (store := site.store) is not None:
        window.add_attempts(store)
    return WindowSums(
        since=since,
        batches=window.states.total() - plain,
        spiders=[window.spiders[name] for name in sorted(window.spiders)],
        sums=add_up(window.stats),
        states=dict(sorted(window.states.items())),
    )


@dataclass(frozen=True, kw_only=True)
class _Window:
    """What is added up of jobs that have ended since a moment, in seconds since the epoch."""

    since: float
    wanted: JobFilter
    labels: Sequence[str] | None
    states: Counter[str] = field(default_factory=Counter)  #: how many ended how
    stats: list[Mapping[str, Any]] = field(default_factory=list)
    spiders: dict[str, SpiderSums] = field(default_factory=dict)

    def add_jobs(self, site: JobSite) -> None:
        """Add the plain jobs, after a look at how those ended that are open."""
        settled = settle_jobs(
            site, self.wanted.nodes, timeout=self.wanted.timeout, since=self.since
        )
        for record in ended_since(settled.records, self.since):
            is_meant = self._means(record.labels, record.spider)
            if is_meant and self._is_there(record.node, record.url):
                self._add(record.spider, record.state, stats_of_record(record))

    def add_attempts(self, store: Store) -> None:
        """Add the attempts of crawls; of a batch that failed nothing but the number."""
        for crawl in store.crawls():
            is_of_then = (crawl.ended or self.since) >= self.since
            if not is_of_then or not self._means(labels_of(crawl), crawl.spider):
                continue
            for attempt in store.attempts(crawl.id, _ENDED.keys()):
                self._add_attempt(crawl.spider, attempt)

    def _add_attempt(self, spider: str, attempt: Attempt) -> None:
        if (attempt.ended_at or 0.0) < self.since:
            return
        if not self._is_there(attempt.node, attempt.url):
            return
        is_accepted = attempt.state is AttemptState.ACCEPTED
        stats = stats_of_attempt(attempt) if is_accepted else {}
        self._add(spider, _ENDED[attempt.state], stats)

    def _add(self, spider: str, state: Outcome, stats: Mapping[str, Any]) -> None:
        self.states[state.value] += 1
        self.stats.append(stats)
        self.spiders.setdefault(spider, SpiderSums(spider=spider)).add(state, stats)

    def _means(self, labels: Sequence[str], spider: str) -> bool:
        return has_labels(labels, self.labels) and fnmatchcase(spider, self.wanted.spider or "*")

    def _is_there(self, node: str, url: str) -> bool:
        if not self.wanted.narrowed:
            return True
        return PresentNodes(self.wanted.nodes).find(node, url) is not None


def _stats_of(judge: JobJudge, row: ListedJob) -> Mapping[str, Any] | None:
    """Return the stats of one job; empty where there are none, None where it does not count."""
    crawl_job = judge.crawl_job_of(row)
    if crawl_job is not None and crawl_job.attempt is not None:
        attempt = crawl_job.attempt
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


def _stats_in_log(judge: JobJudge, row: ListedJob) -> Mapping[str, Any]:
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
    if not facts.has_counts:
        return counts
    if facts.pages is not None:
        counts["response_received_count"] = facts.pages
    if facts.items is not None:
        counts["item_scraped_count"] = facts.items
    return counts


def _remembered_stats(judge: JobJudge, row: ListedJob) -> Mapping[str, Any]:
    record = judge.memory.record_of(row)
    if record is None or not record.state.over:
        return {}
    return stats_of_record(record)
