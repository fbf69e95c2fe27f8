"""What of a project means something else in many processes, noticed by its settings, its components and their code."""

import importlib.util
import itertools
import logging
import random
import sqlite3
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from functools import cached_property
from inspect import getmro
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import uuid4

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.settings import Settings, default_settings
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.addon import PRIORITY, Addon
from scrapyd_dist.middlewares.producer import difference_finder
from scrapyd_dist.middlewares.producer.code_reader import attribute_use
from scrapyd_dist.middlewares.producer.difference_finder import (
    OWN_ORDER,
    find_differences,
    find_made_anew,
    find_set_on_index,
    find_unheard,
    find_unheard_on_index,
    join_rows,
    kept_by_callbacks,
    refuse_differences,
)
from scrapyd_dist.middlewares.producer.feed_outputs import take_feeds
from scrapyd_dist.middlewares.producer.file_reader import files_beside
from scrapyd_dist.middlewares.producer.set_aside import set_aside
from scrapyd_dist.middlewares.producer.spider_reads import surely_read

from scrapyd_dist.differences import DIFFERENCES, FoundDifference, Meaning, Trait, by_trait, texts
from scrapyd_dist.errors import ConfigError


class Plain(Spider):
    name = "plain"


class Patient(Spider):
    name = "patient"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> "Patient":
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.more, signals.spider_idle)
        return spider

    def more(self) -> None: ...


class Unique:
    def __init__(self) -> None:
        self.seen = set[str]()

    def process_item(self, item: Any) -> Any:
        if item["url"] in self.seen:
            raise DropItem("again")
        self.seen.add(item["url"])
        return item


class Counting(Unique):
    """Made from one that remembers."""


class Counter:
    def __init__(self) -> None:
        self.times = dict[str, int]()

    def process_item(self, item: Any) -> Any:
        self.times[item["url"]] = 1
        if len(self.times) > 1:
            raise DropItem("again")
        return item


class Valid:
    def process_item(self, item: Any) -> Any:
        if not item["price"]:
            raise DropItem("no price")
        return item


class Words:
    def __init__(self, path: Path) -> None:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as pipelines do
            self.words = file.read().split()
        self.more = path.open().read()

    def process_item(self, item: Any) -> Any:
        return {**item, "words": self.words}


class AnyMode(Words):
    def open_spider(self) -> None:
        self.file = open("out", self.mode)  # type: ignore[attr-defined] # noqa: PTH123, SIM115


class Titles:
    def open_spider(self) -> None:
        self.file = Path("titles.txt").open("w")  # noqa: SIM115 - as pipelines do

    def process_item(self, item: Any) -> Any:
        return item


def make_tables(address: str) -> Any:
    return open_tables(address)


def open_tables(address: str) -> Any:
    return create_engine(address)  # type: ignore[name-defined]  # noqa: F821 - a library's


class Database:
    """Its module of helpers opens the database."""

    def open_spider(self) -> None:
        self.engine = make_tables("sqlite:///titles.db")

    def process_item(self, item: Any) -> Any:
        return item


class AskMore:
    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    def process_item(self, item: Any) -> Any:
        self.crawler.engine.crawl(item)
        return item


class Monitor:
    """An extension."""


def names(settings: dict[str, Any], spider: type[Spider] = Plain) -> dict[str, tuple[str, ...]]:
    project = Settings()
    project.setdict(settings, priority="project")
    return {one.difference.name: tuple(one.found) for one in find_differences(project, spider)}


def test_a_project_without_any_of_it_differs_in_nothing() -> None:
    assert names({}) == {}
    assert (
        names(
            {
                "ROBOTSTXT_OBEY": True,
                "DOWNLOAD_DELAY": 0,
                "CONCURRENT_REQUESTS": 100,
                "ITEM_PIPELINES": {Valid: 300, "no.such.Class": 1},
            }
        )
        == {}
    )


@pytest.mark.parametrize(
    ("settings", "name", "found"),
    [
        ({"JOBDIR": "job"}, "JOBDIR", ["JOBDIR"]),
        ({"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"}, "duplicate filter", ["DUPEFILTER_CLASS"]),
        ({"CLOSESPIDER_ITEMCOUNT": 3, "CLOSESPIDER_TIMEOUT": 9}, "limits of one process",
         ["CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_TIMEOUT"]),
        ({"DEPTH_LIMIT": 2}, "DEPTH_LIMIT", ["DEPTH_LIMIT"]),
        ({"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}, "order of requests", ["SCHEDULER_MEMORY_QUEUE"]),
        ({"IMAGES_STORE": "img", "FILES_STORE": "s3://b"}, "folders for files", ["IMAGES_STORE"]),
        ({"FILES_STORE": "file:///srv/files"}, "folders for files", ["FILES_STORE"]),
        ({"DOWNLOAD_SLOTS": {"web": {"delay": 1}}}, "pace of each process", ["DOWNLOAD_SLOTS"]),
        ({"HTTPCACHE_ENABLED": True}, "HTTP cache", ["HTTPCACHE_ENABLED"]),
        ({"HTTPCACHE_ENABLED": True, "HTTPCACHE_IGNORE_MISSING": True}, "HTTP cache without a network",
         ["HTTPCACHE_IGNORE_MISSING"]),
        ({"EXTENSIONS": {Monitor: 1, "scrapy.extensions.telnet.TelnetConsole": None}}, "extensions of the project",
         ["Monitor"]),
        ({"EXTENSIONS": {"scrapy.extensions.periodic_log.PeriodicLog": 1}}, "monitors", ["PeriodicLog"]),
        ({"ITEM_PIPELINES": {Counting: 1, Counter: 2, Valid: 3}}, "pipelines that remember", ["Counting", "Counter"]),
        ({"ITEM_PIPELINES": {Titles: 1}}, "pipelines that open files", ["Titles"]),
        ({"ITEM_PIPELINES": {Database: 1}}, "pipelines that open files", ["Database"]),
        ({"ITEM_PIPELINES": {Words: 1, AnyMode: 2}}, "pipelines that open files", ["AnyMode"]),
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 1}, "pace of each process", ["CONCURRENT_REQUESTS_PER_DOMAIN"]),
        ({"ITEM_PIPELINES": {AskMore: 1}}, "engine.crawl", ["AskMore"]),
        ({"STATS_CLASS": "scrapy.statscollectors.DummyStatsCollector"}, "STATS_CLASS", ["STATS_CLASS"]),
        ({"LOG_FILE": "all.log"}, "LOG_FILE", ["LOG_FILE"]),
    ],
)  # fmt: skip
def test_a_row_is_noticed_by_its_setting_its_class_or_its_code(
    settings: dict[str, Any], name: str, found: list[str]
) -> None:
    assert names(settings) == {name: tuple(found)}


def test_a_receiver_of_spider_idle_is_noticed_in_the_spider() -> None:
    assert names({}, Patient) == {"spider_idle": ("Patient",)}


def test_a_limit_that_counts_over_the_whole_crawl_is_no_difference() -> None:
    assert names({"DEPTH_LIMIT": 2, "DISTRIBUTED_GOAL_DEPTH": 2}) == {}
    assert names({"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": "/mnt/cache"}) == {}


def test_what_was_set_aside_is_noticed_all_the_same() -> None:
    settings = Settings()
    settings.set("JOBDIR", "job", priority="project")
    set_aside(settings)
    assert settings["JOBDIR"] is None
    assert [str(one).partition(":")[0] for one in find_differences(settings, Plain)] == ["JOBDIR"]


@pytest.mark.parametrize(("more", "kept"), [({}, None), ({"DISTRIBUTED_FRONTIER": "shop"}, "job")])
def test_a_producer_keeps_its_queue_in_the_store_alone(
    more: dict[str, Any], kept: str | None
) -> None:
    """With a queue on disk, what was fetched but not sealed would count as seen when the crawl goes on."""
    settings = Settings({"JOBDIR": "job", **more})
    Addon().update_settings(settings)
    assert settings["JOBDIR"] == kept


@pytest.mark.parametrize(
    "role",
    [{"DISTRIBUTED_CRAWL": "one"}, {"DISTRIBUTED_START_URLS": "[]"}],
    ids=["producer", "worker"],
)
def test_a_spider_that_counts_on_its_state_has_an_empty_one(role: dict[str, Any]) -> None:
    crawler = get_crawler(Plain)
    spider: Any = Plain()
    Addon(crawler).update_settings(Settings({"JOBDIR": "job", **role}))
    crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
    assert spider.state == {}


class Begin:
    async def process_start(self, start: Any) -> Any:
        async for output in start:
            yield output


class Sees:
    def process_spider_output(self, response: Any, result: Any, spider: Any) -> Any:
        return [output for output in result if not isinstance(output, Request)]


class Items:
    def process_spider_output(self, response: Any, result: Any, spider: Any) -> Any:
        return result


def test_a_middleware_that_target_requests_do_not_pass_is_named() -> None:
    found = names({"SPIDER_MIDDLEWARES": {Begin: 50, Sees: 60, Items: 70}})
    assert found["spider middlewares beyond the targets"] == ("Begin", "Sees")
    assert names({"SPIDER_MIDDLEWARES": {Begin: 150, Sees: 600}}) == {}
    assert OWN_ORDER == PRIORITY


IN_FILES = {"out/%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 25}}
COMPRESSED = {"x.jl.gz": {"format": "jsonlines", "postprocessing": ["plugins.Gzip"]}}


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({"FEEDS": {"out/x.jl": {"format": "jsonlines"}}}, None),
        ({"FEEDS": IN_FILES}, ("out/%(batch_id)d.jl",)),
        ({"FEEDS": COMPRESSED}, ("x.jl.gz",)),
        (
            {"FEEDS": {"%(batch_id)d.csv": {}}, "FEED_EXPORT_BATCH_ITEM_COUNT": 3},
            ("%(batch_id)d.csv",),
        ),
        (
            {"DISTRIBUTED_OUTPUTS": [{"path": "/t/%(batch_id)d.jl", "batch_item_count": 25}]},
            ("/t/%(batch_id)d.jl",),
        ),
    ],
)
def test_a_feed_that_depends_on_the_order_of_items_is_named_as_it_was_given(
    settings: dict[str, Any], places: tuple[str, ...] | None
) -> None:
    project = Settings()
    project.setdict(settings, priority="project")
    take_feeds(project, None)  # as each producer does
    found = {one.difference.name: tuple(one.found) for one in find_differences(project, Plain)}
    assert found.get("order of items") == places


def test_one_that_no_crawl_can_work_with_is_refused_in_a_paragraph() -> None:
    settings = Settings({"HTTPCACHE_ENABLED": True, "HTTPCACHE_IGNORE_MISSING": True})
    with pytest.raises(ConfigError, match=r"\(HTTPCACHE_IGNORE_MISSING\): .*DISTRIBUTED_ENABLED=0"):
        refuse_differences(find_differences(settings, Plain))


def test_each_row_has_one_sentence_and_each_trait_one_row() -> None:
    assert {by_trait(trait).trait for trait in Trait} == set(Trait)
    for row in DIFFERENCES.values():
        assert row.sentence.endswith((".", ")."))
        assert "\n" not in row.sentence
        assert len(row.sentence) < 420, row.name
        assert row.noticed or row.meaning is Meaning.SAME, row.name


def test_the_objects_of_a_document_are_shown_as_lines() -> None:
    assert texts([{"name": "a", "found": [], "sentence": "So."}]) == ["a: So."]
    assert texts([{"name": "a", "found": ["X", "Y"], "sentence": "So."}]) == ["a (X, Y): So."]
    many = [f"{number}.txt" for number in range(12)]
    assert texts([{"name": "a", "found": many, "sentence": "So."}]) == [
        f"a ({', '.join(many[:10])} and 2 more): So."
    ]


class Reading(Spider):
    token, page, items = "", 0, dict[str, int]()

    async def parse_item(self, response: Any) -> AsyncIterator[Any]:
        for one in response.items():
            yield self.named(one)

    def named(self, one: Any) -> Any:
        return {"token": [self.token for _ in one]}


def test_an_attribute_that_a_callback_reads_is_found_in_the_methods_that_it_calls() -> None:
    use = attribute_use(Reading, ["parse_item"])
    assert {"token", "named"} <= use.read
    assert not {"page", "items"} & use.read, "items() is another object's"
    assert use.kept == set()
    assert attribute_use(Reading, ["no_such_method"]).read == set()


class Keeping(Spider):
    def __init__(self) -> None:
        self.seen, self.times, self.last, self.listed, self.only_read = (
            set[str](),
            dict[str, int](),
            "",
            [""],
            1,
        )

    def parse(self, response: Any) -> None:
        self.page = 1

    def parse_item(self, response: Any) -> Any:
        self.seen.add(response)
        self.times[response] += 1
        self.listed[0] = response
        self.last = response
        return self.only_read


def test_what_target_callbacks_keep_is_named() -> None:
    (found,) = kept_by_callbacks(Keeping, ["parse_item"])
    assert list(found.found) == ["last", "listed", "seen", "times"]
    assert [list(one.found) for one in kept_by_callbacks(Keeping, ["parse"])] == [["page"]]
    assert kept_by_callbacks(Plain, ["parse", "nothing"]) == []


class KeepingMore(Keeping):
    def parse_item(self, response: Any) -> Any:
        found = super().parse_item(response)
        return found or self.own

    def parse(self, response: Any) -> None:
        self.own = 1


def test_what_a_method_of_a_base_class_keeps_is_named_if_it_is_called() -> None:
    use = attribute_use(KeepingMore, ["parse_item"])
    assert use.kept == {"last", "listed", "seen", "times"}
    assert {"own", "only_read"} <= use.read
    assert attribute_use(KeepingMore, ["parse"]).kept == {"own"}


class Learning(Spider):
    name = "learning"
    token = unread = by_name = last = ""

    def __init__(self) -> None:
        self.api = self

    def parse(self, response: Any) -> None:
        self.token = self.unread = self.last = response
        self.api.token = response
        setattr(self, "by_name", response)  # noqa: B010 - as projects write it

    def parse_item(self, response: Any) -> Any:
        self.last = response
        return self.token, self.api.token, self.by_name, self.last


def test_what_index_pages_set_and_jobs_read_is_named_by_the_code() -> None:
    (found,) = find_set_on_index(Settings(), Learning, ["parse_item"])
    assert list(found.found) == ["api", "by_name", "token"]
    travelling = Settings({"DISTRIBUTED_SPIDER_ATTRIBUTES": ["api", "by_name", "token"]})
    assert find_set_on_index(travelling, Learning, ["parse_item"]) == []
    assert find_set_on_index(Settings(), Reading, ["parse_item"]) == []


class Roaming(Spider):
    name = "roaming"
    allowed_domains: tuple[str, ...] = ("web",)

    async def start(self) -> Any:
        self.allowed_domains = ("site",)
        yield Request("http://site/")


def test_what_the_start_sets_and_scrapy_reads_in_jobs_is_named_though_no_callback_reads_it() -> (
    None
):
    (found,) = find_set_on_index(Settings(), Roaming, ["parse_item"])
    assert list(found.found) == ["allowed_domains"]
    assert surely_read(Roaming, ["parse_item"]) >= {"allowed_domains"}


TOKENS: dict[str, Any] = {}
UNREAD: list[Any] = []
SHELVES = {"a": 1}
TICKET = None


class Teaching(Spider):
    name = "teaching"
    rooms: list[Any] = []  # noqa: RUF012 - as projects write it
    key = ""

    def parse(self, response: Any) -> None:
        global TICKET  # noqa: PLW0603 - likewise
        TICKET = response
        TOKENS["last"] = response
        SHELVES = response  # noqa: F841, N806 - a variable of its own
        UNREAD.append(response)
        Teaching.key = response
        Teaching.rooms.append(response)

    def parse_item(self, response: Any) -> Any:
        return TOKENS.get("last"), TICKET, SHELVES["a"], Teaching.key, self.rooms


class Pupil(Spider):
    name = "pupil"
    rooms: list[Any] = []  # noqa: RUF012 - likewise

    def parse(self, response: Any) -> None:
        UNREAD.append(response)

    def parse_item(self, response: Any) -> Any:
        Pupil.rooms.append(response)
        return [UNREAD for UNREAD in Pupil.rooms if UNREAD]


def test_what_index_pages_keep_in_module_and_class_and_jobs_read_is_named() -> None:
    attributes, names = find_set_on_index(Settings(), Teaching, ["parse_item"])
    assert list(attributes.found) == ["key", "rooms"]
    assert list(names.found) == ["TICKET", "TOKENS"]
    assert names.difference.trait is Trait.REMEMBERS
    assert find_set_on_index(Settings(), Pupil, ["parse_item"]) == []
    (kept,) = kept_by_callbacks(Pupil, ["parse_item"])
    assert list(kept.found) == ["rooms"]


class Sealed:
    """A part of a spider that has properties."""

    _token, _sign = "", ""

    @property
    def token(self) -> str:
        return self._token

    @token.setter
    def token(self, value: str) -> None:
        self._token = value

    @cached_property
    def headers(self) -> dict[str, str]:
        return {"X-Token": self.token, "X-Sign": self._sign}


class Proper(Sealed, Spider):
    name = "proper"
    _client, _number = None, 0

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = Request("http://web/")
        return self._client

    @property
    def number(self) -> int:
        self._number = self._number + 1
        return self._number

    def parse(self, response: Any) -> Any:
        self.token = self._sign = response
        return self.client

    def parse_item(self, response: Any) -> Any:
        return self.headers, self.client

    def parse_numbered(self, response: Any) -> Any:
        return self.number

    def parse_hidden(self, response: Any) -> Any:
        return self._token


class Signing:
    def process_request(self, request: Any, spider: Any) -> None:
        request.headers.update(spider.headers)


def test_properties_are_read_as_methods_are() -> None:
    (found,) = find_set_on_index(Settings(), Proper, ["parse_item"])
    assert list(found.found) == ["_sign", "_token", "token"]
    (found,) = find_set_on_index(Settings(), Proper, ["parse_hidden"])
    assert list(found.found) == ["_token"]
    signing = Settings({"DOWNLOADER_MIDDLEWARES": {Signing: 1}})
    (found,) = find_set_on_index(signing, Proper, ["parse_numbered"])
    assert list(found.found) == ["_sign", "_token", "token"]
    assert surely_read(Proper, ["parse_item"]) >= {"_sign", "_token"}


def test_what_a_property_makes_once_is_no_memory_and_what_it_counts_is() -> None:
    assert kept_by_callbacks(Proper, ["parse_item"]) == []
    (kept,) = kept_by_callbacks(Proper, ["parse_numbered"])
    assert list(kept.found) == ["_number"]


class Session:
    """As that of a library: what is kept is in its parts."""

    def __init__(self) -> None:
        self.headers, self.cookies, self.proxies = dict[str, str](), set[str](), dict[str, str]()


class Visiting(Spider):
    name = "visiting"

    def __init__(self) -> None:
        self.session, self.jar, self.forms, self.pages = (
            Session(),
            Session(),
            {"": [""]},
            Session(),
        )

    def parse(self, response: Any) -> None:
        self.session.headers["X-Token"] = response
        jar = self.jar
        jar.cookies.add(response)
        learn_form(self, response)
        self.visit(response)

    def visit(self, url: Any) -> Any:
        self.pages.headers["Referer"] = url
        return self.pages

    def parse_item(self, response: Any) -> Any:
        return self.session, self.jar, self.forms, self.visit(response)


def learn_form(spider: Visiting, response: Any) -> None:
    spider.forms["a"].append(response)


def test_what_index_pages_change_in_parts_of_an_attribute_is_named() -> None:
    (found,) = find_set_on_index(Settings(), Visiting, ["parse_item"])
    assert list(found.found) == ["forms", "jar", "session"]


class Guide:
    """What a spider keeps in an attribute, and changes by its methods."""

    __slots__ = ("count", "currency", "done")

    def __init__(self) -> None:
        self.currency, self.done, self.count = "", False, 0

    def learn(self, response: Any) -> None:
        self.currency = response

    def finish(self) -> None:
        self.done = True

    def is_done(self) -> bool:
        return self.done

    def number(self) -> int:
        self.count += 1
        return self.count


class Guided(Spider):
    name = "guided"
    shared = Guide()

    def __init__(self) -> None:
        self.guide = Guide()

    def parse(self, response: Any) -> Any:
        self.guide.learn(response)
        self.shared.learn(response)
        return self.guide.number() and self.guide.is_done()

    def parse_item(self, response: Any) -> Any:
        self.guide.finish()
        return self.guide.currency, self.guide.number()

    def parse_shared(self, response: Any) -> Any:
        return self.shared.currency

    def parse_counted(self, response: Any) -> Any:
        return self.guide.number()


def test_what_pages_tell_an_object_of_the_spider_and_others_ask_of_it_is_named() -> None:
    (found,) = find_set_on_index(Settings(), Guided, ["parse_item", "parse_shared"])
    assert list(found.found) == ["Guide.currency"]
    (found,) = find_set_on_index(Settings(), Guided, ["parse_shared", "parse_counted"])
    assert list(found.found) == ["Guide.currency"]
    assert find_set_on_index(Settings(), Guided, ["parse_counted"]) == []
    (found,) = find_unheard_on_index(Settings(), Guided, ["parse_item", "parse_shared"])
    assert list(found.found) == ["Guide.done"]


SHARED = """
import os
from functools import lru_cache
CURRENCY = UNREAD = None
TABLE = {}
BORDER = "SHOP_BORDER"
class Conf:
    token = None
    _one = None
    def __init__(self):
        self.rates = {}
        self.place = None
    @classmethod
    def shared(cls):
        if cls._one is None:
            cls._one = cls()
        return cls._one
    def move(self, place):
        self.place = place
    @classmethod
    def new(cls, response):
        made = cls()
        return made
conf = Conf()
@lru_cache
def registry():
    return {}
def price(response):
    return price.currency, TABLE
def set_zone(zone):
    global ZONE
    ZONE = zone
ZONE = None
_client = None
"""
LEARNS = """
import os
import scrapy
import shop_shared
from shop_shared import Conf, conf, price, registry
class Learns(scrapy.Spider):
    name = "learns"
    def parse(self, response):
        {index}
    def parse_item(self, response):
        {target}
class Writes:
    def process_item(self, item):
        {target}
"""


def make_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str, target: str) -> Any:
    """Return a module with a spider whose callbacks are these statements, and a pipeline."""
    made: Any = None
    for name, text in (
        ("shop_shared", SHARED),
        ("shop_learns", LEARNS.format(index=index, target=target)),
    ):
        file = tmp_path / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
    return made


#: what sets something, what reads it, and how it is called
SHARED_PLACES = [
    ("shop_shared.CURRENCY = 'EUR'", "return shop_shared.CURRENCY", "shop_shared.CURRENCY"),
    ("shop_shared.TABLE['a'] = 1", "return price(response)", "shop_shared.TABLE"),
    ("shop_shared.set_zone(1)", "return shop_shared.ZONE", "ZONE"),
    ("Conf.token = response", "return Conf.token", "Conf.token"),
    ("setattr(Conf, 'token', response)", "return getattr(Conf, 'token')", "Conf.token"),
    (
        "one = Conf.shared(); one.rates['a'] = 1",
        "return Conf.shared().rates",
        "Conf.shared().rates",
    ),
    ("conf.move(response)", "return conf.place", "Conf.place"),
    ("conf.rates.update(a=1)", "return shop_shared.conf.rates['a']", "conf.rates"),
    ("price.currency = response", "return shop_shared.price(response)", "price.currency"),
    ("registry()['a'] = response", "return registry().get('a')", "registry()"),
    ("from shop_shared import conf as own; own.place = 1", "return conf.place", "own.place"),
    ("os.environ['SHOP_A'] = response", "return os.getenv('SHOP_A')", "os.environ['SHOP_A']"),
    ("os.environ.update(SHOP_A=1)", "return 'SHOP_A' in os.environ", "os.environ['SHOP_A']"),
    ("os.putenv('SHOP_A', '')", "return os.environ['SHOP_A']", "os.environ['SHOP_A']"),
]


@pytest.mark.parametrize(("setting", "reading", "name"), SHARED_PLACES)
def test_what_pages_keep_in_the_project_and_others_read_is_named_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, reading: str, name: str
) -> None:
    module = make_learning(tmp_path, monkeypatch, setting, reading)
    (found,) = find_set_on_index(Settings(), module.Learns, ["parse_item"])
    assert (found.difference.trait, list(found.found)) == (Trait.REMEMBERS, [name])
    writes = Settings({"ITEM_PIPELINES": {module.Writes: 1}})
    (found,) = find_set_on_index(writes, module.Learns, ["parse_nothing"])
    assert list(found.found) == [name]
    module = make_learning(tmp_path, monkeypatch, reading, setting)
    (found,) = find_unheard_on_index(Settings(), module.Learns, ["parse_item"])
    assert (found.difference.trait, list(found.found)) == (Trait.UNHEARD_ON_INDEX, [name])


@pytest.mark.parametrize(
    ("setting", "reading"),
    [
        ("shop_shared.UNREAD = response", "return shop_shared.CURRENCY"),
        ("made = Conf.new(response); made.place = 1", "return Conf.new(response).place"),
        ("Conf().place = response", "return Conf().place"),
        ("conf = response; conf.place = 1", "return shop_shared.conf.place"),
        ("conf.move(response)", "conf.move(response); return conf.place"),
        ("scrapy.limit = response", "return scrapy.limit"),
        ("os.environ['SHOP_A'] = response", "return os.environ['SHOP_B'], os.getenv('SHOP_C')"),
    ],
)
def test_what_is_not_shared_or_kept_by_both_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, reading: str
) -> None:
    module = make_learning(tmp_path, monkeypatch, setting, reading)
    assert find_set_on_index(Settings(), module.Learns, ["parse_item"]) == []
    module = make_learning(tmp_path, monkeypatch, reading, setting)
    assert find_unheard_on_index(Settings(), module.Learns, ["parse_item"]) == []


class Stopping(Spider):
    name = "stopping"
    enough, full, blocked, known, proxy, both, found = False, 0, False, 0, "", 0, 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> "Stopping":
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.scraped, signals.item_scraped)
        return spider

    def scraped(self, item: Any) -> None:
        self.known += 1

    def parse(self, response: Any) -> Any:
        self.note(response)
        self.found += 1
        if self.enough or self.is_full or self.blocked or self.proxy or self.known > 9:
            return None
        return response

    @property
    def is_full(self) -> bool:
        return self.full > 9

    def note(self, response: Any) -> Any:
        self.both += 1
        return self.both

    def parse_item(self, response: Any) -> None:
        self.enough = True
        self.found += 1
        self.note(response)


class Closes:
    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Closes":
        made = cls()
        made.crawler = crawler
        return made

    crawler: Any = None

    def process_item(self, item: Any) -> Any:
        self.crawler.spider.full += 1
        return item

    def process_response(self, request: Any, response: Any, spider: Any) -> Any:
        spider.blocked = True
        spider.proxy = request
        return response


def test_what_jobs_set_and_index_pages_read_is_named() -> None:
    (found,) = find_unheard_on_index(Settings(), Stopping, ["parse_item"])
    assert list(found.found) == ["enough", "known"]
    assert found.difference.name == "what index callbacks hear of jobs"
    closes = Settings({"ITEM_PIPELINES": {Closes: 1}})
    (found,) = find_unheard_on_index(closes, Stopping, ["parse_item"])
    assert list(found.found) == ["blocked", "enough", "full", "known"]


class Judging(Spider):
    name = "judging"

    def parse(self, response: Any) -> Any:
        return is_enough(self, 20)

    def parse_counted(self, response: Any) -> Any:
        return self.crawler.stats.get_stats()["item_scraped_count"]

    def parse_quiet(self, response: Any) -> Any:
        stats = self.crawler.stats
        stats.inc_value("lists")
        items = stats.get_value("item_scraped_count")
        self.logger.info("%d items", items)
        self.logger.info("%d", stats.get_value("item_scraped_count"))
        return stats.get_value("lists") > 9 or stats.get_value("start_time") or response

    def parse_item(self, response: Any) -> None: ...

    def parse_marked(self, response: Any) -> None:
        self.crawler.stats.inc_value("lists")


def is_enough(spider: Spider, number: int) -> bool:
    return bool(spider.crawler.stats.get_value("item_scraped_count", 0) >= number)


def test_statistics_by_which_index_pages_decide_are_named() -> None:
    (found,) = find_unheard_on_index(Settings(), Judging, ["parse_item", "parse_counted"])
    assert list(found.found) == ["stats.get_value"]
    (found,) = find_unheard_on_index(Settings(), Judging, ["parse_item"])
    assert list(found.found) == ["stats.get_stats", "stats.get_value"]
    quiet = ["parse", "parse_counted", "parse_item"]
    assert find_unheard_on_index(Settings(), Judging, quiet) == []
    (found,) = find_unheard_on_index(Settings(), Judging, [*quiet, "parse_marked"])
    assert list(found.found) == ["stats.get_value"], "jobs count in it, too"


class Limit:
    count = 0

    def process_item(self, item: Any) -> Any:
        self.count += 1
        if self.count > 10:
            raise DropItem("enough")
        return item


class Remembering:
    """A spider middleware that remembers, or a downloader middleware that learns."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.token = ""

    def process_spider_output(self, response: Any, result: Any) -> Any:
        for output in result:
            if output not in self.seen:
                self.seen.add(output)
                yield output

    def process_request(self, request: Any) -> None:
        request.headers["X-Token"] = self.token

    def process_response(self, request: Any, response: Any) -> Any:
        self.token = response.headers["X-Token"]
        return response


class Usual:
    """A component that counts for the log, has a buffer, and makes its connection when needed."""

    def __init__(self, database: Any) -> None:
        self.items: list[Any] = []
        self.database = database
        self.connection: Any = None
        self.count = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> "Usual":
        component = cls(crawler.settings["DATABASE"])
        component.stats = crawler.stats  # type: ignore[attr-defined]
        return component

    def process_item(self, item: Any) -> Any:
        self.count += 1
        if self.count % 1000 == 0:
            logger.info("%d items", self.count)
        self.stats.inc_value("items")  # type: ignore[attr-defined]
        if self.connection is None:
            self.connection = self.database.reach()
        self.items.append(item)
        if len(self.items) > 100:
            self.flush()
        self.connection.session.add(item)
        return item

    def process_request(self, request: Any) -> None:
        request.meta["proxy"] = self.database
        request.headers["X-Time"] = "now"

    def flush(self) -> None:
        self.connection.write(self.items)
        self.items = []

    def close_spider(self) -> None:
        self.flush()
        logger.info("%d items", self.count)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"ITEM_PIPELINES": {Limit: 1, Valid: 2}}, ("Limit.count",)),
        ({"SPIDER_MIDDLEWARES": {Remembering: 543}}, ("Remembering.seen", "Remembering.token")),
        ({"DOWNLOADER_MIDDLEWARES": {Remembering: 1}}, ("Remembering.seen", "Remembering.token")),
        ({"ITEM_PIPELINES": {Usual: 1}, "DOWNLOADER_MIDDLEWARES": {Usual: 1}}, None),
    ],
)
def test_what_a_component_remembers_and_uses_is_named(
    settings: dict[str, Any], found: tuple[str, ...] | None
) -> None:
    assert names(settings).get("what code remembers") == found


KNOWN: set[str] = set()
NUMBERS = itertools.count()
PLACES = itertools.cycle("ab")
PRICES = {"a": 1}
logger = logging.getLogger(__name__)


class Global(Spider):
    name = "global"

    def parse_item(self, response: Any) -> Any:
        if response not in KNOWN:
            remember(response)
            yield {"number": next(NUMBERS), "place": next(PLACES), "price": PRICES[response]}
        if self.crawler.stats.get_value("pages") < 10:
            yield response

    def failed(self, failure: Any) -> None:
        self.lost += 1

    def ask(self) -> Any:
        return Request("http://web/", self.parse_item, errback=self.failed)

    lost = 0


def remember(response: Any) -> None:
    KNOWN.add(response)


def test_what_callbacks_remember_in_their_module_is_named() -> None:
    kept, remembered = kept_by_callbacks(Global, ["parse_item"])
    assert (list(kept.found), list(remembered.found)) == (
        ["lost"],
        ["KNOWN", "NUMBERS", "stats.get_value"],
    )


class Summary(Spider):
    name = "summary"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> "Summary":
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.tell, signals.spider_closed)
        crawler.signals.connect(spider.scraped, signal=signals.item_scraped)
        return spider

    def closed(self, reason: str) -> None:
        pages = self.crawler.stats.get_value("pages")
        self.logger.info("%s: %d", reason, pages)

    def tell(self) -> None:
        requests.post("http://web/", data={})  # type: ignore[name-defined]  # noqa: F821

    def scraped(self, item: Any) -> None:
        self.got.append(item)

    got: list[Any] = []  # noqa: RUF012 - as projects write it


class Quiet(Spider):
    name = "quiet"

    def closed(self, reason: str) -> None:
        self.logger.info("closed: %s, %s", reason, self.crawler.stats.get_value("pages"))
        self.connection.close()

    connection: Any = None


class Tree:
    def process_item(self, item: Any) -> Any:
        return item

    def close_spider(self) -> None:
        ElementTree(self).write("items.xml")  # type: ignore[name-defined]  # noqa: F821


class Delta:
    def __init__(self, crawler: Crawler) -> None:
        crawler.signals.connect(self.__init__, signals.spider_opened)  # type: ignore[misc]
        self.seen = sqlite3.connect("seen.db")


class Proxies:
    def __init__(self) -> None:
        with open("proxies.txt", encoding="utf-8") as file:  # noqa: PTH123 - as projects do
            self.proxies = file.read().split()

    def process_request(self, request: Any) -> None:
        request.meta["proxy"] = random.choice(self.proxies)


@pytest.mark.parametrize(
    ("settings", "spider", "found"),
    [
        ({}, Summary, {"what is done at the end": ("Summary.closed", "Summary.tell")}),
        ({}, Quiet, {}),
        ({"ITEM_PIPELINES": {Tree: 1}}, Quiet, {"what is done at the end": ("Tree.close_spider",)}),
        ({"SPIDER_MIDDLEWARES": {Delta: 543}}, Plain, {"pipelines that open files": ("Delta",)}),
        ({"DOWNLOADER_MIDDLEWARES": {Proxies: 543}}, Plain, {}),
    ],
)
def test_ends_that_report_and_components_that_write_files_are_named(
    settings: dict[str, Any], spider: type[Spider], found: dict[str, tuple[str, ...]]
) -> None:
    assert names(settings, spider) == found


class Writing(Spider):
    """Opens its files as it begins, in each process."""

    name = "writing"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.known = open("known.txt")  # noqa: PTH123, SIM115 - as projects do

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
        spider: Any = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.begin, signals.spider_opened)
        spider.database = sqlite3.connect("prices.db")
        return spider

    async def start(self) -> AsyncIterator[Any]:
        """Jobs do not run it."""
        open("started.txt", "w").close()  # noqa: ASYNC230, PTH123
        yield Request("http://127.0.0.1")

    def begin(self) -> None:
        self.out = open("prices.csv", "w")  # noqa: PTH123, SIM115

    def parse_item(self, response: Any) -> None:
        self.out.write(response.text)


def test_a_spider_that_opens_files_as_it_begins_is_told() -> None:
    assert names({}, Writing)["pipelines that open files"] == (
        "Writing.begin",
        "Writing.from_crawler",
    )


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("with open('prices.csv', 'w') as out:\n    out.write('price')", True),
        ("class Store:\n    sqlite3.connect('prices.db').close()", True),
        ("with open('known.txt') as file:\n    KNOWN = file.read()", False),
        ("def save():\n    open('prices.csv', 'w')", False),
        ("if __name__ == '__main__':\n    open('prices.csv', 'w')", False),
    ],
)
def test_a_module_that_opens_a_file_when_it_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, is_told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("known.txt").touch()
    file = tmp_path / "notes.py"
    spider = "class Noting(scrapy.Spider):\n    name = 'noting'\n"
    file.write_text(f"import scrapy, sqlite3\n{line}\n{spider}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("notes", file)
    assert spec is not None
    assert spec.loader is not None
    notes = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "notes", notes)
    spec.loader.exec_module(notes)
    told = names({}, notes.Noting).get("pipelines that open files")
    assert told == (("notes",) if is_told else None)


class Saving(Spider):
    name = "saving"

    def parse(self, response: Any) -> None:
        Path("index.html").write_bytes(response.body)

    def parse_item(self, response: Any) -> None:
        open("prices.txt").read()  # noqa: PTH123, SIM115 - as projects do
        save_page(response)


def save_page(response: Any) -> None:
    with open("page.html", "wb") as file:  # noqa: PTH123 - as projects do
        file.write(response.body)


def test_what_writes_the_files_of_target_pages_is_named() -> None:
    (found,) = kept_by_callbacks(Saving, ["parse_item"])
    assert (found.difference.name, list(found.found)) == (
        "files that callbacks write",
        ["save_page"],
    )
    (kept,) = kept_by_callbacks(Summary, ["parse_item"])
    assert list(kept.found) == ["got"]


class Surrounded(Spider):
    name = "surrounded"
    run = uuid4().hex

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters = kwargs
        self.begun = datetime.now(timezone.utc).isoformat()
        self.day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        self.unread = uuid4().hex

    async def start(self) -> AsyncIterator[Any]:
        name = uuid4().hex
        yield {"name": name}

    def parse_item(self, response: Any) -> Any:
        return self.name, self.run, self.begun, self.day


class Modest(Spider):
    name = "modest"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lang = kwargs.pop("lang", "en")
        if "shop" in kwargs:
            self.shop = kwargs["shop"]
        super().__init__(*args, **kwargs)


def test_an_init_that_keeps_all_arguments_is_named() -> None:
    assert names({}, Surrounded) == {"arguments of the spider": ("Surrounded.__init__",)}
    assert names({}, Modest) == {}


def test_what_each_process_makes_for_itself_is_named_if_jobs_read_it() -> None:
    (found,) = find_made_anew(Settings(), Surrounded, ["parse_item"])
    assert list(found.found) == ["begun", "run"]
    assert find_made_anew(Settings(), Surrounded, ["parse"]) == []


PROJECT = """
import os
import uuid
from os import environ, getenv
from pathlib import Path

import scrapy

class Unready:  # as settings of Django before they are set
    def __getattribute__(self, name):
        raise RuntimeError("not set")

settings = Unready()
DISTRIBUTED_STORE = os.environ.get("STORE_URL")
SHOP, RUN = os.environ["SHOP"], uuid.uuid4().hex
FEEDS = {f"{uuid.uuid4()}.jl": {}}
os.environ.setdefault("ONLY_SET", "1")

def note(url):
    open("sent.txt", "a").write(url)

class Shop(scrapy.Spider):
    name = "shop"
    settings_of_site = settings
    names = Path("names.json").read_text()
    missing = os.path.exists("missing.json")

    def parse_item(self, response):
        settings.seen = True
        yield getenv("REGION"), environ.get("NOT_SET"), environ.get("HOME"), self.settings["RUN"]
"""


def test_variables_and_files_of_this_machine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "surroundings.py").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "names.json").write_text("{}", encoding="utf-8")
    (tmp_path / "sent.txt").write_text("of the last crawl", encoding="utf-8")
    (tmp_path / ".env").write_text("REGION=north\n", encoding="utf-8")
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "surroundings")
    for name in ("SHOP", "STORE_URL", "ONLY_SET"):
        monkeypatch.setenv(name, "here")
    shop = importlib.import_module("surroundings").Shop
    assert names({}, shop) == {
        "environment variables": ("REGION", "SHOP"),
        "files beside the packages": ("names.json",),
    }
    assert kept_by_callbacks(shop, ["parse_item"]) == []
    (found,) = find_made_anew(Settings(), shop, ["parse_item"])
    assert list(found.found) == ["RUN"]


def test_a_proxy_that_the_environment_names_is_one_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "localhost")
    monkeypatch.setenv("HTTP_PROXY", "")
    assert names({}) == {}
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    assert names({}) == {"environment variables": ("https_proxy",)}
    assert names({"HTTPPROXY_ENABLED": False}) == {}


BESIDE = {
    "scrapy.cfg": "[settings]\ndefault = beside.settings\n",
    "beside/__init__.py": "",
    "beside/inside.json": "{}",
    "beside/settings.py": """
        import json
        import os
        from pathlib import Path

        BASE_DIR = Path(__file__).resolve().parent.parent
        ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        try:
            from own_settings import *
        except ImportError:
            pass
        limits = BASE_DIR / "config" / "limits.json"
        if limits.exists():
            LIMITS = json.loads(limits.read_text())
        INSIDE = Path(__file__).parent / "inside.json"
        NAMES_FILE = "names.csv"
        TITLES_FILE = "titles.txt"
        FEEDS = {BASE_DIR / "items.jl": {}}
        LOG_FILE = os.path.join(ROOT, "crawl.log")
        BOT_NAME = "beside"
    """,
    "beside/spiders.py": """
        import os
        import sqlite3
        import sys
        from configparser import ConfigParser
        from glob import glob
        from pathlib import Path

        import scrapy

        from beside.settings import ROOT
        from beside import settings

        HERE = Path(__file__).parents[1]

        class Shop(scrapy.Spider):
            name = "shop"

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.inside = open(Path(__file__).with_name("inside.json"))
                self.words = open(os.path.join(ROOT, "words", "a.txt")).read()
                self.more = (settings.BASE_DIR / "more.csv").read_text()
                self.other = open(f"{ROOT}/other.csv")
                folder = Path.cwd()
                self.all = list(folder.glob("data/*.txt"))
                self.years = glob(os.path.join(ROOT, "years", "*.txt"))
                self.shops = os.listdir("shops")
                self.towns = [name for _, _, names in os.walk(HERE / "towns") for name in names]
                self.roads = sorted(Path("roads").iterdir())
                self.lanes = list(HERE.rglob("lane?.txt"))
                self.limits = ConfigParser()
                self.limits.read(["limits.ini"])
                self.prices = sqlite3.connect("prices.db")
                self.logger.debug("LONG")
                self.report = open(HERE / "report.txt", "w")
                self.sums = HERE.joinpath("sums.txt")
                self.deployed = (HERE / "scrapy.cfg").read_text()

            def parse_item(self, response):
                self.sums.write_text("1")
                with open(self.settings["TITLES_FILE"], "a") as titles:
                    titles.write(response.url)
    """,
    **dict.fromkeys(("own_settings.py", "unused.py"), "SHOP = 1"),
    **dict.fromkeys(
        (
            *("config/limits.json", "names.csv", "titles.txt", "items.jl", "crawl.log"),
            *("words/a.txt", "more.csv", "other.csv", "data/1.txt", "report.txt", "sums.txt"),
            *("limits.ini", "prices.db"),
            *("years/1.txt", "shops/1.txt", "towns/north/1.txt", "roads/1.txt", "lanes/lane1.txt"),
        ),
        "{}",
    ),
}


def test_files_beside_the_packages_are_named_by_whatever_path_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BESIDE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text).replace("LONG", "town" * 2_000), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "beside.settings")
    importlib.import_module("beside.settings")
    importlib.import_module("unused")
    shop = importlib.import_module("beside.spiders").Shop
    found = names({}, shop)
    assert found["folder of scrapy.cfg"] == ("scrapy.cfg",)
    assert found["files beside the packages"] == (
        "config/limits.json",
        "data/1.txt",
        "lanes/lane1.txt",
        "limits.ini",
        "more.csv",
        "names.csv",
        "other.csv",
        "own_settings.py",
        "prices.db",
        "roads/1.txt",
        "shops/1.txt",
        "towns/north/1.txt",
        "words/a.txt",
        "years/1.txt",
    )


@pytest.mark.parametrize("call", ["os.listdir()", "os.scandir('.')", "glob.iglob('*.csv')"])
def test_a_listing_of_the_working_folder_names_the_files_that_do_not_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = lister\n", encoding="utf-8")
    (tmp_path / "lister.py").write_text(f"import glob, os\nALL = {call}\n", encoding="utf-8")
    (tmp_path / "towns.csv").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    lister = importlib.import_module("lister")
    monkeypatch.delitem(sys.modules, "lister")
    assert "towns.csv" in files_beside([], [lister], tmp_path)
    assert "lister.py" not in files_beside([], [lister], tmp_path)


@pytest.mark.parametrize("call", ["FOLDER.glob('*.csv')", "glob.glob(PATTERN)", "ast.walk(TREE)"])
def test_a_listing_of_a_folder_that_is_not_known_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    text = f"import ast, glob\n\ndef find(FOLDER, PATTERN, TREE):\n    return {call}\n"
    (tmp_path / "finder.py").write_text(text, encoding="utf-8")
    (tmp_path / "towns.csv").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    finder = importlib.import_module("finder")
    monkeypatch.delitem(sys.modules, "finder")
    assert files_beside([], [finder], tmp_path) == []


def test_a_project_without_files_beside_it_is_told_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All modules lie beside scrapy.cfg, and travel."""
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = loose\n", encoding="utf-8")
    (tmp_path / "loose.py").write_text("from extra import SHOP\n", encoding="utf-8")
    (tmp_path / "extra.py").write_text("SHOP = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    loose = importlib.import_module("loose")
    assert files_beside([], [loose], tmp_path) == []


FOLDERS = """
import scrapy
import scrapy.utils.project as project_tools
from scrapy.utils.conf import closest_scrapy_cfg as found, get_config
from scrapy.utils.project import get_project_settings

class Shop(scrapy.Spider):
    name = "shop"

    def parse_item(self, response):
        from scrapy.utils.project import data_path
        yield data_path("names"), found(), project_tools.project_data_dir()
        yield get_project_settings(), self.server.data_path
"""


def test_code_that_looks_for_the_projects_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "folders.py").write_text(FOLDERS, encoding="utf-8")
    shop = importlib.import_module("folders").Shop
    used = ("closest_scrapy_cfg", "data_path", "project_data_dir")
    assert names({}, shop) == {"folder of scrapy.cfg": tuple(f"{name} in folders" for name in used)}


class Uploads:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.feeds = settings.getdict("FEEDS")

    def process_item(self, item: Any) -> Any:
        return item


class Places(Spider):
    name = "places"
    custom_settings = {"FEEDS": {}}  # noqa: RUF012 - as projects write it


def test_code_that_reads_the_feeds_is_named() -> None:
    assert names({"ITEM_PIPELINES": {Uploads: 1}}) == {"FEEDS in code": ("Uploads",)}
    assert "FEEDS in code" not in names({}, Places)


SCRIPT = """
from scrapy import signals
from scrapy.crawler import CrawlerProcess

def scraped(item):
    pass

def crawl(settings, spider):
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(spider)
"""
WATCHES = "    crawler.signals.connect(scraped, signals.item_scraped)\n"


@pytest.mark.parametrize(("more", "found"), [("", []), (WATCHES, ["script.py", "scraped"])])
def test_a_program_that_watches_its_crawl_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, found: list[str]
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT + more, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("script", file)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setitem(sys.modules, "script", script)
    monkeypatch.setitem(sys.modules, "__main__", script)
    crawler = get_crawler(Plain)
    if more:
        crawler.signals.connect(script.scraped, signals.item_scraped)
    crawler.signals.connect(Patient().more, signals.item_scraped)
    rows = find_unheard(crawler, Plain)
    assert [name for row in rows for name in row.found] == sorted(found)


def test_a_row_is_told_once_with_all_that_was_noticed() -> None:
    component = names({"ITEM_PIPELINES": {Limit: 1}})
    rows = [*kept_by_callbacks(Global, ["parse_item"])]
    row = by_trait(Trait.REMEMBERS)
    assert set(component) == {row.name}
    rows.insert(0, FoundDifference(difference=row, found=["Limit.count"]))
    joined = {one.difference.name: one.found for one in join_rows(rows)}
    assert joined[row.name] == ("Limit.count", "KNOWN", "NUMBERS", "stats.get_value")


class Listening:
    def __init__(self, crawler: Crawler) -> None:
        crawler.signals.connect(self.__init__, signals.spider_opened)  # type: ignore[misc]

    def process_item(self, item: Any) -> Any:
        return item


def test_a_pipeline_that_connects_a_signal_opens_no_database() -> None:
    assert names({"ITEM_PIPELINES": {Listening: 1}}) == {}


def test_what_scrapy_has_on_by_itself_is_not_loaded_for_the_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []

    def load(path: Any) -> type:
        loaded.append(path)
        return Monitor

    monkeypatch.setattr(difference_finder, "load_object", load)
    names({"EXTENSIONS": {"project.Monitor": 1}})
    assert "project.Monitor" in loaded
    assert not set(loaded) & set(default_settings.EXTENSIONS_BASE)


def test_no_row_is_about_what_scrapy_has_on_by_itself() -> None:
    named = set().union(*(row.components for row in DIFFERENCES.values()))
    for setting in ("EXTENSIONS", "SPIDER_MIDDLEWARES", "DOWNLOADER_MIDDLEWARES"):
        for path in getattr(default_settings, f"{setting}_BASE"):
            kinds = getmro(load_object(path))
            assert not named & {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
