"""Judges the outcome of a job by its worker's report or by its log. No IO."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scrapyd_dist.batches import meaning
from scrapyd_dist.escapes import harmless
from scrapyd_dist.job_record import JobResult, JobVerdict, Outcome
from scrapyd_dist.joblogs.joblog import BLOCKED, LogFacts
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.remedies import remedy_for
from scrapyd_dist.joblogs.worker_report import WorkerReport, counts_of
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import crawl_in

#: seconds without a page, an item or a log line after which a running job counts as stalled
STALL = 900.0
#: why a worker that its crawl did not need was told to end
NEEDLESS = "its crawl had finished before it began"
#: why a worker ended that a signal met while it started, as that of a drained node
TOLD_TO_END = "it was told to end before it began"
#: why a worker ended that was posted before its crawl was refused
REFUSED = "its crawl was refused before it began"
#: what is said of a job whose log tells no end
UNCLOSED = "its log ends without 'Spider closed'"
#: what is said of a job whose items did not reach its feed
FEED_FAILED = "its feed could not be stored"
#: why a job was killed
BY_CANCEL = "by sdist jobs cancel"
#: the reasons of a close that are failures by themselves
_FAILED_CLOSES = frozenset(
    {"start_error", "closespider_errorcount", "memusage_exceeded", "timeout", "stalled"}
)
#: how many kinds of exceptions a reason names
_KINDS = 5
_STATUS = re.compile(r"downloader/response_status_count/(\d{3})\Z")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Names a job on a node, and what is needed to find its log."""

    node: Node
    project: str
    spider: str
    job: str

    @property
    def log(self) -> str:
        """Return the path of its log, relative to the node's base."""
        return f"logs/{self.project}/{self.spider}/{self.job}.log"

    @property
    def crawl(self) -> str | None:
        """Return the crawl that its id names; None if it is no crawl's."""
        return crawl_in(self.job)


@dataclass(frozen=True, kw_only=True)
class Verdict(JobResult):
    """Says how a job stands or has ended, and what it has counted."""

    outcome: Outcome
    #: its log is that of a job killed at its start, or of a spider whose LOG_LEVEL hides the rest
    hidden: bool = False

    def kept(self, key: str, at: float, offset: float | None = None) -> JobVerdict:
        """Return the same as it is written down at the moment `at`, in seconds since the epoch."""
        return JobVerdict(key=key, at=at, state=self.outcome, offset=offset, **self.result)


def by_kept(verdict: JobVerdict, *, signalled: bool = False) -> Verdict:
    """Return what was written down when the job had ended.

    `signalled` is as in `by_log`: a crawl's process cannot know it.
    """
    found = Verdict(outcome=verdict.state, **verdict.result)
    if signalled and verdict.state is Outcome.DIED:
        return replace(found, outcome=Outcome.KILLED, reason=BY_CANCEL)
    return found


def by_log(
    state: JobState,
    excerpt: LogExcerpt | None,
    *,
    stall: float = STALL,
    signalled: bool = False,
    needless: bool = False,
    of_crawl: bool = False,
) -> Verdict:
    """Judge a job by its state in Scrapyd and the end of its log, if it has one.

    Args:
        state: where Scrapyd lists the job.
        excerpt: the end of its log; None if it has none.
        stall: seconds without progress after which it counts as stalled.
        signalled: this program sent it KILL, or forced its end.
        needless: it leases, and its crawl has finished.
        of_crawl: it is a crawl's, and its report is gone.
    """
    if state is JobState.PENDING:
        return Verdict(outcome=Outcome.PENDING)
    if excerpt is None:
        return _judge_without_log(state, signalled=signalled)
    if state is JobState.RUNNING:
        outcome, reason = _judge_running(excerpt, stall)
        return _make_verdict(excerpt, outcome, reason)
    never_began = _never_began(excerpt)
    if needless and never_began:
        return Verdict(outcome=Outcome.CANCELLED, reason=NEEDLESS)
    if (of_crawl or needless) and _ended_when_idle(excerpt.facts):
        outcome = Outcome.FINISHED
        reason = ""
    else:
        outcome, reason = _judge_end(excerpt, signalled=signalled, of_crawl=of_crawl)
    verdict = _make_verdict(excerpt, outcome, reason)
    return replace(verdict, hidden=never_began or outcome is Outcome.UNKNOWN)


def _make_verdict(excerpt: LogExcerpt, outcome: Outcome, reason: str) -> Verdict:
    facts = excerpt.facts
    errors = None
    if outcome is not Outcome.UNKNOWN:
        errors = errors_in(facts)
    return Verdict(
        outcome=outcome,
        reason=reason,
        pages=facts.pages if facts.has_counts else None,
        items=facts.items if facts.has_counts else None,
        errors=errors,
        codes=status_codes(facts.stats or {}),
    )


def _judge_without_log(state: JobState, *, signalled: bool) -> Verdict:
    if state is JobState.RUNNING:
        return Verdict(outcome=Outcome.RUNNING)
    if signalled:
        return Verdict(outcome=Outcome.KILLED, reason=f"{BY_CANCEL}; it has no log")
    return Verdict(
        outcome=Outcome.UNKNOWN,
        reason=(
            "it has no log: its code could not be loaded (see the node's own log), or jobs_to_keep"
            " removed it"
        ),
    )


def _never_began(excerpt: LogExcerpt) -> bool:
    """Tell whether a job ended before its spider opened.

    Until the reactor runs, a signal ends a job without a word.
    """
    facts = excerpt.facts
    if not facts.size:
        return True
    return facts.whole and excerpt.says_info and not facts.opened and not facts.last_error


def _ended_when_idle(facts: LogFacts) -> bool:
    """Tell whether a worker had done all that it had leased when a signal told it to end.

    A crawl's end finds its idle workers so.
    """
    stats = facts.stats or {}
    leased = _read_number(stats, "distributed/batches_leased")
    acked = _read_number(stats, "distributed/batches_acked")
    return bool(facts.closed) and meaning(facts.closed).by_signal and leased == acked


def errors_in(facts: LogFacts) -> int | None:
    """Return the number of entries of level ERROR and above.

    None if only a part of the log was read, and has no stats.
    """
    if facts.stats is not None:
        return _sum_error_stats(facts.stats)
    if not facts.whole:
        return None
    return _sum_error_levels(facts)


def _sum_error_stats(stats: Mapping[str, object]) -> int:
    return _read_number(stats, "log_count/ERROR") + _read_number(stats, "log_count/CRITICAL")


def _sum_error_levels(facts: LogFacts) -> int:
    return facts.levels.get("ERROR", 0) + facts.levels.get("CRITICAL", 0)


def _judge_running(excerpt: LogExcerpt, stall: float) -> tuple[Outcome, str]:
    facts = excerpt.facts
    if not excerpt.would_tell_end:  # nor would it tell of progress
        return Outcome.RUNNING, ""
    still = excerpt.silent or 0.0
    if facts.idle_since is not None and facts.last is not None:
        still += max(0.0, (facts.last - facts.idle_since).total_seconds())
    if still < stall:
        return Outcome.RUNNING, ""
    return Outcome.STALLED, f"no progress for {round(still / 60)} min"


def _judge_end(excerpt: LogExcerpt, *, signalled: bool, of_crawl: bool) -> tuple[Outcome, str]:
    facts = excerpt.facts
    reason = facts.closed
    if not reason and _could_not_open(facts) and not signalled:
        return Outcome.FAILED, with_remedy(facts.exception)
    if not reason:
        return _judge_unclosed(excerpt, signalled=signalled)
    if meaning(reason).by_signal:
        return Outcome.CANCELLED, _unless_usual(reason, "shutdown")
    # What went wrong with pages of a crawl's job is in the crawl's account, as with a report.
    wrong = _find_feed_failure(facts.stats or {}) if of_crawl else failures(facts)
    if wrong:
        return Outcome.FAILED, wrong
    if not meaning(reason).asked_for:
        return Outcome.FAILED, f"ended early ({reason})"
    return Outcome.FINISHED, _unless_usual(reason, "finished")


def _could_not_open(facts: LogFacts) -> bool:
    """Tell whether an exception has ended a job before its spider was open; no signal did."""
    return facts.not_opened and bool(facts.exception) and not facts.signalled


def _unless_usual(reason: str, usual: str) -> str:
    return "" if reason == usual else reason


def _judge_unclosed(excerpt: LogExcerpt, *, signalled: bool) -> tuple[Outcome, str]:
    facts = excerpt.facts
    if signalled:
        return Outcome.KILLED, BY_CANCEL
    if facts.last_error == BLOCKED or (facts.last_error and excerpt.would_tell_end):
        return Outcome.DIED, with_remedy(facts.last_error)
    if facts.forced:
        return Outcome.DIED, "a second signal ended it at once"
    if facts.signalled:  # Scrapy closes no spider that was told to end while it opened
        return Outcome.CANCELLED, UNCLOSED
    if not excerpt.would_tell_end:
        return (
            Outcome.UNKNOWN,
            "its log is empty, or LOG_LEVEL, LOG_FORMAT or the like hides how it ended",
        )
    return Outcome.DIED, UNCLOSED


def status_codes(stats: Mapping[str, object]) -> dict[str, int]:
    """Return the number of responses by status code, in the stats of a job."""
    codes = {}
    for name in sorted(stats):
        match = _STATUS.match(name)
        if match:
            codes[match[1]] = _read_number(stats, name)
    return codes


def failures(facts: LogFacts) -> str:
    """Describe the failures of a job that has closed its spider, in a few words.

    The text is empty if there are none.
    """
    stats = facts.stats or {}
    found = []
    if facts.closed in _FAILED_CLOSES:
        found.append(facts.closed)
    found += _describe_callback_exceptions(facts)
    feed = _find_feed_failure(stats)
    if feed:
        found.append(feed)
    errors = errors_in(facts) or _sum_error_levels(facts)
    if errors:
        found.append(_in_words(errors, "error logged", "errors logged"))
    if not found:
        return ""
    return "; ".join([*_exception_of(facts), *found, *_last_error_of(facts)])


def _exception_of(facts: LogFacts) -> list[str]:
    """Return the last error's exception, which comes first: a table may cut off what is behind."""
    return [with_remedy(facts.exception)] if facts.exception else []


def _last_error_of(facts: LogFacts) -> list[str]:
    """Return what was logged with the last error, without its exception."""
    if not facts.last_error:
        return []
    if not facts.exception:
        return [f"last: {with_remedy(facts.last_error)}"]
    return [f"last: {facts.last_error.removesuffix(facts.exception).rstrip(' …')}"]


def _in_words(number: int, singular: str, plural: str) -> str:
    if number > 1:
        return f"{number} {plural}"
    return f"1 {singular}"


def _describe_callback_exceptions(facts: LogFacts) -> list[str]:
    """Return how many exceptions the spider's code has raised, and which.

    The list is empty if there are none. Where all are like the last one, that has named them.
    """
    counts = _count_callback_exceptions(facts.stats or {})
    total = counts.total()
    if not total:
        return []
    text = _in_words(total, "exception in the spider", "exceptions in the spider")
    if len(counts) == 1 and facts.exception:
        return [text]
    kinds = [f"{count} {harmless(name)}" for name, count in counts.most_common()]
    return [f"{text} ({some_of(kinds, _KINDS)})"]


def _count_callback_exceptions(stats: Mapping[str, object]) -> Counter[str]:
    """Return the number of exceptions in the spider's code by the name of their class."""
    counts = Counter[str]()
    for name in sorted(stats):
        if name.startswith("spider_exceptions/") and name != "spider_exceptions/count":
            counts[name.removeprefix("spider_exceptions/")] = _read_number(stats, name)
    return +counts


def with_remedy(error: str) -> str:
    """Return an error, and what to do about it if that is known."""
    remedy = remedy_for(error)
    if not remedy:
        return error
    return f"{error.rstrip('.')}. {remedy}"


def _find_feed_failure(stats: Mapping[str, object]) -> str:
    for name in stats:
        if name.startswith("feedexport/failed_count/") and _read_number(stats, name):
            return FEED_FAILED
    return ""


def _read_number(stats: Mapping[str, object], name: str) -> int:
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0


def by_report(
    state: JobState,
    report: WorkerReport,
    *,
    signalled: bool = False,
    needless: bool = False,
    told_to_end: bool = False,
) -> Verdict:
    """Judge a job by its state and its worker's last report.

    `signalled` and `needless` are as in `by_log`; told_to_end: as its log says, by a signal.
    """
    has_begun = report.ended or report.requests
    if needless and state is JobState.FINISHED and not has_begun:
        # Scrapy closes no spider that was told to end while it opened: its last report is its first
        # one.
        outcome = Outcome.CANCELLED
        reason = NEEDLESS
    elif told_to_end and state is JobState.FINISHED and not has_begun:
        outcome = Outcome.CANCELLED
        reason = TOLD_TO_END
    else:
        outcome, reason = _judge_report(state, report, signalled=signalled)
    return Verdict(
        outcome=outcome,
        reason=reason,
        pages=report.pages,
        items=report.items,
        errors=_count_logged_errors(report.stats),
        codes=status_codes(report.stats),
    )


def by_kept_report(report: Mapping[str, Any]) -> Verdict:
    """Judge a job by what the store keeps of its accepted report.

    The words are those that its report has led to.
    """
    counts = counts_of(report)
    stats = dict(report.get("stats") or {})
    return Verdict(
        outcome=Outcome.FINISHED,
        reason=_describe_misses(counts["failed"], counts["requests"]),
        pages=counts["pages"],
        items=counts["items"],
        errors=_count_logged_errors(stats),
        codes=status_codes(stats),
    )


def _count_logged_errors(stats: Mapping[str, object]) -> int | None:
    if not stats:
        return None
    return _sum_error_stats(stats)


def _describe_misses(failed: int, requests: int) -> str:
    """Describe missed URLs: they are no failure of the job, and the crawl's summary counts them."""
    if not failed:
        return ""
    return f"{failed} of {counted(requests, 'URL')} failed"


def _judge_report(state: JobState, report: WorkerReport, *, signalled: bool) -> tuple[Outcome, str]:
    if not report.ended:
        return _judge_report_without_end(state, report, signalled=signalled)
    reason = report.finish_reason
    if meaning(reason).by_signal:
        # A worker without a batch has done all: a crawl ends before its workers see that.
        outcome = Outcome.CANCELLED if _has_work_left(report) else Outcome.FINISHED
        return outcome, _unless_usual(reason, "shutdown")
    if report.problem:
        return Outcome.FAILED, report.problem
    if not meaning(reason).asked_for:
        return Outcome.FAILED, f"ended early ({reason})"
    if report.feeds_failed:
        return Outcome.FAILED, FEED_FAILED
    return Outcome.FINISHED, _describe_misses(report.failed_requests, report.ended_requests)


def _judge_report_without_end(
    state: JobState, report: WorkerReport, *, signalled: bool
) -> tuple[Outcome, str]:
    if state is not JobState.FINISHED:
        return Outcome.RUNNING, ""
    if signalled:
        return Outcome.KILLED, BY_CANCEL
    requests = counted(report.requests, "request")
    return Outcome.DIED, f"after {report.ended_requests} of {requests}"


def _has_work_left(report: WorkerReport) -> bool:
    """Tell whether a worker had a batch that was not acked, or was sent its batch."""
    if report.batches is None:
        return True
    return any(number for outcome, number in report.batches.items() if outcome != "acked")
