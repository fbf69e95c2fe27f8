"""What FEEDS, -o and -O ask for is what Scrapy's own exporter writes at the end, with items as the spider made them."""

import asyncio
import csv
import gzip
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import attrs
import pytest
from pydantic import BaseModel
from scrapy import Field, Item, Request, Spider
from scrapy.exporters import BaseItemExporter
from scrapy.extensions.postprocessing import GzipPlugin
from scrapy.settings import Settings
from scrapyd_dist.middlewares.item_lines import line_writer
from scrapyd_dist.middlewares.producer.feed_outputs import (
    crawl_outputs,
    outputs_to_keep,
    take_feeds,
)
from scrapyd_dist.middlewares.producer.merged_feeds import (
    FeedHost,
    FeedsNotStored,
    MergedFeeds,
    deliver_to,
)

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.delivery import Delivery
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.tail_reader import LocalFile, TailSource
from scrapyd_dist.typed_lines import plain_copy, with_form


def upper(value: str) -> str:
    return value.upper()


class Product(Item):
    id = Field()
    title = Field(serializer=upper)
    price = Field()


@dataclass
class Review:
    id: int
    on: date | None = None


@attrs.define
class Shop:
    id: int
    tags: tuple[str, ...] = ()


class Offer(BaseModel):
    id: int
    price: Decimal


class Cheap:
    """A filter of a project."""

    def __init__(self, feed_options: Any) -> None: ...

    def accepts(self, item: Any) -> bool:
        return isinstance(item, Product) and item["price"] < Decimal(2)


class Loud(BaseItemExporter):
    """An exporter of a project, which needs the values as they were."""

    def __init__(self, file: IO[bytes], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = file

    def export_item(self, item: Any) -> None:
        self._file.write(f"{type(item).__name__} {item!r}\n".encode())


class Failing:
    """A storage that takes nothing."""

    def __init__(self, uri: str, *, feed_options: Any = None) -> None: ...

    def open(self, spider: Spider) -> IO[bytes]:
        return BytesIO()

    def store(self, file: IO[bytes]) -> None:
        raise OSError("the disk of the server is full")


class Shelf(Failing):
    """A storage of a project."""

    stored: dict[str, bytes] = {}  # noqa: RUF012 - what a test looks into

    def __init__(self, uri: str, *, feed_options: Any = None) -> None:
        self._uri = uri

    def store(self, file: IO[bytes]) -> None:
        file.seek(0)
        self.stored[self._uri] = file.read()


class Ending:
    """Writes what it gets, and the option `ending` at the end."""

    def __init__(self, file: IO[bytes], feed_options: dict[str, Any]) -> None:
        self._file, self._ending = file, feed_options["ending"]

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.write(self._ending)
        self._file.close()


ITEMS = [
    Product(id=1, title="a", price=Decimal("1.50")),
    Review(1, date(2026, 1, 2)),
    {"id": 2, "$set": [1], "seen": {datetime(2026, 1, 2)}},  # noqa: DTZ001 - as spiders write it
    Product(id=3, title="ü", price=Decimal(3)),
    Shop(4, ("x",)),
    Offer(id=5, price=Decimal(5)),
    {"id": 6},
]
STORAGES = {"fail": Failing, "shelf": Shelf}


@pytest.fixture
def part(tmp_path: Path) -> Path:
    path = tmp_path / "part.jl"
    with path.open("wb") as file:
        write = line_writer(file, typed=True).add  # type: ignore[arg-type]
        for item in ITEMS:
            write(item)
    return path


def outputs_of(
    feeds: dict[Any, Any], spider: Spider | None = None, **more: Any
) -> tuple[Settings, Any]:
    settings = Settings({"FEEDS": feeds, "FEED_STORAGES": STORAGES, **more})
    take_feeds(settings, spider or Spider("shop"))
    return settings, crawl_outputs(settings.getlist("DISTRIBUTED_OUTPUTS"), settings)


def write_feeds(
    part: Path, feeds: dict[Any, Any], spider: Spider | None = None, **more: Any
) -> Delivery:
    """What is left when a crawl with one part has ended, as a crawl without a reactor writes it."""
    settings, outputs = outputs_of(feeds, spider, **more)
    host = FeedHost(settings, spider or Spider("shop"))
    found: dict[str, Any] = {"own": [part], "attempts": [], "misses": [], "feed_url": None}
    work = deliver_to(outputs, host, part.parent / "crawl", **found)
    with ThreadPoolExecutor(1) as thread:  # which has no event loop yet
        return thread.submit(asyncio.run, work).result()


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Shelf.stored.clear()
    yield


def test_items_come_back_as_the_spider_made_them(part: Path) -> None:
    write_feeds(part, {"all.loud": {"format": "loud"}}, FEED_EXPORTERS={"loud": Loud})
    assert Path("all.loud").read_text() == "".join(
        f"{type(item).__name__} {item!r}\n" for item in ITEMS
    )


class InEuro(Item):
    price = Field()

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, f"EUR {value}")


def test_what_a_class_makes_of_a_value_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "priced.jl"
    with path.open("wb") as file:
        line_writer(file, typed=True).add(InEuro(price=3))  # type: ignore[arg-type]
    write_feeds(path, {"a.loud": {"format": "loud"}}, FEED_EXPORTERS={"loud": Loud})
    assert Path("a.loud").read_text() == "InEuro {'price': 'EUR 3'}\n"


def test_json_lines_of_the_same_part_are_as_ever(part: Path) -> None:
    items = Items([part])
    assert [json.loads(line).keys() for line in items.lines()][2] == {"id", "$set", "seen"}
    assert b"$typed" not in b"".join(items.lines())
    assert [item["id"] for item in items.values()] == [1, 1, 2, 3, 4, 5, 6]
    assert part.read_bytes().splitlines()[-1] == b'{"id": 6}'  # a dict of JSON needs nothing more


def test_a_value_that_cannot_come_back_is_what_json_has_of_it(tmp_path: Path) -> None:
    path = tmp_path / "odd.jl"
    with path.open("wb") as file:
        write = line_writer(file, typed=True).add  # type: ignore[arg-type]
        write(Product(id=Request("http://web/"), price=Decimal(1)))
        write(Product())
    write_feeds(path, {"a.loud": {"format": "loud"}}, FEED_EXPORTERS={"loud": Loud})
    kept = Product(id="<Request GET http://web/>", price=Decimal(1))
    assert Path("a.loud").read_text() == f"Product {kept!r}\nProduct {Product()!r}\n"


def test_classes_and_filters_choose(part: Path) -> None:
    write_feeds(part, {
        "products.jl": {"format": "jsonlines", "item_classes": [Product], "overwrite": True},
        "reviews.jl": {"format": "jsonlines", "item_classes": [f"{__name__}.Review"]},
        "cheap.csv": {"format": "csv", "item_filter": Cheap},
        "all.jl": {"format": "jsonlines"},
    })  # fmt: skip
    assert [item["title"] for item in lines_of(Path("products.jl"))] == ["A", "Ü"]
    assert lines_of(Path("reviews.jl")) == [{"id": 1, "on": "2026-01-02"}]
    with Path("cheap.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["id", "title", "price"], ["1", "A", "1.50"]]
    assert len(lines_of(Path("all.jl"))) == len(ITEMS)


def test_batches_are_numbered(part: Path) -> None:
    write_feeds(
        part, {Path("out/part-%(batch_id)03d.jl"): {"format": "jsonlines", "batch_item_count": 3}}
    )
    assert {path.name: len(lines_of(path)) for path in Path("out").iterdir()} == {
        "part-001.jl": 3, "part-002.jl": 3, "part-003.jl": 1,
    }  # fmt: skip


def test_what_is_compressed_is_read_as_such(part: Path) -> None:
    write_feeds(
        part,
        {
            "a.jl.gz": {
                "format": "jsonlines",
                "postprocessing": [GzipPlugin],
                "gzip_compresslevel": 1,
            }
        },
    )
    assert len(gzip.decompress(Path("a.jl.gz").read_bytes()).splitlines()) == len(ITEMS)


def uri_params(params: dict[str, Any], spider: Spider) -> dict[str, Any]:
    return {**params, "site": f"{spider.name}-{params['category']}"}


def test_addresses_have_the_parameters_of_the_spider_and_of_the_project(part: Path) -> None:
    spider = Spider("shop", category="books")
    settings, outputs = outputs_of(
        {"%(site)s/%(name)s %20.jl": {"format": "jsonlines"}},
        spider,
        FEED_URI_PARAMS=f"{__name__}.uri_params",
    )
    assert [file.path for file in outputs.files] == [Path("shop-books/shop %20.jl").absolute()]
    assert not outputs.feeds
    assert settings.getdict("FEEDS") == {}


def test_a_project_may_have_a_storage_of_its_own_for_local_files(part: Path) -> None:
    feeds = {f"file://{part.parent}/a.jl": {"format": "jsonlines"}, "b.jl": {"format": "jsonlines"}}
    write_feeds(part, feeds, FEED_STORAGES={"file": Shelf})
    assert list(Shelf.stored) == [f"file://{part.parent}/a.jl"]
    assert len(lines_of(part.parent / "b.jl")) == len(ITEMS)
    settings, _ = outputs_of(feeds, FEED_STORAGES={"file": Shelf})
    assert outputs_to_keep(settings.getlist("DISTRIBUTED_OUTPUTS"))[0]["path"] == next(iter(feeds))
    write_feeds(part, {"b.jl": {"format": "jsonlines"}}, FEED_STORAGES={"": Shelf})
    assert list(Shelf.stored)[1:] == ["b.jl"]


def test_the_scheme_of_a_storage_of_its_own_needs_no_slashes(part: Path) -> None:
    feeds = {"shelf:out/a.jl": {"format": "jsonlines"}, "s:b.jl": {"format": "jsonlines"}}
    own: dict[str, Any] = {"FEED_STORAGES": {"shelf": Shelf, "s": Shelf}}
    write_feeds(part, feeds, **own)
    assert list(Shelf.stored) == ["shelf:out/a.jl", "s:b.jl"]
    assert [path.name for path in part.parent.iterdir() if ":" in path.name] == []
    settings, _ = outputs_of(feeds, **own)
    kept = outputs_to_keep(settings.getlist("DISTRIBUTED_OUTPUTS"))
    assert kept[0]["path"] == "shelf:out/a.jl"


def test_options_may_have_values_that_json_lacks(part: Path) -> None:
    feed = {
        "format": "csv",
        "postprocessing": [Ending],
        "ending": b"!",
        "item_export_kwargs": {"delimiter": ";"},
    }
    settings, outputs = outputs_of({"a.csv": feed})
    kept = outputs_to_keep(settings.getlist("DISTRIBUTED_OUTPUTS"))
    assert json.loads(json.dumps(kept)) == kept
    assert outputs.feeds[str(part.parent / "a.csv")]["ending"] == b"!"
    write_feeds(part, {"a.csv": feed})
    text = (part.parent / "a.csv").read_bytes()
    assert text.startswith(b"id;")
    assert text.endswith(b"!")


def test_files_count_in_the_statistics_as_feeds_do(part: Path) -> None:
    settings, outputs = outputs_of(
        {"a.jl": {"format": "jsonlines"}, "b.csv": {"format": "csv"}, "c.xml": {"format": "xml"}}
    )
    host = FeedHost(settings, Spider("shop"))
    found: dict[str, Any] = {"own": [part], "attempts": [], "misses": [], "feed_url": None}
    with ThreadPoolExecutor(1) as thread:
        thread.submit(
            asyncio.run, deliver_to(outputs, host, part.parent / "crawl", **found)
        ).result()
    counted = {
        name: count for name, count in host.stats.get_stats().items() if "success_count" in name
    }
    assert counted == {"feedexport/success_count/FileFeedStorage": 3}


def test_an_empty_feed_is_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    part = tmp_path / "part.jl"
    part.write_text("")
    write_feeds(
        part,
        {"a.jl": {"format": "jsonlines", "store_empty": False}, "b.jl": {"format": "jsonlines"}},
    )
    assert (Path("a.jl").exists(), Path("b.jl").exists()) == (False, True)


def test_a_local_feed_is_added_to_or_replaced_as_a_whole(part: Path) -> None:
    for name in ("a.xml", "b.xml"):
        Path(name).write_text("old")
    write_feeds(part, {"a.xml": {"format": "xml"}, "b.xml": {"format": "xml", "overwrite": True}})
    assert Path("a.xml").read_text().startswith("old<?xml")
    assert Path("b.xml").read_text().startswith("<?xml")
    assert not list(Path().glob(".*.part"))


def test_a_feed_elsewhere_is_written_once_and_first(part: Path) -> None:
    left = write_feeds(part, {
        "shelf://me:secret@place/%(name)s.jl": {"format": "jsonlines"},
        "a.xml": {"format": "xml"},
        "b.jl": {"format": "jsonlines"},
    })  # fmt: skip
    ((uri, content),) = Shelf.stored.items()
    assert (uri, len(content.splitlines())) == ("shelf://me:secret@place/shop.jl", len(ITEMS))
    assert left.outputs == (
        str(Path("b.jl").absolute()),
        "shelf://place/shop.jl",
        str(Path("a.xml").absolute()),
    )


def test_where_a_feed_is_not_stored_nothing_else_is_written(part: Path) -> None:
    feeds = {"fail://me:secret@place/a.jl": {}, "b.jl": {}, "c.xml": {"format": "xml"}}
    with pytest.raises(
        FeedsNotStored, match=r"fail://place/a\.jl.*the disk of the server is full"
    ) as failed:
        write_feeds(part, {uri: {"format": "jsonlines", **feed} for uri, feed in feeds.items()})
    assert "secret" not in str(failed.value)
    assert not (Path("b.jl").exists() or Path("c.xml").exists())


def test_items_that_an_exporter_does_not_take_are_counted(part: Path) -> None:
    left = write_feeds(part, {"a.bin": {"format": "marshal"}})
    assert (left.items, left.lost) == (len(ITEMS), 5)
    assert left.warnings[0].startswith("5 items could not be written to ")


def test_an_item_whose_class_is_not_here_is_a_dict_and_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "foreign.jl"
    path.write_bytes(with_form(b'{"id": 1}', {"$item": ["other.items", "Car", {"id": 1}]}) + b"\n")
    left = write_feeds(path, {"a.loud": {"format": "loud"}}, FEED_EXPORTERS={"loud": Loud})
    assert Path("a.loud").read_text() == "dict {'id': 1}\n"
    assert (left.lost, len(left.warnings)) == (0, 1)
    assert "1 item was written to" in left.warnings[0]
    assert "other.items" in left.warnings[0]


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"no item", b'{"$typed":{"$set":[[]]}}', b'{"$typed":']
)
def test_a_line_that_is_no_item_costs_no_other_item(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "hostile.jl"
    path.write_bytes(line + b'\n{"id": 1}\n')
    left = write_feeds(path, {"a.xml": {"format": "xml"}})
    assert b"<id>1</id>" in Path("a.xml").read_bytes()
    assert left.warnings


def test_the_old_settings_of_one_feed_are_taken_too(part: Path) -> None:
    settings, outputs = outputs_of({}, FEED_URI="%(name)s.jl", FEED_FORMAT="jsonlines")
    assert [file.path.name for file in outputs.files] == ["shop.jl"]
    assert settings["FEED_URI"] is None


def test_what_is_delivered_or_shown_has_plain_lines_only(part: Path) -> None:
    copy = plain_copy(part)
    assert copy.read_bytes().splitlines() == list(Items([part]).lines())
    assert plain_copy(copy) == copy
    assert TailSource(LocalFile(path=part)).more() == list(Items([part]).lines())


@pytest.mark.parametrize(
    ("uri", "feed", "why"),
    [
        ("a.geojson", {"format": "geojson"}, "Unknown feed format: geojson"),
        ("nowhere://host/a.jl", {"format": "jsonlines"}, "Unknown feed storage scheme: nowhere"),
        ("a.jl", {"format": "jsonlines", "batch_item_count": 5}, "must be in the feed URI"),
        ("a.jl", {"format": "jsonlines", "item_classes": ["no.such.Item"]}, "No module named 'no'"),
        ("a.jl", {"format": "jsonlines", "item_filter": f"{__name__}.Gone"}, "Gone"),
        ("a.jl", {"format": "jsonlines", "postprocessing": [f"{__name__}.Gone"]}, "Gone"),
    ],
)
def test_a_feed_that_cannot_be_written_is_refused_in_words(
    uri: str, feed: dict[str, Any], why: str
) -> None:
    settings, outputs = outputs_of({uri: feed})
    with pytest.raises(ConfigError, match=why) as refused:
        MergedFeeds(FeedHost(settings, Spider("shop")), outputs.feeds)
    assert "\n" not in str(refused.value)


def test_a_refusal_has_its_reason_also_where_nothing_is_logged() -> None:
    settings, outputs = outputs_of({"a.geojson": {"format": "geojson"}})
    logging.disable(logging.CRITICAL)  # as `sdist plan` does
    try:
        with pytest.raises(ConfigError, match="Unknown feed format: geojson"):
            MergedFeeds(FeedHost(settings, Spider("shop")), outputs.feeds)
        assert not logging.getLogger(__name__).isEnabledFor(logging.CRITICAL)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "feed", "settings", "plain"),
    [
        ("a.jl", {"format": "jsonlines"}, {}, True),
        ("a.jl", {"format": "jl", "overwrite": True}, {"FEED_EXPORT_ENCODING": "utf-8"}, True),
        ("a.json", {"format": "json", "indent": 0}, {}, True),
        ("a.csv", {"format": "csv"}, {}, True),
        ("a.json", {"format": "json"}, {"FEED_EXPORT_INDENT": 2}, False),
        ("a.csv", {"format": "csv"}, {"FEED_EXPORT_FIELDS": ["id"]}, False),
        ("a.csv", {"format": "csv", "encoding": "latin-1"}, {}, False),
        ("a.csv", {"format": "csv", "item_export_kwargs": {"delimiter": ";"}}, {}, False),
        ("a.csv", {"format": "csv"}, {"FEED_EXPORTERS": {"csv": Loud}}, False),
        ("a.xml", {"format": "xml"}, {}, False),
        ("s3://bucket/a.jl", {"format": "jsonlines"}, {}, False),
        ("stdout:", {"format": "jsonlines"}, {}, False),
        ("a.jl", {"format": "jsonlines", "own_option": 1}, {}, False),
    ],
)
def test_lines_are_taken_as_they_are_where_a_feed_asks_for_nothing_else(
    name: str, feed: dict[str, Any], settings: dict[str, Any], plain: bool
) -> None:
    _, outputs = outputs_of({name: feed}, **settings)
    assert (len(outputs.files), len(outputs.feeds)) == ((1, 0) if plain else (0, 1))


@pytest.mark.parametrize(
    ("priority", "names"), [("project", ["-o.jl", "a.jl"]), ("spider", ["-o.jl"])]
)
def test_what_is_asked_for_comes_on_top_of_the_projects_feeds_and_replaces_the_spiders(
    priority: str, names: list[str]
) -> None:
    settings = Settings()
    settings.set(
        "DISTRIBUTED_OUTPUTS", [{"path": "/x/-o.jl", "format": None, "overwrite": False}], "cmdline"
    )
    settings.set("FEEDS", {"a.jl": {"format": "jsonlines"}}, priority)
    take_feeds(settings, Spider("shop"))
    assert [Path(one["path"]).name for one in settings.getlist("DISTRIBUTED_OUTPUTS")] == names


def test_the_next_process_of_a_crawl_writes_each_feed_once() -> None:
    feeds = {
        "%(time)s.jl": {"format": "jsonlines"},
        "s3://me:secret@bucket/x.jl": {"format": "jsonlines"},
    }
    settings, _ = outputs_of(feeds)
    first = outputs_to_keep(settings.getlist("DISTRIBUTED_OUTPUTS"))
    assert json.loads(json.dumps(first)) == first
    assert "secret" not in str(first)
    again = Settings({"FEEDS": feeds})
    again.set("DISTRIBUTED_OUTPUTS", first, "cmdline")
    take_feeds(again, Spider("shop"))
    second = again.getlist("DISTRIBUTED_OUTPUTS")
    assert [one["path"] for one in second] == [first[0]["path"], "s3://me:secret@bucket/x.jl"]
