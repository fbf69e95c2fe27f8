"""`sdist nodes drain`, `nodes resume`, `doctor`: real nodes, open, with a password, behind TLS, and wrong ones."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from rig.commands import SDIST, Command, Result
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.manynodes import BlackHole, ManyNodes
from rig.nodes import Nodes, ScrapydNode
from rig.processes import with_home
from rig.shops import Shop
from rig.tls import Authority, Front
from rig.waiting import wait_for

from scrapyd_dist.store import open_store


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    """node1 is open, node2 has a password."""
    return [*module_fleet(1), *module_fleet(1, username="me", password="hush")]


@pytest.fixture(scope="module")
def module_shop(
    tmp_path_factory: pytest.TempPathFactory, pair: list[ScrapydNode]
) -> Iterator[Shop]:
    with closing(Shop(tmp_path_factory.mktemp("shop"), pair)) as made:
        yield made


@pytest.fixture
def shop(module_shop: Shop) -> Shop:
    """Its scrapy.cfg names the two nodes, unless the test says otherwise."""
    module_shop.project.targets(module_shop.nodes)
    return module_shop


def findings(done: Result) -> dict[tuple[str, str], dict[str, Any]]:
    """Node and topic -> finding, notes left out."""
    rows = done.json()["findings"]
    return {(row["node"], row["topic"]): row for row in rows if row["severity"] != "note"}


def test_a_drained_node_ends_its_jobs_and_gets_no_other(
    shop: Shop, pair: list[ScrapydNode]
) -> None:
    (slow,) = shop.scheduled("slow", "--on", "node1")
    wait_for(lambda: pair[0].jobs("running"), 60, "the slow job")
    draining = shop.start("nodes", "drain", "node1", "--json")
    draining.wait_text("node1: 1 running")
    rows = shop.scheduled("good", "good", "good", "good")
    assert {row["node"] for row in rows} == {"node2"}
    shop.run("jobs", "schedule", "good", "-p", "nosuch").expect(
        4, "The project 'nosuch' is not on node2."
    )
    assert (
        shop.run("jobs", "schedule", "good", "--on", "node1")
        .expect(2, "sdist nodes resume node1")
        .out
        == ""
    )
    shop.run("nodes", "drain").expect(2, "--all")
    shop.run("nodes", "drain", "noed1").expect(4, "Did you mean node1?")
    assert shop.node_states() == {"node1": "draining", "node2": "up"}
    assert draining.running()
    pair[0].api("cancel.json", project="shop", job=slow["job"])
    done = draining.wait(code=0)
    assert [(row["state"], row["running"], row["pending"]) for row in done.json()["nodes"]] == [
        ("drained", 0, 0)
    ]
    assert shop.run("nodes", "resume", "node1").code == 0
    assert shop.scheduled("good", "--on", "node1")[0]["node"] == "node1"


def test_doctor_names_what_is_wrong_and_what_to_do(shop: Shop, pair: list[ScrapydNode]) -> None:
    shop.scheduled("good", "--all-nodes")  # whether a node serves ranges is tried with a job's log
    for node in pair:
        node.wait_idle()
    well = shop.run("doctor", "--json", code=0)
    assert findings(well) == {}
    assert [
        (row["state"], row["logs"], row["ranges"], row["items_dir"]) for row in well.json()["nodes"]
    ] == [("up", True, True, False)] * 2
    port = pair[0].port
    wrong = f"""\
        [deploy:locked]
        url = {pair[1].url}
        username = me
        password = notthis
        [deploy:path]
        url = http://127.0.0.1:{port}/scrapyd/
        [deploy:closed]
        url = http://127.0.0.1:1/
    """
    shop.project.targets(pair[:1], wrong)
    done = shop.run("doctor", "--json", "--connect-timeout", "1", code=3)
    found = findings(done)
    assert {key: row["severity"] for key, row in found.items()} == dict.fromkeys(
        [("locked", "auth"), ("path", "base path"), ("closed", "reach")], "danger"
    )
    assert f"url = http://127.0.0.1:{port}/" in found["path", "base path"]["remedy"]
    assert "notthis" not in done.out + done.err


@pytest.mark.black_box
def test_the_drain_stays_when_the_waiting_ends(shop: Shop, pair: list[ScrapydNode]) -> None:
    (slow,) = shop.scheduled("slow", "--on", "node2")
    try:
        wait_for(lambda: pair[1].jobs("running"), 60, "the slow job")
        draining = shop.start("nodes", "drain", "node?")
        draining.wait_text("node2: 1 running")
        draining.interrupt()
        draining.wait().expect(130, "sdist nodes resume")
        assert shop.node_states() == {"node1": "drained", "node2": "draining"}
        shop.run("jobs", "schedule", "good").expect(2, "sdist nodes resume node1 node2")
        shop.run("nodes", "drain", "--all", "--timeout", "1").expect(124, "The time is up")
        at_once = shop.run("nodes", "drain", "--all", "--no-wait", "--json")
        assert (at_once.code, [row["state"] for row in at_once.json()["nodes"]]) == (
            0,
            ["drained", "draining"],
        )
    finally:
        pair[1].api("cancel.json", project="shop", job=slow["job"])
        back = shop.run("nodes", "resume", "--all")
    assert "node1, node2" in back.err
    pair[1].wait_idle()
    # with --unless-running, what still runs on a draining node counts
    (slow,) = shop.scheduled("slow", "--on", "node2")
    assert shop.run("nodes", "drain", "node2", "--no-wait").code == 0
    try:
        left_out = shop.scheduled("slow", "--unless-running")
        assert [row["state"] for row in left_out] == ["skipped"]
    finally:
        pair[1].api("cancel.json", project="shop", job=slow["job"])
        shop.run("nodes", "resume", "node2")
        pair[1].wait_idle()


@pytest.mark.black_box
def test_a_node_that_cannot_be_asked_is_drained_all_the_same(
    shop: Shop, pair: list[ScrapydNode]
) -> None:
    shop.project.targets(pair, "[deploy:gone]\nurl = http://127.0.0.1:1/\nproject = shop\n")
    shop.run("nodes", "drain", "gone").expect(5, "in force all the same")
    # it is passed over, so that it is down matters no more
    assert {row["state"] for row in shop.scheduled("good", "--all-nodes")} == {"scheduled"}
    assert shop.run("nodes", "resume", "gone").code == 0


@pytest.mark.black_box
def test_nodes_are_added_and_removed(shop: Shop, pair: list[ScrapydNode]) -> None:
    shop.project.targets(pair[:1])
    assert pair[0].name in shop.run("nodes", "--offline", code=0).out
    address = f"127.0.0.1:{pair[1].port}"
    secret = shop.run("nodes", "add", f"http://me:hush@{address}/")
    assert (secret.code, "netrc" in secret.err, "hush" in secret.err) == (2, True, False)
    shop.run("nodes", "add", address, "--name", "spare").expect(
        6, "added all the same", "remove spare"
    )
    netrc = shop.project.home / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password hush\n", "utf-8")
    netrc.chmod(0o600)  # Python takes no other one
    try:
        shop.project.targets(pair[:1])
        again = shop.run("nodes", "add", address, "--name", "spare", "--json", code=0)
        assert [row["state"] for row in again.json()["nodes"]] == ["up"]
        assert shop.node_states() == {"node1": "up", "spare": "up"}
        assert shop.scheduled("good", "--on", "spare")[0]["state"] == "scheduled"
        shop.run("nodes", "add", "127.0.0.1:1", "--name", "node1").expect(2, "node1")
        assert shop.run("nodes", "drain", "spare").code == 0
        shop.run("nodes", "remove", "node1").expect(2, "scrapy.cfg")
        assert shop.run("nodes", "remove", "spare").code == 0
        assert shop.run("nodes", "remove", "spare").code == 4
        assert set(shop.node_states()) == {"node1"}
    finally:
        netrc.unlink()
        shop.run("nodes", "remove", "spare")
    pair[1].wait_idle()
    assert b"hush" not in (shop.project.path / ".sdist" / "store.db").read_bytes()


@pytest.mark.black_box
def test_behind_tls(shop: Shop, pair: list[ScrapydNode], tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    with (
        closing(Front(pair[1], authority.context(), certificates=authority.file)) as front,
        closing(Front(pair[1], authority.context())) as strange,
        closing(Front(pair[1], base="/one/two")) as below,
    ):
        shop.project.targets(
            pair[:1], "\n".join([front.section("shop", "safe"), below.section("shop", "below")])
        )
        assert shop.node_states() == {"node1": "up", "safe": "up", "below": "up"}
        assert shop.run("nodes", "drain", "safe").code == 0
        assert shop.node_states()["safe"] == "drained"
        assert shop.run("jobs", "schedule", "good", "--on", "safe").code == 2
        assert shop.run("nodes", "resume", "safe").code == 0
        assert shop.scheduled("good", "--on", "safe")[0]["state"] == "scheduled"
        found = findings(shop.run("doctor", "safe", "below", "--json"))
        # the authority's certificates live for a day; what earlier tests left on these nodes is another matter
        told = {
            node: row["text"]
            for (node, topic), row in found.items()
            if topic not in {"jobs_to_keep", "logs"}
        }
        assert list(told) == ["safe"]
        assert "ends in" in told["safe"]
        plain = f"[deploy:plain]\nurl = http{front.url.removeprefix('https')}\n"
        plain += f"[deploy:none]\nurl = https{pair[0].url.removeprefix('http')}\n"
        shop.project.targets([], "\n".join([strange.section("shop", "strange"), plain]))
        found = findings(shop.run("doctor", "--json", "--connect-timeout", "1", code=6))
        assert "ca = FILE" in found["strange", "tls"]["remedy"]
        assert f"url = {front.url}" in found["plain", "tls"]["remedy"]
        assert f"url = {pair[0].url}" in found["none", "tls"]["remedy"]
        assert shop.node_states()["strange"] == "refused"
    pair[1].wait_idle()


@pytest.mark.black_box
def test_a_wedged_node(shop: Shop, nodes: Nodes) -> None:
    (node,) = nodes.fleet(1, max_proc=1)
    shop.project.targets([node])
    assert shop.run("deploy", "--all").code == 0
    # Scrapyd says ok, and loses a process slot for good: the log of such a job cannot be made
    node.api("schedule.json", project="shop", spider="good", jobid="no/such/folder")
    for _ in range(2):
        node.api("schedule.json", project="shop", spider="good")
    wait_for(
        lambda: len(node.jobs("pending")) == 2 and not node.jobs("running"), 60, "the lost slot"
    )
    done = shop.run("doctor", "--json", code=1)
    assert "slots are lost" in findings(done)[node.name, "slots"]["text"]
    assert shop.run("nodes", "--json").json()["nodes"][0]["state"] == "up"  # one look tells nothing
    with closing(open_store(shop.project.path / ".sdist" / "store.db")) as store:
        now = time.time()
        store.update_node(node.name, idle_looks=(now - 20, now - 10))
    seen = shop.run("nodes", "--json")
    assert (seen.code, seen.json()["nodes"][0]["state"], seen.json()["nodes"][0]["wedged"]) == (
        3,
        "wedged",
        True,
    )
    shop.run("nodes", "drain", node.name).expect(1, "restart its Scrapyd")
    assert shop.run("nodes", "resume", node.name).code == 0
    node.restart()
    node.wait_idle()
    assert shop.run("nodes", "--json").json()["nodes"][0]["state"] == "up"


@pytest.mark.black_box
def test_logs_that_are_pruned_items_that_are_replaced_and_no_logs_at_all(
    shop: Shop, nodes: Nodes
) -> None:
    pruned, mute = (
        *nodes.fleet(1, jobs_to_keep="2", items_dir="items"),
        *nodes.fleet(1, logs_dir=""),
    )
    shop.project.targets([pruned, mute])
    shop.run("deploy", "--all", code=0)
    for _ in range(5):
        shop.scheduled("good", "--on", pruned.name)
        pruned.wait_idle()
    found = findings(shop.run("doctor", "--json", code=1))
    assert "logs_dir = logs" in found[mute.name, "logs"]["remedy"]
    assert "most likely jobs_to_keep = 2 or 3" in found[pruned.name, "jobs_to_keep"]["text"]
    assert "items_dir" in found[pruned.name, "items"]["text"]
    shown = shop.run("doctor", code=1).out
    assert (shown.startswith("danger: "), "note:" in shown) == (True, False)
    assert "note:" in shop.run("doctor", "--verbose").out


@pytest.mark.black_box
def test_two_hundred_nodes_are_drawn_as_they_answer(shop: Shop) -> None:
    """On a terminal the living are shown while the dead are waited for; then comes the table, in order."""
    with closing(ManyNodes()) as many, closing(BlackHole()) as hole:
        dead = [hole.node(f"hole{n}") for n in range(50)]
        nodes = dead + [many.node(f"web{n}") for n in range(150)]
        shop.project.targets(
            [], "".join(f"[deploy:{node.name}]\nurl = {node.url}\n" for node in nodes)
        )
        program = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
        line = [sys.executable, "-c", program, *SDIST, "nodes", "--connect-timeout", "5"]
        env = {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
        made = shop.project
        with closing(
            Command(line, cwd=made.path, folder=made.output, home=made.home, env=env)
        ) as command:
            command.wait_text("150 of 200 nodes answered")
            assert "NAME" not in command.out  # the dead are still waited for
            assert "web1" in command.out
            done = command.wait(60, code=3)
    table = done.out[done.out.index("NAME") :]
    assert all(
        name in table for name in ("hole0 ", "hole39 ")
    )  # one screen, those in trouble first
    assert "and 160 more nodes: 10 down, 150 up" in table
    assert "and 45 nodes more" in table
    assert "200 nodes: 50 down, 150 up" in table


# `sdist nodes`


def test_all_up(run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]) -> None:
    made = project(nodes=pair)
    done = run_cli(made, "nodes", "--json", code=0)
    document = done.json()
    assert (document["schema"], done.err) == (1, "")
    assert [
        (row["name"], row["state"], row["running"], row["pending"]) for row in document["nodes"]
    ] == [(node.name, "up", 0, 0) for node in pair]
    assert all(row["latency_ms"] > 0 for row in document["nodes"])
    table = run_cli(made, "nodes", code=0)
    assert table.out.splitlines()[0].startswith("NAME")
    assert all(node.name in table.out and node.url.rstrip("/") in table.out for node in pair)
    assert "hush" not in done.out + table.out


def test_one_that_hangs_does_not_keep_the_others_from_answering(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    pair[0].pause()
    try:
        done = run_cli(project(nodes=pair), "nodes", "--json", "--timeout", "1", code=3)
    finally:
        pair[0].go_on()
    assert [row["state"] for row in done.json()["nodes"]] == ["busy", "up"]
    assert "time-out" in done.json()["nodes"][0]["reason"]


def test_local_nodes_come_are_listed_and_go(
    run_cli: RunCommand, project: MakeProject, pair: list[ScrapydNode]
) -> None:
    made = project()
    up = run_cli(made, "nodes", "up", "1", "--max-proc", "2", "--json")
    try:
        up.expect(0)
        assert [(row["name"], row["slots"]) for row in up.json()["nodes"]] == [("local1", 2)]
        assert (
            run_cli(made, "nodes", "up", "1", "--json").json() == up.json()
        )  # it is there already
        assert [row["state"] for row in run_cli(made, "nodes", "--json").json()["nodes"]] == ["up"]
        gone = run_cli(made, "nodes", "add", "127.0.0.1:1", "--name", "gone").expect(
            5, "Nothing was added"
        )
        assert "local1" in gone.err
        for command in (
            ("nodes", "add", pair[0].url, "--name", "far"),
            ("nodes",),
            ("nodes", "up", "1"),
        ):
            said = run_cli(made, *command).err
            for word in (
                "local nodes run that get no work (local1)",
                "[deploy:local1]",
                "nodes remove far",
            ):
                assert word in said, (command, said)
        run_cli(made, "nodes", "remove", "far")
        assert "no work" not in run_cli(made, "nodes").err
    finally:
        down = run_cli(made, "nodes", "down")
    assert (down.code, down.err) == (0, "Stopped local1.\n")
    assert with_home(made.home) == {}
    assert "No local node" in run_cli(made, "nodes", "down").err
