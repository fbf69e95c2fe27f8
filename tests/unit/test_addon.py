"""What the add-on does where settings are applied before there is a spider, as by `scrapy.utils.test.get_crawler`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from scrapy import Spider, signals
from scrapy.core.spidermw import SpiderMiddlewareManager
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import PROFILE_SETTINGS, USUAL, Addon
from scrapyd_dist.middlewares.assignment import PROBE
from scrapyd_dist.middlewares.producer.early_capture import EarlyCapture
from scrapyd_dist.middlewares.producer.producer import Producer

ADDON = {"ADDONS": {"scrapyd_dist.Addon": 500}}
ALONE = {"SPIDER_MIDDLEWARES": {"scrapyd_dist.Distributed": 100}}
#: set by the profile of a crawl that is spread, and by no project here
PROFILED = "CONCURRENT_ITEMS"


class Notes(Spider):
    name = "notes"
    start_urls = ["data:,one", "data:,two"]  # noqa: RUF012 - as spiders have it

    def parse(self, response: Response) -> Iterator[dict[str, str]]:
        yield {"page": response.url}


class Late(CrawlSpider):
    """Its class says nothing of a target."""

    name = "late"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rules = (Rule(LinkExtractor(), callback="parse_page"),)
        super().__init__(*args, **kwargs)

    def parse_page(self, response: Response) -> None: ...


class Named(Notes):
    name = "named"
    custom_settings = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse"]}  # noqa: RUF012 - as spiders have it


class Misspelt(Notes):
    name = "misspelt"
    custom_settings = {"DISTRIBUTED_TARGET_CALLBACKS": ["prase"]}  # noqa: RUF012 - as spiders have it


def applied(spider: type[Spider], folder: Path, **more: Any) -> Crawler:
    """A crawler whose settings are applied, and that has no spider."""
    feeds = {str(folder / "items.jl"): {"format": "jsonlines"}}
    return get_crawler(spider, {"FEEDS": feeds, "JOBDIR": str(folder / "job"), **more})


def middlewares_of(crawler: Crawler) -> list[type]:
    """The spider middlewares that the crawler makes when it starts, and has its spider."""
    crawler.spider = crawler._create_spider()
    return [type(one) for one in SpiderMiddlewareManager.from_crawler(crawler).middlewares]


@pytest.mark.parametrize("how", [ADDON, ALONE], ids=["add-on", "middleware alone"])
def test_a_crawl_without_a_target_is_left_to_scrapy_as_it_is(
    how: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crawler = applied(Notes, tmp_path, **how)
    settings, feeds = crawler.settings, crawler.get_extension(FeedExporter)
    before = {name: settings[name] for name in ("FEEDS", "JOBDIR", PROFILED)}
    assert Producer not in middlewares_of(crawler)
    assert {name: settings[name] for name in before} == before
    assert crawler.settings is settings, "components may have it"
    assert settings.frozen
    assert feeds is not None
    assert crawler.get_extension(FeedExporter) is feeds
    assert [text for text in caplog.messages if text.startswith("This crawl is not distributed")]


@pytest_twisted.ensureDeferred
async def test_such_a_crawl_brings_its_items(tmp_path: Path) -> None:
    items = list[Any]()

    def take(item: Any) -> None:
        items.append(item["page"])

    crawler = applied(Notes, tmp_path, **ADDON)
    crawler.signals.connect(take, signals.item_scraped)
    await crawler.crawl()
    assert sorted(items) == sorted(Notes.start_urls)
    assert len((tmp_path / "items.jl").read_text().splitlines()) == len(items)
    assert crawler.stats is not None
    assert crawler.stats.get_value("finish_reason") == "finished"


@pytest.mark.parametrize("how", [ADDON, ALONE], ids=["add-on", "middleware alone"])
@pytest.mark.parametrize("spider", [Late, Named, Misspelt])
def test_one_with_a_target_is_spread_by_what_its_spider_says_and_a_wrong_one_is_refused(
    spider: type[Spider], how: dict[str, Any], tmp_path: Path
) -> None:
    crawler = applied(spider, tmp_path, **how)
    assert Producer in middlewares_of(crawler)
    settings = crawler.settings
    assert settings.getdict("FEEDS") == {}, "the merged output is written there"
    assert [one["path"] for one in settings["DISTRIBUTED_OUTPUTS"]] == [str(tmp_path / "items.jl")]
    assert settings["JOBDIR"] is None
    assert settings[PROFILED] == PROFILE_SETTINGS[USUAL][PROFILED]
    assert crawler.spider is not None
    assert crawler.spider.settings is settings
    assert crawler.get_extension(FeedExporter) is None


@pytest.mark.parametrize("asked", ["DISTRIBUTED_CRAWL", "DISTRIBUTED_FRONTIER"])
def test_one_that_was_asked_for_by_its_name_does_not_wait_for_its_spider(
    asked: str, tmp_path: Path
) -> None:
    crawler = applied(Notes, tmp_path, **ADDON, **{asked: "one"})
    assert crawler.settings[PROFILED] == PROFILE_SETTINGS[USUAL][PROFILED]
    assert len(middlewares_of(crawler)) > len(middlewares_of(applied(Notes, tmp_path)))


@pytest.mark.parametrize("how", [ADDON, ALONE], ids=["add-on", "middleware alone"])
def test_a_crawler_without_a_spider_spreads_nothing(how: dict[str, Any], tmp_path: Path) -> None:
    crawler = applied(Notes, tmp_path, **how)
    assert Producer not in [
        type(one) for one in SpiderMiddlewareManager.from_crawler(crawler).middlewares
    ]
    assert crawler.settings["FEEDS"]


@pytest.mark.parametrize(("more", "is_in"), [({}, True), ({PROBE: 3}, False)])
def test_a_probe_gets_each_request_where_it_sorts_them(more: dict[str, Any], is_in: bool) -> None:
    settings = Settings(more)
    Addon().update_settings(settings)
    assert (EarlyCapture in settings["SPIDER_MIDDLEWARES"]) is is_in
