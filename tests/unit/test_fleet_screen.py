"""A fleet of hundreds of nodes fits on a screen: trouble first, equal findings once, and how many there are."""

import os
import re
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rig.commands import Result
from rig.fixtures import MakeProject
from rig.fleet_sender import FleetSender
from rig.manynodes import ManyNodes, refusing
from rig.projects import Project
from rig.web_pages import served
from scrapyd_dist.cli.nodes import doctor, fleet_view
from scrapyd_dist.cli.output import MOST_ERRORS, complain_each
from scrapyd_dist.deploy import local_nodes

from scrapyd_dist.errors import ConnectionRefused, DistError, NoReply
from scrapyd_dist.fleet.findings import Finding, Severity
from scrapyd_dist.fleet.fleet_screen import ROWS, describe_states, shorten_names
from scrapyd_dist.nodes import Node

HIGH, WIDE = 40, 120
#: more than any process has
NO_PROCESS = 2**22 + 1
RATES = {"pages": 0.0, "items": 0.0, "errors": 0.0}


def seen_node(number: int, state: str = "up", running: int = 0) -> dict[str, Any]:
    jobs = [
        {"job": f"job{number}-{at}", "project": "p", "spider": "easy", "crawl": None, "state": "running", "pages": 1,
         "items": 1, "per_min": RATES, "silent_s": 1, "reason": ""}
        for at in range(running)
    ]  # fmt: skip
    return {
        "name": f"node{number:03}", "url": f"http://n{number}", "state": state, "reason": "", "slots": 2,
        "running": running, "pending": 0, "jobs": jobs,
    }  # fmt: skip


def test_a_picture_of_three_hundred_nodes_shows_trouble_totals_and_is_not_cut() -> None:
    nodes = [seen_node(number, running=number == 250) for number in range(297)]
    nodes += [seen_node(number, state="down") for number in (297, 298, 299)]
    document = {"nodes": nodes, "running": 1, "pending": 0, "per_min": RATES}
    out = StringIO()
    Console(file=out, width=WIDE).print(fleet_view.frame(document, HIGH))
    lines = out.getvalue().splitlines()
    assert len(lines) <= HIGH
    assert [line.split()[0] for line in lines[1:5]] == ["node297", "node298", "node299", "node250"]
    drawn = sum(line.startswith("node") and line[4].isdigit() for line in lines)
    assert f"and {300 - drawn} more nodes: {300 - drawn} up" in [line.strip() for line in lines]
    assert lines[-1].startswith("nodes 297/300")


def test_equal_findings_of_many_nodes_are_one() -> None:
    names = [f"node{number}" for number in range(285)]
    same = [
        Finding(Severity.WARNING, name, "auth", "it has no password", "Set one") for name in names
    ]
    other = Finding(Severity.DANGER, "node7", "logs", "it serves no /logs/", "logs_dir")
    grouped = doctor._group_by_node([other, *same])
    assert [(found.topic, len(names)) for found, names in grouped] == [("logs", 1), ("auth", 285)]
    assert shorten_names(grouped[1][1]).endswith("and 277 more (285 nodes)")


def test_states_are_counted_those_in_trouble_first() -> None:
    assert (
        describe_states(["up", "up", "down", "draining", "wedged"])
        == "1 wedged, 1 down, 1 draining, 2 up"
    )


def test_of_many_nodes_with_one_error_a_few_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    refused = [ConnectionRefused.at(f"node{number}") for number in range(285)]
    complain_each(iter([*refused, NoReply.at("slow"), None, DistError("another"), refused[0]]))
    lines = capsys.readouterr().err.splitlines()
    assert sum("connection refused" in line for line in lines) == MOST_ERRORS + 1
    assert f"and {285 - MOST_ERRORS} more nodes: connection refused" in "\n".join(lines)
    assert sum("slow" in line or "another" in line for line in lines) == 2


@pytest.fixture
def hundred(project: MakeProject) -> Any:
    """A project with 120 nodes, three of which do not answer."""
    with closing(ManyNodes()) as many:
        it = project()
        nodes: list[Node] = [many.node(f"web{number}") for number in range(117)]
        nodes += [refusing(f"gone{number}") for number in range(3)]
        lines = [
            f"[deploy:{node.name}]\nurl = {node.url}/\nproject = properties\n" for node in nodes
        ]
        it.targets([], "\n".join(lines))
        yield it


def test_nodes_in_trouble_stand_first_and_the_others_are_counted(
    hundred: Any, run_sdist_here: Callable[..., Result]
) -> None:
    shown = run_sdist_here(hundred, "nodes")
    rows = shown.out.splitlines()[1:]
    assert len(rows) == ROWS
    assert {row.split()[0] for row in rows[:3]} == {"gone0", "gone1", "gone2"}
    assert "and 80 more nodes: 80 up" in shown.err
    assert "120 nodes: 3 down, 117 up" in shown.err
    assert len(run_sdist_here(hundred, "nodes", "--all").out.splitlines()) == 121
    down = run_sdist_here(hundred, "nodes", "--state", "down", "-o", "names")
    assert sorted(down.out.split()) == ["gone0", "gone1", "gone2"]


def _kill_local2(it: Project, folder: Path) -> None:
    """Make local1 a node that runs, and local2 one whose process has ended."""
    usual: Any = {"password": "p", "slots": 1}
    here = it.path.resolve()
    alive = local_nodes.LocalNode(name="local1", port=1, pid=os.getpid(), folder=here, **usual)
    dead = local_nodes.LocalNode(name="local2", port=2, pid=NO_PROCESS, folder=folder, **usual)
    (it.path / ".sdist" / "nodes").mkdir(parents=True)
    local_nodes.write(it.path / ".sdist", [alive, dead])


def test_a_local_node_that_was_killed_is_down_wherever_nodes_are_shown(
    project: MakeProject, run_sdist_here: Callable[..., Result], tmp_path: Path
) -> None:
    it = project()
    it.targets([])
    _kill_local2(it, tmp_path)
    both = [("local1", "down"), ("local2", "down")]
    listed = run_sdist_here(it, "nodes", "--json").json()["nodes"]
    assert [(node["name"], node["state"]) for node in listed] == both
    fleet = run_sdist_here(it, "status", "--fleet", "--json").json()["nodes"]
    assert [(node["name"], node["state"]) for node in fleet] == both
    numbers = run_sdist_here(it, "nodes", "metrics").out
    assert re.findall(r'node_up\{.*node="(\w+)".*\} 0', numbers) == ["local1", "local2"]
    one = run_sdist_here(it, "nodes", "--node", "local2", "--json").json()["nodes"]
    assert [node["name"] for node in one] == ["local2"]
    assert "local2" in run_sdist_here(it, "jobs").err
    with served(it.path, FleetSender()) as client:
        assert "The node local2 does not work" in client.get("/").text
        assert client.get("/nodes/local2").status_code == 200


def test_local_nodes_of_which_all_are_dead_are_down(
    project: MakeProject, run_sdist_here: Callable[..., Result], tmp_path: Path
) -> None:
    it = project()
    it.targets([])
    _kill_local2(it, tmp_path)
    state = it.path / ".sdist"
    local_nodes.write(state, local_nodes.read(state)[1:])
    shown = run_sdist_here(it, "nodes", "--json")
    assert [node["name"] for node in shown.json()["nodes"]] == ["local2"]
    it.targets([], "[deploy:web1]\nurl = http://127.0.0.1:9/\n")
    shown = run_sdist_here(it, "nodes", "--json")
    assert [node["name"] for node in shown.json()["nodes"]] == ["web1"], "they get no work"
