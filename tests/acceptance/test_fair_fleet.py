"""Fair crawls on real nodes: what is in the batches that are sent, and what is left when everything is killed."""

import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from rig.bad_days import IMPATIENT, wait_accepted
from rig.crawls import ADDON, QUICK, crawls, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

pytestmark = pytest.mark.black_box

#: finds its pages host by host, the slow host's first, or one of each host in turn; each request tells its job
SPIDER = """
    import json
    import scrapy


    class Named:
        def process_request(self, request, spider):
            request.headers["X-Job"] = getattr(spider, "_job", "none")


    class Broad(scrapy.Spider):
        name = "broad"

        async def start(self):
            yield scrapy.Request(self.site + "/echo", self.find)

        def find(self, response):
            for url in json.loads(self.urls):
                yield scrapy.Request(url, self.parse_page)

        def parse_page(self, response):
            yield {"url": response.url}
"""
#: pages of each host, as many as a batch has
EACH = 12
HOSTS = (2, 3, 4, 5)
SLOW = HOSTS[0]


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.fixture
def web(site: StartSite) -> SiteProcess:
    """A host for each address, each with pages of its own."""
    there = site(EACH * (max(HOSTS) + 1), "--host=0.0.0.0", "--log-headers", "--latency=0.1")
    there.behave({there.site.detail_path(number): "slow:0.5" for number in _numbers(SLOW)})
    return there


@pytest.fixture
def place(project: MakeProject, pair: list[ScrapydNode]) -> Callable[..., Project]:
    own = {"ADDONS": ADDON, "DOWNLOADER_MIDDLEWARES": {"small.spiders.broad.Named": 1}}
    return lambda **settings: project(spiders={"broad": SPIDER}, nodes=pair, settings={**own, **settings})


def _numbers(host: int) -> range:
    return range(host * EACH, (host + 1) * EACH)


def _pages(web: SiteProcess, host: int) -> list[str]:
    port = urlsplit(web.url).port
    return [f"http://127.0.0.{host}:{port}{web.site.detail_path(number)}" for number in _numbers(host)]


def _by_job(web: SiteProcess) -> dict[str, list[int]]:
    """Job -> the hosts that it asked, in the order in which the site was asked."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for hit in web.log():
        if hit["target"] == "/echo":  # where the pages are found
            continue
        found[hit["headers"]["x-job"]].append(int(hit["host"].partition(":")[0].rpartition(".")[2]))
    return dict(found)


def _words(web: SiteProcess, urls: list[str], fair: str) -> list[str]:
    given = ["-a", f"site={web.url}", "-a", f"urls={json.dumps(urls)}"]
    return ["crawl", "broad", *given, "--callback", "parse_page", "-o", "items.jl", "--fair", fair]


def _pushed(it: Project, words: list[str], urls: list[str], run: RunCommand) -> None:
    """Crawl these pages in batches that are sent; every page is an item once."""
    done = run(it, *words, "--batch-size", EACH)
    assert done.code == 0, said(done)
    assert Counter(item["url"] for item in it.items("items.jl")) == Counter(urls)
    summary = last_crawl(it).summary
    assert (summary["batches"]["total"], summary["batches"]["done"]) == (len(HOSTS), len(HOSTS))
    assert all(node["jobs"] for node in summary["nodes"]), summary["nodes"]


def test_spread_no_batch_that_is_sent_sits_on_a_slow_site(
    place: MakeProject, web: SiteProcess, run_cli: RunCommand
) -> None:
    """The slow site's pages are found first, and would be the first batch; each job has its share, and asks in turn."""
    urls = [url for host in HOSTS for url in _pages(web, host)]
    _pushed(place(**QUICK), _words(web, urls, "spread"), urls, run_cli)
    jobs = _by_job(web)
    assert [Counter(hosts) for hosts in jobs.values()] == [Counter(dict.fromkeys(HOSTS, EACH // len(HOSTS)))] * 4, jobs
    # Two that are under way at once may arrive the other way round; in blocks, the last host would be missing.
    assert [set(hosts[: 2 * len(HOSTS)]) for hosts in jobs.values()] == [set(HOSTS)] * 4, jobs


def test_by_domain_a_site_comes_in_one_batch(place: MakeProject, web: SiteProcess, run_cli: RunCommand) -> None:
    """They are found in turn, and each batch would have some of every site."""
    in_turn = [url for some in zip(*(_pages(web, host) for host in HOSTS), strict=True) for url in some]
    _pushed(place(**QUICK), _words(web, in_turn, "by-domain"), in_turn, run_cli)
    jobs = _by_job(web)
    assert sorted(jobs.values()) == [[host] * EACH for host in HOSTS], jobs


def test_when_all_of_a_fair_crawl_is_killed_it_goes_on_and_nothing_that_was_queued_is_lost(
    place: MakeProject, pair: list[ScrapydNode], web: SiteProcess, start_cli: StartCommand, run_cli: RunCommand
) -> None:
    """B6: kill -9 for the producer and all workers, with whatever lay in their queues."""
    it = place(**{**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 3, "CONCURRENT_REQUESTS_PER_DOMAIN": 1})
    urls = [url for host in HOSTS for url in _pages(web, host)]
    start_cli(it, *_words(web, urls, "spread"), "--pull", "--workers", 2)
    wait_accepted(it, 2)
    row = crawls(it)[0]
    assert row.pid
    os.kill(row.pid, signal.SIGKILL)
    assert [job for node in pair for job in node.kill_jobs().values()]
    assert len(web.log()) < len(urls)
    done = run_cli(it, "resume", row.id, "--json", timeout=180)
    assert done.code == 0, said(done)
    assert Counter(item["url"] for item in it.items("items.jl")) == Counter(urls)
