"""Consumers as jobs on real nodes: where they stop, what they leave, their store away, and what comes back whole."""

import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.redis import RedisServer
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    return module_fleet(1, max_proc=4, poll_interval=0.2, jobs_to_keep="100")[0]


@pytest.fixture
def shop(project: MakeProject, node: ScrapydNode) -> Callable[..., Project]:
    """`shop(site, …)`: the demo project, whose nodes are the one of this module."""
    return lambda site, **settings: project(nodes=[node], settings={"START_URL": site.start_url, **QUICK, **settings})


def articles(site: SiteProcess, first: int, last: int) -> list[str]:
    return [site.detail(number) for number in range(first, last)]


@pytest.mark.black_box
def test_a_worker_ends_after_exactly_its_batches_and_within_the_batch_of_its_last_request(
    shop: MakeProject, node: ScrapydNode, site: StartSite, run_cli: RunCommand
) -> None:
    """H15, H16: small batches are leased many at a time, and no more than are allowed."""
    pages = site(360)
    it = shop(pages)
    single, large = Frontier(it, "single"), Frontier(it, "large")
    single.fill(articles(pages, 0, 60), size=1, callback="parse_article")
    large.fill(articles(pages, 60, 360), size=100, callback="parse_article")
    for name, limit in (("single", ("--max-batches", 50)), ("large", ("--max-requests", 150))):
        started = run_cli(it, "consume", "plain", name, "--loop", 0, *limit)
        assert started.code == 0, said(started)
    node.wait_idle()
    assert single.waiting() == {"p0": 10}
    assert len(single.attempts()) == len({one.batch for one in single.attempts()}) == 50
    assert large.waiting() == {"p0": 100}
    hits = pages.item_hits()
    assert sum(1 for number in hits if number < 60) == 50
    assert sum(1 for number in hits if number >= 60) == 200, "to the end of the batch that reaches the limit"
    assert set(hits.values()) == {1}


@pytest.mark.black_box
def test_the_consumer_of_one_slot_empties_that_one_and_ends(
    shop: MakeProject, node: ScrapydNode, site: StartSite, run_cli: RunCommand
) -> None:
    """H14, H20: one of eight slots; what waits elsewhere is nothing to wait for."""
    pages = site(160)
    it = shop(pages)
    frontier = Frontier(it, "eight")
    frontier.fill(articles(pages, 0, 160), slots=8, size=10, callback="parse_article")
    before = dict(frontier.waiting())
    assert sorted(before) == [f"p{number}" for number in range(8)]
    done = run_cli(it, "consume", "plain", "eight", "--slots", "p3")
    assert done.code == 0, said(done)
    node.wait_idle()
    mine = before.pop("p3")
    assert frontier.waiting() == before
    assert (sum(pages.item_hits().values()), frontier.counts()["done"]) == (mine, mine)
    (report,) = node.logs_dir.glob("_sdist/eight.*/*.json")
    assert json.loads(report.read_text("utf-8"))["finish_reason"] == "finished", "it saw that for itself"
    counted = run_cli(it, "frontier", "count", "eight", "--prefix", "p3", "--json").json()
    assert (counted["requests"]["waiting"], counted["requests"]["done"]) == (0, mine)


@pytest.mark.black_box
def test_a_limit_that_is_lowered_below_what_runs_starts_nothing_until_enough_have_ended(
    project: MakeProject, fleet: StartFleet, site: StartSite,
    start_cli: StartCommand
) -> None:  # fmt: skip
    """H34: four workers run and two may; the other three of seven slots wait, and nothing that runs is ended."""
    (node,), pages = fleet(1, max_proc=12, poll_interval=0.1, jobs_to_keep="100"), site(70)
    it = project(nodes=[node], settings={"START_URL": pages.start_url, **QUICK})
    frontier = Frontier(it)
    frontier.fill(articles(pages, 0, 70), slots=7, size=5, callback="parse_article")
    line = ("consume", "plain", "shop", "-o", "items.jl", "--max-running")

    def reports() -> list[dict[str, Any]]:
        return [json.loads(path.read_text("utf-8")) for path in node.logs_dir.glob("_sdist/shop.*/*.json")]

    with pages.paused():
        command = start_cli(it, *line, 4)
        wait_for(lambda: len(reports()) == 4, 60, "four workers")
        command.signal(signal.SIGKILL)
        command.wait()
        before = node.log.count("/daemonstatus.json")
        command = start_cli(it, *line, 2)
        wait_for(lambda: node.log.count("/daemonstatus.json") >= before + 5, 60, "looks of the next one")
        assert len(node.jobs("running")) == 4
        assert node.jobs("pending") == node.jobs("finished") == []
    done = command.wait()
    assert done.code == 0, said(done)
    assert pages.differences(it.items("items.jl")) == {}
    assert set(pages.item_hits().values()) == {1}
    ran = sorted((one["started"], one["updated"]) for one in reports())
    assert len(ran) == 7, "a worker for each slot"
    for at, (began, _) in enumerate(ran[4:], 4):
        assert sum(ended > began for _, ended in ran[:at]) < 2


@pytest.mark.black_box
def test_a_store_that_is_away_stops_neither_downloads_nor_the_job_and_nothing_leaves_it_too_early(
    project: MakeProject, node: ScrapydNode, site: StartSite,
    run_cli: RunCommand, tmp_path: Path
) -> None:  # fmt: skip
    """H18, H19: away until the worker has done all that it had; then it acks that, and goes on."""
    pages = site(60, "--latency=0.2")
    with closing(RedisServer(tmp_path / "redis")) as server:
        env = {"SDIST_STORE": server.url}
        settings = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_LEASE": 300}
        it = project(nodes=[node], settings={"START_URL": pages.start_url, **QUICK, **settings})
        frontier = Frontier(it, "away", store=server.url)
        frontier.fill(articles(pages, 0, 60), size=10, callback="parse_article")
        started = run_cli(it, "consume", "plain", "away", "--loop", 0, env=env)
        assert started.code == 0, said(started)
        wait_for(pages.item_hits, 60, "the first page")
        held = frontier.counts()
        assert (sum(held.values()), "done" in held) == (60, False), "what is leased is still there"

        server.kill()
        before = sum(pages.item_hits().values())
        (job,) = node.jobs("running")
        (report,) = node.logs_dir.glob(f"_sdist/*/{job['id']}.json")

        def all_done() -> bool:
            told = json.loads(report.read_text("utf-8"))
            return bool(told["batches"]["held"]) and told["done"] == told["requests"]

        wait_for(all_done, 60, "the end of what the worker has")
        made = sum(pages.item_hits().values())
        assert before < made < 60, "it went on with what it had, and with nothing else"
        assert [one["id"] for one in node.jobs("running")] == [job["id"]]

        server.start()
        wait_for(lambda: len(pages.item_hits()) == 60, 90, "the rest")
        node.wait_idle()
        acked = [one for one in frontier.attempts() if one.state is AttemptState.ACKED]
        assert (len(acked), frontier.counts()) == (6, {"running": 60}), "acked, and there until the items are home"
        done = run_cli(it, "consume", "plain", "away", "-o", "items.jl", env=env)
        assert done.code == 0, said(done)
        assert frontier.counts() == {"done": 60}
        assert pages.differences(it.items("items.jl")) == {}
        assert set(pages.item_hits().values()) == {1}


WHOLE = """
import scrapy

SHOWN = ("url", "method", "body", "encoding", "priority", "flags", "dont_filter", "cb_kwargs")


class Whole(scrapy.Spider):
    name = "whole"

    async def start(self):
        echo, mine = self.settings["SITE"] + "/echo", {"callback": self.page, "errback": self.lost}
        yield scrapy.Request(
            echo + "?n=0#part", method="PUT", body=bytes(range(256)), encoding="latin-1", priority=7, flags=["a", "b"],
            headers=[("X-Two", "1"), ("X-Two", "2"), ("Content-Type", "text/\\u00e9")], dont_filter=True,
            cookies={"sid": "abc", "lang": "\\u00e9"}, cb_kwargs={"told": {"deep": [1, (2, b"\\x00"), None, True]}},
            meta={"cookiejar": 1, "mine": {"set": (1, [b"two", {"$bytes": "x"}])}, "link_text": "\\u00fc"}, **mine)
        yield scrapy.Request(
            echo + "?n=1", cookies=[{"name": "a", "value": "b"}], priority=-3, meta={"cookiejar": 2}, **mine)
        yield scrapy.FormRequest(
            echo + "?n=2", formdata=[("a", "\\u00e9"), ("b", "2"), ("b", "3")], meta={"cookiejar": 3}, **mine)
        yield scrapy.http.JsonRequest(
            echo + "?n=3", data={"a": [1, None]}, headers={"User-Agent": "whole/1", "X-None": ""},
            cb_kwargs={"told": "text"}, meta={"cookiejar": 4}, **mine)
        yield scrapy.Request(
            self.settings["SITE"] + "/missing", cb_kwargs={"told": 5}, meta={"cookiejar": 5, "mine": b"lost"}, **mine)
        yield scrapy.Request(echo + "?n=6", callback=self.page, meta={"cookiejar": 6})

    def shown(self, request):
        meta = {name: request.meta[name] for name in sorted(request.meta) if name in {"mine", "link_text", "cookiejar"}}
        two = repr(request.headers.getlist("X-Two"))
        return {"meta": repr(meta), "two": two, **{name: repr(getattr(request, name)) for name in SHOWN}}

    def page(self, response, told=None):
        said = response.json()
        headers = {name: text for name, text in sorted(said["headers"].items()) if name not in {"host", "connection"}}
        yield {"told": repr(told), "came": [said["method"], said["target"], said["body"], headers],
               **self.shown(response.request)}

    def lost(self, failure):
        yield {"lost": failure.value.response.status, **self.shown(failure.request)}
"""


@pytest.mark.black_box
def test_a_request_that_went_through_a_frontier_is_the_one_that_plain_scrapy_makes(
    project: MakeProject, node: ScrapydNode, site: StartSite,
    run_cli: RunCommand, run_scrapy: RunCommand
) -> None:  # fmt: skip
    """H26: as the site sees it, and as its callback or errback does; nothing of it is lost."""
    pages = site(30)
    settings = {"ADDONS": ADDON, "SITE": pages.url, **QUICK}
    it = project(nodes=[node], spiders={"whole": WHOLE}, settings=settings)
    plain = run_scrapy(it, "crawl", "whole", "-s", "DISTRIBUTED_ENABLED=0", "-o", "plain.jl")
    assert plain.code == 0, said(plain)
    pages.reset()
    words = ("-s", "DISTRIBUTED_FRONTIER=whole", "-s", "DISTRIBUTED_TARGET_CALLBACKS=page")
    filled = run_scrapy(it, "crawl", "whole", *words)
    assert filled.code == 0, said(filled)
    assert pages.hits() == {}
    done = run_cli(it, "consume", "whole", "whole", "-o", "items.jl")
    assert done.code == 0, said(done)  # what is gone is no failure
    came, went = (sorted(it.items(name), key=lambda item: str(item["url"])) for name in ("items.jl", "plain.jl"))
    assert len(went) == 6
    assert sorted(item["priority"] for item in went) == ["-3", "0", "0", "0", "0", "7"]
    assert came == went


SAYING = """
import scrapy


class Saying(scrapy.Spider):
    name = "saying"

    def of_the_project(self, request):
        return request.replace(cb_kwargs={"who": "project"})

    def of_the_spider(self, request):
        return request.replace(cb_kwargs={"who": "spider"})

    def of_the_command(self, request):
        return request.replace(cb_kwargs={"who": "command"})

    def parse_article(self, response, who):
        yield {"who": who}


class Own(Saying):
    name = "own"
    custom_settings = {"DISTRIBUTED_REQUEST_HOOK": "of_the_spider"}
"""


@pytest.mark.black_box
def test_what_a_consumer_is_told_goes_before_its_spider_and_that_before_its_project(
    project: MakeProject, node: ScrapydNode, site: StartSite, run_cli: RunCommand
) -> None:
    """H28: one setting on three levels, as the workers on a node see it."""
    pages = site(30)
    settings = {"ADDONS": ADDON, "DISTRIBUTED_REQUEST_HOOK": "of_the_project", **QUICK}
    it = project(nodes=[node], spiders={"saying": SAYING}, settings=settings)
    command = ("-s", "DISTRIBUTED_REQUEST_HOOK=of_the_command")
    told: dict[str, list[object]] = {}
    for spider, words in (("saying", ()), ("own", ()), ("own", command)):
        name = f"level{len(told)}"
        Frontier(it, name).fill(articles(pages, 0, 1), callback="parse_article")
        done = run_cli(it, "consume", spider, name, *words, "-o", f"{name}.jl")
        assert done.code == 0, said(done)
        told[name] = [item["who"] for item in it.items(f"{name}.jl")]
    assert told == {"level0": ["project"], "level1": ["spider"], "level2": ["command"]}
