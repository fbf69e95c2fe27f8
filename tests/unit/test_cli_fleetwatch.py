"""The fleet as it is drawn and as lines; Ctrl-C while something is watched; exit codes of several."""

import os
import signal
import threading
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from scrapyd_dist.cli.crawls import live_view
from scrapyd_dist.cli.crawls.watcher import looked_out_for
from scrapyd_dist.cli.jobs.job_ends import combined
from scrapyd_dist.cli.nodes import fleet_view


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
    for picture in (fleet_view.frame(fleet(job(1), state="down", reason=why)), live_view.frame({"nodes": [fields]})):
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
    view = fleet_view.PlainFleet(every=30.0)
    said = []
    for now, document in ((0, fleet()), (10, fleet()), (20, fleet(state="wedged", reason="stuck")), (30, fleet())):
        view.show(document, now)
        said.append(capsys.readouterr().err.splitlines())
    assert [len(lines) for lines in said] == [2, 0, 1, 2]
    assert said[0][0] == "web2: down: connection refused"
    assert said[2] == ["web1: wedged: stuck"]


def test_the_picture_of_a_crawl_can_be_put_into_a_page() -> None:
    text = live_view.svg({"crawl": "easy-1", "state": "working", "nodes": [{"name": "<web1>", "state": "up"}]})
    assert text.startswith("<svg")
    assert "easy-1" in text
    assert "&lt;web1&gt;" in text
    assert "@font-face" not in text
    assert "url(http" not in text


def test_of_many_nodes_those_in_trouble_are_drawn() -> None:
    nodes = [{"name": f"web{n}", "state": "down" if n == 70 else "up"} for n in range(100)]
    lines = drawn(live_view.frame({"crawl": "c", "state": "working", "nodes": nodes}, most_nodes=5))
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
