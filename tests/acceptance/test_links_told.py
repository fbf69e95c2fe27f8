"""What a worker process tells a strategy, at a frontier without a scheduler: each link once, in the step of its ack."""

import gzip
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.badpeer import BadPeer, Connection
from rig.pullers import CRAWL, values_of
from rig.waiting import wait_for

from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.strategy.links import PARTITIONS, EventKind, LinkEvent, partition_of

LINKING = """
import scrapy


class Linking(scrapy.Spider):
    name = "linking"
    allowed_domains = ["127.0.0.1", "nowhere.invalid", "other.invalid"]

    def parse(self, response):
        for href in response.css("a[itemprop=url]::attr(href)").getall():
            yield response.follow(href, self.parse_article, meta=response.meta)
        yield scrapy.Request("http://other.invalid/x")
        yield scrapy.Request("http://elsewhere.invalid/x")

    def parse_article(self, response):
        yield {"url": response.url, "note": response.meta.get("note")}

    def parse_twice(self, response):
        yield response.follow("?second", self.parse_second, meta={"stays": True})

    def parse_second(self, response):
        yield {"url": response.url}
        yield response.follow("?third", self.parse_article, meta={"distribute": True})

    def parse_broken(self, response):
        yield response.follow("?seen", self.parse_article)
        raise ValueError("no price")
"""
SETTINGS = {"DISTRIBUTED_STRATEGY": "shop.strategies:News", "RETRY_ENABLED": "False"}


def told(number: int, url: str, callback: str = "parse_article", **link: Any) -> dict[str, Any]:
    """A request of a batch, as a strategy sends it."""
    whole = {
        "fingerprint": f"{number:040x}",
        "depth": 1,
        "score": 1.0,
        "expires": 0.0,
        "read": "page",
        **link,
    }
    return {"url": url, "callback": callback, "meta": {"distributed_link": whole, "note": number}}


def events(queue: Any) -> list[LinkEvent]:
    found: list[LinkEvent] = queue.store.events(CRAWL, range(PARTITIONS), 10_000)
    return found


def work(queue: Any, worker: int = 1, **settings: Any) -> None:
    queue.run(worker, settings={**SETTINGS, **settings})
    queue.accept()
    assert queue.refused == []


def fates(queue: Any) -> dict[int, tuple[str, int, str, str]]:
    """Number of a request -> kind of its event, status, error, and where its page was; each has one event."""
    pages = [event for event in events(queue) if event.kind is not EventKind.LINKS]
    found = {
        int(event.fingerprint.hex(), 16): (event.kind.value, event.status, event.error, event.url)
        for event in pages
    }
    assert len(found) == len(pages)
    return found


@pytest.fixture
def linking(project: Any, frontier: Any, engine: str) -> Callable[..., Any]:
    """`linking(CONCURRENT_REQUESTS=1)`: a frontier of the spider above, with settings of its project; on each store."""
    return lambda **settings: frontier(
        project(spiders={"linking": LINKING}, settings=settings),
        "linking",
        kind="frontier",
        where=engine,
    )


def test_each_request_leads_to_one_event_whatever_becomes_of_it(linking: Any, site: Any) -> None:
    """Strategies are told of every page and every failure, each once, with the page's address and status."""
    shop, queue = site(40), linking()
    url = shop.detail
    path = shop.site.detail_path
    shop.behave(
        {
            path(1): "gone",
            path(2): "fail",
            path(3): f"redirect:{path(0)}",  # another link of the same batch
            path(4): "redirect:http://localhost:1/elsewhere",
            path(5): "reset",
        }
    )
    queue.add(
        [
            told(0, url(0)),
            told(1, url(1)),
            told(2, url(2)),
            told(3, url(3)),
            told(4, url(4)),
            told(5, url(5)),
            told(6, url(6), "parse_broken"),
            told(7, url(7), "parse_nowhere"),
            told(8, "http://localhost:1/away"),
            told(9, "http://nowhere.invalid/"),
            told(10, url(10), expires=1.0),
            told(11, "http://127.0.0.1:1/"),
        ],
        size=20,
    )
    work(queue)
    found = fates(queue)
    offsite = "it leads to another site than those of the spider's allowed_domains"
    lost = found[5][2]
    assert lost in {"ResponseFailed", "ConnectionLost", "ConnectionDone"}
    assert found == {
        0: ("crawled", 200, "", url(0)),
        1: ("error", 404, "HttpError", url(1)),
        2: ("error", 500, "HttpError", url(2)),
        3: ("crawled", 200, "", url(0)),
        4: ("error", 0, "redirected to http://localhost:1/elsewhere, which was filtered", "http://localhost:1/elsewhere"),
        5: ("error", 0, lost, url(5)),
        6: ("error", 200, "ValueError", url(6)),
        7: ("error", 0, "it cannot be made here: the spider linking has no method 'parse_nowhere'", url(7)),
        8: ("error", 0, offsite, "http://localhost:1/away"),
        9: ("error", 0, "DNSLookupError", "http://nowhere.invalid/"),
        10: ("error", 0, "expired", url(10)),
        11: ("error", 0, "ConnectionRefusedError", "http://127.0.0.1:1/"),
    }  # fmt: skip
    assert 10 not in shop.item_hits()
    (links,) = [event for event in events(queue) if event.kind is EventKind.LINKS]
    assert [link.request["url"] for link in links.links] == [f"{url(6)}?seen"]
    assert sorted(item["note"] for item in queue.items) == [0, 3], (
        "meta of the strategy arrives in the callback"
    )


def test_links_go_by_site_each_once_with_its_callback_and_nothing_of_what_was_said_of_the_page(
    linking: Any, site: Any
) -> None:
    shop, queue = site(20, per_page=10), linking()
    queue.add([told(0, shop.index(0), "parse"), told(1, shop.index(1), "parse")], size=1)
    work(queue)
    assert queue.states() == {"done": 2}, "what was found is in no batch"
    assert set(shop.hits()) & {shop.site.detail_path(number) for number in range(20)} == set()
    by_page: dict[int, Counter[str]] = {0: Counter(), 1: Counter()}
    for event in events(queue):
        number = int(event.fingerprint.hex(), 16)
        if event.kind is EventKind.LINKS:
            assert {partition_of(site_of(link.request["url"])) for link in event.links} == {
                event.partition
            }
            by_page[number].update(link.request["url"] for link in event.links)
    assert by_page == {
        page: Counter(
            [*map(shop.detail, range(10 * page, 10 * page + 10)), "http://other.invalid/x"]
        )
        for page in (0, 1)
    }
    links = [
        link
        for event in events(queue)
        for link in event.links
        if "other" not in link.request["url"]
    ]
    assert {link.request["callback"] for link in links} == {"parse_article"}
    assert {"distributed_link" in link.request["meta"] for link in links} == {False}
    assert {link.slot for link in links} == {"127.0.0.1"}
    assert queue.store.counts(CRAWL)["offsite"] == 2
    kinds = [(int(event.fingerprint.hex(), 16), event.kind.value) for event in events(queue)]
    for page in (0, 1):
        assert [kind for number, kind in kinds if number == page] == ["crawled", "links", "links"]


@pytest.mark.black_box
def test_what_is_no_link_is_made_with_its_page_and_its_links_are_those_of_that_page(
    linking: Any, site: Any
) -> None:
    shop, queue = site(4), linking(DISTRIBUTED_TARGET_BY_META=True)
    queue.add([told(number, shop.detail(number), "parse_twice") for number in range(4)], size=4)
    work(queue)
    assert len(fates(queue)) == 4
    links = {int(event.fingerprint.hex(), 16): [link.request["url"] for link in event.links]
             for event in events(queue) if event.kind is EventKind.LINKS}  # fmt: skip
    assert links == {number: [f"{shop.detail(number)}?third"] for number in range(4)}
    assert sorted(item["url"] for item in queue.items) == sorted(
        f"{shop.detail(number)}?second" for number in range(4)
    )


#: asks for pages past the output of its callbacks: an idle handler, and what begins with no page
ASKING = """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.asked = False
        crawler.signals.connect(spider.ask, scrapy.signals.spider_idle)
        return spider

    def parse_article(self, response):
        import contextvars

        yield {"url": response.url}
        later = scrapy.Request(response.url + "?timer", self.parse_second)
        contextvars.Context().run(self.crawler.engine.crawl, later)

    def ask(self):
        if not self.asked:
            self.asked = True
            self.crawler.engine.crawl(scrapy.Request("http://other.invalid/idle", self.parse_second))
            raise scrapy.exceptions.DontCloseSpider
"""


@pytest.mark.black_box
def test_what_timers_and_idle_handlers_ask_for_is_told_to_the_strategy(
    project: Any, frontier: Any, site: Any
) -> None:
    shop = site(2)
    queue = frontier(project(spiders={"linking": LINKING + ASKING}), "linking", kind="frontier")
    queue.add([told(0, shop.detail(0))])
    work(queue)
    links = [link.request["url"] for event in events(queue) for link in event.links]
    assert sorted(links) == sorted([f"{shop.detail(0)}?timer", "http://other.invalid/idle"])
    assert sum(shop.hits().values()) == 1


RULED = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Ruled(CrawlSpider):
    name = "ruled"
    rules = (
        Rule(LinkExtractor(restrict_css=".next")),
        Rule(LinkExtractor(restrict_css="a[itemprop=url]"), callback="parse_article"),
    )

    def parse_article(self, response):
        yield {"url": response.url}
"""


@pytest.mark.black_box
def test_all_rules_of_a_crawl_spider_lead_to_links_and_a_seed_is_followed_by_them(
    project: Any, frontier: Any, site: Any
) -> None:
    shop = site(20, per_page=10)
    queue = frontier(project(spiders={"ruled": RULED}), "ruled", kind="frontier")
    seed = {name: item for name, item in told(0, shop.index(0)).items() if name != "callback"}
    queue.add([seed])
    work(queue)
    rules = {
        link.request["url"]: link.request["rule"] for event in events(queue) for link in event.links
    }
    assert rules == {shop.index(1): 0} | {shop.detail(number): 1 for number in range(10)}
    assert sum(shop.hits().values()) == 1
    # as links of the strategy they go to their rule's callback
    queue.add([{**told(1, shop.detail(3)), "rule": 1}])
    work(queue, 2)
    assert [item["url"] for item in queue.items] == [shop.detail(3)]


PAGES: Mapping[str, tuple[str, bytes]] = {
    "/robots.txt": ("text/plain", b"User-agent: *\nDisallow: /\nSitemap: /index.xml"),
    "/index.xml": (
        "application/xml",
        b"<sitemapindex><sitemap><loc>/deep.xml.gz</loc></sitemap></sitemapindex>",
    ),
    "/deep.xml.gz": (
        "application/x-gzip",
        gzip.compress(b"<urlset><url><loc>http://127.0.0.1/a</loc></url></urlset>"),
    ),
    "/wrong.xml": ("text/html", b"<html><body>Not found, but 200</body></html>"),
}


@pytest.fixture
def pages() -> Iterator[str]:
    """The address of a site with the pages above; it has no others."""

    def play(connection: Connection, request: bytes) -> None:
        path = urlsplit(request.split(b" ", 2)[1].decode()).path
        kind, body = PAGES.get(path, ("", b""))
        connection.answer(
            200 if kind else 404, body, f"Content-Type: {kind or 'text/plain'}", "Connection: close"
        )

    with closing(BadPeer(play)) as peer:
        yield f"http://127.0.0.1:{peer.port}"


@pytest.mark.parametrize("spider", ["linking", "ruled"])
@pytest.mark.black_box
def test_what_the_strategy_reads_itself_goes_to_no_callback(
    project: Any, frontier: Any, pages: str, spider: str
) -> None:
    """robots.txt and sitemaps, with every class of spider: as text, or as links."""
    place = project(spiders={"linking": LINKING, "ruled": RULED}, settings={"ROBOTSTXT_OBEY": True})
    queue = frontier(place, spider, kind="frontier")
    reads = {"/robots.txt": "body", "/missing.txt": "body"}
    reads |= dict.fromkeys(["/index.xml", "/deep.xml.gz", "/wrong.xml", "/missing.xml"], "sitemap")
    values = [
        told(number, pages + path, read=read) for number, (path, read) in enumerate(reads.items())
    ]
    for value in values:
        del value["callback"]
        value["meta"]["dont_obey_robotstxt"] = "robots" not in value["url"]
    queue.add(values)
    work(queue)
    found = fates(queue)
    assert {number: fate[:3] for number, fate in found.items()} == {
        0: ("crawled", 200, ""),
        1: ("error", 404, "HttpError"),
        2: ("crawled", 200, ""),
        3: ("crawled", 200, ""),
        4: ("error", 200, "NoSitemap"),
        5: ("error", 404, "HttpError"),
    }
    bodies = {
        event.url.removeprefix(pages): event.body
        for event in events(queue)
        if event.body is not None
    }
    assert bodies == {"/robots.txt": PAGES["/robots.txt"][1].decode()}
    links = [link.request for event in events(queue) for link in event.links]
    assert sorted(links, key=json.dumps) == [
        {"url": "http://127.0.0.1/a"},
        {"url": f"{pages}/deep.xml.gz", "meta": {"distributed_link": {"read": "sitemap"}}},
    ]
    assert queue.items == []


@pytest.mark.black_box
def test_requests_leave_by_score_and_equal_ones_in_the_order_of_their_batch(
    linking: Any, site: Any
) -> None:
    """F9 at the site's log: with one request at a time, and pages that lead to more before their turn."""
    shop, queue = site(40), linking(CONCURRENT_REQUESTS=1, DISTRIBUTED_TARGET_BY_META=True)
    scores = [0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.0]
    # The batches come in the order of their priorities, each is the best of its requests.
    for start, priority in ((10, 0.8), (0, 1.0)):
        batch = [
            told(start + at, shop.detail(start + at), "parse_twice", score=priority * score)
            for at, score in enumerate(scores)
        ]
        queue.add(batch, size=10, priority=round(0.9 * priority * 1_000_000))
    work(queue)
    asked = [hit["target"].partition("?") for hit in shop.log()]
    numbers = [shop.site.numbers[path] for path, _, query in asked if not query]
    assert numbers == list(range(20))
    followed = [shop.site.numbers[path] for path, _, query in asked if query == "second"]
    assert sorted(followed) == list(range(20))
    # What a page leads to is made before pages of a lower score, but for the one that leaves while it is parsed.
    order = [(shop.site.numbers[path], query) for path, _, query in asked]
    assert order.index((2, "second")) < order.index((4, ""))
    assert order.index((6, "second")) < order.index((8, ""))


@pytest.mark.black_box
def test_a_killed_worker_tells_nothing_and_the_next_one_tells_all_of_it_once(
    linking: Any, site: Any
) -> None:
    shop, queue = site(6, "--latency=0.3"), linking(CONCURRENT_REQUESTS=1)
    queue.add([told(number, shop.detail(number)) for number in range(6)], size=3)
    worker = queue.begin(1, lease=3.0, settings=SETTINGS)
    wait_for(lambda: sum(shop.item_hits().values()) >= 5, 30, "a batch and the half of another")
    worker.signal(signal.SIGKILL)
    worker.wait(30)
    assert [event.fingerprint.hex()[-1] for event in events(queue)] == ["0", "1", "2"]
    wait_for(
        lambda: queue.accept() or queue.states() == {"done": 1, "failed": 1},
        30,
        "the lease runs out",
    )
    work(queue, 2)
    assert {number: fate[0] for number, fate in fates(queue).items()} == dict.fromkeys(
        range(6), "crawled"
    )


@pytest.mark.black_box
def test_a_batch_that_is_cut_short_is_told_when_it_is_made_again(linking: Any, site: Any) -> None:
    shop, queue = site(6, "--latency=0.3"), linking(CONCURRENT_REQUESTS=1)
    queue.add([told(number, shop.detail(number)) for number in range(6)], size=6)
    worker = queue.begin(1, settings=SETTINGS)
    wait_for(lambda: sum(shop.item_hits().values()) >= 3, 30, "the first pages")
    worker.signal(signal.SIGTERM)
    worker.wait(30)
    assert events(queue) == []
    queue.accept()
    assert queue.refused == ["the worker ended early (shutdown)"]
    queue.refused.clear()
    work(queue, 2)
    assert len(fates(queue)) == 6


@pytest.mark.black_box
def test_requests_that_a_goal_puts_off_are_told_when_they_are_made(linking: Any, site: Any) -> None:
    """They are not told as errors: the scheduler makes them again, in another batch."""
    shop, queue = site(10), linking(CONCURRENT_REQUESTS=1)
    queue.add([told(number, shop.detail(number)) for number in range(10)], size=10)
    queue.run(1, settings=SETTINGS, goals={"requests": 4})
    queue.accept()
    assert {number: fate[0] for number, fate in fates(queue).items()} == dict.fromkeys(
        range(4), "crawled"
    )
    assert queue.store.misses(CRAWL) == []
    assert [(batch.size, batch.state.value) for batch in queue.store.batches(CRAWL)] == [
        (10, "done"),
        (6, "sealed"),
    ]


@pytest.mark.black_box
def test_a_worker_of_a_strategy_has_no_start_of_its_own_and_its_login_is_none_of_the_strategys(
    project: Any, frontier: Any, site: Any
) -> None:
    shop = site(6)
    login = f"""
    def log_in(self):
        yield scrapy.Request("{shop.detail(4)}", self.logged_in, dont_filter=True)

    def logged_in(self, response):
        yield response.follow("?token", self.entered, dont_filter=True)

    def entered(self, response):
        pass
"""
    place = project(spiders={"linking": LINKING + login}, settings={"DISTRIBUTED_LOGIN": "log_in"})
    queue = frontier(place, "linking", kind="frontier")
    queue.add(values_of([shop.detail(0)], callback="parse_article"))
    work(queue)
    assert shop.hits()[f"{shop.site.detail_path(4)}?token"] == 1
    (event,) = events(queue)
    assert event.url == shop.detail(0)
    queue.begin(2, settings=SETTINGS, start="first").wait(30)
    assert "told its seeds" in queue.report(2).problem
    assert len(queue.store.attempts(CRAWL)) == 1, "it has leased none"


@pytest.mark.black_box
def test_a_crawl_without_a_strategy_is_none_with_the_setting(project: Any, frontier: Any) -> None:
    queue = frontier(project(spiders={"linking": LINKING}), "linking")
    queue.begin(1, settings=SETTINGS).wait(30)
    assert "this crawl has no strategy" in queue.report(1).problem
