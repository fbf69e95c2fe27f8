"""The throttle in plain crawls: several processes of `scrapy crawl` keep one limit, and hold up nothing else."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.commands import Result
from rig.crawls import ADDON, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.projects import Project
from rig.redis import RedisServer
from rig.rolling_window import most_in_window
from rig.sites import SiteProcess
from rig.throttled import TINY
from rig.waiting import wait_for

from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import Rule

#: crawls the pages that its argument names, in their order, and tells when each was permitted to leave
SPIDER = """
    import json
    import scrapy


    class Pages(scrapy.Spider):
        name = "pages"

        async def start(self):
            for url in json.loads(self.urls):
                yield scrapy.Request(url, dont_filter=True)

        def parse(self, response):
            yield {"url": response.url, "at": response.meta["distributed_permit"].at}
"""
SETTINGS = {
    "ADDONS": ADDON,
    "DISTRIBUTED_ENABLED": False,
    "DISTRIBUTED_THROTTLE": True,
    "TELNETCONSOLE_ENABLED": False,
}


@pytest.fixture
def place(project: MakeProject) -> Callable[..., Project]:
    """`place(hits=10, …)`: a project whose crawls may ask a domain that often in a second."""

    def make(hits: int = 0, **settings: Any) -> Project:
        limit = (
            {"DISTRIBUTED_THROTTLE_HITS": hits, "DISTRIBUTED_THROTTLE_WINDOW": 1.0} if hits else {}
        )
        return project(spiders={"pages": SPIDER}, settings={**SETTINGS, **limit, **settings})

    return make


def urls(site: SiteProcess, number: int, *, host: str = "127.0.0.1") -> list[str]:
    port = urlsplit(site.url).port
    return [f"http://{host}:{port}{site.site.detail_path(at)}" for at in range(number)]


def crawling(pages: list[str], output: str = "items.jl") -> list[str]:
    return ["crawl", "pages", "-a", f"urls={json.dumps(pages)}", "-O", output]


def stat(done: Result, name: str) -> int:
    lines = [line for line in done.err.splitlines() if f"'distributed/throttle/{name}': " in line]
    return int(float(lines[-1].rpartition(": ")[2].rstrip(",}"))) if lines else 0


def test_a_slow_domain_holds_up_no_other(
    place: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    """C12: 100 requests of a domain that may be asked once in ten minutes come first, and hold none of four places."""
    there = site(100, "--host=0.0.0.0")
    it = place(CONCURRENT_REQUESTS=4, CLOSESPIDER_PAGECOUNT=100)
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        store.change_rules({"127.0.0.2": Rule(hits=1, window=600.0)})
    slow = urls(there, 100, host="127.0.0.2")
    fast = [urls(there, 1, host=f"127.0.1.{number}")[0] for number in range(1, 100)]
    run_scrapy(it, *crawling(slow + fast), code=0)
    hits = Counter(hit["host"].partition(":")[0] for hit in there.log())
    assert hits == {"127.0.0.2": 1, **{f"127.0.1.{number}": 1 for number in range(1, 100)}}


@pytest.mark.black_box
def test_what_leaves_is_charged_and_nothing_else(
    place: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    """Redirects, retries and robots.txt are; answers from the cache are not."""
    there = site(10)
    pages = urls(there, 4)
    turned, failing = there.site.detail_path(0), there.site.detail_path(1)
    there.behave({turned: f"redirect:{there.site.detail_path(9)}", failing: "fail:1"})
    it = place(
        50, ROBOTSTXT_OBEY=True, HTTPCACHE_ENABLED=True, HTTPCACHE_IGNORE_HTTP_CODES=[500, 502, 503]
    )
    first = run_scrapy(it, *crawling(pages), code=0)
    assert len(list(it.items("items.jl"))) == 4
    assert there.hits()["/robots.txt"] == 1
    assert there.hits()[failing] == 2
    assert stat(first, "permits") == len(there.log()) == 1 + 4 + 1 + 1
    again = run_scrapy(it, *crawling(pages))
    assert len(list(it.items("items.jl"))) == 4, said(again)
    assert len(there.log()) == 7
    assert stat(again, "permits") == 0


@pytest.mark.black_box
def test_without_its_store_nothing_leaves(
    place: MakeProject, start_scrapy: StartCommand, site: StartSite, tmp_path: Path
) -> None:
    """What has its permit still goes; the rest waits for the store, and then goes on."""
    there = site(40)
    with closing(RedisServer(tmp_path / "redis", password=None)) as server:
        it = place(10, DISTRIBUTED_STORE=server.url, LOGSTATS_INTERVAL=1.0)
        crawl = start_scrapy(it, *crawling(urls(there, 20)))
        wait_for(lambda: len(there.log()) >= 3, 60, "the first hits")
        server.kill()
        crawl.wait_text("The store does not answer, and no request leaves without its permit")
        before = len(there.log())
        again = crawl.err.count("(at 0 pages/min)")
        wait_for(lambda: crawl.err.count("(at 0 pages/min)") > again, 30, "a second without a page")
        assert len(there.log()) == before
        server.start()
        assert crawl.wait().code == 0
        assert len(there.log()) == 20
        assert most_in_window(sorted(item["at"] for item in it.items("items.jl")), 1.0 - TINY) <= 10


@pytest.mark.black_box
def test_a_stopped_crawl_goes_on_with_its_files(
    place: MakeProject, start_scrapy: StartCommand, site: StartSite
) -> None:
    """With JOBDIR the requests that waited for their permits are there again."""
    there, it = site(30), place(5, JOBDIR="job")
    first = start_scrapy(it, *crawling(urls(there, 30), "first.jl"))
    wait_for(lambda: len(there.log()) >= 3, 60, "some hits")
    first.signal(signal.SIGINT)
    assert first.wait().code == 0
    assert len(there.log()) < 30
    second = start_scrapy(it, *crawling([], "second.jl"))
    assert second.wait().code == 0
    assert sorted(there.item_hits().items()) == [(number, 1) for number in range(30)], second.err


def test_a_crawl_without_a_store_is_refused(
    place: MakeProject, run_scrapy: RunCommand, site: StartSite
) -> None:
    there, it = site(3), place(10, DISTRIBUTED_STORE="redis://127.0.0.1:1/0")
    done = run_scrapy(it, *crawling(urls(there, 3)))
    assert done.code != 0
    assert "The throttle is on (DISTRIBUTED_THROTTLE), and its store is out of reach" in done.err
    assert there.log() == []
