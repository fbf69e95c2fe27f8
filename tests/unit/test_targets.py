"""Which requests are for the fleet."""

from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule
from scrapyd_dist.middlewares.targets import find_target, only_rule

from scrapyd_dist.errors import ConfigError


class Plain(Spider):
    name = "plain"
    parse_item_count = 3

    def parse(self, response: Any) -> None: ...

    def parse_item(self, response: Any) -> None: ...


class Easy(CrawlSpider):
    name = "easy"
    rules: tuple[Rule, ...] = (Rule(LinkExtractor()), Rule(LinkExtractor(), callback="parse_item"))

    def parse_item(self, response: Any) -> None: ...

    def parse_other(self, response: Any) -> None: ...


class Two(Easy):
    name = "two"
    rules = (
        *Easy.rules,
        Rule(LinkExtractor(), callback="parse_other"),
        Rule(LinkExtractor(), callback="parse_item", follow=True),
    )


class NoEnd(Easy):
    name = "noend"
    rules = (Rule(LinkExtractor(), callback="parse_item", follow=True),)


LAMBDA: Any = lambda _: None  # noqa: E731 - a callback without a name


def of_rule(spider: CrawlSpider, number: int) -> Request:
    return Request("http://web/", callback=spider._callback, meta={"rule": number})


def test_the_only_rule_that_ends_at_a_page_is_meant() -> None:
    spider = Easy()
    target = find_target(spider, Settings())
    assert (only_rule(spider), target.rules) == (1, frozenset({1}))
    assert "its only rule" in target.how
    assert [target.takes(of_rule(spider, n), spider) for n in (0, 1)] == [False, True]
    assert not target.takes(Request("http://web/"), spider)
    assert not target.takes(Request("http://web/", callback=spider.parse_item), spider)


@pytest.mark.parametrize(
    ("values", "rules", "callbacks"),
    [
        ({"DISTRIBUTED_TARGET_RULE": 1}, [1], []),
        ({"DISTRIBUTED_TARGET_RULE": "2"}, [2], []),
        ({"DISTRIBUTED_TARGET_CALLBACKS": "parse_item"}, [1, 3], ["parse_item"]),
        ({"DISTRIBUTED_TARGET_CALLBACKS": ["parse_item"]}, [1, 3], ["parse_item"]),
    ],
)
def test_a_rule_can_be_named_or_a_callback_with_the_rules_that_call_it(
    values: dict[str, Any], rules: list[int], callbacks: list[str]
) -> None:
    spider = Two()
    target, names = find_target(spider, Settings(values)), ("parse_item", "parse_other")
    assert [n for n in range(4) if target.takes(of_rule(spider, n), spider)] == rules
    requests = {name: Request("http://web/", callback=getattr(spider, name)) for name in names}
    assert [name for name, request in requests.items() if target.takes(request, spider)] == callbacks


def test_a_plain_spider_names_a_callback() -> None:
    spider = Plain()
    target = find_target(spider, Settings({"DISTRIBUTED_TARGET_CALLBACKS": "parse_item,parse"}))
    assert target.takes(Request("http://web/", callback=spider.parse_item), spider)
    assert target.takes(Request("http://web/"), spider)
    assert not target.takes(Request("http://web/", callback=LAMBDA), spider)


def test_a_mark_in_the_meta_is_enough() -> None:
    spider = Plain()
    target = find_target(spider, Settings({"DISTRIBUTED_TARGET_BY_META": True}))
    assert target.takes(Request("http://web/", meta={"distribute": True}), spider)
    assert not target.takes(Request("http://web/", meta={"distribute": False}), spider)
    easy = Easy()
    assert find_target(easy, Settings()).takes(Request("http://web/", meta={"distribute": True}), easy)


WRONG: list[tuple[Spider, dict[str, Any], str]] = [
    (Plain(), {}, "Nothing says which requests of the spider plain.* Plain has no rules"),
    (Two(), {}, "rule 0: callback none, follows; rule 1: callback parse_item, does not follow; rule 2: callback"),
    (NoEnd(), {}, "Nothing says"),
    (Easy(), {"DISTRIBUTED_TARGET_RULE": 2}, "has no rule 2. Its rules are"),
    (Easy(), {"DISTRIBUTED_TARGET_RULE": 0}, "Rule 0 of the spider easy has no callback"),
    (Plain(), {"DISTRIBUTED_TARGET_RULE": 0}, "has no rule 0"),
    (Easy(), {"DISTRIBUTED_TARGET_RULE": "second"}, "is 'second', and must be the number of a rule"),
    (Plain(), {"DISTRIBUTED_TARGET_CALLBACKS": "parse_items"}, "has no method 'parse_items'"),
    (Plain(), {"DISTRIBUTED_TARGET_CALLBACKS": "parse_item_count"}, "has no method 'parse_item_count'"),
]


@pytest.mark.parametrize(("spider", "values", "why"), WRONG)
def test_what_is_not_there_is_told_with_what_is(spider: Spider, values: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        find_target(spider, Settings(values))
