"""What a worker has Scrapy read of a spider before its first page, and do before each request leaves."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.misc import is_generator_with_return_value
from scrapyd_dist.middlewares.engine_compat import (
    call_before_errbacks,
    guard_downloads,
    origin_text,
    read_generators,
)
from twisted.python.failure import Failure


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


@pytest.mark.parametrize("name", ["download_request", "download_request_async"])
def test_each_request_is_asked_about_before_it_leaves(name: str) -> None:
    left: list[Request] = []
    handlers = SimpleNamespace(**{name: left.append})
    crawler: Any = SimpleNamespace(
        engine=SimpleNamespace(downloader=SimpleNamespace(handlers=handlers))
    )
    good, bad = Request("http://web/good"), Request("http://web/bad")
    guard_downloads(crawler, lambda request: "lost" if request is bad else "")
    getattr(handlers, name)(good)
    with pytest.raises(IgnoreRequest, match="lost"):
        getattr(handlers, name)(bad)
    assert left == [good]


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


@pytest.mark.parametrize("name", ["call_spider", "call_spider_async"])
def test_what_is_hidden_from_callbacks_is_back_before_an_errback(name: str) -> None:
    called: list[Any] = []
    scraper = SimpleNamespace(**{name: lambda *given: called.append(given)})
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(scraper=scraper))
    shown: list[Request] = []
    call_before_errbacks(crawler, shown.append)
    request = Request("http://web/")
    failure = Failure(IgnoreRequest())  # type: ignore[no-untyped-call]  # Twisted has no types
    for result in ("a page", failure):
        getattr(scraper, name)(result, request)
    assert called == [("a page", request), (failure, request)]
    assert shown == [request]
