"""The bound: what a careful person gets by hand, from plain Scrapy and a site whose numbering is known in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rig.sites import SiteProcess

#: spiders on top of the demo project's own: same links, same callback, same settings
SPIDERS = '''
"""The hand-made distribution that the benchmark compares with."""

import scrapy
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule

from properties.spiders.easy import EasySpider


def lines(path):
    with open(path, encoding="utf-8") as file:
        return file.read().split()


class BoundDetailsSpider(EasySpider):
    """Crawls the detail URLs in `-a urls=FILE`."""

    name = "bound_details"

    async def start(self):
        for url in lines(self.urls):
            yield scrapy.Request(url, callback=self.parse_item)


class BoundIndexSpider(EasySpider):
    """Walks the whole index from the pages in `-a starts=FILE`, and crawls those details that are in `-a urls=FILE`."""

    name = "bound_index"
    rules = (
        Rule(LinkExtractor(restrict_css="a.next"), process_links="of_this_shard"),
        Rule(LinkExtractor(restrict_xpaths='//a[@itemprop="url"]'), callback="parse_item", process_links="of_share"),
    )

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.shard_starts = set(lines(self.starts))
        self.share = set(lines(self.urls))

    async def start(self):
        for url in self.shard_starts:
            yield scrapy.Request(url)

    def of_this_shard(self, links):
        return [link for link in links if link.url not in self.shard_starts]

    def of_share(self, links):
        return [link for link in links if link.url in self.share]
'''


def shares(items: int, pages: int, processes: int, index_weight: float) -> list[list[int]]:
    """Item numbers per process; the first gets fewer, because it walks the index as well.

    Args:
        items: detail pages in all.
        pages: index pages in all.
        processes: how many processes share them.
        index_weight: how many detail pages one index page counts for.
    """
    work = (items + index_weight * pages) / processes
    first = max(0, round(work - index_weight * pages)) if processes > 1 else items
    rest = range(first, items)
    return [list(range(first)), *(list(rest[at :: processes - 1]) for at in range(processes - 1))]


def shard_starts(pages: int, shards: int) -> list[int]:
    """First pages of the shards, as `sdist crawl --shards` cuts them."""
    return sorted({pages * shard // shards for shard in range(shards)})


def write_shares(
    folder: Path, site: SiteProcess, shards: int, processes: int, index_weight: float
) -> list[list[str]]:
    """Write the URL lists, and return the arguments of `scrapy crawl`, one list per process."""
    folder.mkdir()
    starts = folder / "starts.txt"
    starts.write_text(
        "\n".join(site.index(page) for page in shard_starts(site.site.pages, shards)),
        encoding="utf-8",
    )
    commands = []
    for at, numbers in enumerate(shares(site.site.items, site.site.pages, processes, index_weight)):
        urls = folder / f"urls{at}.txt"
        urls.write_text("\n".join(site.detail(number) for number in numbers), encoding="utf-8")
        spider = ["bound_details"] if at else ["bound_index", "-a", f"starts={starts}"]
        commands.append([*spider, "-a", f"urls={urls}"])
    return commands
