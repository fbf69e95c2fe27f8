"""What a project requests past its callbacks' output is of the page that led to it, or is asked for once."""

from collections import Counter
from collections.abc import Callable

import pytest
from rig.fixtures import MakeProject, StartSite
from rig.pullers import CRAWL, Frontier, values_of
from rig.sites import SiteProcess

from scrapyd_dist.joblogs.worker_report import WorkerReport

PAGES = 30
#: what all spiders here have in common; `{…}` is of one of them
SPIDER = """
import scrapy
from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider


class Own(scrapy.Spider):
    name = "own"
    custom_settings = {{**{settings}, "ROBOTSTXT_OBEY": False, "DISTRIBUTED_START": "skip"}}

    def parse_page(self, response):
        yield {{"url": response.url}}

    def parse_more(self, response):
        yield {{"url": response.url}}

    def more(self, url, **options):
        return scrapy.Request(url + "?more", self.parse_more, **options)

{body}
"""
#: in a callback, for each page one more
IN_A_CALLBACK = """
    def parse_page(self, response):
        yield {"url": response.url}
        self.crawler.engine.crawl(self.more(response.url))
"""
#: in a pipeline that waits besides
IN_A_PIPELINE = """
    def ask(self, item):
        if "?" not in item["url"]:
            self.crawler.engine.crawl(self.more(item["url"]))


class Asking:
    @classmethod
    def from_crawler(cls, crawler):
        pipeline = cls()
        pipeline.crawler = crawler
        return pipeline

    async def process_item(self, item):
        from scrapy.utils.defer import maybe_deferred_to_future
        from twisted.internet import reactor
        from twisted.internet.task import deferLater

        await maybe_deferred_to_future(deferLater(reactor, 0.01, lambda: None))
        self.crawler.spider.ask(item)
        return item


Own.custom_settings["ITEM_PIPELINES"] = {Asking: 300}
"""
#: in an extension, when an item was scraped
ON_A_SIGNAL = """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.scraped, signals.item_scraped)
        return spider

    def scraped(self, item):
        if "?" not in item["url"]:
            self.crawler.engine.crawl(self.more(item["url"]))
"""
#: in the loop's next turn, while Scrapy has not done with the page: at a later one all may be over, as in plain Scrapy
LATER = """
    def parse_page(self, response):
        from twisted.internet import reactor

        reactor.callLater(0, self.crawler.engine.crawl, self.more(response.url))
        yield {"url": response.url}
"""
#: in an errback: every page of these fails
IN_AN_ERRBACK = """
    def parse_page(self, response):
        yield {"url": response.url}

    def failed(self, failure):
        self.crawler.engine.crawl(self.more(failure.request.url))
"""
#: a list that callbacks fill, and the idle handler works off, three at a time
IDLE_LIST = """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.later = []
        crawler.signals.connect(spider.work_off, signals.spider_idle)
        return spider

    def parse_page(self, response):
        self.later.append(response.url)
        yield {"url": response.url}

    def work_off(self):
        for _ in range(min(3, len(self.later))):
            self.crawler.engine.crawl(self.more(self.later.pop()))
        if self.later:
            raise DontCloseSpider
"""
ASKS = {
    "a callback": IN_A_CALLBACK, "a pipeline": IN_A_PIPELINE, "a signal": ON_A_SIGNAL, "a timer": LATER,
    "an idle handler": IDLE_LIST,
}  # fmt: skip
#: a page that is asked for again by a fresh request, in different places
FRESH = """
class Fresh:
    def process_response(self, request, response):
        if request.cookies:
            return response
        return scrapy.Request(request.url, request.callback, cookies={"solved": "1"}, dont_filter=True)


Own.custom_settings["DOWNLOADER_MIDDLEWARES"] = {Fresh: 543}
"""
BEYOND = """
class Again:
    async def process_spider_output(self, response, result):
        async for output in result:
            yield output
        if "again" not in response.meta:
            yield response.request.replace(dont_filter=True, meta={**response.meta, "again": True})


Own.custom_settings["SPIDER_MIDDLEWARES"] = {Again: 50}
"""
RETRY = """
    def parse_page(self, response):
        if "again" not in response.meta:
            raise ValueError("not yet")
        yield {"url": response.url}


class Retry:
    def process_spider_exception(self, response, exception):
        return [response.request.replace(dont_filter=True, meta={**response.meta, "again": True})]


Own.custom_settings["SPIDER_MIDDLEWARES"] = {Retry: ORDER}
"""
#: what is raised before the callback is handled by the same middleware, which brings the item itself
HANDLED = """
class Handling:
    def process_spider_input(self, response):
        raise ValueError("not for a callback")

    def process_spider_exception(self, response, exception):
        return [{"url": response.url}]


Own.custom_settings["SPIDER_MIDDLEWARES"] = {Handling: 543}
"""
AGAIN = {
    "a downloader middleware": (FRESH, 1),
    "a spider middleware beyond ours": (BEYOND, 2),
    "a retry beyond ours": (RETRY.replace("ORDER", "50"), 1),
    "a retry before ours": (RETRY.replace("ORDER", "543"), 1),
    "an exception that is handled": (HANDLED, 1),
}


@pytest.fixture
def work(
    project: MakeProject, site: StartSite, frontier: Callable[..., Frontier]
) -> Callable[[str, int], tuple[Frontier, SiteProcess]]:
    """A spider's work on all pages, by so many workers one after the other; no batch may fail."""

    def run(body: str, workers: int = 1) -> tuple[Frontier, SiteProcess]:
        pages = site(PAGES)
        code = SPIDER.format(settings="{}", body=body)
        queue = frontier(project(spiders={"own": code}), "own", kind="crawl")
        queue.add(
            values_of([pages.detail(number) for number in range(PAGES)], callback="parse_page"),
            size=5,
        )
        for worker in range(1, workers):
            queue.run(worker, max_batches=2)
            queue.accept()
        queue.work(workers)
        assert queue.refused == []
        return queue, pages

    return run


def assert_nothing_is_of_no_batch(report: WorkerReport) -> None:
    assert not {"distributed/items_of_no_batch", "distributed/items_too_late"} & report.stats.keys()


@pytest.mark.black_box
@pytest.mark.parametrize("place", ASKS)
def test_what_is_asked_for_besides_comes_home_with_the_page_that_led_to_it(
    place: str, work: Callable[[str, int], tuple[Frontier, SiteProcess]]
) -> None:
    queue, pages = work(ASKS[place], 1)
    wanted = [pages.detail(number) + more for number in range(PAGES) for more in ("", "?more")]
    assert Counter(item["url"] for item in queue.items) == Counter(wanted)
    assert_nothing_is_of_no_batch(queue.report(1))


@pytest.mark.black_box
@pytest.mark.parametrize("place", AGAIN)
def test_a_page_that_is_asked_for_again_is_done_and_has_not_failed(
    place: str, work: Callable[[str, int], tuple[Frontier, SiteProcess]]
) -> None:
    body, times = AGAIN[place]
    queue, pages = work(body, 1)
    wanted = [pages.detail(number) for number in range(PAGES)] * times
    assert Counter(item["url"] for item in queue.items) == Counter(wanted)
    assert_nothing_is_of_no_batch(queue.report(1))
    assert queue.report(1).missed == 0


#: a page that is asked for when all is done
ONCE = """
    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.asked = False
        crawler.signals.connect(spider.ask, signals.spider_idle)
        return spider

    def ask(self):
        if not self.asked:
            self.asked = True
            self.crawler.engine.crawl(self.more("{url}", dont_filter=True))
            raise DontCloseSpider
"""


@pytest.mark.black_box
def test_what_every_workers_idle_handler_asks_for_is_fetched_once(
    work: Callable[[str, int], tuple[Frontier, SiteProcess]], site: StartSite
) -> None:
    there = site(1)
    queue, pages = work(ONCE.replace("{url}", there.detail(0)), 3)
    wanted = [pages.detail(number) for number in range(PAGES)] + [there.detail(0) + "?more"]
    assert Counter(item["url"] for item in queue.items) == Counter(wanted)
    assert len(there.hits()) == 1


#: a pipeline that fails at each third page
FAILING = """
class Failing:
    def process_item(self, item):
        if int(item["url"][-7:-5]) % 3 == 0:
            raise KeyError("price")
        return item


Own.custom_settings["ITEM_PIPELINES"] = {Failing: 300}
"""


@pytest.mark.black_box
def test_a_page_whose_item_makes_a_pipeline_fail_has_failed(
    work: Callable[[str, int], tuple[Frontier, SiteProcess]],
) -> None:
    queue, pages = work(FAILING, 1)
    failed = {
        pages.detail(number): "KeyError in a pipeline: 'price'" for number in range(0, PAGES, 3)
    }
    assert {item["url"] for item in queue.items} == {
        pages.detail(n) for n in range(PAGES)
    } - failed.keys()
    assert {miss.url: miss.reason for miss in queue.store.misses(CRAWL)} == failed
