"""The book's own ways: its middleware line, its settings, a batch typed by hand; and any Spider by callback or meta."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scrapyd_dist.middlewares
from rig.crawls import ADDON, QUICK, assert_each_page_once, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

import scrapyd_dist

#: as chapter 11 has it, with the names of today's package
MIDDLEWARE = {"SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}
BY_CALLBACK = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"]}


@pytest.fixture
def make(project: MakeProject, site_now: SiteProcess) -> Callable[..., Project]:
    """A project that crawls this module's site: `make(nodes, ADDONS=…)`."""

    def made(
        nodes: list[ScrapydNode], spiders: dict[str, str] | None = None, **settings: Any
    ) -> Project:
        it = project(nodes=nodes, settings={"START_URL": site_now.start_url, **QUICK, **settings})
        for module, source in (spiders or {}).items():
            it.spider(module, source)
        return it

    return made


@pytest.mark.black_box
def test_the_middleware_line_of_the_book(
    make: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    hosts = [f"127.0.0.1:{node.port}" for node in pair]
    it = make([], **MIDDLEWARE, DISTRIBUTED_TARGET_RULE=1, DISTRIBUTED_TARGET_HOSTS=hosts)
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert_each_page_once(site_now, it.items("items.jl"))


def _installed_copy(folder: Path) -> Path:
    """What `pip install` would put on a node: our packages, each at its place."""
    for package, place in ((scrapyd_dist, ""), (scrapyd_dist.middlewares, "middlewares")):
        source, ignore = Path(package.__file__ or "").parent, shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / "scrapyd_dist" / place, ignore=ignore, dirs_exist_ok=True)
    return folder


@pytest.mark.black_box
def test_deployed_by_hand_with_the_package_installed_on_the_node(
    make: MakeProject,
    run_scrapy: RunCommand,
    fleet: StartFleet,
    site_now: SiteProcess,
    tmp_path: Path,
) -> None:
    nodes = fleet(1, env={"PYTHONPATH": str(_installed_copy(tmp_path / "installed"))})
    it = make(nodes, **MIDDLEWARE, DISTRIBUTED_DEPLOY="never")
    assert nodes[0].add_version(it.name, "r1", it.plain_egg())["status"] == "ok"
    run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert site_now.differences(it.items("items.jl")) == {}
    assert last_crawl(it).version == "r1"
    assert nodes[0].api("listversions.json", project=it.name)["versions"] == ["r1"], (
        "nothing was uploaded"
    )


@pytest.mark.parametrize(
    ("spider", "settings"),
    [
        ("easy", {"ADDONS": ADDON}),
        pytest.param("easy", MIDDLEWARE, marks=pytest.mark.black_box),
        pytest.param("plain", {"ADDONS": ADDON, **BY_CALLBACK}, marks=pytest.mark.black_box),
        pytest.param("plain", {**MIDDLEWARE, **BY_CALLBACK}, marks=pytest.mark.black_box),
    ],
)
def test_a_batch_typed_by_hand(
    spider: str,
    settings: dict[str, Any],
    make: MakeProject,
    run_scrapy: RunCommand,
    site_now: SiteProcess,
) -> None:
    it = make([], **settings)
    batch = json.dumps([site_now.detail(number) for number in (3, 4)])
    run_scrapy(it, "crawl", spider, "-s", f"DISTRIBUTED_START_URLS={batch}", "-o", "two.jl", code=0)
    assert sorted(item["number"] for item in it.items("two.jl")) == ["3", "4"]
    assert site_now.hits() == {site_now.site.detail_path(number): 1 for number in (3, 4)}, (
        "and no index page"
    )
    assert crawls(it) == []


MARKED = """
    import scrapy
    from properties.items import property_from
    from properties.spiders.starting import StartHere

    class Marked(StartHere, scrapy.Spider):
        name = "marked"

        def parse(self, response):
            for href in response.css("a[itemprop=url]::attr(href)").getall():
                yield response.follow(href, callback=self.page, meta={"distribute": True})
            for href in response.css("a.next::attr(href)").getall():
                yield response.follow(href)

        def page(self, response):
            yield property_from(response)
"""


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("spider", "settings"),
    [("plain", BY_CALLBACK), ("marked", {"DISTRIBUTED_TARGET_BY_META": True})],
)
def test_any_spider_by_the_name_of_a_callback_or_by_request_meta(
    spider: str, settings: dict[str, Any],
    make: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:  # fmt: skip
    it = make(pair, {"marked": MARKED}, ADDONS=ADDON, **settings)
    run_scrapy(it, "crawl", spider, "-o", "items.jl", code=0)
    assert_each_page_once(site_now, it.items("items.jl"))
    assert last_crawl(it).summary["sealed"] == 90


FOLLOWING = """
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule
    from properties.items import property_from
    from properties.spiders.starting import StartHere

    class Following(StartHere, CrawlSpider):
        name = "following"
        rules = (
            Rule(LinkExtractor(allow=r"index_\\d+\\.html")),
            Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), callback="page", follow=True),
        )

        def page(self, response):
            yield property_from(response)
            yield response.follow(response.css("a.agent::attr(href)").get(), self.agent)

        def agent(self, response):
            yield {"agent": response.css("h1.agent::text").get()}
"""


@pytest.mark.black_box
def test_a_worker_follows_no_rule_but_does_what_its_callback_asks(
    make: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = make(pair, {"following": FOLLOWING}, ADDONS=ADDON, DISTRIBUTED_TARGET_RULE=1)
    run_scrapy(it, "crawl", "following", "-o", "items.jl", code=0)
    items = list(it.items("items.jl"))
    assert_each_page_once(site_now, [item for item in items if "number" in item])
    agents = [item["agent"] for item in items if "agent" in item]
    assert set(agents) == {f"Agent {number}" for number in range(50)}


#: the rule of `scrapy genspider -t crawl`
STOCK = """
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule
    from properties.spiders.starting import StartHere

    class Stock(StartHere, CrawlSpider):
        name = "stock"
        rules = (Rule(LinkExtractor(allow=r"/properties/"), callback="parse_item", follow=True),)

        def parse_item(self, response):
            return {"url": response.url}
"""


@pytest.mark.black_box
def test_the_stock_template_is_taken_and_its_workers_follow_links(
    make: MakeProject,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
    pair: list[ScrapydNode],
    site_now: SiteProcess,
) -> None:
    it = make(pair, {"stock": STOCK}, ADDONS=ADDON, DISTRIBUTED_MODE="auto")
    run_scrapy(it, "crawl", "stock", "-s", "DISTRIBUTED_ENABLED=0", "-O", "plain.jl", code=0)
    pages = {path: n for path, n in site_now.hits().items() if path.startswith("/properties/")}
    assert len(pages) > 90
    site_now.reset()
    done = run_scrapy(it, "crawl", "stock", "-O", "items.jl", code=0)
    assert "no target is named, so to the nodes go all requests of the rules of stock" in done.err
    plain, items = (
        sorted(item["url"] for item in it.items(name)) for name in ("plain.jl", "items.jl")
    )
    assert items == plain
    assert {
        path: n for path, n in site_now.hits().items() if path.startswith("/properties/")
    } == pages
    assert "stock-TIME.jl" in run_cli(it, "plan", "stock", code=0).out
    assert "Items: standard output" in run_cli(it, "plan", "stock", "-o", "-", code=0).out
    refused = run_cli(it, "plan", "stock", "--push", code=2)
    assert "--rule N" in refused.err
