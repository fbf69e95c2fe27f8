"""Work for another spider: its settings, callbacks and pipelines act on what a page of the first one sends it."""

import json
from collections.abc import Callable

import pytest
from rig.crawls import ADDON, QUICK, last_crawl, misses, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode

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
            to = {"spider": "login", "callback": "enter"}
            meta = {"distribute": to, "kept": "yes"}
            yield scrapy.Request(response.url, cb_kwargs={"number": number}, meta=meta, priority=5)
        if number == 5:  # a copy of its own request, with all that a worker has put into that
            yield response.request.replace(url=response.url + "?copy", callback=self.parse_back)
        if number == 7:
            yield response.follow("?nobody", meta={"distribute": {"spider": "nobody"}})
        if number == 8:
            yield response.follow("?callback", meta={"distribute": {"spider": "login", "callback": "missing"}})

    def parse_back(self, response):
        yield {"back": response.url, "by": self.name}
"""

LOGIN = """
import scrapy


class Mark:
    def process_item(self, item, spider=None):  # Scrapy 2.13 names it, later ones do not
        return {**item, "marked": True}


class Login(scrapy.Spider):
    name = "login"
    custom_settings = {"ITEM_PIPELINES": {Mark: 1}, "USER_AGENT": "login"}

    async def start(self):
        raise AssertionError("a worker does not enter the spider's own start")
        yield

    def enter(self, response, number):
        agent = response.request.headers[b"User-Agent"].decode()
        yield {"entered": number, "kept": response.meta["kept"], "agent": agent}
        yield response.follow("?back", meta={"distribute": {"spider": "shop", "callback": "parse_back"}})
"""


TARGETS = ["parse_article", "parse_back"]


@pytest.mark.black_box
def test_a_chain_of_two_spiders_has_every_page_and_what_nobody_takes_is_listed(
    project: MakeProject, run_cli: RunCommand, fleet: StartFleet,
    site: StartSite
) -> None:  # fmt: skip
    the_site = site(30)
    it = project(
        nodes=fleet(2), spiders={"shop": SHOP, "login": LOGIN},
        settings={**QUICK, "ADDONS": ADDON, "SITE": the_site.url, "DISTRIBUTED_TARGET_CALLBACKS": TARGETS},
    )  # fmt: skip
    done = run_cli(it, "crawl", "shop", "--pull", "--batch-size", "5", "-o", "items.jl", "--json", timeout=240)
    items = list(it.items("items.jl"))
    assert sorted(item["article"] for item in items if "article" in item) == [the_site.detail(n) for n in range(30)]
    entered = [item for item in items if "entered" in item]
    assert sorted(item["entered"] for item in entered) == [0, 10, 20]
    assert all((item["kept"], item["agent"], item["marked"]) == ("yes", "login", True) for item in entered)
    back = [item for item in items if "back" in item]
    pages = [*(f"{the_site.detail(n)}?back" for n in (0, 10, 20)), f"{the_site.detail(5)}?copy"]
    assert sorted(item["back"] for item in back) == sorted(pages)
    assert all((item["by"], item.get("marked")) == ("shop", None) for item in back)
    lost = {miss["url"].rpartition("?")[2]: miss for miss in misses(it)}
    assert set(lost) == {"nobody", "callback"}
    assert "there is no spider 'nobody'" in lost["nobody"]["reason"]
    assert "no method 'missing'" in lost["callback"]["reason"]
    assert done.code == 3, said(done)
    assert json.loads(done.out)["state"] == last_crawl(it).summary["state"] == "finished"


@pytest.mark.black_box
def test_a_crawl_that_sends_its_batches_says_that_it_needs_workers_that_lease(
    project: MakeProject, run_cli: RunCommand, site: StartSite
) -> None:
    the_site = site(30)
    others = {"parse_article": "login"}
    it = project(
        spiders={"shop": SHOP, "login": LOGIN},
        settings={"ADDONS": ADDON, "SITE": the_site.url, "DISTRIBUTED_SPIDER_CALLBACKS": others},
    )
    done = run_cli(it, "crawl", "shop", "--json")
    assert done.code == 2, said(done)
    assert "DISTRIBUTED_SPIDER_CALLBACKS" in json.loads(done.out)["message"]
    assert "--pull" in json.loads(done.out)["message"]
    assert the_site.hits() == {}


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
"""


@pytest.mark.black_box
def test_in_a_crawl_that_sends_its_batches_what_no_worker_can_take_is_listed_alone(
    project: MakeProject, run_cli: RunCommand, scrapyd_node: Callable[..., ScrapydNode],
    site: StartSite
) -> None:  # fmt: skip
    """One request without a callback there, in a batch with thirty others, which all come home."""
    the_site = site(30)
    targets = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article", "parse_odd"], "DISTRIBUTED_TARGET_BY_META": True}
    it = project(
        nodes=[scrapyd_node(poll_interval=0.2)], spiders={"pushed": PUSHED, "login": LOGIN},
        settings={**QUICK, "ADDONS": ADDON, "SITE": the_site.url, **targets},
    )  # fmt: skip
    done = run_cli(it, "crawl", "pushed", "-o", "items.jl", "--json", env={"HERE": "1"})
    assert done.code == 3, said(done)
    assert sorted(item["article"] for item in it.items("items.jl")) == [the_site.detail(n) for n in range(30)]
    assert set(the_site.item_hits().values()) == {1}, "the batch was made again"
    lost = {miss["url"].rpartition("?")[2]: miss for miss in misses(it)}
    assert {name: miss["kind"] for name, miss in lost.items()} == {"login": "dead", "only-here": "dead"}
    assert "another spider (login), and only a crawl with --pull gives it to that one" in lost["login"]["reason"]
    assert "the spider pushed has no method 'parse_odd'" in lost["only-here"]["reason"]
    assert (done.json()["state"], done.json()["dead_urls"], last_crawl(it).summary["sealed"]) == ("finished", 1, 31)
