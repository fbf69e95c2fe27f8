"""Tables on a terminal of 80 columns: headings are whole, reasons have lines of their own, and names keep both ends."""

import re
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.cells import cell_len
from rig.commands import Result
from scrapyd_dist.cli.jobs import job_stats, jobs_table
from scrapyd_dist.cli.nodes import node_commands
from scrapyd_dist.cli.output import Output, plain_lines
from scrapyd_dist.cli.screen_table import cut_middle

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.joblogs.joblog import StatTotal
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.scrapyd.versions import short_version
from scrapyd_dist.store import open_store
from scrapyd_dist.time_spans import describe_age, describe_typed_span

Run = Callable[..., Result]
WIDTH = 80
#: when jobs and crawls began, in seconds before now
AGO = 7500.0
LONG = "a-spider-of-a-name-that-nobody-would-type-" * 3
WIDE = "日本語のとても長い名前" * 6
#: content hash a17958abcdef
VERSION = "1767323045-177542550769135"


class Size(NamedTuple):
    """Names and numbers of a fleet."""

    names: list[str]
    number: int


SIZES = {
    "realistic": Size(["web1", "web2", "eu-west-3"], 12_345),
    "hostile": Size([LONG, WIDE, "n\x1b[2J\n"], 123_456_789),
}


@pytest.fixture(params=list(SIZES))
def size(request: pytest.FixtureRequest) -> Size:
    return SIZES[request.param]


@pytest.fixture
def _screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def shown_lines(text: str, headings: str) -> list[str]:
    """The lines of a table on a terminal, of which the first has all headings, and each fits."""
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert lines[0].split() == headings.split()
    assert [line for line in lines if cell_len(line) > WIDTH or "\x1b" in line] == []
    return lines


def job(name: str, count: int, *, ago: float = AGO, **fields: Any) -> dict[str, Any]:
    started = datetime.fromtimestamp(time.time() - ago, timezone.utc).isoformat()
    return {
        "node": name, "project": "shop", "spider": name, "job": f"{name}-20260102T030405Z-12-1", "state": "finished",
        "pages": count, "items": count, "errors": 12, "started": started, "duration_s": 725.0, "reason": "",
        "remembered": False, **fields,
    }  # fmt: skip


@pytest.mark.usefixtures("_screen")
def test_jobs(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    why = "a feed could not be stored: " + "the disk is full, " * 9
    rows = []
    for number, name in enumerate(size.names):
        rows.append(job(name, size.number, ago=AGO + number, reason=why, state="failed"))
    jobs_table._show([*rows, job("web1", 3, ago=AGO + 3600)], is_complete=True)
    lines = shown_lines(capsys.readouterr().out, "NODE SPIDER STATE PAGES ITEMS ERRORS AGE TOOK")
    assert lines[1].split()[2:] == [
        "failed", f"{size.number:,}", f"{size.number:,}", "12", "2h", "12:05", "min"
    ]  # fmt: skip
    assert lines[2][:6] == f"  {size.names[0]}"[:6]
    shown = " ".join(" ".join(lines).split())
    assert shown.count(" ".join(why.split())) == 3, "a reason is never cut"
    assert "3h" in lines[-2]
    assert lines[-1] == "  web1-20260102T030405Z-12-1"


def test_jobs_of_several_projects_have_a_column_for_it() -> None:
    headings, cells = jobs_table.jobs_table(
        [job("web1", 3), job("web1", 3, project="other")], time.time()
    )
    assert headings[:2] == ["node", "project"]
    assert [row[1] for row in cells] == ["shop", "other"]


@pytest.mark.usefixtures("_screen")
def test_nodes(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    load = Load(pending=size.number, running=4, finished=size.number, node_name="", date=None)
    statuses = []
    for number, name in enumerate(size.names):
        node = Node.parse(f"http://web{number}.example.com:6800", name=name, slots=4)
        status = NodeStatus(
            node=node, load=load, latency=0.012, versions=(VERSION,), skew=3600.0 * number
        )
        statuses.append(status)
    away = Node.parse("http://away.example.com:6800", name="away")
    statuses.append(NodeStatus(node=away, error=ConnectionRefused.at("away")))
    node_commands._show(statuses, [status.document(VERSION) for status in statuses])
    lines = shown_lines(
        capsys.readouterr().out,
        "NAME STATE RUNNING PENDING FINISHED SLOTS LATENCY VERSION CLOCK",
    )
    assert lines[1].split()[:2] == ["away", "down"]
    assert lines[2] == "  connection refused"
    assert [line.split()[-1] for line in lines[3:]] == ["a17958…", "+3600 s"[-1], "s"]
    assert "a17958…" in lines[4]
    assert len(lines) == 6


@pytest.mark.usefixtures("_screen")
@pytest.mark.parametrize(
    ("spider", "count", "headings"),
    [
        ("easy", 12_345, "CRAWL SPIDER STATE AGE BATCHES ITEMS EXIT"),
        (LONG, 123_456_789, "CRAWL STATE AGE BATCHES ITEMS"),
    ],
)
def test_crawls(spider: str, count: int, headings: str, sdist: Run, root: Path) -> None:
    (root / ".sdist").mkdir()
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        for number, lost in enumerate([0, 8]):
            name = f"{spider[:70]}-2026010{number}"
            store.add_crawl(
                Crawl(id=name, project="shop", spider=spider, created=time.time() - AGO - number)
            )
            batches = {"total": 1200, "done": 1196}
            store.update_crawl(
                name,
                state=CrawlState.FINISHED,
                exit_code=3 if lost else 0,
                summary={"items": count, "batches": batches, "dead_urls": lost},
            )
    shown = sdist("crawls").expect(0).out
    lines = shown_lines(shown, headings)
    assert [f"{count:,}" in line for line in lines[:4]] == [False, True, True, False]
    assert "finished, 8 failed  2h" in lines[2]
    assert "".join("".join(lines[3:]).split()).startswith(f"goonwith:sdistretry{spider[:70]}")


@pytest.mark.usefixtures("_screen")
def test_stats(size: Size, capsys: pytest.CaptureFixture[str]) -> None:
    sums = {}
    for name in ("downloader/response_status_count/200", *size.names):
        sums[name] = StatTotal(jobs=12, sum=size.number, min=1, max=size.number)
    sums["finish_reason"] = StatTotal(jobs=12)
    for reason in ("finished", "shutdown", LONG):
        sums["finish_reason"].add(reason)
    job_stats._show_sums({}, sums, Output())
    lines = shown_lines(capsys.readouterr().out, "STAT SUM MIN MAX JOBS")
    assert lines[1].split()[1:] == [f"{size.number:,}", "1", f"{size.number:,}", "12"]
    below = "".join("".join(lines[1 + len(sums) :]).split())
    assert below.startswith(f"finished,shutdown,{LONG[:40]}")


@pytest.mark.usefixtures("_screen")
def test_where_there_is_room_a_row_is_one_line_with_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    jobs_table._show([job("web1", 3, reason="shutdown")], is_complete=True)
    assert capsys.readouterr().out.splitlines()[1].endswith("shutdown")


def test_a_pipe_gets_the_whole_of_each_row_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    jobs_table._show([job(LONG, 3, reason=LONG)], is_complete=True)
    _, line = capsys.readouterr().out.splitlines()
    assert line.count(LONG) == 4
    lines = plain_lines(("name", "items"), [["web1", "1"], ["a-very-long-name", "2,000"]])
    assert lines == ["NAME              ITEMS", "web1              1", "a-very-long-name  2,000"]


def test_a_name_that_is_cut_keeps_both_ends_and_its_width() -> None:
    assert cut_middle("easy-20260102T030405Z-12-1", 15) == "easy-20…5Z-12-1"
    assert cut_middle("short", 5) == "short"
    assert {cell_len(cut_middle(WIDE, width)) for width in range(3, 40)} == set(range(3, 40))


def test_ages_and_versions_are_short() -> None:
    ages = {-3: "0s", 59.9: "59s", 60: "1m", 3599: "59m", 7500: "2h", 86400: "1d", 1e8: "1,157d"}
    assert {seconds: describe_age(seconds) for seconds in ages} == ages
    typed = {0: "0 s", 59.9: "1 min", 90: "90 s", 1800: "30 min", 86400: "24 h", 3661: "3,661 s"}
    assert {seconds: describe_typed_span(seconds) for seconds in typed} == typed
    versions = {VERSION: "a17958…", "1_9": "1_9", "release-77": "releas…", "-": "-"}
    assert {version: short_version(version) for version in versions} == versions
