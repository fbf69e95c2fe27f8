"""`sdist nodes`: what it says of real nodes that are up, down, hang or refuse, and of local ones that it starts."""

import pytest
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode
from rig.processes import with_home


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, username="me", password="hush")


def test_all_up(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    made = project(nodes=pair)
    done = run_cli(made, "nodes", "--json")
    assert (done.code, done.err) == (0, "")
    document = done.json()
    assert document["schema"] == 1
    assert [(row["name"], row["state"], row["running"], row["pending"]) for row in document["nodes"]] == [
        (node.name, "up", 0, 0) for node in pair
    ]
    assert all(row["latency_ms"] > 0 for row in document["nodes"])
    table = run_cli(made, "nodes")
    assert table.code == 0
    assert table.out.splitlines()[0].startswith("NAME")
    assert all(node.name in table.out and node.url.rstrip("/") in table.out for node in pair)
    assert "hush" not in done.out + table.out


def test_one_that_hangs_does_not_keep_the_others_from_answering(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    pair[0].pause()
    try:
        done = run_cli(project(nodes=pair), "nodes", "--json", "--timeout", "1")
    finally:
        pair[0].go_on()
    assert done.code == 3
    assert [row["state"] for row in done.json()["nodes"]] == ["busy", "up"]
    assert "time-out" in done.json()["nodes"][0]["reason"]


def test_none_up(run_cli: RunCommand, project: MakeProject) -> None:
    made = project(extra="[deploy:gone]\nurl = http://127.0.0.1:1/\n")
    done = run_cli(made, "nodes")
    assert done.code == 5
    assert "connection refused" in done.out


def test_none_lets_us_in(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    extra = f"[deploy:locked]\nurl = {pair[0].url}\nusername = me\npassword = wrong\n"
    done = run_cli(project(extra=extra), "nodes", "--json")
    assert done.code == 6
    assert done.json()["nodes"][0]["state"] == "refused"


def test_local_nodes_come_are_listed_and_go(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    made = project()
    up = run_cli(made, "nodes", "up", "1", "--slots", "2", "--json")
    try:
        assert up.code == 0, up.err
        assert [(row["name"], row["slots"]) for row in up.json()["nodes"]] == [("local1", 2)]
        assert run_cli(made, "nodes", "up", "1", "--json").json() == up.json()  # it is there already
        assert [row["state"] for row in run_cli(made, "nodes", "--json").json()["nodes"]] == ["up"]
        for command in (("nodes", "add", pair[0].url, "--name", "far"), ("nodes",), ("nodes", "up", "1")):
            said = run_cli(made, *command).err
            for word in ("local nodes run that get no work (local1)", "[deploy:local1]", "nodes.json"):
                assert word in said, (command, said)
        run_cli(made, "nodes", "remove", "far")
        assert "no work" not in run_cli(made, "nodes").err
    finally:
        down = run_cli(made, "nodes", "down")
    assert (down.code, down.err) == (0, "Stopped local1.\n")
    assert with_home(made.home) == {}
    assert "No local node" in run_cli(made, "nodes", "down").err
