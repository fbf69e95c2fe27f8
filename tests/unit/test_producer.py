"""The producer's spider middleware: what becomes of an index page that failed."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rig.scheduling import run
from scrapy import Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.classifier import Disposition
from scrapyd_dist.middlewares.own_meta import each_without_marks
from scrapyd_dist.middlewares.producer.index_walk import PAGE, SHARD, IndexWalk
from scrapyd_dist.middlewares.producer.producer import LOCAL, MARKS, Producer
from twisted.python.failure import Failure

from scrapyd_dist.batches import Shard


class Rooms(Spider):
    name = "rooms"


def producer_of(misses: list[tuple[Any, ...]]) -> Producer:
    crawler = get_crawler(Rooms)
    crawler.spider = Rooms()
    producer = Producer(crawler)
    run_of_crawl: Any = SimpleNamespace(
        index=IndexWalk([Shard(number=0, url="http://web/", first_page=1, last_page=None)], None),
        reporter=SimpleNamespace(local_missed=lambda *miss: misses.append(miss)),
        target=SimpleNamespace(takes=lambda request, _, **__: "piece" in request.url),
        capture=SimpleNamespace(
            has_found=lambda _: False,
            has_filter=False,
            room=SimpleNamespace(is_used_up=False),
            sort_in=lambda *_: (Disposition.SEALED, None),
        ),
        options=SimpleNamespace(sharded=False),
        finds_no_more=False,
        goals=None,
    )
    producer._run = run_of_crawl
    return producer


def yields(failure: Failure) -> Any:
    """Ask for the page again, and for a piece."""
    yield failure.request.replace(dont_filter=True)  # type: ignore[attr-defined]  # Scrapy adds it
    yield Request("http://web/piece")
    yield {"an": "item"}


async def yields_later(failure: Failure) -> AsyncIterator[Any]:
    for output in yields(failure):
        yield output


async def returns_later(failure: Failure) -> Any:
    return list(yields(failure))


def outputs_of(request: Request, error: Exception) -> list[Any]:
    failure = Failure(error)  # type: ignore[no-untyped-call]  # Twisted has no types
    failure.request = request  # type: ignore[attr-defined]  # as Scrapy adds it
    errback = request.errback
    assert errback

    async def collect() -> list[Any]:
        outputs = errback(failure)
        # As Scrapy reads it.
        return [output async for output in each_without_marks(outputs, None, MARKS)]

    found: list[Any] = run(collect())
    return found


@pytest.mark.parametrize("errback", [yields, yields_later, returns_later])
def test_what_an_errback_asks_for_is_sorted_as_what_a_callback_does(
    errback: Callable[[Failure], Any],
) -> None:
    producer = producer_of([])
    request = Request("http://web/", errback=errback)
    producer._index_request(producer.run, request, 0)
    again, item = outputs_of(request, TimeoutError("slow"))
    assert (item, again.url, again.meta[SHARD]) == ({"an": "item"}, "http://web/", 0)
    assert again.meta[PAGE] != request.meta[PAGE], "the page is asked for anew"
    assert producer.run.index.walks[0].pending == {again.meta[PAGE]}


@pytest.mark.parametrize("errback", [yields, yields_later])
def test_a_request_of_this_process_that_is_made_again_stays_here(
    errback: Callable[[Failure], Any],
) -> None:
    misses: list[tuple[Any, ...]] = []
    producer = producer_of(misses)
    request = producer._watched(Request("http://web/own", errback=errback), {SHARD: 0, LOCAL: True})
    again, piece, _ = outputs_of(request, TimeoutError("slow"))
    assert [one.meta.get(LOCAL) for one in (request, again, piece)] == [True, True, True]
    assert misses == [("http://web/own", "failed", "TimeoutError: slow")]


def test_the_marks_are_back_when_an_errback_has_returned_nothing() -> None:
    seen: list[Any] = []
    producer = producer_of([])
    request = Request("http://web/", errback=lambda failure: seen.append(dict(request.meta)))
    producer._index_request(producer.run, request, 0)
    outputs_of(request, TimeoutError("slow"))
    assert (seen, set(request.meta)) == ([{}], {PAGE, SHARD})


def test_a_page_that_was_refused_before_its_callback_is_judged_once() -> None:
    misses: list[tuple[Any, ...]] = []
    producer = producer_of(misses)
    request = producer._watched(Request("http://web/own"), {SHARD: 0, LOCAL: True})
    error = IgnoreRequest("closed")
    failure = Failure(error)  # type: ignore[no-untyped-call]  # Twisted has no types
    failure.request = request  # type: ignore[attr-defined]  # as Scrapy adds it
    assert request.errback
    assert request.errback(failure) is failure
    page = Response("http://web/own", request=request)
    producer.process_spider_exception(page, error)
    assert [kind for _, kind, _ in misses] == ["gone"]
    producer._watched(request, {SHARD: 0, LOCAL: True})
    producer.process_spider_exception(page, ValueError("in the callback"))
    assert [kind for _, kind, _ in misses] == ["gone", "failed"]
