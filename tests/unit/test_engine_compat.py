"""What a worker has Scrapy read of a spider before its first page, and how often it is asked of sites."""

import inspect
from typing import Any
from unittest.mock import MagicMock

import pytest
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.utils.misc import is_generator_with_return_value
from scrapyd_dist.middlewares.engine_compat import OffsiteFilter, origin_text, read_generators


class Books(Spider):
    """A spider with two generators."""

    name = "books"

    def parse_list(self, response: Any) -> Any:
        yield response

    def parse_book(self, response: Any) -> Any:
        yield response


class Odd(Books):
    """One of them is a property here, which must not be asked."""

    @property
    def parse_list(self) -> Any:
        raise RuntimeError


def test_the_source_of_callbacks_is_not_needed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    spider = Books()
    kept = read_generators(spider)

    def gone(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", gone)
    assert not is_generator_with_return_value(spider.parse_book)
    assert [method.__name__ for method in kept] == ["parse_book", "parse_list"]


def test_a_property_in_the_place_of_a_callback_is_left_alone() -> None:
    assert [method.__name__ for method in read_generators(Odd())] == ["parse_book"]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("https://a.test/x", "https://a.test/y?z=/", True),
        ("https://a.test/x", "http://a.test/x", False),
        ("https://a.test/x", "https://a.test:443/x", False),
        ("http://ab", "http://abc", False),
        ("http://a.test", "http://a.test/", False),
    ],
)
def test_addresses_of_one_origin_share_their_beginning(one: str, other: str, is_same: bool) -> None:
    assert (origin_text(one) == origin_text(other)) is is_same


def test_scrapy_is_asked_once_for_an_origin_until_the_domains_of_the_spider_change() -> None:
    asked: list[str] = []

    def should_follow(request: Request, spider: Spider) -> bool:
        asked.append(request.url)
        return "own.test" in request.url

    middleware = OffsiteMiddleware(MagicMock())
    middleware.should_follow = should_follow  # type: ignore[method-assign]
    spider = Spider("s", allowed_domains=["own.test"])
    crawler = MagicMock(spider=spider)
    crawler.get_downloader_middleware.return_value = middleware
    offsite = OffsiteFilter(crawler)
    urls = [f"http://{host}/{page}" for page in range(3) for host in ("own.test", "other.test")]
    assert [offsite.drops(Request(url)) for url in urls] == [False, True] * 3
    assert asked == urls[:2]
    spider.allowed_domains.append("other.test")  # type: ignore[attr-defined]
    assert offsite.drops(Request(urls[1]))
    assert asked == [*urls[:2], urls[1]]
