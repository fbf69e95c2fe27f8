"""What is found ends in the account, and goes to the fleet once: its slot, its form for its spider, its batch."""

import json
import random
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from cryptography.fernet import Fernet
from rig.scheduling import run
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.classifier import LARGE, Disposition, FoundRequests
from scrapyd_dist.middlewares.codec import IS_START, from_value, set_attributes
from scrapyd_dist.middlewares.producer import filler as filler_module
from scrapyd_dist.middlewares.producer.discovery import Capture
from scrapyd_dist.middlewares.producer.filler import Filler, FillerRun
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.targets import Target, find_target

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.packing import FrontierIntake, pack
from scrapyd_dist.payload import BATCH_MAX_BYTES, decode, from_json, to_json
from scrapyd_dist.scheduling.batcher import Batcher, SlotBatcher
from scrapyd_dist.scheduling.fingerprints import FingerprintSet

KEY = Fernet.generate_key()
HOME = {"project": "shop", "spider": "links"}


class Links(CrawlSpider):
    name = "links"
    allowed_domains = ("web",)
    rules = (Rule(LinkExtractor(), callback="parse_page"),)

    def parse_page(self, response: Any) -> None: ...

    def parse_article(self, response: Any) -> None: ...

    def gone(self, failure: Any) -> None: ...


class Login(Spider):
    name = "login"

    def parse(self, response: Any) -> None: ...

    def parse_login(self, response: Any) -> None: ...

    def gone(self, failure: Any) -> None: ...


class Hiding(Spider):
    name = "hiding"
    custom_settings = {"ADDONS": {}}  # noqa: RUF012 - as projects write it


def parse_login(response: Any) -> None:
    """The sender has no such method: a stand-in with its name."""


class Bench:
    """A process that finds requests, with a crawler that is not crawling."""

    def __init__(
        self, spider: type[Spider] = Links, *, own: str = "", push: bool = False, **settings: Any
    ) -> None:
        settings = {"SPIDER_MODULES": [__name__], **settings}
        crawler = get_crawler(spider, settings)
        self.spider: Any = spider.from_crawler(crawler)
        crawler.spider = self.spider
        offsite = OffsiteMiddleware.from_crawler(crawler)
        offsite.spider_opened(self.spider)
        self.cookies = CookiesMiddleware.from_crawler(crawler)
        parts = {OffsiteMiddleware: offsite, CookiesMiddleware: self.cookies}
        # in the place of the real ones
        crawler.get_downloader_middleware = parts.get  # type: ignore[method-assign,assignment]
        self.crawler = crawler
        slotting = None if push else SlotRouting.from_settings(crawler.settings, **HOME, own=own)
        self.finds = FoundRequests(crawler=crawler, key=KEY, slotting=slotting, salt="x")

    def take(self, url: str = "http://web/", **fields: Any) -> str:
        return self.finds.keep(Request(url, **fields)).value

    def found(self, url: str = "http://web/", **fields: Any) -> FrontierIntake:
        """The request as it goes into the frontier."""
        assert self.take(url, **fields) == "sealed", self.finds.undelivered or self.finds.reasons
        return self.finds.found[-1]

    def slot(self, url: str = "http://web/", **fields: Any) -> str:
        return self.found(url, **fields).slot

    def why_not(self, url: str = "http://web/", **fields: Any) -> str:
        """Why a request for another spider goes nowhere."""
        assert self.take(url, **fields) == "refused"
        (miss,) = self.finds.take_misses()
        assert (miss.kind, miss.url) == ("dead", url)
        assert self.finds.undelivered[miss.reason]
        return miss.reason


def test_what_idle_handlers_ask_for_goes_to_a_batch_with_its_account_and_its_misses() -> None:
    idle = Bench()
    batch = Bench()
    idle.take("http://web/a")
    idle.take("http://web/a")
    assert idle.take("http://web/b", meta={"distribute": "absent"}) == "refused"
    assert idle.finds.give_to(batch.finds)
    assert not idle.finds.give_to(batch.finds)
    assert [found.value["url"] for found in batch.finds.found] == ["http://web/a"]
    assert batch.finds.take_counts() == {"duplicate": 1, "refused": 1}
    assert [miss.url for miss in batch.finds.take_misses()] == ["http://web/b"]


def test_a_batch_that_is_made_again_has_the_misses_that_no_request_of_it_led_to() -> None:
    """Its requests come again with theirs; an idle handler or a timer may not."""
    idle = Bench()
    batch = Bench()
    absent = {"distribute": "absent"}
    batch.finds.keep(Request("http://web/page", meta=absent), 0)
    batch.finds.keep(Request("http://web/timer", meta=absent))
    idle.finds.keep(Request("http://web/idle", meta=absent))
    idle.finds.give_to(batch.finds)
    of_no_page = [miss.url for miss in batch.finds.take_misses_of_no_page()]
    assert of_no_page == ["http://web/timer", "http://web/idle"]
    assert [miss.url for miss in batch.finds.take_misses()] == ["http://web/page"]


# slots


def test_prefix_and_number_are_those_of_the_settings() -> None:
    assert Bench().slot() == "0"
    bench = Bench(DISTRIBUTED_SLOT_PREFIX="p", DISTRIBUTED_SLOTS="8")
    assert {bench.slot(f"http://web/{number}") for number in range(200)} == {
        f"p{number}" for number in range(8)
    }


def test_a_callback_may_have_slots_of_its_own() -> None:
    bench = Bench(
        DISTRIBUTED_CALLBACK_SLOTS='{"parse_article": "articles/4"}', DISTRIBUTED_SLOT_PREFIX="p"
    )
    assert bench.slot() == "p0"
    article = bench.spider.parse_article
    slots = {bench.slot(f"http://web/a{number}", callback=article) for number in range(100)}
    assert slots == {f"articles{number}" for number in range(4)}


def test_a_rules_request_is_placed_by_the_rules_callback() -> None:
    bench = Bench(DISTRIBUTED_CALLBACK_SLOTS={"parse_page": "pages"})
    assert bench.slot(callback=bench.spider._callback, meta={"rule": 0}) == "pages0"


def test_a_request_may_ask_for_slots_of_its_own_and_carries_that_no_further() -> None:
    bench = Bench(DISTRIBUTED_SLOTS=8)
    one = bench.found(meta={"frontier_slot_prefix": "q", "frontier_number_of_slots": 1, "a": 1})
    assert one.slot == "q0"
    assert from_value(one.value, bench.spider).meta == {"a": 1}


def test_by_domain_a_site_stays_together() -> None:
    bench = Bench(DISTRIBUTED_SLOTS=50, DISTRIBUTED_SLOT_BY="domain")
    assert (
        len(
            {
                bench.slot(f"http://a{number}.example.com/{number}", dont_filter=True)
                for number in range(20)
            }
        )
        == 1
    )


BAD_META: list[dict[str, Any]] = [
    {"frontier_fingerprint": 7}, {"frontier_slot_prefix": 7}, {"frontier_number_of_slots": "7"},
    {"frontier_number_of_slots": True}, {"frontier_slot_prefix": "a/b"}, {"frontier_number_of_slots": 0},
]  # fmt: skip


def test_meta_that_makes_no_sense_keeps_a_request_here_and_is_told() -> None:
    bench = Bench()
    assert [bench.take(f"http://web/{n}", meta=meta) for n, meta in enumerate(BAD_META)] == [
        "local"
    ] * len(BAD_META)
    assert sum(bench.finds.reasons.values()) == len(BAD_META)


@pytest.mark.parametrize(
    "settings",
    [
        {"DISTRIBUTED_SLOTS": "many"}, {"DISTRIBUTED_SLOTS": -1}, {"DISTRIBUTED_SLOT_BY": "size"},
        {"DISTRIBUTED_SLOT_PREFIX": "a/b"}, {"DISTRIBUTED_CALLBACK_SLOTS": "x"},
        {"DISTRIBUTED_CALLBACK_SLOTS": {"parse": "a/b/c"}}, {"DISTRIBUTED_SPIDER_CALLBACKS": "x"},
        {"DISTRIBUTED_SPIDER_CALLBACKS": {"parse": {"project": "x"}}},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Bench(**settings)


# known again


def test_a_custom_fingerprint_goes_before_what_a_request_asks_for() -> None:
    bench = Bench()
    given = [("1", "one"), ("2", "one"), ("1", "two"), ("1", None)]
    fates = [
        bench.take(f"http://web/{page}", meta={"frontier_fingerprint": text})
        for page, text in given
    ]
    assert fates == ["sealed", "duplicate", "sealed", "sealed"]


def test_pages_are_known_by_method_address_and_body() -> None:
    bench = Bench()
    posts = [bench.take("http://web/", method="POST", body=body) for body in ("x", "y", "x")]
    assert posts == ["sealed", "sealed", "duplicate"]
    assert [bench.take("http://web/?a=1&b=2"), bench.take("http://web/?b=2&a=1#x")] == [
        "sealed",
        "duplicate",
    ]


def test_what_is_not_to_be_filtered_is_new_each_time_and_in_each_process() -> None:
    bench = Bench()
    here = [bench.found(dont_filter=True).fingerprint for _ in range(2)]
    other = FoundRequests(crawler=bench.crawler, key=KEY, slotting=SlotRouting(), salt="y")
    other.keep(Request("http://web/", dont_filter=True))
    assert len({*here, other.found[0].fingerprint}) == 3


def test_two_spiders_may_both_want_a_page() -> None:
    bench = Bench()
    assert bench.take() == bench.take(meta={"distribute": {"spider": "login"}}) == "sealed"
    assert bench.take(meta={"distribute": {"spider": "login"}}) == "duplicate"


# other spiders


def test_a_request_for_another_spider_is_rebuilt_there_with_all_that_it_has() -> None:
    bench = Bench()
    meta = {"distribute": {"spider": "login", "callback": "parse_login"}, "a": [1]}
    one = bench.found(
        "http://elsewhere/", method="POST", body=b"x", meta=meta, headers={"A": "b"}, cookies={"c": "d"},
        cb_kwargs={"k": 1}, priority=3, flags=["f"], errback=bench.spider.gone,
    )  # fmt: skip
    assert (one.slot, one.priority) == ("@login", 3)
    there = Login()
    back = from_value(one.value, there)
    assert (back.callback, back.errback) == (there.parse_login, there.gone)
    assert (back.method, back.body, back.meta, back.cb_kwargs) == (
        "POST",
        b"x",
        {"a": [1]},
        {"k": 1},
    )
    assert (back.priority, back.flags, back.cookies, back.headers) == (
        3,
        ["f"],
        {"c": "d"},
        {b"A": [b"b"]},
    )
    value = bench.found(meta={"distribute": {"spider": "login"}}).value
    assert (
        value["callback"] is None
    )  # as any page, and not by the targets of that spider's settings
    assert from_value(value, there).callback is None


def test_a_mapping_of_callbacks_sends_to_other_spiders() -> None:
    others = {"parse_login": "login", "parse_page": {"spider": "login", "project": "x"}}
    bench = Bench(DISTRIBUTED_SPIDER_CALLBACKS=json.dumps(others))
    one = bench.found(callback=parse_login)
    assert (one.slot, one.value["callback"]) == ("@login", "parse_login")
    by_rule = bench.found(
        callback=bench.spider._callback,
        errback=bench.spider._errback,
        meta={"rule": 0, "link_text": "a"},
    )
    assert by_rule.slot == "@x:login"
    assert by_rule.value == {"url": "http://web/", "callback": "parse_page"}
    target = find_target(bench.spider, bench.spider.settings)
    assert target.takes(Request("http://web/", callback=parse_login), bench.spider)


@pytest.mark.parametrize(
    ("said", "slot"),
    [
        ({"spider": "links"}, "0"),
        ({"spider": "links", "project": "shop"}, "0"),
        ({"spider": "nobody", "project": "other"}, "@other:nobody"),
        ({"spider": "hiding", "project": "other"}, "@other:hiding"),
    ],
)
def test_the_frontiers_own_spider_has_the_ordinary_slots_and_spiders_of_another_project_are_not_known(
    said: dict[str, str], slot: str
) -> None:
    assert Bench().slot(meta={"distribute": said}) == slot


def test_what_a_worker_for_another_spider_finds_is_its_own_or_goes_back() -> None:
    bench = Bench(Login, own="@login")
    assert bench.slot(meta={"distribute": True}) == "@login"
    back = bench.found(
        "http://web/2", meta={"distribute": {"spider": "links", "callback": "parse_article"}}
    )
    assert (back.slot, back.value["callback"]) == ("0", "parse_article")
    # known to the frontier as what the producer finds itself
    assert back.fingerprint == Bench().found("http://web/2").fingerprint


def test_a_worker_of_another_project_speaks_of_its_own_spiders() -> None:
    bench = Bench(Login, own="@other:login")
    said = [True, {"spider": "links"}, {"spider": "links", "project": "shop"}]
    assert [bench.slot(meta={"distribute": to}) for to in said] == [
        "@other:login",
        "@other:links",
        "0",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "nobody", {"spider": "nobody"}, {"spider": ""}, {"callback": "x"}, {"spider": "login", "url": "x"},
        {"spider": 3}, 3, ["login"], {"spider": "login", "callback": "no name"}, {"spider": "x y", "project": "p"},
    ],
)  # fmt: skip
def test_what_no_spider_can_take_is_a_miss_with_the_reason(said: Any) -> None:
    why = Bench().why_not(meta={"distribute": said})
    assert why.startswith("there is no spider 'nobody'") == ("nobody" in str(said))


def test_a_spider_that_hides_the_addon_gets_nothing_since_its_workers_would_enter_its_own_start() -> (
    None
):
    why = Bench().why_not(meta={"distribute": "hiding"})
    assert why.startswith("the custom_settings of the spider hiding set ADDONS")


def test_what_cannot_travel_to_another_spider_is_a_miss_too_as_is_all_for_others_where_batches_are_sent() -> (
    None
):
    why = Bench().why_not(meta={"distribute": "login", "a": object()})
    assert why == "it is for the spider login, and its meta has a object, which JSON cannot carry"
    why = Bench(push=True).why_not(meta={"distribute": {"spider": "login"}})
    assert (
        why
        == "it is for another spider (login), and only a crawl whose workers lease gives it to that one"
    )


def test_offsite_is_judged_by_the_spider_that_makes_the_request() -> None:
    bench = Bench()
    assert bench.take("http://elsewhere/") == "offsite"
    assert bench.take("http://elsewhere/", meta={"distribute": "login"}) == "sealed"


# attributes


def test_attributes_of_the_spider_travel_with_its_requests_or_are_named() -> None:
    bench = Bench(DISTRIBUTED_SPIDER_ATTRIBUTES=["token", "missing"])
    bench.spider.token = ("a", b"b")
    value = bench.found().value
    there = Bench(DISTRIBUTED_SPIDER_ATTRIBUTES="token").spider
    set_attributes(value, there)
    assert there.token == ("a", b"b")
    assert from_value(value, there).url == "http://web/"
    set_attributes({"url": "http://web/", "attributes": {"parse": 1, "token": 2}}, there)
    assert (there.token, callable(there.parse)) == (2, True), (
        "only those that the worker expects are set"
    )
    bench.spider.token = object()
    assert bench.take("http://web/2") == "local"
    assert "token (an attribute of the spider)" in next(iter(bench.finds.reasons))


# seeds


def test_seeds_are_targets_as_start_requests_only() -> None:
    settings = Settings({"DISTRIBUTED_SEEDS": True})
    target = find_target(Login(), settings)
    assert target.takes(Request("http://web/"), Login(), start=True)
    assert not target.takes(Request("http://web/"), Login())


def test_a_start_request_that_goes_into_a_frontier_is_known_as_one_in_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scrapy marks those that it gets itself."""
    bench = Captured(size=1)
    writer: Any = Mock(room=Mock(wait=AsyncMock()))
    target = Target(seeds=True)
    run_of_filler = FillerRun(bench.crawler, target, bench.capture, writer)
    filler = Filler(bench.crawler)
    monkeypatch.setattr(filler_module, "begin", AsyncMock(return_value=run_of_filler))

    async def start() -> AsyncIterator[Any]:
        yield Request("http://web/1")

    async def crawled_here() -> list[Any]:
        return [output async for output in filler.process_start(start())]

    assert run(crawled_here()) == []
    ((cut, _),) = [call.args for call in writer.remember.call_args_list]
    assert [one.value["meta"] for one in cut] == [{IS_START: True}]


# batches


def found(
    number: int, slot: str = "0", priority: int = 0, url: str = "http://web/"
) -> FrontierIntake:
    return FrontierIntake(
        value={"url": f"{url}{number}"},
        fingerprint=str(number).encode(),
        slot=slot,
        priority=priority,
    )


def test_batches_have_one_slot_and_one_priority_and_as_many_requests_as_allowed() -> None:
    batches = pack([found(n, "ab"[n % 2], n % 3) for n in range(30)], size=4, key=None)
    assert sorted((b.slot, b.priority, b.size) for b in batches) == sorted(
        (slot, priority, size) for slot in "ab" for priority in range(3) for size in (4, 1)
    )
    for batch in batches:
        values = decode(batch.payload.get)
        assert [value["url"].rpartition("/")[2].encode() for value in values] == list(
            batch.fingerprints
        )


def test_a_batch_that_is_too_large_when_encoded_is_two() -> None:
    noise = random.Random(7)
    batches = pack(
        [found(n, url=f"http://web/{noise.randbytes(40_000).hex()}") for n in range(12)],
        size=100,
        key=None,
    )
    assert len(batches) > 1
    assert [one for batch in batches for one in batch.fingerprints] == [
        str(n).encode() for n in range(12)
    ]


# the producer of a crawl


class Captured(Bench):
    """A producer of a crawl that sends its batches, or, with slots, lets workers lease them."""

    def __init__(
        self, *, size: int = 3, key: bytes | None = None, stay: str = "local", before: Iterable[bytes] = (),
        slotting: SlotRouting | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(**settings)
        cutter: Any = (
            SlotBatcher(size=size, max_age=60) if slotting else Batcher(size=size, max_age=60)
        )
        self.capture = Capture(
            crawler=self.crawler,
            cutter=cutter,
            key=key,
            stay=stay,
            slotting=slotting,
            before=FingerprintSet(before),
        )

    def take(self, url: str = "http://web/", shard: int = 0, **fields: Any) -> str:
        return self.capture.sort_in(Request(url, **fields), shard)[0].value


def test_a_batch_is_cut_when_it_is_full_and_its_fingerprints_are_scrapys() -> None:
    bench = Captured(size=2)
    assert bench.capture.sort_in(Request("http://web/1"), 0) == (Disposition.SEALED, None)
    assert len(bench.capture.cutter) == 1
    _, cut = bench.capture.sort_in(Request("http://web/2"), 0)
    assert cut
    assert [from_value(one.value, bench.spider).url for one in cut] == [
        "http://web/1",
        "http://web/2",
    ]
    fingerprinter = bench.spider.crawler.request_fingerprinter
    assert [one.fingerprint for one in cut] == [
        fingerprinter.fingerprint(Request(f"http://web/{n}")) for n in (1, 2)
    ]
    assert (len(bench.capture.cutter), bench.capture.cutter.cut_rest()) == (0, [])


def test_each_fate_is_counted_and_sealed_ones_with_their_batch() -> None:
    bench = Captured()
    fates = [
        bench.take("http://web/1"), bench.take("http://web/1#x"), bench.take("http://elsewhere/"),
        bench.take("http://web/2", callback=lambda _: None), bench.take("http://web/2", callback=lambda _: None),
    ]  # fmt: skip
    assert fates == ["sealed", "duplicate", "offsite", "local", "duplicate"]
    assert bench.capture.take_counts() == {"duplicate": 2, "offsite": 1, "local": 1}
    assert bench.capture.take_counts() == {}
    assert len(bench.capture.reasons) == 1


class ByPath(BaseDupeFilter):
    """Of a project: the query of an address makes no other page."""

    def __init__(self) -> None:
        self.paths = set[str]()

    def request_seen(self, request: Request) -> bool:
        path = request.url.partition("?")[0]
        is_known = path in self.paths
        self.paths.add(path)
        return is_known


def filtered(bench: Captured, kind: type[BaseDupeFilter]) -> Captured:
    """With an engine that has this filter."""
    scheduler = SimpleNamespace(df=kind())
    bench.crawler.engine = SimpleNamespace(_slot=SimpleNamespace(scheduler=scheduler))  # type: ignore[assignment]
    return bench


def test_the_projects_own_filter_says_what_a_duplicate_is() -> None:
    """A plain crawl of such a project has each page as often as its filter lets it pass."""
    twice = filtered(Captured(size=99, key=KEY, DUPEFILTER_CLASS=BaseDupeFilter), BaseDupeFilter)
    assert [twice.take(cookies={"lang": name}) for name in ("de", "en", "de")] == ["sealed"] * 3
    first = [one.fingerprint for cut in twice.capture.cutter.cut_rest() for one in cut]
    assert len(set(first)) == 3
    again = filtered(
        Captured(size=99, key=KEY, before=first, DUPEFILTER_CLASS=BaseDupeFilter), BaseDupeFilter
    )
    assert [again.take(cookies={"lang": name}) for name in ("de", "en", "de")] == ["sealed"] * 3
    assert again.capture.cutter.cut_rest() == [], "what was sealed before is not sealed again"

    once = filtered(Captured(size=99, DUPEFILTER_CLASS=ByPath), ByPath)
    assert [once.take(f"http://web/{n}") for n in ("a?1", "a?2", "b")] == [
        "sealed",
        "duplicate",
        "sealed",
    ]
    assert once.take("http://web/a?3", dont_filter=True) == "sealed"


def with_cookies(bench: Captured, jar: Any, *lines: str, url: str = "http://web/") -> Captured:
    """One that has received these cookies."""
    request, headers = Request(url, meta={"cookiejar": jar}), {"Set-Cookie": [*lines]}
    bench.cookies.process_response(request, Response(url, headers=headers))
    return bench


def header(bench: Captured, url: str = "http://web/", **fields: Any) -> str:
    """The cookies with which a worker asks for a request that was captured."""
    bench.take(url, **fields)
    (((captured,),),) = (bench.capture.cutter.cut_rest(),)
    request = from_value(from_json(to_json([captured.value]))[0], bench.spider)
    worker = CookiesMiddleware.from_crawler(bench.crawler)
    worker.process_request(request)
    return (request.headers.get("Cookie") or b"").decode()


def test_the_cookies_of_a_session_travel_with_the_request_as_scrapy_would_send_them() -> None:
    def bench() -> Captured:
        return with_cookies(Captured(key=KEY), None, "sid=1; Path=/", "deep=2; Path=/in")

    assert header(bench()) == "sid=1"
    assert header(bench(), "http://web/in/side") == "deep=2; sid=1"
    assert header(bench(), meta={"dont_merge_cookies": True}) == ""
    assert header(bench(), meta={"cookiejar": "ann"}) == ""
    assert (
        header(with_cookies(bench(), "ann", "sid=ann; Path=/"), meta={"cookiejar": "ann"})
        == "sid=ann"
    )
    assert set(header(bench(), cookies={"lang": "de"}).split("; ")) == {"lang=de", "sid=1"}
    assert set(
        header(bench(), cookies=[{"name": "sid", "value": "own", "path": "/"}]).split("; ")
    ) == {"sid=own"}
    assert (
        header(
            with_cookies(
                Captured(key=KEY), None, "sid=1; Domain=other.test", url="http://other.test/"
            )
        )
        == ""
    )
    assert header(with_cookies(Captured(key=KEY), None, "sid=1; Max-Age=0")) == ""


def test_the_links_of_a_strategy_have_no_cookies_of_a_session() -> None:
    bench = with_cookies(Captured(key=KEY, DISTRIBUTED_STRATEGY="shop:News"), None, "sid=1; Path=/")
    bench.take()
    assert ["cookies" in one.value for cut in bench.capture.cutter.cut_rest() for one in cut] == [
        False
    ]


@pytest.mark.parametrize("fields", [{"dont_filter": True}, {"meta": {"allow_offsite": True}}])
def test_offsite_can_be_allowed_as_in_scrapy(fields: dict[str, Any]) -> None:
    assert Captured().take("http://elsewhere/", **fields) == "sealed"


def found_by(bench: Captured) -> list[bytes]:
    """What a walk of two shards finds; the fingerprints of what it sealed."""
    for shard in (0, 1):
        for n in (1, 2, 1):
            bench.take(f"http://web/{n}", shard)
            bench.take(f"http://web/{n}", shard, dont_filter=True)
    return [one.fingerprint for cut in bench.capture.cutter.cut_rest() for one in cut]


def test_a_shard_that_is_walked_again_seals_only_what_was_not_sealed_before() -> None:
    every = found_by(Captured(size=99))
    assert len(every) == len(set(every)) == 2 + 6
    assert found_by(Captured(size=99, before=every)) == []
    assert sorted(found_by(Captured(size=99, before=every[:3]))) == sorted(every[3:])

    bench = Captured(size=99, before=every)
    assert [bench.take("http://web/1") for _ in range(2)] == ["sealed", "duplicate"]
    assert len(bench.capture.cutter) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"cookies": {"a": "b"}}, {"headers": {"Authorization": "x"}}, {"method": "POST", "body": b"x"},
        {"meta": {"proxy": "http://u:p@proxy/", "$x": 1}},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("key", "stay", "fate"),
    [(KEY, "local", "sealed"), (None, "local", "local"), (None, "refuse", "refused")],
    ids=["sealed", "local", "refused"],
)
def test_what_must_be_hidden_travels_with_a_key_only(
    fields: dict[str, Any], key: bytes | None, stay: str, fate: str
) -> None:
    bench = Captured(key=key, stay=stay)
    assert bench.take("http://web/", **fields) == fate
    assert bool(bench.capture.reasons) == (fate != "sealed")


def test_a_request_that_is_too_large_for_a_job_stays() -> None:
    noise = random.Random(7).randbytes(BATCH_MAX_BYTES).hex()
    bench = Captured()
    assert bench.take("http://web/fits?" + "x" * LARGE * 2) == "sealed"  # it can be compressed
    assert bench.take("http://web/large?" + noise[:LARGE]) == "sealed"
    assert bench.take("http://web/larger?" + noise) == "local"
    assert "too large" in next(iter(bench.capture.reasons))


def test_reasons_are_told_the_most_frequent_first() -> None:
    bench = Captured(stay="refuse")
    for n in range(3):
        bench.take(f"http://web/{n}", cookies={"a": "b"})
    bench.take("http://web/9", meta={"a": object()})
    told = bench.capture.stayed()
    assert told[0].startswith("3 target requests are refused, and not crawled: it has cookies")
    assert told[1].startswith(
        "1 target requests are refused, and not crawled: its meta has a object"
    )


@pytest.mark.parametrize(
    ("slotting", "slot"), [(None, ""), (SlotRouting(project="shop", spider="links"), "0")]
)
def test_a_crawl_that_sends_its_batches_has_no_slots_and_a_pulled_one_has_them(
    slotting: SlotRouting | None, slot: str
) -> None:
    _, cut = Captured(size=1, slotting=slotting).capture.sort_in(
        Request("http://web/", priority=4), 0
    )
    assert cut
    assert [(one.slot, one.priority) for one in cut] == [(slot, 4)]


def test_what_goes_nowhere_is_told_at_the_end() -> None:
    bench = Captured(slotting=SlotRouting(project="shop", spider="links"))
    assert bench.take(meta={"distribute": 3}) == "refused"
    (line,) = bench.capture.undeliverable()
    assert line.startswith("1 request for another spider is in the list of misses: its address 3")
    assert bench.capture.take_counts() == {"refused": 1}
    assert [len(bench.capture.take_misses()) for _ in range(2)] == [1, 0]
