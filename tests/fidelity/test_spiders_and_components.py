"""Kinds of spiders, what they keep and count, how they end, and the components and settings of their projects."""

import pytest
from rig.fidelity import MODES, Case, Comparison, rows_in_one_process, rows_on_nodes

CRAWL_SPIDER = Case(
    name="crawl-spider-with-hooks",
    callback="",
    files={
        "spider": """
            from scrapy.linkextractors import LinkExtractor
            from scrapy.spiders import CrawlSpider, Rule

            from small.base import SITE, Closing

            def without_last(links):
                return [link for link in links if not link.url.endswith("/11")]

            def note_room(request, response):
                return request.replace(cb_kwargs={**request.cb_kwargs, "room": response.url[-1]})

            class Museum(Closing, CrawlSpider):
                name = "museum"
                start_urls = [f"{SITE}/rooms/0"]
                rules = (
                    Rule(LinkExtractor(restrict_css="a[rel=next]")),
                    Rule(
                        LinkExtractor(allow=r"/pieces/"), callback="parse_piece", cb_kwargs={"by": "rule"},
                        process_links=without_last, process_request=note_room,
                    ),
                )

                def parse_piece(self, response, by, room):
                    yield {"page": response.url, "by": by, "room": room, "text": response.meta["link_text"]}
        """
    },
    handed_out=11,
)

PROCESS_VALUE = Case(
    name="link-extractor-with-process-value",
    callback="",
    files={
        "spider": """
            from scrapy.linkextractors import LinkExtractor
            from scrapy.spiders import CrawlSpider, Rule

            from small.base import SITE, Closing

            def note_for(value):
                if "/pieces/" in value:
                    return value.replace("/pieces/", "/notes/")

            class Museum(Closing, CrawlSpider):
                name = "museum"
                start_urls = [f"{SITE}/rooms/0"]
                rules = (
                    Rule(LinkExtractor(restrict_css="a[rel=next]")),
                    Rule(LinkExtractor(process_value=note_for), callback="parse_note"),
                )

                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get(), "page": response.url}
        """
    },
)

SITEMAP = Case(
    name="sitemap-spider",
    callback="",
    files={
        "spider": """
            from scrapy.spiders import SitemapSpider

            from small.base import SITE, Closing

            class Museum(Closing, SitemapSpider):
                name = "museum"
                sitemap_urls = [f"{SITE}/sitemap.xml.gz"]
                sitemap_rules = [("/pieces/", "parse_piece")]

                def sitemap_filter(self, entries):
                    for entry in entries:
                        if entry["lastmod"] >= "2026-01-04":
                            yield entry

                def parse_piece(self, response):
                    yield {"page": response.url}
        """
    },
    handed_out=9,
)

SITEMAP_OF_A_BARE_BASE = Case(
    name="sitemap-spider-whose-base-takes-no-arguments",
    callback="",
    files={
        "spider": """
            from scrapy.spiders import SitemapSpider

            from small.base import SITE, Closing

            class Bare:
                def __init__(self):
                    self.bare = True

            class Museum(Closing, Bare, SitemapSpider):
                name = "museum"
                sitemap_urls = [f"{SITE}/sitemap.xml.gz"]

                def __init__(self, *args, **kwargs):
                    Bare.__init__(self, *args, **kwargs)
                    SitemapSpider.__init__(self, *args, **kwargs)

                def parse(self, response):
                    yield {"page": response.url}
        """
    },
    refusals=dict.fromkeys(MODES, "_job"),
)

XML_FEED = Case(
    name="xml-feed-spider",
    files={
        "spider": """
            from scrapy.spiders import XMLFeedSpider

            from small.base import SITE, Closing

            class Museum(Closing, XMLFeedSpider):
                name = "museum"
                start_urls = [f"{SITE}/pieces.xml"]
                itertag = "piece"

                def parse_node(self, response, node):
                    number = node.xpath("number/text()").get()
                    return response.follow(
                        node.xpath("path/text()").get(), self.parse_piece, cb_kwargs={"number": number}
                    )

                def parse_piece(self, response, number):
                    yield {"page": response.url, "number": number}
        """
    },
)

CSV_FEED = Case(
    name="csv-feed-spider",
    files={
        "spider": """
            from scrapy.spiders import CSVFeedSpider

            from small.base import SITE, Closing

            class Museum(Closing, CSVFeedSpider):
                name = "museum"
                start_urls = [f"{SITE}/pieces.csv"]

                def parse_row(self, response, row):
                    yield response.follow(row["path"], self.parse_piece, meta={"row": row})

                def parse_piece(self, response):
                    yield {"page": response.url, **response.meta["row"]}
        """
    },
)

ARGUMENTS = Case(
    name="arguments-and-settings-of-a-base-class",
    arguments=("-a", "lang=de", "-s", "REGION=north"),
    files={
        "spider": """
            from small.base import Rooms

            class Shop(Rooms):
                custom_settings = {"USER_AGENT": "shop/1.0"}

                def __init__(self, lang="en", *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.lang = lang

                @classmethod
                def update_settings(cls, settings):
                    super().update_settings(settings)
                    settings.set("USER_AGENT", f"{cls.name}/2.0", priority="spider")

                def parse_piece(self, response):
                    agent = response.request.headers["User-Agent"].decode()
                    region = self.settings["REGION"]
                    yield {"page": response.url, "lang": self.lang, "agent": agent, "region": region}

            class Museum(Shop):
                pass
        """
    },
)

ATTRIBUTES = Case(
    name="attributes-that-callbacks-set",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                token = "none"

                async def start(self):
                    yield scrapy.Request(f"{SITE}/echo/token-7", self.parse_token)

                def parse_token(self, response):
                    self.token = response.css("h2::text").get()
                    yield scrapy.Request(f"{SITE}/rooms/0")

                def parse_piece(self, response):
                    yield {"page": response.url, "token": self.token}
        """
    },
    sentence="or name them in DISTRIBUTED_SPIDER_ATTRIBUTES",
    differs=frozenset({"items", "code"}),
    code=3,
)

DOMAINS = Case(
    name="domains-that-the-start-sets",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                allowed_domains = ["example.com"]

                async def start(self):
                    self.allowed_domains = ["127.0.0.1"]
                    async for request in super().start():
                        yield request
        """
    },
    sentence="allowed_domains): A callback sets them while the index is walked",
    differs=frozenset({"items", "pages", "code"}),
    code=3,
)

DOMAINS_THAT_TRAVEL = Case(
    name="domains-that-the-start-sets-and-that-travel",
    settings={"DISTRIBUTED_SPIDER_ATTRIBUTES": ["allowed_domains"]},
    files=DOMAINS.files,
    refusals={"push": "DISTRIBUTED_SPIDER_ATTRIBUTES"},
)

PARSER_OF_BOTH = Case(
    name="parser-with-a-cache-that-all-callbacks-use",
    files={
        "parser": """
            class Parser:
                def __init__(self):
                    self.names, self.count = {}, 0

                def name_of(self, response):
                    self.count += 1
                    if response.url not in self.names:
                        self.names[response.url] = response.css("h2::text").get()
                    return self.names[response.url]
        """,
        "spider": """
            from small.base import Rooms
            from small.parser import Parser

            class Museum(Rooms):
                token = "none"

                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.parser = Parser()

                def parse(self, response):
                    self.token = self.parser.name_of(response)
                    yield from super().parse(response)

                def parse_piece(self, response):
                    self.logger.info("a piece, by %s", self.token)
                    yield {"page": response.url, "name": self.parser.name_of(response)}
        """,
    },
    sentence="parser): A callback sets them while the index is walked",
)

ATTRIBUTES_OF_HELPERS = Case(
    name="attributes-that-helpers-and-middlewares-read",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.extra.Signed": 300}},
    files={
        "extra": """
            def piece_of(museum, response):
                return {"page": response.url, "room": museum.room}

            class Signed:
                def __init__(self, crawler):
                    self.crawler = crawler

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                def process_request(self, request):
                    request.meta["token"] = self.crawler.spider.token
        """,
        "spider": """
            from types import SimpleNamespace

            from small.base import Rooms
            from small.extra import piece_of

            class Museum(Rooms):
                token = room = by_name = "none"

                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.guide = SimpleNamespace(word="none")
                    self.unread = 0

                def parse(self, response):
                    self.token = self.room = self.guide.word = "known"
                    self.unread += 1
                    setattr(self, "by_name", "known")
                    yield from super().parse(response)

                def parse_piece(self, response):
                    named = getattr(self, "by_name")
                    token = response.meta["token"]
                    yield {**piece_of(self, response), "named": named, "token": token, "guide": self.guide.word}
        """,
    },
    sentence="by_name, guide, room, token): A callback sets them while the index is walked",
    differs=frozenset({"items", "code"}),
    code=3,
)

MEMORY = Case(
    name="pipelines-middlewares-and-modules-that-remember",
    settings={
        "CONCURRENT_REQUESTS": 1,
        "ITEM_PIPELINES": {"small.extra.First": 300},
        "SPIDER_MIDDLEWARES": {"small.extra.Floors": 543},
        "DOWNLOADER_MIDDLEWARES": {"small.extra.Signed": 300},
    },
    files={
        "extra": """
            from scrapy.exceptions import DropItem

            class First:
                count = 0

                def process_item(self, item):
                    self.count += 1
                    if self.count > 7:
                        raise DropItem("enough")
                    return {**item, "number": self.count}

            class Floors:
                def __init__(self):
                    self.floors = set()

                async def process_spider_output(self, response, result):
                    async for output in result:
                        if isinstance(output, dict):
                            floor = int(response.url.rpartition("/")[2]) % 2
                            output["new"] = floor not in self.floors
                            self.floors.add(floor)
                        yield output

            class Signed:
                token = "none"

                def process_request(self, request):
                    request.meta["token"] = self.token

                def process_response(self, request, response):
                    if "/rooms/" in response.url:
                        self.token = response.url
                    return response
        """,
        "spider": """
            from itertools import count

            from small.base import Rooms

            NUMBERS = count()

            class Museum(Rooms):
                def parse_piece(self, response):
                    self.crawler.stats.inc_value("mine")
                    mine = self.crawler.stats.get_value("mine")
                    yield {"page": response.url, "next": next(NUMBERS), "token": response.meta["token"], "mine": mine}
        """,
    },
    differs=frozenset({"items"}),
    sentence="Signed.token, NUMBERS, stats.get_value): Scrapy has it once",
)

HELPERS = Case(
    name="objects-and-closures-that-remember",
    settings={
        "CONCURRENT_REQUESTS": 1,
        "DOWNLOADER_MIDDLEWARES": {"small.extra.Cap": 300},
    },
    files={
        "extra": """
            from itertools import count

            from scrapy.exceptions import IgnoreRequest

            class Quota:
                def __init__(self, most):
                    self.most, self.used = most, {}

                def allow(self, key):
                    self.used[key] = self.used.get(key, 0) + 1
                    return self.used[key] <= self.most

            class Cap:
                def __init__(self):
                    self.quota = Quota(7)

                def process_request(self, request):
                    if "/pieces/" in request.url and not self.quota.allow("museum"):
                        raise IgnoreRequest("quota")

            def make_check():
                seen = set()

                def is_new(key):
                    if key in seen:
                        return False
                    seen.add(key)
                    return True

                return is_new

            is_new = make_check()
        """,
        "spider": """
            from itertools import count

            from small.base import Rooms
            from small.extra import is_new

            class Museum(Rooms):
                numbers = count()

                def parse_piece(self, response):
                    yield {"number": next(self.numbers), "new": is_new("museum")}
        """,
    },
    differs=frozenset({"items", "pages"}),
    sentence="what code remembers (Cap.quota, seen): Scrapy has it once",
)

HELD_BACK = Case(
    name="spider-middleware-holds-items-back",
    settings={"SPIDER_MIDDLEWARES": {"small.extra.Chunk": 543}},
    files={
        "extra": """
            class Chunk:
                def __init__(self):
                    self.wait = []

                async def process_spider_output(self, response, result):
                    async for output in result:
                        if not isinstance(output, dict):
                            yield output
                            continue
                        self.wait.append(output)
                        if len(self.wait) == 5:
                            for item in self.wait:
                                yield item
                            self.wait = []
        """,
    },
    differs=frozenset({"items", "code"}),
    sentence="what code holds back (Chunk.wait): Scrapy has one such buffer",
    code=3,
)

LEARNED = Case(
    name="names-of-module-and-class-that-index-pages-set",
    files={
        "spider": """
            from small.base import Rooms

            TOKENS = {}

            class Museum(Rooms):
                token = "none"

                def parse(self, response):
                    TOKENS["room"] = "known"
                    Museum.token = "known"
                    yield from super().parse(response)

                def parse_piece(self, response):
                    yield {"page": response.url, "room": TOKENS.get("room"), "token": Museum.token}
        """
    },
    differs=frozenset({"items", "code"}),
    sentence="TOKENS): Scrapy has it once",
    code=3,
)

#: a rule that ends nowhere: notes are found on pieces alone
FOLLOWING_SPIDER = """
    from scrapy.linkextractors import LinkExtractor
    from scrapy.spiders import CrawlSpider, Rule

    from small.base import SITE, Closing

    class Museum(Closing, CrawlSpider):
        name = "museum"
        start_urls = [f"{SITE}/rooms/0"]
        rules = (
            Rule(LinkExtractor(restrict_css="a[rel=next]")),
            Rule(LinkExtractor(restrict_css="a.piece, a.note"), callback="parse_page", follow=True),
        )

        def parse_page(self, response):
            yield {"page": response.url}
"""

NAMED_AND_FOLLOWED = Case(
    name="named-callback-of-a-rule-that-follows",
    callback="parse_page",
    files={"spider": FOLLOWING_SPIDER},
    sentence="to the nodes go all requests of the rules of museum, since",
    refusals={"push": "have no way to hand on links"},
    handed_out=24,
)

NAMED_BY_NUMBER = Case(
    name="rule-that-follows-named-by-its-number",
    callback="",
    files={"spider": FOLLOWING_SPIDER},
    settings={"DISTRIBUTED_TARGET_RULE": 1},
    differs=frozenset({"items", "pages"}),
    sentence="links that are not followed (rule 1): Scrapy follows what rules find on these pages",
)

STARTS_ON_NODES = Case(
    name="start-pages-of-rules-on-nodes",
    callback="",
    files={
        "spider": FOLLOWING_SPIDER.replace(", follow=True", "").replace(
            'start_urls = [f"{SITE}/rooms/0"]',
            'start_urls = [f"{SITE}/rooms/{number}" for number in range(3)]',
        )
    },
    settings={"DISTRIBUTED_SEEDS": True},
    refusals={"push": "DISTRIBUTED_SEEDS: only workers that lease their batches know of it"},
)

RULES_OF_NO_TARGET = Case(
    name="rules-on-a-page-that-a-job-asks-for",
    callback="parse_piece",
    files={
        "spider": """
            import scrapy
            from scrapy.linkextractors import LinkExtractor
            from scrapy.spiders import CrawlSpider, Rule

            from small.base import SITE, Closing

            class Museum(Closing, CrawlSpider):
                name = "museum"
                start_urls = [f"{SITE}/rooms/0"]
                rules = (
                    Rule(LinkExtractor(restrict_css="a[rel=next]")),
                    Rule(LinkExtractor(restrict_css="a.piece"), callback="parse_piece"),
                    Rule(LinkExtractor(restrict_css="a.note"), callback="parse_note"),
                )

                def parse_piece(self, response):
                    yield {"page": response.url}
                    # It goes to the rules, as a start page does.
                    number = int(response.url.rpartition("/")[2]) + 12
                    yield scrapy.Request(f"{SITE}/pieces/{number}")

                def parse_note(self, response):
                    yield {"note": response.url}
        """
    },
    differs=frozenset({"items", "pages", "code"}),
    sentence="links that are not followed (12 links)",
    code=3,
)

RULE_HOOK = Case(
    name="rule-hook-that-counts",
    callback="",
    files={
        "spider": """
            from scrapy.linkextractors import LinkExtractor
            from scrapy.spiders import CrawlSpider, Rule

            from small.base import SITE, Closing

            class Museum(Closing, CrawlSpider):
                name = "museum"
                start_urls = [f"{SITE}/rooms/0"]
                rules = (
                    Rule(
                        LinkExtractor(restrict_css="a.piece, a[rel=next], a.note"), callback="parse_page",
                        follow=True, process_links="few",
                    ),
                )
                left = 14

                def few(self, links):
                    for link in links:
                        if self.left > 0:
                            self.left -= 1
                            yield link

                def parse_page(self, response):
                    yield {"page": response.url}
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="left): Scrapy has one spider for the whole crawl; each job has its own",
    refusals={"push": "have no way to hand on links"},
    handed_out=4,
)

SURROUNDINGS = Case(
    name="values-of-the-machine-and-of-the-moment",
    files={
        "spider": """
            import os
            import uuid
            from pathlib import Path

            from small.base import Rooms

            for line in Path(".env").read_text().splitlines() if Path(".env").exists() else ():
                os.environ.setdefault(*line.split("="))

            class Museum(Rooms):
                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.given = kwargs
                    self.run = uuid.uuid4().hex

                def parse_piece(self, response):
                    shop = os.environ.get("MUSEUM_SHOP", "none")
                    yield {"page": response.url, "given": sorted(self.given), "run": self.run, "shop": shop}
        """,
        "../.env": "MUSEUM_SHOP=north\n",
    },
    differs=frozenset({"items"}),
    sentence="run): Scrapy makes such a value once in a crawl; each job makes its own",
)

NAMED_ATTRIBUTES = Case(
    name="attributes-that-travel",
    settings={"DISTRIBUTED_SPIDER_ATTRIBUTES": ["token"]},
    files=ATTRIBUTES.files,
    refusals={"push": "DISTRIBUTED_SPIDER_ATTRIBUTES"},
)

ALIASED_ATTRIBUTE = Case(
    name="attribute-that-target-callbacks-change-by-another-name",
    files={
        "spider": """
            from collections import defaultdict

            from small.base import Rooms

            class Museum(Rooms):
                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.by_floor = defaultdict(list)

                def parse_piece(self, response):
                    number = int(response.url.rpartition("/")[2])
                    yield {"page": response.url, "others": len(self.others_of(number % 2, response.url))}

                def others_of(self, floor, page):
                    others = self.by_floor[floor]
                    others.append(page)
                    return others
        """
    },
    settings={"CONCURRENT_REQUESTS": 1},
    differs=frozenset({"items"}),
    sentence="by_floor): Scrapy has one spider for the whole crawl; each job has its own",
)

DEPTH = Case(
    name="depth-in-meta",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "depth": response.meta["depth"]}
        """
    },
)

OWN_NAME = Case(
    name="spider-that-names-itself",
    arguments=["-a", "shop=a b"],
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def __init__(self, shop, **kwargs):
                    super().__init__(**kwargs)
                    self.name = f"{self.name} {shop}"

                def parse_piece(self, response):
                    yield {"page": response.url, "by": self.name}
        """
    },
)

OWN_LOADER = Case(
    name="spider-loader-of-the-project",
    settings={"SPIDER_LOADER_CLASS": "small.loader.Loader"},
    files={
        "loader": """
            from scrapy.spiderloader import SpiderLoader

            from small.base import Rooms

            class Loader(SpiderLoader):
                def _load_all_spiders(self):
                    self._spiders["museum"] = type("Museum", (Rooms,), {"shop": "A"})
        """,
        "spider": "",
    },
)

REFERER = Case(
    name="referer",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "from": response.request.headers["Referer"].decode()}
        """
    },
)

DEPTH_LIMIT = Case(
    name="depth-limit",
    settings={"DEPTH_LIMIT": 1},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    yield response.follow(response.css("a.note")[0], self.parse_note)

                def parse_note(self, response):
                    yield {"note": response.url}
        """
    },
    handed_out=4,
)

SIGNALS = Case(
    name="signals-and-stats-of-the-spider",
    files={
        "spider": """
            import scrapy

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.received, scrapy.signals.response_received)
                    crawler.signals.connect(spider.scraped, scrapy.signals.item_scraped)
                    return spider

                def received(self, response):
                    response.meta["received"] = True

                def scraped(self, item):
                    self.crawler.stats.inc_value("museum/pieces")

                def parse_piece(self, response):
                    self.crawler.stats.inc_value("museum/pages")
                    yield {"page": response.url, "received": response.meta["received"]}
        """
    },
)

NO_DUPEFILTER = Case(
    name="base-dupe-filter",
    settings={"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for lang in ("de", "en"):
                        yield from response.follow_all(
                            css="a.piece", callback=self.parse_piece, cookies={"lang": lang}, cb_kwargs={"lang": lang}
                        )
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, lang):
                    yield {"page": response.url, "lang": lang}
        """
    },
    handed_out=24,
)

FINGERPRINTS = Case(
    name="fingerprints-of-the-project",
    settings={"REQUEST_FINGERPRINTER_CLASS": "small.fingerprints.WithLanguage"},
    files={
        "fingerprints": """
            from scrapy.utils.request import fingerprint

            class WithLanguage:
                def fingerprint(self, request):
                    return fingerprint(request, include_headers=["Accept-Language"])
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for lang in ("de", "en"):
                        yield from response.follow_all(
                            css="a.piece", callback=self.parse_piece, headers={"Accept-Language": lang},
                            cb_kwargs={"lang": lang},
                        )
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, lang):
                    yield {"page": response.url, "lang": lang}
        """,
    },
    handed_out=24,
)

OWN_DUPEFILTER = Case(
    name="dupe-filter-of-the-project",
    settings={"DUPEFILTER_CLASS": "small.filters.ByLastWord"},
    files={
        "filters": """
            from scrapy.dupefilters import RFPDupeFilter

            class ByLastWord(RFPDupeFilter):
                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.kinds = set()

                def request_seen(self, request):
                    if "/pieces/" not in request.url:
                        return super().request_seen(request)
                    kind = int(request.url.rpartition("/")[2]) % 6
                    seen = kind in self.kinds
                    self.kinds.add(kind)
                    return seen
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"kind": int(response.url.rpartition("/")[2]) % 6}
        """,
    },
    handed_out=6,
)

HTTP_CACHE = Case(
    name="http-cache",
    settings={"HTTPCACHE_ENABLED": True},
    files={},
    sentence="Scrapy answers from the cache in the project's folder; nodes do not have that folder",
)

ANSWERING_MIDDLEWARE = Case(
    name="downloader-middleware-answers-by-itself",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Shelf": 500}},
    files={
        "middlewares": """
            from scrapy.exceptions import IgnoreRequest
            from scrapy.http import HtmlResponse

            class Shelf:
                def process_request(self, request):
                    if request.url.endswith(("/2", "/5")) and "/pieces/" in request.url:
                        return HtmlResponse(request.url, body=b"<h2>from the shelf</h2>", request=request)
        """
    },
)

START_REQUESTS_TOLD_APART = Case(
    name="downloader-middleware-tells-start-requests-apart",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Doorman": 500}},
    files={
        "middlewares": """
            class Doorman:
                def process_request(self, request):
                    request.meta["came"] = request.meta.get("is_start_request", "by a link")
        """,
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                async def start(self):
                    yield scrapy.Request(f"{SITE}/pieces/0", self.parse_piece)
                    async for request in super().start():
                        yield request

                def parse_piece(self, response):
                    yield {"page": response.url, "came": response.meta["came"]}
                    yield response.follow(response.css("a.note")[0], self.parse_note)

                def parse_note(self, response):
                    yield {"note": response.url, "came": response.meta["came"]}
        """,
    },
)

IGNORING_MIDDLEWARE = Case(
    name="downloader-middleware-ignores",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Closed": 500}},
    files={
        "middlewares": """
            from scrapy.exceptions import IgnoreRequest

            class Closed:
                def process_request(self, request):
                    if request.url.endswith(("/pieces/2", "/pieces/5")):
                        raise IgnoreRequest("closed for the winter")
        """
    },
)

IGNORING_INDEX_PAGES = Case(
    name="downloader-middleware-ignores-an-index-page",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Closed": 500}},
    handed_out=8,
    files={
        "middlewares": """
            from scrapy.exceptions import IgnoreRequest

            class Closed:
                def process_request(self, request):
                    if "/rooms/2" in request.url:
                        raise IgnoreRequest("closed for the winter")
        """
    },
)

REFUSING_SPIDER_MIDDLEWARE = Case(
    name="spider-middlewares-refuse-pages-behind-ours",
    settings={
        "SPIDER_MIDDLEWARES": {
            "small.middlewares.Closed": 500,
            "scrapy.spidermiddlewares.httperror.HttpErrorMiddleware": 600,
        },
    },
    handed_out=13,
    differs=frozenset({"code"}),
    sentence="/no/such/room",
    code=3,
    files={
        "middlewares": """
            from scrapy.exceptions import IgnoreRequest

            class Closed:
                def process_spider_input(self, response):
                    if response.url.endswith("/pieces/2"):
                        raise IgnoreRequest("closed for the winter")
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield from super().parse(response)
                    yield response.follow("/no/such/room")
                    if response.url.endswith("/rooms/0"):
                        yield response.follow("/no/such/piece", self.parse_piece)
        """,
    },
)

REDIRECTING_MIDDLEWARE = Case(
    name="downloader-middleware-redirects",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Redirect": 580}},
    files={
        "middlewares": """
            class Redirect:
                def process_response(self, request, response):
                    if "/pieces/" in request.url:
                        return request.replace(url=request.url.replace("/pieces/", "/echo/"), dont_filter=True)
                    return response
        """
    },
)

START_MIDDLEWARE = Case(
    name="spider-middleware-adds-to-the-start",
    settings={"SPIDER_MIDDLEWARES": {"small.middlewares.Addresses": 500}},
    files={
        "middlewares": """
            import scrapy

            from small.base import SITE

            class Addresses:
                async def process_start(self, start):
                    async for one in start:
                        yield one
                    yield scrapy.Request(f"{SITE}/rooms/2", dont_filter=True)
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield from response.follow_all(css="a.piece", callback=self.parse_piece)
        """,
    },
    handed_out=8,
)

CLOSED_BY_A_CALLBACK = Case(
    name="callback-closes-the-spider",
    settings={"CONCURRENT_REQUESTS": 1},
    files={
        "spider": """
            from scrapy.exceptions import CloseSpider

            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    if response.url.endswith("/pieces/5"):
                        raise CloseSpider("quota_used_up")
        """
    },
    differs=frozenset({"items", "pages", "code", "reasons"}),
    sentence="The spider has closed the crawl: quota_used_up.",
    code=3,
    handed_out=3,
    each_page_once=True,
)

CLOSED_BY_A_PIPELINE = Case(
    name="pipeline-closes-the-spider",
    settings={"CONCURRENT_REQUESTS": 1, "ITEM_PIPELINES": {"small.pipelines.Enough": 300}},
    files={
        "pipelines": """
            class Enough:
                def __init__(self, crawler):
                    self.crawler, self.known = crawler, 0

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                def process_item(self, item):
                    self.known += 1
                    if self.known == 2:
                        self.crawler.engine.close_spider(self.crawler.spider, "only_known_pieces")
                    return item
        """
    },
    differs=frozenset({"items", "pages", "code", "reasons"}),
    sentence="The spider has closed the crawl: only_known_pieces.",
    code=3,
    handed_out=3,
    each_page_once=True,
)

CLOSED_IN_THE_INDEX = Case(
    name="index-callback-closes-the-spider",
    settings={"CONCURRENT_REQUESTS": 1},
    files={
        "spider": """
            from scrapy.exceptions import CloseSpider

            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield from super().parse(response)
                    if response.url.endswith("/rooms/1"):
                        raise CloseSpider("enough_rooms")
        """
    },
    differs=frozenset({"items", "pages", "reasons"}),
    sentence="The spider has closed the walk over the index: enough_rooms.",
    handed_out=3,
    each_page_once=True,
)

CLOSED_WHEN_IDLE = Case(
    name="idle-handler-closes-the-spider",
    files={
        "spider": """
            from scrapy import signals
            from scrapy.exceptions import CloseSpider

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.end, signals.spider_idle)
                    return spider

                def end(self):
                    raise CloseSpider("nothing_left")
        """
    },
    differs=frozenset({"reasons"}),  # each worker closes its own spider as `finished`
    sentence="when nothing is left of its batches",
)

START_FAILS = Case(
    name="start-fails-after-a-request",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                async def start(self):
                    async for request in super().start():
                        yield request
                    raise RuntimeError("no more wings")
        """
    },
    differs=frozenset({"reasons", "code"}),
    sentence="The spider's start failed: RuntimeError: no more wings.",
    code=3,
)

CLOSED_AFTER_ITEMS = Case(
    name="closespider-itemcount",
    settings={"CLOSESPIDER_ITEMCOUNT": 2, "CONCURRENT_REQUESTS": 1},
    files={},
    handed_out=3,
    sentence="here each job counts for itself",
    differs=frozenset({"items", "pages", "reasons"}),
)

JOBDIR = Case(
    name="jobdir",
    settings={"JOBDIR": "job"},
    files={},
    sentence="a distributed crawl keeps queue and pages in its store, makes no such folder",
)

OFF_IN_JOBS = Case(
    name="components-that-are-off-in-jobs",
    settings={
        "ITEM_PIPELINES": {"small.components.Rates": 300, "small.components.Names": 400},
        "DOWNLOADER_MIDDLEWARES": {"small.components.Shelf": 900},
        "EXTENSIONS": {"small.components.Never": 1},
    },
    files={
        "components": """
            from scrapy.exceptions import NotConfigured

            class OnlyAtHome:
                @classmethod
                def from_crawler(cls, crawler):
                    if hasattr(crawler.spider, "_job"):
                        raise NotConfigured("the rates are not here")
                    return cls()

            class Rates(OnlyAtHome):
                def process_item(self, item):
                    return {**item, "currency": "EUR"}

            class Names:
                def process_item(self, item):
                    return {**item, "names": 3}

            class Shelf:
                def __init__(self, crawler):
                    if hasattr(crawler.spider, "_job"):
                        raise NotConfigured

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

            class Never:
                def __init__(self):
                    raise NotConfigured("not wanted anywhere")
        """
    },
    sentence=(
        "components that are off on nodes (small.components.Rates: the rates are not here,"
        " small.components.Shelf): Scrapy has it on here"
    ),
    differs=frozenset({"items", "code"}),
    code=3,
)

OFF_EVERYWHERE = Case(
    name="components-that-are-off-everywhere",
    settings={
        "ITEM_PIPELINES": {"small.components.Rates": 300, "small.components.make_names": 400},
        "EXTENSIONS": {"small.components.Opener": 1},
    },
    files={
        "components": """
            from scrapy.exceptions import NotConfigured

            class Rates:
                def __init__(self):
                    raise NotConfigured("no rates")

            class Names:
                def process_item(self, item):
                    return {**item, "names": 3}

            def make_names():
                return Names()

            class Opener:
                @classmethod
                def from_crawler(cls, crawler):
                    return Names()
        """
    },
)

PROJECT_FOLDER = Case(
    name="pipeline-that-looks-for-scrapy-cfg",
    settings={"ITEM_PIPELINES": {"small.pipelines.Rates": 300}},
    files={
        "pipelines": """
            from scrapy.utils.project import data_path

            class Rates:
                def __init__(self):
                    self.path = data_path("rates")

                def process_item(self, item):
                    return {**item, "currency": "EUR"}
        """
    },
    sentence="folder of scrapy.cfg (data_path in small.pipelines): Scrapy looks for scrapy.cfg",
    differs=frozenset({"items", "code"}),
    code=3,
)

SWITCHED_ON_HERE = Case(
    name="spider-that-switches-a-pipeline-on-by-a-file",
    files={
        "spider": """
            from pathlib import Path

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def update_settings(cls, settings):
                    super().update_settings(settings)
                    if Path("rates.csv").exists():
                        settings.set("ITEM_PIPELINES", {"small.pipelines.Rates": 300}, "spider")
        """,
        "pipelines": """
            class Rates:
                def process_item(self, item):
                    return {**item, "currency": "EUR"}
        """,
        "../rates.csv": "EUR,1",
    },
    sentence="components that are off on nodes (small.pipelines.Rates): Scrapy has it on here",
    differs=frozenset({"items", "code"}),
    code=3,
)

CASES = [
    CRAWL_SPIDER,
    PROCESS_VALUE,
    SITEMAP,
    SITEMAP_OF_A_BARE_BASE,
    XML_FEED,
    CSV_FEED,
    ARGUMENTS,
    ATTRIBUTES,
    ATTRIBUTES_OF_HELPERS,
    DOMAINS,
    DOMAINS_THAT_TRAVEL,
    PARSER_OF_BOTH,
    MEMORY,
    HELPERS,
    HELD_BACK,
    LEARNED,
    RULE_HOOK,
    NAMED_AND_FOLLOWED,
    NAMED_BY_NUMBER,
    STARTS_ON_NODES,
    RULES_OF_NO_TARGET,
    SURROUNDINGS,
    NAMED_ATTRIBUTES,
    ALIASED_ATTRIBUTE,
    DEPTH,
    OWN_NAME,
    OWN_LOADER,
    REFERER,
    DEPTH_LIMIT,
    SIGNALS,
    NO_DUPEFILTER,
    FINGERPRINTS,
    OWN_DUPEFILTER,
    HTTP_CACHE,
    ANSWERING_MIDDLEWARE,
    START_REQUESTS_TOLD_APART,
    IGNORING_MIDDLEWARE,
    IGNORING_INDEX_PAGES,
    REFUSING_SPIDER_MIDDLEWARE,
    REDIRECTING_MIDDLEWARE,
    START_MIDDLEWARE,
    CLOSED_BY_A_CALLBACK,
    CLOSED_BY_A_PIPELINE,
    CLOSED_IN_THE_INDEX,
    CLOSED_WHEN_IDLE,
    START_FAILS,
    CLOSED_AFTER_ITEMS,
    JOBDIR,
    OFF_IN_JOBS,
    OFF_EVERYWHERE,
]
#: what differs by the folder of a process, which jobs in the producer's own process share
CASES_ON_NODES = [PROJECT_FOLDER, SWITCHED_ON_HERE]
#: the fast part: a crawl of each in one process, in this mode
QUICK_ROWS = [
    (CRAWL_SPIDER, "pull"),
    (SITEMAP, "push"),
    (ATTRIBUTES_OF_HELPERS, "pull"),
    (DOMAINS, "pull"),
    (MEMORY, "push"),
    (HELD_BACK, "push"),
    (RULE_HOOK, "pull"),
    (NAMED_AND_FOLLOWED, "pull"),
    (RULES_OF_NO_TARGET, "push"),
    (ALIASED_ATTRIBUTE, "push"),
    (START_REQUESTS_TOLD_APART, "pull"),
    (IGNORING_MIDDLEWARE, "push"),
    (REFUSING_SPIDER_MIDDLEWARE, "pull"),
    (CLOSED_BY_A_CALLBACK, "pull"),
    (CLOSED_WHEN_IDLE, "pull"),
    (START_FAILS, "push"),
    (OFF_IN_JOBS, "pull"),
    (OFF_EVERYWHERE, "push"),
]


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize(("case", "mode"), rows_on_nodes([*CASES, *CASES_ON_NODES]))
def test_spiders_and_components_do_the_same(comparison: Comparison, case: Case, mode: str) -> None:
    comparison.check(case, mode)


@pytest.mark.parametrize(("case", "mode"), rows_in_one_process(CASES, QUICK_ROWS))
def test_spiders_and_components_do_the_same_in_one_process(
    one_process: Comparison, case: Case, mode: str
) -> None:
    one_process.check_in_one_process(case, mode)
