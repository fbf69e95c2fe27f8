"""What comes out of a frontier, by the site's own log: once, again, each time, and after a worker was killed."""

import json
from collections import Counter

import pytest
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.waiting import wait_for

FILL = ("-s", "DISTRIBUTED_FRONTIER=shop", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article")


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    nodes: list[ScrapydNode] = module_fleet(1, max_proc=4, poll_interval=0.2, jobs_to_keep="100")
    return nodes[0]


@pytest.mark.black_box
def test_a_page_is_fetched_once_though_it_is_added_again_and_again_when_its_slot_was_deleted(
    project: MakeProject, node: ScrapydNode, site: StartSite,
    run_cli: RunCommand
) -> None:  # fmt: skip
    pages = site(5)
    it = project(nodes=[node], settings={**QUICK, "START_URL": pages.start_url})
    slots = [{"frontier_slot_prefix": "p" if number < 3 else "q"} for number in range(5)]
    rows = [{"url": pages.detail(number), "meta": meta} for number, meta in enumerate(slots)]
    it.write("rows.jl", "\n".join(map(json.dumps, rows)))
    add = ("frontier", "add", "shop", "rows.jl", "--spider-callback", "parse_article", "--json")

    def consumed() -> Counter[int]:
        """The hits of all pages when nothing waits any more."""
        done = run_cli(it, "consume", "plain", "shop")
        assert done.code == 0, said(done)
        return pages.item_hits()

    assert run_cli(it, *add).json()["added"] == 5
    assert consumed() == Counter(range(5))
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (0, 5)
    assert run_cli(it, "frontier", "delete", "shop", "--prefix", "q", "--yes").code == 0
    again = run_cli(it, *add).json()
    assert (again["added"], again["duplicate"]) == (2, 3)
    assert consumed() == Counter([*range(5), 3, 4])


FINDER = """
import scrapy


class Finder(scrapy.Spider):
    name = "finder"

    async def start(self):
        yield scrapy.Request(self.settings["SITE"] + "/properties/index_00000.html")

    def parse(self, response):
        first, second, third, fourth, *_ = response.css('a[itemprop="url"]::attr(href)').getall()
        for query in ("?a=1&b=2", "?b=2&a=1", "?a=1&b=2#top"):
            yield response.follow(first + query, self.parse_article)
        for body in (b"q=1", b"q=2", b"q=1"):
            yield response.follow(first, self.parse_article, method="POST", body=body)
        for _ in range(2):
            yield response.follow(second, self.parse_article, dont_filter=True)
            yield response.follow(second, self.parse_article)
        for page in (third, fourth):
            yield response.follow(page, self.parse_article, meta={"frontier_fingerprint": "these two are one"})
        for number in (1, 2):
            yield response.follow(f"{fourth}?own={number}", self.parse_article, meta={"frontier_fingerprint": number})

    def parse_article(self, response):
        yield {"url": response.url, "pulled": bool(self.settings["DISTRIBUTED_PULL"])}
"""


@pytest.mark.black_box
def test_the_same_page_is_fetched_once_and_each_time_where_that_is_wanted(
    project: MakeProject, node: ScrapydNode, site: StartSite,
    run_scrapy: RunCommand, run_cli: RunCommand
) -> None:  # fmt: skip
    pages = site(10)
    it = project(nodes=[node], spiders={"finder": FINDER}, settings={**QUICK, "ADDONS": ADDON, "SITE": pages.url})
    filled = run_scrapy(it, "crawl", "finder", *FILL, "-o", "own.jl")
    assert filled.code == 0, said(filled)
    first, second, third, fourth = map(pages.site.detail_path, range(4))
    assert "its meta frontier_fingerprint is of the type int, and must be a str" in filled.err
    assert sorted(item["url"] for item in it.items("own.jl")) == [pages.url + fourth + f"?own={n}" for n in (1, 2)]
    pages.reset()
    done = run_cli(it, "consume", "finder", "shop", "-o", "items.jl")
    assert done.code == 0, said(done)
    hits = [(hit["method"], hit["target"]) for hit in pages.log() if not hit["target"].startswith("/__")]
    assert Counter(hits) == {
        ("GET", first + "?a=1&b=2"): 1, ("POST", first): 2, ("GET", second): 3, ("GET", third): 1,
    }  # fmt: skip
    assert all(item["pulled"] for item in it.items("items.jl"))


@pytest.mark.black_box
def test_a_worker_that_is_killed_in_the_middle_of_its_batch_leaves_no_page_out(
    project: MakeProject, node: ScrapydNode, site: StartSite,
    start_cli: StartCommand
) -> None:  # fmt: skip
    pages = site(40, "--latency=0.2")
    settings = {**QUICK, "START_URL": pages.start_url, "CONCURRENT_REQUESTS": 2}
    it = project(nodes=[node], settings=settings)
    frontier = Frontier(it)
    frontier.fill(map(pages.detail, range(40)), size=40, callback="parse_article")
    command = start_cli(it, "consume", "plain", "shop", "-o", "items.jl")
    wait_for(lambda: len(pages.item_hits()) >= 5, 60, "the first pages of the batch")
    assert node.kill_jobs()
    before = pages.item_hits()
    assert len(before) < 40, "it was killed too late"
    done = command.wait()
    assert done.code == 0, said(done)
    assert [attempt.number for attempt in frontier.attempts()] == [1, 2]
    assert pages.differences(it.items("items.jl")) == {}
    hits = pages.item_hits()
    assert set(hits) == set(range(40))
    assert {number: hits[number] for number in before} == dict.fromkeys(before, 2), "the batch is made again as a whole"


LINKS = """
import scrapy


class Links(scrapy.Spider):
    name = "links"

    async def start(self):
        for page in range(8):
            yield scrapy.Request(f"{self.settings['SITE']}/properties/index_{page:05d}.html")

    def parse(self, response):
        for number, link in enumerate(response.css('a[itemprop="url"]::attr(href)').getall()):
            own = {"frontier_slot_prefix": "q", "frontier_number_of_slots": 3} if number % 3 == 0 else {}
            yield response.follow(link, self.parse_article, meta=own)

    def parse_article(self, response): ...
"""


@pytest.mark.black_box
def test_a_producer_fills_as_many_slots_as_are_asked_for_and_none_else(
    project: MakeProject, site: StartSite,
    run_scrapy: RunCommand, run_cli: RunCommand
) -> None:  # fmt: skip
    pages = site(240)
    slots = {"DISTRIBUTED_SLOT_PREFIX": "p", "DISTRIBUTED_SLOTS": 8}
    it = project(spiders={"links": LINKS}, settings={"ADDONS": ADDON, "SITE": pages.url, **slots})
    filled = run_scrapy(it, "crawl", "links", *FILL)
    assert filled.code == 0, said(filled)
    listed = run_cli(it, "frontier", "list", "shop")
    assert listed.out.split() == [f"p{number}" for number in range(8)] + ["q0", "q1", "q2"]
    family = [json.loads(run_cli(it, "frontier", "count", "shop", "--prefix", p, "--json").out) for p in "pq"]
    assert [told["requests"]["waiting"] for told in family] == [160, 80]
    assert pages.item_hits() == {}
