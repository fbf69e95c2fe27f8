"""What hears of items where Scrapy's exporter does is called between the same receivers."""

from typing import Any

import pytest
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import _make_feeds_again
from scrapyd_dist.middlewares.feed_place import connect_at_feeds

called: list[str] = []


class Listening:
    """Notes that it was called."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        extension = cls()
        crawler.signals.connect(extension.item_scraped, signals.item_scraped)
        return extension

    def item_scraped(self) -> None:
        called.append(type(self).__name__)


class Early(Listening): ...


class Late(Listening): ...


class Renaming(FeedExporter):
    def item_scraped(self, item: Any, spider: Any) -> None:
        called.append("feeds")


class Hearing(Spider):
    name = "hearing"

    def heard(self) -> None:
        called.append("spider")


EXTENSIONS: dict[Any, int] = {Early: -1, Late: 0}
SCRAPYS = "scrapy.extensions.feedexport.FeedExporter"
RENAMED: dict[Any, int | None] = {SCRAPYS: None, Early: 10, Renaming: 20, Late: 30}
MOVED: dict[Any, int] = {SCRAPYS: 5, Late: 6, Early: 4}


def heard(crawler: Crawler) -> list[str]:
    called.clear()
    crawler.signals.send_catch_log(signals.item_scraped, item={}, spider=None)
    return list(called)


@pytest.mark.parametrize(
    "extensions",
    [
        EXTENSIONS,
        RENAMED,
        {**EXTENSIONS, "scrapy.extensions.corestats.CoreStats": None},
        MOVED,
    ],
    ids=["Scrapy's exporter", "one of the project's", "no CoreStats", "another order"],
)
def test_it_is_called_between_those_before_and_those_behind_the_exporter(
    extensions: dict[Any, Any],
) -> None:
    crawler = get_crawler(Hearing, {"EXTENSIONS": extensions})

    def capture() -> None:
        called.append("capture")

    def behind() -> None:
        called.append("behind")

    crawler.signals.connect(behind, signals.item_scraped)
    connect_at_feeds(crawler, capture)
    assert heard(crawler) == ["Early", "capture", "Late", "behind"]


def test_what_the_spider_has_connected_comes_before() -> None:
    crawler = get_crawler(Hearing, {"EXTENSIONS": {"scrapy.extensions.corestats.CoreStats": None}})
    crawler.spider = Hearing.from_crawler(crawler)
    crawler.signals.connect(crawler.spider.heard, signals.item_scraped)

    def capture() -> None:
        called.append("capture")

    connect_at_feeds(crawler, capture)
    assert heard(crawler) == ["spider", "capture"]


def test_an_exporter_that_is_made_again_is_called_at_its_place() -> None:
    feeds = {"FEEDS": {"stdout:": {"format": "jsonlines"}}}
    crawler = get_crawler(Hearing, {"EXTENSIONS": RENAMED, **feeds})
    assert heard(crawler) == ["Early", "feeds", "Late"]
    _make_feeds_again(crawler)
    assert heard(crawler) == ["Early", "feeds", "Late"]
