"""The throttle over a fleet: jobs do not multiply a delay, all of them heed a change, domains are registered ones."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.throttled import mean_gap
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

#: pages of some hosts in turn; each request tells its job
SPIDER = """
    import scrapy
    from scrapy.resolver import CachingThreadedResolver
    from twisted.internet import defer


    class Loopback(CachingThreadedResolver):
        def getHostByName(self, name, timeout=()):
            return defer.succeed("127.0.0.1")


    class Named:
        def process_request(self, request, spider):
            request.headers["X-Job"] = getattr(spider, "_job", "none")


    class Pages(scrapy.Spider):
        name = "pages"

        async def start(self):
            yield scrapy.Request(f"http://127.0.0.1:{self.port}/echo?all", self.find)

        def find(self, response):
            for number in range(int(self.pages)):
                for host in self.hosts.split(","):
                    yield scrapy.Request(f"http://{host}:{self.port}/echo?{number}", self.parse_page)

        def parse_page(self, response):
            pass
"""
#: each address of this machine is a domain of its own
FASTER, BLOCKED = HOSTS = ("127.0.3.1", "127.0.3.2")
WORKERS, EACH = 4, 400
CRAWL = ("crawl", "pages", "--callback", "parse_page")
#: requests per second of each domain, by the settings and by hand
BEFORE, AFTER = 4, 24
#: seconds between two requests to a domain
DELAY = 0.3
#: seconds after which a change is heeded, and that are looked at after that
HEEDED = LOOKED = 2.0


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.fixture
def pair(nodes_up: list[ScrapydNode]) -> Iterator[list[ScrapydNode]]:
    """Two nodes, on which nothing is left of the test before."""
    yield nodes_up
    for node in nodes_up:
        node.kill_jobs()


def test_three_jobs_on_one_site_keep_the_delay_of_one(
    project: MakeProject, site: StartSite, pair: list[ScrapydNode], run_cli: RunCommand
) -> None:
    """B2: they run at the same time, and each of them has Scrapy's own DOWNLOAD_DELAY."""
    web = site(1, "--host=0.0.0.0", "--log-headers")
    settings = {**QUICK, **_throttled(1, DELAY), "DOWNLOAD_DELAY": DELAY, "DISTRIBUTED_BATCH_SIZE": 16}
    it = project(spiders={"pages": SPIDER}, settings=settings, nodes=pair)
    done = run_cli(it, *CRAWL, *_given(web, HOSTS[:1], 48))
    assert done.code == 0, said(done)
    rows = [row for row in web.log() if row["host"].startswith(f"{HOSTS[0]}:")]
    jobs = [row["headers"]["x-job"] for row in rows]
    assert sorted(Counter(jobs).values()) == [16, 16, 16]
    assert len(list(groupby(jobs))) > 3, "one after the other"
    assert mean_gap([row["time"] for row in rows]) > 0.95 * DELAY


class Fleet:
    """A crawl by workers on two nodes, and the commands that change what they do."""

    def __init__(self, project: Project, site: SiteProcess, run: RunCommand) -> None:
        self._project, self._site, self._run = project, site, run

    def throttle(self, *words: object) -> float:
        """Run `sdist throttle`; the moment when it had ended, by the clock of the site's log."""
        done = self._run(self._project, "throttle", *words)
        assert done.code == 0, done.err
        return time.monotonic()

    def hits(self, host: str, begin: float, end: float = float("inf")) -> Counter[str]:
        """Job -> its requests that came to the host in this time."""
        rows = [row for row in self._site.log() if row["host"].partition(":")[0] == host]
        return Counter(row["headers"]["x-job"] for row in rows if begin <= row["time"] < end)

    def all_come(self, hosts: Iterable[str], since: float) -> None:
        """Wait until every worker has asked every one of these hosts."""
        wait_for(lambda: all(len(self.hits(host, since)) == WORKERS for host in hosts), 60, "requests of all workers")

    def then(self, host: str, changed: float) -> Counter[str]:
        """The requests to the host when the change should be heeded, in the time that is looked at."""
        begin, end = changed + HEEDED, changed + HEEDED + LOOKED
        wait_for(lambda: time.monotonic() >= end, 60, "that moment")
        return self.hits(host, begin, end)


def test_every_worker_on_every_node_heeds_a_change_and_its_removal_within_two_seconds(
    project: MakeProject, site: StartSite, pair: list[ScrapydNode], start_cli: StartCommand, run_cli: RunCommand
) -> None:
    """C10, C11: by the site's log, without a restart."""
    web = site(1, "--host=0.0.0.0", "--log-headers")
    settings = {
        **QUICK, **_throttled(BEFORE, 1), "DISTRIBUTED_BATCH_SIZE": EACH * len(HOSTS),
    }  # fmt: skip
    it = project(spiders={"pages": SPIDER}, settings=settings, nodes=pair)
    start_cli(it, *CRAWL, *_given(web, HOSTS, WORKERS * EACH), "--pull", "--workers", WORKERS)
    crawl = Fleet(it, web, run_cli)
    crawl.all_come(HOSTS, 0.0)

    crawl.throttle("set", BLOCKED, "--hits", AFTER, "--window", 1)
    blocked = crawl.throttle("block", BLOCKED)
    faster = crawl.throttle("set", FASTER, "--hits", AFTER, "--window", 1)
    _assert_fast(crawl.then(FASTER, faster))
    assert not crawl.hits(BLOCKED, blocked + HEEDED)

    unblocked = crawl.throttle("unblock", BLOCKED)
    as_before = crawl.throttle("unset", FASTER)
    _assert_fast(crawl.then(BLOCKED, unblocked))
    slower = crawl.then(FASTER, as_before)
    assert BEFORE * LOOKED / 2 < sum(slower.values()) < BEFORE * LOOKED * 2, slower
    jobs = set(crawl.hits(FASTER, 0.0)) | set(crawl.hits(BLOCKED, 0.0))
    assert len(jobs) == WORKERS, jobs


def _assert_fast(came: Counter[str]) -> None:
    """As many as the limit allows, more or less, and some of every worker."""
    assert AFTER * LOOKED / 2 < sum(came.values()) < AFTER * LOOKED * 1.2, came
    assert len(came) == WORKERS, came


def test_hosts_of_one_registered_domain_share_a_limit_and_those_of_a_public_suffix_do_not(
    project: MakeProject, site: StartSite, start_scrapy: StartCommand
) -> None:
    """C8: two processes, and two hosts of a domain each; the window is longer than the test."""
    web = site(1)
    settings = _throttled(3, 3600) | {
        "DISTRIBUTED_ENABLED": False, "DISTRIBUTED_THROTTLE_MODERATED": False,
        "DNS_RESOLVER": "small.spiders.pages.Loopback",
    }  # fmt: skip
    it = project(spiders={"pages": SPIDER}, settings=settings)
    hosts = [("a.x.co.uk", "x.com.br"), ("b.x.co.uk", "y.com.br")]
    running = [start_scrapy(it, "crawl", "pages", *_given(web, some, 10)) for some in hosts]

    def came() -> tuple[int, int, int]:
        hits = Counter(row["host"].partition(":")[0] for row in web.log())
        return hits["a.x.co.uk"] + hits["b.x.co.uk"], hits["x.com.br"], hits["y.com.br"]

    wait_for(lambda: came() == (3, 3, 3), 60, "the hits that the limits allow")
    for command in running:
        command.signal()
        assert command.wait(60).code == 0
    assert came() == (3, 3, 3)


def _throttled(hits: int, window: float) -> dict[str, Any]:
    named = {"ADDONS": ADDON, "DOWNLOADER_MIDDLEWARES": {"small.spiders.pages.Named": 1}}
    return {**named, "DISTRIBUTED_THROTTLE_HITS": hits, "DISTRIBUTED_THROTTLE_WINDOW": window}


def _given(site: SiteProcess, hosts: Iterable[str], pages: int) -> list[str]:
    given = {"port": urlsplit(site.url).port, "hosts": ",".join(hosts), "pages": pages}
    return [word for name, value in given.items() for word in ("-a", f"{name}={value}")]
