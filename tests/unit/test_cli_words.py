"""What is said about a crawl while it runs and when it has ended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli.crawls import wording

from scrapyd_dist.batches import Crawl, CrawlState

SUMMARY: dict[str, Any] = {
    "schema": 1, "crawl": "easy-1", "duration_s": 41.2, "urls_found": 3020, "urls_distinct": 3000, "offsite": 7,
    "duplicate": 20, "batches": {"total": 4, "done": 3}, "requests": {"total": 3000, "sent": 2000, "done": 1500},
    "items": 1499, "pages": 1600, "per_s": {"requests": 40.0, "pages": 41.0, "items": 12.4, "failed": 0.0},
    "outlook": {"requests": 6000, "sure": "estimate", "eta_s": 45.0},
    "index": {"pages": 50, "total": 100, "failed": 0}, "gone_urls": 1, "failed_urls": 0, "dead_urls": 0,
    "index_failed": 0, "output": ["/elsewhere/items.jl"], "misses": "/elsewhere/misses.jsonl", "warnings": [],
    "nodes": [
        {"name": "web1", "state": "up", "jobs": 2, "items": 1000, "reason": "", "pages": 1010, "failed": 4, "slots": 4,
         "running": 2, "per_s": {"pages": 21.0, "items": 20.1, "failed": 0.1}},
        {"name": "web2", "state": "down", "jobs": 1, "items": 499, "reason": "connection refused"},
    ],
}  # fmt: skip


def crawl(state: CrawlState = CrawlState.FINDING, **summary: Any) -> Crawl:
    return Crawl(id="easy-1", project="p", spider="easy", state=state, created=0.0, summary={**SUMMARY, **summary})


def test_spans_of_time_counts_and_rates() -> None:
    clocks = {0.4: "0 s", 59.4: "59 s", 59.6: "1:00 min", 725: "12:05 min", 3723: "1:02:03 h"}
    assert {seconds: wording.clock(seconds) for seconds in clocks} == clocks
    counts = {0: "0 batches", 1: "1 batch", 2: "2 batches", 12345: "12,345 batches"}
    assert {count: wording.counted(count, "batch", "batches") for count in counts} == counts
    rates = {12.4: "12/s", 1234.5: "1,234/s", 0.42: "0.4/s", 0: ""}
    assert {rate: wording.per_second({"items": rate}, "items") for rate in rates} == rates
    assert wording.per_second({}, "items") == wording.per_second(None, "items") == ""


@pytest.mark.parametrize(
    ("sure", "eta", "expected"),
    [
        ("known", 45.0, ("6,000", "45 s to go")),
        ("estimate", 45.0, ("≈ 6,000", "≈ 45 s to go")),
        ("at-least", 45.0, ("≥ 6,000", "≥ 45 s to go")),
        ("known", None, ("6,000", "")),
    ],
)
def test_what_is_to_come_is_marked_by_how_sure_it_is(sure: str, eta: float | None, expected: tuple[str, str]) -> None:
    assert wording.outlook({"outlook": {"requests": 6000, "sure": sure, "eta_s": eta}}) == expected
    assert wording.outlook({"requests": {"total": 7}}) == ("7", "")


def test_the_line_while_it_runs() -> None:
    assert wording.progress_line(crawl()) == (
        "easy-1: finding · index 50/100 · found 3,020 · sent 2,000 · done 1,499 of ≈ 6,000 · gone 1 · batches 3/4"
        " · pages 1,600 (41/s) · items 1,499 (12/s) · ≈ 45 s to go · nodes 1/2"
    )
    assert wording.progress_line(replace(crawl(CrawlState.STARTING), summary={})) == "easy-1: starting"


def test_a_paused_crawl_has_no_time_to_go() -> None:
    line = wording.progress_line(crawl(paused=True))
    assert (line.startswith("easy-1: paused · "), "to go" in line) == (True, False)
    stopped = crawl(CrawlState.STOPPED, paused=True)
    assert wording.state_of({**stopped.summary, "state": "stopped"}) == "stopped"


def test_done_is_what_gave_a_result() -> None:
    lost = crawl(requests={"total": 120, "sent": 120, "done": 120, "succeeded": 0}, failed_urls=100, gone_urls=20)
    assert "done 0 of ≈ 6,000 · gone 20 · " in wording.progress_line(lost)
    assert "errors 100 · " in wording.progress_line(lost)
    assert "; 0 done in 4 batches" in wording.closing(replace(lost, state=CrawlState.FINISHED))[1]


def test_waiting_jobs_do_not_run() -> None:
    assert wording.jobs_of({"running": 4, "waiting": 2, "slots": 2}) == "2/2 running, 2 waiting"
    assert wording.jobs_of({"running": 4, "slots": 4}) == "4/4 running"


def test_a_crawl_that_runs_node_by_node_with_what_lags_behind() -> None:
    slow = {"batch": 7, "attempt": 1, "job": "easy-1.b7.a1", "node": "web1", "for_s": 180, "done": 40, "of": 1000,
            "times_slower": 6.2}  # fmt: skip
    stuck = {**slow, "batch": 8, "job": "easy-1.b8.a1", "done": 0, "times_slower": None}
    assert wording.standing(crawl(stragglers=[slow, stuck], failed_urls=4))[1:] == [
        "  web1 · up · 2/4 running · 2 batches done · pages 1,010 21/s · items 1,000 20/s · errors 4 0.1/s",
        "  web2 · down · 0 running · 1 batch done · pages 0 · items 499 · connection refused",
        "  slow: batch 7 on web1 for 3:00 min, 40 of 1,000 done, 6.2 times slower than usual (easy-1.b7.a1)",
        "  slow: batch 8 on web1 for 3:00 min, 0 of 1,000 done, nothing is done yet (easy-1.b8.a1)",
    ]
    assert "errors 4 · " in wording.progress_line(crawl(failed_urls=4))


def test_the_end_of_a_crawl_names_what_is_missing() -> None:
    misses = [{"kind": "gone", "url": "http://w/1", "reason": "404"}, {"kind": "other", "url": "http://w/2"}]
    assert wording.closing(crawl(CrawlState.FINISHED), misses) == [
        "Crawl easy-1 finished after 41 s: 1,499 items in /elsewhere/items.jl.",
        "  3,000 URLs found on 50 index pages; 1,499 done in 4 batches (7 offsite, 20 found twice).",
        "  1 gone (the site says they are not there):",
        "    http://w/1  404",
        "  All of them: /elsewhere/misses.jsonl",
        "  web1: 2 batches, 1,000 items",
        "  web2: 1 batch, 499 items (down: connection refused)",
    ]


def test_of_many_missing_urls_the_first_few_are_named_and_the_crawls_message_comes_last() -> None:
    misses = [{"kind": "failed", "url": f"http://w/{at}", "reason": "503"} for at in range(9)]
    stopped = crawl(CrawlState.STOPPED, gone_urls=0, failed_urls=9)
    lines = wording.closing(replace(stopped, message="Go on with: sdist resume easy-1"), misses)
    assert lines[-1] == "Go on with: sdist resume easy-1"
    assert [line for line in lines if "http://w/" in line] == [f"    http://w/{at}  503" for at in range(wording.SHOWN)]
    assert f"    and {9 - wording.SHOWN} more" in lines


def test_output_below_this_folder_is_named_as_seen_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = wording.closing(crawl(CrawlState.FINISHED, output=[str(Path.cwd() / "out" / "items.jl")]))
    assert lines[0].endswith("1,499 items in out/items.jl.")
