"""A spider that closes itself on one node ends the whole crawl, which brings home what it has and can be resumed."""

from collections import Counter
from pathlib import Path

import pytest
from rig.bad_days import batches
from rig.crawls import QUICK, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode

from scrapyd_dist.batches import BatchState

PAGES = 100
#: closes itself once, at one page
SPIDER = '''
import scrapy
from pathlib import Path
from scrapy.exceptions import CloseSpider

PAGE, FLAG = {page!r}, Path({flag!r})


def is_the_end(url):
    """Whether this is the page, for the first time in any process."""
    if url != PAGE or FLAG.exists():
        return False
    FLAG.touch()
    return True


class Quota(scrapy.Spider):
    name = "quota"

    async def start(self):
        yield scrapy.Request({start!r})

    def parse(self, response):
        yield from response.follow_all(css='a[itemprop="url"]', callback=self.parse_page)

    def parse_page(self, response):
        yield {{"url": response.url}}
        {in_callback}


class Enough:
    @classmethod
    def from_crawler(cls, crawler):
        pipeline = cls()
        pipeline.crawler = crawler
        return pipeline

    def process_item(self, item):
        {in_pipeline}
        return item
'''
IN_CALLBACK = 'if is_the_end(response.url): raise CloseSpider("quota_used_up")'
IN_PIPELINE = 'if is_the_end(item["url"]): self.crawler.engine.close_spider(self.crawler.spider, "quota_used_up")'
SETTINGS = {
    **QUICK,
    "DISTRIBUTED_BATCH_SIZE": 10,
    # Two processes need ten seconds for all: time for the others to hear of the end.
    "DISTRIBUTED_MAX_JOBS": 2,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
    "ITEM_PIPELINES": {"small.spiders.quota.Enough": 300},
}


@pytest.mark.black_box
@pytest.mark.promise("A spider closes itself")
@pytest.mark.parametrize(
    ("mode", "where"), [("auto", "callback"), ("push", "pipeline"), ("pull", "callback")]
)
def test_the_whole_crawl_ends_with_its_reason_and_goes_on_when_it_is_resumed(
    mode: str,
    where: str,
    pair: list[ScrapydNode],
    site: StartSite,
    project: MakeProject,
    run_cli: RunCommand,
    tmp_path: Path,
) -> None:
    pages = site(PAGES, "--latency=0.4", per_page=PAGES)
    spider = SPIDER.format(
        page=pages.detail(4),
        flag=str(tmp_path / "closed"),
        start=pages.start_url,
        in_callback=IN_CALLBACK if where == "callback" else "pass",
        in_pipeline=IN_PIPELINE if where == "pipeline" else "pass",
    )
    it = project(
        nodes=pair, spiders={"quota": spider}, settings={**SETTINGS, "DISTRIBUTED_MODE": mode}
    )
    done = run_cli(it, "crawl", "quota", "--callback", "parse_page", "-O", "items.jl", code=3)
    said = " ".join(f"{done.out} {done.err}".split())
    crawl = crawls(it)[0]
    assert "The spider has closed the crawl: quota_used_up." in said
    assert f"sdist resume {crawl.id}" in said
    assert (crawl.state.value, crawl.summary["closed_by"]) == ("finished", "quota_used_up")
    home = Counter(item["url"] for item in it.items("items.jl"))
    assert home[pages.detail(4)] == 1
    assert set(home.values()) == {1}
    # one that was given back is to be tried again
    waiting = [
        batch.size for batch in batches(it) if batch.state in {BatchState.SEALED, BatchState.FAILED}
    ]
    assert sum(waiting) == PAGES - len(home) > 0

    run_cli(it, "resume", crawl.id, code=0)
    whole = Counter(item["url"] for item in it.items("items.jl"))
    assert whole == Counter(pages.detail(number) for number in range(PAGES))
    assert set(pages.item_hits().values()) == {1}, "a page was fetched twice"
    assert last_crawl(it).summary["closed_by"] is None
