"""The judgement on jobs: every outcome, from the end of a log or from a worker's report."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from scrapyd_dist.joblogs.joblog import LogFacts, add_up
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.verdict import Outcome, by_log, by_report
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.scrapyd.api import JobState

DONE = LogFacts(whole=True, closed="finished", stats={"item_scraped_count": 3}, levels={"INFO": 9}, pages=4, items=3)


def look(facts: LogFacts = DONE, *, silent: float | None = 1.0, says_info: bool = True) -> LogExcerpt:
    return LogExcerpt(facts=facts, total=1000, silent=silent, offset=None, says_info=says_info)


def judged(seen: LogExcerpt | None, state: JobState = JobState.FINISHED, **options: Any) -> tuple[Outcome, str]:
    verdict = by_log(state, seen, **options)
    return verdict.outcome, verdict.reason


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        ({}, Outcome.FINISHED, ""),
        ({"closed": "closespider_itemcount"}, Outcome.FINISHED, "closespider_itemcount"),
        ({"closed": "shutdown"}, Outcome.CANCELLED, ""),
        ({"closed": "shutdown", "stats": {"log_count/ERROR": 2}}, Outcome.CANCELLED, ""),
        ({"closed": "start_error"}, Outcome.FAILED, "start_error"),
        ({"closed": "memusage_exceeded"}, Outcome.FAILED, "memusage_exceeded"),
        ({"closed": "banned"}, Outcome.FAILED, "ended early (banned)"),
        ({"stats": {"log_count/ERROR": 1}, "last_error": "oh"}, Outcome.FAILED, "1 error logged; last: oh"),
        ({"stats": {"log_count/CRITICAL": 2}}, Outcome.FAILED, "2 errors logged"),
        (
            {"stats": {"spider_exceptions/ZeroDivisionError": 3, "spider_exceptions/count": 3}},
            Outcome.FAILED,
            "3 exceptions in callbacks",
        ),
        ({"stats": {"feedexport/failed_count/FileFeedStorage": 1}}, Outcome.FAILED, "its feed could not be stored"),
        ({"stats": None, "levels": {"ERROR": 1}}, Outcome.FAILED, "1 error logged"),
        ({"closed": ""}, Outcome.DIED, "its log ends without 'Spider closed'"),
        ({"closed": "", "last_error": "Killed"}, Outcome.DIED, "Killed"),
        ({"closed": "", "told": True, "forced": True}, Outcome.DIED, "a second signal ended it at once"),
        ({"closed": "", "told": True}, Outcome.CANCELLED, "its log ends without 'Spider closed'"),
    ],
)
def test_how_a_job_ended_by_its_log(changes: dict[str, Any], outcome: Outcome, said: str) -> None:
    assert judged(look(replace(DONE, **changes))) == (outcome, said)


def test_a_worker_that_its_crawl_did_not_need() -> None:
    begun = LogFacts(whole=True, size=9)
    assert judged(look(begun))[0] is Outcome.DIED
    assert judged(None, needless=True)[0] is Outcome.UNKNOWN
    for seen in (look(LogFacts(whole=True), says_info=False), look(begun)):
        assert judged(seen, needless=True) == (Outcome.CANCELLED, "its crawl had finished before it began")
    for other in (replace(begun, opened=True), replace(begun, whole=False), replace(begun, last_error="Killed")):
        assert judged(look(other), needless=True)[0] is Outcome.DIED


def test_what_no_log_tells() -> None:
    assert judged(None)[0] is Outcome.UNKNOWN
    assert judged(look(LogFacts(whole=True), says_info=False))[0] is Outcome.UNKNOWN
    assert judged(None, JobState.PENDING) == (Outcome.PENDING, "")
    assert judged(None, JobState.RUNNING) == (Outcome.RUNNING, "")


def test_killed_is_only_what_we_sent_the_signal() -> None:
    torn = look(replace(DONE, closed=""))
    assert judged(torn, signalled=True)[0] is Outcome.KILLED
    assert judged(torn)[0] is Outcome.DIED
    assert judged(None, signalled=True)[0] is Outcome.KILLED
    assert judged(look(), signalled=True)[0] is Outcome.FINISHED  # it was faster than the signal


@pytest.mark.parametrize(
    ("silent", "idle_minutes", "outcome"),
    [(1.0, 0, Outcome.RUNNING), (599.0, 0, Outcome.RUNNING), (600.0, 0, Outcome.STALLED), (30.0, 10, Outcome.STALLED),
     (None, 9, Outcome.RUNNING)],
)  # fmt: skip
def test_stalled_is_no_line_or_no_page_for_a_while(silent: float | None, idle_minutes: int, outcome: Outcome) -> None:
    last = datetime.fromisoformat("2026-11-20 23:30:00")
    facts = replace(DONE, closed="", last=last, idle_since=last.replace(minute=30 - idle_minutes))
    assert judged(look(facts, silent=silent), JobState.RUNNING, stall=600)[0] is outcome


REPORT = WorkerReport(
    ended=True, updated=0.0, requests=5, done=5, missed=0, pages=5, items=4, finish_reason="finished",
    stats={"log_count/ERROR": 2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "state", "outcome"),
    [
        ({}, JobState.FINISHED, Outcome.FINISHED),
        ({"failed": (("http://web/1", "503"),)}, JobState.FINISHED, Outcome.FINISHED),
        ({"finish_reason": "shutdown"}, JobState.FINISHED, Outcome.CANCELLED),
        ({"finish_reason": "shutdown", "batches": {"acked": 3, "held": 0}}, JobState.FINISHED, Outcome.FINISHED),
        ({"finish_reason": "shutdown", "batches": {"acked": 3, "given_back": 1}}, JobState.FINISHED, Outcome.CANCELLED),
        ({"finish_reason": "superseded"}, JobState.FINISHED, Outcome.CANCELLED),
        ({"problem": "the disk is full"}, JobState.FINISHED, Outcome.FAILED),
        ({"finish_reason": "disk-full"}, JobState.FINISHED, Outcome.FAILED),
        ({"feeds_failed": 1}, JobState.FINISHED, Outcome.FAILED),
        ({"ended": False}, JobState.RUNNING, Outcome.RUNNING),
        ({"ended": False}, JobState.FINISHED, Outcome.DIED),
    ],
)
def test_how_a_worker_ended_by_its_report(changes: dict[str, Any], state: JobState, outcome: Outcome) -> None:
    verdict = by_report(state, replace(REPORT, **changes))
    assert (verdict.outcome, verdict.items, verdict.errors) == (outcome, 4, 2)


def test_a_worker_that_we_killed() -> None:
    assert by_report(JobState.FINISHED, replace(REPORT, ended=False), signalled=True).outcome is Outcome.KILLED


def test_stats_add_up() -> None:
    sums = add_up([
        {"pages": 3, "finish_reason": "finished", "start_time": "2026-11-20T23:05:01", "odd": None},
        {"pages": 5, "finish_reason": "finished", "start_time": "2026-11-20T22:00:00"},
        {"pages": 4, "finish_reason": "shutdown", "start_time": "2026-11-20T23:00:00"},
    ])  # fmt: skip
    assert list(sums) == ["finish_reason", "odd", "pages", "start_time"]
    assert sums["pages"].document() == {"jobs": 3, "sum": 12, "min": 3, "max": 5}
    assert sums["finish_reason"].document() == {"jobs": 3, "values": {"finished": 2, "shutdown": 1}}
    assert list(sums["start_time"].values) == ["2026-11-20T22:00:00", "2026-11-20T23:05:01"]
    many = add_up({"id": f"value {n}"} for n in range(1000))
    assert (many["id"].jobs, len(many["id"].values)) == (1000, 20)
