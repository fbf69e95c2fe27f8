"""`sdist frontier` as a user types it: lists come in, slots are split and joined, nothing is lost at a bad moment."""

import json
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress

import pytest
from rig.fixtures import MakeProject, RunCommand, StartCommand
from rig.frontiers import Frontier
from rig.projects import Project
from rig.waiting import wait_for


def pages(*numbers: int) -> list[str]:
    return [f"http://shop.example/{number}" for number in numbers]


def left(it: Project, run_cli: RunCommand, *slots: str) -> list[str]:
    """The addresses that wait in these slots, in order."""
    lines = [
        run_cli(it, "frontier", "dump", "shop", slot, "--num-requests", 10_000).out
        for slot in slots
    ]
    return sorted(json.loads(line)["url"] for text in lines for line in text.splitlines())


def test_a_list_is_added_counted_moved_and_deleted(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it = project()
    it.write("urls.txt", "\n".join(["# pages", *pages(*range(250)), "", "nonsense"]))
    added = run_cli(it, "frontier", "add", "shop", "urls.txt", "--prefix", "p", "--slots", "2")
    added.expect(3, "line 253: 'nonsense' is no URL", "250 requests added to shop")
    frontier = Frontier(it)
    assert sum(frontier.waiting().values()) == 250
    run_cli(it, "frontier", "move", "shop", "p", "q", 1, code=0)
    assert frontier.waiting() == {"q0": 250}
    assert left(it, run_cli, "q0") == sorted(pages(*range(250)))
    deleted = run_cli(it, "frontier", "delete", "shop", "--prefix", "q", "--yes", "--json")
    assert (deleted.code, deleted.json()["requests"]) == (0, 250)
    assert frontier.waiting() == {}


@pytest.mark.black_box
def test_every_kind_of_list(
    project: MakeProject, run_cli: RunCommand, start_command: StartCommand
) -> None:
    it = project(settings={"DISTRIBUTED_SLOTS": 1, "DISTRIBUTED_SLOT_PREFIX": "of-settings-"})
    it.write("rows.jl", "\n".join(map(json.dumps, [
        {"url": "http://a/1", "method": "POST", "body": "q=ü", "headers": {"X-Who": "me"}, "callback": "parse_article",
         "cb_kwargs": {"n": 1}, "priority": 7},
        "http://a/2",
        {"url": "http://a/3", "priority": 1, "unknown": "field"},
        {"address": "http://a/4"},
    ])))  # fmt: skip
    it.write("table.csv", "name;link\none;http://b/1\ntwo;http://b/2\nthree;\n")
    rows = run_cli(
        it, "frontier", "add", "shop", "rows.jl", "--spider-callback", "parse_item", "--json"
    )
    told = rows.json()
    assert (rows.code, told["added"], [bad["line"] for bad in told["bad_rows"]]) == (3, 2, [3, 4])
    first, second = map(
        json.loads, run_cli(it, "frontier", "dump", "shop", "of-settings-0").out.splitlines()
    )
    assert (first["url"], first["method"], first["callback"], first["cb_kwargs"], first["priority"]) == (
        "http://a/1", "POST", "parse_article", {"n": 1}, 7,
    )  # fmt: skip
    assert (second["url"], second["callback"]) == ("http://a/2", "parse_item")
    table = run_cli(it, "frontier", "add", "shop", "table.csv", "--column", "link", "--json")
    assert (table.code, table.json()["added"]) == (3, 2)
    assert run_cli(it, "frontier", "add", "shop", "table.csv", "--column", "none").code == 2
    assert run_cli(it, "frontier", "add", "shop", "no.txt").code == 4
    again = run_cli(it, "frontier", "add", "shop", "table.csv", "--column", "2", "--json").json()
    assert (again["added"], again["duplicate"]) == (0, 2)
    shell = (
        "sh",
        "-c",
        'printf "http://c/1\\nhttp://c/2\\n" | "$0" -m scrapyd_dist frontier add shop --prefix s',
    )
    start_command(it, (*shell, sys.executable)).wait().expect(0, "2 requests added")
    assert Frontier(it).waiting() == {"of-settings-0": 4, "s0": 2}
    assert Frontier(it).backlog().producers == ()


@pytest.mark.black_box
@pytest.mark.parametrize("moment", [0.0, 0.1, 0.3])
def test_a_move_that_is_killed_loses_and_doubles_nothing(
    project: MakeProject, run_cli: RunCommand, start_cli: StartCommand, moment: float
) -> None:
    it = project()
    frontier = Frontier(it)
    frontier.fill(pages(*range(6000)), slots=2, size=10)
    command = start_cli(it, "frontier", "move", "shop", "p", "q", 4)
    wait_for(
        lambda: any(slot.startswith("q") for slot in frontier.waiting()),
        what="the first batch that moved",
    )
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun >= moment)
    with suppress(ProcessLookupError):  # on a fast machine the move may be whole before the kill
        command.signal(signal.SIGKILL)
    command.wait()
    now = frontier.waiting()
    assert sum(now.values()) == 6000
    assert left(it, run_cli, *now) == sorted(pages(*range(6000)))
    done = run_cli(it, "frontier", "move", "shop", "p", "q", 4)
    assert done.code == (0 if any(slot.startswith("p") for slot in now) else 4), done.err
    slots = [f"q{number}" for number in range(4)]
    assert set(frontier.waiting()) == set(slots)
    assert left(it, run_cli, *slots) == sorted(pages(*range(6000)))


@pytest.mark.black_box
def test_an_interrupted_command_says_how_far_it_is(
    project: MakeProject, run_cli: RunCommand, start_cli: StartCommand
) -> None:
    it = project()
    frontier = Frontier(it)
    frontier.fill(pages(*range(6000)), size=1)
    with closing(sqlite3.connect(frontier.path, isolation_level=None)) as other:

        def begun() -> bool:
            other.execute("BEGIN IMMEDIATE")  # from here on the command's next batch waits
            (left_there,) = other.execute("SELECT count(*) FROM batches").fetchone()
            if left_there < 6000:
                return True
            other.execute("ROLLBACK")
            return False

        command = start_cli(it, "frontier", "delete", "shop", "--prefix", "p", "--yes", "--json")
        wait_for(begun, what="the first batch that went")
        command.interrupt()
    done = command.wait()
    told = done.json()
    assert (done.code, told["interrupted"]) == (130, True)
    assert sum(frontier.waiting().values()) == 6000 - told["requests"]
    assert f"Interrupted after {told['batches']:,} of 6,000" in done.err
    assert run_cli(it, "frontier", "delete", "shop", "--prefix", "p", "--yes").code == 0
    assert frontier.waiting() == {}
