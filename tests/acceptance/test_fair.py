"""Fair work over many sites: real workers, on nodes and without, and what the sites see of them."""

import json
import os
import re
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.bad_days import IMPATIENT, wait_accepted
from rig.commands import Command
from rig.crawls import ADDON, QUICK, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.pullers import CRAWL, Frontier, values_of
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.frontier.backlog import BY_DOMAIN, SPREAD
from scrapyd_dist.frontier.slots import SITE, SlotRule

pytestmark = pytest.mark.black_box
#: a site for each address of loopback, on one server
HOST = "--host=0.0.0.0"
#: an item for each page; with `hosts`, it finds the pages itself
SPIDER = """
    import scrapy


    class Broad(scrapy.Spider):
        name = "broad"

        async def start(self):
            for number in range(int(self.pages)):
                for host in self.hosts.split(","):
                    yield scrapy.Request(f"{host}/properties/property_{number:06d}.html", self.parse_page)

        def parse_page(self, response):
            yield {"url": response.url}
"""
PIECE = 5
SLOW, FAST = 1.0, 0.1  #: seconds for which a request to each of two sites is under way
#: the `scrapy` of a version with another default queue
DEFAULT_QUEUE = """
import scrapy.settings.default_settings as defaults
defaults.SCHEDULER_PRIORITY_QUEUE = {queue!r}
from scrapy.cmdline import execute
execute()
"""


@pytest.fixture
def place(project: MakeProject) -> Callable[..., Project]:
    return lambda nodes=(), **settings: project(
        spiders={"broad": SPIDER}, settings=settings, nodes=nodes
    )


def host_of(number: int, site: SiteProcess) -> str:
    return f"http://127.0.0.{number}:{urlsplit(site.url).port}"


def pages_of(host: int, site: SiteProcess, numbers: range) -> list[str]:
    return [f"{host_of(host, site)}{site.site.detail_path(number)}" for number in numbers]


def add(queue: Frontier, urls: list[str], *, size: int = PIECE, **fields: Any) -> None:
    """Into the slot of their site."""
    slot = SlotRule(by=SITE).slot_for(urls[0], b"")
    values = [{"url": url, "callback": "parse_page", **fields} for url in urls]
    queue.add(values, size=size, slot=slot, priority=fields.get("priority", 0))


def finish(queue: Frontier, *workers: Command) -> None:
    """Take home what they do until they end."""

    def over() -> bool:
        queue.accept()
        return not any(worker.running() for worker in workers)

    wait_for(over, 60, "the end of the workers")
    queue.accept()


def longest_gap(times: list[float]) -> float:
    return max(later - sooner for sooner, later in pairwise(times))


def times_of(host: int, site: SiteProcess) -> list[float]:
    return [hit["time"] for hit in site.log() if host_number(hit) == host]


def host_number(hit: dict[str, Any]) -> int:
    """The last byte of the address that was asked."""
    return int(hit["host"].partition(":")[0].rpartition(".")[2])


def hosts_hit(site: SiteProcess) -> list[int]:
    return list(map(host_number, site.log()))


@pytest.mark.parametrize("queue_of_scrapy", ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"])
def test_a_slow_site_and_a_fast_one_are_both_always_in_flight(
    queue_of_scrapy: str,
    place: MakeProject,
    site: StartSite,
    frontier: Any,
    start_command: StartCommand,
) -> None:
    """B3, B4: the worker has all of both, and one could take all places; it is so whatever Scrapy's default is."""
    web = site(200, HOST)
    slow, fast = range(24), range(24, 200)
    web.behave(
        {
            web.site.detail_path(number): f"slow:{SLOW if number in slow else FAST}"
            for number in range(200)
        }
    )
    queue = frontier(place(CONCURRENT_REQUESTS=8), "broad")
    add(queue, pages_of(2, web, slow), size=len(slow))
    add(queue, pages_of(3, web, fast), size=len(fast))
    scrapy = (sys.executable, "-c", DEFAULT_QUEUE.format(queue=f"scrapy.pqueues.{queue_of_scrapy}"))
    finish(queue, start_command(queue.project, scrapy, *queue.arguments(1, fair=SPREAD)))
    assert Counter(hosts_hit(web)) == {2: len(slow), 3: len(fast)}, queue.log(1)
    slow_times, fast_times = (times_of(host, web) for host in (2, 3))
    begin, end = max(slow_times[0], fast_times[0]), min(slow_times[-1], fast_times[-1])
    assert end - begin > 2 * SLOW, "they were not crawled side by side"
    # Slow answers make room for the next slow requests, and no fast one has to wait for that.
    assert longest_gap([time for time in slow_times if begin <= time <= end]) < 2 * SLOW
    assert longest_gap([time for time in fast_times if begin <= time <= end]) < SLOW


def test_two_sites_with_one_download_slot_share_its_limit_and_priorities_order_a_site(
    place: MakeProject, site: StartSite, frontier: Any, start_scrapy: StartCommand
) -> None:
    """B1, B5: Scrapy's own rules hold inside a worker."""
    web = site(20, HOST)
    queue = frontier(place(DOWNLOAD_DELAY=0.1, RANDOMIZE_DOWNLOAD_DELAY=False), "broad")
    for priority, numbers in ((0, range(5)), (7, range(5, 10)), (-3, range(10, 15))):
        add(queue, pages_of(2, web, numbers), priority=priority, meta={"download_slot": "both"})
    add(queue, pages_of(3, web, range(10)), priority=1, meta={"download_slot": "both"})
    finish(queue, start_scrapy(queue.project, *queue.arguments(1, fair=BY_DOMAIN)))
    log = web.log()
    assert len(log) == 25, queue.log(1)
    # A pause of 0.1 s before each but the first; with a slot for each site it would be 1.4 s for the longer one.
    assert log[-1]["time"] - log[0]["time"] > 1.9
    asked = [web.site.numbers[hit["target"]] for hit in log if hit["host"].startswith("127.0.0.2")]
    assert [number // 5 for number in asked] == [1] * 5 + [0] * 5 + [2] * 5


def test_by_domain_no_site_sees_two_workers_at_one_time_and_a_killed_one_costs_nothing(
    place: MakeProject, site: StartSite, frontier: Any, start_scrapy: StartCommand
) -> None:
    """B6: also, who comes later gets his share. A site goes to another worker when all that one had of it has ended."""
    web = site(60, HOST, "--latency=0.05", "--log-headers")
    queue = frontier(place(CONCURRENT_REQUESTS=8, CONCURRENT_REQUESTS_PER_DOMAIN=2), "broad")
    queue.store.register_producer(CRAWL, "test", 600.0)
    added: list[str] = []

    def more_work() -> None:
        queue.accept()
        while queue.store.backlog(CRAWL).waiting < 12:
            number = len(added)
            added.extend(
                urls := [
                    f"{url}?{number}"
                    for url in pages_of(2 + number // PIECE % 6, web, range(PIECE))
                ]
            )
            add(queue, urls)

    def has_worked(name: str) -> bool:
        more_work()
        return len([hit for hit in web.log() if hit["headers"]["user-agent"] == name]) >= 30

    workers: list[Command] = []
    for number in (1, 2):
        arguments = queue.arguments(
            number, fair=BY_DOMAIN, lease=3.0, settings={"USER_AGENT": f"w{number}"}
        )
        workers.append(start_scrapy(queue.project, *arguments))
        wait_for(partial(has_worked, f"w{number}"), 60, f"the work of worker {number}")
    by_site: defaultdict[str, list[str]] = defaultdict(list)
    for hit in web.log():
        by_site[hit["host"]].append(hit["headers"]["user-agent"])
    assert sum(len(set(names)) for names in by_site.values()) > len(
        by_site
    )  # sites that both have had
    for names in by_site.values():
        runs = [len(list(run)) for _, run in groupby(names)]
        assert [run % PIECE for run in runs[:-1]] == [0] * (len(runs) - 1), names
    workers[1].signal(signal.SIGKILL)
    queue.store.sign_off(CRAWL, "test")
    finish(queue, workers[0])
    assert Counter(item["url"] for item in queue.items) == Counter(added), queue.log(1)


# on real nodes

#: finds its pages host by host, the slow host's first, or one of each host in turn; each request tells its job
FINDING = """
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


@pytest.fixture
def web(site: StartSite) -> SiteProcess:
    """A host for each address, each with pages of its own; the first one is slow."""
    there = site(EACH * (max(HOSTS) + 1), HOST, "--log-headers", "--latency=0.1")
    there.behave({there.site.detail_path(number): "slow:0.5" for number in _numbers(HOSTS[0])})
    return there


@pytest.fixture
def named(project: MakeProject, pair: list[ScrapydNode]) -> Callable[..., Project]:
    own = {"ADDONS": ADDON, "DOWNLOADER_MIDDLEWARES": {"small.spiders.broad.Named": 1}}
    return lambda **settings: project(
        spiders={"broad": FINDING}, nodes=pair, settings={**own, **settings}
    )


def _numbers(host: int) -> range:
    return range(host * EACH, (host + 1) * EACH)


def _pages(web: SiteProcess, host: int) -> list[str]:
    return pages_of(host, web, _numbers(host))


def _by_job(web: SiteProcess) -> dict[str, list[int]]:
    """Job -> the hosts that it asked, in the order in which the site was asked."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for hit in web.log():
        if hit["target"] == "/echo":  # where the pages are found
            continue
        found[hit["headers"]["x-job"]].append(host_number(hit))
    return dict(found)


def _words(web: SiteProcess, urls: list[str], fair: str) -> list[str]:
    given = ["-a", f"site={web.url}", "-a", f"urls={json.dumps(urls)}"]
    return ["crawl", "broad", *given, "--callback", "parse_page", "-o", "items.jl", "--fair", fair]


@pytest.mark.parametrize("fair", ["spread", "by-domain"])
def test_fair_batches_that_are_sent(
    fair: str, named: MakeProject, web: SiteProcess, run_cli: RunCommand
) -> None:
    """spread: none sits on the slow site, whose pages are found first; by-domain: a site comes in one batch.

    For by-domain the pages are found in turn, so that each batch would have some of every site.
    """
    of_hosts = [_pages(web, host) for host in HOSTS]
    urls = [
        url
        for some in (of_hosts if fair == "spread" else zip(*of_hosts, strict=True))
        for url in some
    ]
    it = named(**QUICK)
    run_cli(it, *_words(web, urls, fair), "--batch-size", EACH, code=0)
    assert Counter(item["url"] for item in it.items("items.jl")) == Counter(urls)
    summary = last_crawl(it).summary
    assert (summary["batches"]["total"], summary["batches"]["done"]) == (len(HOSTS), len(HOSTS))
    assert all(node["jobs"] for node in summary["nodes"]), summary["nodes"]
    jobs = _by_job(web)
    if fair == "by-domain":
        assert sorted(jobs.values()) == [[host] * EACH for host in HOSTS], jobs
        return
    assert [Counter(hosts) for hosts in jobs.values()] == [
        Counter(dict.fromkeys(HOSTS, EACH // len(HOSTS)))
    ] * 4, jobs
    # Two that are under way at once may arrive the other way round; in blocks, the last host would be missing.
    assert [set(hosts[: 2 * len(HOSTS)]) for hosts in jobs.values()] == [set(HOSTS)] * 4, jobs


def test_when_all_of_a_fair_crawl_is_killed_it_goes_on_and_nothing_that_was_queued_is_lost(
    named: MakeProject,
    pair: list[ScrapydNode],
    web: SiteProcess,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    """B6: kill -9 for the producer and all workers, with whatever lay in their queues."""
    # A delay, so that a good part of the pages is left when all is killed.
    pace = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "DOWNLOAD_DELAY": 0.5}
    it = named(**{**IMPATIENT, **pace, "DISTRIBUTED_BATCH_SIZE": 3})
    urls = [url for host in HOSTS for url in _pages(web, host)]
    start_cli(it, *_words(web, urls, "spread"), "--pull", "--max-jobs", 2)
    wait_accepted(it, 2)
    row = crawls(it)[0]
    assert row.pid
    os.kill(row.pid, signal.SIGKILL)
    assert [job for node in pair for job in node.kill_jobs().values()]
    assert len(web.log()) < len(urls)
    run_cli(it, "resume", row.id, "--json", timeout=180, code=0)
    assert Counter(item["url"] for item in it.items("items.jl")) == Counter(urls)


# slow items

#: one item for each page, which are stored one at a time
LARGE = """
    import asyncio
    import scrapy


    class Slow:
        def __init__(self):
            self.turn = asyncio.Lock()

        async def process_item(self, item, spider=None):  # Scrapy 2.13 names it, later ones do not
            async with self.turn:
                await asyncio.sleep(0.02)
            with open("stored", "ab") as file:
                file.write(b".")
            return item


    class Large(scrapy.Spider):
        name = "large"

        def parse_page(self, response):
            yield {"url": response.url}
"""
#: pages, and bytes of each
PAGES, BYTES = 300, 400_000
AT_ONCE = 8
LATENCY = 0.1  #: seconds for which each request is under way at least
#: bytes of pages whose items are not stored yet, from which on Scrapy downloads nothing more
SCRAPY_HOLDS = 5_000_000


def test_slow_items_hold_the_downloads_back_and_memory_stays_as_it_is(
    project: MakeProject, site: StartSite, frontier: Any, start_scrapy: StartCommand
) -> None:
    """B8: the worker has all requests at once, and pages come faster than their items go."""
    web = site(PAGES, HOST, f"--latency={LATENCY}")
    web.behave({"/properties/*": "says:" + "x" * BYTES})
    settings = {"CONCURRENT_REQUESTS": AT_ONCE, "ITEM_PIPELINES": {"small.spiders.large.Slow": 1}}
    queue = frontier(project(spiders={"large": LARGE}, settings=settings), "large")
    pages = {2: pages_of(2, web, range(PAGES // 2)), 3: pages_of(3, web, range(PAGES // 2, PAGES))}
    for host, urls in pages.items():
        queue.add(values_of(urls, callback="parse_page"), size=len(urls), slot=f"site{host}")
    worker = start_scrapy(queue.project, *queue.arguments(1, fair=SPREAD))
    ahead, memory = [], []
    for number in range(PAGES // 6, PAGES, PAGES // 6):
        stored = wait_for(partial(_stored, queue.project, number), 90, f"{number} items")
        ahead.append(len(web.log()) - stored)
        memory.append(_resident(worker))
    wait_for(lambda: queue.acked() == 2, 60, "the end of both batches")
    queue.accept()
    assert worker.wait(60).code == 0
    assert Counter(item["url"] for item in queue.items) == Counter(pages[2] + pages[3]), queue.log(
        1
    )
    times = [hit["time"] for hit in web.log()]
    assert max(sum(first <= time < first + LATENCY for time in times) for first in times) <= AT_ONCE
    assert max(ahead) * BYTES < 2 * SCRAPY_HOLDS, ahead
    assert max(memory) - memory[0] < 4 * SCRAPY_HOLDS, memory


def _stored(project: Project, least: int) -> int:
    """Items that are stored, once there are so many."""
    size = (project.path / "stored").stat().st_size
    return size if size >= least else 0


def _resident(process: Command) -> int:
    """Bytes of memory that a process has."""
    found = re.search(
        r"VmRSS:\s+([0-9]+) kB", Path(f"/proc/{process.pid}/status").read_text("ascii")
    )
    assert found
    return int(found[1]) * 1024
