"""What the throttle remembers in a broad crawl: of a domain that is done, nothing stays in the worker."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON, said
from rig.fixtures import MakeProject, RunCommand

pytestmark = pytest.mark.black_box

#: two lots of domains with one page each, and three with many, which keep the crawl going. It tells how many of the
#: throttle's lines there are, of which each domain has one, and how large the process is: before all, when a lot is
#: there, and when that is forgotten or it is late. (They are counted as they come and go: who lists all objects of a
#: process breaks tuples that another thread is just making.)
SPIDER = """
    import gc
    import time

    import scrapy
    from scrapyd_dist.middlewares.throttle.domain_queues import DomainQueue

    lines = 0
    init = DomainQueue.__init__


    def comes(self, *args, **kwargs):
        global lines
        lines += 1
        init(self, *args, **kwargs)


    def goes(self):
        global lines
        lines -= 1


    DomainQueue.__init__, DomainQueue.__del__ = comes, goes


    class Broad(scrapy.Spider):
        name = "broad"
        lots = done = 0
        since = looked = 0.0

        async def start(self):
            yield self.told("begin")
            for request in [*self.lot(), *map(self.again, ("127.0.5.1", "127.0.5.2", "127.0.5.3"))]:
                yield request

        def lot(self):
            first, size = self.lots * int(self.size), int(self.size)
            self.lots, self.done = self.lots + 1, 0
            for number in range(first, first + size):
                host = f"127.10.{number // 250}.{number % 250 + 1}"
                yield scrapy.Request(f"http://{host}:{self.port}/echo", headers={"Connection": "close"})

        def parse(self, response):
            self.done += 1
            if self.done == int(self.size):
                self.since = self.looked = time.monotonic()
                yield self.told("there")
                if self.lots == 2:
                    self.crawler.engine.close_spider(self, "finished")

        def again(self, host):
            url = f"http://{host}:{self.port}/echo"
            return scrapy.Request(url, self.busy, dont_filter=True, cb_kwargs={"host": host})

        def busy(self, response, host):
            yield self.again(host)
            now = time.monotonic()
            if self.lots == 1 and self.done == int(self.size) and now > self.looked + 0.5:
                self.looked = now
                if lines < int(self.few) or now > self.since + 60:
                    self.crawler.engine.downloader._slot_gc(age=0)  # Scrapy's own, which it calls once a minute
                    yield self.told("later")
                    yield from self.lot()

        def told(self, when):
            gc.collect()
            with open("/proc/self/statm") as file:
                rss = int(file.read().split()[1]) * 4096
            return {"lot": self.lots, "when": when, "lines": lines, "rss": rss}
"""
LOT = 750
#: more than there are domains in use
FEW = 50


def test_of_domains_that_are_done_nothing_stays(
    project: MakeProject, site: Callable[..., Any], run_scrapy: RunCommand
) -> None:
    """C5: 1,500 domains with one page each; what the worker has of them goes, and the next ones take its place."""
    there = site(1, "--host=0.0.0.0")
    settings = {
        "ADDONS": ADDON, "DISTRIBUTED_ENABLED": False, "DISTRIBUTED_THROTTLE_HITS": 3,
        "DISTRIBUTED_THROTTLE_WINDOW": 1, "CONCURRENT_REQUESTS": 50, "COOKIES_ENABLED": False, "LOG_LEVEL": "INFO",
    }  # fmt: skip
    it = project(spiders={"broad": SPIDER}, settings=settings)
    given = {"port": urlsplit(there.url).port, "size": LOT, "few": FEW}
    words = [word for name, value in given.items() for word in ("-a", f"{name}={value}")]
    done = run_scrapy(it, "crawl", "broad", *words, "-O", "told.jl")
    assert done.code == 0, said(done)
    told = list(it.items("told.jl"))
    assert [(one["lot"], one["when"]) for one in told] == [(0, "begin"), (1, "there"), (1, "later"), (2, "there")]
    begin, first, later, second = [one["lines"] for one in told]
    assert begin == 0
    assert first > 2 * FEW, "they are remembered for a while"
    assert later < FEW
    assert second <= LOT + FEW
    sizes = [one["rss"] for one in told]
    # Scrapy itself grows by some kilobytes with each new host.
    assert sizes[3] - sizes[1] < 0.75 * (sizes[1] - sizes[0]), sizes
