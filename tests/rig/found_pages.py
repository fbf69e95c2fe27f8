"""Runs a producer's spider on pages in memory, and writes down all that Scrapy and the project see of it.

`python -m rig.found_pages` reads a list of settings from standard input, and crawls once with each of them: with real
Scrapy, but without a network, a store, nodes, and a clock.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from scrapy import Request, signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule
from scrapyd_dist.middlewares.producer import producer
from scrapyd_dist.middlewares.producer.discovery import Capture
from scrapyd_dist.middlewares.producer.early_capture import EarlyCapture
from scrapyd_dist.middlewares.producer.start_watch import StartWatch
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.targets import find_target
from twisted.internet import defer

from scrapyd_dist.scheduling.batcher import SlotBatcher

SITE = "https://site.test"
#: words in the names of statistics that two crawls of one process do not share
_CLOCKS = ("time", "memusage", "per_minute", "log_count")
#: how lines of the log begin that are about the process, or name the component that is compared
_START_LINES = ("Dumping", "Enabled", "Overridden", "Remote", "Telnet", "Using")


class FoundPages(CrawlSpider):
    """Yields requests of every kind that a middleware has something to say about."""

    name = "found"
    allowed_domains = ["site.test", "plain.test"]  # noqa: RUF012  (Scrapy's own way)
    start_urls = [f"{SITE}/index/plain"]  # noqa: RUF012
    custom_settings = {  # noqa: RUF012
        "DISTRIBUTED_TARGET_RULE": 1,
        "DISTRIBUTED_TARGET_CALLBACKS": ["found"],
    }
    rules = (
        Rule(LinkExtractor(restrict_css="a.next"), callback="parse_start_url", follow=True),
        Rule(LinkExtractor(restrict_css="a.found"), callback="found"),
    )

    def parse_start_url(self, response: Any, **_: Any) -> Iterator[Any]:
        yield {"before": response.url}
        for number, options in enumerate(_OPTIONS):
            address = f"{SITE}/made/{response.url[-4:]}/{number}"
            made: dict[str, Any] = {"callback": self.found, **options}
            yield Request(made.pop("url", address), **made)
            yield {"after": number}
        copied = {**response.meta, "download_latency": 1.0}
        yield Request(f"{SITE}/copied", callback=self.found, meta=copied)
        yield response.request.replace(callback=self.found, dont_filter=True)
        if response.url.endswith("fails"):
            raise LookupError("in the callback")

    def found(self, response: Any) -> Iterator[Any]:
        yield {"crawled_here": response.url, "depth": response.meta["depth"]}
        yield Request(response.urljoin("/from-here"), callback=self.found)


_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"url": f"{SITE}/twice"},
    {"url": f"{SITE}/twice"},
    {"url": f"{SITE}/twice", "dont_filter": True},
    {"url": f"{SITE}/{'long' * 80}"},
    {"url": "http://plain.test/downgraded"},
    {"url": "http://plain.test"},
    {"url": "https://offsite.test/"},
    {"headers": {"Referer": "https://own.test/"}},
    {"meta": {"referrer_policy": "origin"}},
    {"meta": {"referrer_policy": "no-referrer"}},
    {"meta": {"depth_reset": True}},
    {"meta": {"cannot_travel": object()}},
    {"meta": {"cannot_travel": object(), "depth_reset": True}},
    {"priority": 3, "cb_kwargs": {}, "method": "POST", "body": b"all"},
)


#: page of the index -> the one that its last link leads to
_LEADS_ON = {"plain": "policy", "policy": "deep", "deep": "deeper", "deeper": "fails"}


class Pages:
    """The downloader's handler: each page of the index has three links, and one that leads on.

    A page comes when the one before has been scraped to its end.
    """

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Pages:
        return cls(crawler)

    def download_request(self, request: Request, spider: Any = None) -> Any:
        links = [f'<a class="found" href="{SITE}/of{request.url[-5:]}/{n}">n</a>' for n in range(3)]
        page = request.url.rpartition("/")[2]
        if page in _LEADS_ON:
            links.append(f'<a class="next" href="{SITE}/index/{_LEADS_ON[page]}">next</a>')
        headers = {"Referrer-Policy": "origin"} if page == "policy" else {}
        response = HtmlResponse(
            request.url, body="".join(links).encode(), headers=headers, request=request
        )
        waiting: defer.Deferred[Any] = defer.Deferred()
        self._answer(waiting, response)
        return waiting

    def _answer(self, waiting: defer.Deferred[Any], response: HtmlResponse) -> None:
        from twisted.internet import reactor

        slot = self._crawler.engine.scraper.slot
        if slot is None or slot.is_idle():
            waiting.callback(response)
        else:
            clock: Any = reactor
            clock.callLater(0, self._answer, waiting, response)

    def close(self) -> None:
        """There is nothing to close."""


class Seen:
    """A spider middleware of the project's own, in the way of all requests."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Seen:
        made = cls()
        made.stats = crawler.stats  # type: ignore[attr-defined]
        return made

    async def process_spider_output(self, response: Any, result: Any, spider: Any = None) -> Any:
        async for output in result:
            self.stats.inc_value("seen_by_project")  # type: ignore[attr-defined]
            yield output


class Failures(Seen):
    """A spider middleware of the project's own that gets exceptions."""

    def process_spider_exception(
        self, response: Any, exception: Exception, spider: Any = None
    ) -> None:
        self.stats.inc_value("failures_seen")  # type: ignore[attr-defined]


class _Index:
    """An account of the walk that writes down in which order it was told what."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events
        self._last = 0

    def unfinished(self) -> list[Any]:
        return [SimpleNamespace(number=7)]

    def asked(self, shard: int) -> int:
        self._last += 1
        return self._last

    def lost(self, shard: int, number: int, url: str, why: str) -> None:
        if not any(event[:3] == ["lost", shard, number] for event in self._events):
            self._events.append(["lost", shard, number, url, why])

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._events.append([name, *map(str, given)])


class _Run:
    """As much of a crawl's run as the producer's middleware asks for."""

    def __init__(self, crawler: Crawler, events: list[Any]) -> None:
        self.finds_no_more = False
        self.goals = None
        self.start_watch = StartWatch()
        self.options = SimpleNamespace(sharded=False)
        self.reporter = SimpleNamespace(local_missed=lambda *why: events.append(["lost", *why]))
        self.index = _Index(events)
        spider = crawler.spider
        assert spider
        self.target = find_target(spider, crawler.settings)
        routing = SlotRouting.from_settings(crawler.settings, project="p", spider="found")
        cutter = SlotBatcher(size=1, max_age=1.0)
        self.sealer = SimpleNamespace(seal=self.seal)
        self.capture = Capture(crawler=crawler, key=b"key", slotting=routing, cutter=cutter)
        self._events = events

    def run_clock(self) -> None:
        """No time passes here."""

    def seal(self, cut: Any) -> None:
        for found in cut:
            self._events.append(["sealed", found.value, found.fingerprint.hex(), found.slot])

    def own_item(self, item: Any, shard: int, url: str) -> None:
        self._events.append(["item", item, shard, url])

    def hold(self) -> bool:
        return False

    def start_failed(self, error: Exception) -> None:
        self._events.append(["start failed", repr(error)])

    async def close(self, reason: str) -> None:
        self._events.append(["account", dict(self.capture.counts), dict(self.capture.reasons)])


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not text.startswith(_START_LINES):
            self.lines.append(f"{record.name} {record.levelname} {text}")


def _crawler(process: CrawlerProcess, settings: dict[str, Any], events: list[Any]) -> Crawler:
    """Make a crawler of these settings that writes down what its signals say."""
    middlewares = settings.pop("SPIDER_MIDDLEWARES", {})
    if not settings.pop("early"):
        middlewares = {**middlewares, EarlyCapture: None}
    ours = {
        "ADDONS": {"scrapyd_dist.Addon": 500},
        "DISTRIBUTED_CRAWL": "c",
        "DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), Pages),
        "SPIDER_MIDDLEWARES": middlewares,
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "URLLENGTH_LIMIT": 200,
        "CONCURRENT_REQUESTS": 1,
        "CONCURRENT_ITEMS": 1,
        "LOG_FILE": "/dev/null",
    }
    kind = type("Found", (FoundPages,), {"__module__": FoundPages.__module__})
    kind.custom_settings = {**FoundPages.custom_settings, **ours, **settings}  # type: ignore[attr-defined]
    crawler = process.create_crawler(kind)

    def scheduled(request: Request) -> None:
        headers = request.headers.to_unicode_dict()
        events.append(["scheduled", request.url, request.priority, dict(headers), request.meta])

    crawler.signals.connect(scheduled, signals.request_scheduled, weak=False)
    return crawler


def crawl(process: CrawlerProcess, settings: dict[str, Any]) -> Any:
    """Crawl once; the Deferred has what was seen of it."""
    events: list[Any] = []
    crawler = _crawler(process, dict(settings), events)
    lines = _Lines()
    logging.getLogger().addHandler(lines)

    class Start:
        refused = None

        def __init__(self, crawler: Crawler) -> None:
            self._crawler = crawler

        async def start(self) -> _Run:
            return _Run(self._crawler, events)

    patched = patch.object(producer, "CrawlStart", Start)
    patched.start()

    def seen(_: Any) -> dict[str, Any]:
        patched.stop()
        logging.getLogger().removeHandler(lines)
        stats = crawler.stats.get_stats()
        kept = {name: value for name, value in stats.items() if not _is_clock(name)}
        is_early = crawler.get_spider_middleware(EarlyCapture) is not None
        return {"early": is_early, "events": events, "stats": kept, "log": lines.lines}

    return process.crawl(crawler).addCallback(seen)


def _is_clock(name: str) -> bool:
    return any(word in name for word in _CLOCKS)


def main() -> None:
    """Crawl with the settings of standard input, and print what was seen as JSON."""
    asked = json.load(sys.stdin)
    process = CrawlerProcess({"LOG_FILE": "/dev/null", "LOG_LEVEL": "DEBUG"})
    answers: list[Any] = []

    @defer.inlineCallbacks
    def crawl_all() -> Generator[defer.Deferred[Any], Any, None]:
        for settings in asked:
            answer = yield crawl(process, settings)
            answers.append(answer)

    crawl_all()
    process.start()
    print(json.dumps(answers, default=lambda value: type(value).__name__))


if __name__ == "__main__":
    main()
