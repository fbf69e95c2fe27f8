"""Tables, foreign words in them, plans, the fleet's exit code, spans of time, the demo's judgement, asking again."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scrapyd_dist.cli import context, output
from scrapyd_dist.cli.crawls import crawl, demo
from scrapyd_dist.cli.crawls.watcher import crawl_picture, live_view
from scrapyd_dist.cli.jobs.logs import put_line
from scrapyd_dist.cli.node_status import exit_code_of
from scrapyd_dist.cli.nodes import node_commands
from scrapyd_dist.cli.options import seconds
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    ConfigError,
    ConnectionRefused,
    DistError,
    NoReply,
    NothingMatched,
)
from scrapyd_dist.joblogs.joblog import LogLines
from scrapyd_dist.nodes import Node

EVIL = "a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
SHOWN = r"a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
LOG = b"2026-11-20 20:00:00 [x] INFO: \x1b[31mred\x1b[0m\t\x1b]0;title\x07 \xff\r\n"

PLAN: dict[str, Any] = {
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


# what comes from nodes steers no terminal; JSON and --raw give it exactly


def test_what_steers_a_terminal_is_shown_by_its_code() -> None:
    assert output.harmless(EVIL) == SHOWN
    assert output.harmless("plain ü 漢字 🙂\tand\nlines") == "plain ü 漢字 🙂\tand\nlines"
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
    assert output.harmless(said) == said


def test_a_line_of_a_log_loses_its_colours_or_is_raw(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (line,) = LogLines().feed(LOG)
    put_line("n\x1b ", line, raw=False)
    put_line("n\x1b ", line, raw=True)
    said = capfdbinary.readouterr().out
    shown = "2026-11-20 20:00:00 [x] INFO: red\t\\x1b]0;title\\x07 \ufffd".encode()
    assert said == b"n\\x1b " + shown + b"\n" + b"n\\x1b " + LOG


def test_into_a_pipe_columns_are_as_wide_as_they_must_be() -> None:
    lines = output.plain_lines(("name", "items"), [["web1", "1"], ["a-very-long-name", "2,000"]])
    assert lines == ["NAME              ITEMS", "web1              1", "a-very-long-name  2,000"]


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    crawl.show(PLAN)
    said = capsys.readouterr()
    for expected in (
        "rule 1", "1,000 requests", "61,440 bytes each on the way (plain, 61.4 bytes per URL)", "/x/items.jl",
        "9 shards", "3 nodes", "Mind the rate.",
    ):  # fmt: skip
        assert expected in said.out
    assert said.err == ""


def test_a_long_list_of_shards_shows_its_ends() -> None:
    rows = crawl.shard_rows(PLAN["shards"])
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "…", "8"]
    assert rows[4][1] == "4 more"
    assert rows[-1] == ("8", "40-44", "http://w/8")
    assert [row[0] for row in crawl.shard_rows(PLAN["shards"][:6])] == ["0", "1", "2", "3", "4", "5"]
    of_a_list = {"number": 0, "url": "http://w/x", "first_page": None, "last_page": None}
    assert crawl.shard_rows([of_a_list]) == [("0", "-", "http://w/x")]


def test_the_plan_says_which_node_would_get_the_code() -> None:
    rows = crawl.node_rows(PLAN)
    assert [row[3] for row in rows] == ["has it", "would get v1", "-"]
    assert [row[5] for row in rows] == [
        "is sent its batches: its store is a file", "serves no /logs/: needs --feed", "refused",
    ]  # fmt: skip


def test_a_clock_that_is_wrong_has_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [NodeStatus(node=Node.parse("web1"), skew=3600.0), NodeStatus(node=Node.parse("web2"), skew=0.5)]
    node_commands._show(nodes, None)
    head, first, second = capsys.readouterr().out.splitlines()
    at = head.index("CLOCK")
    assert (first[at:].split()[0], second[at:].split()[0]) == ("+3600", "http://web2:6800")
    node_commands._show(nodes[1:], None)
    assert "CLOCK" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("total", "errors", "code"),
    [
        (2, [], 0),
        (2, [ConnectionRefused()], 3),
        (2, [ConnectionRefused(), NoReply()], 5),
        (2, [ConnectionRefused(), AuthRefused()], 6),
        (2, [AuthRefused(), ApiRefused()], 1),
        (1, [NothingMatched()], 4),
    ],
)
def test_the_exit_code_of_a_question_to_all(total: int, errors: list[DistError], code: int) -> None:
    assert context.exit_code(total, errors) == code


def test_a_node_that_starts_nothing_is_a_failure_of_one() -> None:
    nodes = [NodeStatus(node=Node.parse("web1"), wedged=True), NodeStatus(node=Node.parse("web2"))]
    assert (exit_code_of(nodes), exit_code_of(nodes[1:])) == (3, 0)


def test_spans_of_time() -> None:
    spans = {"90": 90, "1.5": 1.5, "30m": 1800, "2h": 7200}
    assert {text: seconds("--timeout", text) for text in spans} == spans


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1d", "2 h", "1e3"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--timeout"):
        seconds("--timeout", text)


def test_the_live_view_draws_what_is_known_and_leaves_no_trace() -> None:
    console = Console(force_terminal=True, width=100, record=True, file=StringIO())
    summary = {
        "requests": {"total": 600, "done": 200}, "index": {"pages": 20, "total": 20},
        "batches": {"total": 12, "done": 4},
        "items": 199, "nodes": [{"name": "web1", "state": "up", "running": 2, "slots": 4, "jobs": 3, "items": 199}],
    }  # fmt: skip
    row = Crawl(id="c", project="p", spider="s", created=0.0, state=CrawlState.WORKING, summary=summary)
    with live_view(crawl_picture, console) as show:
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


@pytest.mark.parametrize(("answer_at", "deadline", "expected"), [(0, 10, True), (6, 10, True), (20, 10, False)])
def test_it_is_asked_until_the_answer_is_yes_or_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, answer_at: float, deadline: float, expected: bool
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("scrapyd_dist.cli.output.time.monotonic", lambda: sum(pauses))
    monkeypatch.setattr("scrapyd_dist.cli.output.time.sleep", pauses.append)
    got = output.poll_until(lambda: sum(pauses) >= answer_at, 2, deadline)
    assert (got, sum(pauses), {*pauses} - {2}) == (expected, min(answer_at, deadline), set())
    assert output.poll_until(lambda: True, 1, -1), "a deadline that is over still gets one answer"
