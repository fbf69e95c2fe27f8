"""`sdist nodes drain`, `nodes resume`, `doctor`: real nodes, open, with a password, behind TLS, and wrong ones."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from rig.commands import SDIST, Command, Result
from rig.fixtures import RunCommand, StartCommand, StartFleet
from rig.manynodes import BlackHole, ManyNodes
from rig.nodes import Nodes, ScrapydNode
from rig.projects import Project
from rig.tls import Authority, Front
from rig.waiting import wait_for

from scrapyd_dist.store import open_store

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

SPIDERS = """\
import scrapy


class Quick(scrapy.Spider):
    name = "quick"

    async def start(self):
        yield scrapy.Request("data:,one")

    def parse(self, response):
        yield {"text": response.text}


class Slow(Quick):
    name = "slow"
    custom_settings = {"DOWNLOAD_DELAY": 1, "CONCURRENT_REQUESTS": 1}

    async def start(self):
        for number in range(600):
            yield scrapy.Request(f"data:,{number}", dont_filter=True)
"""


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    """node1 is open, node2 has a password."""
    return [*module_fleet(1), *module_fleet(1, username="me", password="hush")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, pair: list[ScrapydNode]) -> Project:
    return Project.small(tmp_path_factory.mktemp("shop") / "shop", "shop", {"all": SPIDERS}, {})


@pytest.fixture(scope="module")
def sdist(shop: Project, pair: list[ScrapydNode]) -> Iterator[StartCommand]:
    """Starts `sdist` in the project, whose code is on both nodes."""
    with ExitStack() as stack:

        def start(*arguments: object) -> Command:
            line = [*SDIST, *map(str, arguments)]
            return stack.enter_context(closing(Command(line, cwd=shop.path, folder=shop.output, home=shop.home)))

        shop.targets(pair)
        done = start("deploy-all", "--json").wait()
        assert done.code == 0, done.err
        yield start


@pytest.fixture
def run(sdist: StartCommand, shop: Project, pair: list[ScrapydNode]) -> Callable[..., Result]:
    """Runs it; scrapy.cfg names the two nodes, unless the test says otherwise."""
    shop.targets(pair)
    return lambda *arguments: sdist(*arguments).wait()


def scheduled(run: RunCommand, *arguments: object) -> list[dict[str, Any]]:
    done = run("schedule", *arguments, "--json")
    assert done.code == 0, done.err
    rows: list[dict[str, Any]] = done.json()["jobs"]
    return rows


def states(run: RunCommand) -> dict[str, str]:
    return {row["name"]: row["state"] for row in run("nodes", "--json").json()["nodes"]}


def findings(done: Result) -> dict[tuple[str, str], dict[str, Any]]:
    """Node and topic -> finding, notes left out."""
    rows = done.json()["findings"]
    return {(row["node"], row["topic"]): row for row in rows if row["severity"] != "note"}


def test_a_drained_node_ends_its_jobs_and_gets_no_other(
    run: RunCommand, sdist: StartCommand, pair: list[ScrapydNode]
) -> None:
    (slow,) = scheduled(run, "slow", "--on", "node1")
    wait_for(lambda: pair[0].jobs("running"), 60, "the slow job")
    draining = sdist("nodes", "drain", "node1", "--json")
    draining.wait_text("node1: 1 running")
    rows = scheduled(run, "quick", "quick", "quick", "quick")
    assert {row["node"] for row in rows} == {"node2"}
    refused = run("schedule", "quick", "--on", "node1")
    assert (refused.code, refused.out) == (2, "")
    assert "sdist nodes resume node1" in refused.err
    assert states(run) == {"node1": "draining", "node2": "up"}
    assert draining.running()
    pair[0].api("cancel.json", project="shop", job=slow["job"])
    done = draining.wait()
    assert done.code == 0, done.err
    assert [(row["state"], row["running"], row["pending"]) for row in done.json()["nodes"]] == [("drained", 0, 0)]
    assert run("nodes", "resume", "node1").code == 0
    assert scheduled(run, "quick", "--on", "node1")[0]["node"] == "node1"


def test_doctor_names_what_is_wrong_and_what_to_do(run: RunCommand, shop: Project, pair: list[ScrapydNode]) -> None:
    for node in pair:
        node.wait_idle()
    well = run("doctor", "--json")
    assert well.code == 0, well.out
    assert findings(well) == {}
    assert [(row["state"], row["logs"], row["ranges"], row["items_dir"]) for row in well.json()["nodes"]] == [
        ("up", True, True, False)
    ] * 2
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
    shop.targets(pair[:1], wrong)
    done = run("doctor", "--json", "--connect-timeout", "1")
    assert done.code == 3, done.out
    found = findings(done)
    assert {key: row["severity"] for key, row in found.items()} == dict.fromkeys(
        [("locked", "auth"), ("path", "base path"), ("closed", "reach")], "danger"
    )
    assert f"url = http://127.0.0.1:{port}/" in found["path", "base path"]["remedy"]
    assert "notthis" not in done.out + done.err


def test_who_is_to_be_drained_has_to_be_said(run: RunCommand) -> None:
    nobody = run("nodes", "drain")
    assert (nobody.code, "--all" in nobody.err) == (2, True)
    unknown = run("nodes", "drain", "noed1")
    assert (unknown.code, "Did you mean 'node1'?" in unknown.err) == (4, True)
    assert set(states(run).values()) == {"up"}


@pytest.mark.black_box
def test_the_drain_stays_when_the_waiting_ends(run: RunCommand, sdist: StartCommand, pair: list[ScrapydNode]) -> None:
    (slow,) = scheduled(run, "slow", "--on", "node2")
    try:
        wait_for(lambda: pair[1].jobs("running"), 60, "the slow job")
        draining = sdist("nodes", "drain", "node?")
        draining.wait_text("node2: 1 running")
        draining.interrupt()
        done = draining.wait()
        assert done.code == 130
        assert "sdist nodes resume" in done.err
        assert states(run) == {"node1": "draining", "node2": "draining"}
        refused = run("schedule", "quick")
        assert (refused.code, "sdist nodes resume node1 node2" in refused.err) == (2, True)
        late = run("nodes", "drain", "--all", "--timeout", "1")
        assert (late.code, "The time is up" in late.err) == (124, True)
        at_once = run("nodes", "drain", "--all", "--no-wait", "--json")
        assert (at_once.code, [row["state"] for row in at_once.json()["nodes"]]) == (0, ["drained", "draining"])
    finally:
        pair[1].api("cancel.json", project="shop", job=slow["job"])
        back = run("nodes", "resume", "--all")
    assert "node1, node2" in back.err
    pair[1].wait_idle()
    # with --unless-running, what still runs on a draining node counts
    (slow,) = scheduled(run, "slow", "--on", "node2")
    assert run("nodes", "drain", "node2", "--no-wait").code == 0
    try:
        left_out = scheduled(run, "slow", "--unless-running")
        assert [row["state"] for row in left_out] == ["skipped"]
    finally:
        pair[1].api("cancel.json", project="shop", job=slow["job"])
        run("nodes", "resume", "node2")
        pair[1].wait_idle()


@pytest.mark.black_box
def test_a_node_that_cannot_be_asked_is_drained_all_the_same(
    run: RunCommand, shop: Project, pair: list[ScrapydNode]
) -> None:
    shop.targets(pair, "[deploy:gone]\nurl = http://127.0.0.1:1/\nproject = shop\n")
    done = run("nodes", "drain", "gone")
    assert (done.code, "in force all the same" in done.err) == (5, True)
    # it is passed over, so that it is down matters no more
    assert {row["state"] for row in scheduled(run, "quick", "--all-nodes")} == {"scheduled"}
    assert run("nodes", "resume", "gone").code == 0


@pytest.mark.black_box
def test_nodes_are_added_and_removed(run: RunCommand, shop: Project, pair: list[ScrapydNode]) -> None:
    shop.targets(pair[:1])
    address = f"127.0.0.1:{pair[1].port}"
    secret = run("nodes", "add", f"http://me:hush@{address}/")
    assert (secret.code, "netrc" in secret.err, "hush" in secret.err) == (2, True, False)
    refused = run("nodes", "add", address, "--name", "spare")
    assert (refused.code, "added all the same" in refused.err) == (6, True)
    netrc = shop.home / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password hush\n", "utf-8")
    netrc.chmod(0o600)  # Python takes no other one
    try:
        shop.targets(pair[:1])
        again = run("nodes", "add", address, "--name", "spare", "--json")
        assert (again.code, [row["state"] for row in again.json()["nodes"]]) == (0, ["up"]), again.err
        assert states(run) == {"node1": "up", "spare": "up"}
        assert scheduled(run, "quick", "--on", "spare")[0]["state"] == "scheduled"
        taken = run("nodes", "add", "127.0.0.1:1", "--name", "node1")
        assert (taken.code, "node1" in taken.err) == (2, True)
        assert run("nodes", "drain", "spare").code == 0
        listed = run("nodes", "remove", "node1")
        assert (listed.code, "scrapy.cfg" in listed.err) == (2, True)
        assert run("nodes", "remove", "spare").code == 0
        assert run("nodes", "remove", "spare").code == 4
        assert set(states(run)) == {"node1"}
    finally:
        netrc.unlink()
        run("nodes", "remove", "spare")
    pair[1].wait_idle()
    store = (shop.path / ".sdist" / "store.db").read_bytes()
    assert b"hush" not in store


@pytest.mark.black_box
def test_behind_tls(run: RunCommand, shop: Project, pair: list[ScrapydNode], tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    with (
        closing(Front(pair[1], authority.context(), certificates=authority.file)) as front,
        closing(Front(pair[1], authority.context())) as strange,
        closing(Front(pair[1], base="/one/two")) as below,
    ):
        shop.targets(pair[:1], "\n".join([front.section("shop", "safe"), below.section("shop", "below")]))
        assert states(run) == {"node1": "up", "safe": "up", "below": "up"}
        assert run("nodes", "drain", "safe").code == 0
        assert states(run)["safe"] == "draining"
        assert run("schedule", "quick", "--on", "safe").code == 2
        assert run("nodes", "resume", "safe").code == 0
        assert scheduled(run, "quick", "--on", "safe")[0]["state"] == "scheduled"
        found = findings(run("doctor", "safe", "below", "--json"))
        # the authority's certificates live for a day; what earlier tests left on these nodes is another matter
        told = {node: row["text"] for (node, topic), row in found.items() if topic != "jobs_to_keep"}
        assert list(told) == ["safe"]
        assert "ends in" in told["safe"]
        plain = f"[deploy:plain]\nurl = http{front.url.removeprefix('https')}\n"
        plain += f"[deploy:none]\nurl = https{pair[0].url.removeprefix('http')}\n"
        shop.targets([], "\n".join([strange.section("shop", "strange"), plain]))
        done = run("doctor", "--json", "--connect-timeout", "1")
        assert done.code == 6, done.out
        found = findings(done)
        assert "ca = FILE" in found["strange", "tls"]["remedy"]
        assert f"url = {front.url}" in found["plain", "tls"]["remedy"]
        assert f"url = {pair[0].url}" in found["none", "tls"]["remedy"]
        assert states(run)["strange"] == "refused"
    pair[1].wait_idle()


@pytest.mark.black_box
def test_a_wedged_node(run: RunCommand, shop: Project, nodes: Nodes) -> None:
    (node,) = nodes.fleet(1, max_proc=1)
    shop.targets([node])
    assert run("deploy-all").code == 0
    # Scrapyd says ok, and loses a process slot for good: the log of such a job cannot be made
    node.api("schedule.json", project="shop", spider="quick", jobid="no/such/folder")
    for _ in range(2):
        node.api("schedule.json", project="shop", spider="quick")
    wait_for(lambda: len(node.jobs("pending")) == 2 and not node.jobs("running"), 60, "the lost slot")
    done = run("doctor", "--json")
    assert done.code == 1, done.out
    assert "slots are lost" in findings(done)[node.name, "slots"]["text"]
    assert run("nodes", "--json").json()["nodes"][0]["state"] == "up"  # one look tells nothing
    with closing(open_store(shop.path / ".sdist" / "store.db")) as store:
        now = time.time()
        store.update_node(node.name, idle_looks=(now - 20, now - 10))
    seen = run("nodes", "--json")
    assert (seen.code, seen.json()["nodes"][0]["state"], seen.json()["nodes"][0]["wedged"]) == (3, "wedged", True)
    drained = run("nodes", "drain", node.name)
    assert (drained.code, "restart its Scrapyd" in drained.err) == (1, True)
    assert run("nodes", "resume", node.name).code == 0
    node.restart()
    node.wait_idle()
    assert run("nodes", "--json").json()["nodes"][0]["state"] == "up"


@pytest.mark.black_box
def test_logs_that_are_pruned_items_that_are_replaced_and_no_logs_at_all(
    run: RunCommand, shop: Project, nodes: Nodes
) -> None:
    pruned = nodes.make(jobs_to_keep="2", items_dir="items")
    mute = nodes.make(logs_dir="")
    for node in (pruned, mute):
        node.start()
    for node in (pruned, mute):
        node.wait()
    shop.targets([pruned, mute])
    assert run("deploy-all").code == 0
    for _ in range(5):
        assert scheduled(run, "quick", "--on", pruned.name)[0]["state"] == "scheduled"
        pruned.wait_idle()
    done = run("doctor", "--json")
    assert done.code == 1
    found = findings(done)
    assert "logs_dir = logs" in found[mute.name, "logs"]["remedy"]
    assert "most likely jobs_to_keep" in found[pruned.name, "jobs_to_keep"]["text"]
    assert "items_dir" in found[pruned.name, "items"]["text"]
    shown = run("doctor")
    assert shown.code == 1
    assert shown.out.startswith("danger: ")
    assert "note:" not in shown.out
    assert "note:" in run("doctor", "--verbose").out


@pytest.mark.black_box
@pytest.mark.skipif(not FAKETIME.exists(), reason="libfaketime is not installed")
def test_a_clock_that_is_an_hour_off(run: RunCommand, shop: Project, nodes: Nodes) -> None:
    (node,) = nodes.fleet(1, env={"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+1h", "DONT_FAKE_MONOTONIC": "1"})
    shop.targets([node])
    (row,) = run("nodes", "--json").json()["nodes"]
    assert 3590 < row["skew_s"] < 3610
    assert "+3600 s" in run("nodes").out
    (finding,) = findings(run("doctor", "--json")).values()
    assert (finding["topic"], finding["severity"]) == ("clock", "warning")


@pytest.mark.black_box
def test_two_hundred_nodes_are_drawn_as_they_answer(shop: Project) -> None:
    """On a terminal the living are shown while the dead are waited for; then comes the table, in order."""
    with closing(ManyNodes()) as many, closing(BlackHole()) as hole:
        dead = [hole.node(f"hole{n}") for n in range(50)]
        nodes = dead + [many.node(f"web{n}") for n in range(150)]
        shop.targets([], "".join(f"[deploy:{node.name}]\nurl = {node.url}\n" for node in nodes))
        program = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
        line = [sys.executable, "-c", program, *SDIST, "nodes", "--connect-timeout", "3"]
        env = {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
        with closing(Command(line, cwd=shop.path, folder=shop.output, home=shop.home, env=env)) as command:
            command.wait_text("150 of 200 nodes answered")
            assert "NAME" not in command.out  # the dead are still waited for
            assert "web1" in command.out
            done = command.wait(60)
    assert done.code == 3
    table = done.out[done.out.index("NAME") :]
    assert table.index("hole49") < table.index("web0") < table.index("web149")
    assert "and 45 nodes more" in table
