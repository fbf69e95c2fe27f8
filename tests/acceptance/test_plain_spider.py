"""A plain Spider whose code says nothing of nodes: a callback named in the settings is all it takes to spread it."""

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

NEWS = """
import os

import scrapy


class News(scrapy.Spider):
    name = "news"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        yield {"index": response.url, "pid": os.getpid()}
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)
        for link in response.css("a.next::attr(href), .next a::attr(href)").getall():
            yield response.follow(link)

    def parse_article(self, response):
        yield {"article": response.url, "pid": os.getpid()}
"""


@pytest.mark.black_box
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_plain_spider_is_spread_by_the_name_of_its_callback_in_the_settings(
    mode: str, project: MakeProject, run_scrapy: RunCommand,
    module_fleet: StartFleet, site: StartSite
) -> None:  # fmt: skip
    """L12: `scrapy crawl` as ever; the article pages are asked for by jobs of the nodes, the index pages are not."""
    the_site = site(60)
    settings = {
        **QUICK, "ADDONS": ADDON, "START_URL": the_site.start_url, "DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"],
        "DISTRIBUTED_MODE": mode,
    }  # fmt: skip
    it = project(nodes=module_fleet(1, max_proc=3, poll_interval=0.2), spiders={"news": NEWS}, settings=settings)
    done = run_scrapy(it, "crawl", "news", "-o", "items.jl")
    assert done.code == 0, said(done)
    items = list(it.items("items.jl"))
    assert sorted(item["article"] for item in items if "article" in item) == [the_site.detail(n) for n in range(60)]
    producers = {item["pid"] for item in items if "index" in item}
    assert len(producers) == 1
    assert producers.isdisjoint({item["pid"] for item in items if "article" in item})
    assert_each_page_once(the_site)
    assert last_crawl(it).summary["sealed"] == 60
