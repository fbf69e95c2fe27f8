"""Values that several target requests share: which names callbacks change, and what is noticed of them."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from itemloaders import ItemLoader
from scrapy import Request, Spider
from scrapyd_dist.middlewares.producer import shared_values
from scrapyd_dist.middlewares.producer.argument_reader import argument_use
from scrapyd_dist.middlewares.producer.shared_values import SharedValues


class Base(Spider):
    def parse_count(self, response: Any) -> None:
        """Stand where another method stands in the spider."""


class Shop(Base):
    name = "shop"

    def parse_count(self, response: Any, state: dict[str, Any]) -> Any:  # type: ignore[override]
        state["left"] -= 1
        yield state

    def parse_meta(self, response: Any) -> None:
        names = response.meta["names"]
        names.append(response.url)
        response.meta["own"] = 1
        response.meta.pop("gone").get("x")

    def parse_field(self, response: Any, entry: Any) -> None:
        entry.lines["a"].total += 1

    def parse_sum(self, response: Any, sums: dict[str, int]) -> None:
        sums["all"] = sums["all"] + 1

    def parse_price(self, response: Any, offer: dict[str, Any]) -> None:
        offer["price"] = 1

    def parse_stock(self, response: Any, offer: dict[str, Any]) -> Any:
        if "price" in offer:
            yield offer

    def parse_set(self, response: Any) -> Any:
        product = response.meta.get("product") or {}
        product["name"] = "x"
        if product["name"]:
            yield product

    def parse_loaded(self, response: Any, thing: Any) -> Any:
        loader = ItemLoader(item=thing)
        yield loader.load_item()

    def parse_helped(self, response: Any, given: Any) -> None:
        self.fill(response, given)
        fill_too(also := response.meta["too"])
        also.get("x")

    def fill(self, response: Any, filled: Any) -> None:
        filled.update(a=1)

    def parse_apart(self, response: Any, data: Any, rows: Any, parts: Any) -> Any:
        cleaned = clean(response.json())
        yield cleaned, self.first_of([response]), self.only(parts=[response]), data, rows, parts

    def first_of(self, rows: list[Any]) -> Any:
        return rows.pop()

    @staticmethod
    def only(parts: Any) -> Any:
        parts.clear()

    def parse_handed(self, response: Any, basket: Any, heap: Any) -> Any:
        yield clean(basket), self.only(heap)

    def parse_onward(self, response: Any, onward: Any) -> Iterator[Request]:
        yield Request("http://web/", self.parse_last, cb_kwargs={"last": onward})

    def parse_last(self, response: Any, last: Any) -> None:
        for line in last["lines"]:
            line.clear()

    def parse_config(self, response: Any, config: dict[str, Any], item: Any, rest: Any) -> Any:
        item = dict(item)
        item["name"] = config["name"] + str(config.get("x")) + str(len(config))
        rest = rest.copy()
        rest.append(1)
        if config["name"] and isinstance(config, dict):
            yield item, rest, response.follow("a", cb_kwargs={"config": config})


def clean(data: dict[str, Any]) -> Any:
    data.pop("x")
    return data


def fill_too(filled_too: Any) -> None:
    filled_too.x = 1


def test_values_that_callbacks_change_are_found_in_their_code() -> None:
    use = argument_use(Shop)
    in_callbacks = {"state", "names", "entry", "sums", "offer", "onward", "last"}
    in_helpers = {"clean.data", "first_of.rows", "only.parts"}
    assert use.gathered == in_callbacks | in_helpers | {"basket", "heap"}
    set_only = {"product", "thing", "given", "fill.filled", "too", "fill_too.filled_too"}
    assert use.changed - use.gathered == set_only


def read_shop(folder: Path, body: str) -> type[Spider]:
    """Return a spider with this body of a callback, from a file."""
    (folder / "odd_shop.py").write_text(
        f"from scrapy import Spider\n\nclass Odd(Spider):\n    def parse(self, page, it):\n{body}"
    )
    spec = importlib.util.spec_from_file_location("odd_shop", folder / "odd_shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["odd_shop"] = module
    spec.loader.exec_module(module)
    kind: type[Spider] = module.Odd
    return kind


@pytest.fixture
def odd_shop(tmp_path: Path) -> Iterator[Callable[[str], type[Spider]]]:
    yield partial(read_shop, tmp_path)
    sys.modules.pop("odd_shop", None)


BRANCHES = "".join(f"        elif it == {n}:\n            pass\n" for n in range(340))
SUM = f"        it['all'] = {' + '.join(['page.a'] * 500)}\n"


@pytest.mark.parametrize("body", ["        if it == -1:\n            pass\n" + BRANCHES, SUM])
def test_code_that_is_too_deep_to_be_read_shares_nothing_and_is_read_once(
    odd_shop: Callable[[str], type[Spider]], body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mock(wraps=argument_use)
    monkeypatch.setattr(shared_values, "argument_use", read)
    shared = SharedValues(odd_shop(body)("odd"))
    with less_depth():
        for _ in range(2):
            shared.note(asking(it={}))
    assert shared.names() == []
    read.assert_called_once()


@contextmanager
def less_depth() -> Iterator[None]:
    """Take the limit that Python has by itself, whatever a run of the tests has set."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def test_what_a_helper_calls_its_own_argument_tells_nothing_of_a_request() -> None:
    data: dict[str, int] = {}
    both = noted(asking(data=data, rows=data), asking(data=data, rows=data))
    assert (both.names(), both.lose_items) == ([], False)
    both = noted(asking(basket=data), asking(basket=data))
    assert (both.names(), both.lose_items) == (["basket"], True)


def noted(*requests: Request) -> SharedValues:
    shared = SharedValues(Shop())
    for request in requests:
        shared.note(request)
    return shared


def asking(**values: Any) -> Request:
    return Request("http://web/", cb_kwargs=values, meta=values)


def test_a_value_of_two_requests_is_noticed_where_callbacks_change_it() -> None:
    state: dict[str, int] = {}
    both = noted(asking(state=state), asking(state={}), asking(state=state))
    assert (both.names(), both.lose_items) == (["state"], True)
    product: dict[str, int] = {}
    both = noted(asking(product=product), asking(product=product))
    assert (both.names(), both.lose_items) == (["product"], False)


@pytest.mark.parametrize("value", [{"name": "x"}, [1], "text", 5, None, ("a",)])
def test_what_callbacks_only_read_is_shared_in_silence(value: Any) -> None:
    both = noted(asking(config=value, item=value), asking(config=value, item=value))
    assert (both.names(), both.lose_items) == ([], False)
    alike = noted(asking(state=5), asking(state=5), asking(names="x"), asking(names="x"))
    assert (alike.names(), alike.lose_items) == ([], False)


def test_a_value_that_is_gone_is_not_taken_for_another_one() -> None:
    alone = noted(*(asking(state={"n": number}) for number in range(3_000)))
    assert (alone.names(), alone.lose_items) == ([], False)
