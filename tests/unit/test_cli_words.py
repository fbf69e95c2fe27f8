"""What commands say: words about crawls and fleets, pictures, tables, foreign text; how waiting and asking end."""

import json
import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scrapyd_dist.cli import output
from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.crawls import crawl_picture, demo, wording
from scrapyd_dist.cli.crawls.crawl import node_rows, shard_rows
from scrapyd_dist.cli.crawls.crawl import show as show_plan
from scrapyd_dist.cli.crawls.watcher import interruptible_pause, live_view
from scrapyd_dist.cli.jobs.logs import put_line
from scrapyd_dist.cli.nodes import fleet_view, node_commands
from scrapyd_dist.cli.silence import without_drained
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import (
    ConfigError,
    ConnectionRefused,
)
from scrapyd_dist.escapes import harmless
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.joblogs.joblog import LogLines
from scrapyd_dist.nodes import Node
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import ended_in_words, next_command
from scrapyd_dist.progress.crawl_words import outlook, state_of
from scrapyd_dist.progress.rates import rate_number
from scrapyd_dist.time_spans import describe_span

EVIL = "a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
SHOWN = r"a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
LOG = b"2026-11-20 20:00:00 [x] INFO: \x1b[31mred\x1b[0m\t\x1b]0;title\x07 \xff\r\n"

PLAN: dict[str, Any] = {
    "goals": {},
    "schema": 1, "spider": "easy", "target": "rule 1", "project": "shop", "version": "v1", "deploy": ["b"],
    "nodes": [
        {"name": "a", "url": "http://a", "state": "up", "reason": "", "slots": 2, "logs": True,
         "unreached": "its store is a file"},
        {"name": "b", "url": "http://b", "state": "up", "reason": "", "slots": 4, "logs": False, "unreached": ""},
        {"name": "c", "url": "http://c", "state": "down", "reason": "refused", "slots": None, "logs": False,
         "unreached": ""},
    ],
    "shards": [
        {"number": at, "url": f"http://w/{at}", "first_page": at * 5, "last_page": at * 5 + 4} for at in range(9)
    ],
    "batch_size": 1000, "bytes_per_batch": {"form": "plain", "bytes": 61440, "per_url": 61.4},
    "limit": None, "throttle": {"rules": 0, "heeded": True, "reason": ""}, "code": [],
    "output": ["/x/items.jl"], "warnings": ["Mind the rate."],
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "schema": 1, "crawl": "easy-1", "duration_s": 41.2, "urls_found": 3020, "urls_distinct": 3000, "offsite": 7,
    "duplicate": 20, "batches": {"total": 4, "done": 3},
    "requests": {"total": 3000, "sent": 2000, "done": 1500, "succeeded": 1499},
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
    return Crawl(
        id="easy-1",
        project="p",
        spider="easy",
        state=state,
        created=0.0,
        summary={**SUMMARY, **summary},
    )


@pytest.mark.parametrize(
    ("state", "code", "lost", "said", "command"),
    [
        ("finished", 0, {}, "finished", ""),
        ("finished", None, {}, "finished", ""),
        ("finished", 0, {"failed_urls": 2}, "finished", ""),  # as --max-failed allows
        (
            "finished",
            3,
            {"failed_urls": 8},
            "finished, 8 failed",
            "retry easy-1 --failed-urls",
        ),
        (
            "finished",
            3,
            {"failed_urls": 8, "dead_urls": 2},
            "finished, 10 failed",
            "retry easy-1 --failed-urls",
        ),
        (
            "finished",
            3,
            {"failed_urls": 8, "raised_urls": 1},
            "finished, 8 failed",
            "retry easy-1 --failed-urls --new-code",
        ),
        ("finished", 3, {"dead_urls": 1200}, "finished, 1,200 failed", "retry easy-1"),
        ("finished", 1, {"dead_urls": 36}, "finished, 36 failed", "retry easy-1"),
        (
            "finished",
            3,
            {"refused": 3, "index_failed": 2},
            "finished, 3 refused, 2 failed on the index",
            "",
        ),
        ("finished", 3, {}, "finished, exit code 3", ""),
        (
            "finished",
            3,
            {"batches": {"waiting": 5}},
            "finished, 5 batches left",
            "resume easy-1",
        ),  # its spider closed it
        ("stopped", 3, {"failed_urls": 8}, "stopped", "resume easy-1"),
        ("incomplete", 3, {}, "incomplete", "resume easy-1"),
        ("died", None, {}, "died", "resume easy-1"),
        ("refused", 2, {}, "refused", ""),
        ("working", None, {"failed_urls": 8}, "working", ""),
    ],
)
def test_a_crawl_that_lacks_something_says_so_and_how_it_goes_on(
    state: str, code: int | None, lost: dict[str, int], said: str, command: str
) -> None:
    document = {**SUMMARY, "state": state, "exit_code": code, **lost}
    assert (ended_in_words(document), next_command(document)) == (said, command)
    assert output.colour_of(said) == ("yellow" if code else "green") or state != "finished"


def test_the_end_of_a_crawl_that_lacks_something_names_the_command_once() -> None:
    ended = replace(crawl(CrawlState.FINISHED, failed_urls=8), exit_code=3)
    lines = wording.closing(ended)
    assert lines[0].startswith("Crawl easy-1 finished after 41 s, 8 failed: ")
    assert lines[-1] == "  Go on with: sdist retry easy-1 --failed-urls"
    raised = replace(crawl(CrawlState.FINISHED, failed_urls=8, raised_urls=1), exit_code=3)
    assert wording.closing(raised)[-1] == (
        "  Go on, once the code is mended, with: sdist retry easy-1 --failed-urls --new-code"
    )
    told_so = replace(ended, message="Try sdist retry easy-1 --failed-urls.")
    assert "\n".join(wording.closing(told_so)).count("--failed-urls") == 1
    assert not any(
        "Go on with" in line for line in wording.closing(replace(ended, kind="frontier"))
    )


def test_spans_of_time_counts_and_rates() -> None:
    clocks = {0.4: "0 s", 59.4: "59 s", 59.6: "1:00 min", 725: "12:05 min", 3723: "1:02:03 h"}
    assert {seconds: describe_span(seconds) for seconds in clocks} == clocks
    counts = {0: "0 batches", 1: "1 batch", 2: "2 batches", 12345: "12,345 batches"}
    assert {count: counted(count, "batch", "batches") for count in counts} == counts
    rates = {12.4: "744/min", 1234.5: "74,070/min", 0.042: "2.5/min", 0.1: "6/min", 0: ""}
    assert {rate: wording.rate_of({"items": rate}, "items") for rate in rates} == rates
    assert wording.rate_of({}, "items") == wording.rate_of(None, "items") == ""
    numbers = {1234.4: "1,234", 10: "10", 9.94: "9.9", 0: "0"}
    assert {rate: rate_number(rate) for rate in numbers} == numbers


@pytest.mark.parametrize(
    ("sure", "eta", "expected"),
    [
        ("known", 45.0, ("6,000", "45 s to go")),
        ("estimate", 45.0, ("≈ 6,000", "≈ 45 s to go")),
        ("at-least", 45.0, ("≥ 6,000", "≥ 45 s to go")),
        ("known", None, ("6,000", "")),
    ],
)
def test_what_is_to_come_is_marked_by_how_sure_it_is(
    sure: str, eta: float | None, expected: tuple[str, str]
) -> None:
    assert outlook({"outlook": {"requests": 6000, "sure": sure, "eta_s": eta}}) == expected
    assert outlook({"requests": {"total": 7}}) == ("7", "")


def test_the_line_while_it_runs() -> None:
    assert wording.progress_line(crawl()) == (
        "easy-1: finding · index 50/100 · found 3,020 · sent 2,000 · done 1,500 of ≈ 6,000 · gone 1 · batches 3/4"
        " · pages 1,600 (2,460/min) · items 1,499 (744/min) · ≈ 45 s to go · nodes 1/2"
    )
    assert (
        wording.progress_line(replace(crawl(CrawlState.STARTING), summary={})) == "easy-1: starting"
    )


def test_a_paused_crawl_has_no_time_to_go() -> None:
    line = wording.progress_line(crawl(paused=True))
    assert (line.startswith("easy-1: paused · "), "to go" in line) == (True, False)
    stopped = crawl(CrawlState.STOPPED, paused=True)
    assert state_of({**stopped.summary, "state": "stopped"}) == "stopped"


def test_done_is_what_has_ended_as_in_the_document() -> None:
    lost = crawl(
        requests={"total": 120, "sent": 120, "done": 120, "succeeded": 0},
        failed_urls=100,
        gone_urls=20,
    )
    assert "done 120 of ≈ 6,000 · gone 20 · " in wording.progress_line(lost)
    assert "errors 100 · " in wording.progress_line(lost)
    closed = wording.closing(replace(lost, state=CrawlState.FINISHED))
    assert "; 120 done in 3 of 4 batches" in closed[1]
    at_its_goal = crawl(CrawlState.FINISHED, batches={"total": 8, "waiting": 6, "done": 2})
    assert "; 1,500 done in 2 of 8 batches" in wording.closing(at_its_goal)[1]


def test_waiting_jobs_do_not_run() -> None:
    assert wording.jobs_of({"running": 4, "waiting": 2, "slots": 2}) == "2/2 running, 2 waiting"
    assert wording.jobs_of({"running": 4, "slots": 4}) == "4/4 running"
    silent = {"running": 1, "slots": 1, "reason": "connection refused"}
    assert wording.jobs_of({**silent, "state": "down"}) == "jobs unknown"
    assert wording.jobs_of({**silent, "state": "left"}) == "jobs unknown"
    assert wording.jobs_of({**silent, "state": "left", "reason": ""}) == "1/1 running"


def test_a_crawl_that_runs_node_by_node_with_what_lags_behind() -> None:
    slow = {"batch": 7, "attempt": 1, "job": "easy-1.b7.a1", "node": "web1", "for_s": 180, "done": 40, "of": 1000,
            "times_slower": 6.2}  # fmt: skip
    stuck = {**slow, "batch": 8, "job": "easy-1.b8.a1", "done": 0, "times_slower": None}
    assert wording.standing(crawl(stragglers=[slow, stuck], failed_urls=4))[1:] == [
        "  web1 · up · 2/4 running · 2 batches done · pages 1,010 1,260/min · items 1,000 1,206/min · errors 4 6/min",
        "  web2 · down · 0 running · 1 batch done · pages 0 · items 499 · connection refused",
        "  slow: batch 7 on web1 for 3:00 min, 40 of 1,000 done, 6.2 times slower than usual (easy-1.b7.a1)",
        "  slow: batch 8 on web1 for 3:00 min, 0 of 1,000 done, nothing is done yet (easy-1.b8.a1)",
    ]
    assert "errors 4 · " in wording.progress_line(crawl(failed_urls=4))


def test_what_differs_from_scrapy_crawl_is_said_at_the_end() -> None:
    differences = [
        {"name": "JOBDIR", "meaning": "told", "found": ["JOBDIR"], "sentence": "It is not used."}
    ]
    ended = crawl(
        CrawlState.FINISHED, differences=differences, code=["old code"], warnings=["few items"]
    )
    notes = [line for line in wording.closing(ended) if "Note: " in line]
    assert notes == ["  Note: old code", "  Note: JOBDIR: It is not used.", "  Note: few items"]
    assert wording.differing(ended.summary) == ["not as with scrapy crawl: JOBDIR"]
    assert wording.differing({}) == []


def test_the_end_of_a_crawl_names_what_is_missing() -> None:
    misses = [
        {"kind": "gone", "url": "http://w/1", "reason": "404"},
        {"kind": "other", "url": "http://w/2"},
    ]
    assert wording.closing(crawl(CrawlState.FINISHED), misses) == [
        "Crawl easy-1 finished after 41 s: 1,499 items in /elsewhere/items.jl.",
        "  3,000 URLs found on 50 index pages; 1,500 done in 3 of 4 batches (7 offsite, 20 found twice).",
        "  1 gone (the site does not give them: 404, 403 …; or dropped, as by scrapy crawl):",
        "    http://w/1  404",
        "  web1: 2 batches, 1,000 items",
        "  web2: 1 batch, 499 items (down: connection refused)",
    ]


@pytest.mark.parametrize(
    ("state", "waiting", "why"),
    [
        (CrawlState.FINISHED, 0, " (others did all that there was)"),
        (CrawlState.FINISHED, 2, ""),  # a goal was reached
        (CrawlState.STOPPED, 0, ""),
    ],
)
def test_a_node_without_a_batch(state: CrawlState, waiting: int, why: str) -> None:
    idle = {"name": "web3", "state": "up", "jobs": 0, "items": 0}
    ended = crawl(state, nodes=[idle], batches={"total": 4, "waiting": waiting})
    assert f"  web3: 0 batches, 0 items{why}" in wording.closing(ended)


def test_of_many_missing_urls_the_first_few_are_named_and_the_crawls_message_comes_last() -> None:
    misses = [{"kind": "failed", "url": f"http://w/{at}", "reason": "503"} for at in range(9)]
    stopped = crawl(CrawlState.STOPPED, gone_urls=0, failed_urls=9)
    lines = wording.closing(replace(stopped, message="Go on with: sdist resume easy-1"), misses)
    assert lines[-1] == "Go on with: sdist resume easy-1"
    assert [line for line in lines if "http://w/" in line] == [
        f"    http://w/{at}  503" for at in range(wording.SHOWN)
    ]
    assert f"    and {9 - wording.SHOWN} more" in lines


def test_output_below_this_folder_is_named_as_seen_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = wording.closing(
        crawl(CrawlState.FINISHED, output=[str(Path.cwd() / "out" / "items.jl")])
    )
    assert lines[0].endswith("1,499 items in out/items.jl.")


def job(number: int, **fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "job": f"job{number}", "project": "p", "spider": "easy", "crawl": None, "state": "running", "pages": 1234,
        "items": None, "per_min": {"pages": 60.4, "items": None, "errors": 0.0}, "silent_s": 1, "reason": "",
    }  # fmt: skip
    return {**values, **fields}


def fleet(*jobs: dict[str, Any], state: str = "up", reason: str = "") -> dict[str, Any]:
    up = {"name": "web1", "url": "http://web1:6800", "state": state, "reason": reason, "slots": 4,
          "running": len(jobs), "pending": 2, "jobs": list(jobs)}  # fmt: skip
    down = {**up, "name": "web2", "state": "down", "reason": "connection refused", "running": None, "pending": None,
            "jobs": []}  # fmt: skip
    rates = {"pages": 60.4, "items": 0.0, "errors": 1.5}
    return {"nodes": [up, down], "running": len(jobs), "pending": 2, "per_min": rates}


def drawn(what: Any, width: int = 120) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_every_node_is_drawn_with_its_jobs() -> None:
    stalled = job(
        2, state="stalled", silent_s=960, per_min={"pages": 0.0, "items": 0.0, "errors": 3.0}
    )
    lines = drawn(fleet_view.frame(fleet(job(1), stalled)))
    assert lines[1].split() == ["web2", "down", "connection", "refused"]
    assert lines[2].split() == ["web1", "up", "2", "running,", "2", "pending"]
    assert lines[3].split() == ["job1", "easy", "1,234", "60", "0"]
    assert lines[4].endswith("no progress for 16:00 min")
    assert (
        lines[5]
        == "nodes 1/2 · 2 running · 2 pending · pages 60/min · items 0/min · errors 1.5/min"
    )


def test_a_node_that_is_drained_and_off_is_said_to_be_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    off = NodeStatus(node=Node.parse("web1"), error=ConnectionRefused.at("web1"), draining=1.0)
    node_commands._show([off], [off.document()])
    assert "down, drained" in capsys.readouterr().out
    document = fleet()
    document["nodes"][1]["draining"] = off.document()["draining"]
    assert drawn(fleet_view.frame(document))[1].split()[:3] == ["web2", "down,", "drained"]


WEB1 = SUMMARY["nodes"][0]
LONG_REASON = "a very long story of how it came that nothing answers there, " * 4


def test_a_long_reason_gives_way_to_what_is_short() -> None:
    picture = fleet_view.frame(fleet(job(1), state="down", reason=LONG_REASON))
    (line,) = [line for line in drawn(picture, width=100) if "down" in line and "web1 " in line]
    assert line.split()[:2] == ["web1", "down"]
    assert line.endswith("…")
    assert "job1 " in "\n".join(
        drawn(fleet_view.frame(fleet(job(1), reason=LONG_REASON)), width=100)
    )


def crawl_document(**fields: Any) -> dict[str, Any]:
    return {
        **SUMMARY,
        "crawl": "easy-20260102T030405Z",
        "spider": "easy",
        "state": "working",
        **fields,
    }


def test_why_a_node_is_down_stands_whole_below_the_table_in_red() -> None:
    nodes = [*SUMMARY["nodes"], {"name": "web3", "state": "wedged", "reason": LONG_REASON}]
    lines = drawn(crawl_picture.frame(crawl_document(nodes=nodes)), width=80)
    (place,) = [place for place, line in enumerate(lines) if line.startswith("web2 is")]
    assert lines[place] == "web2 is down (connection refused); its work goes elsewhere"
    assert lines[place - 1].split()[:2] == ["web3", "wedged"]
    rest = " ".join(lines[place + 1 :])
    assert rest == f"web3 is wedged ({LONG_REASON}); its work goes elsewhere".replace("  ", " ")
    out = StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    console.print(crawl_picture.frame(crawl_document(nodes=nodes)))
    assert "\x1b[31mweb2 is down" in out.getvalue()


def test_where_no_node_works_the_work_waits_and_of_many_in_trouble_a_few_are_named() -> None:
    nodes = [{"name": f"web{number}", "state": "down"} for number in range(30)]
    lines = drawn(crawl_picture.frame(crawl_document(nodes=nodes), most_nodes=4), width=80)
    assert lines[-2:] == [
        "web2 is down; its work waits for a node",
        "and 27 nodes more in trouble: sdist nodes",
    ]
    row = crawl(CrawlState.WORKING, nodes=nodes)
    assert len(drawn(crawl_picture.crawl_picture(row, 24), width=80)) <= 24


def test_a_crawl_that_has_not_begun_has_no_bars_and_a_refused_one_no_picture() -> None:
    starting = replace(crawl(CrawlState.STARTING), summary={})
    assert drawn(crawl_picture.crawl_picture(starting, 24), width=80) == ["easy-1  starting  0 s"]
    refused = replace(starting, state=CrawlState.REFUSED)
    assert drawn(crawl_picture.crawl_picture(refused, 24), width=80) == []


def test_the_spider_and_the_output_stand_in_the_head() -> None:
    lines = drawn(crawl_picture.frame(crawl_document()), width=80)
    assert lines[:2] == [
        "easy-20260102T030405Z  working  41 s  ≈ 45 s to go",
        "spider easy · items go to /elsewhere/items.jl",
    ]


def test_a_picture_of_80_columns_keeps_its_lines_while_its_numbers_grow() -> None:
    great = 987_654
    grown = crawl_document(
        duration_s=86_400.0 * 9, urls_found=great, items=great, pages=great, failed_urls=great, gone_urls=great,
        requests={"total": great, "sent": great, "done": great, "succeeded": great},
        outlook={"requests": great, "sure": "estimate", "eta_s": 86_400.0 * 99},
        per_s=dict.fromkeys(("pages", "items", "failed"), 9_999.0), output=["/a/very/long/path" * 20],
        nodes=[{**WEB1, "items": great, "pages": great}],
    )  # fmt: skip
    small = drawn(crawl_picture.frame(crawl_document(nodes=[WEB1])), width=80)
    large = drawn(crawl_picture.frame(grown), width=80)
    assert len(large) == len(small)
    assert [line.split()[0] for line in large[2:5]] == ["index", "requests", "batches"]
    assert large[3].endswith(f"{great:,} done of ≈ {great:,}")
    assert large[-1].split()[1:] == [
        "up", "2/4", "2", f"{great:,}", "1,260", f"{great:,}", "1,206", "4"
    ]  # fmt: skip
    assert small[-2] == large[-2], "a growing number moves no column"


def test_a_long_name_of_a_node_gives_way_to_its_numbers() -> None:
    hostile = crawl_document(nodes=[{**WEB1, "name": "eu-west-3." * 20, "pages": 10**9 - 1}])
    (row,) = [line for line in drawn(crawl_picture.frame(hostile), width=80) if "999" in line]
    assert row.startswith("eu-west-3.")
    assert row.split()[1:] == ["up", "2/4", "2", "999,999,999", "1,260", "1,000", "1,206", "4"]


def test_of_many_jobs_those_with_errors_are_drawn_first() -> None:
    many = [
        job(number, per_min={"pages": 1.0, "items": 1.0, "errors": float(number)})
        for number in range(50)
    ]
    lines = drawn(fleet_view.frame(fleet(*many), lines=14))
    assert sum(line.strip().startswith("job") for line in lines) == 5
    assert "job49" in "".join(lines)
    assert "and 45 more jobs" in lines


def test_without_a_terminal_it_is_a_line_now_and_then_and_one_for_each_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = fleet_view.PlainFleet()
    said = []
    for now, document in (
        (0, fleet()),
        (10, fleet()),
        (20, fleet(state="wedged", reason="stuck")),
        (30, fleet()),
    ):
        view.show(document, now)
        said.append(capsys.readouterr().err.splitlines())
    assert [len(lines) for lines in said] == [2, 0, 1, 2]
    assert said[0][0] == "web2: down: connection refused"
    assert said[2] == ["web1: wedged: stuck"]


def test_of_many_nodes_those_in_trouble_are_drawn() -> None:
    nodes = [{"name": f"web{n}", "state": "down" if n == 70 else "up"} for n in range(100)]
    lines = drawn(
        crawl_picture.frame({"crawl": "c", "state": "working", "nodes": nodes}, most_nodes=5)
    )
    assert sum(line.startswith("web") and " is " not in line for line in lines) == 4
    assert "web70 is down; its work goes elsewhere" in lines
    assert "and 96 more nodes" in lines


@pytest.mark.parametrize("after", [0.0, 0.05], ids=["before the pause", "in the pause"])
def test_ctrl_c_comes_through_at_a_pause_only(after: float) -> None:
    before, main = signal.getsignal(signal.SIGINT), threading.main_thread().ident
    assert main is not None
    with interruptible_pause() as pause:
        timer = threading.Timer(after, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        if not after:
            timer.join()  # while something is under way
        with pytest.raises(KeyboardInterrupt):
            pause(60)
        timer.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_breaks_off_what_is_under_way() -> None:
    with interruptible_pause(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 60)


# what comes from nodes steers no terminal; JSON and --raw give it exactly


def test_what_steers_a_terminal_is_shown_by_its_code() -> None:
    assert harmless(EVIL) == SHOWN
    assert harmless("plain ü 漢字 🙂\tand\nlines") == "plain ü 漢字 🙂\tand\nlines"
    assert output.one_line("a\nb\tc") == r"a\nb\tc"


def test_every_line_of_ours_goes_that_way(capsys: pytest.CaptureFixture[str]) -> None:
    output.put(EVIL)
    output.complain(EVIL)
    output.table(("name",), [[f"x\n{EVIL}"]])
    said = capsys.readouterr()
    assert said.out == f"{SHOWN}\nNAME\nx\\n{SHOWN}\n"
    assert said.err == f"sdist: {SHOWN}\n"


def test_json_is_exact_and_as_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output(as_json=True).document({"name": EVIL, "tag": "\U000e0041", "plain": "ü"})
    said = capsys.readouterr().out
    assert json.loads(said) == {"schema": 1, "name": EVIL, "tag": "\U000e0041", "plain": "ü"}
    assert "ü" in said
    assert harmless(said) == said


def test_a_line_of_a_log_loses_its_colours_or_is_raw(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    (line,) = LogLines().feed(LOG)
    put_line("n\x1b ", line, raw=False)
    put_line("n\x1b ", line, raw=True)
    said = capfdbinary.readouterr().out
    shown = "2026-11-20 20:00:00 [x] INFO: red\t\\x1b]0;title\\x07 \u00ff".encode()
    assert said == b"n\\x1b " + shown + b"\n" + b"n\\x1b " + LOG


def test_into_a_pipe_columns_are_as_wide_as_they_must_be() -> None:
    lines = output.plain_lines(("name", "items"), [["web1", "1"], ["a-very-long-name", "2,000"]])
    assert lines == ["NAME              ITEMS", "web1              1", "a-very-long-name  2,000"]


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(PLAN)
    said = capsys.readouterr()
    for expected in (
        "rule 1", "1,000 requests", "/x/items.jl", "9 shards", "3 nodes", "Mind the rate.",
    ):  # fmt: skip
        assert expected in said.out
    assert said.err == ""


def test_a_long_list_of_shards_shows_its_ends() -> None:
    rows = shard_rows(PLAN["shards"])
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "…", "8"]
    assert rows[4][1] == "4 more"
    assert rows[-1] == ("8", "40-44", "http://w/8")
    assert [row[0] for row in shard_rows(PLAN["shards"][:6])] == ["0", "1", "2", "3", "4", "5"]
    assert shard_rows([{"number": 0, "url": "http://w/x", "first_page": None}]) == [
        ("0", "-", "http://w/x")
    ]


def test_the_plan_says_which_node_would_get_the_code() -> None:
    rows = node_rows(PLAN)
    assert [row[3] for row in rows] == ["has it", "would get v1", "-"]
    assert [row[5] for row in rows] == [
        "is sent its batches: its store is a file", "serves no /logs/: needs --feed", "refused",
    ]  # fmt: skip


def test_a_clock_that_is_wrong_has_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        NodeStatus(node=Node.parse("web1"), skew=3600.0),
        NodeStatus(node=Node.parse("web2"), skew=0.5),
    ]
    node_commands._show(nodes, [one.document() for one in nodes])
    head, first, second = capsys.readouterr().out.splitlines()
    at = head.index("CLOCK")
    assert (first[at:].split()[0], second[at:].split()[0]) == ("+3600", "http://web2:6800")
    node_commands._show(nodes[1:], [one.document() for one in nodes[1:]])
    assert "CLOCK" not in capsys.readouterr().out


def test_nodes_that_are_drained_and_silent_are_named_once_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    drained, well, down = (
        Node.parse(f"{name}:6800", name=name) for name in ("web1", "web2", "web3")
    )
    error = ConnectionRefused("web1: connection refused")
    with closing(Context(tmp_path)) as here:
        here.remember({"web1": {"draining": 1.0}})
        for _ in range(2):
            assert without_drained(here, {drained: error, well: None, down: error}) == {
                well: None,
                down: error,
            }
        assert capsys.readouterr().err.count("web1") == 1
        assert without_drained(here, {drained: None, well: None}) == {drained: None, well: None}
        assert without_drained(here, {drained: error}) == {drained: error}, (
            "where nothing else was asked it is told"
        )


def test_the_live_view_draws_what_is_known_and_leaves_no_trace() -> None:
    console = Console(force_terminal=True, width=100, record=True, file=StringIO())
    summary = {
        "requests": {"total": 600, "done": 200, "succeeded": 200}, "index": {"pages": 20, "total": 20},
        "batches": {"total": 12, "done": 4},
        "items": 199, "nodes": [{"name": "web1", "state": "up", "running": 2, "slots": 4, "jobs": 3, "items": 199}],
    }  # fmt: skip
    row = Crawl(
        id="c", project="p", spider="s", created=0.0, state=CrawlState.WORKING, summary=summary
    )
    with live_view(crawl_picture.crawl_picture, console) as show:
        show(row, 0.0)
        drawn = console.export_text()
    for expected in ("working", "20 of 20", "4 of 12", "200 done of 600", "items 199"):
        assert expected in drawn
    (row_of_node,) = [line.split() for line in drawn.splitlines() if "web1" in line]
    assert row_of_node == ["web1", "up", "2/4", "3", "0", "199"]


def test_the_demo_finds_what_is_missing_repeated_or_wrong() -> None:
    site = Site(items=4)
    rows: list[dict[str, Any]] = [dict(site.item(number)) for number in range(4)]
    assert demo.differences(site, rows) == []
    broken = [rows[0], rows[0], {**rows[1], "price": "free"}, rows[2]]
    told = ["1 missing: 3", "1 more than once: 0", "1 not as the site has them: 1"]
    assert demo.differences(site, broken) == told


def test_the_demo_project_is_made_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert demo.make_project(folder) == folder
    (folder / "properties" / "settings.py").write_text("broken(")
    (folder / "items.jl").write_text(json.dumps({}))
    demo.make_project(folder)
    assert "BOT_NAME" in (folder / "properties" / "settings.py").read_text()
    assert (folder / "items.jl").exists()


def test_the_demo_keeps_out_of_other_folders_and_off_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[deploy:prod]\nurl = http://prod:6800/\n")
    with pytest.raises(ConfigError, match="--dir"):
        demo.make_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scrapy.cfg"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="would deploy to them"):
        demo.make_project(tmp_path / "demo")


@pytest.mark.parametrize(
    ("answer_at", "deadline", "expected"), [(0, 10, True), (6, 10, True), (20, 10, False)]
)
def test_it_is_asked_until_the_answer_is_yes_or_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, answer_at: float, deadline: float, expected: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("scrapyd_dist.cli.output.time.monotonic", lambda: sum(pauses))
    monkeypatch.setattr("scrapyd_dist.cli.output.time.sleep", pauses.append)
    got = output.poll_until(lambda: sum(pauses) >= answer_at, 2, deadline)
    assert (got, sum(pauses), {*pauses} - {2}) == (expected, min(answer_at, deadline), set())
    assert output.poll_until(lambda: True, 1, -1), "a deadline that is over still gets one answer"
