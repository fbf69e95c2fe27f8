"""The throttle under workers on real nodes, at the site's own log: the limit, its use, its spacing, and new domains."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest
from rig.commands import Command
from rig.crawls import ADDON, QUICK
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess
from rig.throttled import SPIDERS, TINY, assert_limit, mean_gap, permits_of
from rig.waiting import wait_for
from rolling import part_apart

T = TypeVar("T")

pytestmark = pytest.mark.black_box

#: an item for each page, with the moment of its permit; each request says which worker makes it
SPIDER = """
    import scrapy


    class Named:
        def __init__(self, crawler):
            self.crawler = crawler

        @classmethod
        def from_crawler(cls, crawler):
            return cls(crawler)

        def process_request(self, request, spider=None):
            request.headers["X-Worker"] = self.crawler.spider._job


    class Pages(scrapy.Spider):
        name = "pages"

        def parse_page(self, response):
            yield {"url": response.url, "at": response.meta["distributed_permit"][1]}
"""
HITS, WINDOW = 20, 4.0
GAP = WINDOW / HITS
WORKERS = 8
#: seconds over which the rate is looked at: shorter, one page would be too many of a hundred
STRETCH = 3 * WINDOW
#: the part of the limit that has to be used
USED = 0.95
BUSY, NEW = "127.0.3.1", "127.0.3.2"
#: seconds until a domain that nobody has seen before is crawled
SOON = 10.0
WHOEVER = "whoever adds pages"


class Hit(NamedTuple):
    """One request at the site."""

    time: float
    host: str
    page: int
    worker: str


class Fleet:
    """Workers that lease from a frontier, and the site, whose addresses are a domain each."""

    def __init__(self, it: Project, site: SiteProcess) -> None:
        self.it, self._site, self._port = it, site, urlsplit(site.url).port
        self.frontier = Frontier(it)
        self.frontier.register(WHOEVER, seconds=600)

    def add(self, host: str, pages: Iterable[int]) -> None:
        """In batches of two, so that every worker gets some."""
        self.frontier.fill(self._urls(host, pages), size=2, callback="parse_page")

    def _urls(self, host: str, pages: Iterable[int]) -> list[str]:
        return [f"http://{host}:{self._port}{self._site.site.detail_path(page)}" for page in pages]

    def hits(self, host: str = BUSY) -> list[Hit]:
        """What came to the site under this name."""
        numbers = self._site.site.numbers
        rows = [row for row in self._site.log() if row["host"] == f"{host}:{self._port}"]
        return [Hit(row["time"], host, numbers[row["target"]], row["headers"]["x-worker"]) for row in rows]

    def grants(self, hits: Iterable[Hit]) -> list[float]:
        """The moments of their permits, in the order of these hits, by the clock of the site's log."""
        return permits_of([self._urls(hit.host, [hit.page])[0] for hit in hits], self.it.items("items.jl"))


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2, max_proc=4, poll_interval=0.2)


@pytest.fixture
def fleet_of(project: MakeProject, site: StartSite, nodes_up: list[ScrapydNode]) -> Callable[..., Fleet]:
    def make(items: int, **settings: Any) -> Fleet:
        limit = {"DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": WINDOW}
        named = {"DOWNLOADER_MIDDLEWARES": {"small.spiders.pages.Named": 400}, "CONCURRENT_REQUESTS": 4}
        given = {**QUICK, **limit, **named, "ADDONS": ADDON, **settings}
        it = project(spiders={"pages": SPIDER}, settings=given, nodes=nodes_up)
        return Fleet(it, site(items, "--host=0.0.0.0", "--log-headers"))

    return make


def consume(start: StartCommand, fleet: Fleet, workers: int) -> Command:
    words = ("pages", "shop", "--per-slot", 0, "--max-running", workers, "-o", "items.jl")
    return start(fleet.it, "consume", *words)


def wait_while(command: Command, condition: Callable[[], T | None], what: str) -> T:
    """Wait until the condition holds; when the manager ends before that, say with which words."""

    def looked() -> T | None:
        found = condition()
        if not found and not command.running():
            raise RuntimeError(f"{what}: the manager has ended\n{command.out}\n{command.err}")
        return found

    return wait_for(looked, 90, what)


def finish(fleet: Fleet, command: Command) -> None:
    fleet.frontier.sign_off(WHOEVER)
    done = command.wait()
    assert done.code == 0, done.out + done.err


def busiest(hits: Sequence[Hit]) -> list[Hit]:
    """Of all stretches the one with the most hits: a machine that stands still for a moment is not the throttle."""
    stretches = [[hit for hit in hits if 0 <= hit.time - first.time < STRETCH] for first in hits]
    return max(stretches, key=len, default=[])


def test_eight_workers_on_two_nodes_keep_a_limit_and_use_it(
    fleet_of: Callable[..., Fleet], start_cli: StartCommand, run_cli: RunCommand
) -> None:
    """C1, and C2 moderated: no rolling window has more, and they get what there is, evenly."""
    fleet = fleet_of(400)
    fleet.add(BUSY, range(400))
    command = consume(start_cli, fleet, WORKERS)
    wait_while(command, lambda: len({hit.worker for hit in fleet.hits()}) == WORKERS, "hits of all workers")
    begun = max({hit.worker: hit.time for hit in reversed(fleet.hits())}.values())

    def used() -> list[Hit]:
        most = busiest([hit for hit in fleet.hits() if hit.time >= begun])
        return most if len(most) >= USED * HITS * STRETCH / WINDOW else []

    stretch = wait_while(command, used, "a stretch in which the limit is used")
    assert len({hit.worker for hit in stretch}) == WORKERS
    lifted = time.monotonic()
    assert run_cli(fleet.it, "throttle", "set", BUSY, "--hits", 2000, "--window", 1).code == 0
    finish(fleet, command)
    assert sorted(hit.page for hit in fleet.hits()) == list(range(400))
    hits = [hit for hit in fleet.hits() if hit.time < lifted]
    grants, times = fleet.grants(hits), [hit.time for hit in hits]
    assert_limit(grants, times, HITS, WINDOW)
    assert part_apart(grants, GAP - TINY) == 1.0
    assert part_apart(times, 0.95 * GAP) > 0.5


def test_a_refill_after_a_rest_is_spaced_and_a_new_domain_is_crawled_at_once(
    fleet_of: Callable[..., Fleet], start_cli: StartCommand
) -> None:
    """C3, C4: what was not used is not made up for; a domain that appears needs no restart and waits for no other."""
    fleet = fleet_of(100, CONCURRENT_REQUESTS=16)
    fleet.add(BUSY, range(30))
    command = consume(start_cli, fleet, 2)
    wait_while(command, lambda: len(fleet.hits()) == 30, "the first pages")
    first = fleet.hits()
    wait_for(lambda: time.monotonic() > first[-1].time + WINDOW, 30, "the end of a window without a request")

    fleet.add(BUSY, range(30, 70))
    wait_while(command, lambda: len(fleet.hits()) > 30, "the refill")
    fleet.add(NEW, range(2))
    appeared = time.monotonic()
    (new, *_) = wait_while(command, lambda: fleet.hits(NEW), "the new domain")
    assert len(fleet.hits()) < 70, "the other one is still busy"
    assert new.time - appeared < SOON
    finish(fleet, command)
    hits = fleet.hits()
    assert len(hits) == 70
    assert {hit.worker for hit in [*hits, *fleet.hits(NEW)]} <= {"shop.w1.a1", "shop.w2.a1"}, "nobody was restarted"
    assert part_apart(fleet.grants(hits), GAP - TINY) == 1.0
    assert mean_gap([hit.time for hit in hits[30:]]) > 0.9 * GAP


def test_plain_jobs_on_nodes_share_one_limit_or_have_one_for_each_spider_and_address(
    project: MakeProject, site: StartSite, nodes_up: list[ScrapydNode], run_cli: RunCommand
) -> None:
    """C6: jobs that Scrapyd was given by its own API, two spiders on two addresses; by settings alone."""
    it, there, hits = project(spiders={"pages": SPIDERS}, nodes=nodes_up), site(8, "--host=0.0.0.0"), 3
    it.settings(
        ADDONS=ADDON, DISTRIBUTED_ENABLED=False, DISTRIBUTED_STORE=str(it.path / "throttle.db"),
        DISTRIBUTED_THROTTLE_HITS=hits, DISTRIBUTED_THROTTLE_WINDOW=3600, DISTRIBUTED_THROTTLE_MODERATED=False,
    )  # fmt: skip
    assert run_cli(it, "deploy-all").code == 0
    together, apart = (f"{host}:{urlsplit(there.url).port}" for host in ("127.0.3.3", "127.0.3.4"))
    styles = {together: [], apart: ["DISTRIBUTED_THROTTLE_PER_SPIDER=True", "DISTRIBUTED_THROTTLE_PER_IP=True"]}
    jobs: list[tuple[ScrapydNode, str]] = []
    for node, address in zip(nodes_up, ("127.0.0.2", "127.0.0.3"), strict=True):
        for spider, (host, style) in itertools.product(("pages", "others"), styles.items()):
            told = {"setting": [f"DOWNLOAD_BIND_ADDRESS={address}", *style], "base": f"http://{host}"}
            answer = node.api("schedule.json", project=it.name, spider=spider, first=0, last=8, **told)
            assert answer["status"] == "ok", answer
            jobs.append((node, answer["jobid"]))

    def came() -> tuple[int, list[int]]:
        rows = Counter((row["host"], row["address"], row["target"].rpartition("=")[2]) for row in there.log())
        shared = sum(number for (host, *_), number in rows.items() if host == together)
        return shared, [number for (host, *_), number in rows.items() if host == apart]

    wait_for(lambda: came() == (hits, [hits] * 4), 90, "the hits that the limits allow")
    for node, job in jobs:
        node.api("cancel.json", project=it.name, job=job)
    for node in nodes_up:
        node.wait_idle()
    assert came() == (hits, [hits] * 4)
