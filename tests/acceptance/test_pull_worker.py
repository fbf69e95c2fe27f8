"""A pulling worker: what it makes of its batches, how each ends, when it ends itself, what it asks its store."""

import shutil
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import scrapy
from rig.pullers import CRAWL, values_of
from rig.redis import RedisServer
from rig.stores import lose_steps
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

TROUBLED = """
import asyncio
import scrapy
from scrapy.exceptions import IgnoreRequest


class Troubled(scrapy.Spider):
    name = "troubled"
    allowed_domains = ["127.0.0.1"]

    def parse_article(self, response):
        yield {"url": response.url, "by": "article"}

    def parse_chain(self, response, left=3):
        yield {"url": response.url, "left": left}
        if left:
            meta = response.meta  # the whole of it, as some spiders do
            yield response.follow(f"?left={left - 1}", self.parse_chain, cb_kwargs={"left": left - 1}, meta=meta)

    def parse_broken(self, response):
        yield {"url": response.url, "by": "broken"}
        raise ValueError("no price")

    async def parse_slowly(self, response):
        await asyncio.sleep(0.2)
        yield {"url": response.url, "slow": True}

    def on_error(self, failure):
        yield {"url": failure.request.url, "by": "errback"}
        url = failure.request.url.replace("000005", "000012")
        yield failure.request.replace(url=url, callback=self.parse_article, errback=None)


class SlowPipeline:
    async def process_item(self, item, spider=None):
        if item.get("slow"):
            await asyncio.sleep(0.5)
        return item


class Refusing:
    def process_request(self, request, spider=None):
        if "refused" in request.url:
            raise IgnoreRequest("not this one")
"""


def filled(
    project: Any, site: Any, frontier: Any, count: int, *options: str, size: int, concurrent: int
) -> tuple[Any, Any]:
    """A site, and a frontier of its detail pages in batches of this size, for workers with so many requests at once."""
    shop = site(count, *options)
    queue = frontier(
        project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": concurrent})
    )
    queue.add(values_of(map(shop.detail, range(count)), callback="parse_article"), size=size)
    return shop, queue


def test_whatever_becomes_of_a_request_its_batch_ends_with_an_exact_account(
    project: Any, site: Any, frontier: Any
) -> None:
    """H8, H15, H20, H31: everything that Scrapy can do with a request, in one batch."""
    shop = site(40)
    shop.behave(
        {
            shop.site.detail_path(1): "gone",
            shop.site.detail_path(2): "fail",
            shop.site.detail_path(3): f"redirect:{shop.site.detail_path(30)}",
            shop.site.detail_path(4): "redirect:http://localhost:1/elsewhere",
            shop.site.detail_path(5): "reset",
            shop.site.detail_path(11): "fail:1",
        }
    )
    place = project(
        spiders={"troubled": TROUBLED},
        settings={
            "RETRY_TIMES": 1,
            "ITEM_PIPELINES": {"small.spiders.troubled.SlowPipeline": 1},
            "DOWNLOADER_MIDDLEWARES": {"small.spiders.troubled.Refusing": 1},
        },
    )
    queue = frontier(place, "troubled")
    url = shop.detail
    values = [
        {"url": url(0), "callback": "parse_chain"},
        *values_of(map(url, range(1, 5)), callback="parse_article"),
        {"url": url(5), "callback": "parse_article", "errback": "on_error"},
        {"url": url(6), "callback": "parse_broken"},
        {"url": url(7), "callback": "parse_nowhere"},
        {"url": url(8), "callback": "parse_slowly"},
        {"url": url(8) + "#same", "callback": "parse_slowly"},
        {"url": url(10) + "?refused", "callback": "parse_article"},
        {"url": url(11), "callback": "parse_article"},
        {"url": "http://localhost:1/away", "callback": "parse_article"},
    ]
    queue.add(values, size=20)
    worker = queue.begin(1)
    wait_for(lambda: queue.accept() or queue.items, 30, "an accepted part")
    assert worker.wait(30).code == 0

    queue.accept()
    (done,) = queue.store.attempts(CRAWL)
    assert done.state is AttemptState.ACCEPTED, queue.log(1)
    missed = {miss.url: (miss.kind, miss.reason) for miss in queue.store.misses(CRAWL)}
    assert missed == {
        url(1): ("gone", "HTTP 404"),
        url(2): ("failed", "HTTP 500"),
        url(4): ("gone", "redirected to http://localhost:1/elsewhere, which was filtered"),
        url(5): ("failed", missed[url(5)][1]),
        url(6): ("failed", "ValueError in the callback: no price"),
        url(7): (
            "dead",
            "it cannot be made here: the spider troubled has no method 'parse_nowhere'",
        ),
        url(8) + "#same": ("gone", "the same page as another request"),
        url(10) + "?refused": ("gone", "IgnoreRequest: not this one"),
        "http://localhost:1/away": (
            "gone",
            "it leads to another site than those of the spider's allowed_domains",
        ),
    }
    expected = [
        (url(0), "3"), (url(0) + "?left=2", "2"), (url(0) + "?left=1", "1"), (url(0) + "?left=0", "0"),
        (url(30), "article"), (url(6), "broken"), (url(8), "True"), (url(11), "article"),
    ]  # fmt: skip
    if scrapy.version_info >= (
        2,
        14,
    ):  # before, Scrapy threw away what an errback made of a failed download
        expected += [(url(5), "errback"), (url(12), "article")]
    assert sorted(
        (item["url"], *map(str, list(item.values())[1:])) for item in queue.items
    ) == sorted(expected)
    report = queue.report(1)
    assert (report.ended, report.finish_reason, report.problem) == (True, "finished", "")
    assert (report.requests, report.done, report.missed, report.items) == (13, 4, 9, len(expected))
    assert queue.turns(1) == {"returned": 12, "not_made": 1}
    assert queue.leftovers() == []


FINDING = """
import scrapy


class Finding(scrapy.Spider):
    name = "finding"

    def parse(self, response):
        for href in response.css("a[itemprop=url]::attr(href)").getall():
            yield response.follow(href, self.parse_article)

    def parse_article(self, response):
        yield {"url": response.url}
        yield response.follow("?reviews", meta={"distribute": {"spider": "reviews"}}, callback=self.parse_reviews)
        yield response.follow("?nobody", meta={"distribute": {"spider": "nobody"}}, callback=self.parse_reviews)

    def parse_reviews(self, response):
        raise AssertionError("this is for another spider")


class Reviews(scrapy.Spider):
    name = "reviews"

    def parse_reviews(self, response):
        yield {"review": response.url}
"""


def test_what_a_worker_finds_goes_into_the_frontier_with_its_ack(
    project: Any, site: Any, frontier: Any
) -> None:
    """H21, H22, C14: one spider both ways; requests for another spider wait in a slot of their own."""
    shop = site(20, per_page=10)
    place = project(spiders={"finding": FINDING})
    queue = frontier(place, "finding", kind="frontier")
    queue.add(
        values_of([shop.index(0), shop.index(1), shop.index(0) + "#again"], callback="parse"),
        size=1,
    )
    settings = {"DISTRIBUTED_TARGET_CALLBACKS": "parse_article", "CONCURRENT_REQUESTS": 2}
    worker = queue.begin(1, settings=settings)
    wait_for(lambda: queue.accept() or len(queue.items) == 20, 40, "the items of what it found")
    assert worker.wait(30).code == 0, queue.log(1)

    queue.accept()
    assert sorted(item["url"] for item in queue.items) == sorted(shop.detail(n) for n in range(20))
    assert set(shop.item_hits().values()) == {1}
    (waiting,) = [slot for slot in queue.store.backlog(CRAWL).slots if slot.waiting]
    assert (waiting.slot, waiting.waiting) == ("@reviews", 20)
    nowhere = [miss for miss in queue.store.misses(CRAWL) if miss.kind == "dead"]
    assert len(nowhere) == 20
    assert "there is no spider 'nobody'" in nowhere[0].reason
    counts = queue.store.counts(CRAWL)
    assert {name: counts[name] for name in ("sealed", "duplicate", "refused")} == {
        "sealed": 40, "duplicate": 10, "refused": 20,
    }  # fmt: skip
    stats = queue.report(1).stats
    told = {
        name: stats.get(f"distributed/requests_{name}")
        for name in ("found", "added", "duplicate", "refused")
    }
    assert told == {"found": 70, "added": 40, "duplicate": 10, "refused": 20}, (
        "as the store has kept it"
    )

    queue.run(2, spider="reviews", slots=["@reviews"], settings=settings)
    queue.items.clear()
    queue.accept()
    assert sorted(item["review"] for item in queue.items) == sorted(
        shop.detail(n) + "?reviews" for n in range(20)
    )


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("order", "acked", "limit"),
    [
        ({"max_batches": 3}, 3, "3 batches"),
        ({"max_requests": 15}, 2, "15 requests"),
        ({"max_time": 1.0}, None, "1 s"),
    ],
)
def test_a_worker_ends_at_its_limit(
    project: Any, site: Any, frontier: Any, order: dict[str, Any], acked: int | None, limit: str
) -> None:
    """H15, H16: exactly as many batches; requests to the end of the batch that reaches the limit."""
    shop, queue = filled(project, site, frontier, 300, "--latency=0.2", size=10, concurrent=4)
    queue.run(1, **order)
    assert queue.said(1)["limit"] == limit
    assert queue.report(1).finish_reason == "finished"
    states = queue.states()
    assert states["sealed"] + states["running"] == 30
    assert queue.acked() == states["running"]
    if acked is not None:
        assert states["running"] == acked
        assert sum(shop.item_hits().values()) == acked * 10
    else:
        assert 0 < states["running"] < 20


@pytest.mark.black_box
def test_at_a_standing_frontier_a_worker_ends_when_it_has_idled_long_enough(
    project: Any, site: Any, frontier: Any
) -> None:
    """H20; and what is added while it waits is taken at once."""
    shop = site(20)
    queue = frontier(
        project(settings={"START_URL": shop.start_url}), kind="frontier", standing=True
    )
    queue.add(values_of(map(shop.detail, range(10)), callback="parse_article"))
    worker = queue.begin(1, idle=4)
    wait_for(lambda: queue.accept() or len(queue.items) == 10, 30, "the first items")
    queue.add(values_of(map(shop.detail, range(10, 20)), callback="parse_article"))
    wait_for(
        lambda: queue.accept() or len(queue.items) == 20, 3.5, "the items that were added later"
    )
    since = time.monotonic()
    assert worker.wait(30).code == 0
    assert time.monotonic() - since > 2
    assert shop.differences(queue.items) == {}


@pytest.mark.black_box
def test_a_worker_that_is_told_to_end_settles_what_it_has(
    project: Any, site: Any, frontier: Any
) -> None:
    """Complete batches are acked, untouched ones given back, and the rest says how far it came."""
    shop, queue = filled(project, site, frontier, 100, "--latency=0.3", size=5, concurrent=2)
    worker = queue.begin(1, ahead=9)
    wait_for(lambda: queue.acked() >= 2, 30, "two acked batches")
    worker.signal(signal.SIGINT)
    assert worker.wait(30).code == 0
    assert queue.report(1).finish_reason == "shutdown"
    fates = queue.said(1)["batches"]
    assert fates["given_back"] >= 1
    assert fates["held"] == 0
    assert fates.get("failed", 0) <= 2
    assert sum(queue.turns(1).values()) == 5 * sum(fates.values())
    queue.accept()
    assert set(queue.refused) <= {"the worker ended early (shutdown)"}
    put_off = len(queue.store.batches(CRAWL)) - 20
    waiting = 20 + put_off - fates["acked"] - len(queue.refused)
    assert queue.states() == {"done": fates["acked"], "sealed": waiting} | (
        {"failed": len(queue.refused)} if queue.refused else {}
    )
    assert queue.leftovers() == []
    before = {attempt.batch for attempt in queue.store.attempts(CRAWL, {AttemptState.REFUSED})}
    assert all(queue.store.batch(CRAWL, number).attempts == 0 for number in before)

    queue.work(2, settings={"CONCURRENT_REQUESTS": 16})
    assert shop.differences(queue.items) == {}


@pytest.mark.black_box
def test_a_worker_that_has_lost_a_lease_makes_no_more_of_its_requests(
    project: Any, site: Any, frontier: Any
) -> None:
    """What is given up elsewhere is not acked here, and leaves no part."""
    shop, queue = filled(project, site, frontier, 30, "--latency=0.2", size=30, concurrent=1)
    worker = queue.begin(1, lease=3.0, max_batches=1)
    wait_for(lambda: sum(shop.item_hits().values()) >= 3, 30, "the first pages")
    queue.store.fail(CRAWL, 1, 1, reason="given up", now=time.time(), max_attempts=1)
    assert worker.wait(30).code == 0
    assert sum(shop.item_hits().values()) < 25
    assert queue.said(1)["batches"] == {"lost": 1, "held": 0}
    assert sum(queue.turns(1).values()) == 30
    assert [path.name for path in queue.folder.iterdir()] == [f"{queue.job(1)}.json"]


@pytest.mark.black_box
def test_a_worker_that_its_crawl_has_given_up_leases_nothing_more(
    project: Any, site: Any, frontier: Any
) -> None:
    """As one whose node cannot be reached any more, but which reaches the store."""
    shop, queue = filled(project, site, frontier, 60, "--latency=0.2", size=10, concurrent=2)
    worker = queue.begin(1)
    wait_for(lambda: sum(shop.item_hits().values()) >= 3, 30, "the first pages")
    queue.store.remove_worker(CRAWL, queue.job(1))
    assert worker.wait(30).code == 0
    assert queue.report(1).finish_reason == "superseded"
    assert "goes on without this worker" in queue.log(1)
    assert sum(shop.item_hits().values()) < 40
    queue.accept()
    queue.work(2, settings={"CONCURRENT_REQUESTS": 16})
    assert shop.differences(queue.items) == {}
    assert list(queue.store.misses(CRAWL)) == []


@pytest.mark.black_box
@pytest.mark.parametrize("lease", [60.0, 1.5])
def test_a_batch_that_is_leased_again_under_way_comes_home_once(
    project: Any, site: Any, frontier: Any, lease: float
) -> None:
    """A store that has lost its last steps gives a worker the lease that it has, or has just lost."""
    shop, queue = filled(project, site, frontier, 40, "--latency=0.2", size=20, concurrent=2)
    queue.list_worker(1)
    with lose_steps(queue.project.path / "store.db"):
        worker = queue.begin(1, lease=lease, ahead=30)
        wait_for(lambda: sum(shop.item_hits().values()) >= 5, 30, "the first pages")
    queue.collect(worker)
    assert shop.differences(queue.items) == {}
    assert list(queue.store.misses(CRAWL)) == []


@pytest.mark.black_box
def test_another_batch_under_the_number_of_a_lost_one_is_crawled(
    project: Any, site: Any, frontier: Any
) -> None:
    """The store has lost that it had the first one; what its worker has made of that counts nowhere."""
    shop = site(40, "--latency=0.2")
    queue = frontier(project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": 2}))
    lost, kept = (
        values_of(map(shop.detail, numbers), callback="parse_article")
        for numbers in (range(20), range(20, 40))
    )
    queue.list_worker(1)
    with lose_steps(queue.project.path / "store.db"):
        queue.add(lost, size=20)
        worker = queue.begin(1, ahead=30)
        wait_for(lambda: sum(shop.item_hits().values()) >= 5, 30, "the first pages")
    queue.add(kept, size=20)
    queue.collect(worker)
    assert sorted(item["url"] for item in queue.items) == sorted(map(shop.detail, range(20, 40)))
    assert list(queue.store.misses(CRAWL)) == []


@pytest.mark.black_box
def test_a_batch_whose_ack_the_store_has_lost_is_crawled_again(
    project: Any, site: Any, frontier: Any
) -> None:
    """The worker that has acked it gets it as another attempt: the marks of the first one are used up."""
    shop, queue = filled(project, site, frontier, 40, "--latency=0.2", size=10, concurrent=2)
    queue.list_worker(1)
    with lose_steps(queue.project.path / "store.db"):
        worker = queue.begin(1)
        wait_for(lambda: queue.acked() >= 1, 30, "an acked batch")
    queue.collect(worker)
    assert shop.differences(queue.items) == {}
    assert list(queue.store.misses(CRAWL)) == []


@pytest.mark.black_box
def test_a_worker_whose_folder_is_removed_ends_with_that_and_holds_nothing(
    project: Any, site: Any, frontier: Any
) -> None:
    """A log folder that is wiped: no batch stays out, none is acked whose part cannot be fetched."""
    shop, queue = filled(project, site, frontier, 60, "--latency=0.2", size=5, concurrent=2)
    worker = queue.begin(1, ahead=3)
    wait_for(lambda: sum(shop.item_hits().values()) >= 3, 30, "the first pages")
    queue.accept()
    shutil.rmtree(queue.folder.parent)
    assert worker.wait(30).code == 0
    report = queue.report(1)
    assert report.finish_reason == "files-lost"
    assert "was removed" in report.problem
    queue.accept()
    assert queue.refused, "what was begun is a failed attempt"
    assert "running" not in queue.states()

    queue.work(2, settings={"CONCURRENT_REQUESTS": 16})
    assert shop.differences(queue.items) == {}


@pytest.mark.black_box
def test_each_batch_has_a_filter_of_its_own(project: Any, site: Any, frontier: Any) -> None:
    """A page that two batches lead to is fetched for both, since the one may be lost."""
    shop = site(10)
    queue = frontier(project(settings={"START_URL": shop.start_url}))
    queue.add(values_of([shop.detail(0), shop.detail(1)], callback="parse_article"), size=2)
    queue.add(values_of([shop.detail(0), shop.detail(0) + "#a"], callback="parse_article"), size=2)
    queue.work(1)
    assert shop.item_hits() == {0: 2, 1: 1}


@pytest.mark.black_box
@pytest.mark.parametrize(
    ("order", "settings", "problem"),
    [
        (
            {"store": "/nowhere/store.db"},
            {},
            "there is no file /nowhere/store.db where this worker runs",
        ),
        ({"home": "shop.00000000"}, {}, "is another store"),
        ({"start_by": 1.0}, {}, "came too late"),
        ({}, {"DISTRIBUTED_LOGIN": "log_inn"}, "has no method of that name"),
        (
            {},
            {"FEEDS": '{"ftp://me:secret@host/x.jl": {"format": "jl"}}'},
            "The feed ftp://host/x.jl is uploaded",
        ),
    ],
)
def test_a_worker_that_cannot_begin_says_why(
    project: Any, site: Any, frontier: Any, order: Any, settings: Any, problem: str
) -> None:
    shop = site(10)
    queue = frontier(project(settings={"START_URL": shop.start_url}))
    queue.add(values_of([shop.detail(0)], callback="parse_article"))
    queue.run(1, settings=settings, **order)
    queue.folder = queue.folder.with_name(order.get("home", queue.home))
    report = queue.report(1)
    assert problem in report.problem
    assert report.finish_reason == ("superseded" if "start_by" in order else "refused")
    assert queue.states() == {"sealed": 1}
    assert shop.hits() == {}


PICKY = """
import scrapy


class Picky(scrapy.Spider):
    name = "picky"

    def few(self, request):
        return request if request.url.endswith("00.html") else None

    def parse_article(self, response):
        yield {"url": response.url}
"""
BATCHES = 20
#: steps of a worker that are for no batch: is the store one of this version, on each of its connections, and the like
BESIDES = 5


@pytest.mark.black_box
def test_a_thousand_requests_are_two_ways_to_the_store(
    project: Any, site: Any, frontier: Any, tmp_path: Path
) -> None:
    """H17: batches of a thousand; a hook drops most of their requests, so that it is the store that counts."""
    shop = site(BATCHES * 1000)
    with (
        closing(RedisServer(tmp_path / "redis", password=None)) as server,
        closing(redis.Redis.from_url(server.url)) as client,
    ):
        place = project(spiders={"picky": PICKY}, settings={"DISTRIBUTED_REQUEST_HOOK": "few"})
        queue = frontier(place, "picky", where=server.url)

        queue.add(
            values_of(map(shop.detail, range(BATCHES * 1000)), callback="parse_article"), size=1000
        )
        before = steps(client)
        # With a limit it does not look for more at the end, and a long lease is not renewed meanwhile.
        done = queue.begin(1, lease=600.0, max_batches=BATCHES).wait()
        assert (done.code, queue.said(1)["batches"]) == (0, {"acked": BATCHES, "held": 0}), (
            queue.log(1)
        )
        assert len(shop.item_hits()) == BATCHES * 10
        assert steps(client) - before <= 2 * BATCHES + BESIDES


def steps(client: redis.Redis) -> int:
    """How many steps of the store's script the server was asked for."""
    told: dict[str, dict[str, int]] = client.info("commandstats")
    return told["cmdstat_evalsha"]["calls"]


@pytest.mark.black_box
def test_a_worker_without_its_store_ends_and_says_so(
    project: Any, site: Any, frontier: Any, tmp_path: Path
) -> None:
    """It makes no more requests than it had, and what it had is another worker's."""
    shop = site(400, "--latency=0.3")
    with closing(RedisServer(tmp_path / "redis", password=None)) as server:
        place = project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": 2})
        queue = frontier(place, where=server.url)
        queue.add(values_of(map(shop.detail, range(400)), callback="parse_article"), size=100)
        worker = queue.begin(1, lease=3.0)
        wait_for(lambda: sum(shop.item_hits().values()) >= 5, 30, "the first pages")
        server.kill()
        assert worker.wait(60).code == 0
        report = queue.report(1)
        assert report.finish_reason == "store-lost"
        assert "The store was lost" in report.problem
        assert queue.said(1)["batches"]["held"] == 0
        assert sum(shop.item_hits().values()) < 100
        assert [path.suffix for path in queue.folder.iterdir()] == [".json"]
        server.start()
        assert queue.acked() == 0
