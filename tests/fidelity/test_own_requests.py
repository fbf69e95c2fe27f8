"""Requests that no callback yields: pipelines, extensions, middlewares and idle handlers make them."""

import pytest
from rig.fidelity import Case, Comparison, rows_in_one_process, rows_on_nodes

ENGINE_CRAWL_IN_A_PIPELINE = Case(
    name="engine-crawl-in-a-pipeline",
    settings={"ITEM_PIPELINES": {"small.pipelines.Notes": 100}},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """,
        "pipelines": """
            import scrapy

            from small.base import SITE

            class Notes:
                def __init__(self, crawler):
                    self.crawler = crawler

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                def process_item(self, item):
                    if "page" in item:
                        number = item["page"].rpartition("/")[2]
                        callback = self.crawler.spider.parse_note
                        self.crawler.engine.crawl(scrapy.Request(f"{SITE}/notes/{number}", callback))
                    return item
        """,
    },
)

ENGINE_CRAWL_IN_A_CALLBACK = Case(
    name="engine-crawl-in-a-callback",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    request = response.follow(response.css("a.note")[0], self.parse_note)
                    self.crawler.engine.crawl(request)
                    yield {"page": response.url}

                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """
    },
)

ENGINE_CRAWL_IN_A_DOWNLOADER_MIDDLEWARE = Case(
    name="engine-crawl-in-a-downloader-middleware",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Pictures": 550}},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_picture(self, response):
                    yield {"picture": response.url, "bytes": len(response.body)}
        """,
        "middlewares": """
            import scrapy

            class Pictures:
                def __init__(self, crawler):
                    self.crawler = crawler

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                def process_response(self, request, response):
                    if "/pieces/" in request.url:
                        url = request.url.replace("/pieces/", "/pictures/") + ".png"
                        self.crawler.engine.crawl(scrapy.Request(url, self.crawler.spider.parse_picture))
                    return response
        """,
    },
)

ENGINE_CRAWL_AT_ITEM_SCRAPED = Case(
    name="engine-crawl-at-item-scraped",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.scraped, scrapy.signals.item_scraped)
                    return spider

                def scraped(self, item):
                    if "page" in item:
                        number = item["page"].rpartition("/")[2]
                        self.crawler.engine.crawl(scrapy.Request(f"{SITE}/notes/{number}", self.parse_note))

                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """
    },
)

FOLLOWER_FAILS = Case(
    name="a-page-that-a-target-page-leads-to-fails",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    yield response.follow(response.css("a.note")[0], self.parse_note)

                def parse_note(self, response):
                    if response.url.endswith("/3"):
                        raise ValueError("this note cannot be read")
                    yield {"note": response.css("p.note::text").get()}
        """
    },
    differs=frozenset({"code"}),
    sentence="/notes/3, to which it led, failed: ValueError in the callback: this note cannot be read",
    code=3,
)

FOLLOWER_IS_HANDLED = Case(
    name="what-fails-behind-a-target-page-is-handled",
    files={
        "spider": """
            import scrapy

            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    url = "http://127.0.0.1:1/" + response.url.rpartition("/")[2]  # nothing listens there
                    yield scrapy.Request(url, self.parse, errback=self.note_failure)
                    yield response.follow("/nowhere", self.parse, dont_filter=True)

                def note_failure(self, failure):
                    yield {"failed": failure.request.url}
        """
    },
)

IDLE_LIST = Case(
    name="idle-handler-works-off-a-list",
    files={
        "spider": """
            import scrapy
            from scrapy.exceptions import DontCloseSpider

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    spider.later = []
                    crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
                    return spider

                def idle(self):
                    if self.later:
                        while self.later:
                            self.crawler.engine.crawl(scrapy.Request(self.later.pop(), self.parse_note))
                        raise DontCloseSpider

                def parse_piece(self, response):
                    self.later.append(response.urljoin(response.css("a.note").attrib["href"]))
                    yield {"page": response.url}

                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """
    },
)

IDLE_ONCE = Case(
    name="idle-handler-asks-once",
    files={
        "spider": """
            import scrapy
            from scrapy.exceptions import DontCloseSpider

            from small.base import SITE, Rooms

            class Museum(Rooms):
                asked = False

                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
                    return spider

                def idle(self):
                    if not self.asked:
                        self.asked = True
                        self.crawler.engine.crawl(scrapy.Request(f"{SITE}/notes/99", self.parse_note))
                        raise DontCloseSpider

                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="when nothing is left of its batches",
)

IDLE_ALIKE = Case(
    name="idle-handlers-ask-for-the-same-page",
    files={
        "spider": """
            import scrapy
            from scrapy.exceptions import DontCloseSpider

            from small.base import SITE, Rooms

            class Museum(Rooms):
                \"\"\"Each piece leads to the same note, which is asked for at the end.\"\"\"

                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    spider.later = set()
                    crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
                    return spider

                def idle(self):
                    if self.later:
                        note = scrapy.Request(self.later.pop(), self.parse_note, cb_kwargs={"of": 99})
                        self.crawler.engine.crawl(note)
                        raise DontCloseSpider

                def parse_piece(self, response):
                    self.later.add(f"{SITE}/notes/99")
                    yield {"page": response.url}

                def parse_note(self, response, of):
                    yield {"note": response.css("p.note::text").get(), "of": of}
        """
    },
)

IDLE_FOR_EVER = Case(
    name="idle-handler-never-lets-go",
    files={
        "spider": """
            import scrapy
            from scrapy.exceptions import DontCloseSpider
            from scrapyd_dist.middlewares.worker import idle_handlers

            from small.base import Rooms

            idle_handlers.HEARTBEAT = 0.1

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
                    return spider

                def idle(self):
                    if hasattr(self, "_job"):  # the plain crawl would never end
                        raise DontCloseSpider
        """
    },
)

IDLE_DISCONNECTS = Case(
    name="idle-handler-disconnects-itself",
    files={
        "spider": """
            import scrapy

            from small.base import Rooms

            class Museum(Rooms):
                @classmethod
                def from_crawler(cls, crawler, *args, **kwargs):
                    spider = super().from_crawler(crawler, *args, **kwargs)
                    crawler.signals.connect(spider.idle, scrapy.signals.spider_idle)
                    return spider

                def idle(self):
                    self.crawler.signals.disconnect(self.idle, scrapy.signals.spider_idle)
        """
    },
)

TIMER = Case(
    name="extension-with-a-timer",
    settings={"EXTENSIONS": {"small.extensions.Clock": 500}},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """,
        "extensions": """
            import scrapy
            from scrapy import signals

            from small.base import SITE

            class Clock:
                \"\"\"Asks for the note of the day, once, as soon as the loop turns.\"\"\"

                def __init__(self, crawler):
                    self.crawler = crawler
                    crawler.signals.connect(self.scheduled, signals.request_scheduled)

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                def scheduled(self):
                    from twisted.internet import reactor

                    self.crawler.signals.disconnect(self.scheduled, signals.request_scheduled)
                    reactor.callLater(0, self.ask)

                def ask(self):
                    callback = self.crawler.spider.parse_note
                    self.crawler.engine.crawl(scrapy.Request(f"{SITE}/notes/77", callback))
        """,
    },
    differs=frozenset({"items", "pages"}),
    sentence="here each process has its own, which hears of the pages and items of that process",
)

FRESH_REQUEST = Case(
    name="downloader-middleware-answers-with-a-request-of-its-own",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Cleaning": 560}},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "shut"
        """,
        "middlewares": """
            import scrapy

            class Cleaning:
                def process_response(self, request, response):
                    if response.body.find(b"cleaning") < 0:
                        return response
                    return scrapy.Request(request.url, request.callback, dont_filter=True, priority=5)
        """,
    },
)

FRESH_REQUEST_FOR_ANOTHER_ADDRESS = Case(
    name="downloader-middleware-asks-for-another-address",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Moved": 560}},
    files={
        "middlewares": """
            import scrapy

            class Moved:
                def process_request(self, request):
                    if "/pieces/" in request.url:
                        return scrapy.Request(request.url.replace("/pieces/", "/lost/1"), request.callback)
        """,
    },
)

SPIDER_MIDDLEWARE_AGAIN = Case(
    name="spider-middleware-yields-the-request-again",
    settings={"SPIDER_MIDDLEWARES": {"small.middlewares.Again": 50}, "DOWNLOAD_DELAY": 0.05},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "shut"

                def parse_piece(self, response):
                    yield {"page": response.url, "name": response.css("h2::text").get()}
        """,
        "middlewares": """
            class Again:
                async def process_spider_output(self, response, result):
                    async for found in result:
                        if isinstance(found, dict) and found["name"] is None:
                            yield response.request.replace(dont_filter=True)
                        else:
                            yield found
        """,
    },
)

RETRY_AFTER_AN_EXCEPTION = Case(
    name="retry-from-process-spider-exception",
    settings={"SPIDER_MIDDLEWARES": {"small.middlewares.TryAgain": 550}, "DOWNLOAD_DELAY": 0.05},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "shut"

                def parse_piece(self, response):
                    yield {"page": response.url, "name": response.css("h2::text").get().upper()}
        """,
        "middlewares": """
            class TryAgain:
                def process_spider_exception(self, response, exception):
                    if isinstance(exception, AttributeError):
                        return [response.request.replace(dont_filter=True)]
        """,
    },
)

OTHER_NAME = Case(
    name="callback-of-another-name",
    files={
        "spider": """
            from small.base import Rooms

            def callback_for(tag):
                def callback(self, response):
                    yield {"page": response.url, "found": response.css(f"{tag}::text").get()}
                return callback

            class Museum(Rooms):
                parse_piece = callback_for("b.year")
        """
    },
)

LISTENED = Case(
    name="spider-middleware-adds-requests",
    settings={"SPIDER_MIDDLEWARES": {"small.middlewares.Makers": 600}},
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """,
        "middlewares": """
            class Makers:
                def __init__(self, crawler):
                    self.crawler = crawler

                @classmethod
                def from_crawler(cls, crawler):
                    return cls(crawler)

                async def process_spider_output(self, response, result):
                    async for found in result:
                        yield found
                    for link in response.css("a.note"):
                        yield response.follow(link, self.crawler.spider.parse_note)
        """,
    },
)

CASES = [
    ENGINE_CRAWL_IN_A_PIPELINE,
    ENGINE_CRAWL_IN_A_CALLBACK,
    ENGINE_CRAWL_IN_A_DOWNLOADER_MIDDLEWARE,
    ENGINE_CRAWL_AT_ITEM_SCRAPED,
    FOLLOWER_FAILS,
    FOLLOWER_IS_HANDLED,
    IDLE_LIST,
    IDLE_ONCE,
    IDLE_ALIKE,
    IDLE_FOR_EVER,
    IDLE_DISCONNECTS,
    TIMER,
    FRESH_REQUEST,
    FRESH_REQUEST_FOR_ANOTHER_ADDRESS,
    SPIDER_MIDDLEWARE_AGAIN,
    RETRY_AFTER_AN_EXCEPTION,
    OTHER_NAME,
    LISTENED,
]
#: the fast part: a crawl of each in one process, in this mode
QUICK_ROWS = [
    (ENGINE_CRAWL_IN_A_PIPELINE, "pull"),
    (FOLLOWER_FAILS, "push"),
    (FOLLOWER_IS_HANDLED, "pull"),
    (IDLE_LIST, "pull"),
    (IDLE_ALIKE, "push"),
    (FRESH_REQUEST, "pull"),
    (LISTENED, "push"),
]


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize(("case", "mode"), rows_on_nodes(CASES))
def test_what_asks_for_more_is_heard(comparison: Comparison, case: Case, mode: str) -> None:
    comparison.check(case, mode)


@pytest.mark.parametrize(("case", "mode"), rows_in_one_process(CASES, QUICK_ROWS))
def test_what_asks_for_more_is_heard_in_one_process(
    one_process: Comparison, case: Case, mode: str
) -> None:
    one_process.check_in_one_process(case, mode)
