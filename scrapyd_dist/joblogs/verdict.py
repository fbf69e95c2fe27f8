"""Judges the outcome of a job by its worker's report or by its log. No IO."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scrapyd_dist.batches import meaning
from scrapyd_dist.job_record import JobVerdict, Outcome
from scrapyd_dist.joblogs.joblog import BLOCKED, LogFacts
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.remedies import remedy_for
from scrapyd_dist.joblogs.worker_report import WorkerReport, counts_of
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.jobs import crawl_in

#: seconds without a page, an item or a log line after which a running job counts as stalled
STALL = 900.0
#: why a worker that its crawl did not need was told to end
NEEDLESS = "its crawl had finished before it began"
#: what is said of a job whose log tells no end
UNCLOSED = "its log ends without 'Spider closed'"
#: why a job was killed
BY_CANCEL = "by sdist jobs cancel"
_STATUS = re.compile(r"downloader/response_status_count/(\d{3})\Z")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A job on a node, with what is needed to find its log."""

    node: Node
    project: str
    spider: str
    job: str

    @property
    def log(self) -> str:
        """The path of its log, relative to the node's base."""
        return f"logs/{self.project}/{self.spider}/{self.job}.log"

    @property
    def crawl(self) -> str | None:
        return crawl_in(self.job)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    outcome: Outcome
    reason: str = ""  #: a few words, or empty
    pages: int | None = None
    items: int | None = None
    errors: int | None = None  #: number of log entries of level ERROR and CRITICAL
    codes: Mapping[str, int] = field(default_factory=dict)  #: number of responses by status code
    hidden: bool = False  #: its log is that of a job killed at its start, or of a spider whose LOG_LEVEL hides the rest

    def kept(self, key: str, at: float, offset: float | None = None) -> JobVerdict:
        """The same, as it is written down at this moment."""
        return JobVerdict(
            key=key,
            at=at,
            state=self.outcome,
            reason=self.reason,
            pages=self.pages,
            items=self.items,
            errors=self.errors,
            codes=self.codes,
            offset=offset,
        )


def by_kept(verdict: JobVerdict, *, signalled: bool = False) -> Verdict:
    """What was written down when the job had ended; `signalled` is as in `by_log`: a crawl's process cannot know it."""
    found = Verdict(
        outcome=verdict.state,
        reason=verdict.reason,
        pages=verdict.pages,
        items=verdict.items,
        errors=verdict.errors,
        codes=verdict.codes,
    )
    if signalled and verdict.state is Outcome.DIED:
        return replace(found, outcome=Outcome.KILLED, reason=BY_CANCEL)
    return found


def by_log(
    state: JobState,
    look: LogExcerpt | None,
    *,
    stall: float = STALL,
    signalled: bool = False,
    needless: bool = False,
    of_crawl: bool = False,
) -> Verdict:
    """Judge a job by its state in Scrapyd and the end of its log, if it has one.

    It counts as stalled after `stall` seconds without progress. `signalled`: this program sent it KILL, or forced its
    end; `needless`: it leases, and its crawl has finished; `of_crawl`: it is a crawl's, and its report is gone.
    """
    if state is JobState.PENDING:
        return Verdict(outcome=Outcome.PENDING)
    if look is None and state is JobState.RUNNING:
        return Verdict(outcome=Outcome.RUNNING)
    if look is None:
        if signalled:
            return Verdict(outcome=Outcome.KILLED, reason=f"{BY_CANCEL}; it has no log")
        return Verdict(
            outcome=Outcome.UNKNOWN,
            reason="it has no log: never started, or jobs_to_keep removed it",
        )
    facts = look.facts
    if state is JobState.RUNNING:
        outcome, reason = _running(look, stall)
    elif needless and _unbegun(look):
        return Verdict(outcome=Outcome.CANCELLED, reason=NEEDLESS)
    elif (of_crawl or needless) and _told_when_idle(facts):
        outcome, reason = Outcome.FINISHED, ""
    else:
        outcome, reason = _ended(look, signalled=signalled, of_crawl=of_crawl)
    errors = None if outcome is Outcome.UNKNOWN else errors_in(facts)
    hidden = state is JobState.FINISHED and (_unbegun(look) or outcome is Outcome.UNKNOWN)
    return Verdict(
        outcome=outcome,
        reason=reason,
        pages=facts.pages,
        items=facts.items,
        errors=errors,
        codes=status_codes(facts.stats or {}),
        hidden=hidden,
    )


def _unbegun(look: LogExcerpt) -> bool:
    """Whether a job has ended before its spider opened: until the reactor runs, a signal ends it without a word."""
    facts = look.facts
    return not facts.size or (
        facts.whole and look.says_info and not facts.opened and not facts.last_error
    )


def _told_when_idle(facts: LogFacts) -> bool:
    """Whether a worker had done all that it had leased when it was told to end, as idle ones are at a crawl's end."""
    leased, acked = (
        _number(facts.stats or {}, f"distributed/batches_{fate}") for fate in ("leased", "acked")
    )
    return bool(facts.closed) and meaning(facts.closed).told and leased == acked


def errors_in(facts: LogFacts) -> int | None:
    """Return the number of entries of level ERROR and above; None if only a part of the log was read."""
    if facts.stats is not None:
        return _number(facts.stats, "log_count/ERROR") + _number(facts.stats, "log_count/CRITICAL")
    found = facts.levels.get("ERROR", 0) + facts.levels.get("CRITICAL", 0)
    return found if facts.whole else None


def _running(look: LogExcerpt, stall: float) -> tuple[Outcome, str]:
    facts, still = look.facts, look.silent or 0.0
    if not look.would_tell_end:  # nor would it tell of progress
        return Outcome.RUNNING, ""
    if facts.idle_since is not None and facts.last is not None:
        still += max(0.0, (facts.last - facts.idle_since).total_seconds())
    return (
        (Outcome.STALLED, f"no progress for {round(still / 60)} min")
        if still >= stall
        else (Outcome.RUNNING, "")
    )


def _ended(look: LogExcerpt, *, signalled: bool, of_crawl: bool) -> tuple[Outcome, str]:
    facts, reason = look.facts, look.facts.closed
    if not reason:
        return _unclosed(look, signalled=signalled)
    if meaning(reason).told:
        return Outcome.CANCELLED, "" if reason == "shutdown" else reason
    # What went wrong with pages of a crawl's job is in the crawl's account, as with a report.
    wrong = _feed_failure(facts.stats or {}) if of_crawl else failures(facts)
    if wrong:
        return Outcome.FAILED, wrong
    if not meaning(reason).asked_for:
        return Outcome.FAILED, f"ended early ({reason})"
    return Outcome.FINISHED, "" if reason == "finished" else reason


def _unclosed(look: LogExcerpt, *, signalled: bool) -> tuple[Outcome, str]:
    facts = look.facts
    if signalled:
        return Outcome.KILLED, BY_CANCEL
    if facts.last_error == BLOCKED or (facts.last_error and look.would_tell_end):
        return Outcome.DIED, with_remedy(facts.last_error)
    if facts.forced:
        return Outcome.DIED, "a second signal ended it at once"
    if facts.told:  # Scrapy closes no spider that was told to end while it opened
        return Outcome.CANCELLED, UNCLOSED
    if not look.would_tell_end:
        return (
            Outcome.UNKNOWN,
            "its log is empty, or LOG_LEVEL, LOG_FORMAT or the like hides how it ended",
        )
    return Outcome.DIED, UNCLOSED


def status_codes(stats: Mapping[str, object]) -> dict[str, int]:
    """Return the number of responses by status code, in the stats of a job."""
    return {
        found[1]: _number(stats, name) for name in sorted(stats) if (found := _STATUS.match(name))
    }


def failures(facts: LogFacts) -> str:
    """Describe the failures of a job that has closed its spider, in a few words; empty if there are none."""
    stats = facts.stats or {}
    found = []
    if facts.closed in {
        "start_error",
        "closespider_errorcount",
        "memusage_exceeded",
        "timeout",
        "stalled",
    }:
        found.append(facts.closed)
    kinds = [
        name
        for name in stats
        if name.startswith("spider_exceptions/") and name != "spider_exceptions/count"
    ]
    exceptions = sum(_number(stats, name) for name in kinds)
    if exceptions:
        found.append(
            f"{exceptions} exceptions in callbacks"
            if exceptions > 1
            else "1 exception in a callback"
        )
    if feed := _feed_failure(stats):
        found.append(feed)
    errors = errors_in(facts) or facts.levels.get("ERROR", 0) + facts.levels.get("CRITICAL", 0)
    if errors:
        found.append(f"{errors} errors logged" if errors > 1 else "1 error logged")
    if found and facts.last_error:
        found.append(f"last: {with_remedy(facts.last_error)}")
    return "; ".join(found)


def with_remedy(error: str) -> str:
    """Return an error, and what to do about it if that is known."""
    return f"{error.rstrip('.')}. {remedy}" if (remedy := remedy_for(error)) else error


def _feed_failure(stats: Mapping[str, object]) -> str:
    failed = any(
        _number(stats, name) for name in stats if name.startswith("feedexport/failed_count/")
    )
    return "its feed could not be stored" if failed else ""


def _number(stats: Mapping[str, object], name: str) -> int:
    value = stats.get(name, 0)
    return value if isinstance(value, int) else 0


def by_report(
    state: JobState, report: WorkerReport, *, signalled: bool = False, needless: bool = False
) -> Verdict:
    """Judge a job by its state and its worker's last report; `signalled` and `needless` are as in `by_log`."""
    if needless and state is JobState.FINISHED and not (report.ended or report.requests):
        # Scrapy closes no spider that was told to end while it opened: its last report is its first one.
        outcome, reason = Outcome.CANCELLED, NEEDLESS
    else:
        outcome, reason = _reported(state, report, signalled=signalled)
    errors, codes = _logged_errors(report.stats), status_codes(report.stats)
    return Verdict(
        outcome=outcome,
        reason=reason,
        pages=report.pages,
        items=report.items,
        errors=errors,
        codes=codes,
    )


def by_kept_report(report: Mapping[str, Any]) -> Verdict:
    """Judge a job by what the store keeps of its accepted report, in the words that its report has led to."""
    counts, stats = counts_of(report), dict(report.get("stats") or {})
    return Verdict(
        outcome=Outcome.FINISHED,
        reason=_missed(counts["failed"], counts["requests"]),
        pages=counts["pages"],
        items=counts["items"],
        errors=_logged_errors(stats),
        codes=status_codes(stats),
    )


def _logged_errors(stats: Mapping[str, object]) -> int | None:
    return (
        _number(stats, "log_count/ERROR") + _number(stats, "log_count/CRITICAL") if stats else None
    )


def _missed(failed: int, requests: int) -> str:
    """Missed URLs are no failure of the job; the crawl's summary counts them."""
    return f"{failed} of {counted(requests, 'URL')} failed" if failed else ""


def _reported(state: JobState, report: WorkerReport, *, signalled: bool) -> tuple[Outcome, str]:
    if not report.ended and state is not JobState.FINISHED:
        return Outcome.RUNNING, ""
    if not report.ended and signalled:
        return Outcome.KILLED, BY_CANCEL
    if not report.ended:
        return (
            Outcome.DIED,
            f"after {report.ended_requests} of {counted(report.requests, 'request')}",
        )
    if meaning(report.finish_reason).told:
        # A worker without a batch has done all: a crawl ends before its workers see that.
        left = report.batches is None or any(
            number for fate, number in report.batches.items() if fate != "acked"
        )
        how = Outcome.CANCELLED if left else Outcome.FINISHED
        return how, "" if report.finish_reason == "shutdown" else report.finish_reason
    early = (
        "" if meaning(report.finish_reason).asked_for else f"ended early ({report.finish_reason})"
    )
    wrong = (
        report.problem or early or ("its feed could not be stored" if report.feeds_failed else "")
    )
    if wrong:
        return Outcome.FAILED, wrong
    return Outcome.FINISHED, _missed(report.failed_requests, report.ended_requests)
