"""`sdist wait`, `status --fleet`, `--on-finish` and `--min-items` on two real nodes, one with a password."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from rig.commands import SCRAPY
from rig.crawls import ADDON, QUICK, crawls, last_crawl
from rig.fixtures import StartFleet, StartSite
from rig.shops import SPIDERS, Shop
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.store import open_store

#: one more, which finds its own pages; the producer sends them away
FINDING = """

class Shop(Good):
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
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    more = {"max_proc": 2, "jobs_to_keep": "100"}
    nodes = [*module_fleet(1, **more), *module_fleet(1, username="me", password="hush", **more)]
    settings = {**QUICK, "ADDONS": ADDON, "LOG_LEVEL": "DEBUG"}
    with closing(Shop(tmp_path_factory.mktemp("shop"), nodes, SPIDERS + FINDING, **settings)) as made:
        yield made


def test_a_detached_crawl_is_waited_for_and_somebody_is_told_of_its_end(shop: Shop) -> None:
    told = shop.project.path / "told.json"
    hook = f'cat > {told}.new && mv {told}.new {told}; echo "$SDIST_CRAWL $SDIST_STATE $SDIST_ITEMS" > who.txt; exit 4'
    begun = shop.run(*CRAWL, "--detach", "--name", "one", "--min-items", "4", "--on-finish", hook)
    assert (begun.code, begun.out) == (0, "one\n"), begun.err
    fleet = shop.run("status", "--fleet", "--json")
    assert (fleet.code, [node["state"] for node in fleet.json()["nodes"]]) == (0, ["up", "up"]), fleet.err
    assert "hush" not in fleet.out
    done = shop.run("wait", "one", "--json")
    assert (done.code, done.err) == (1, f"sdist: {done.json()['crawls'][0]['message']}\n")
    assert done.json()["crawls"][0]["message"].startswith("The crawl has 3 items, and at least 4 were asked for")
    wait_for(lambda: "ended with code 4" in str(last_crawl(shop.project).summary["warnings"]), 30, "the warning")
    document = json.loads(told.read_text())
    assert (document["crawl"], document["state"], document["exit_code"], document["items"]) == ("one", "finished", 1, 3)
    assert (shop.project.path / "who.txt").read_text() == "one finished 3\n"
    summed = shop.run("status", "one").out
    assert "The command to be run at the end (--on-finish) ended with code 4." in summed
    assert shop.run("wait", "one").code == 1


def _scheduled(shop: Shop, *arguments: str) -> list[str]:
    return [row["job"] for row in shop.scheduled(*arguments)]


@pytest.mark.black_box
def test_jobs_are_waited_for_and_judged(shop: Shop) -> None:
    good = _scheduled(shop, "good", "--all-nodes")
    done = shop.run("wait", *(word for job in good for word in ("--job", job)), "--json")
    assert (done.code, done.err) == (0, "")
    assert [(row["state"], row["items"]) for row in done.json()["jobs"]] == [("finished", 3)] * 2
    (slow,) = _scheduled(shop, "slow", "--on", "node2")
    assert shop.run("wait", "--job", slow, "--timeout", "0.1").expect(124, slow).out == ""
    fleet = _fleet_with(shop, slow)
    assert {node["name"]: node["running"] for node in fleet["nodes"]} == {"node1": 0, "node2": 1}
    (job,) = fleet["nodes"][1]["jobs"]
    assert (job["spider"], job["state"]) == ("slow", "running")
    assert job["per_min"] == {"pages": None, "items": None, "errors": None}, "only our workers report it"
    assert job["silent_s"] is not None
    assert "hush" not in json.dumps(fleet)
    waiting = shop.start("wait", "--job", slow, "--job", good[0])
    os.kill(shop.wait_pid(slow), signal.SIGKILL)
    assert waiting.wait().expect(3, f"The job {slow} on node2 died: ").out == ""


def _fleet_with(shop: Shop, job: str) -> dict[str, Any]:
    """What `sdist status --fleet` says when the job has a log."""

    def there() -> dict[str, Any]:
        done = shop.run("status", "--fleet", "--json", code=0)
        document: dict[str, Any] = done.json()
        jobs = [row for node in document["nodes"] for row in node["jobs"]]
        return document if any(row["job"] == job and row["silent_s"] is not None for row in jobs) else {}

    return wait_for(there, 60, f"{job} in the fleet, with a log")


@pytest.mark.black_box
def test_the_settings_alone_tell_an_address_and_its_secrets_stay_out_of_all_logs(shop: Shop) -> None:
    asked: list[bytes] = []

    def play(connection: Connection, request: bytes) -> None:
        asked.append(request)
        connection.answer(500, b"")

    with closing(BadPeer(play)) as peer:
        hook = f"http://me:hush@127.0.0.1:{peer.port}/SECRET?token=SECRET"
        line = ("crawl", "shop", "-a", "pages=4", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse")
        done = shop.start(*line, "-s", f"DISTRIBUTED_ON_FINISH={hook}", program=SCRAPY).wait()
    assert done.code == 0, done.err
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /SECRET?token=SECRET ")
    assert (json.loads(body)["state"], json.loads(body)["items"]) == ("finished", 4)
    row = last_crawl(shop.project)
    said = [f"http://127.0.0.1:{peer.port}/… could not be told of the end of the crawl (--on-finish): it answered 500."]
    assert row.summary["warnings"] == said
    assert row.exit_code == 0
    shown = done.out + done.err + json.dumps(dict(row.summary)) + shop.run("status", row.id, "--json").out
    assert "SECRET" not in shown
    assert "hush" not in shown


@pytest.mark.black_box
def test_a_crawl_with_unusually_few_items_is_warned_about(shop: Shop) -> None:
    line = (*CRAWL, "-a", "pages=9", "-a", "kind=same")
    done = shop.run(*line, "--name", "usual0", "-q", code=0)
    with closing(open_store(shop.project.path / ".sdist" / "store.db")) as store:
        for name in ("usual1", "usual2"):
            store.add_crawl(replace(store.crawl("usual0"), id=name))
    # The same arguments, and a site that has less to give.
    shop.project.spider("all", (SPIDERS + FINDING).replace("int(self.pages)", "int(self.pages) // 3"))
    try:
        done = shop.run(*line, "--name", "few", "--json")
    finally:
        shop.project.spider("all", SPIDERS + FINDING)
    assert done.code == 0, done.err
    few = "3 items are unusually few: the median of the last 3 crawls of this spider is 9."
    assert done.json()["warnings"] == [few]


@pytest.mark.black_box
def test_a_refused_crawl_is_told_of_as_well(shop: Shop) -> None:
    for line in (("crawl", "nosuch"), (*CRAWL, "-s", "DISTRIBUTED_SHARDS=x"), (*CRAWL, "--shards", "3")):
        told = shop.project.path / "refused.json"
        done = shop.run(*line, "--on-finish", f"cat > {told}")
        assert done.code in {2, 4}, done
        document = json.loads(told.read_text())
        assert (document["state"], document["exit_code"]) == ("refused", done.code)
        assert document["message"].strip() in done.err
        told.unlink()
    shop.run(*CRAWL, "--on-finish", "ftp://host/x").expect(2, "http://")


@pytest.mark.black_box
def test_several_crawls_are_waited_for_and_a_dead_one_is_named(shop: Shop, site: StartSite) -> None:
    web = site(40, "--latency=1")
    slow = (*CRAWL, "-a", "pages=4", "-a", f"page={web.url}/x", "--detach", "--name")
    for name in ("left", "killed"):
        assert shop.run(*slow, name).code == 0
    waiting = shop.start("wait", "killed", "left")

    def pid_of_the_killed() -> int:
        rows = [row for row in crawls(shop.project) if row.id == "killed" and row.state is CrawlState.WORKING]
        return rows[0].pid or 0 if rows else 0

    pid = wait_for(pid_of_the_killed, 60, "the producer")
    os.kill(pid, signal.SIGKILL)
    assert waiting.wait().expect(3, "sdist resume killed").out == ""
    assert shop.run("resume", "killed", "-q").code == 0


@pytest.mark.black_box
def test_the_fleet_is_watched_until_ctrl_c(shop: Shop) -> None:
    (slow,) = _scheduled(shop, "slow", "--on", "node1")
    watching = shop.start("watch", "--fleet", "--json")
    watching.wait_text("nodes 2/2 · 1 running")
    shop.nodes[1].kill()
    try:
        watching.wait_text("node2: down: ")
        watching.interrupt()
        done = watching.wait()
    finally:
        shop.nodes[1].restart()
        shop.nodes[0].api("cancel.json", project="shop", job=slow)
        shop.nodes[0].wait_idle()
    assert done.code == 130
    assert [node["state"] for node in done.json()["nodes"]] == ["up", "down"]
