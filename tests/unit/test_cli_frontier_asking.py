"""`sdist consume` before anything is started: what is refused, and how it is told."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli import main
from scrapyd_dist.cli.frontier.consume import ConsumeOptions

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.config import state_dir
from scrapyd_dist.frontier.intake import open_frontier
from scrapyd_dist.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store of a project in the current folder, with a frontier."""
    monkeypatch.delenv("SDIST_STORE", raising=False)
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    state_dir(tmp_path)
    with closing(open_store(tmp_path / ".sdist" / "store.db")) as one:
        one.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        yield one


@pytest.fixture
def consume(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`consume("article", "shop")`: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main._run(["consume", *map(str, arguments)], debug=False)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("article shp", 4, "Did you mean shop?"),
        ("article a/b", 2, "cannot name a frontier"),
        ("article shop --slots x", 4, "no slot whose name begins with 'x'"),
        ("article shop -o items.jl --loop 0", 2, "--loop 0 leaves before any items are home"),
        ("article shop -o there.jl", 2, "is there already"),
        ("article shop --max-time soon", 2, "no span of time"),
        ("article shop --max-running=-1", 2, "--max-running"),
        ("article shop -a nothing", 2, "not of the form NAME=VALUE"),
        ("article shop -s DISTRIBUTED_STORE=x.db", 2, "show the store's address"),
        ("article easy-1", 2, "sdist resume easy-1"),
        ("article shop --label a,b", 2, "has a comma"),
        ("article shop --units 3", 2, "--units"),
        ("article words --fair spread", 2, "--fair is for workers"),
        ("article words --slots p --idle 3", 2, "--slots, --idle is for workers"),
    ],
)
def test_bad_input_is_told_in_a_paragraph(
    consume: Callable[..., Any], store: Store, tmp_path: Path, line: str, code: int, words: str
) -> None:
    (tmp_path / "there.jl").touch()
    store.add_crawl(Crawl(id="easy-1", project="p", spider="easy", created=2.0))
    open_frontier(store, "words", project="p", now=3.0, arguments=True)
    before = store.crawl("shop")
    ended, out, err = consume(*line.split())
    assert (ended, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1
    assert store.crawl("shop") == before


def test_help_names_all_that_a_crawl_manager_can_be_asked_for(consume: Callable[..., Any]) -> None:
    code, out, _ = consume("--help")
    told = set(re.findall(r"[\w-]+", out))
    options = "--slots --max-running --per-slot --loop --max-time --label -a -s --max-batches --max-requests --idle -o"
    assert (code, {"SPIDER", "FRONTIER", *options.split()} - told) == (0, set())


def test_a_second_manager_is_refused_and_told_who_has_it(consume: Callable[..., Any], store: Store) -> None:
    store.update_crawl("shop", pid=os.getpid(), beat=time.time())
    code, _, err = consume("article", "shop")
    assert (code, f"Process {os.getpid()}" in err) == (2, True), err
    assert store.crawl("shop").pid == os.getpid()
    store.update_crawl("shop", pid=4_000_000, host="elsewhere", beat=time.time())
    code, _, err = consume("article", "shop")
    assert (code, "Process 4000000 on elsewhere" in err) == (2, True), err


def test_what_is_asked_for_reaches_manager_and_workers() -> None:
    wanted = ConsumeOptions(
        spider="s", frontier="f", slots="p", max_running=3, per_slot=2, loop=60.0, max_time="2h", max_batches=50,
        max_requests=150, idle="30", node=["web1"],
    )  # fmt: skip
    staffing = wanted.scaling()
    assert (staffing.most, staffing.per_slot, staffing.prefix, staffing.every, staffing.max_time) == (
        3, 2, "p", 60.0, 7200.0,
    )  # fmt: skip
    assert wanted.settings() == {
        "DISTRIBUTED_MAX_BATCHES": 50, "DISTRIBUTED_MAX_REQUESTS": 150, "DISTRIBUTED_IDLE": 30.0,
        "DISTRIBUTED_NODES": ["web1"],
    }  # fmt: skip
    assert ConsumeOptions(spider="s", frontier="f").settings() == {}, "then settings.py decides"


@pytest.mark.parametrize("command", ["resume shop", "retry shop"])
def test_a_frontier_has_no_run_that_could_go_on(store: Store, capsys: pytest.CaptureFixture[str], command: str) -> None:
    store.update_crawl("shop", state=CrawlState.STOPPED)
    assert main._run(command.split(), debug=False) == 2
    assert "sdist consume SPIDER shop" in capsys.readouterr().err


def test_crawls_and_the_newest_crawl_are_never_a_frontier(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main._run(["status"], debug=False) == 4
    assert main._run(["crawls"], debug=False) == 0
    assert "There are no crawls yet" in capsys.readouterr().err
    assert main._run(["status", "shop"], debug=False) == 0
    assert "No workers are kept running here" in capsys.readouterr().out
