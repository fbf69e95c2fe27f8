"""What a worker tells a strategy of a batch: one word for each link, its page's links once each, by their sites."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from rig.scheduling import run
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.classifier import Disposition
from scrapyd_dist.middlewares.codec import from_value
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.targets import find_links, with_target
from scrapyd_dist.middlewares.worker.link_events import (
    BODY_BYTES,
    NoSitemap,
    PageLinks,
    StrategyBatch,
    error_name,
    sitemap_links,
)
from scrapyd_dist.middlewares.worker.sent_session import SentSession
from twisted.internet.error import DNSLookupError

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import REPLACES, RequestValue
from scrapyd_dist.strategy.links import EVENT_LINKS, EventKind, LinkEvent, partition_of

STRATEGY = "shop.strategies:News"
INDEX = """<?xml version="1.0"?><sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
<sitemap><loc>http://web/a.xml</loc></sitemap><sitemap><loc> /b.xml.gz </loc></sitemap></sitemapindex>"""
URLSET = """<urlset><url><loc>http://web/1</loc></url><url><loc>http://web/2</loc><lastmod>2026</lastmod></url>
<url><lastmod>2026</lastmod></url></urlset>"""


class Plain(Spider):
    name = "plain"
    allowed_domains = ("web", "other", "sub.web")

    def parse(self, response: Any) -> None: ...

    def parse_article(self, response: Any) -> None: ...


class Ruled(CrawlSpider):
    name = "ruled"
    rules = (
        Rule(LinkExtractor(restrict_css="nav a")),
        Rule(LinkExtractor(allow="/article/"), callback="parse_article"),
    )

    def parse_article(self, response: Any) -> None: ...


class OwnParse(Spider):
    """Has no callback for a page of none."""

    name = "own"

    def parse_article(self, response: Any) -> None: ...


def crawler_of(spider: type[Spider] = Plain, **settings: Any) -> Any:
    crawler = get_crawler(
        spider, {"SPIDER_MODULES": [__name__], "DISTRIBUTED_STRATEGY": STRATEGY, **settings}
    )
    crawler.spider = spider.from_crawler(crawler)
    offsite = OffsiteMiddleware.from_crawler(crawler)
    offsite.spider_opened(crawler.spider)
    # in the place of the real one
    crawler.get_downloader_middleware = {OffsiteMiddleware: offsite}.get  # type: ignore[method-assign,assignment]
    return crawler


def told(number: int, **more: Any) -> RequestValue:
    """A request of a batch, as a strategy sends it."""
    link = {
        "fingerprint": f"{number:040x}",
        "depth": 0,
        "score": 1.0,
        "expires": 0.0,
        "read": "page",
        **more,
    }
    return {
        "url": f"http://web/{number}",
        "callback": "parse_article",
        "meta": {"distributed_link": link, "k": number},
    }


class Bench:
    """A batch of links in a process that is not crawling."""

    def __init__(
        self, *values: RequestValue, spider: type[Spider] = Plain, **settings: Any
    ) -> None:
        self.crawler = crawler_of(spider, **settings)
        slotting = SlotRouting.from_settings(
            self.crawler.settings, project="shop", spider=spider.name
        )
        self.links = PageLinks(crawler=self.crawler, key=None, slotting=slotting)
        self.batch = StrategyBatch(7, 1, list(values or (told(0), told(1))), None, finds=self.links)

    def found(self, source: int, url: str, **fields: Any) -> str:
        return self.links.keep(Request(url, **fields), source).value

    def page(self, index: int, body: bytes = b"<p>", **fields: Any) -> Response:
        """Its page came, and its callback has run to the end."""
        response = HtmlResponse(f"http://web/{index}", **{"body": body, **fields})
        self.batch.ledger.page(index, response)
        self.batch.ledger.done(index)
        return response

    def request(self, index: int) -> Request:
        """As Scrapy gets it."""
        request = self.batch.made(from_value(self.batch.values[index], self.crawler.spider), index)
        request.meta["distributed_batch"] = self.batch.begin(index)
        return request

    async def read(self, index: int, body: bytes) -> None:
        """Its page goes to the callback that it has."""
        request = self.request(index)
        assert request.callback
        response = HtmlResponse(request.url, body=body, request=request)
        self.batch.ledger.page(index, response)
        output = request.callback(response)
        if output is not None:
            await output
        self.batch.ledger.done(index)

    def kinds(self) -> list[tuple[str, str]]:
        return [
            (event.url.removeprefix("http://web/"), event.kind.value)
            for event in self.batch.events()
        ]


def urls(event: LinkEvent) -> list[str]:
    return [link.request["url"] for link in event.links]


# links


def test_a_page_tells_of_each_link_once_and_two_pages_of_the_same() -> None:
    bench = Bench()
    for source, url in (
        (0, "http://web/a"),
        (0, "http://web/a#part"),
        (1, "http://web/a"),
        (0, "http://web/b"),
    ):
        bench.found(source, url)
    bench.page(0)
    bench.page(1)
    assert [(event.kind.value, urls(event)) for event in bench.batch.events()] == [
        ("crawled", []),
        ("links", ["http://web/a", "http://web/b"]),
        ("crawled", []),
        ("links", ["http://web/a"]),
    ]
    assert bench.links.take_counts() == {"duplicate": 1}


def test_a_link_has_the_projects_fingerprint_however_often_it_is_wanted_and_the_slot_of_its_site() -> (
    None
):
    bench = Bench()
    request = Request("http://sub.web/a", dont_filter=True)
    bench.found(0, request.url, dont_filter=True, callback=bench.crawler.spider.parse_article)
    (link,) = bench.links.links_of(0)
    assert link.fingerprint == bench.crawler.request_fingerprinter.fingerprint(request)
    assert (link.slot, link.request["callback"]) == (site_of(request.url), "parse_article")


def test_what_the_strategy_said_of_a_page_is_not_said_of_its_links() -> None:
    bench = Bench(told(0, read="body"))
    bench.found(0, "http://web/a", meta=from_value(told(0, read="body"), bench.crawler.spider).meta)
    (link,) = bench.links.links_of(0)
    assert link.request["meta"]["k"] == 0
    assert "distributed_link" not in link.request["meta"]


def test_links_off_the_site_and_those_that_cannot_travel_are_counted_and_told(caplog: Any) -> None:
    bench = Bench()
    assert bench.found(0, "http://elsewhere/") == "offsite"
    for url in ("http://web/a", "http://web/b"):
        assert bench.found(0, url, callback=lambda response: None) == "refused"
    assert list(bench.links.links_of(0)) == []
    assert bench.links.take_counts() == {"offsite": 1, "refused": 2}
    assert [
        record.message for record in caplog.records if "cannot go to the strategy" in record.message
    ] != []
    assert len(bench.links.reasons) == 1


def test_a_link_for_another_spider_is_refused_with_a_word() -> None:
    bench = Bench()
    assert bench.found(0, "http://web/a", meta={"distribute": "own"}) == "refused"
    (miss,) = bench.links.take_misses()
    assert "a crawl with a strategy" in miss.reason
    assert bench.found(0, "http://web/a", meta={"distribute": "plain"}) == "sealed"


def test_links_go_by_the_partitions_of_their_sites_and_no_event_has_too_many() -> None:
    bench = Bench(told(0))
    for number in range(EVENT_LINKS + 5):
        bench.found(0, f"http://web/p{number}")
    bench.found(0, "http://other/x")
    bench.page(0)
    page, *events = bench.batch.events()
    assert page.kind is EventKind.CRAWLED
    assert [(event.partition, len(event.links)) for event in events] == [
        (partition_of("web"), EVENT_LINKS),
        (partition_of("web"), 5),
        (partition_of("other"), 1),
    ]
    assert {event.fingerprint for event in events} == {page.fingerprint}


def test_links_that_no_page_led_to_are_told_with_the_last_page_that_has_ended() -> None:
    """A timer, a signal or an idle handler has asked for them."""
    bench = Bench(told(0), told(1), told(2))
    assert bench.links.keep(Request("http://web/timer")) is Disposition.SEALED
    idle = PageLinks(crawler=bench.crawler, key=None, slotting=bench.links.slotting)
    assert [idle.keep(Request("http://other/idle")).value for _ in range(2)] == [
        "sealed",
        "duplicate",
    ]
    assert idle.give_to(bench.links)
    assert not idle.give_to(bench.links)
    bench.page(0)
    bench.page(1)
    bench.batch.ledger.put_off(2)
    events = [event for event in bench.batch.events() if event.kind is EventKind.LINKS]
    assert [(event.url, *urls(event)) for event in events] == [
        ("http://web/1", "http://web/timer"),
        ("http://web/1", "http://other/idle"),
    ]
    # A batch that is made again tells of its own requests then, but nothing brings these again.
    assert bench.batch.events(is_good=False) == events
    assert bench.links.take_counts() == {"duplicate": 1}


def test_links_of_no_page_that_no_batch_can_tell_of_are_counted_and_told(caplog: Any) -> None:
    bench = Bench()
    bench.batch.values.clear()
    bench.links.keep(Request("http://web/timer"))
    assert bench.batch.events() == []
    assert bench.links.take_counts() == {"refused": 1}
    assert "1 links that no page led to cannot be told" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "http://a.web.co.uk/x/y",
        "https://me:x@a.web.co.uk:8080?q=/1",
        "http://127.0.0.1/",
        "http://web#x",
        "data:,x/y/z/1",
    ],
)
def test_the_partition_of_a_link_is_that_of_its_site(url: str) -> None:
    bench = Bench({**told(0), "url": url})
    (event,) = bench.batch.events()
    assert event.partition == partition_of(site_of(url))


# which outputs are links


def takes(
    spider: type[Spider], callback: str | None = None, rule: int | None = None, **settings: Any
) -> bool:
    crawler = crawler_of(spider, **settings)
    named: Any = (
        crawler.spider._callback
        if rule is not None
        else callback and getattr(crawler.spider, callback)
    )
    request = Request("http://web/", callback=named, meta={} if rule is None else {"rule": rule})
    return find_links(crawler.spider, crawler.settings).takes(request, crawler.spider)


def test_every_request_is_a_link_where_no_target_is_named() -> None:
    assert takes(Plain)
    assert takes(Plain, "parse_article")
    assert takes(Ruled, "parse_article")
    assert takes(Ruled, rule=0)


def test_where_one_is_named_its_requests_are_and_those_of_all_rules() -> None:
    named: dict[str, Any] = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"]}
    assert takes(Plain, "parse_article", **named)
    assert not takes(Plain, **named)
    assert takes(Ruled, rule=0, DISTRIBUTED_TARGET_RULE=1)
    assert not takes(Ruled, "parse_article", DISTRIBUTED_TARGET_RULE=1)
    assert not takes(Plain, "parse_article", DISTRIBUTED_TARGET_BY_META=True)
    with pytest.raises(ConfigError, match="no rule 7"):
        takes(Ruled, DISTRIBUTED_TARGET_RULE=7)


def test_an_address_of_the_strategy_goes_to_the_rule_that_names_such_or_to_parse_or_to_the_target() -> (
    None
):
    article, page = {"url": "http://web/article/1"}, {"url": "http://web/"}
    assert with_target(article, crawler_of(Ruled)) == {"rule": 1, **article}
    assert with_target(page, crawler_of(Ruled)) == page
    named: dict[str, Any] = {"DISTRIBUTED_TARGET_CALLBACKS": ["parse_article"]}
    assert with_target(page, crawler_of(Plain, **named)) == page
    assert with_target(page, crawler_of(OwnParse, **named)) == {"callback": "parse_article", **page}


# what is told of each request


def test_each_request_leads_to_one_event_whatever_became_of_it() -> None:
    bench = Bench(*(told(number) for number in range(9)))
    ledger = bench.batch.ledger
    bench.page(0, status=206)
    ledger.missed(1, "gone", "HTTP 404", HttpError(Response("http://web/1/", status=404)))
    ledger.missed(2, "failed", "DNSLookupError: no", DNSLookupError())
    bench.page(3)
    ledger.missed(3, "failed", "ValueError in the callback: no price", ValueError("no price"))
    ledger.missed(4, "gone", "it leads to another site")
    ledger.redirected(5, "http://web/elsewhere")
    ledger.redirected(6, "http://web/new")
    ledger.page(6, HtmlResponse("http://web/new"))
    ledger.done(6)
    ledger.put_off(7)
    events = bench.batch.events()
    assert [
        (event.kind.value, event.url.removeprefix("http://web/"), event.status, event.error)
        for event in events
    ] == [
        ("crawled", "0", 206, ""),
        ("error", "1/", 404, "HttpError"),
        ("error", "2", 0, "DNSLookupError"),
        ("error", "3", 200, "ValueError"),
        ("error", "4", 0, "it leads to another site"),
        ("error", "elsewhere", 0, "redirected to http://web/elsewhere, which was filtered"),
        ("crawled", "new", 200, ""),
        ("error", "8", 0, "nothing was heard of it"),
    ]
    assert [event.fingerprint.hex()[-1] for event in events] == list("01234568")
    assert {event.partition for event in events} == {partition_of("web")}


def test_an_event_names_the_error_of_the_last_time_that_its_request_was_made() -> None:
    """A middleware has made it again after the first one."""
    bench = Bench(told(0), told(1))
    ledger = bench.batch.ledger
    marks = [bench.batch.begin(index) for index in range(2)]
    ledger.missed(0, "failed", "TimeoutError: slow", TimeoutError("slow"))
    ledger.missed(1, "gone", "HTTP 404", HttpError(Response("http://web/1/", status=404)))
    for mark in marks:
        ledger.reopen(mark)
    ledger.missed(0, "failed", "HTTP 500", HttpError(Response("http://web/0/", status=500)))
    ledger.missed(1, "failed", "TimeoutError: slow", TimeoutError("slow"))
    assert [(event.error, event.status, event.url) for event in bench.batch.events()] == [
        ("HttpError", 500, "http://web/0/"),
        ("TimeoutError", 0, "http://web/1"),
    ]


def test_an_event_has_the_request_as_it_was_requested_and_the_digest_of_its_page() -> None:
    bench = Bench({**told(0), REPLACES: [3, 1]}, told(1), told(2))
    for index, body in enumerate((b"same", b"same", b"other")):
        bench.page(index, body=body)
    first, second, third = bench.batch.events()
    assert first.request == told(0)
    assert first.digest == second.digest != third.digest


def test_a_request_that_no_strategy_made_is_told_of_by_the_projects_fingerprint() -> None:
    bench = Bench({"url": "http://web/0"})
    bench.page(0)
    (event,) = bench.batch.events()
    assert event.fingerprint == bench.crawler.request_fingerprinter.fingerprint(
        Request("http://web/0")
    )


def test_links_of_a_page_whose_callback_raised_are_told_after_the_error_and_those_of_one_put_off_are_not() -> (
    None
):
    bench = Bench()
    for source in (0, 1):
        bench.found(source, "http://web/a")
    bench.batch.ledger.missed(0, "failed", "ValueError in the callback", ValueError())
    bench.batch.ledger.put_off(1)
    assert bench.kinds() == [("0", "error"), ("0", "links")]


def test_a_failure_has_the_same_name_on_every_version_of_scrapy() -> None:
    class CannotResolveHostError(Exception):
        pass

    assert error_name(CannotResolveHostError()) == error_name(DNSLookupError()) == "DNSLookupError"
    assert error_name(IgnoreRequest()) == "IgnoreRequest"


def test_a_request_that_has_expired_is_not_wanted() -> None:
    bench = Bench(told(0, expires=1.0), told(1, expires=4e9), told(2))
    assert [bench.batch.unwanted(index) for index in range(3)] == ["expired", "", ""]


def test_the_priority_follows_the_score_and_what_followed_keeps_that_of_its_page() -> None:
    bench = Bench(told(0, score=0.25), told(1, score=0.0))
    assert [bench.request(index).priority for index in (0, 1)] == [250_000, 0]
    assert bench.batch.followed(Request("http://web/a", priority=-3), 0).priority == 249_997
    assert bench.batch.followed(bench.request(0).replace(url="http://web/b"), 0).priority == 250_000
    assert bench.batch.followed(Request("http://web/a", priority=5), 1).priority == 5


# pages that are for the strategy


async def test_a_body_is_read_and_cut_and_the_spiders_callback_is_not_called() -> None:
    bench = Bench(*(told(number, read="body") for number in range(3)))
    assert bench.request(0).callback != bench.crawler.spider.parse_article
    await bench.read(0, b"User-agent: *")
    await bench.read(1, "é".encode() * BODY_BYTES)
    await bench.read(2, b"x" * (BODY_BYTES // 2))
    bodies = [event.body for event in bench.batch.events()]
    assert bodies[0] == "User-agent: *"
    assert bodies[1] == "é" * (BODY_BYTES // 2)
    assert bodies[2] == "x" * (BODY_BYTES // 2)


def test_robots_txt_cannot_forbid_itself() -> None:
    value = {**told(0, read="body"), "url": "http://web/robots.txt"}
    bench = Bench(value, told(1, read="body"))
    assert bench.request(0).meta["dont_obey_robotstxt"] is True
    assert "dont_obey_robotstxt" not in bench.request(1).meta


async def test_a_sitemap_leads_to_links_and_an_index_of_them_to_more_sitemaps() -> None:
    bench = Bench(told(0, read="sitemap"), told(1, read="sitemap"))
    await bench.read(0, URLSET.encode())
    await bench.read(1, gzip.compress(INDEX.encode()))
    pages, sitemaps = (list(bench.links.links_of(index)) for index in (0, 1))
    assert [link.request for link in pages] == [{"url": "http://web/1"}, {"url": "http://web/2"}]
    assert [(link.request["url"], link.request["meta"]) for link in sitemaps] == [
        ("http://web/a.xml", {"distributed_link": {"read": "sitemap"}}),
        ("http://web/b.xml.gz", {"distributed_link": {"read": "sitemap"}}),
    ]
    assert bench.kinds() == [("0", "crawled"), ("0", "links"), ("1", "crawled"), ("1", "links")]


async def test_what_is_no_sitemap_is_an_error_of_its_own_name_and_no_exception() -> None:
    bench = Bench(*(told(number, read="sitemap") for number in range(3)))
    for index, body in enumerate(
        (b"<html><body>Not here</body></html>", b"", b"\x1f\x8b\x08 cut off")
    ):
        await bench.read(index, body)
    events = bench.batch.events()
    assert {event.kind for event in events} == {EventKind.ERROR}
    assert [event.error for event in events][:2] == ["NoSitemap", "NoSitemap"]


async def test_what_is_no_address_in_a_sitemap_is_left_out() -> None:
    bench = Bench(told(0, read="sitemap"))
    await bench.read(0, b"http://web/1\n\nweb/2\nhttp://elsewhere/\n")
    assert [link.request["url"] for link in bench.links.links_of(0)] == ["http://web/1"]


def test_a_sitemap_may_be_text_and_relative() -> None:
    text = Response("http://web/sitemap.txt", body=b"\xef\xbb\xbfhttp://web/1\r\nhttp://web/2")
    assert [url for url, _ in sitemap_links(text)][-1] == "http://web/2"
    with pytest.raises(NoSitemap):
        list(sitemap_links(Response("http://web/", body=b"not here")))


# a job that is sent its batch


def test_a_job_that_is_sent_a_batch_is_refused(tmp_path: Path) -> None:
    async def session() -> SentSession:
        return SentSession(
            crawler_of(), Assignment(crawl="c", batch=1, attempt=1), None, lambda *_: None
        )

    assert "need workers that lease" in run(session()).problem
