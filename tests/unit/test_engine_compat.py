"""What a worker has Scrapy read of a spider before its first page."""

import inspect
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.misc import is_generator_with_return_value
from scrapyd_dist.middlewares.engine_compat import read_generators


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
