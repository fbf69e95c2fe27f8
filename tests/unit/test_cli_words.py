"""What is said about a crawl while it runs and when it has ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli import words

from scrapyd_dist.batches import Crawl, CrawlState

SUMMARY: dict[str, Any] = {
    "schema": 1, "crawl": "easy-1", "duration_s": 41.2, "urls_found": 3020, "urls_distinct": 3000, "offsite": 7,
    "duplicate": 20, "batches": {"total": 4, "done": 3}, "requests": {"total": 3000, "done": 1500}, "items": 1499,
    "index": {"pages": 50, "total": 100, "failed": 0}, "gone_urls": 1, "failed_urls": 0, "dead_urls": 0,
    "index_failed": 0, "output": ["/elsewhere/items.jl"], "misses": "/elsewhere/misses.jsonl", "warnings": [],
    "nodes": [
        {"name": "web1", "state": "up", "jobs": 2, "items": 1000, "reason": ""},
        {"name": "web2", "state": "down", "jobs": 1, "items": 499, "reason": "connection refused"},
    ],
}  # fmt: skip


def crawl(state: CrawlState = CrawlState.FINDING, **summary: Any) -> Crawl:
    return Crawl(id="easy-1", project="p", spider="easy", state=state, created=0.0, summary={**SUMMARY, **summary})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (725, "12:05 min"), (3723, "1:02:03 h")],
)
def test_clock(seconds: float, text: str) -> None:
    assert words.clock(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (12345, "12,345 batches")]
)
def test_counted(count: int, text: str) -> None:
    assert words.counted(count, "batch", "batches") == text


def test_pace_looks_back_over_its_window_only() -> None:
    pace = words.Pace(window=10)
    assert pace.rate == 0
    pace.add(0, 0)
    assert pace.rate == 0
    pace.add(5, 500)
    assert pace.rate == 100
    for now in (10, 15, 20, 25):
        pace.add(now, 500)
    assert pace.rate == 0


def test_pace_never_runs_backwards() -> None:
    pace = words.Pace()
    pace.add(0, 100)
    pace.add(1, 40)  # a batch failed, its requests are to be done again
    assert pace.rate == 0


@pytest.mark.parametrize(
    ("state", "pages", "total", "expected", "at_least"),
    [
        (CrawlState.FINDING, 9, 100, 3000, True),
        (CrawlState.FINDING, 10, 100, 30000, False),
        (CrawlState.FINDING, 50, None, 3000, True),  # nobody knows how long the index is
        (CrawlState.FINDING, 0, 1, 3000, True),
        (CrawlState.WORKING, 9, 100, 3000, False),  # the index is done, whatever its total was thought to be
    ],
)
def test_the_outlook_is_open_until_a_tenth_of_the_index_is_known(
    state: CrawlState, pages: int, total: int | None, expected: int, at_least: bool
) -> None:
    outlook = words.Outlook.of(crawl(state, index={"pages": pages, "total": total}))
    assert outlook == words.Outlook(expected=expected, at_least=at_least)


def test_eta() -> None:
    known, unknown = words.Outlook(expected=100, at_least=False), words.Outlook(expected=100, at_least=True)
    assert known.eta(40, 2.0) == "30 s to go"
    assert unknown.eta(40, 2.0) == "≥ 30 s to go"
    assert known.eta(40, 0.0) == known.eta(100, 2.0) == ""
    assert (known.text(), unknown.text()) == ("100", "≥ 100")


def test_the_line_while_it_runs() -> None:
    assert words.progress_line(crawl(), 12.4, 100.0) == (
        "easy-1: finding · index 50/100 · batches 3/4 · requests 1,500/6,000"
        " · items 1,499 (12/s) · 45 s to go · nodes 1/2"
    )


def test_a_crawl_that_nothing_is_known_of_yet() -> None:
    empty = replace(crawl(CrawlState.STARTING), summary={})
    assert words.progress_line(empty, 0, 0) == "easy-1: starting"


def test_the_end_of_a_crawl_names_what_is_missing() -> None:
    misses = [{"kind": "gone", "url": "http://w/1", "reason": "404"}, {"kind": "other", "url": "http://w/2"}]
    assert words.closing(crawl(CrawlState.FINISHED), misses) == [
        "Crawl easy-1 finished after 41 s: 1,499 items in /elsewhere/items.jl.",
        "  3,000 URLs found on 50 index pages; 1,500 done in 4 batches (7 offsite, 20 found twice).",
        "  1 gone (the site says they are not there):",
        "    http://w/1  404",
        "  All of them: /elsewhere/misses.jsonl",
        "  web1: 2 jobs, 1,000 items",
        "  web2: 1 job, 499 items (down: connection refused)",
    ]


def test_of_many_missing_urls_the_first_few_are_named() -> None:
    misses = [{"kind": "failed", "url": f"http://w/{at}", "reason": "503"} for at in range(9)]
    lines = words.closing(crawl(CrawlState.FINISHED, gone_urls=0, failed_urls=9), misses)
    assert [line for line in lines if "http://w/" in line] == [f"    http://w/{at}  503" for at in range(words.SHOWN)]
    assert f"    and {9 - words.SHOWN} more" in lines


def test_a_stopped_crawl_ends_with_how_to_go_on() -> None:
    stopped = replace(crawl(CrawlState.STOPPED), message="All nodes are down. Go on with: sdist resume easy-1")
    assert words.closing(stopped)[-1] == stopped.message


def test_output_below_this_folder_is_named_as_seen_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = words.closing(crawl(CrawlState.FINISHED, output=[str(Path.cwd() / "out" / "items.jl")]))
    assert lines[0].endswith("1,499 items in out/items.jl.")


def test_the_document_follows_the_row_where_the_summary_is_older() -> None:
    summary = {**SUMMARY, "state": "working", "message": ""}
    row = replace(crawl(CrawlState.STOPPED), summary=summary, message="stopped", exit_code=3)
    document = words.document(row)
    assert (document["state"], document["message"], document["exit_code"]) == ("stopped", "stopped", 3)
    assert document["items"] == 1499
