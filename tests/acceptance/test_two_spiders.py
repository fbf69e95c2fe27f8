"""Two spiders share the work by settings alone, one fills and one crawls; and nodes from which nobody could crawl."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rig.crawls import ADDON, QUICK, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode

PRODUCER = """\
import scrapy


class Links(scrapy.Spider):
    name = "links"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        yield {"index": response.url}
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)

    def parse_article(self, response):
        raise AssertionError("it is the other spider's")
"""
CONSUMER = """\
import scrapy


class Articles(scrapy.Spider):
    name = "articles"

    async def start(self):
        raise AssertionError("a worker does not enter it")
        yield

    def parse_article(self, response):
        yield {"url": response.url}
"""


@pytest.mark.black_box
def test_one_spider_fills_and_makes_no_hit_and_another_makes_them_all(
    project: MakeProject,
    scrapyd_node: Callable[..., ScrapydNode],
    site: StartSite,
    run_scrapy: RunCommand,
    run_cli: RunCommand,
) -> None:
    """H21: the callbacks' names are all that the two have in common."""
    pages = site(30, per_page=30)
    settings = {**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url}
    it = project(nodes=[scrapyd_node(poll_interval=0.2)], settings=settings)
    it.spider("links", PRODUCER)
    it.spider("articles", CONSUMER)
    words = ("-s", "DISTRIBUTED_FRONTIER=shop", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article")
    filled = run_scrapy(it, "crawl", "links", *words, "-o", "index.jl")
    assert filled.code == 0, said(filled)
    assert (pages.item_hits(), len(list(it.items("index.jl")))) == ({}, 1)
    done = run_cli(it, "consume", "articles", "shop", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert sorted(item["url"] for item in it.items("items.jl")) == sorted(map(pages.detail, range(30)))
    assert set(pages.item_hits().values()) == {1}


@pytest.mark.black_box
def test_where_no_worker_finds_the_store_the_crawl_says_so_and_can_begin_when_that_is_mended(
    project: MakeProject, scrapyd_node: Callable[..., ScrapydNode], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    """A container with its own disk: its address is this machine's, and only a worker there finds out."""
    pages = site(20, per_page=20)
    elsewhere = scrapyd_node(poll_interval=0.2, env={"SDIST_STORE": str(tmp_path / "not-here.db")})
    it = project(nodes=[elsewhere], settings={**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url})
    done = run_cli(it, "crawl", "easy", "--pull", "--workers", 2, "-o", "items.jl")
    assert done.code == 2, said(done)
    assert "there is no file" in done.out + done.err
    assert pages.item_hits() == {}
    row = last_crawl(it)
    assert (row.state.value, row.exit_code) == ("stopped", 2)
    it.targets([scrapyd_node(poll_interval=0.2)])
    again = run_cli(it, "resume", row.id)
    assert again.code == 0, said(again)
    assert pages.differences(it.items("items.jl")) == {}
