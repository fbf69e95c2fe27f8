"""A worker's report, the judgement on it and on jobs by their logs, and when a batch is to blame, and is cut."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapyd_dist.batches import Batch
from scrapyd_dist.job_record import Outcome
from scrapyd_dist.joblogs.joblog import LogFacts, LogReader, add_up
from scrapyd_dist.joblogs.log_reads import LogExcerpt
from scrapyd_dist.joblogs.verdict import TOLD_TO_END, by_log, by_report
from scrapyd_dist.joblogs.worker_report import (
    BadReport,
    misses,
    part_path,
    read_report,
    refusal,
    report_path,
    to_kept,
)
from scrapyd_dist.scheduling.attempt_failure import (
    ALONE,
    BLIND,
    CUTS,
    SPARED,
    AfterFailure,
    FailureKind,
    decide_after_failure,
    may_be_cut,
    most_attempts,
)
from scrapyd_dist.scheduling.batch_counters import BatchCounters
from scrapyd_dist.scrapyd.api import JobState

PART = {"file": "c.b1.a1.jl", "items": 2, "bytes": 9, "sha256": "00"}
GOOD: dict[str, Any] = {
    "schema": 1, "state": "ended", "updated": 5.5, "requests": 3, "done": 2, "missed": 1, "pages": 4, "items": 2,
    "finish_reason": "finished", "problem": "", "part": PART, "feeds": [], "feeds_failed": 0,
    "gone": [{"url": "u", "reason": "HTTP 404"}], "failed": [], "unended": [], "stats": {"a": 1},
    "code": {"version": "1"},
}  # fmt: skip


def report(**fields: Any) -> Any:
    return read_report(json.dumps({**GOOD, **fields}).encode())


def test_a_good_report_is_accepted() -> None:
    found = report()
    assert (
        refusal(found, 3, feed=False),
        found.ended,
        found.ended_requests,
        found.part.sha256,
    ) == ("", True, 3, "00")
    assert found.missed_urls["gone"] == (("u", "HTTP 404"),)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"problem": "no key"}, "no key"),
        ({"finish_reason": "shutdown"}, "ended early (shutdown)"),
        ({"finish_reason": ""}, "ended early"),
        ({"requests": 2}, "had 2 requests of the batch's 3"),
        ({"part": None}, "wrote no part"),
        ({"items": 3}, "wrote 2 of its 3 items"),
    ],
)
def test_any_other_is_refused_in_words(fields: dict[str, Any], why: str) -> None:
    assert why in refusal(report(**fields), 3, feed=False)


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"feeds": ["ftp://h/1.jl"]}, True),
        ({"feeds": []}, False),
        ({"feeds": ["ftp://h/1.jl"], "feeds_failed": 1}, False),
        ({"feeds": [], "items": 0}, True),
    ],
)
def test_with_a_feed_the_feed_must_be_there(fields: dict[str, Any], good: bool) -> None:
    assert (refusal(report(**{"part": None, **fields}), 3, feed=True) == "") is good


def test_what_nothing_was_heard_of_has_failed() -> None:
    rows = {name: [{"url": name, "reason": "why"}] for name in ("gone", "failed", "unended")}
    assert [(m.url, m.kind, m.batch) for m in misses(report(**rows), 7)] == [
        ("gone", "gone", 7), ("failed", "failed", 7), ("unended", "failed", 7),
    ]  # fmt: skip


def test_the_store_keeps_no_lists_of_urls() -> None:
    row = to_kept(report())
    assert json.loads(json.dumps(row)) == row
    assert not {"gone", "failed", "unended"} & row.keys()
    assert (row["done"], row["missed"], row["items"], row["pages"]) == (2, 1, 2, 4)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b'"text"', b"5", b"{}", b"\xff\xfe", b'{"schema": 1', b"<html>", b"[" * 100_000,
        b'{"schema": 9}',
        *(json.dumps({**GOOD, **wrong}).encode() for wrong in (
            {"requests": "many"}, {"requests": None}, {"requests": 1e999}, {"updated": "now"}, {"part": "file"},
            {"part": [1]},
            {"part": {**PART, "bytes": None}}, {"gone": [1]}, {"gone": None}, {"failed": [{"url": "u"}]}, {"feeds": 5},
            {"stats": [1]}, {"code": "x"},
        )),
    ],
)  # fmt: skip
def test_what_is_no_report_is_told_so_whatever_it_is(data: bytes) -> None:
    with pytest.raises(BadReport):
        read_report(data)


@pytest.mark.parametrize(
    "field", ["updated", "started", "requests", "done", "pages", "items", "errors", "feeds_failed"]
)
@pytest.mark.parametrize(
    "number", ["9" * 5000, "9" * 4000, "-1", "NaN", "Infinity", "1e999", "1e300"]
)
def test_a_report_with_a_number_that_is_none_is_none(field: str, number: str) -> None:
    text = json.dumps({**GOOD, field: "@"}).replace('"@"', number)
    with pytest.raises(BadReport):
        read_report(text.encode())


def test_a_stat_that_cannot_be_summed_up_costs_nothing_but_itself() -> None:
    stats = {"a": 1, "b": 10**4000, "c": float("nan"), "d": [1], "e": "x", "f": -2.5}
    assert report(stats=stats).stats == {"a": 1, "e": "x", "f": -2.5}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["url", "reason", "file", "items"]), inner)
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(sorted(GOOD.keys() - {"schema"})), JSON, max_size=3))
def test_a_report_can_be_read_or_is_none_and_nothing_else_happens(fields: dict[str, Any]) -> None:
    try:
        found = report(**fields)
    except BadReport:
        return
    refusal(found, 3, feed=False)
    misses(found, 1)
    json.dumps(to_kept(found))


def test_files_are_named_by_us_and_not_by_a_report() -> None:
    found = report(part={**PART, "file": "../../etc/passwd"})
    assert found.part.file == "../../etc/passwd"  # for people; no code follows it
    assert part_path("c.0", "c.b1.a1") == "logs/_sdist/c.0/c.b1.a1.jl"
    assert report_path("c.0", "c.b1.a1") == "logs/_sdist/c.0/c.b1.a1.json"


# batches that kill their workers

BATCH = Batch(number=1, size=4)
#: two of its attempts do not count, or as many as may not
FORGIVEN = replace(BATCH, forgiven=2)
SPENT = replace(BATCH, forgiven=SPARED)
#: so many attempts before it was begun anew count no more
ANEW = replace(BATCH, earlier=SPARED + 3)
#: what a batch was cut into, down to a single request
PIECE = replace(BATCH, parent=1)
ONE = replace(PIECE, size=1)


@pytest.mark.parametrize(
    "cause", ["finished", "disk-full", "shutdown", "throttle-failed", "failed"]
)
def test_only_an_end_without_a_known_cause_blames_the_batch(cause: str) -> None:
    assert report(state="running", finish_reason="").blames_batch
    assert report(finish_reason="memusage_exceeded").blames_batch
    assert not report(finish_reason=cause).blames_batch


def test_a_piece_of_a_cut_batch_gets_fewer_attempts() -> None:
    assert most_attempts(BATCH, 4) == 4
    assert most_attempts(replace(BATCH, parent=1), 4) == 1
    assert most_attempts(replace(BATCH, parent=1, size=1), 4) == ALONE
    assert most_attempts(replace(BATCH, parent=1, size=1), 1) == 1


def test_code_that_cannot_do_any_page_is_not_cut_for_ever() -> None:
    assert not may_be_cut(replace(BATCH, size=1), BatchCounters(done=1))
    for cuts, done, cut in (
        (BLIND - 1, 0, True),
        (BLIND, 0, False),
        (BLIND, 1, True),
        (CUTS, 1, False),
    ):
        assert may_be_cut(BATCH, BatchCounters(cuts=cuts, done=done)) is cut


@pytest.mark.parametrize(
    ("kind", "batch", "number", "after"),
    [
        (FailureKind.COUNTED, BATCH, 1, AfterFailure(max_attempts=3)),
        (FailureKind.COUNTED, BATCH, 3, AfterFailure(max_attempts=3)),
        (FailureKind.SUSPECT, BATCH, 2, AfterFailure(max_attempts=3)),
        (FailureKind.SUSPECT, BATCH, 3, AfterFailure(max_attempts=4, is_cut=True)),
        (FailureKind.SUSPECT, FORGIVEN, 4, AfterFailure(max_attempts=3)),
        (FailureKind.SUSPECT, FORGIVEN, 5, AfterFailure(max_attempts=4, is_cut=True)),
        (FailureKind.SUSPECT, PIECE, 1, AfterFailure(max_attempts=2, is_cut=True)),
        (FailureKind.SUSPECT, ONE, 2, AfterFailure(max_attempts=2)),
        (FailureKind.COUNTED, ONE, 2, AfterFailure(max_attempts=3)),
        (FailureKind.HARMLESS, BATCH, 3, AfterFailure(max_attempts=3, is_forgiven=True)),
        (FailureKind.RESTART, PIECE, 1, AfterFailure(max_attempts=3, is_forgiven=True)),
        (FailureKind.HARMLESS, SPENT, 23, AfterFailure(max_attempts=3)),
        (FailureKind.HARMLESS, ANEW, 24, AfterFailure(max_attempts=3, is_forgiven=True)),
        (FailureKind.SUSPECT, ANEW, 25, AfterFailure(max_attempts=3)),
        (FailureKind.SUSPECT, ANEW, 26, AfterFailure(max_attempts=4, is_cut=True)),
        (FailureKind.RESTART, SPENT, 22, AfterFailure(max_attempts=3)),
        (FailureKind.RESTART, SPENT, 23, AfterFailure(max_attempts=4, is_cut=True)),
    ],
)
def test_a_batch_goes_on_after_a_failure_as_its_kind_says(
    kind: FailureKind, batch: Batch, number: int, after: AfterFailure
) -> None:
    counters = BatchCounters(done=1)
    assert decide_after_failure(batch, number, kind, max_attempts=3, counters=counters) == after


def test_a_failure_that_is_made_harmless_is_remembered_as_what_it_was() -> None:
    assert FailureKind.of_worker(to_blame=True).made_harmless is FailureKind.RESTART
    assert FailureKind.of_worker(to_blame=False).made_harmless is FailureKind.HARMLESS
    assert FailureKind.RESTART.made_harmless is FailureKind.RESTART


# the judgement on jobs

DONE = LogFacts(
    whole=True,
    closed="finished",
    stats={"item_scraped_count": 3},
    levels={"INFO": 9},
    pages=4,
    items=3,
)


def look(facts: LogFacts = DONE, *, silent: float | None = 1.0, tells: bool = True) -> LogExcerpt:
    return LogExcerpt(
        facts=facts, total=1000, silent=silent, offset=None, says_info=tells, would_tell_end=tells
    )


def judged(
    seen: LogExcerpt | None, state: JobState = JobState.FINISHED, **options: Any
) -> tuple[Outcome, str]:
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
        (
            {"stats": {"log_count/ERROR": 1}, "last_error": "oh"},
            Outcome.FAILED,
            "1 error logged; last: oh",
        ),
        ({"stats": {"log_count/CRITICAL": 2}}, Outcome.FAILED, "2 errors logged"),
        (
            {"stats": {"spider_exceptions/ZeroDivisionError": 3, "spider_exceptions/count": 3}},
            Outcome.FAILED,
            "3 exceptions in the spider (3 ZeroDivisionError)",
        ),
        (
            {
                "stats": {
                    "spider_exceptions/KeyError": 3,
                    "spider_exceptions/ValueError": 10,
                    "spider_exceptions/count": 13,
                    "log_count/ERROR": 13,
                },
                "exception": "ValueError: no price",
                "last_error": "Spider error processing <GET http://a/1> … ValueError: no price",
            },
            Outcome.FAILED,
            (
                "ValueError: no price; 13 exceptions in the spider (10 ValueError, 3 KeyError);"
                " 13 errors logged; last: Spider error processing <GET http://a/1>"
            ),
        ),
        (
            {"stats": dict.fromkeys([f"spider_exceptions/E{n}" for n in range(1, 8)], 1)},
            Outcome.FAILED,
            "7 exceptions in the spider (1 E1, 1 E2, 1 E3, 1 E4, 1 E5 and 2 more)",
        ),
        (
            {"stats": {"feedexport/failed_count/FileFeedStorage": 1}},
            Outcome.FAILED,
            "its feed could not be stored",
        ),
        ({"stats": None, "levels": {"ERROR": 1}}, Outcome.FAILED, "1 error logged"),
        ({"closed": ""}, Outcome.DIED, "its log ends without 'Spider closed'"),
        ({"closed": "", "last_error": "Killed"}, Outcome.DIED, "Killed"),
        (
            {"closed": "", "signalled": True, "forced": True},
            Outcome.DIED,
            "a second signal ended it at once",
        ),
        (
            {"closed": "", "signalled": True},
            Outcome.CANCELLED,
            "its log ends without 'Spider closed'",
        ),
    ],
)
def test_how_a_job_ended_by_its_log(changes: dict[str, Any], outcome: Outcome, said: str) -> None:
    assert judged(look(replace(DONE, **changes))) == (outcome, said)


NOT_OPENED = """\
2026-11-29 07:35:56 [scrapy.utils.log] INFO: Scrapy 2.19.0 started (bot: p)
2026-11-29 07:35:56 [asyncio] ERROR: Task exception was never retrieved
future: <Task finished name='Task-1'>
Traceback (most recent call last):
  File "/x/scrapy/crawler.py", line 310, in crawl_async
    self.spider = self._create_spider(*args, **kwargs)
  File "/tmp/p/spiders/a.py", line 6, in __init__
    open('/nosuch/list.txt')
FileNotFoundError: [Errno 2] No such file or directory: '/nosuch/list.txt'
"""


def test_a_spider_that_could_not_be_made_is_a_failed_job_whatever_log_level_hides() -> None:
    reader = LogReader()
    reader.feed(NOT_OPENED.encode())
    said = "FileNotFoundError: [Errno 2] No such file or directory: '/nosuch/list.txt'"
    assert judged(look(reader.facts(), tells=False)) == (Outcome.FAILED, said)
    reader = LogReader()
    reader.feed(NOT_OPENED.replace("in crawl_async", "in start").encode())
    assert judged(look(reader.facts(), tells=False))[0] is Outcome.UNKNOWN


def test_what_a_job_has_counted_is_not_known_in_its_first_minute_nor_after_a_kill_in_it() -> None:
    text = "2026-11-29 07:36:0{} [scrapy.{}] INFO: {}\n"
    none = "Crawled 0 pages (at 0 pages/min), scraped 0 items (at 0 items/min)"
    opened = text.format(0, "core.engine", "Spider opened")
    begun = opened + text.format(1, "extensions.logstats", none)

    def counted(log: str, state: JobState) -> tuple[int | None, int | None]:
        reader = LogReader()
        reader.feed(log.encode())
        verdict = by_log(state, look(reader.facts()))
        return verdict.pages, verdict.items

    assert counted(begun, JobState.RUNNING) == (None, None)
    scraped = "2026-11-29 07:36:02 [scrapy.core.scraper] DEBUG: Scraped from <200 http://a/>\n"
    assert counted(begun + 39 * scraped, JobState.FINISHED) == (None, None), "it was killed"
    dump = text.format(3, "statscollectors", "Dumping Scrapy stats:\n{'item_scraped_count': 39}")
    assert counted(begun + dump, JobState.FINISHED) == (0, 39)
    later = begun + text.format(2, "extensions.logstats", none)
    assert counted(later, JobState.RUNNING) == (0, 0)
    assert counted(later.replace(opened, ""), JobState.RUNNING) == (0, 0), "the end of a long log"


def test_the_exception_comes_first_since_a_table_cuts_what_is_behind() -> None:
    facts = replace(
        DONE,
        closed="start_error",
        stats={"log_count/ERROR": 1, "spider_exceptions/KeyError": 1},
        last_error="Error while reading start items: 'x'. … KeyError: 'x'",
        exception="KeyError: 'x'",
    )
    assert judged(look(facts))[1] == (
        "KeyError: 'x'; start_error; 1 exception in the spider; 1 error logged;"
        " last: Error while reading start items: 'x'."
    )


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'urls/a.txt'",
            "Path(__file__).parent",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/srv/a.txt'", ""),
        ("NotADirectoryError: [Errno 20] Not a directory: '/eggs/p/1.egg/p/a.csv'", "zipped egg"),
        ("ModuleNotFoundError: No module named 'common.words'", "common is not in the egg"),
    ],
)
def test_an_error_that_code_has_on_a_node_only_comes_with_a_remedy(error: str, remedy: str) -> None:
    for changes in ({"closed": ""}, {"stats": {"log_count/ERROR": 1}}):
        _, said = judged(look(replace(DONE, last_error=f"Task exception … {error}", **changes)))
        assert error in said
        assert remedy in said
        assert said.endswith(error) == (not remedy)


def test_a_worker_that_its_crawl_did_not_need() -> None:
    begun = LogFacts(whole=True, size=9)
    assert judged(look(begun))[0] is Outcome.DIED
    assert judged(None, needless=True)[0] is Outcome.UNKNOWN
    for seen in (look(LogFacts(whole=True), tells=False), look(begun)):
        assert judged(seen, needless=True) == (
            Outcome.CANCELLED,
            "its crawl had finished before it began",
        )
    for other in (
        replace(begun, opened=True),
        replace(begun, whole=False),
        replace(begun, last_error="Killed"),
    ):
        assert judged(look(other), needless=True)[0] is Outcome.DIED
    first = report(state="running", requests=0, done=0)
    outcomes = [by_report(JobState.FINISHED, first, needless=it).outcome for it in (True, False)]
    assert outcomes == [Outcome.CANCELLED, Outcome.DIED]
    assert by_report(JobState.RUNNING, first, needless=True).outcome is Outcome.RUNNING
    drained = by_report(JobState.FINISHED, first, told_to_end=True)
    assert (drained.outcome, drained.reason) == (Outcome.CANCELLED, TOLD_TO_END)
    at_work = report(state="running")
    assert by_report(JobState.FINISHED, at_work, told_to_end=True).outcome is Outcome.DIED
    assert (
        by_report(JobState.FINISHED, report(state="running"), needless=True).outcome is Outcome.DIED
    )


@pytest.mark.parametrize(
    ("acked", "needless", "outcome"),
    [(2, True, Outcome.FINISHED), (1, True, Outcome.CANCELLED), (2, False, Outcome.CANCELLED)],
)
def test_a_worker_that_waited_when_its_crawl_ended(
    acked: int, needless: bool, outcome: Outcome
) -> None:
    stats = {"distributed/batches_leased": 2, "distributed/batches_acked": acked}
    seen = look(replace(DONE, size=9, opened=True, closed="shutdown", stats=stats))
    assert judged(seen, needless=needless) == (outcome, "")


def test_what_no_log_tells() -> None:
    assert judged(None)[0] is Outcome.UNKNOWN
    assert judged(look(LogFacts(whole=True), tells=False))[0] is Outcome.UNKNOWN
    assert judged(None, JobState.PENDING) == (Outcome.PENDING, "")
    assert judged(None, JobState.RUNNING) == (Outcome.RUNNING, "")


def test_killed_is_only_what_we_sent_the_signal() -> None:
    torn = look(replace(DONE, closed=""))
    assert judged(torn, signalled=True)[0] is Outcome.KILLED
    assert judged(torn)[0] is Outcome.DIED
    assert judged(None, signalled=True)[0] is Outcome.KILLED
    assert judged(look(), signalled=True)[0] is Outcome.FINISHED  # it was faster than the signal
    assert (
        by_report(JobState.FINISHED, report(state="running"), signalled=True).outcome
        is Outcome.KILLED
    )


@pytest.mark.parametrize(
    ("silent", "idle_minutes", "outcome"),
    [(1.0, 0, Outcome.RUNNING), (599.0, 0, Outcome.RUNNING), (600.0, 0, Outcome.STALLED), (30.0, 10, Outcome.STALLED),
     (None, 9, Outcome.RUNNING)],
)  # fmt: skip
def test_stalled_is_no_line_or_no_page_for_a_while(
    silent: float | None, idle_minutes: int, outcome: Outcome
) -> None:
    last = datetime.fromisoformat("2026-11-20 23:30:00")
    facts = replace(DONE, closed="", last=last, idle_since=last.replace(minute=30 - idle_minutes))
    assert judged(look(facts, silent=silent), JobState.RUNNING, stall=600)[0] is outcome


REPORT = report(requests=5, done=5, missed=0, pages=5, items=4, stats={"log_count/ERROR": 2})


@pytest.mark.parametrize(
    ("changes", "state", "outcome"),
    [
        ({}, JobState.FINISHED, Outcome.FINISHED),
        (
            {"missed_urls": {"failed": (("http://web/1", "503"),)}},
            JobState.FINISHED,
            Outcome.FINISHED,
        ),
        ({"finish_reason": "shutdown"}, JobState.FINISHED, Outcome.CANCELLED),
        (
            {"finish_reason": "shutdown", "batches": {"acked": 3, "held": 0}},
            JobState.FINISHED,
            Outcome.FINISHED,
        ),
        (
            {"finish_reason": "shutdown", "batches": {"acked": 3, "given_back": 1}},
            JobState.FINISHED,
            Outcome.CANCELLED,
        ),
        ({"finish_reason": "superseded"}, JobState.FINISHED, Outcome.CANCELLED),
        ({"problem": "the disk is full"}, JobState.FINISHED, Outcome.FAILED),
        ({"finish_reason": "disk-full"}, JobState.FINISHED, Outcome.FAILED),
        ({"feeds_failed": 1}, JobState.FINISHED, Outcome.FAILED),
        ({"ended": False}, JobState.RUNNING, Outcome.RUNNING),
        ({"ended": False}, JobState.FINISHED, Outcome.DIED),
    ],
)
def test_how_a_worker_ended_by_its_report(
    changes: dict[str, Any], state: JobState, outcome: Outcome
) -> None:
    verdict = by_report(state, replace(REPORT, **changes))
    assert (verdict.outcome, verdict.items, verdict.errors) == (outcome, 4, 2)


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
