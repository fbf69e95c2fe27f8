"""The book's own ways: its middleware line, its settings, a batch typed by hand; and any Spider by callback or meta."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scrapyd_dist.middlewares
from rig.crawls import ADDON, QUICK, assert_each_page_once, crawls, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

import scrapyd_dist

#: as chapter 11 has it, with the names of today's package
MIDDLEWARE = {"SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    return module_site(90)


@pytest.fixture
def site_now(the_site: SiteProcess) -> SiteProcess:
    the_site.reset()
    return the_site


@pytest.fixture
def make(project: MakeProject, site_now: SiteProcess) -> Callable[..., Project]:
    """A project that crawls this module's site: `make(nodes, ADDONS=…)`."""

    def made(nodes: list[ScrapydNode], spiders: dict[str, str] | None = None, **settings: Any) -> Project:
        it = project(nodes=nodes, settings={"START_URL": site_now.start_url, **QUICK, **settings})
        for module, source in (spiders or {}).items():
            it.spider(module, source)
        return it

    return made


def test_the_middleware_line_of_the_book(
    make: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site_now: SiteProcess
) -> None:
    hosts = [f"127.0.0.1:{node.port}" for node in nodes_up]
    it = make([], **MIDDLEWARE, DISTRIBUTED_TARGET_RULE=1, DISTRIBUTED_TARGET_HOSTS=hosts)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert site_now.differences(it.items("items.jl")) == {}
    assert_each_page_once(site_now)


def _installed_copy(folder: Path) -> Path:
    """What `pip install` would put on a node: our packages, each at its place."""
    target = folder / "scrapyd_dist"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(scrapyd_dist.__file__).parent, target, ignore=ignore, dirs_exist_ok=True)
    wing = Path(scrapyd_dist.middlewares.__file__).parent
    shutil.copytree(wing, target / "middlewares", ignore=ignore, dirs_exist_ok=True)
    return folder


def _plain_egg(it: Project) -> bytes:
    """What scrapyd-deploy uploads: the project and nothing of ours."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as egg:
        for path in sorted(it.package.rglob("*.py")):
            egg.write(path, path.relative_to(it.path))
        egg.writestr("EGG-INFO/PKG-INFO", f"Metadata-Version: 1.1\nName: {it.name}\nVersion: 1.0\n")
        egg.writestr("EGG-INFO/entry_points.txt", f"[scrapy]\nsettings = {it.name}.settings\n")
    return data.getvalue()


@pytest.mark.black_box
@pytest.mark.parametrize("way", [MIDDLEWARE, {"ADDONS": ADDON}], ids=["middleware", "addon"])
def test_deployed_by_hand_with_the_package_installed_on_the_node(
    way: dict[str, Any],
    make: MakeProject,
    run_scrapy: RunCommand,
    fleet: StartFleet,
    site_now: SiteProcess,
    tmp_path: Path,
) -> None:
    nodes = fleet(1, env={"PYTHONPATH": str(_installed_copy(tmp_path / "installed"))})
    it = make(nodes, **way, DISTRIBUTED_DEPLOY="never")
    answer = nodes[0].add_version(it.name, "r1", _plain_egg(it))
    assert answer["status"] == "ok", answer
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert site_now.differences(it.items("items.jl")) == {}
    assert last_crawl(it).version == "r1"
    assert nodes[0].api("listversions.json", project=it.name)["versions"] == ["r1"], "nothing was uploaded"


@pytest.mark.black_box
def test_nothing_deployed_and_uploading_switched_off(
    make: MakeProject, run_scrapy: RunCommand, fleet: StartFleet
) -> None:
    nodes = fleet(1)
    it = make(nodes, ADDONS=ADDON, DISTRIBUTED_DEPLOY="never")
    done = run_scrapy(it, "crawl", "easy")
    assert done.code == 4, said(done)
    assert "sdist deploy-all" in done.err
    assert "Traceback" not in done.err
    assert nodes[0].api("listversions.json", project=it.name).get("versions", []) == []


def test_a_batch_typed_by_hand(make: MakeProject, run_scrapy: RunCommand, site_now: SiteProcess) -> None:
    it = make([], ADDONS=ADDON)
    batch = json.dumps([site_now.detail(12)])
    done = run_scrapy(it, "crawl", "easy", "-s", f"DISTRIBUTED_START_URLS={batch}", "-o", "one.jl")
    assert done.code == 0, said(done)
    assert [item["number"] for item in it.items("one.jl")] == ["12"]
    assert site_now.hits() == {site_now.site.detail_path(12): 1}, "one page, and no index page"
    assert crawls(it) == []


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("spider", "settings"),
    [
        ("easy", MIDDLEWARE),
        ("plain", {"ADDONS": ADDON, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"]}),
        ("plain", {**MIDDLEWARE, "DISTRIBUTED_TARGET_CALLBACKS": "parse_article"}),
    ],
)
def test_a_batch_typed_by_hand_in_other_projects(
    spider: str, settings: dict[str, Any], make: MakeProject, run_scrapy: RunCommand, site_now: SiteProcess
) -> None:
    it = make([], **settings)
    batch = json.dumps([site_now.detail(number) for number in (3, 4)])
    done = run_scrapy(it, "crawl", spider, "-s", f"DISTRIBUTED_START_URLS={batch}", "-o", "two.jl")
    assert done.code == 0, said(done)
    assert sorted(item["number"] for item in it.items("two.jl")) == ["3", "4"]
    assert sum(site_now.hits().values()) == 2


def test_any_spider_by_the_name_of_a_callback(
    make: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = make(nodes_up, ADDONS=ADDON, DISTRIBUTED_TARGET_CALLBACKS=["parse_article"])
    done = run_scrapy(it, "crawl", "plain", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert site_now.differences(it.items("items.jl")) == {}
    assert_each_page_once(site_now)
    assert last_crawl(it).summary["sealed"] == 90


@pytest.mark.black_box
def test_sent_and_forgotten(
    make: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site_now: SiteProcess, tmp_path: Path
) -> None:
    feed = f"{(tmp_path / 'shared').as_uri()}/%(batch)s.jl"
    it = make(nodes_up, ADDONS=ADDON, DISTRIBUTED_WAIT=False, DISTRIBUTED_TARGET_FEED_URL=feed)
    done = run_scrapy(it, "crawl", "easy")
    assert done.code == 0, said(done)
    assert "nothing waits for them" in done.err
    for node in nodes_up:
        node.wait_idle()
    lines = [line for path in (tmp_path / "shared").iterdir() for line in path.read_text().splitlines()]
    assert site_now.differences(map(json.loads, lines)) == {}
    assert_each_page_once(site_now)


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
def test_any_spider_by_request_meta(
    make: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = make(nodes_up, {"marked": MARKED}, ADDONS=ADDON, DISTRIBUTED_TARGET_BY_META=True)
    done = run_scrapy(it, "crawl", "marked", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert site_now.differences(it.items("items.jl")) == {}
    assert_each_page_once(site_now)
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
    make: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site_now: SiteProcess
) -> None:
    it = make(nodes_up, {"following": FOLLOWING}, ADDONS=ADDON, DISTRIBUTED_TARGET_RULE=1)
    done = run_scrapy(it, "crawl", "following", "-o", "items.jl")
    assert done.code == 0, said(done)
    items = list(it.items("items.jl"))
    assert site_now.differences(item for item in items if "number" in item) == {}
    assert_each_page_once(site_now)
    agents = [item["agent"] for item in items if "agent" in item]
    assert set(agents) == {f"Agent {number}" for number in range(50)}
