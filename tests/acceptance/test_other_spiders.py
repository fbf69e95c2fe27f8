"""A crawl that sends its batches, and a page that no worker of its spider can make."""

import pytest
from rig.crawls import ADDON, QUICK, last_crawl, misses
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

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
    targets = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article", "parse_odd"], "DISTRIBUTED_TARGET_BY_META": True}
    settings = {**QUICK, "ADDONS": ADDON, "SITE": the_site.url, **targets}
    it = project(nodes=fleet(1, poll_interval=0.2), spiders={"pushed": PUSHED}, settings=settings)
    done = run_cli(it, "crawl", "pushed", "-o", "items.jl", "--json", env={"HERE": "1"}, code=3)
    assert sorted(item["article"] for item in it.items("items.jl")) == [the_site.detail(n) for n in range(30)]
    assert set(the_site.item_hits().values()) == {1}, "the batch was made again"
    lost = {miss["url"].rpartition("?")[2]: miss for miss in misses(it)}
    assert {name: miss["kind"] for name, miss in lost.items()} == {"login": "dead", "only-here": "dead"}
    assert "another spider (login), and only a crawl with --pull gives it to that one" in lost["login"]["reason"]
    assert "the spider pushed has no method 'parse_odd'" in lost["only-here"]["reason"]
    assert (done.json()["state"], done.json()["dead_urls"], last_crawl(it).summary["sealed"]) == ("finished", 1, 31)
