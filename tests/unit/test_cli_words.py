"""What is said about a crawl while it runs and at its end; the fleet as it is drawn and as lines; Ctrl-C."""

import os
import signal
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scrapyd_dist.cli.crawls import watcher, wording
from scrapyd_dist.cli.crawls.watcher import looked_out_for
from scrapyd_dist.cli.jobs.job_ends import combined
from scrapyd_dist.cli.nodes import fleet_view

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
    stalled = job(2, state="stalled", silent_s=960, per_min={"pages": 0.0, "items": 0.0, "errors": 3.0})
    lines = drawn(fleet_view.frame(fleet(job(1), stalled)))
    assert lines[1].split() == ["web1", "up", "2", "running,", "2", "pending"]
    assert lines[2].split() == ["job1", "easy", "1,234", "60", "0"]
    assert lines[3].endswith("no progress for 16:00 min")
    assert lines[4].split() == ["web2", "down", "connection", "refused"]
    assert lines[5] == "nodes 1/2 · 2 running · 2 pending · pages 60/min · items 0/min · errors 1.5/min"


def test_a_long_reason_gives_way_to_what_is_short() -> None:
    why = "node web1 (http://web1:6800): a very long story of how it came that nothing answers there " * 3
    fields = {"name": "web1", "state": "down", "reason": why}
    for picture in (fleet_view.frame(fleet(job(1), state="down", reason=why)), watcher.frame({"nodes": [fields]})):
        (line,) = [line for line in drawn(picture, width=100) if "down" in line and "web1 " in line]
        assert line.split()[:2] == ["web1", "down"]
        assert line.endswith("…")
    assert "job1 " in "\n".join(drawn(fleet_view.frame(fleet(job(1), reason=why)), width=100))


def test_of_many_jobs_those_with_errors_are_drawn_first() -> None:
    many = [job(number, per_min={"pages": 1.0, "items": 1.0, "errors": float(number)}) for number in range(50)]
    lines = drawn(fleet_view.frame(fleet(*many), lines=14))
    assert sum(line.strip().startswith("job") for line in lines) == 5
    assert "job49" in "".join(lines)
    assert "and 45 more jobs" in lines


def test_without_a_terminal_it_is_a_line_now_and_then_and_one_for_each_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = fleet_view.PlainFleet()
    said = []
    for now, document in ((0, fleet()), (10, fleet()), (20, fleet(state="wedged", reason="stuck")), (30, fleet())):
        view.show(document, now)
        said.append(capsys.readouterr().err.splitlines())
    assert [len(lines) for lines in said] == [2, 0, 1, 2]
    assert said[0][0] == "web2: down: connection refused"
    assert said[2] == ["web1: wedged: stuck"]


def test_of_many_nodes_those_in_trouble_are_drawn() -> None:
    nodes = [{"name": f"web{n}", "state": "down" if n == 70 else "up"} for n in range(100)]
    lines = drawn(watcher.frame({"crawl": "c", "state": "working", "nodes": nodes}, most_nodes=5))
    assert sum("web" in line for line in lines) == 4
    assert any("web70" in line for line in lines)
    assert "and 96 more nodes" in lines


@pytest.mark.parametrize("seconds", [0.0, 0.05], ids=["before the pause", "in the pause"])
def test_ctrl_c_comes_through_at_a_pause_only(seconds: float) -> None:
    before, main = signal.getsignal(signal.SIGINT), threading.main_thread().ident
    assert main is not None
    with looked_out_for() as pause:
        timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        if not seconds:
            timer.join()  # while something is under way
        with pytest.raises(KeyboardInterrupt):
            pause(60)
        timer.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_breaks_off_what_is_under_way() -> None:
    with looked_out_for(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 60)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0], 0), ([0, 0], 0), ([130], 130), ([3], 3), ([0, 1], 3), ([1, 1], 1), ([1, 3], 3), ([2, 1], 2),
     ([130, 130], 130)],
)  # fmt: skip
def test_one_exit_code_for_several(codes: list[int], code: int) -> None:
    assert combined(codes) == code
