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

    awake = True

    def __init__(self, **options: Any) -> None:
        self.options = ThrottleOptions(on=True, **options)
        self.told: list[SiteNews] = []
        self.report_site = self.told.append

    def is_ruled(self, domain: str) -> bool:
        return True

    def now(self) -> float:
        return NOW

    def forget(self, request: Request) -> None: ...


def answered(
    status: int = 200, *, flags: list[str] | None = None, meta: dict[str, Any] | None = None
) -> list[SiteNews]:
    """What the store is told of such an answer."""
    gate = StubGate()
    request = Request("http://a.shop.co.uk/1", meta=meta)
    header = {"Retry-After": "7"} if status == 503 else {}
    response = Response(request.url, status=status, headers=header, flags=flags)
    assert PermitMiddleware(cast("Gate", gate)).process_response(request, response) is response
    return gate.told


def test_a_refusal_is_told_with_the_moment_of_its_permit_and_the_rest_that_was_asked_for() -> None:
    permit = InFlightPermit(5.0, 1)
    assert answered(429, meta={PERMIT: permit}) == [SiteNews(domain="shop.co.uk", refused_at=5.0)]
    # Of a domain without a limit there is no permit.
    refused = SiteNews(domain="shop.co.uk", refused_at=NOW - 2.0, retry_after=7.0)
    assert answered(503, meta={"download_latency": 2.0}) == [refused]


def test_good_answers_other_errors_and_the_cache_say_nothing() -> None:
    assert [answered(status) for status in (200, 404, 500)] == [[]] * 3
    assert answered(429, flags=["cached"]) == []


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


class Latency:
    """Latencies by a clock that the test turns, and what was told."""

    def __init__(self) -> None:
        self.told, self.time = list[SiteNews](), 100.0
        self.latencies = Latencies(2.0, 30.0, self.told.append, lambda: self.time)

    def add(
        self, *latencies: float, good: bool = True, domain: str = "d", after: float = 0.0
    ) -> None:
        for latency in latencies:
            self.time += after
            self.latencies.add(domain, latency, good=good)


def mean(latency: float, *, answered: bool = True) -> SiteNews:
    return SiteNews(domain="d", target_gap=latency / 2, answered=answered, longest_delay=30.0)


def test_the_first_answer_is_told_at_once_and_then_a_mean_once_a_second() -> None:
    it = Latency()
    it.add(0.5)
    it.add(1.0, 2.0, after=0.4)
    assert it.told == [mean(0.5)]
    it.add(6.0, after=0.2)
    assert it.told[1:] == [mean(3.0)]


def test_quick_errors_do_not_make_a_site_look_quick() -> None:
    it = Latency()
    it.add(0.5, good=False)
    assert it.told == [mean(0.5, answered=False)]
    it.add(0.1, good=False)
    it.add(4.0)
    it.add(0.1, good=False, after=1.0)
    assert it.told[1:] == [mean(4.0)]


def test_domains_that_are_done_are_forgotten() -> None:
    it = Latency()
    for number in range(3 * REMEMBERED):
        it.add(0.1, domain=str(number), after=0.01)
    assert len(it.told) == 3 * REMEMBERED
    assert len(it.latencies._answers) <= REMEMBERED


class Robots:
    """What is told of the delays in a robots.txt, by a clock that the test turns."""

    def __init__(self, agent: str = "", **options: Any) -> None:
        gate, self.time = StubGate(**options), 0.0
        self.told = gate.told
        self.watch = CrawlDelay(cast("Gate", gate), agent, lambda: self.time)

    def answer(self, url: str, body: bytes = b"", status: int = 200, **meta: Any) -> None:
        request = Request(url, headers={"User-Agent": "Browser/1.0"}, meta=meta)
        response = Response(url, status=status, body=body)
        assert self.watch.process_response(request, response) is response


ROBOTS = "http://b.shop.co.uk/robots.txt"
BODY = b"\xef\xbb\xbfUser-agent: mybot\nCrawl-delay: 3\n\nUser-agent: *\nCrawl-delay: 0.5\n\xff"


@pytest.mark.parametrize(
    ("body", "agent", "given", "delays"),
    [
        (BODY, "", {}, [0.5]),
        (BODY, "mybot", {}, [3.0]),
        (
            BODY,
            "",
            {"url": "http://cdn.example/bots", "redirect_urls": ["http://shop.co.uk/robots.txt"]},
            [0.5],
        ),
        (BODY, "", {"status": 503}, []),
        (BODY, "", {"url": "http://b.shop.co.uk/page/robots.txt"}, []),
        (b"User-agent: *\nDisallow: /x", "", {}, [0.0]),  # it may have asked for one before
        (BODY, "", {"status": 404}, [0.0]),
    ],
    ids=[
        "any agent",
        "its own",
        "of the domain before redirects",
        "an error",
        "another page",
        "none",
        "gone",
    ],
)
def test_the_delay_of_a_robots_txt_is_told(
    body: bytes, agent: str, given: dict[str, Any], delays: list[float]
) -> None:
    it = Robots(agent)
    it.answer(**{"url": ROBOTS, "body": body, **given})
    assert it.told == [SiteNews(domain="shop.co.uk", crawl_delay=delay) for delay in delays]


def test_the_longest_delay_of_a_domains_hosts_is_told_again_while_it_is_crawled() -> None:
    it = Robots()
    it.answer("http://a.shop.co.uk/robots.txt", BODY)
    it.answer(ROBOTS, b"User-agent: *\nCrawl-delay: 0.1")
    it.answer("http://other.example/robots.txt")
    it.time += REPEAT_AFTER - 1
    it.answer("http://b.shop.co.uk/page")
    assert [news.crawl_delay for news in it.told] == [0.5, 0.5, 0.0]
    it.time += 1
    for url in (
        "http://b.shop.co.uk/page",
        "http://a.shop.co.uk/page",
        "http://other.example/page",
    ):
        it.answer(url)
    assert it.told[3:] == [SiteNews(domain="shop.co.uk", crawl_delay=0.5)]


def test_delays_of_domains_that_answer_no_more_are_forgotten() -> None:
    it = Robots()
    for number in range(1000):
        it.time += 10
        it.answer(f"http://site{number}.example/robots.txt", BODY)
        it.answer("http://site0.example/page")
    assert len(it.watch._reported) <= 2 * REPEAT_AFTER / 10 + 2
    assert "site0.example" in it.watch._reported


def test_a_delay_that_is_too_long_is_cut_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    it = Robots("mybot", longest_delay=2.0)
    it.answer(ROBOTS, BODY)
    assert it.told == [SiteNews(domain="shop.co.uk", crawl_delay=2.0)]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "shop.co.uk asks for 3 s" in line


@pytest.mark.parametrize("value", ["nan", "-2", "0", "soon", ""])
def test_a_delay_that_makes_no_sense_is_none(value: str) -> None:
    assert crawl_delay(f"User-agent: *\nCrawl-delay: {value}".encode(), "mybot") == 0.0
