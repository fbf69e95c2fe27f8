"""Items of all kinds, the pipelines that they pass, and the feeds into which Scrapy writes them."""

import pytest
from rig.fidelity import Case, Comparison, rows_in_one_process, rows_on_nodes

#: a pipeline module with one class, and the setting that enables it
PIPELINE = {"ITEM_PIPELINES": {"small.pipelines.Pipeline": 300}}

SCRAPY_ITEMS = Case(
    name="items-by-item-loaders",
    files={
        "items": """
            import scrapy
            from itemloaders.processors import Join, MapCompose, TakeFirst

            class Piece(scrapy.Item):
                page = scrapy.Field(output_processor=TakeFirst())
                name = scrapy.Field(input_processor=MapCompose(str.strip, str.title), output_processor=Join())
                year = scrapy.Field(input_processor=MapCompose(int), output_processor=TakeFirst())
                never = scrapy.Field()
        """,
        "spider": """
            from scrapy.loader import ItemLoader

            from small.base import Rooms
            from small.items import Piece

            class Museum(Rooms):
                def parse_piece(self, response):
                    loader = ItemLoader(Piece(), response)
                    loader.add_value("page", response.url)
                    loader.add_css("name", "h2::text")
                    loader.add_css("year", "b.year::text")
                    yield loader.load_item()
        """,
    },
)

CLASSES = Case(
    name="dataclass-and-attrs-items",
    files={
        "items": """
            import dataclasses
            import datetime
            import decimal

            import attrs

            @dataclasses.dataclass
            class Piece:
                page: str
                price: decimal.Decimal
                on: datetime.date
                tags: list = dataclasses.field(default_factory=list)
                sold: bool | None = None

            @attrs.define
            class Maker:
                page: str
                at: datetime.datetime
                pair: tuple = (1, 2)
        """,
        "spider": """
            import datetime
            import decimal

            from small.base import Rooms
            from small.items import Maker, Piece

            class Museum(Rooms):
                def parse_piece(self, response):
                    price = decimal.Decimal(response.css("b.year::text").get()) / 100
                    yield Piece(response.url, price, datetime.date(2026, 1, 2), ["a", "é"])
                    yield Maker(response.url, datetime.datetime(2026, 1, 2, 3, 4, 5))
        """,
    },
)

FORMATS = Case(
    name="feeds-of-several-formats",
    settings={
        "FEEDS": {
            "out/pieces.jl": {"format": "jsonlines", "fields": ["page", "year"]},
            "out/pieces.csv": {"format": "csv", "fields": {"year": "Jahr", "page": "Seite"}},
            "out/pieces.xml": {"format": "xml"},
            "out/pieces.json": {"format": "json", "indent": 1, "encoding": "utf-8"},
        }
    },
    output=False,
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "year": response.css("b.year::text").get(), "name": "porté"}
        """
    },
)

#: feeds by the class of an item and by a filter
TWO_CLASSES = {
    "items": """
        import scrapy

        class Piece(scrapy.Item):
            page = scrapy.Field()
            number = scrapy.Field()

        class Maker(scrapy.Item):
            maker = scrapy.Field()
            number = scrapy.Field()

        class FirstOnes:
            def __init__(self, feed_options):
                self.most = feed_options["most"]

            def accepts(self, item):
                return item["number"] < self.most
    """,
    "spider": """
        from small.base import Rooms
        from small.items import Maker, Piece

        class Museum(Rooms):
            def parse_piece(self, response):
                number = int(response.url.rpartition("/")[2])
                yield Piece(page=response.url, number=number)
                yield Maker(maker=number % 3, number=number)
    """,
}

ITEM_CLASSES = Case(
    name="feeds-by-item-class",
    settings={
        "FEEDS": {
            "out/pieces.jl": {"format": "jsonlines", "item_classes": ["small.items.Piece"]},
            "out/makers.csv": {"format": "csv", "item_classes": ["small.items.Maker"]},
        }
    },
    output=False,
    files=TWO_CLASSES,
)

ITEM_FILTER = Case(
    name="feeds-by-filter",
    settings={
        "FEEDS": {
            "out/first.jl": {
                "format": "jsonlines",
                "item_filter": "small.items.FirstOnes",
                "most": 5,
            },
            "out/all.jl": {"format": "jsonlines"},
        }
    },
    output=False,
    files=TWO_CLASSES,
)

#: one item of one shape for each page, so that files of a fixed number of lines have the same lines
COUNTED = {
    "spider": """
        from small.base import Rooms

        class Museum(Rooms):
            def parse_piece(self, response):
                yield {"piece": "one"}
    """
}

BATCHES = Case(
    name="feeds-in-files-of-five",
    settings={
        "FEEDS": {"out/part-%(batch_id)03d.jl": {"format": "jsonlines", "batch_item_count": 5}}
    },
    output=False,
    files=COUNTED,
    sentence="part-%(batch_id)03d.jl): Scrapy writes items as its one process scrapes them",
)

GZIP = Case(
    name="compressed-feeds",
    settings={
        "FEEDS": {
            "out/pieces.jl.gz": {
                "format": "jsonlines",
                "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"],
                "gzip_mtime": 1,
                "gzip_filename": "",
            }
        }
    },
    output=False,
    files=COUNTED,
    sentence="pieces.jl.gz): Scrapy writes items as its one process scrapes them",
)

URI_PARAMETERS = Case(
    name="names-of-feeds-by-parameters",
    settings={
        "FEEDS": {"out/%(name)s-%(wing)s-%(season)s.jl": {"format": "jsonlines"}},
        "FEED_URI_PARAMS": "small.names.parameters",
    },
    arguments=("-a", "wing=pieces"),
    output=False,
    files={
        "names": """
            def parameters(params, spider):
                return {**params, "season": "winter", "name": spider.name}
        """
    },
)

OUTPUT_PARAMETERS = Case(
    name="name-of-the-output-by-parameters",
    arguments=("-O", "out/%(name)s.jl"),
    output=False,
    files={},
)

EMPTY_FEEDS = Case(
    name="feeds-that-stay-empty",
    settings={
        "FEEDS": {
            "out/none.jl": {
                "format": "jsonlines",
                "store_empty": False,
                "item_classes": ["small.items.Never"],
            },
            "out/empty.json": {
                "format": "json",
                "store_empty": True,
                "item_classes": ["small.items.Never"],
            },
        }
    },
    output=False,
    files={
        "items": """
            import scrapy

            class Never(scrapy.Item):
                page = scrapy.Field()
        """
    },
)

OWN_EXPORTER = Case(
    name="exporter-of-the-project",
    settings={
        "FEED_EXPORTERS": {"lines": "small.exporters.Lines"},
        "FEEDS": {"out/pieces.txt": {"format": "lines", "item_export_kwargs": {"mark": "*"}}},
    },
    output=False,
    files={
        "exporters": """
            from scrapy.exporters import BaseItemExporter

            class Lines(BaseItemExporter):
                def __init__(self, file, mark="-", **kwargs):
                    super().__init__(dont_fail=True, **kwargs)
                    self.file, self.mark = file, mark

                def export_item(self, item):
                    line = f"{self.mark} {item['page']} {item['price']:.2f} {item['on'].isoformat()}"
                    self.file.write((line + "\\n").encode())
        """,
        "spider": """
            import datetime
            import decimal

            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "price": decimal.Decimal("1.5"), "on": datetime.date(2026, 1, 2)}
        """,
    },
)

SERIALIZERS = Case(
    name="fields-with-serializers",
    settings={
        "FEEDS": {"out/pieces.csv": {"format": "csv"}, "out/pieces.jl": {"format": "jsonlines"}}
    },
    output=False,
    files={
        "items": """
            import scrapy

            class Piece(scrapy.Item):
                page = scrapy.Field()
                year = scrapy.Field(serializer=lambda value: f"<{value}>")
        """,
        "spider": """
            from small.base import Rooms
            from small.items import Piece

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield Piece(page=response.url, year=int(response.css("b.year::text").get()))
        """,
    },
)

VALUES_WITHOUT_A_FORM = Case(
    name="values-that-json-lacks",
    output=False,
    files={
        "spider": """
            from pathlib import PurePosixPath

            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "place": PurePosixPath("a/b"), "body": response.body}
        """,
        "pipelines": """
            from pathlib import Path

            from small.base import REASONS

            class KeepsPages:
                def process_item(self, item):
                    folder = Path(REASONS).parent / "project" / "out"
                    folder.mkdir(exist_ok=True)
                    (folder / item["page"].rpartition("/")[2]).write_bytes(item["body"])
                    return item
        """,
    },
    settings={"ITEM_PIPELINES": {"small.pipelines.KeepsPages": 1}},
    sentence="PurePosixPath, bytes): Scrapy gives a value of any type to the exporter of a feed",
)

VALUES_IN_CSV = Case(
    name="values-that-json-lacks-in-csv",
    output=False,
    files={
        "items": """
            import dataclasses

            import scrapy

            @dataclasses.dataclass
            class Size:
                wide: int

            class Piece(scrapy.Item):
                page = scrapy.Field()
                at = scrapy.Field()
                day = scrapy.Field(serializer=lambda day: f"{day:%d.%m.%Y}")
                sizes = scrapy.Field()
                pair = scrapy.Field()
                tags = scrapy.Field()
                name = scrapy.Field()
                sold = scrapy.Field()
        """,
        "spider": """
            import datetime

            from small.base import Rooms
            from small.items import Piece, Size

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield Piece(
                        page=response.url, at=datetime.datetime(2026, 1, 2, 3, 4), day=datetime.date(2026, 1, 2),
                        sizes=[Size(3)], pair=(1, None), tags={"old"}, name="porté".encode(), sold=False,
                    )
        """,
    },
    settings={"FEEDS": {"out/pieces.csv": {"format": "csv"}}},
)

DROPPED = Case(
    name="pipeline-drops-items",
    settings=PIPELINE,
    files={
        "pipelines": """
            from scrapy.exceptions import DropItem

            class Pipeline:
                def process_item(self, item):
                    if item["page"].endswith(("1", "5")):
                        raise DropItem("not wanted")
                    item["kept"] = True
                    return item
        """
    },
)

OPENED = Case(
    name="pipeline-with-from-crawler-and-open-spider",
    settings={**PIPELINE, "MARK": "seen"},
    files={
        "pipelines": """
            class Pipeline:
                def __init__(self, mark, stats):
                    self.mark, self.stats, self.table = mark, stats, None

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler.settings["MARK"], crawler.stats)

                def open_spider(self):
                    self.table = {"open": True}

                def close_spider(self):
                    self.table = None

                def process_item(self, item):
                    self.stats.inc_value("pieces/seen")
                    return {**item, **self.table, "mark": self.mark}
        """
    },
)

ASYNC_PIPELINE = Case(
    name="pipeline-that-awaits-a-download",
    settings=PIPELINE,
    files={
        "pipelines": """
            import scrapy

            from small.base import SITE

            class Pipeline:
                def __init__(self, crawler):
                    self.crawler = crawler

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                async def process_item(self, item):
                    number = item["page"].rpartition("/")[2]
                    response = await self.crawler.engine.download_async(scrapy.Request(f"{SITE}/notes/{number}"))
                    return {**item, "note": response.css("p.note::text").get()}
        """
    },
)

PIPELINE_ERROR = Case(
    name="pipeline-raises",
    settings=PIPELINE,
    files={
        "pipelines": """
            class Pipeline:
                def process_item(self, item):
                    if item["page"].endswith(("1", "5")):
                        raise ConnectionError("the database is away")
                    return item
        """
    },
    differs=frozenset({"code"}),
    sentence="the database is away",
    code=3,
)

PIPELINE_ERROR_IN_THE_INDEX = Case(
    name="pipeline-raises-for-an-index-page",
    settings=PIPELINE,
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield {"page": response.url}
                    yield from super().parse(response)
        """,
        "pipelines": """
            class Pipeline:
                def process_item(self, item):
                    if item["page"].endswith("/rooms/1"):
                        raise ConnectionError("the database is away")
                    return item
        """,
    },
    differs=frozenset({"code"}),
    sentence="the database is away",
    code=3,
)

REMEMBERING_PIPELINE = Case(
    name="pipeline-remembers-items",
    settings=PIPELINE,
    files={
        "pipelines": """
            from scrapy.exceptions import DropItem

            class Pipeline:
                def __init__(self):
                    self.seen = set()

                def process_item(self, item):
                    if item["kind"] in self.seen:
                        raise DropItem("again")
                    self.seen.add(item["kind"])
                    return item
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"kind": response.css("i.kind::text").get()}
        """,
    },
    differs=frozenset({"items"}),
    sentence="It drops an item by what it has seen before",
)

WRITING_PIPELINE = Case(
    name="pipeline-writes-a-file",
    settings=PIPELINE,
    files={
        "pipelines": """
            import os

            class Pipeline:
                def open_spider(self):
                    os.makedirs("out", exist_ok=True)
                    self.file = open("out/titles.txt", "w")

                def close_spider(self):
                    self.file.close()

                def process_item(self, item):
                    self.file.write(item["name"] + "\\n")
                    return item
        """
    },
    differs=frozenset({"files"}),
    sentence="here the producer opens it, too, and each job on a node opens its own",
)

FILES_PIPELINE = Case(
    name="files-pipeline",
    settings={
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": "pictures",
        "FILES_EXPIRES": 0,  # the nodes of a module keep what an earlier crawl has stored
    },
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    links = [response.urljoin(link) for link in response.css("img::attr(src)").getall()]
                    yield {"page": response.url, "file_urls": links}
        """
    },
    sentence="each job stores them on the node on which it runs",
)

DATA_FILE = Case(
    name="project-reads-its-own-data",
    settings=PIPELINE,
    files={
        "kinds.json": '{"0": "vase", "1": "coin", "2": "mask"}',
        "pipelines": """
            import json
            from pathlib import Path

            class Pipeline:
                def open_spider(self):
                    with open(Path(__file__).parent / "kinds.json") as file:
                        self.kinds = json.load(file)

                def process_item(self, item):
                    item["kind"] = self.kinds[item["kind"]]
                    return item
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "kind": response.css("i.kind::text").get()}
        """,
    },
)

STORED_FEEDS = Case(
    name="extension-hears-of-stored-feeds",
    settings={
        "EXTENSIONS": {"small.extensions.Stored": 0},
        "FEEDS": {"out/pieces.jl": {"format": "jsonlines"}, "out/pieces.csv": {"format": "csv"}},
    },
    output=False,
    files={
        "extensions": """
            import pathlib

            from scrapy import signals

            class Stored:
                @classmethod
                def from_crawler(cls, crawler):
                    extension = cls()
                    crawler.signals.connect(extension.slot_closed, signals.feed_slot_closed)
                    crawler.signals.connect(extension.all_closed, signals.feed_exporter_closed)
                    return extension

                def slot_closed(self, slot):
                    self.note(f"{pathlib.Path(slot.uri).name}: {slot.itemcount}")

                def all_closed(self):
                    lines = len(pathlib.Path("out/pieces.jl").read_text().splitlines())
                    self.note(f"all, with {lines} lines")

                def note(self, text):
                    pathlib.Path("out").mkdir(exist_ok=True)
                    with open("out/notes.txt", "a") as file:
                        file.write(text + "\\n")
        """
    },
)

OWN_FEED_EXPORTER = Case(
    name="feed-exporter-of-the-project",
    settings={
        "EXTENSIONS": {
            "scrapy.extensions.feedexport.FeedExporter": None,
            "small.extensions.Renaming": 0,
        },
        "FEEDS": {"out/pieces.jl": {"format": "jsonlines"}},
    },
    output=False,
    files={
        "extensions": """
            import pathlib

            from scrapy.extensions.feedexport import FeedExporter

            class Renaming(FeedExporter):
                async def close_spider(self, spider):
                    await super().close_spider(spider)
                    pathlib.Path("out/pieces.jl").rename("out/ready.jl")
        """
    },
)

PAGE_FILES = Case(
    name="callbacks-write-files-and-ends-write-summaries",
    settings={"ITEM_PIPELINES": {"small.pipelines.Tree": 300}},
    files={
        "pipelines": """
            from xml.etree import ElementTree

            class Tree:
                def __init__(self):
                    self.root = ElementTree.Element("pieces")

                def process_item(self, item):
                    ElementTree.SubElement(self.root, "piece").text = item["page"]
                    return item

                def close_spider(self):
                    ElementTree.ElementTree(self.root).write("out/pieces.xml")
        """,
        "spider": """
            from pathlib import Path

            from small.base import Rooms

            class Museum(Rooms):
                async def start(self):
                    Path("out").mkdir(exist_ok=True)
                    async for request in super().start():
                        yield request

                def parse_piece(self, response):
                    number = response.url.rpartition("/")[2]
                    Path("out").mkdir(exist_ok=True)
                    Path(f"out/{number}.html").write_bytes(response.body)
                    yield {"page": response.url}
        """,
    },
    differs=frozenset({"files"}),
    sentence="parse_piece): Scrapy writes such files on its one machine",
)

SUMMARIES = Case(
    name="ends-that-write-summaries",
    settings=PAGE_FILES.settings,
    files=PAGE_FILES.files,
    differs=frozenset({"files"}),
    sentence="Museum.closed, Tree.close_spider): Scrapy calls it once, when all is crawled",
)

MORE_COLUMNS = Case(
    name="csv-of-items-with-other-fields",
    output=False,
    settings={"FEEDS": {"out/pieces.csv": {"format": "csv"}}, "CONCURRENT_REQUESTS": 1},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield {"page": response.url}
                    yield from super().parse(response)

                def parse_piece(self, response):
                    yield {"page": response.url, "name": response.css("h2::text").get()}
        """
    },
    differs=frozenset({"files"}),
    sentence="name): Scrapy writes the fields of the first item only",
)

#: handlers of `item_scraped`, before and after the feed exporter's, and in what each tells itself
HANDLERS = Case(
    name="handlers-that-change-items",
    settings={
        **PIPELINE,
        "EXTENSIONS": {
            "small.extensions.Early": -10,
            "small.extensions.Late": 0,
            "small.extensions.Later": 100,
        },
    },
    files={
        "extensions": """
            import asyncio

            from scrapy import signals

            class Early:
                def __init__(self, crawler):
                    crawler.signals.connect(self.change, signals.item_scraped)
                    crawler.signals.connect(self.change_in_turn, signals.item_scraped)

                from_crawler = classmethod(lambda cls, crawler: cls(crawler))

                def change(self, item):
                    item["early"] = sorted(item)

                async def change_in_turn(self, item):
                    item["before_wait"] = True
                    await asyncio.sleep(0)
                    item["after_wait"] = True

            class Late(Early):
                def change(self, item):
                    item["late"] = True
                    del item["name"]

                async def change_in_turn(self, item):
                    item["late_in_turn"] = True

            class Later:
                def __init__(self, crawler):
                    def raise_of(item):
                        item["later"] = True
                        raise ValueError("no")

                    crawler.signals.connect(raise_of, signals.item_scraped, weak=False)

                from_crawler = classmethod(lambda cls, crawler: cls(crawler))
        """,
        "pipelines": """
            from scrapy import signals

            class Pipeline:
                def __init__(self, crawler):
                    crawler.signals.connect(self.change, signals.item_scraped)

                from_crawler = classmethod(lambda cls, crawler: cls(crawler))

                def change(self, item):
                    item["by_pipeline"] = True

                def process_item(self, item):
                    return item
        """,
        "spider": """
            from scrapy import signals

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.opened, signals.spider_opened)
                    crawler.signals.connect(spider.change, signals.item_scraped)
                    crawler.signals.connect(lambda item: raise_of(item), signals.item_scraped, weak=False)
                    return spider

                def opened(self):
                    self.crawler.signals.connect(self.change_late, signals.item_scraped)

                def change(self, item):
                    item["by_spider"] = True

                def change_late(self, item):
                    item["by_opened_spider"] = True

                def parse(self, response):
                    yield {"page": response.url, "name": "room"}
                    yield from super().parse(response)

            def raise_of(item):
                item["by_function"] = True
                raise ValueError("no")
        """,
    },
)

#: an address without //, of a storage of the project's own
OWN_SCHEME = Case(
    name="address-of-an-own-scheme",
    settings={
        "FEED_STORAGES": {"dated": "small.storages.Dated"},
        "FEEDS": {
            "dated:out/pieces.jl": {
                "format": "jsonlines",
                "item_export_kwargs": {"sort_keys": True},
                "fields": {"page": "address", "name": "name"},
            },
            "dated:out/pieces.csv": {"format": "csv"},
        },
    },
    arguments=("-o", "dated:out/more.jsonl"),
    output=False,
    files={
        "storages": """
            import pathlib

            from scrapy.extensions.feedexport import BlockingFeedStorage

            class Dated(BlockingFeedStorage):
                def __init__(self, uri, *, feed_options=None):
                    self.path = pathlib.Path(uri.partition(":")[2] + ".dated")

                def _store_in_thread(self, file):
                    self.path.parent.mkdir(exist_ok=True)
                    file.seek(0)
                    self.path.write_bytes(file.read())
        """
    },
)

#: texts that UTF-8 cannot have, in items and in what a request has on it
HALVES_SPIDER = """
    from small.base import Rooms

    class Museum(Rooms):
        word = ""

        def parse(self, response):
            yield {"page": response.url, "half": "\\ud83d room", "word": self.word}
            for link in response.css("a.piece"):
                yield response.follow(
                    link,
                    self.parse_piece,
                    cb_kwargs={"half": "\\ude00 \\u00e9", "pair": "\\U0001f600"},
                    meta={"\\ud800 key": ["\\udc80"], "raw": b"\\xff"},
                    headers={"X-Half": "\\u00e9"},
                )
            yield from response.follow_all(css="a[rel=next]")

        def parse_piece(self, response, half, pair):
            yield {"page": response.url, "half": half, "pair": pair, "word": self.word}
            yield {"page": response.url, "name": "\\u00e9\\\\ud83d", "\\ud800": {"\\udc80": (1, "\\ud83d")}}
            yield {"page": response.url, "list": response.meta["\\ud800 key"], "raw": response.meta["raw"].hex()}
            yield {"page": response.url, "name": "whole"}
"""
HALVES = Case(
    name="halves-of-surrogate-pairs",
    settings={"FEEDS": {"out/pieces.jl": {"format": "jsonlines"}}},
    files={"spider": HALVES_SPIDER},
)

#: where Scrapy's exporter only logs an error
HALVES_IN_UTF8 = Case(
    name="halves-of-surrogate-pairs-in-utf8",
    settings={"FEED_EXPORT_ENCODING": "utf-8"},
    files={"spider": HALVES_SPIDER},
    differs=frozenset({"code"}),
    code=3,
    sentence="is half of a surrogate pair, which UTF-8 does not have",
)

HALVES_IN_CSV = Case(
    name="halves-of-surrogate-pairs-in-csv",
    settings={"FEEDS": {"out/pieces.csv": {"format": "csv"}}},
    output=False,
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "name": "\\udc80", "in": ["\\u00e9"]}
                    yield {"page": response.url, "name": "whole", "in": ["\\ud83d", "b"]}
                    yield {"page": response.url, "name": "whole", "in": ("\\u00e9", "\\U0001f600")}
        """
    },
    differs=frozenset({"code"}),
    code=3,
    sentence="is half of a surrogate pair, which UTF-8 does not have",
)

#: items that Scrapy's exporter cannot write, beside others of the same page
UNWRITABLE = Case(
    name="items-without-a-line",
    files={
        "items": """
            import scrapy

            class Piece(scrapy.Item):
                page = scrapy.Field()
                size = scrapy.Field(serializer=lambda value: value["cm"])
        """,
        "spider": """
            from small.base import Rooms
            from small.items import Piece

            class Museum(Rooms):
                def parse(self, response):
                    yield {"page": response.url, ("a", "b"): 1}
                    yield {"page": response.url}
                    yield from super().parse(response)

                def parse_piece(self, response):
                    yield {"page": response.url, "sizes": {("a", "b"): 1}}
                    yield Piece(page=response.url, size={})
                    deep = []
                    for _ in range(100_000):
                        deep = [deep]
                    yield {"page": response.url, "deep": deep}
                    yield {"page": response.url, "name": "whole"}
                    if response.url.endswith("/3"):
                        yield response.follow("/pieces/3?more", self.parse_more)

                def parse_more(self, response):
                    yield {"page": response.url, "sizes": {("a", "b"): 1}}
                    yield {"page": response.url, "name": "more"}
        """,
    },
    differs=frozenset({"code", "pages"}),
    code=3,
    sentence="cannot be written as JSON",
)

CASES = [
    UNWRITABLE,
    OWN_SCHEME,
    HALVES,
    HALVES_IN_UTF8,
    HALVES_IN_CSV,
    HANDLERS,
    MORE_COLUMNS,
    PAGE_FILES,
    SUMMARIES,
    SCRAPY_ITEMS,
    CLASSES,
    FORMATS,
    ITEM_CLASSES,
    ITEM_FILTER,
    BATCHES,
    GZIP,
    URI_PARAMETERS,
    OUTPUT_PARAMETERS,
    EMPTY_FEEDS,
    OWN_EXPORTER,
    SERIALIZERS,
    VALUES_WITHOUT_A_FORM,
    VALUES_IN_CSV,
    DROPPED,
    OPENED,
    ASYNC_PIPELINE,
    PIPELINE_ERROR,
    PIPELINE_ERROR_IN_THE_INDEX,
    REMEMBERING_PIPELINE,
    WRITING_PIPELINE,
    FILES_PIPELINE,
    DATA_FILE,
    STORED_FEEDS,
    OWN_FEED_EXPORTER,
]
#: the fast part: a crawl of each in one process, in this mode
QUICK_ROWS = [
    (OWN_SCHEME, "push"),
    (HALVES, "pull"),
    (HALVES_IN_UTF8, "push"),
    (HANDLERS, "pull"),
    (MORE_COLUMNS, "pull"),
    (SUMMARIES, "push"),
    (CLASSES, "pull"),
    (ITEM_CLASSES, "push"),
    (VALUES_IN_CSV, "pull"),
    (OWN_FEED_EXPORTER, "push"),
    (PIPELINE_ERROR, "pull"),
]


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize(("case", "mode"), rows_on_nodes(CASES))
def test_items_and_feeds_are_the_same(comparison: Comparison, case: Case, mode: str) -> None:
    comparison.check(case, mode)


@pytest.mark.parametrize(("case", "mode"), rows_in_one_process(CASES, QUICK_ROWS))
def test_items_and_feeds_are_the_same_in_one_process(
    one_process: Comparison, case: Case, mode: str
) -> None:
    one_process.check_in_one_process(case, mode)
