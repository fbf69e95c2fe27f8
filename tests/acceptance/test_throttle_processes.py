"""The throttle in plain processes, at the site's own log: bursts, domains, styles, addresses, and what a site says."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.badpeer import BadPeer, Connection
from rig.crawls import ADDON
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.throttled import SPIDERS, Throttled, assert_limit, mean_gap
from rig.waiting import wait_for

from scrapyd_dist.store import open_store

pytestmark = pytest.mark.black_box

#: seconds in which all hits of a window come, where they may
BURST = 1.0
BURSTS, KNOWN, UNKNOWN = "127.0.4.1", "127.0.4.2", "127.0.4.3"
#: what the service says
PUBLIC = "203.0.113.7"


@pytest.fixture
def crawls(
    project: MakeProject, site: Callable[..., Any], start_scrapy: StartCommand
) -> Callable[..., Throttled]:
    def make(hits: int, window: float, **settings: Any) -> Throttled:
        limit = {"DISTRIBUTED_THROTTLE_HITS": hits, "DISTRIBUTED_THROTTLE_WINDOW": window}
        it = project(spiders={"pages": SPIDERS})
        return Throttled(it, site(200, "--host=0.0.0.0"), start_scrapy, {**limit, **settings})

    return make


def test_without_moderation_all_hits_of_a_window_come_at_once_and_then_none(
    crawls: Callable[..., Throttled],
) -> None:
    """C2: two processes have one burst between them, in each window."""
    hits, window = 10, 4.0
    it = crawls(hits, window, DISTRIBUTED_THROTTLE_MODERATED=False)
    jobs = [
        it.crawl(BURSTS, 0, 15, output="0.jl"),
        it.crawl(BURSTS, 15, 30, spider="others", output="1.jl"),
    ]
    for command in jobs:
        assert command.wait().code == 0
    times = it.times(BURSTS)
    assert len(times) == 30
    # The quickest of them: a machine that stands still for a moment is not the throttle.
    assert (
        min(last - first for first, last in zip(times, times[hits - 1 :], strict=False)) < BURST
    ), times
    assert assert_limit(it.permits(BURSTS, "0.jl", "1.jl"), times, hits, window) == hits


#: leads every host to this machine
LOOPBACK = """
from scrapy.resolver import CachingThreadedResolver
from twisted.internet import defer


class Loopback(CachingThreadedResolver):
    def getHostByName(self, name, timeout=()):
        return defer.succeed("127.0.0.1")
"""


def test_hosts_of_one_registered_domain_share_a_limit_and_those_of_a_public_suffix_do_not(
    crawls: Callable[..., Throttled],
) -> None:
    """C8: the window is longer than the test."""
    it = crawls(
        3, 3600, DISTRIBUTED_THROTTLE_MODERATED=False, DNS_RESOLVER="small.loopback.Loopback"
    )
    it.project.write("small/loopback.py", LOOPBACK)
    hosts = ("a.x.co.uk", "b.x.co.uk", "x.com.br", "y.com.br")
    running = [it.crawl(host, 0, 10) for host in hosts]

    def came() -> tuple[int, ...]:
        first, second, *others = (len(it.hits(host)) for host in hosts)
        return first + second, *others

    wait_for(lambda: came() == (3, 3, 3), 60, "the hits that the limits allow")
    for command in running:
        command.signal()
        assert command.wait(60).code == 0
    assert came() == (3, 3, 3)


class Service:
    """A service that tells each client the client's address, until it hangs."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.open = 0
        self.peer = BadPeer(self._play)
        self.url = f"http://127.0.0.1:{self.peer.port}/raw"

    def _play(self, connection: Connection, _request: bytes) -> None:
        if not self.hangs.is_set():
            connection.answer(200, PUBLIC.encode())
            return
        self.open += 1
        connection.hang()


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    with closing(one.peer):
        yield one


def test_a_service_of_addresses_that_hangs_holds_nothing_up_and_no_limit_is_exceeded(
    crawls: Callable[..., Throttled], service: Service, run_cli: RunCommand
) -> None:
    """C7: who knew the address goes on under it, who never did under a name that all of those share."""
    gap = 0.2
    ours: dict[str, Any] = {
        "DISTRIBUTED_THROTTLE_PER_IP": True, "DISTRIBUTED_THROTTLE_PUBLIC_IP": service.url,
        "DISTRIBUTED_THROTTLE_PUBLIC_IP_REFRESH": 0.2,
    }  # fmt: skip
    it = crawls(10, 10 * gap, **ours)
    knowing = [it.crawl(KNOWN, 0, 100), it.crawl(KNOWN, 100, 200, spider="others")]
    wait_for(lambda: _spiders(it, KNOWN) == 2, 60, "hits of both processes")
    service.hangs.set()
    wait_for(lambda: service.open >= 2, 60, "questions of both that get no answer")
    before = len(it.hits(KNOWN))
    for command in [it.crawl(UNKNOWN, 0, 10), it.crawl(UNKNOWN, 10, 20, spider="others")]:
        assert command.wait().code == 0
    during = it.times(KNOWN)[before:]
    for command in knowing:
        command.interrupt()
        assert command.wait().code == 0
    assert len(it.hits(UNKNOWN)) == 20
    assert min(mean_gap(it.times(host)) for host in (KNOWN, UNKNOWN)) > 0.9 * gap
    assert mean_gap(during) < 3 * gap, (
        "a question that waits five seconds for its answer holds up nothing"
    )
    shown = run_cli(it.project, "throttle", "show", "--json", env={"SDIST_STORE": it.store}).json()
    keys = {row["domain"]: set(row["keys"]) for row in shown["domains"]}
    assert keys == {KNOWN: {f"{PUBLIC}|{KNOWN}"}, UNKNOWN: {f"unknown|{UNKNOWN}"}}


def _spiders(it: Throttled, host: str) -> int:
    return len({row["target"].rpartition("=")[2] for row in it.hits(host)})


#: requests of each style in the only window that there is
STYLE_HITS = 3
#: host, the settings of its style, and what is counted apart at it
STYLES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("127.0.1.1", {}, ()),
    ("127.0.1.2", {"DISTRIBUTED_THROTTLE_PER_SPIDER": True}, ("spider",)),
    ("127.0.1.3", {"DISTRIBUTED_THROTTLE_PER_IP": True}, ("address",)),
    (
        "127.0.1.4",
        {"SCHEDULER_TYPE_ENABLED": True, "SCHEDULER_IP_ENABLED": True},
        ("spider", "address"),
    ),
]
ADDRESSES = "127.0.0.2,127.0.0.3"
#: no server listens there
NO_SERVICE = "http://127.0.0.1:9/raw"


def test_two_spiders_on_two_addresses_have_one_two_two_or_four_limits(
    crawls: Callable[..., Throttled],
) -> None:
    """C6, C7: and two processes that cannot learn their address crawl, and share one limit."""
    it = crawls(STYLE_HITS, 3600, DISTRIBUTED_THROTTLE_MODERATED=False)
    running = [
        it.crawl(host, 0, 10, spider=spider, addresses=ADDRESSES, **style)
        for host, style, _ in STYLES
        for spider in ("pages", "others")
    ]
    unknown: dict[str, Any] = {
        "DISTRIBUTED_THROTTLE_PER_IP": True,
        "DISTRIBUTED_THROTTLE_PUBLIC_IP": NO_SERVICE,
    }
    nameless = [it.crawl("127.0.1.5", 0, 10, **unknown) for _ in range(2)]
    expected = {host: [STYLE_HITS] * 2 ** len(apart) for host, _, apart in STYLES} | {
        "127.0.1.5": [STYLE_HITS]
    }

    def came() -> dict[str, list[int]]:
        counts = {
            host: Counter(tuple(_part(row, what) for what in apart) for row in it.hits(host))
            for host, _, apart in [*STYLES, ("127.0.1.5", {}, ())]
        }
        return {host: list(count.values()) for host, count in counts.items()}

    # All further requests wait for the next window, an hour from now.
    def allowed() -> bool:
        assert came() == expected
        return True

    wait_for(allowed, 90, "the hits that the limits allow")
    for command in [*running, *nameless]:
        command.signal()
        assert command.wait(90).code == 0
        assert "log_count/ERROR" not in command.err
    assert came() == expected
    assert all("127.0.0.1 does not tell the address" in command.err for command in nameless)


def _part(row: dict[str, Any], what: str) -> str:
    return str(row["target"].rpartition("=")[2] if what == "spider" else row["address"])


#: seconds between two requests of the limit
USUAL_GAP = 0.05
#: seconds after which the news has reached every process: one look at the store is due in each; and a busy machine
NEWS = 4.0
REFUSES, DELAYS, SLOW = "127.0.2.1", "127.0.2.2", "127.0.2.3"
#: hits whose mean gap tells the pace
ENOUGH = 30
#: seconds that the site wants to be left alone for
REST = 8
DELAY = 0.5
LATENCY = 0.25


def test_what_a_site_says_to_one_worker_is_heeded_by_all(
    project: Any, site: Any, start_scrapy: StartCommand
) -> None:
    """B9: refusals, a Crawl-delay, and the concurrency of AutoThrottle, each at a host of its own."""
    shop = site(10_000, "--host=0.0.0.0")
    shop.behave(
        {
            shop.site.detail_path(9000): f"busy:{REST}",
            "/robots.txt": f"says:User-agent: *\nCrawl-delay: {DELAY}",
            "/properties/property_0080*": f"slow:{LATENCY}",
        }
    )
    limit = {
        "DISTRIBUTED_THROTTLE_HITS": 20,
        "DISTRIBUTED_THROTTLE_WINDOW": 20 * USUAL_GAP,
        "RETRY_ENABLED": False,
    }
    crawls = Throttled(project(spiders={"pages": SPIDERS}), shop, start_scrapy, limit)

    bound: dict[str, Any] = {
        "DISTRIBUTED_THROTTLE_HITS": 2000,
        "DISTRIBUTED_THROTTLE_CONCURRENCY": 1,
    }
    workers = [
        crawls.crawl(REFUSES, 0, 2000),
        crawls.crawl(REFUSES, 2000, 4000, spider="others"),
        crawls.crawl(DELAYS, 0, 2000),
        crawls.crawl(SLOW, 8000, 8050, **bound),
        crawls.crawl(SLOW, 8050, 8099, spider="others", **bound),
    ]
    wait_for(
        lambda: _spiders(crawls, REFUSES) == 2 and _spiders(crawls, DELAYS) == 1,
        60,
        "hits of three processes",
    )
    wait_for(lambda: len(crawls.hits(REFUSES)) >= ENOUGH, 60, "the usual pace")
    crawls.crawl(REFUSES, 9000, 9001).wait(60)
    crawls.crawl(DELAYS, 3000, 4000, spider="others", ROBOTSTXT_OBEY=True)

    _check_rest(crawls)
    _check_delay(crawls)
    for worker in workers[:3]:
        worker.interrupt()
    _check_concurrency(crawls)


def _hit(crawls: Throttled, host: str, part: str) -> float | None:
    """When the first request with this in its target came; None before that."""
    return next((row["time"] for row in crawls.hits(host) if part in row["target"]), None)


def _check_rest(crawls: Throttled) -> None:
    """No request comes while the site rests, and then both do, half as often as before."""
    refused = wait_for(lambda: _hit(crawls, REFUSES, "009000"), 60, "the refusal")
    later = wait_for(lambda: _two_after(crawls, refused + REST), 60, "both spiders after the rest")
    times = crawls.times(REFUSES)
    before = [moment for moment in times if moment <= refused]
    assert [moment - refused for moment in times if refused + NEWS < moment < refused + REST] == []
    assert mean_gap(before) < USUAL_GAP * 1.5
    assert mean_gap(later) > USUAL_GAP * 2 * 0.9


def _two_after(crawls: Throttled, moment: float) -> list[float]:
    """The hits after a moment, once there are many of both spiders."""
    rows = [row for row in crawls.hits(REFUSES) if row["time"] >= moment]
    enough = len(rows) >= ENOUGH and len({row["target"].rpartition("=")[2] for row in rows}) == 2
    return [row["time"] for row in rows] if enough else []


def _check_delay(crawls: Throttled) -> None:
    """One of the two has read robots.txt; the other does not even ask for it."""
    read = wait_for(lambda: _hit(crawls, DELAYS, "/robots.txt"), 60, "a look at robots.txt")
    later = wait_for(
        lambda: _many([t for t in crawls.times(DELAYS) if t > read + NEWS], 6),
        60,
        "six delayed hits",
    )
    assert mean_gap([t for t in crawls.times(DELAYS) if t < read]) < DELAY / 2
    assert mean_gap(later) > DELAY * 0.9
    assert len([row for row in crawls.hits(DELAYS) if row["target"] == "/robots.txt"]) == 1


def _many(times: list[float], number: int) -> list[float]:
    return times if len(times) >= number else []


def _check_concurrency(crawls: Throttled) -> None:
    """Two processes, and one request at a time: it takes as long as the site does."""
    times = wait_for(lambda: _many(crawls.times(SLOW), 60), 60, "hits of the slow pages")
    settled = [moment for moment in times if moment > times[0] + NEWS]
    assert len(settled) > 5
    assert mean_gap(settled) > LATENCY * 0.9


HOSTS = 300
#: finds a page of each host at once, and stays for longer than a domain is remembered; then tells what there still is.
#: (Objects are counted as they come and go: who lists all of a process breaks tuples that a thread is just making.)
BROAD = """
    import asyncio
    import gc
    import json
    from collections import Counter
    from pathlib import Path

    import scrapy
    from scrapy import signals
    from scrapyd_dist.middlewares.throttle import domain_queues
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


    domain_queues.LINGER = 1.0  # 10 in people's processes
    for each in (domain_queues.DomainQueue, Permit, PermitRequest, PermitReply):
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
                await asyncio.sleep(3)  # longer than a queue lingers
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
    it = project(spiders={"broad": BROAD}, settings=settings)
    urls = [
        f"http://127.1.{number // 200}.{number % 200 + 1}:{port}{page}" for number in range(HOSTS)
    ]
    (it.path / "urls").write_text("\n".join(urls), encoding="utf-8")
    first = f"http://127.2.0.1:{port}{page}"
    run_scrapy(it, "crawl", "broad", "-a", f"first={first}", "-a", f"hosts={HOSTS}", code=0)
    told = json.loads((it.path / "told.json").read_text(encoding="utf-8"))
    assert sorted(hit["host"] for hit in there.log()) == sorted(
        urlsplit(url).netloc for url in [first, *urls]
    )
    assert told["permits"] == HOSTS + 1
    assert told["steps"] < HOSTS / 4, told
    # Where a process gets no processor time for long, some permits grow old.
    assert told["asks"] < 2 * HOSTS, told
    assert set(told["made"]) == {"DomainQueue", "Permit", "PermitRequest", "PermitReply"}, told
    assert min(told["made"].values()) > HOSTS, told
    assert told["objects"] == {}, told
    with closing(
        open_store(tmp_path / "store.db")
    ) as store:  # a grant counts for as long as its window
        assert len(store.domain_states()) == HOSTS + 1
