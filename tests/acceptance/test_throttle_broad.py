"""A crawl of many domains with a page each under the throttle: what it asks of the store, and what it leaves behind."""

import json
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON
from rig.fixtures import MakeProject, RunCommand, StartSite

from scrapyd_dist.store import open_store

pytestmark = pytest.mark.black_box

HOSTS = 300
#: finds a page of each host at once, and stays for longer than a domain is remembered; then tells what there still is.
#: (Objects are counted as they come and go: who lists all of a process breaks tuples that a thread is just making.)
SPIDER = """
    import asyncio
    import gc
    import json
    from collections import Counter
    from pathlib import Path

    import scrapy
    from scrapy import signals
    from scrapyd_dist.middlewares.throttle.domain_queues import DomainQueue
    from scrapyd_dist.throttle.permits import Permit, PermitReply, PermitRequest

    made, there = Counter(), Counter()


    def count(kind):
        init = kind.__init__

        def comes(self, *args, **kwargs):
            made[kind.__name__] += 1
            there[kind.__name__] += 1
            init(self, *args, **kwargs)

        def goes(self):
            there[kind.__name__] -= 1

        kind.__init__, kind.__del__ = comes, goes


    for each in (DomainQueue, Permit, PermitRequest, PermitReply):
        count(each)


    class BroadSpider(scrapy.Spider):
        name = "broad"
        came = 0

        @classmethod
        def from_crawler(cls, crawler, **kwargs):
            spider = super().from_crawler(crawler, **kwargs)
            crawler.signals.connect(spider.tell, signals.spider_closed)
            return spider

        async def start(self):
            yield scrapy.Request(self.first, callback=self.find)

        def find(self, response):
            yield from map(scrapy.Request, Path("urls").read_text().split())

        async def parse(self, response):
            self.came += 1
            if self.came == int(self.hosts):
                await asyncio.sleep(11.5)
            yield {"url": response.url}

        def tell(self):
            stats, name = self.crawler.stats.get_stats(), "distributed/throttle/"
            told = {key.removeprefix(name): value for key, value in stats.items() if key.startswith(name)}
            gc.collect()
            told["made"], told["objects"] = made, +there
            Path("told.json").write_text(json.dumps(told))
"""


def test_many_domains_are_asked_for_together_and_once_each_and_nothing_of_them_stays(
    project: MakeProject, run_scrapy: RunCommand, site: StartSite, tmp_path: Path
) -> None:
    """C5: the store is asked for many domains in one step, and what the process knew of them goes."""
    there = site(1, "--host=0.0.0.0")
    port, page = urlsplit(there.url).port, there.site.detail_path(0)
    settings = {
        "ADDONS": ADDON, "DISTRIBUTED_ENABLED": False, "DISTRIBUTED_STORE": str(tmp_path / "store.db"),
        "DISTRIBUTED_THROTTLE_HITS": 1, "DISTRIBUTED_THROTTLE_WINDOW": 60, "TELNETCONSOLE_ENABLED": False,
    }  # fmt: skip
    it = project(spiders={"broad": SPIDER}, settings=settings)
    urls = [f"http://127.1.{number // 200}.{number % 200 + 1}:{port}{page}" for number in range(HOSTS)]
    (it.path / "urls").write_text("\n".join(urls), encoding="utf-8")
    first = f"http://127.2.0.1:{port}{page}"
    run_scrapy(it, "crawl", "broad", "-a", f"first={first}", "-a", f"hosts={HOSTS}", code=0)
    told = json.loads((it.path / "told.json").read_text(encoding="utf-8"))
    assert sorted(hit["host"] for hit in there.log()) == sorted(urlsplit(url).netloc for url in [first, *urls])
    assert told["permits"] == HOSTS + 1
    assert told["steps"] < HOSTS / 4, told
    # Where a process gets no processor time for long, some permits grow old.
    assert told["asks"] < 2 * HOSTS, told
    assert set(told["made"]) == {"DomainQueue", "Permit", "PermitRequest", "PermitReply"}, told
    assert min(told["made"].values()) > HOSTS, told
    assert told["objects"] == {}, told
    with closing(open_store(tmp_path / "store.db")) as store:  # a grant counts for as long as its window
        assert len(store.domain_states()) == HOSTS + 1
