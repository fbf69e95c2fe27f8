"""What shows only while a crawl runs: attributes that callbacks set, requests that stay, items that come twice."""

from collections import Counter
from datetime import date
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapyd_dist.middlewares.producer.crawl_findings import (
    ChangedAttributes,
    login_pages,
    walk_findings,
)
from scrapyd_dist.middlewares.producer.index_walk import WalkEnd
from scrapyd_dist.middlewares.spider_attributes import AttributeWatch

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.items.repeats import count_repeats


class Shop(Spider):
    name = "shop"
    token = "none"
    names: dict[str, str] = {}  # noqa: RUF012 - as projects write it
    seen: set[str] = set()  # noqa: RUF012 - likewise
    page = 0
    fixed = "as it was"

    def parse(self, response: Any) -> None:
        self.token, self.page, self.fixed = "t", self.page + 1, "as " + "it was"
        self.names[response] = "a name"
        self.seen.add(response)
        self.late = 1

    def parse_item(self, response: Any) -> Any:
        return self.token, self.names, self.seen, self.fixed, self.late


def differing(*travelling: str, callbacks: tuple[str, ...] = ("parse_item",)) -> list[str]:
    Shop.names.clear()
    Shop.seen.clear()
    spider = Shop()
    watch = ChangedAttributes(spider, travelling)
    assert watch.differing(callbacks) == []
    spider.parse("http://web/")
    return [name for one in watch.differing(callbacks) for name in one.found]


def test_attributes_that_callbacks_set_and_target_callbacks_read_are_named() -> None:
    assert differing() == ["late", "names", "seen", "token"]
    assert differing("token", "late") == ["names", "seen"]
    assert differing(callbacks=()) == []


class Reads:
    """A middleware."""

    def __init__(self, crawler: Any) -> None:
        self.crawler = crawler

    def process_request(self, request: Any) -> None:
        request.headers["X-Token"] = self.crawler.spider.token


class Counts:
    """A middleware that only names what the spider has."""

    def process_request(self, request: Any) -> None:
        request.meta["token"] = request.token


def helper(spider: Any, response: Any) -> Any:
    return spider.fixed, response.page, getattr(spider, "late", None)


class Helped(Shop):
    name = "helped"

    def __init__(self) -> None:
        super().__init__()
        self.guide = SimpleNamespace(word="", session=None)
        self.idle = SimpleNamespace(session=None)

    def parse(self, response: Any) -> None:
        super().parse(response)
        self.guide.word = "known"
        self.idle.session = object()

    def parse_item(self, response: Any) -> Any:
        return helper(self, response), self.guide.word, self.idle.session


@pytest.mark.parametrize(
    ("components", "names"),
    [((), ["guide", "late"]), ((Counts, Reads), ["guide", "late", "token"])],
)
def test_what_helpers_and_components_read_is_named(
    components: tuple[type, ...], names: list[str]
) -> None:
    spider = Helped()
    watch = ChangedAttributes(spider, (), components)
    spider.parse("http://web/")
    (found,) = watch.differing(["parse_item"])
    assert list(found.found) == names


class Parser:
    """A parser that counts what it has read."""

    def __init__(self) -> None:
        self.count = 0

    def title(self, response: Any) -> Any:
        self.count += 1
        return response


class Parsing(Shop):
    """Each of its callbacks reads one attribute in its own way."""

    name = "parsing"

    def __init__(self) -> None:
        super().__init__()
        self.parser = Parser()
        self.pair = Parser()
        self.cache: dict[str, str] = {}

    def parse(self, response: Any) -> None:
        super().parse(response)
        self.parser.title(response)
        self.cache[response] = "a title"
        self.pair = Parser()

    def parse_parsed(self, response: Any) -> Any:
        return self.parser.title(response)

    def parse_cached(self, response: Any) -> Any:
        self.cache[response] = self.cache.get(response) or "a title"
        return self.cache[response]

    def parse_helped(self, response: Any) -> Any:
        return helper(self, response)

    def parse_logged(self, response: Any) -> Any:
        self.logger.info("%s of %s", response, self.token)
        if response is None:
            self.logger.debug("late, by %s", getattr(self, "late", ""))
        return response

    def parse_named(self, response: Any) -> Any:
        return response, getattr(self, "token", None)

    def parse_plain(self, response: Any) -> Any:
        return self.title_of(response)

    def title_of(self, response: Any) -> Any:
        self.logger.info("a title by %s", self.token)
        return self.token, response

    def parse_filled(self, response: Any) -> Any:
        return response in self.seen

    def parse_replaced(self, response: Any) -> Any:
        return self.pair.title(response)


@pytest.mark.parametrize(
    ("callback", "told", "is_wrong"),
    [
        ("parse_parsed", ["parser"], False),
        ("parse_cached", ["cache"], False),
        ("parse_helped", ["late"], False),
        ("parse_logged", [], False),
        ("parse_named", ["token"], True),
        ("parse_plain", ["token"], True),
        ("parse_filled", ["seen"], True),
        ("parse_replaced", ["pair"], True),
    ],
)
def test_only_what_target_callbacks_themselves_read_is_wrong_for_certain(
    callback: str, told: list[str], is_wrong: bool
) -> None:
    Shop.seen.clear()
    spider = Parsing()
    watch = ChangedAttributes(spider, ())
    spider.parse("http://web/")
    found = [name for one in watch.differing([callback]) for name in one.found]
    assert (found, watch.are_surely_wrong([callback])) == (told, is_wrong)
    assert not watch.are_surely_wrong([])


@pytest.mark.parametrize(
    ("logins", "pages", "told"), [(0, 0, False), (1, 2, False), (2, 3, True), (1, 1, True)]
)
def test_a_login_in_place_of_most_pages_is_told(logins: int, pages: int, told: bool) -> None:
    reports: list[dict[str, Any]] = [{"logins": logins, "pages": pages}, {"pages": 0}]
    accepted = [
        Attempt(batch=1, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, report=one)
        for one in reports
    ]
    said = login_pages(accepted)
    assert bool(said) == told
    assert all("DISTRIBUTED_LOGIN" in text and f"of {pages} came" in text for text in said)


class Diary(Shop):
    name = "diary"

    def parse_item(self, response: Any) -> Any:
        days, self.last = self.days, response
        return days, self.token

    days: dict[Any, list[str]] = {}  # noqa: RUF012 - as projects write it


def test_what_has_changed_in_jobs_is_told_if_no_code_has_told_it_already() -> None:
    watch = ChangedAttributes(Diary(), ["token"])
    reports: list[dict[str, Any]] = [
        {},
        {"changed": ["days", "last"]},
        {"changed": ["token", "page", 1]},
    ]
    accepted = [
        Attempt(batch=1, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, report=one)
        for one in reports
    ]
    (found,) = watch.kept_in_jobs(["parse_item"], accepted)
    assert list(found.found) == ["days", "token"]
    assert watch.kept_in_jobs(["parse_item"], accepted[:1]) == []


class Headed(Shop):
    name = "headed"

    @property
    def word(self) -> str:
        return self.token

    @cached_property
    def client(self) -> list[str]:
        return []

    def parse(self, response: Any) -> None:
        super().parse(response)
        self.client.clear()

    def parse_item(self, response: Any) -> Any:
        return self.word, self.client


def test_a_property_is_followed_and_a_cached_one_that_is_read_has_not_changed() -> None:
    spider = Headed()
    watch = ChangedAttributes(spider, ())
    spider.parse("http://web/")
    assert spider.client == []
    (found,) = watch.differing(["parse_item"])
    assert list(found.found) == ["token"]
    assert watch.are_surely_wrong(["parse_item"])
    report = {"changed": ["token"]}
    attempt = Attempt(
        batch=1, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, report=report
    )
    (found,) = watch.kept_in_jobs(["parse_item"], [attempt])
    assert list(found.found) == ["token"]


def test_a_container_that_has_changed_inside_is_noticed_whatever_is_in_it() -> None:
    spider: Any = Diary()
    spider.days = {date(2026, 5, 1): ["a"]}
    spider.many = dict.fromkeys(range(2_000), "")
    spider.strange = [Strange()]
    watch = AttributeWatch(spider)
    assert watch.changed() == []
    spider.days[date(2026, 5, 1)].append("b")
    spider.many[2_000] = ""
    assert watch.changed() == ["days", "many"]


def test_what_came_with_a_request_is_no_change_and_what_was_changed_before_stays_one() -> None:
    spider: Any = Diary()
    watch = AttributeWatch(spider)
    spider.page = 5
    with watch.setting():
        spider.days = {"monday": ["a"]}
    assert watch.changed() == ["page"]
    spider.days["monday"].append("b")
    assert watch.changed() == ["page", "days"]


class Strange:
    def __repr__(self) -> str:
        raise ValueError("it has no text")


@pytest.mark.parametrize(
    ("counts", "reasons", "shared", "found"),
    [
        ({}, {}, [], {"no target request": []}),
        ({"sealed": 3, "duplicate": 1}, {}, [], {}),
        ({"sealed": 3, "local": 1}, {"why": 1}, [], {"requests that stay": ["1: why"]}),
        (
            {"local": 2},
            {"why": 2},
            [],
            {"requests that stay": ["2: why"], "nothing was spread": []},
        ),
        ({"offsite": 2}, {}, [], {}),
        ({"sealed": 3}, {}, ["a", "b"], {"values that requests share": ["a", "b"]}),
    ],
)
def test_a_walk_says_what_it_did_not_find_and_what_does_not_travel(
    counts: dict[str, int],
    reasons: dict[str, int],
    shared: list[str],
    found: dict[str, list[str]],
) -> None:
    capture: Any = SimpleNamespace(
        reasons=Counter(reasons),
        stayed=lambda: [f"{number}: {why}" for why, number in reasons.items()],
        shared=SimpleNamespace(names=lambda: shared),
    )
    index: Any = SimpleNamespace(pages=1)
    assert {
        one.difference.name: list(one.found) for one in walk_findings(index, capture, counts)
    } == found


@pytest.mark.parametrize(
    ("asks_nothing", "early_end", "counts", "found"),
    [
        (True, None, {}, ["no page"]),
        (False, None, {}, []),
        (True, WalkEnd.LIMIT, {}, []),
        (True, None, {"sealed": 3}, []),
    ],
)
def test_a_spider_that_asks_for_no_page_is_told(
    asks_nothing: bool, early_end: WalkEnd | None, counts: dict[str, int], found: list[str]
) -> None:
    capture: Any = SimpleNamespace(reasons={}, shared=SimpleNamespace(names=list))
    index: Any = SimpleNamespace(pages=0, asks_nothing=asks_nothing, early_end=early_end)
    assert [one.difference.name for one in walk_findings(index, capture, counts)] == found


def test_items_that_two_parts_have_alike_are_counted(tmp_path: Path) -> None:
    texts = ['{"a": 1}\n{"a": 1}\n{"b": 2}\n', '{"a": 1}\n\n{"c": 3}\n', '{"c": 3}\n{"b": 2}\n']
    parts = [tmp_path / f"{number}.jl" for number in range(4)]
    for part, text in zip(parts, texts, strict=False):
        part.write_text(text)
    assert count_repeats({part: [] for part in parts}) == 3
    assert count_repeats({parts[0]: []}) == 0, "a spider may yield an item twice itself"
    assert count_repeats({parts[0]: [(0, 100)], parts[1]: []}) == 0, (
        "what was replaced is no repeat"
    )


class Unready:
    """Behaves as a lazy proxy whose object cannot be made yet."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not set")


def test_an_attribute_that_cannot_be_looked_into_is_unchanged() -> None:
    spider: Any = Spider("lazy")
    spider.proxy = Unready()
    watch = AttributeWatch(spider)
    spider.token = "new"
    assert watch.changed() == ["token"]
