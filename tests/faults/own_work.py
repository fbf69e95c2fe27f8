"""A project whose own code asks for pages: its pipeline with each item, and its idle handler at the end, off a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: the name of the spider
SPIDER = "own"
#: who asks for a page more, and so brings an item more, of each property
EXTRA_KINDS = ("pipeline", "idle")

_SPIDER = '''
import scrapy
from scrapy.exceptions import DontCloseSpider

from properties.spiders.easy import EasySpider


class OwnSpider(EasySpider):
    """Its callbacks fill a list, and its idle handler asks for what stands there."""

    name = "own"
    rules = EasySpider.rules

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.later = []
        crawler.signals.connect(spider.ask_for_the_rest, scrapy.signals.spider_idle)
        return spider

    def ask_for_the_rest(self):
        if not self.later:
            return
        while self.later:
            self.crawler.engine.crawl(self.make_extra("idle", self.later.pop()))
        raise DontCloseSpider

    def parse_item(self, response):
        for item in super().parse_item(response):
            self.later.append(item["number"])
            yield item

    def make_extra(self, kind, number):
        url = self.crawler.settings["SITE_URL"] + f"/agents/agent_00.html?{kind}={number}"
        return scrapy.Request(url, self.parse_extra, cb_kwargs={"kind": kind, "number": number})

    def parse_extra(self, response, kind, number):
        yield {"extra": kind, "of": number}
'''

_PIPELINE = '''
class AskForMore:
    """Asks for a page with each property."""

    def __init__(self, crawler):
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_item(self, item):
        if "number" in item:
            self.crawler.engine.crawl(self.crawler.spider.make_extra("pipeline", item["number"]))
        return item
'''


def write_project(package: Path) -> None:
    """Add the spider and the pipeline to the demo project's package."""
    (package / "spiders" / "own.py").write_text(_SPIDER, encoding="utf-8")
    (package / "pipelines.py").write_text(_PIPELINE, encoding="utf-8")


def make_settings(site_url: str) -> dict[str, Any]:
    """Return the settings that the project needs besides those of a trial."""
    return {"SITE_URL": site_url, "ITEM_PIPELINES": {"properties.pipelines.AskForMore": 300}}


def split_items(
    items: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the items of detail pages, and those of the pages more."""
    rows = list(items)
    return [row for row in rows if "extra" not in row], [row for row in rows if "extra" in row]


def compare_extras(extras: Iterable[Mapping[str, Any]], numbers: Iterable[int]) -> tuple[int, int]:
    """Return how many items of the pages more are missing, and how many are too many.

    Args:
        extras: as `split_items` gives them.
        numbers: of the properties that can be scraped; each brings one extra of each kind.
    """
    expected = Counter((kind, str(number)) for number in numbers for kind in EXTRA_KINDS)
    found = Counter((str(row["extra"]), str(row["of"])) for row in extras)
    return (expected - found).total(), (found - expected).total()
