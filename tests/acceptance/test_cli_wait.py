"""`sdist wait`, `status --fleet`, `--on-finish` and `--min-items` on two real nodes, one with a password."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from rig.commands import SCRAPY, SDIST, Command
from rig.crawls import ADDON, QUICK, last_crawl
from rig.fixtures import StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.waiting import wait_for

SPIDERS = """\
import scrapy


class Good(scrapy.Spider):
    name = "good"
    pages = "3"

    async def start(self):
        for number in range(int(self.pages)):
            yield scrapy.Request(f"data:,{number}", dont_filter=True)

    def parse(self, response):
        yield {"text": response.text}


class Slow(Good):
    name = "slow"
    pages = "6000"
    custom_settings = {"DOWNLOAD_DELAY": 0.1, "CONCURRENT_REQUESTS": 1}


class Shop(Good):
    \"\"\"Finds its own pages; the producer sends them away.\"\"\"
    name = "shop"
    page = "data:,x"

    async def start(self):
        yield scrapy.Request("data:,index", self.parse_index)

    def parse_index(self, response):
        for number in range(int(self.pages)):
            yield scrapy.Request(f"{self.page}{number}", self.parse)
"""
CRAWL = ("crawl", "shop", "--callback", "parse", "--batch-size", "2")


@pytest.fixture(scope="module")
def nodes_(module_fleet: StartFleet) -> list[ScrapydNode]:
    more = {"max_proc": 2, "jobs_to_keep": "100"}
    return [*module_fleet(1, **more), *module_fleet(1, username="me", password="hush", **more)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, nodes_: list[ScrapydNode]) -> Project:
    settings = {**QUICK, "ADDONS": ADDON, "LOG_LEVEL": "DEBUG"}
    made = Project.small(tmp_path_factory.mktemp("shop") / "shop", "shop", {"all": SPIDERS}, settings)
    made.targets(nodes_)
    return made


@pytest.fixture(scope="module")
def sdist(made: Project) -> Iterator[StartCommand]:
    with ExitStack() as stack:

        def start(*arguments: object, program: tuple[str, ...] = SDIST) -> Command:
            line = [*program, *map(str, arguments)]
            return stack.enter_context(closing(Command(line, cwd=made.path, folder=made.output, home=made.home)))

        done = start("deploy-all", "--json").wait()
        assert done.code == 0, done.err
        yield start


def scheduled(sdist: StartCommand, *arguments: object) -> list[str]:
    done = sdist("schedule", *arguments, "--json").wait()
    assert done.code == 0, done.err
    return [row["job"] for row in done.json()["jobs"]]


def test_a_detached_crawl_is_waited_for_and_somebody_is_told_of_its_end(sdist: StartCommand, made: Project) -> None:
    told = made.path / "told.json"
    hook = f'cat > {told}.new && mv {told}.new {told}; echo "$SDIST_CRAWL $SDIST_STATE $SDIST_ITEMS" > who.txt; exit 4'
    begun = sdist(*CRAWL, "--detach", "--name", "one", "--min-items", "4", "--on-finish", hook).wait()
    assert (begun.code, begun.out) == (0, "one\n"), begun.err
    fleet = sdist("status", "--fleet", "--json").wait()
    assert (fleet.code, [node["state"] for node in fleet.json()["nodes"]]) == (0, ["up", "up"]), fleet.err
    assert "hush" not in fleet.out
    done = sdist("wait", "one", "--json").wait()
    assert (done.code, done.err) == (1, f"sdist: {done.json()['crawls'][0]['message']}\n")
    assert done.json()["crawls"][0]["message"].startswith("The crawl has 3 items, and at least 4 were asked for")
    wait_for(lambda: "ended with code 4" in str(last_crawl(made).summary["warnings"]), 30, "the warning")
    document = json.loads(told.read_text())
    assert (document["crawl"], document["state"], document["exit_code"], document["items"]) == ("one", "finished", 1, 3)
    assert (made.path / "who.txt").read_text() == "one finished 3\n"
    summed = sdist("status", "one").wait().out
    assert "The command to be run at the end (--on-finish) ended with code 4." in summed
    assert sdist("wait", "one").wait().code == 1


@pytest.mark.black_box
def test_jobs_are_waited_for_and_judged(sdist: StartCommand, nodes_: list[ScrapydNode]) -> None:
    good = scheduled(sdist, "good", "--all-nodes")
    done = sdist("wait", *(word for job in good for word in ("--job", job)), "--json").wait()
    assert (done.code, done.err) == (0, "")
    assert [(row["state"], row["items"]) for row in done.json()["jobs"]] == [("finished", 3)] * 2
    (slow,) = scheduled(sdist, "slow", "--on", "node2")
    late = sdist("wait", "--job", slow, "--timeout", "0.1").wait()
    assert (late.code, late.out) == (124, "")
    assert slow in late.err
    fleet = _fleet_with(sdist, slow)
    assert {node["name"]: node["running"] for node in fleet["nodes"]} == {"node1": 0, "node2": 1}
    (job,) = fleet["nodes"][1]["jobs"]
    assert (job["spider"], job["state"]) == ("slow", "running")
    assert job["per_min"] == {"pages": None, "items": None, "errors": None}, "only our workers report it"
    assert job["silent_s"] is not None
    assert "hush" not in json.dumps(fleet)
    waiting = sdist("wait", "--job", slow, "--job", good[0])
    pid = wait_for(lambda: next((p for p, name in nodes_[1].job_pids().items() if name == slow), 0), 30, "the job")
    os.kill(pid, signal.SIGKILL)
    done = waiting.wait()
    assert (done.code, done.out) == (3, "")
    assert f"The job {slow} on node2 died: " in done.err


def _fleet_with(sdist: StartCommand, job: str) -> dict[str, Any]:
    """What `sdist status --fleet` says when the job has a log."""

    def there() -> dict[str, Any]:
        done = sdist("status", "--fleet", "--json").wait()
        assert done.code == 0, done.err
        document: dict[str, Any] = done.json()
        jobs = [row for node in document["nodes"] for row in node["jobs"]]
        return document if any(row["job"] == job and row["silent_s"] is not None for row in jobs) else {}

    return wait_for(there, 60, f"{job} in the fleet, with a log")


@pytest.mark.black_box
def test_the_settings_alone_tell_an_address_and_its_secrets_stay_out_of_all_logs(
    sdist: StartCommand, made: Project
) -> None:
    asked: list[bytes] = []

    def play(connection: Connection, request: bytes) -> None:
        asked.append(request)
        connection.answer(500, b"")

    with closing(BadPeer(play)) as peer:
        hook = f"http://me:hush@127.0.0.1:{peer.port}/SECRET?token=SECRET"
        line = ("crawl", "shop", "-a", "pages=4", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse")
        done = sdist(*line, "-s", f"DISTRIBUTED_ON_FINISH={hook}", program=SCRAPY).wait()
    assert done.code == 0, done.err
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /SECRET?token=SECRET ")
    assert (json.loads(body)["state"], json.loads(body)["items"]) == ("finished", 4)
    row = last_crawl(made)
    said = [f"http://127.0.0.1:{peer.port}/… could not be told of the end of the crawl (--on-finish): it answered 500."]
    assert row.summary["warnings"] == said
    assert row.exit_code == 0
    shown = done.out + done.err + json.dumps(dict(row.summary)) + sdist("status", row.id, "--json").wait().out
    assert "SECRET" not in shown
    assert "hush" not in shown


@pytest.mark.black_box
def test_a_crawl_with_unusually_few_items_is_warned_about(sdist: StartCommand, made: Project) -> None:
    for number in range(3):
        done = sdist(*CRAWL, "-a", "pages=9", "-a", "kind=same", "--name", f"usual{number}", "-q").wait()
        assert done.code == 0, done.err
    # The same arguments, and a site that has less to give.
    made.spider("all", SPIDERS.replace("int(self.pages)", "int(self.pages) // 3"))
    try:
        done = sdist(*CRAWL, "-a", "pages=9", "-a", "kind=same", "--name", "few", "--json").wait()
    finally:
        made.spider("all", SPIDERS)
    assert done.code == 0, done.err
    assert done.json()["warnings"] == [
        "3 items are unusually few: the median of the last 3 crawls of this spider is 9."
    ]


@pytest.mark.black_box
def test_a_refused_crawl_is_told_of_as_well(sdist: StartCommand, made: Project) -> None:
    for line in (("crawl", "nosuch"), (*CRAWL, "-s", "DISTRIBUTED_SHARDS=x"), (*CRAWL, "--shards", "3")):
        told = made.path / "refused.json"
        done = sdist(*line, "--on-finish", f"cat > {told}").wait()
        assert done.code in {2, 4}, done
        document = json.loads(told.read_text())
        assert (document["state"], document["exit_code"]) == ("refused", done.code)
        assert document["message"].strip() in done.err
        told.unlink()
    done = sdist(*CRAWL, "--on-finish", "ftp://host/x").wait()
    assert (done.code, "http://" in done.err) == (2, True)


@pytest.mark.black_box
def test_several_crawls_are_waited_for_and_a_dead_one_is_named(
    sdist: StartCommand, made: Project, module_site: StartSite
) -> None:
    web = module_site(40, "--latency=1")
    slow = (*CRAWL, "-a", "pages=4", "-a", f"page={web.url}/x", "--detach", "--name")
    for name in ("left", "killed"):
        assert sdist(*slow, name).wait().code == 0
    waiting = sdist("wait", "killed", "left")
    pid = wait_for(lambda: _pid_of(made, "killed"), 60, "the producer")
    os.kill(pid, signal.SIGKILL)
    done = waiting.wait()
    assert (done.code, done.out) == (3, "")
    assert "sdist resume killed" in done.err
    assert sdist("resume", "killed", "-q").wait().code == 0


def _pid_of(made: Project, name: str) -> int:
    from rig.crawls import crawls

    return next((row.pid or 0 for row in crawls(made) if row.id == name and row.state.value == "working"), 0)


@pytest.mark.black_box
def test_the_fleet_is_watched_until_ctrl_c(sdist: StartCommand, nodes_: list[ScrapydNode]) -> None:
    (slow,) = scheduled(sdist, "slow", "--on", "node1")
    watching = sdist("watch", "--fleet", "--json")
    watching.wait_text("nodes 2/2 · 1 running")
    nodes_[1].kill()
    try:
        watching.wait_text("node2: down: ")
        watching.interrupt()
        done = watching.wait()
    finally:
        nodes_[1].restart()
        nodes_[0].api("cancel.json", project="shop", job=slow)
        nodes_[0].wait_idle()
    assert done.code == 130
    assert [node["state"] for node in done.json()["nodes"]] == ["up", "down"]
