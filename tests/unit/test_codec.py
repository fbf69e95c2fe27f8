"""Which requests are for the fleet; a request travels whole, or is refused by name."""

import json
import string
from collections import ChainMap, OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass, make_dataclass
from dataclasses import field as dataclass_field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from itemadapter import ItemAdapter
from pydantic import BaseModel
from pydantic import Field as PydanticField
from scrapy import Field, FormRequest, Item, Request, Selector, Spider
from scrapy.http import HtmlResponse, JsonRequest, XmlRpcRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider
from scrapyd_dist.middlewares.codec import (
    CannotTravel,
    WatchedDict,
    from_value,
    plain_request,
    rule_of,
    to_value,
    to_value_for_other,
)
from scrapyd_dist.middlewares.targets import (
    NoTarget,
    describe_target,
    find_crawl_target,
    find_target,
    only_rule,
    take_only_callback,
)

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.payload import from_json, to_json


def made_callback() -> Any:
    """What a library makes: its function has the name of another callback."""

    def parse(self: Spider, response: Any) -> None: ...

    return parse


class Plain(Spider):
    name = "plain"
    title = "no method"

    def parse(self, response: Any) -> None: ...

    def parse_item(self, response: Any) -> None: ...

    def gone(self, failure: Any) -> None: ...

    def __hidden(self, response: Any) -> None: ...

    def hidden(self) -> Any:
        return self.__hidden

    @classmethod
    def of_class(cls, response: Any) -> None: ...

    made = made_callback()
    alias = parse_item


class Ruled(CrawlSpider):
    name = "ruled"
    rules: tuple[Rule, ...] = (
        Rule(LinkExtractor(allow="index")),
        Rule(
            LinkExtractor(allow="item"), callback="parse_item", cb_kwargs={"a": 1}, errback="gone"
        ),
    )

    def parse(self, response: Any) -> None: ...

    def parse_item(self, response: Any) -> None: ...

    def gone(self, failure: Any) -> None: ...


SPIDER = Plain()
RULED = Ruled()


def there_and_back(request: Request, spider: Spider = SPIDER) -> Request:
    """Through the JSON that travels."""
    back: Request = from_value(from_json(to_json([to_value(request, spider)]))[0], spider)
    return back


def check_same(request: Request, spider: Spider = SPIDER) -> None:
    back = there_and_back(request, spider)
    for field in Request.attributes:
        came, went = getattr(back, field), getattr(request, field)
        assert came == went, field
        if isinstance(went, dict):
            came, went = sorted(came.items(), key=str), sorted(went.items(), key=str)
        assert repr(came) == repr(went), field  # 1 is not True, a tuple no list


WHOLE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "method": {"method": "DELETE"},
    "headers": {"headers": {"X-One": "1", "Accept": ["a", "b"]}},
    "repeated header": {"headers": [("X-One", "1"), ("X-One", "2")]},
    "header of any bytes": {"headers": {b"X-\xe9": [bytes(range(32, 256)), "grüße"]}},
    "header without value": {"headers": {"X-None": None}},
    "cookies": {"cookies": {"a": "1", "b": "ü"}},
    "cookies as a list": {
        "cookies": [{"name": "a", "value": b"\xff", "domain": "x", "path": "/", "secure": True}]
    },
    "body": {"method": "POST", "body": bytes(range(256))},
    "text body": {"method": "PUT", "body": "grüße", "encoding": "latin-1"},
    "meta": {"meta": {"a": [1, 2.5, None, True, "x", {"b": (1, (b"\0", [()]))}], "link_text": ""}},
    "odd meta": {
        "meta": {
            "$bytes": 1,
            "$tuple": {"$dict": {"$bytes": "x"}},
            "": {"$": b""},
            "link_text": None,
        }
    },
    "cb_kwargs": {"cb_kwargs": {"page": 1, "first": True, "t": (1,)}},
    "callback": {"callback": SPIDER.parse_item},
    "private method": {"callback": SPIDER.hidden()},
    "callback of another name": {"callback": SPIDER.made, "errback": SPIDER.made},
    "errback": {"errback": SPIDER.gone},
    "priority": {"priority": -7},
    "dont_filter": {"dont_filter": True},
    "flags": {"flags": ["one", "two"]},
    "not a number": {"meta": {"inf": float("inf"), "zero": -0.0}},
    "half a surrogate pair": {"meta": {"text": "\ud83d"}},
}


@pytest.mark.parametrize(
    "fields", [*WHOLE.values(), dict(ChainMap(*reversed(WHOLE.values())))], ids=[*WHOLE, "all"]
)
def test_every_field_comes_back_as_it_was(fields: dict[str, Any]) -> None:
    check_same(Request("http://web/a?b=c#d", **fields))


@pytest.mark.parametrize(
    "request_",
    [
        *map(
            Request,
            [
                "http://web/%20a%2Fb?q=%zz&x=1%",
                "http://wéb/é?ü",
                "http://web/a b",
                "data:,x",
                "http://[::1]",
            ],
        ),
        FormRequest("http://web/", formdata={"a": "1", "b": ["2", "ü"]}),
        FormRequest("http://web/", method="GET", formdata={"a": "1"}),
        JsonRequest("http://web/", data={"a": [1, None]}),
        XmlRpcRequest("http://web/", methodname="login", params=("me", 1)),
    ],
)
def test_urls_are_not_quoted_twice_and_scrapys_own_kinds_travel_as_what_they_send(
    request_: Request,
) -> None:
    check_same(request_)


def travelled(**fields: Any) -> Request:
    return there_and_back(Request("http://web/", callback=SPIDER.parse_item, **fields))


def test_one_object_in_two_places_is_one_there_too() -> None:
    tags: list[str] = []
    item = Outer.Inner(1)
    book = {"tags": tags, "more": [{"tags": tags}], "item": item, 7: tags}
    came = travelled(meta={"book": book, "item": item, "n": 1}, cb_kwargs={"tags": tags, "b": book})
    there = came.meta["book"]
    assert came.cb_kwargs["b"] is there
    came.cb_kwargs["tags"].append("x")
    assert there["tags"] == there["more"][0]["tags"] == there[7] == ["x"]
    assert there["item"] is came.meta["item"]


@pytest.mark.parametrize("name", ["colour", "a", "amount"])
def test_what_an_item_holds_and_its_request_too_is_one_there(name: str) -> None:
    tags = ["x"]
    made = {"colour": Car(colour=tags), "a": Outer.Inner(tags), "amount": Price(tags)}[name]  # type: ignore[arg-type]
    came = travelled(meta={"tags": tags}, cb_kwargs={"item": made})
    assert came.meta["tags"] == tags
    assert ItemAdapter(came.cb_kwargs["item"])[name] is came.meta["tags"]


def test_a_tuple_of_what_can_be_changed_is_one_there() -> None:
    pair = (["x"], 1)
    came = travelled(meta={"pair": pair}, cb_kwargs={"a": {"pair": pair}})
    assert came.meta["pair"] is came.cb_kwargs["a"]["pair"]


def test_values_that_are_equal_and_fixed_ones_are_no_aliases() -> None:
    pair = ("a", 1)
    day = date(2026, 11, 28)
    fields: dict[str, Any] = {
        "meta": {"a": [1], "b": pair, "d": day},
        "cb_kwargs": {"a": [1], "b": pair, "t": (pair, day)},
    }
    value = to_value(Request("http://web/", callback=SPIDER.parse_item, **fields), SPIDER)
    assert "aliases" not in value


@pytest.mark.parametrize("odd", [lambda tags: (tags, 1), lambda tags: {(1, 2): tags}])
def test_an_object_that_could_not_be_put_there_again_keeps_its_request(odd: Any) -> None:
    tags = ["a"]
    with pytest.raises(CannotTravel, match="a value in two places"):
        travelled(meta={"tags": tags, "odd": odd(tags)})


def test_aliases_that_name_no_place_are_refused() -> None:
    value = {
        "url": "http://web/",
        "callback": "parse_item",
        "meta": {"a": []},
        "aliases": [[["meta", "b", 0], ["meta", "a"]]],
    }
    with pytest.raises(CannotTravel, match="there is no place"):
        from_value(value, SPIDER)
    assert plain_request(value).meta == {"a": []}


def test_a_plain_request_is_only_its_url_and_its_callback() -> None:
    assert to_value(Request("http://web/"), SPIDER) == {"url": "http://web/", "callback": "parse"}
    assert to_json([to_value(Request("http://web/", meta={"distribute": True}), SPIDER)]) == (
        '{"common":{"callback":"parse"},"requests":["http://web/"]}'
    )


def test_meta_that_means_something_here_only_stays_here() -> None:
    kept = {"depth": 2, "is_start_request": True, "mine": 1}
    request = Request("http://web/", meta={"distribute": True, **kept})
    assert there_and_back(request).meta == kept


def test_the_depth_means_nothing_to_another_spider() -> None:
    assert "meta" not in to_value_for_other(Request("http://web/", meta={"depth": 2}), SPIDER, None)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.text() | st.sampled_from(["$bytes", "$tuple", "$dict"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=5)


@settings(max_examples=150)
@given(
    meta=st.dictionaries(NAMES, JSON, max_size=3),
    body=st.binary(max_size=20),
    headers=st.dictionaries(NAMES, st.lists(st.binary(max_size=9), max_size=3), max_size=3),
)
def test_whatever_json_bytes_and_tuples_can_say_comes_back(
    meta: dict[str, Any], body: bytes, headers: dict[str, list[bytes]]
) -> None:
    check_same(Request("http://web/", meta=meta, cb_kwargs=meta, body=body, headers=headers))


class Own(Request):
    """As scrapy-selenium does it: what it is lies in its class."""


class OwnAttributes(Request):
    attributes: tuple[str, ...] = (*Request.attributes, "wait")
    wait = 1


Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - what a spider may use


class Kind(str, Enum):
    A = "a"


class Car(Item):
    """An item whose own __init__ must not be called again."""

    colour, wheels = Field(), Field()

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"wheels": 4, **fields})


@dataclass(frozen=True)
class Price:
    amount: Decimal
    at: InitVar[str] = "x"
    since: date = dataclass_field(default=date(2026, 1, 2), init=False)


@attrs.define
class Shop:
    name: str = attrs.field(converter=str)
    _open: tuple[time, ...] = ()


class Offer(BaseModel):
    price: Decimal = PydanticField(alias="Price")
    tags: set[str] = set()


class Outer:
    @dataclass
    class Inner:
        a: Any


def local_item() -> Any:
    return make_dataclass("Local", ["a"])(1)


def marked_item() -> Any:
    item = Outer.Inner(1)
    item.mark = 1  # type: ignore[attr-defined]
    return item


IN_BERLIN = datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin"))
TYPED: dict[str, Any] = {
    "Decimal": [Decimal("1.50"), Decimal("-Infinity")],
    "date": [
        datetime.fromisoformat("2026-01-02"),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
        time(1, 2),
    ],
    "aware datetime": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3))),
    "timedelta": timedelta(days=-1, microseconds=1),
    "UUID": UUID(int=5),
    "sets": [{1}, set(), frozenset({(1, b"x")})],
    "keys that are no text": {1: {None: True}, (1, 2): "$", b"": 1.5},
    "dicts with defaults": [
        defaultdict(list, {date(2026, 1, 2): ["a"]}),
        defaultdict(int, a=1),
        defaultdict(None, {(1, 2): defaultdict(dict)}),
    ],
    "ordered dict": OrderedDict([("b", 1), ("a", {2})]),
    "time zone of a place": [IN_BERLIN, IN_BERLIN.replace(month=10, day=25, hour=2, fold=1)],
    "Item": Car(colour={"$item": 1}),
    "empty Item": Item(),
    "frozen dataclass": Price(Decimal(1)),
    "attrs": [Shop("a", (time(8),))],
    "pydantic": Offer(Price=Decimal(2), tags={"x"}),
    "class in a class": Outer.Inner(Outer.Inner({date(2026, 1, 2): Car()})),
}


@pytest.mark.parametrize("value", TYPED.values(), ids=TYPED)
def test_items_and_values_that_json_lacks_travel(value: Any) -> None:
    check_same(Request("http://web/", meta={"a": value}, cb_kwargs={"b": [value]}))


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"$item": ["os", "system", {}]}, "not the class of an item"),
        ({"$item": ["subprocess", "Popen", {"args": "x"}]}, "not the class of an item"),
        ({"$item": ["scrapy", "Spider", {}]}, "not the class of an item"),
        ({"$item": ["antigravity", "fly", {}]}, "antigravity is no module of the project"),
        ({"$item": ["test_codec.gone", "Item", {}]}, "test_codec.gone"),
        ({"$item": [__name__, "Gone", {}]}, "no class"),
        ({"$item": [__name__, "Car", {"speed": 1}]}, "speed"),
        ({"$item": "x"}, "cannot be made here"),
        ({"$date": "yesterday"}, "yesterday"),
        ({"$decimal": "x"}, "cannot be made here"),
        ({"$datetime": ["2026-01-02", "Nowhere/At-all", 0]}, "no time zone Nowhere"),
        ({"$datetime": ["2026-01-02", "../../etc/passwd", 0]}, "cannot be made here"),
        ({"$defaults": ["eval", []]}, "eval"),
        ({"$set": [[]]}, "unhashable"),
    ],
)
def test_nothing_but_items_and_values_is_made_of_what_comes(form: Any, why: str) -> None:
    with pytest.raises(CannotTravel, match=why):
        from_value({"url": "http://web/", "meta": {"a": form}}, SPIDER)


def test_an_item_class_of_the_project_is_imported_when_it_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lateproj").mkdir()
    (tmp_path / "lateproj" / "items.py").write_text(
        "import scrapy\nclass Late(scrapy.Item):\n    a = scrapy.Field()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spider = type("Own", (Plain,), {"__module__": "lateproj.spiders"})()
    value = {"url": "http://web/", "meta": {"a": {"$item": ["lateproj.items", "Late", {"a": 1}]}}}
    with pytest.raises(CannotTravel, match="no module of the project"):
        from_value(value, SPIDER)
    assert plain_request(value).meta == value["meta"]
    assert type(from_value(value, spider).meta["a"]).__name__ == "Late"


def function(response: Any) -> None: ...


LAMBDA: Any = lambda _: None  # noqa: E731 - it is the lambda that is tested
LOOP: list[Any] = []
LOOP.append(LOOP)

CANNOT: dict[str, tuple[Request, str]] = {
    "lambda": (Request("http://web/", callback=LAMBDA), "lambda"),
    "function": (Request("http://web/", callback=function), "function is not a method"),
    "partial": (Request("http://web/", callback=partial(SPIDER.parse_item, 1)), "partial"),
    "method of another spider": (
        Request("http://web/", callback=Plain().parse_item),
        "Plain.parse_item",
    ),
    "method of another class": (Request("http://web/", errback=RULED.gone), "Ruled.gone"),
    "class method": (Request("http://web/", callback=SPIDER.of_class), "of_class"),
    "subclass": (Own("http://web/"), "Own is a class of its own"),
    "subclass with attributes": (OwnAttributes("http://web/"), "OwnAttributes"),
    "object": (Request("http://web/", meta={"a": object()}), "its meta has a object"),
    "object in an item": (
        Request("http://web/", meta={"a": Car(colour=object())}),
        "its meta has a object",
    ),
    "item of a local class": (
        Request("http://web/", meta={"a": local_item()}),
        "no class of an importable module",
    ),
    "item with more than its fields": (
        Request("http://web/", meta={"a": marked_item()}),
        "that are no fields",
    ),
    "time of a place": (
        Request("http://web/", meta={"a": IN_BERLIN.timetz()}),
        "time zone Europe/Berlin",
    ),
    "selector": (
        Request("http://web/", cb_kwargs={"a": Selector(text="<a>")}),
        "its cb_kwargs has a Selector",
    ),
    "namedtuple": (Request("http://web/", meta={"a": Pair(1, 2)}), "its meta has a Pair"),
    "default dict": (
        Request("http://web/", meta={"a": defaultdict(lambda: 1)}),
        "its meta has a defaultdict with",
    ),
    "enum": (Request("http://web/", meta={"a": Kind.A}), "its meta has a Kind"),
    "key that cannot travel": (
        Request("http://web/", meta={"a": {Kind.A: 2}}),
        "its meta has a Kind",
    ),
    "itself": (Request("http://web/", meta={"a": LOOP}), "contains itself"),
    "priority": (Request("http://web/", priority=1 << 63), "its priority is 9223372036854775808"),
    "method as a value": (
        Request("http://web/", meta={"a": SPIDER.parse}),
        "its meta has a method",
    ),
}


@pytest.mark.parametrize(("request_", "why"), CANNOT.values(), ids=CANNOT)
def test_what_cannot_travel_is_refused_by_name(request_: Request, why: str) -> None:
    with pytest.raises(CannotTravel, match=why):
        to_value(request_, SPIDER)


# CrawlSpider


def rule_requests(spider: CrawlSpider) -> list[Request]:
    page = HtmlResponse(
        "http://web/", body=b"<a href=/index_1>next</a><a href=/item_1>one</a>", encoding="utf-8"
    )
    return [request for request in spider._requests_to_follow(page) if isinstance(request, Request)]


def test_the_requests_of_rules_come_back_with_their_rule() -> None:
    index, item = rule_requests(RULED)
    for request, rule in ((index, 0), (item, 1)):
        assert rule_of(request, RULED) == rule
        meta = {"link_text": request.meta["link_text"]}
        assert to_value(request, RULED) == {"url": request.url, "rule": rule, "meta": meta}
        check_same(request, RULED)


def test_what_process_request_of_a_rule_changed_comes_back_too() -> None:
    _, item = rule_requests(RULED)
    check_same(
        item.replace(
            headers={"A": "b"}, cookies={"c": "d"}, meta={**item.meta, "mine": (1,)}, priority=3
        ),
        RULED,
    )
    for changed in ({"errback": RULED.gone}, {"errback": None}, {"callback": RULED.parse_item}):
        check_same(item.replace(**changed), RULED)
    with pytest.raises(CannotTravel, match="lambda"):
        to_value(item.replace(errback=LAMBDA), RULED)


def test_a_rule_request_without_link_text_is_as_short_as_can_be() -> None:
    request = Request(
        "http://web/",
        callback=RULED._callback,
        errback=RULED._errback,
        meta={"rule": 1, "link_text": ""},
    )
    assert to_value(request, RULED) == {"url": "http://web/", "rule": 1}
    check_same(request, RULED)


def test_parse_of_a_crawl_spider_is_not_what_it_calls_without_a_callback() -> None:
    check_same(Request("http://web/"), RULED)
    check_same(Request("http://web/", callback=RULED.parse), RULED)
    assert to_value(Request("http://web/"), RULED) != to_value(
        Request("http://web/", callback=RULED.parse), RULED
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"rule": 2}, "has no rule 2"),
        ({"rule": -1}, "has no rule -1"),
        ({"callback": "nothing"}, "no method 'nothing'"),
        ({"callback": "name"}, "no method 'name'"),
        ({"callback": "rules"}, "no method 'rules'"),
        ({"callback": "__class__"}, "no method '__class__'"),
        ({"callback": ["parse"]}, "no method"),
        ({"callback": "parse_item", "errback": "os.system"}, "no method 'os.system'"),
        ({"rule": 1, "errback": "nothing"}, "no method 'nothing'"),
    ],
)
def test_a_method_that_the_spider_does_not_have_is_not_called(
    value: dict[str, Any], why: str
) -> None:
    with pytest.raises(CannotTravel, match=why):
        from_value({"url": "http://web/", **value}, RULED)
    with pytest.raises(CannotTravel, match="has no rule 0"):
        from_value({"url": "http://web/", "rule": 0}, SPIDER)


def test_a_value_typed_by_hand_needs_only_its_url() -> None:
    request = from_value(json.loads('{"url": "http://web/"}'), SPIDER)
    assert (request.url, request.callback, request.method) == ("http://web/", None, "GET")


def test_an_errback_that_we_put_around_the_spiders_does_not_travel() -> None:
    def heard(errback: Any, failure: Any) -> None: ...

    watched = Request("http://web/", errback=WatchedDict(heard, WatchedDict(heard, SPIDER.gone)))
    check_same(watched.replace(errback=SPIDER.gone))
    assert there_and_back(watched).errback == SPIDER.gone
    assert there_and_back(Request("http://web/", errback=WatchedDict(heard, None))).errback is None


class Two(Ruled):
    name = "two"
    rules = (
        *Ruled.rules,
        Rule(LinkExtractor(), callback="parse_other"),
        Rule(LinkExtractor(), callback="parse_item", follow=True),
    )

    def parse_other(self, response: Any) -> None: ...


class NoEnd(Ruled):
    name = "noend"
    rules = (Rule(LinkExtractor(), callback="parse_item", follow=True),)


def of_rule(spider: CrawlSpider, number: int) -> Request:
    return Request("http://web/", callback=spider._callback, meta={"rule": number})


def test_the_only_rule_that_ends_at_a_page_is_meant() -> None:
    target = find_target(RULED, Settings())
    assert (only_rule(RULED), target.rules) == (1, frozenset({1}))
    assert "its only rule" in target.how
    assert [target.takes(of_rule(RULED, n), RULED) for n in (0, 1)] == [False, True]
    assert not target.takes(Request("http://web/"), RULED)
    assert not target.takes(Request("http://web/", callback=RULED.parse_item), RULED)


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
    assert [
        name for name, request in requests.items() if target.takes(request, spider)
    ] == callbacks


def test_rules_that_only_follow_are_taken_with_what_their_pages_lead_to() -> None:
    """The rule that `scrapy genspider -t crawl` writes: a callback, and follow=True."""
    target = find_target(NoEnd(), Settings({"DISTRIBUTED_SEEDS": True}))
    assert (target.rules, target.follows, target.seeds) == (frozenset({0}), True, True)
    assert "all requests of the rules of noend" in target.how
    named = find_target(NoEnd(), Settings({"DISTRIBUTED_TARGET_RULE": 0}))
    assert (named.rules, named.follows) == (frozenset({0}), False)
    assert not find_target(NoEnd(), Settings({"DISTRIBUTED_TARGET_BY_META": True})).rules


def test_a_named_callback_is_named_with_the_links_of_its_rule() -> None:
    """As plain Scrapy follows them; a rule's number names its pages alone."""
    spider = Two()
    by_callback = Settings({"DISTRIBUTED_TARGET_CALLBACKS": "parse_item"})
    target = find_crawl_target(spider, by_callback)
    assert (target.rules, target.follows) == (frozenset({0, 1, 2, 3}), True)
    (line,) = describe_target(target, by_callback)
    assert line == (
        "to the nodes go all requests of the rules of two, since pages of rule 1 and rule 3 and callback parse_item of"
        " two lead on by rules: the workers follow them"
    )
    assert target.unfollowed_rules(spider) == []
    by_number = Settings({"DISTRIBUTED_TARGET_RULE": 3})
    target = find_crawl_target(spider, by_number)
    assert (target.rules, target.follows) == (frozenset({3}), False)
    assert target.unfollowed_rules(spider) == [3]
    assert describe_target(target, by_number) == []


def test_a_callback_whose_rules_end_at_its_pages_is_named_alone() -> None:
    spider, named = Two(), Settings({"DISTRIBUTED_TARGET_CALLBACKS": "parse_other"})
    target = find_crawl_target(spider, named)
    assert (target.rules, target.follows) == (frozenset({2}), False)
    assert target.unfollowed_rules(spider) == []


def test_start_pages_on_nodes_lead_on_by_rules() -> None:
    seeds = Settings({"DISTRIBUTED_SEEDS": True})
    target = find_crawl_target(RULED, seeds)
    assert (target.rules, target.follows, target.seeds) == (frozenset({0, 1}), True, True)
    assert (
        "since start pages, which go there, lead on by rules" in describe_target(target, seeds)[0]
    )
    # A spider without rules has none to follow.
    assert not find_crawl_target(SPIDER, seeds).follows


def test_pages_of_sitemaps_are_the_target_of_their_spider() -> None:
    class Maps(SitemapSpider):
        name = "maps"
        sitemap_rules = (("/news/", "parse_news"), ("", "parse"))

        def parse_news(self, response: Any) -> None: ...

        def parse(self, response: Any) -> None: ...

    spider = Maps()
    target = find_target(spider, Settings())
    assert target.how == "pages of the sitemaps of maps (parse, parse_news)"
    taken = [
        target.takes(Request("http://web/", one), spider)
        for one in (spider.parse_news, spider._parse_sitemap)
    ]
    assert taken == [True, False]


def test_a_plain_spider_names_a_callback() -> None:
    target = find_target(SPIDER, Settings({"DISTRIBUTED_TARGET_CALLBACKS": "parse_item,parse"}))
    assert target.takes(Request("http://web/", callback=SPIDER.parse_item), SPIDER)
    assert not target.takes(Request("http://web/", callback=SPIDER.made), SPIDER)
    made = find_target(SPIDER, Settings({"DISTRIBUTED_TARGET_CALLBACKS": "made,alias"}))
    assert made.takes(Request("http://web/", callback=SPIDER.made), SPIDER), (
        "its function is called parse"
    )
    assert made.takes(Request("http://web/", callback=SPIDER.parse_item), SPIDER), (
        "alias is another name of it"
    )
    assert not made.takes(Request("http://web/", callback=SPIDER.parse), SPIDER)
    assert target.takes(Request("http://web/"), SPIDER)
    assert not target.takes(Request("http://web/", callback=LAMBDA), SPIDER)


def test_a_mark_in_the_meta_is_enough() -> None:
    target = find_target(SPIDER, Settings({"DISTRIBUTED_TARGET_BY_META": True}))
    assert target.takes(Request("http://web/", meta={"distribute": True}), SPIDER)
    assert not target.takes(Request("http://web/", meta={"distribute": False}), SPIDER)
    assert find_target(RULED, Settings()).takes(
        Request("http://web/", meta={"distribute": True}), RULED
    )


WRONG: list[tuple[Spider, dict[str, Any], str]] = [
    (
        SPIDER,
        {},
        "Nothing says which requests of the spider plain.* The callbacks of Plain are: .*parse_item",
    ),
    (
        Two(),
        {},
        "rule 0: callback none, follows; rule 1: callback parse_item, does not follow; rule 2: callback",
    ),
    (RULED, {"DISTRIBUTED_TARGET_RULE": 2}, "has no rule 2. Its rules are"),
    (RULED, {"DISTRIBUTED_TARGET_RULE": 0}, "Rule 0 of the spider ruled has no callback"),
    (SPIDER, {"DISTRIBUTED_TARGET_RULE": 0}, "has no rule 0"),
    (RULED, {"DISTRIBUTED_TARGET_RULE": "second"}, "is 'second', and must be the number of a rule"),
    (
        SPIDER,
        {"DISTRIBUTED_TARGET_CALLBACKS": "parse_items"},
        "no method 'parse_items'.* Did you mean parse_item?",
    ),
    (SPIDER, {"DISTRIBUTED_TARGET_CALLBACKS": "title"}, "has no method 'title'"),
    (
        SPIDER,
        {"DISTRIBUTED_TARGET_CALLBACKS": "__hidden"},
        "no method '__hidden'.* private method is _Plain__hidden: type that",
    ),
]


class Bookshop(Spider):
    """What most spiders are: one callback for the first pages, and one for what they lead to."""

    name = "my shop"

    def parse(self, response: Any) -> None: ...

    def parse_book(self, response: Any) -> None: ...


class Bookshops(Bookshop):
    def parse_author(self, response: Any) -> None: ...


class Alone(Spider):
    name = "alone"

    def parse(self, response: Any) -> None: ...


def test_the_only_other_callback_is_the_target_of_a_crawl_that_was_asked_for() -> None:
    one, two, named = Settings(), Settings(), Settings({"DISTRIBUTED_TARGET_CALLBACKS": "parse"})
    take_only_callback(Bookshop(), one)
    target = find_target(Bookshop(), one)
    assert target.callbacks == {"parse_book"}
    assert describe_target(target, one) == [
        "no target is named, so to the nodes go callback parse_book of my shop, its only one besides parse()"
    ]
    assert (
        one.getpriority("DISTRIBUTED_TARGET_CALLBACKS") == 40
    )  # as given on the command line: it goes to workers
    take_only_callback(Bookshops(), two)
    with pytest.raises(NoTarget, match=r"Type: sdist crawl 'my shop' --callback parse_author\."):
        find_target(Bookshops(), two)
    with pytest.raises(NoTarget, match=r"sdist crawl alone -s DISTRIBUTED_SEEDS=1\."):
        find_target(Alone(), two)
    take_only_callback(Bookshop(), named)
    assert find_target(Bookshop(), named).callbacks == {"parse"}
    assert not describe_target(find_target(Bookshop(), named), named)


@pytest.mark.parametrize(("spider", "values", "why"), WRONG)
def test_what_is_not_there_is_told_with_what_is(
    spider: Spider, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        find_target(spider, Settings(values))
