"""Work for spiders of other projects, each by its own code; and pages that no worker can make, which are listed."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from rig.crawls import ADDON, QUICK, crawls, last_crawl, misses, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.redis import RedisServer

SHOP = """
import scrapy


class Shop(scrapy.Spider):
    name = "shop"

    async def start(self):
        yield scrapy.Request(f"{self.settings['SITE']}/properties/index_00000.html")

    def parse(self, response):
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)

    def parse_article(self, response):
        yield {"article": response.url}
        number = int(response.url[-8:-5])
        if number % 10 == 0:
            to = {"project": "bank", "spider": "login", "callback": "enter"}
            meta = {"distribute": to, "kept": "yes"}
            yield scrapy.Request(response.url, cookies={"who": "me"}, cb_kwargs={"number": number}, meta=meta)
        for name, to in self.settings["ASTRAY"].items():
            if number == 7:
                yield response.follow(f"?{name}", meta={"distribute": to})

    def parse_back(self, response, number):
        yield {"back": number, "by": self.name}
"""

LOGIN = """
import scrapy


class Mark:
    def process_item(self, item, spider=None):  # Scrapy 2.13 names it, later ones do not
        return {**item, "marked": True}


class Login(scrapy.Spider):
    name = "login"
    custom_settings = {"ITEM_PIPELINES": {Mark: 1}}

    async def start(self):
        raise AssertionError("a worker does not enter the spider's own start")
        yield

    def enter(self, response, number):
        headers = response.request.headers
        yield {
            "entered": number, "kept": response.meta["kept"], "cookie": headers[b"Cookie"].decode(),
            "agent": headers[b"User-Agent"].decode(), "bot": self.settings["BOT_NAME"],
        }
        to = {"project": "small", "spider": "shop", "callback": "parse_back"}
        yield response.follow("?back", cb_kwargs={"number": number}, meta={"distribute": to})
"""

#: its own start must not be entered; the second has workers that would not know that they are some
PLAIN = """
import scrapy


class Alone(scrapy.Spider):
    name = "alone"

    async def start(self):
        yield scrapy.Request(self.settings["SITE"] + "/properties/index_00000.html?alone")

    def parse(self, response):
        yield {"alone": response.url}
"""

HIDING = PLAIN.replace('name = "alone"', 'name = "hiding"\n    custom_settings = {"ADDONS": {}}')

ASTRAY = {
    "no-project": {"project": "nowhere", "spider": "login", "callback": "enter"},
    "no-spider": {"project": "bank", "spider": "nobody", "callback": "enter"},
    "no-callback": {"project": "bank", "spider": "login", "callback": "missing"},
    "no-worker": {"project": "plain", "spider": "alone", "callback": "parse"},
    "no-addon": {"project": "bank", "spider": "hiding", "callback": "parse"},
}


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, max_proc=4, poll_interval=0.2)


def shop(project: MakeProject, nodes: list[ScrapydNode], site: str, **settings: object) -> Project:
    """The project whose crawl it is."""
    usual = {
        **QUICK,
        "ADDONS": ADDON,
        "SITE": site,
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"],
        "ASTRAY": {},
    }
    made: Project = project(nodes=nodes, spiders={"shop": SHOP}, settings={**usual, **settings})
    return made


@pytest.mark.black_box
def test_a_chain_of_two_projects_comes_home_together_each_page_by_its_own_code(
    project: MakeProject, run_cli: RunCommand, pair: list[ScrapydNode],
    site: StartSite, tmp_path: Path
) -> None:  # fmt: skip
    """C14: the store has a password, each project its own key, and only one of the two nodes has the other project."""
    the_site = site(20)
    it = shop(project, pair, the_site.url)
    feeds = {str(tmp_path / "bank.jl"): {"format": "jsonlines"}}
    own = {**QUICK, "USER_AGENT": "bank", "FEEDS": feeds}
    bank = project(nodes=pair[1:], spiders={"login": LOGIN}, name="bank", settings=own)
    with closing(RedisServer(tmp_path / "redis")) as server:
        env = {"SDIST_STORE": server.url}
        run_cli(bank, "deploy", "--all", env=env, code=0)
        done = run_cli(
            it, "crawl", "shop", "--pull", "-s", "USER_AGENT=shop", "-o", "items.jl", env=env
        )
    assert done.code == 0, said(done)
    items = list(it.items("items.jl"))
    assert sorted(item["article"] for item in items if "article" in item) == [
        the_site.detail(n) for n in range(20)
    ]
    entered = [item for item in items if "entered" in item]
    assert sorted(item["entered"] for item in entered) == [0, 10]
    own = {"kept": "yes", "cookie": "who=me", "agent": "bank", "bot": "bank", "marked": True}
    assert all({name: item[name] for name in own} == own for item in entered)
    assert sorted(item["back"] for item in items if "back" in item) == [0, 10]
    assert all(item["by"] == "shop" and "marked" not in item for item in items if "back" in item)
    assert {row["project"] for row in pair[0].jobs()} == {"small"}
    pair[1].wait_idle()
    written = [json.loads(line) for line in (tmp_path / "bank.jl").read_text().splitlines()]
    assert sorted(item["entered"] for item in written) == [0, 10]


@pytest.mark.black_box
def test_what_no_node_can_have_done_is_listed_with_what_to_do_and_no_page_is_asked_for(
    project: MakeProject, run_cli: RunCommand, pair: list[ScrapydNode],
    site: StartSite
) -> None:  # fmt: skip
    the_site = site(10)
    it = shop(project, pair[:1], the_site.url, ASTRAY=ASTRAY)
    spiders = {"login": LOGIN, "hiding": HIDING}
    bank = project(
        nodes=pair[:1], spiders=spiders, name="bank", settings={**QUICK, "SITE": the_site.url}
    )
    run_cli(bank, "deploy", "--all", code=0)
    plain = project(
        nodes=pair[:1], spiders={"alone": PLAIN}, name="plain", settings={"SITE": the_site.url}
    )
    assert pair[0].add_version(plain.name, "r1", plain.plain_egg())["status"] == "ok", (
        "as any other tool would"
    )
    done = run_cli(it, "crawl", "shop", "--pull", "-o", "items.jl", "--json", code=3)
    assert done.json()["state"] == "finished"
    assert len([item for item in it.items("items.jl") if "article" in item]) == 10
    lost = {row["url"].rpartition("?")[2]: row for row in misses(it)}
    assert {name: row["kind"] for name, row in lost.items()} == dict.fromkeys(ASTRAY, "dead")
    assert "there is no project nowhere; deploy it there" in lost["no-project"]["reason"]
    assert "the project bank: spider 'nobody' not found" in lost["no-spider"]["reason"]
    assert "no method 'missing'" in lost["no-callback"]["reason"]
    assert "as if sdist had not deployed it" in lost["no-worker"]["reason"]
    assert "the custom_settings of the spider hiding set ADDONS" in lost["no-addon"]["reason"]
    assert [path for path in the_site.hits() if path.rpartition("?")[2] in {*ASTRAY, "alone"}] == []

    run_cli(plain, "deploy", "--all", code=0)
    run_cli(it, "retry", crawls(it)[0].id, code=3)
    assert [
        item["alone"].rpartition("?")[2] for item in it.items("items.jl") if "alone" in item
    ] == ["no-worker"]
    assert {row["url"].rpartition("?")[2] for row in misses(it)} == ASTRAY.keys() - {"no-worker"}


HANGING = """
import asyncio

import scrapy
from scrapyd_dist.middlewares import watchdog

watchdog.GRACE = watchdog.AFTER = 0.5


class Login(scrapy.Spider):
    name = "login"

    async def enter(self, response, number):
        await asyncio.sleep(3600)
        yield {}
"""


@pytest.mark.black_box
def test_a_job_of_another_project_that_hangs_is_ended_by_the_limit_of_the_crawl(
    project: MakeProject, run_cli: RunCommand, pair: list[ScrapydNode],
    site: StartSite
) -> None:  # fmt: skip
    the_site = site(10)
    it = shop(project, pair[:1], the_site.url, DISTRIBUTED_MAX_ATTEMPTS=1)
    bank = project(nodes=pair[:1], spiders={"login": HANGING}, name="bank", settings=QUICK)
    run_cli(bank, "deploy", "--all", code=0)
    run_cli(it, "crawl", "shop", "--pull", "--stall-timeout", "3s", "-o", "items.jl", code=3)
    assert len([item for item in it.items("items.jl") if "article" in item]) == 10
    (missed,) = misses(it)
    assert (missed["url"], missed["kind"]) == (the_site.detail(0), "dead")
    assert "stalled: no page and no item for more than 3 s" in missed["reason"], missed


PUSHED = """
import os

import scrapy


class Pushed(scrapy.Spider):
    name = "pushed"

    async def start(self):
        yield scrapy.Request(f"{self.settings['SITE']}/properties/index_00000.html")

    def parse(self, response):
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)
        yield response.follow("?login", meta={"distribute": {"spider": "login", "callback": "enter"}})
        yield response.follow("?only-here", self.parse_odd)

    def parse_article(self, response):
        yield {"article": response.url}

    if "HERE" in os.environ:
        def parse_odd(self, response):
            raise AssertionError("the nodes do not have it")


class Login(scrapy.Spider):
    name = "login"

    def enter(self, response):
        raise AssertionError("this crawl has no workers of this spider")
"""


@pytest.mark.black_box
def test_in_a_crawl_that_sends_its_batches_what_no_worker_can_take_is_listed_alone(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet, site: StartSite
) -> None:
    """One request without a callback there, in a batch with thirty others, which all come home."""
    the_site = site(30)
    targets = {
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article", "parse_odd"],
        "DISTRIBUTED_TARGET_BY_META": True,
    }
    settings = {**QUICK, "ADDONS": ADDON, "SITE": the_site.url, **targets}
    it = project(nodes=fleet(1, poll_interval=0.2), spiders={"pushed": PUSHED}, settings=settings)
    done = run_cli(it, "crawl", "pushed", "-o", "items.jl", "--json", env={"HERE": "1"}, code=3)
    assert sorted(item["article"] for item in it.items("items.jl")) == [
        the_site.detail(n) for n in range(30)
    ]
    assert set(the_site.item_hits().values()) == {1}, "the batch was made again"
    lost = {miss["url"].rpartition("?")[2]: miss for miss in misses(it)}
    assert {name: miss["kind"] for name, miss in lost.items()} == {
        "login": "dead",
        "only-here": "dead",
    }
    assert (
        "another spider (login), and only a crawl whose workers lease gives it to that one"
        in lost["login"]["reason"]
    )
    assert "the spider pushed has no method 'parse_odd'" in lost["only-here"]["reason"]
    assert (done.json()["state"], done.json()["dead_urls"], last_crawl(it).summary["sealed"]) == (
        "finished",
        1,
        31,
    )
