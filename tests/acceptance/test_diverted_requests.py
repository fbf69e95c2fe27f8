"""Which requests a producer diverts: by their callback, after the spider middlewares have had their say."""

from typing import Any

import pytest
from rig.crawls import ADDON, said
from rig.fixtures import MakeProject, RunCommand, StartSite

LEADING = """
import scrapy


class Leading(scrapy.Spider):
    name = "leading"
    allowed_domains = ["127.0.0.1"]

    async def start(self):
        site = self.settings["SITE"]
        yield scrapy.Request(site + "/properties/index_00000.html")
        yield scrapy.Request(site + "/properties/property_000000.html?start", self.parse_article)

    def parse(self, response):
        if "index_00001" not in response.url:
            yield response.follow("index_00001.html", self.parse)
        near, far = ("?near", "?far") if "index_00000" in response.url else ("?deep", "?deeper")
        yield response.follow("property_000001.html" + near, self.parse_article)
        yield response.follow("property_000002.html" + "x" * 90 + near, self.parse_article)
        yield scrapy.Request(f"http://elsewhere.test/{far}", self.parse_article)
        yield scrapy.Request(f"http://elsewhere.test/{far}", self.parse_article, meta={"allow_offsite": True})
        yield response.follow("property_000003.html" + near, self.parse_other)

    def parse_article(self, response):
        raise AssertionError("this is for the workers")

    def parse_other(self, response):
        yield {"other": response.url}
"""


@pytest.mark.black_box
def test_what_a_middleware_of_the_spider_takes_out_is_not_stored_and_a_start_request_is_taken_by_its_callback(
    project: MakeProject, run_scrapy: RunCommand, run_cli: RunCommand,
    site: StartSite
) -> None:  # fmt: skip
    """H21, H30: nothing of another site, nothing too deep or too long; by its callback, wherever it comes from."""
    pages = site(60)
    limits: dict[str, Any] = {"DEPTH_LIMIT": 1, "URLLENGTH_LIMIT": 100}
    it = project(spiders={"leading": LEADING}, settings={"ADDONS": ADDON, "SITE": pages.url, **limits})
    words = ("-s", "DISTRIBUTED_FRONTIER=shop", "-s", "DISTRIBUTED_TARGET_CALLBACKS=parse_article")
    done = run_scrapy(it, "crawl", "leading", *words, "-o", "own.jl")
    assert done.code == 0, said(done)
    dumped = run_cli(it, "frontier", "dump", "shop", "0", "--json").json()
    stored = sorted(one["url"] for batch in dumped["batches"] for one in batch["requests"])
    assert stored == sorted(["http://elsewhere.test/?far", pages.detail(0) + "?start", pages.detail(1) + "?near"]), (
        "what is marked so may lead away"
    )
    assert sorted(item["other"] for item in it.items("own.jl")) == [pages.detail(3) + "?near"]
    assert sorted(pages.hits()) == [
        pages.site.index_path(0), pages.site.index_path(1), pages.site.detail_path(3) + "?near",
    ]  # fmt: skip
