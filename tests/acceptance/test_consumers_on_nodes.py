"""Consumers as jobs on real nodes: where they stop, what they leave, their store away, and what comes back whole."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rig.consumers import ConsumerBench
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.redis import PASSWORD, RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

MakeBench = Callable[..., ConsumerBench]


@pytest.mark.black_box
def test_a_worker_ends_after_exactly_its_batches_and_within_the_batch_of_its_last_request(
    bench: MakeBench,
) -> None:
    """H15, H16: small batches are leased many at a time, and no more than are allowed."""
    it = bench(items=360, fill=False)
    single, large = Frontier(it.it, "single"), Frontier(it.it, "large")
    single.fill(it.pages(range(60)), size=1, callback="parse_article")
    large.fill(it.pages(range(60, 360)), size=100, callback="parse_article")
    for name, limit in (("single", ("--max-batches", 50)), ("large", ("--max-requests", 150))):
        it.consume("--loop", 0, *limit, name=name, code=0)
    it.nodes[0].wait_idle()
    assert single.waiting() == {"p0": 10}
    assert len(single.attempts()) == len({one.batch for one in single.attempts()}) == 50
    assert large.waiting() == {"p0": 100}
    hits = it.site.item_hits()
    assert sum(1 for number in hits if number < 60) == 50
    assert sum(1 for number in hits if number >= 60) == 200, (
        "to the end of the batch that reaches the limit"
    )
    assert set(hits.values()) == {1}


@pytest.mark.black_box
def test_the_consumer_of_one_slot_empties_that_one_and_ends(bench: MakeBench) -> None:
    """H14, H20: one of eight slots; what waits elsewhere is nothing to wait for."""
    it = bench(items=160, slots=8, size=10)
    before = dict(it.frontier.waiting())
    assert sorted(before) == [f"p{number}" for number in range(8)]
    earlier = set(it.nodes[0].logs_dir.glob("_sdist/*/*.json"))
    it.consume("--prefix", "p3", code=0)
    it.nodes[0].wait_idle()
    mine = before.pop("p3")
    assert it.frontier.waiting() == before
    assert (sum(it.site.item_hits().values()), it.done()) == (mine, mine)
    (report,) = set(it.nodes[0].logs_dir.glob("_sdist/*/*.json")) - earlier
    assert json.loads(report.read_text("utf-8"))["finish_reason"] == "finished", (
        "it saw that for itself"
    )
    counted = it.run("frontier", "count", it.name, "--prefix", "p3", "--json").json()
    assert (counted["requests"]["waiting"], counted["requests"]["done"]) == (0, mine)


@pytest.mark.black_box
def test_a_store_that_is_away_stops_neither_downloads_nor_the_job_and_nothing_leaves_it_too_early(
    bench: MakeBench, tmp_path: Path
) -> None:
    """H18, H19: away until the worker has done all that it had; then it acks that, and goes on."""
    with closing(RedisServer(tmp_path / "redis")) as server:
        env = {"SDIST_STORE": server.url}
        settings = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_LEASE": 300}
        it = bench(slots=1, size=10, latency=0.2, store=server.url, **settings)
        (node,), pages, frontier = it.nodes, it.site, it.frontier
        it.consume("--loop", 0, env=env, code=0)
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
        assert (len(acked), frontier.counts()) == (6, {"running": 60}), (
            "acked, and there until the items are home"
        )
        it.consume("-o", "items.jl", env=env, code=0)
        assert frontier.counts() == {"done": 60}
        it.assert_all_home()
        assert set(pages.item_hits().values()) == {1}


WHOLE = """
import scrapy

SHOWN = ("url", "method", "body", "encoding", "priority", "flags", "dont_filter", "cb_kwargs")


class Whole(scrapy.Spider):
    name = "whole"
    token = None

    async def start(self):
        self.token = "the producer's"
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
        return {"meta": repr(meta), "two": two, "token": self.token,
                **{name: repr(getattr(request, name)) for name in SHOWN}}

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
    project: MakeProject, consumer_nodes: list[ScrapydNode], site: StartSite,
    run_cli: RunCommand, run_scrapy: RunCommand
) -> None:  # fmt: skip
    """H25, H26: as the site, its callback or errback see it; with an attribute of the producer's spider."""
    pages = site(30)
    settings = {
        "ADDONS": ADDON,
        "SITE": pages.url,
        "DISTRIBUTED_SPIDER_ATTRIBUTES": ["token"],
        **QUICK,
    }
    it = project(nodes=consumer_nodes[:1], spiders={"whole": WHOLE}, settings=settings)
    run_scrapy(it, "crawl", "whole", "-s", "DISTRIBUTED_ENABLED=0", "-o", "plain.jl", code=0)
    pages.reset()
    words = ("-s", "DISTRIBUTED_FRONTIER=whole", "-s", "DISTRIBUTED_TARGET_CALLBACKS=page")
    run_scrapy(it, "crawl", "whole", *words, code=0)
    assert pages.hits() == {}
    done = run_cli(it, "frontier", "consume", "whole", "whole", "-o", "items.jl")
    assert done.code == 0, said(done)  # what is gone is no failure
    came, went = (
        sorted(it.items(name), key=lambda item: str(item["url"]))
        for name in ("items.jl", "plain.jl")
    )
    assert len(went) == 6
    assert sorted(item["priority"] for item in went) == ["-3", "0", "0", "0", "0", "7"]
    assert came == went


@pytest.mark.black_box
def test_a_worker_that_is_killed_in_the_middle_of_its_batch_leaves_no_page_out(
    bench: MakeBench,
) -> None:
    it = bench(items=40, slots=1, size=40, latency=0.2, CONCURRENT_REQUESTS=2)
    command = it.start("-o", "items.jl")
    wait_for(lambda: len(it.site.item_hits()) >= 5, 60, "the first pages of the batch")
    assert it.nodes[0].kill_jobs()
    before = it.site.item_hits()
    assert len(before) < 40, "it was killed too late"
    command.wait(code=0)
    assert [attempt.number for attempt in it.frontier.attempts()] == [1, 2]
    it.assert_all_home()
    hits = it.site.item_hits()
    assert set(hits) == set(range(40))
    assert {number: hits[number] for number in before} == dict.fromkeys(before, 2), (
        "the batch is made again as a whole"
    )


@pytest.mark.black_box
def test_a_manager_and_workers_that_the_store_does_not_let_in_fail_and_leave_the_frontier_as_it_was(
    project: MakeProject, scrapyd_node: Callable[..., ScrapydNode], site: StartSite, run_cli: RunCommand,
    tmp_path: Path,
) -> None:  # fmt: skip
    pages = site(5)
    with closing(RedisServer(tmp_path / "redis")) as server:
        wrong = server.url.replace("p%3Ass", "wrong")
        barred = scrapyd_node(poll_interval=0.2, env={"SDIST_STORE": wrong})
        it = project(nodes=[barred], settings={**QUICK, "START_URL": pages.start_url})
        frontier = Frontier(it, store=server.url)
        frontier.fill(map(pages.detail, range(5)), callback="parse_article")
        without = {"SDIST_STORE": f"redis://127.0.0.1:{server.port}/0"}
        run_cli(it, "frontier", "consume", "plain", "shop", env=without, code=6)
        inside = run_cli(
            it, "frontier", "consume", "plain", "shop", env={"SDIST_STORE": server.url}, code=1
        )
        assert "No node takes the work" in inside.err
        assert "invalid username-password pair or user is disabled.\n" in inside.err
        assert not any(
            secret in inside.out + inside.err for secret in (PASSWORD, "p%3Ass", "wrong%2Fw")
        )
        assert frontier.counts() == {"sealed": 5}
    assert pages.hits() == {}
    locked = scrapyd_node(username="me", password="right")
    it.targets(
        [],
        f"[deploy:one]\nurl = {locked.url}\nproject = properties\nusername = me\npassword = not-this\n",
    )
    own = Frontier(it)
    own.fill(["http://127.0.0.1:1/"], callback="parse_article")
    refused = run_cli(it, "frontier", "consume", "plain", "shop", code=6)
    assert "not-this" not in refused.out + refused.err
    assert (own.counts(), locked.jobs()) == ({"sealed": 1}, [])
