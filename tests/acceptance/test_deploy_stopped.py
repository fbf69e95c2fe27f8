"""Ctrl-C while an egg is on its way: the command ends at once and says what is known; the rest comes later."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from rig.commands import Command, Result
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet
from rig.nodes import ScrapydNode, free_port
from rig.projects import Project
from rig.proxy import Mishap, Proxy
from rig.waiting import wait_for

SPIDER = "import scrapy\nclass One(scrapy.Spider):\n    name = 'one'\n"
#: seconds that a command may take to end; on a machine that does nothing else it is a small part of one
AT_ONCE = 2.0


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, username="me", password="hush")


@pytest.fixture
def held(pair: list[ScrapydNode]) -> Iterator[Proxy]:
    """The second node, which lets everybody wait when it is asked about this page."""
    with closing(Proxy(pair[1])) as proxy:
        yield proxy
    for node in pair:
        node.api("delproject.json", project="small")


def small(project: MakeProject, pair: list[ScrapydNode], held: Proxy) -> Project:
    section = held.section("small", "held") + "username = me\npassword = hush\n"
    return project(nodes=pair[:1], spiders={"one": SPIDER}, extra=section)


def stopped(command: Command) -> tuple[Result, float]:
    """Ctrl-C, and how long it takes to end."""
    begun = time.monotonic()
    command.interrupt()
    return command.wait(30), time.monotonic() - begun


def test_what_is_known_of_each_node(
    start_cli: StartCommand, run_cli: RunCommand, project: MakeProject,
    pair: list[ScrapydNode], held: Proxy
) -> None:  # fmt: skip
    made = small(project, pair, held)
    held.spoil("addversion.json", Mishap(forward=False, hold=60))
    command = start_cli(made, "deploy-all")
    command.wait_text("1 of 2: node1 uploaded")
    done, took = stopped(command)
    assert done.code == 130
    assert took < AT_ONCE
    (line,) = [line for line in done.err.splitlines() if line.startswith("sdist: ")]
    assert "has it: node1; not known yet: held" in line
    (version,) = pair[0].api("listversions.json", project="small")["versions"]
    assert version in line
    # The egg is kept, so that the other one gets the same.
    held.heal()
    rest = run_cli(made, "deploy-all", "--only-missing", "--json")
    assert rest.code == 0, rest.err
    assert {row["name"]: row["state"] for row in rest.json()["nodes"]} == {"node1": "present", "held": "uploaded"}
    assert pair[1].api("listversions.json", project="small")["versions"] == [version]


@pytest.mark.black_box
@pytest.mark.parametrize("command", ["versions", "spiders", "prune", "jobs", "nodes", "rollback", "deploy-all"])
def test_nobody_waits_for_a_node_that_does_not_answer(
    start_cli: StartCommand, project: MakeProject, pair: list[ScrapydNode], held: Proxy,
    command: str
) -> None:  # fmt: skip
    made = small(project, pair, held)
    held.spoil("*", Mishap(forward=False, hold=60), times=9)
    running = start_cli(made, command, *(["--keep", 1] if command == "prune" else []))
    wait_for(lambda: held.spoilt["*"], 30, "a question to the node")
    done, took = stopped(running)
    assert (done.code, "Traceback" in done.err) == (130, False), done.err
    assert took < AT_ONCE


@pytest.mark.black_box
def test_a_node_that_is_not_there_does_not_hold_it_either(
    start_cli: StartCommand, project: MakeProject, pair: list[ScrapydNode], held: Proxy
) -> None:
    made = small(project, pair, held)
    made.targets(pair[:1], f"[deploy:gone]\nurl = http://127.0.0.1:{free_port()}/\nproject = small\n")
    command = start_cli(made, "deploy-all", "--retries", "20")
    command.wait_text("1 of 2: node1 uploaded")
    done, took = stopped(command)
    assert (done.code, took < AT_ONCE) == (130, True)
    assert "gone" in done.err
