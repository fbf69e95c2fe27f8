"""What is told of sites: refusals at once, latencies once a second, the delay of a robots.txt."""

from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapyd_dist.middlewares.codec import PERMIT
from scrapyd_dist.middlewares.throttle.downloader_capacity import InFlightPermit
from scrapyd_dist.middlewares.throttle.gate import Gate
from scrapyd_dist.middlewares.throttle.site_feedback import (
    REMEMBERED,
    REPEAT_AFTER,
    CrawlDelay,
    Latencies,
    PermitMiddleware,
    crawl_delay,
    retry_after,
)
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.throttle.permits import SiteNews

NOW = 1_000_000_000.0  #: Sun, 09 Sep 2001 01:46:40 GMT


class StubGate:
    """Keeps what it is told; the store's clock stands at `NOW`."""

    def __init__(self, **options: Any) -> None:
        self.options = ThrottleOptions(on=True, **options)
        self.told: list[SiteNews] = []

    awake = True

    def is_ruled(self, domain: str) -> bool:
        return True

    def tell(self, news: SiteNews) -> None:
        self.told.append(news)

    def now(self) -> float:
        return NOW

    def forget(self, request: Request) -> None: ...


def answered(
    gate: StubGate, status: int = 200, *, flags: list[str] | None = None, meta: dict[str, Any] | None = None
) -> None:
    watch = PermitMiddleware(cast("Gate", gate))
    request = Request("http://a.shop.co.uk/1", meta=meta)
    header = {"Retry-After": "7"} if status == 503 else {}
    response = Response(request.url, status=status, headers=header, flags=flags)
    assert watch.process_response(request, response) is response


def test_a_refusal_is_told_with_the_moment_of_its_permit_and_the_rest_that_was_asked_for() -> None:
    gate = StubGate()
    answered(gate, 429, meta={PERMIT: InFlightPermit("shop.co.uk", 5.0, 1)})
    answered(gate, 503, meta={"download_latency": 2.0})  # of a domain without a limit there is no permit
    assert gate.told == [
        SiteNews(domain="shop.co.uk", refused_at=5.0),
        SiteNews(domain="shop.co.uk", refused_at=NOW - 2.0, retry_after=7.0),
    ]


def test_good_answers_other_errors_and_the_cache_say_nothing() -> None:
    gate = StubGate()
    for status in (200, 404, 500):
        answered(gate, status)
    answered(gate, 429, flags=["cached"])
    assert gate.told == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), (b"", None), (b"soon", None), (b"-5", None), (b"1.5", None), (b"0", 0.0), (b" 120 ", 120.0),
        (b"9999999999", 86400.0), (b"Sun, 09 Sep 2001 01:47:40 GMT", 60.0), (b"Sun, 09 Sep 2001 01:46:40 GMT", 0.0),
        (b"Sat, 08 Sep 2001 01:46:40 GMT", 0.0), (b"Wed, 09 Sep 2099 01:46:40 GMT", 86400.0),
        (b"Sun, 09 Sep 2001 99:99:99 GMT", None), (b"\xff", None), ("²".encode("latin-1"), None),
    ],
)  # fmt: skip
def test_the_rest_that_a_header_asks_for(header: bytes | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


class TestLatencies:
    def latencies(self) -> tuple[Latencies, list[SiteNews], list[float]]:
        told: list[SiteNews] = []
        clock = [100.0]
        options = ThrottleOptions(on=True, concurrency=2.0, longest_delay=30.0)
        return Latencies(options, told.append, lambda: clock[0]), told, clock

    def news(self, latency: float, *, answered: bool = True) -> SiteNews:
        return SiteNews(domain="d", latency=latency, concurrency=2.0, answered=answered, longest_delay=30.0)

    def test_the_first_answer_is_told_at_once_and_then_a_mean_once_a_second(self) -> None:
        latencies, told, clock = self.latencies()
        latencies.add("d", 0.5, good=True)
        assert told == [self.news(0.5)]
        for latency in (1.0, 2.0):
            clock[0] += 0.4
            latencies.add("d", latency, good=True)
        assert len(told) == 1
        clock[0] += 0.2
        latencies.add("d", 6.0, good=True)
        assert told[1:] == [self.news(3.0)]

    def test_quick_errors_do_not_make_a_site_look_quick(self) -> None:
        latencies, told, clock = self.latencies()
        latencies.add("d", 0.5, good=False)
        assert told == [self.news(0.5, answered=False)]
        for latency, good in ((0.1, False), (4.0, True)):
            latencies.add("d", latency, good=good)
        clock[0] += 1.0
        latencies.add("d", 0.1, good=False)
        assert told[1:] == [self.news(4.0)]

    def test_domains_that_are_done_are_forgotten(self) -> None:
        latencies, told, clock = self.latencies()
        for number in range(3 * REMEMBERED):
            clock[0] += 0.01
            latencies.add(str(number), 0.1, good=True)
        assert len(told) == 3 * REMEMBERED
        assert len(latencies._answers) <= REMEMBERED


def robots(
    gate: StubGate, body: bytes, url: str = "http://b.shop.co.uk/robots.txt", agent: str = "", **fields: Any
) -> None:
    status = fields.pop("status", 200)
    request = Request(url, headers={"User-Agent": "Browser/1.0"}, meta=fields)
    response = Response(url, status=status, body=body)
    assert CrawlDelay(cast("Gate", gate), agent).process_response(request, response) is response


BODY = b"\xef\xbb\xbfUser-agent: mybot\nCrawl-delay: 3\n\nUser-agent: *\nCrawl-delay: 0.5\n\xff"


def test_the_delay_for_our_user_agent_is_told() -> None:
    gate = StubGate()
    robots(gate, BODY)
    robots(gate, BODY, agent="mybot")
    assert gate.told == [
        SiteNews(domain="shop.co.uk", crawl_delay=0.5), SiteNews(domain="shop.co.uk", crawl_delay=3.0),
    ]  # fmt: skip


def test_a_delay_is_of_the_domain_that_was_asked_before_redirects() -> None:
    gate = StubGate()
    robots(gate, BODY, "http://cdn.example/bots", redirect_urls=["http://shop.co.uk/robots.txt"])
    assert gate.told == [SiteNews(domain="shop.co.uk", crawl_delay=0.5)]


def test_what_is_no_robots_txt_says_nothing() -> None:
    gate = StubGate()
    robots(gate, BODY, status=503)
    robots(gate, BODY, "http://b.shop.co.uk/page/robots.txt")
    assert gate.told == []


def test_a_robots_txt_without_a_delay_says_so_as_it_may_have_had_one() -> None:
    gate = StubGate()
    robots(gate, b"User-agent: *\nDisallow: /x")
    robots(gate, BODY, status=404)
    assert gate.told == [SiteNews(domain="shop.co.uk", crawl_delay=0.0)] * 2


def test_the_longest_delay_of_a_domains_hosts_is_told_again_while_it_is_crawled() -> None:
    gate, clock = StubGate(), [0.0]
    watch = CrawlDelay(cast("Gate", gate), "", lambda: clock[0])

    def answer(url: str, body: bytes = b"") -> None:
        watch.process_response(Request(url), Response(url, body=body))

    answer("http://a.shop.co.uk/robots.txt", BODY)
    answer("http://b.shop.co.uk/robots.txt", b"User-agent: *\nCrawl-delay: 0.1")
    answer("http://other.example/robots.txt")
    clock[0] += REPEAT_AFTER - 1
    answer("http://b.shop.co.uk/page")
    assert [news.crawl_delay for news in gate.told] == [0.5, 0.5, 0.0]
    clock[0] += 1
    for url in ("http://b.shop.co.uk/page", "http://a.shop.co.uk/page", "http://other.example/page"):
        answer(url)
    assert gate.told[3:] == [SiteNews(domain="shop.co.uk", crawl_delay=0.5)]


def test_delays_of_domains_that_answer_no_more_are_forgotten() -> None:
    gate, clock = StubGate(), [0.0]
    watch = CrawlDelay(cast("Gate", gate), "", lambda: clock[0])
    for number in range(1000):
        clock[0] += 10
        url = f"http://site{number}.example/robots.txt"
        watch.process_response(Request(url), Response(url, body=BODY))
        busy = "http://site0.example/page"
        watch.process_response(Request(busy), Response(busy))
    assert len(watch._told) <= 2 * REPEAT_AFTER / 10 + 2
    assert "site0.example" in watch._told


def test_a_delay_that_is_too_long_is_cut_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    gate = StubGate(longest_delay=2.0)
    robots(gate, BODY, agent="mybot")
    assert gate.told == [SiteNews(domain="shop.co.uk", crawl_delay=2.0)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "shop.co.uk asks for 3 s" in line


@pytest.mark.parametrize("value", ["nan", "-2", "0", "soon", ""])
def test_a_delay_that_makes_no_sense_is_none(value: str) -> None:
    assert crawl_delay(f"User-agent: *\nCrawl-delay: {value}".encode(), "mybot") == 0.0
