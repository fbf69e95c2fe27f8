"""The same work with scrapy-redis: one spider walks the index into a Redis list, several others take from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bound import shard_starts

if TYPE_CHECKING:
    from pathlib import Path

    from rig.sites import SiteProcess

#: spiders on top of the demo project's own: same links, same callback, same settings. Where scrapy-redis would lose its
#: five seconds between two looks (at the beginning, and at the end), these are kinder than it is.
SPIDERS = '''
"""What the benchmark compares with: needs scrapy-redis."""

import asyncio
import json

import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from scrapy_redis import connection
from scrapy_redis.spiders import RedisSpider

from properties.items import property_from

KEY, DONE = "details", "index:done"


class RedisIndexSpider(CrawlSpider):
    """Walks the index from the pages in `-a starts=FILE`, and puts the detail URLs into the list."""

    name = "redis_index"
    rules = (Rule(LinkExtractor(restrict_css="a.next"), callback="put", follow=True, process_links="of_this_shard"),)
    details = LinkExtractor(restrict_xpaths='//a[@itemprop="url"]')

    async def start(self):
        with open(self.starts, encoding="utf-8") as file:
            self.shard_starts = set(file.read().split())
        self.server = connection.from_settings(self.settings)
        for url in self.shard_starts:
            yield scrapy.Request(url)

    def parse_start_url(self, response):
        return self.put(response)

    def put(self, response):
        links = self.details.extract_links(response)
        if links:
            self.server.rpush(KEY, *(json.dumps({"url": link.url}) for link in links))

    def of_this_shard(self, links):
        return [link for link in links if link.url not in self.shard_starts]

    def closed(self, reason):
        self.server.set(DONE, reason)


class RedisDetailsSpider(RedisSpider):
    """Takes detail URLs from the list until the index is done and the list is empty."""

    name = "redis_details"
    redis_key = KEY

    async def start(self):
        while not self.count_size(KEY) and not self.server.exists(DONE):
            await asyncio.sleep(0.05)
        for request in self.next_requests():
            yield request

    def parse(self, response):
        yield property_from(response)

    def spider_idle(self):
        if not self.server.exists(DONE) or self.count_size(KEY):
            super().spider_idle()
'''


def commands(
    folder: Path, site: SiteProcess, shards: int, workers: int, url: str
) -> list[list[str]]:
    """The arguments of `scrapy crawl`, one list per process: the index first, then the workers.

    Args:
        folder: for the list of start pages; made here.
        site: what is crawled.
        shards: walks that share the index.
        workers: how many processes take from the list.
        url: of the Redis server.
    """
    folder.mkdir()
    starts = folder / "starts.txt"
    starts.write_text(
        "\n".join(site.index(page) for page in shard_starts(site.site.pages, shards)),
        encoding="utf-8",
    )
    where = ["-s", f"REDIS_URL={url}"]
    return [
        ["redis_index", "-a", f"starts={starts}", *where],
        *(["redis_details", *where] for _ in range(workers)),
    ]
