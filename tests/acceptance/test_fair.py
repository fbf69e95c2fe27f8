"""Fair work over many sites: real workers, and what the sites see of them (B1, B3, B4, B5, B6)."""

import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.commands import Command
from rig.crawls import ADDON, QUICK, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.projects import Project
from rig.pullers import CRAWL, Frontier
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.frontier.backlog import BY_DOMAIN, SPREAD
from scrapyd_dist.frontier.slots import SITE, SlotRule
from scrapyd_dist.store import open_store

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
    return lambda nodes=(), **settings: project(spiders={"broad": SPIDER}, settings=settings, nodes=nodes)


def host_of(number: int, site: SiteProcess) -> str:
    return f"http://127.0.0.{number}:{urlsplit(site.url).port}"


def pages_of(host: int, site: SiteProcess, numbers: range) -> list[str]:
    return [f"{host_of(host, site)}{site.site.detail_path(number)}" for number in numbers]


def add(queue: Frontier, urls: list[str], *, size: int = PIECE, **fields: Any) -> None:
    """Into the slot of their site."""
    slot = SlotRule(by=SITE).of(urls[0], b"")
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
    return [hit["time"] for hit in site.log() if hit["host"].startswith(f"127.0.0.{host}:")]


def hosts_hit(site: SiteProcess) -> list[int]:
    return [int(hit["host"].partition(":")[0].rpartition(".")[2]) for hit in site.log()]


@pytest.mark.parametrize("queue_of_scrapy", ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"])
def test_a_slow_site_and_a_fast_one_are_both_always_in_flight(
    queue_of_scrapy: str, place: MakeProject, site: StartSite, frontier: Any, start_command: StartCommand
) -> None:
    """B3, B4: the worker has all of both, and one could take all places; it is so whatever Scrapy's default is."""
    web = site(200, HOST)
    slow, fast = range(24), range(24, 200)
    web.behave({web.site.detail_path(number): f"slow:{SLOW if number in slow else FAST}" for number in range(200)})
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
            added.extend(urls := [f"{url}?{number}" for url in pages_of(2 + number // PIECE % 6, web, range(PIECE))])
            add(queue, urls)

    def has_worked(name: str) -> bool:
        more_work()
        return len([hit for hit in web.log() if hit["headers"]["user-agent"] == name]) >= 30

    workers: list[Command] = []
    for number in (1, 2):
        arguments = queue.arguments(number, fair=BY_DOMAIN, lease=3.0, settings={"USER_AGENT": f"w{number}"})
        workers.append(start_scrapy(queue.project, *arguments))
        wait_for(partial(has_worked, f"w{number}"), 60, f"the work of worker {number}")
    by_site: defaultdict[str, list[str]] = defaultdict(list)
    for hit in web.log():
        by_site[hit["host"]].append(hit["headers"]["user-agent"])
    assert sum(len(set(names)) for names in by_site.values()) > len(by_site)  # sites that both have had
    for names in by_site.values():
        runs = [len(list(run)) for _, run in groupby(names)]
        assert [run % PIECE for run in runs[:-1]] == [0] * (len(runs) - 1), names
    workers[1].signal(signal.SIGKILL)
    queue.store.sign_off(CRAWL, "test")
    finish(queue, workers[0])
    assert Counter(item["url"] for item in queue.items) == Counter(added), queue.log(1)


def test_a_fair_crawl_of_many_sites_has_every_page_once(
    place: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand
) -> None:
    """Each site has its slot, and batches of it are small."""
    web = site(12, HOST, "--latency=0.05")
    hosts = [host_of(number, web) for number in range(2, 12)]
    settings = {name: value for name, value in QUICK.items() if name != "DISTRIBUTED_BATCH_SIZE"}
    it = place(fleet(1), **settings, ADDONS=ADDON, DISTRIBUTED_SEEDS=True, CONCURRENT_REQUESTS_PER_DOMAIN=4)
    words = ["crawl", "broad", "-a", "pages=12", "-a", f"hosts={','.join(hosts)}", "--callback", "parse_page"]
    done = run_cli(it, *words, "--pull", "--fair", "spread", "--workers", "2", "-o", "items.jl")
    assert done.code == 0, said(done)
    urls = [url for number in range(2, 12) for url in pages_of(number, web, range(12))]
    assert Counter(item["url"] for item in it.items("items.jl")) == Counter(urls)
    row = last_crawl(it)
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        slots = store.slots(row.id)
    assert {one.slot: one.requests["done"] for one in slots} == {f"127.0.0.{number}": 12 for number in range(2, 12)}
    assert all(one.batches["done"] >= 2 for one in slots)
