"""What spiders ask of a worker that leases its batches: a login, their own start, a hook, attributes, their own end."""

from typing import Any

import pytest
from rig.pullers import CRAWL, values_of
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

MEMBER = """
import scrapy
from scrapyd_dist import SessionExpired


class Member(scrapy.Spider):
    name = "member"
    handle_httpstatus_list = [403]
    allowed_domains = ["127.0.0.1"]
    seen_first = None

    async def start(self):
        yield scrapy.Request(self.settings["SITE"] + "/properties/index_00000.html?own", self.parse_own)

    def parse_own(self, response):
        self.seen_first = "own"
        yield scrapy.Request("http://elsewhere.test/", self.parse_article, meta={"distribute": True})

    def log_in(self):
        where = self.settings["SITE"] + "/properties/index_00001.html?login"
        return scrapy.Request(where, self.logged_in, dont_filter=True)

    def logged_in(self, response):
        yield response.follow("?second-step", self.ready, dont_filter=True)

    def ready(self, response):
        assert response.status == 200

    def parse_article(self, response):
        if response.status == 403:
            raise SessionExpired
        yield {"url": response.url, "first": self.seen_first, "country": getattr(self, "country", None)}

    async def shorten(self, request):
        if "drop" in request.url:
            return None
        if "change" in request.url:
            return request.replace(url=request.url.partition("?")[0])
        if "break" in request.url:
            raise KeyError("break")
        return request
"""


def member(project: Any, shop: Any, **settings: Any) -> Any:
    return project(spiders={"member": MEMBER}, settings={"SITE": shop.url, **settings})


@pytest.mark.black_box
def test_a_worker_logs_in_before_its_first_batch_and_whenever_the_session_has_expired(
    project: Any, site: Any, frontier: Any
) -> None:
    """H24: nothing is fetched without the session, and what met its end is fetched again."""
    shop = site(40, "--latency=0.1", per_page=10)
    shop.behave(
        {
            "/properties/property_*": "cookie:session=1",
            shop.site.index_path(1): "setcookie:session=1",
        }
    )
    place = member(project, shop, DISTRIBUTED_LOGIN="log_in", CONCURRENT_REQUESTS=4)
    queue = frontier(place, "member")
    queue.add(values_of(map(shop.detail, range(40)), callback="parse_article"), size=5)
    worker = queue.begin(1)
    wait_for(lambda: queue.acked() >= 2, 30, "two acked batches")
    shop.behave(
        {
            "/properties/property_*": "cookie:session=2",
            shop.site.index_path(1): "setcookie:session=2",
        }
    )
    queue.collect(worker)
    assert sorted(item["url"] for item in queue.items) == sorted(map(shop.detail, range(40)))
    assert queue.store.misses(CRAWL) == []
    first, *_ = [hit["target"] for hit in shop.log() if "__" not in hit["target"]]
    assert first.endswith("index_00001.html?login")
    logins = [hit for hit in shop.log() if hit["target"].endswith("?login")]
    assert len(logins) == 2


@pytest.mark.black_box
def test_a_request_whose_session_expires_again_and_again_fails_alone(
    project: Any, site: Any, frontier: Any
) -> None:
    shop = site(20, per_page=10)
    shop.behave({shop.site.detail_path(3): "status:403"})
    queue = frontier(member(project, shop, DISTRIBUTED_LOGIN="log_in"), "member")
    queue.add(values_of(map(shop.detail, range(10)), callback="parse_article"))
    queue.work(1)
    (miss,) = queue.store.misses(CRAWL)
    assert (miss.url, miss.kind) == (shop.detail(3), "failed")
    assert "SessionExpired" in miss.reason
    assert len(queue.items) == 9
    assert shop.item_hits()[3] == 4


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("order", "settings", "broken", "reason"),
    [
        ({}, {"DISTRIBUTED_LOGIN": "log_in"}, 1, "login-failed"),
        ({"start": "first"}, {}, 0, "start-failed"),
    ],
)
def test_a_worker_that_cannot_log_in_touches_no_batch(
    project: Any, site: Any, frontier: Any, order: Any, settings: Any, broken: int, reason: str
) -> None:
    shop = site(20, per_page=10)
    shop.behave({shop.site.index_path(broken): "status:404"})
    queue = frontier(member(project, shop, **settings), "member")
    queue.add(values_of([shop.detail(0)], callback="parse_article"))
    queue.run(1, **order)
    report = queue.report(1)
    assert report.finish_reason == reason
    assert "has failed: HTTP 404" in report.problem
    assert queue.states() == {"sealed": 1}


@pytest.mark.black_box
def test_the_spiders_own_start_requests_come_first_when_that_is_wanted(
    project: Any, site: Any, frontier: Any
) -> None:
    """H24: they end before the first batch is leased; else they are not made at all."""
    shop = site(20)
    queue = frontier(member(project, shop), "member")
    queue.add(values_of(map(shop.detail, range(10)), callback="parse_article"))
    queue.work(1, start="first")
    assert {item["first"] for item in queue.items} == {"own"}
    assert queue.store.counts(CRAWL)["offsite"] == 1, (
        "what its own pages lead to is in the account, too"
    )
    assert queue.report(1).own_items == 0
    queue.add(values_of(map(shop.detail, range(10, 20)), callback="parse_article"))
    queue.work(2)
    assert {item["first"] for item in queue.items[10:]} == {None}


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("order", "settings", "page"),
    [
        ({"start": "first"}, {}, 'self.seen_first = "own"'),
        ({}, {"DISTRIBUTED_LOGIN": "log_in"}, "assert response.status == 200"),
    ],
)
def test_items_of_the_workers_own_pages_are_in_no_part_and_counted(
    project: Any, site: Any, frontier: Any, order: Any, settings: Any, page: str
) -> None:
    shop = site(20, per_page=10)
    code = MEMBER.replace(page, f"{page}\n        yield {{'url': response.url}}")
    place = project(spiders={"member": code}, settings={"SITE": shop.url, **settings})
    queue = frontier(place, "member")
    queue.add(values_of(map(shop.detail, range(5)), callback="parse_article"))
    queue.work(1, **order)
    assert sorted(item["url"] for item in queue.items) == sorted(map(shop.detail, range(5)))
    assert (queue.report(1).own_items, queue.report(1).stray_items) == (1, 0)


@pytest.mark.black_box
def test_a_hook_changes_or_drops_requests_and_attributes_travel(
    project: Any, site: Any, frontier: Any
) -> None:
    """H25, H29: what is dropped is counted; attributes of two kinds are never mixed."""
    shop = site(40, "--latency=0.05")
    settings = {"DISTRIBUTED_REQUEST_HOOK": "shorten", "DISTRIBUTED_SPIDER_ATTRIBUTES": ["country"]}
    queue = frontier(member(project, shop, CONCURRENT_REQUESTS=4, **settings), "member")
    odd = values_of(
        (shop.detail(n) for n in range(1, 20, 2)),
        callback="parse_article",
        attributes={"country": "de"},
    )
    even = values_of(
        (shop.detail(n) for n in range(0, 20, 2)),
        callback="parse_article",
        attributes={"country": "fr"},
    )
    queue.add([value for pair in zip(odd[:4], even[:4], strict=True) for value in pair], size=8)
    queue.add(odd[4:], size=3)
    queue.add(even[4:], size=3)
    asked = [
        f"{shop.detail(n)}?{what}" for n, what in ((20, "drop"), (21, "change"), (22, "break"))
    ]
    queue.add(values_of(asked, callback="parse_article"), size=3)
    queue.work(1)
    countries = {item["url"]: item["country"] for item in queue.items}
    assert (len(queue.items), shop.detail(21) in countries) == (21, True)
    expected = {shop.detail(number): "de" if number % 2 else "fr" for number in range(20)}
    assert {**countries, **expected} == countries
    kinds = {miss.url: (miss.kind, miss.reason) for miss in queue.store.misses(CRAWL)}
    assert kinds == {
        asked[0]: ("gone", "dropped by the hook"),
        asked[2]: ("failed", "the hook for requests failed: KeyError: 'break'"),
    }
    assert queue.turns(1) == {"returned": 21, "dropped_by_hook": 1, "not_made": 1}
    assert not [path for path in shop.hits() if path.endswith(("?drop", "?break"))]


ODD = '''
import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule


class Odd(scrapy.Spider):
    name = "odd"

    def parse_article(self, response):
        yield {"url": response.url}

    def parse_set(self, response):
        yield {"url": response.url, "what": {(1, 2): "a key of JSON is a text"}}

    def parse_enough(self, response):
        raise CloseSpider("enough")


class Ruled(CrawlSpider):
    name = "ruled"
    rules = (Rule(LinkExtractor(restrict_css="a.next")), Rule(LinkExtractor(r"property_"), callback="parse_article"))

    def parse_article(self, response):
        yield {"url": response.url}


class Replacing:
    """A downloader middleware that makes a request of its own, and so takes the mark away."""

    def process_response(self, request, response, spider=None):
        if "replace" in request.url:
            return scrapy.Request(request.url.partition("?")[0])
        return response


class Thinning:
    """A spider middleware behind ours that drops items."""

    async def process_spider_output(self, response, result, spider=None):
        async for one in result:
            if "property_000005" not in response.url:
                yield one
'''


def odd(project: Any, **settings: Any) -> Any:
    return project(spiders={"odd": ODD}, settings=settings)


@pytest.mark.black_box
def test_what_is_lost_on_its_way_through_scrapy_holds_no_batch_up(
    project: Any, site: Any, frontier: Any
) -> None:
    """A component may swallow a request or an item: when Scrapy has nothing left, the batch is over."""
    shop = site(10)
    place = odd(
        project,
        DOWNLOADER_MIDDLEWARES={"small.spiders.odd.Replacing": 1},
        SPIDER_MIDDLEWARES={"small.spiders.odd.Thinning": 10},
    )
    queue = frontier(place, "odd")
    urls = [shop.detail(1), shop.detail(2) + "?replace", shop.detail(5)]
    queue.add(values_of(urls, callback="parse_article"))
    queue.work(1)
    assert [item["url"] for item in queue.items] == [shop.detail(1)]
    (miss,) = queue.store.misses(CRAWL)
    # The request that took its place has no callback, and ends as in plain Scrapy.
    assert (miss.url, miss.reason.partition(":")[0]) == (
        urls[1],
        "NotImplementedError in the callback",
    )


@pytest.mark.black_box
def test_an_item_without_a_json_form_costs_its_own_url_only(
    project: Any, site: Any, frontier: Any
) -> None:
    shop = site(10)
    queue = frontier(odd(project), "odd")
    queue.add(
        [
            *values_of([shop.detail(0)], callback="parse_set"),
            *values_of([shop.detail(1)], callback="parse_article"),
        ]
    )
    queue.work(1)
    (miss,) = queue.store.misses(CRAWL)
    assert "cannot be written as JSON" in miss.reason
    assert [item["url"] for item in queue.items] == [shop.detail(1)]


@pytest.mark.black_box
def test_a_spider_that_closes_itself_puts_the_rest_off(
    project: Any, site: Any, frontier: Any
) -> None:
    shop = site(100, "--latency=0.2")
    queue = frontier(odd(project, CONCURRENT_REQUESTS=2), "odd")
    queue.add(values_of([shop.detail(0)], callback="parse_enough"), size=1)
    queue.add(values_of(map(shop.detail, range(1, 60)), callback="parse_article"))
    queue.run(1)
    assert (queue.report(1).finish_reason, queue.report(1).closed_by) == ("enough", "enough")
    queue.accept()
    assert (queue.refused, queue.store.misses(CRAWL)) == ([], [])
    assert set(queue.states()) == {"done", "sealed"}


@pytest.mark.black_box
@pytest.mark.parametrize(("kind", "followed"), [("crawl", False), ("frontier", True)])
def test_rules_of_a_crawl_belong_to_its_producer(
    project: Any, site: Any, frontier: Any, kind: str, followed: bool
) -> None:
    """A worker of a crawl does not follow them; at a frontier no other process would."""
    shop = site(20, per_page=10)
    queue = frontier(odd(project), "ruled", kind=kind)
    queue.add(values_of([shop.index(0)], rule=0))
    queue.work(1)
    assert len(queue.items) == (20 if followed else 0)
    assert len(shop.hits()) == (22 if followed else 1)


@pytest.mark.black_box
def test_a_batch_that_cannot_be_read_fails_alone_and_its_worker_goes_on(
    project: Any, site: Any, frontier: Any
) -> None:
    shop = site(10)
    queue = frontier(odd(project), "odd")
    queue.add(
        values_of([shop.detail(0)], callback="parse_article", cookies={"a": "b"}),
        key=b"A" * 43 + b"=",
    )
    queue.add(values_of(map(shop.detail, range(1, 4)), callback="parse_article"), size=1)
    queue.run(1, ahead=0, settings={"CONCURRENT_REQUESTS": 1})
    assert queue.report(1).problem == ""
    queue.accept()
    (refused,) = queue.refused
    assert "the batch is encrypted, and this code carries no key; deploy it with sdist" in refused
    assert queue.store.attempts(CRAWL, {AttemptState.FAILED})[0].batch == 1
    assert queue.turns(1) == {"returned": 3, "left": 1}
    assert len(queue.items) == 3


@pytest.mark.black_box
def test_workers_of_named_slots_take_from_those_alone(
    project: Any, site: Any, frontier: Any
) -> None:
    """H14; the highest priority comes first."""
    shop = site(30)
    queue = frontier(odd(project, CONCURRENT_REQUESTS=1), "odd")
    for slot, first in (("p0", 0), ("p1", 10), ("p2", 20)):
        queue.add(
            values_of(map(shop.detail, range(first, first + 5)), callback="parse_article"),
            size=5,
            slot=slot,
        )
        queue.add(
            values_of(map(shop.detail, range(first + 5, first + 10)), callback="parse_article"),
            size=5, slot=slot, priority=3,
        )  # fmt: skip
    worker = queue.begin(1, slots=["p0", "p2"], ahead=0)
    assert worker.wait(40).code == 0
    queue.accept()
    assert {slot.slot: slot.waiting for slot in queue.store.backlog(CRAWL).slots} == {
        "p0": 0,
        "p1": 10,
        "p2": 0,
    }
    numbers = [
        shop.site.numbers[hit["target"]] for hit in shop.log() if hit["target"] in shop.site.numbers
    ]
    assert numbers == [*range(5, 10), *range(25, 30), *range(5), *range(20, 25)]


SLOW = """\
import asyncio
import scrapy


class Slow(scrapy.Spider):
    name = "slow"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.leave, scrapy.signals.spider_closed)
        return spider

    async def leave(self):
        await asyncio.sleep(5)  # as the upload of a feed does

    def parse(self, response):
        yield {"url": response.url}
"""


@pytest.mark.black_box
def test_what_a_pause_holds_when_the_worker_is_ended_is_for_the_next_one(
    project: Any, site: Any, frontier: Any
) -> None:
    shop = site(10)
    queue = frontier(project(spiders={"slow": SLOW}), "slow")
    queue.add([shop.detail(number) for number in range(1, 7)])
    worker = queue.begin(1, settings={"DOWNLOAD_DELAY": 1, "RANDOMIZE_DOWNLOAD_DELAY": False})
    wait_for(shop.hits, 30, "a page")
    queue.store.want(CRAWL, "pause")
    wait_for(lambda: "The crawl rests" in queue.log(1), 30, "it is paused")
    worker.signal()
    assert worker.wait(60).code == 0
    queue.accept()
    assert (queue.refused, queue.store.misses(CRAWL)) == ([], [])
    assert queue.states() == {"done": 1, "sealed": 1}
