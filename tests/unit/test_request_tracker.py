"""What became of each request of a batch: done, gone or failed, and nothing is forgotten."""

import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.scheduling import run
from rig.steps import count_steps
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.codec import NotLetOut, PagesUsedUp
from scrapyd_dist.middlewares.worker import work_unit
from scrapyd_dist.middlewares.worker.sent_session import SentSession
from scrapyd_dist.middlewares.worker.work_unit import (
    REMEMBERED,
    RequestLedger,
    UnitMark,
    WorkUnit,
    judge_failure,
    mark_of,
)
from scrapyd_dist.middlewares.worker.worker import Worker
from twisted.python.failure import Failure

from scrapyd_dist.joblogs.worker_report import read_report, refusal
from scrapyd_dist.payload import START_URLS

URLS = [f"http://web/{n}" for n in range(3)]


def failed(error: Exception) -> Failure:
    return Failure(error)  # type: ignore[no-untyped-call]  # Twisted has no types


def http(status: int) -> HttpError:
    return HttpError(Response("http://web/", status=status))


def test_every_request_ends_in_one_place() -> None:
    account = RequestLedger([*URLS, "http://web/3", "http://web/4"])
    account.done(0)
    account.missed(1, "gone", "HTTP 404")
    account.missed(2, "failed", "HTTP 500")
    account.redirected(3, "http://elsewhere/")
    closed = account.close()
    assert (closed["requests"], closed["done"], closed["missed"]) == (5, 1, 2)
    reasons = [[row["reason"] for row in closed[kind]] for kind in ("gone", "failed", "unended")]
    redirected = "redirected to http://elsewhere/, which was filtered"
    assert reasons == [["HTTP 404", redirected], ["HTTP 500"], ["nothing was heard of it"]]
    urls = [row["url"] for kind in ("gone", "failed", "unended") for row in closed[kind]]
    assert urls == [URLS[1], "http://web/3", URLS[2], "http://web/4"]


def close_account(requests: int) -> None:
    """Close the account of a batch of which each request has led to one that failed."""
    account = RequestLedger(["http://web/"] * requests)
    for index in range(requests):
        account.done(index)
        for number in range(2):
            follower = UnitMark(1, 1, None, 2 * index + number, index)
            account.follower_failed(follower, f"{index}: {number}")
    reasons = [row["reason"] for row in account.close()["failed"]]
    assert reasons == [f"{index}: 0" for index in range(requests)]


def test_the_account_of_a_batch_is_closed_in_steps_by_the_number_of_its_requests() -> None:
    few = count_steps(lambda: close_account(100), work_unit)
    many = count_steps(lambda: close_account(400), work_unit)
    assert many < 5 * few


def test_a_follower_that_is_made_again_has_not_failed() -> None:
    account = RequestLedger(URLS)
    marks = [UnitMark(1, 1, None, serial, 0) for serial in range(2)]
    account.done(0)
    for mark in marks:
        account.follower_failed(mark, f"{mark.serial}")
    account.reopen(marks[0])
    assert account.outcome(0) == ("failed", "1")
    account.reopen(marks[1])
    assert (account.outcome(0), account.progress()["done"]) == (None, 1)


STEP = st.tuples(st.sampled_from(["done", "gone", "failed", "redirected"]), st.integers(0, 4))


@given(st.lists(STEP, max_size=25))
def test_whatever_happens_the_account_balances(steps: list[tuple[str, int]]) -> None:
    account = RequestLedger([str(n) for n in range(5)])
    for what, index in steps:
        if what == "done":
            account.done(index)
        elif what == "redirected":
            account.redirected(index, "x")
        else:
            account.missed(index, what, "why")
    closed = account.close()
    listed = [row["url"] for kind in ("gone", "failed", "unended") for row in closed[kind]]
    assert len(listed) == len(set(listed))
    assert closed["done"] + len(listed) == 5


def test_a_miss_is_a_miss_even_when_the_page_had_items_before() -> None:
    account = RequestLedger(URLS)
    account.done(0)
    account.missed(0, "failed", "first")
    account.missed(0, "gone", "second")
    account.done(0)
    closed = account.close()
    assert (closed["done"], closed["failed"]) == (0, [{"url": URLS[0], "reason": "first"}])


@pytest.mark.parametrize(
    ("error", "judged"),
    [
        *((http(status), ("gone", f"HTTP {status}")) for status in (404, 410, 403, 400)),
        *((http(status), ("failed", f"HTTP {status}")) for status in (408, 429, 500, 301)),
        (TimeoutError("too\nlong"), ("failed", "TimeoutError: too")),
        (OSError(), ("failed", "OSError")),
        (IgnoreRequest("robots"), ("gone", "IgnoreRequest: robots")),
        (IgnoreRequest(), ("gone", "IgnoreRequest")),
        (NotLetOut("the crawl ends"), ("failed", "NotLetOut: the crawl ends")),
        (
            PagesUsedUp("shop.example", 5),
            ("gone", "the budget of 5 pages of shop.example is used up"),
        ),
    ],
)
def test_the_site_says_what_is_gone_and_any_other_error_is_a_failure_in_one_line(
    error: Exception, judged: tuple[str, str]
) -> None:
    assert judge_failure(failed(error)) == judged


class Plain(Spider):
    name = "plain"

    def parse(self, response: Any) -> None: ...

    def gone(self, failure: Any) -> str:
        return "handled"


class Ruled(CrawlSpider):
    name = "ruled"
    rules = (Rule(LinkExtractor()), Rule(LinkExtractor(), callback="parse_item"))

    def parse_item(self, response: Any) -> None: ...


def worker_of(
    batch: Any = tuple(URLS),
    spider: type[Spider] = Plain,
    job: dict[str, Any] | None = None,
    **settings: Any,
) -> Worker:
    values = {START_URLS: batch if isinstance(batch, str) else json.dumps(list(batch)), **settings}
    if job is not None:
        values["DISTRIBUTED_JOB"] = json.dumps(
            {"crawl": "c", "home": "c.0", "batch": 1, "attempt": 1, **job}
        )
    crawler = get_crawler(spider, values)
    crawler.spider = spider.from_crawler(crawler)
    worker = Worker.from_crawler(crawler)
    worker._opened()
    return worker


def session_of(worker: Worker) -> SentSession:
    assert isinstance(worker._session, SentSession)
    return worker._session


def account(worker: Worker) -> dict[str, Any]:
    return session_of(worker)._batch.ledger.close()


async def each_of(*outputs: Any) -> AsyncIterator[Any]:
    for output in outputs:
        if isinstance(output, Exception):
            raise output
        yield output


def listed(outputs: AsyncIterator[Any]) -> list[Any]:
    async def collect() -> list[Any]:
        return [output async for output in outputs]

    found: list[Any] = run(collect())
    return found


def start(worker: Worker) -> list[Request]:
    return listed(
        worker.process_start(each_of(AssertionError("the spider's own start was entered")))
    )


def through(worker: Worker, request: Request, *outputs: Any) -> list[Any]:
    return listed(
        worker.process_spider_output(Response(request.url, request=request), each_of(*outputs))
    )


def test_the_batch_is_crawled_in_place_of_the_spiders_start() -> None:
    started = [(request.url, mark_of(request)) for request in start(worker_of())]
    assert [(url, mark and mark.position) for url, mark in started] == [
        (url, at) for at, url in enumerate(URLS)
    ]


def test_a_page_is_done_when_its_callback_ran_to_the_end_or_closes_the_spider() -> None:
    worker = worker_of()
    with pytest.raises(CloseSpider):
        through(worker, start(worker)[0], CloseSpider("enough"))
    assert account(worker)["done"] == 1
    worker = worker_of()
    first, second, third = start(worker)
    assert through(worker, first, {"a": 1}, {"a": 2}) == [{"a": 1}, {"a": 2}]
    with pytest.raises(ZeroDivisionError):
        through(worker, second, {"a": 1}, ZeroDivisionError("by zero"))
    worker.process_spider_exception(Response(third.url, request=third), ValueError("bad"))
    closed = account(worker)
    assert (closed["done"], closed["pages"]) == (1, 2)
    reasons = [row["reason"].split(" in the callback: ") for row in closed["failed"]]
    assert reasons == [["ZeroDivisionError", "by zero"], ["ValueError", "bad"]]


def test_an_error_page_is_judged_once_and_the_spiders_own_errback_is_called() -> None:
    worker = worker_of([{"url": URLS[0], "errback": "gone"}, URLS[1]])
    own, none = start(worker)
    assert own.errback
    assert none.errback
    error = http(404)
    assert listed(own.errback(failed(error))) == ["handled"]
    failure = failed(TimeoutError("slow"))
    assert none.errback(failure) is failure
    worker.process_spider_exception(Response(own.url, request=own), error)
    closed = account(worker)
    assert closed["gone"] == [{"url": URLS[0], "reason": "HTTP 404"}]
    assert closed["failed"] == [{"url": URLS[1], "reason": "TimeoutError: slow"}]


def test_a_page_that_is_refused_before_its_callback_is_gone_unless_something_comes_of_it() -> None:
    worker = worker_of()
    dropped, lost, saved = start(worker)
    refused = IgnoreRequest("closed")
    assert dropped.errback
    dropped.errback(failed(refused))
    worker.process_spider_exception(Response(dropped.url, request=dropped), refused)
    for request in (lost, saved):
        assert request.errback
        request.errback(failed(http(404)))
    assert through(worker, lost) == [], "Scrapy's own middleware has dropped the page"
    assert through(worker, saved, {"a": 1}) == [{"a": 1}]
    closed = account(worker)
    assert (closed["done"], closed["pages"], closed["failed"]) == (1, 1, [])
    reasons = [row["reason"] for row in closed["gone"]]
    assert reasons == ["IgnoreRequest: closed", "HTTP 404"]


def test_a_request_that_is_redirected_to_a_page_of_another_one_says_so() -> None:
    worker = worker_of()
    _, second, third = start(worker)
    moved = second.replace(
        url=URLS[0], meta={**second.meta, "redirect_urls": [second.url]}, dont_filter=False
    )
    send = worker._crawler.signals.send_catch_log
    for request in (moved, third):
        send(signals.request_scheduled, request=request, spider=worker._crawler.spider)
        send(signals.request_dropped, request=request, spider=worker._crawler.spider)
    assert [row["reason"] for row in account(worker)["gone"]] == [
        f"redirected to {URLS[0]}, the same page as another request",
        "the same page as another request",
    ]


def test_what_is_broken_off_has_not_ended() -> None:
    """As in a process that is forced to end: a batch must not be acked with a request of which nothing was heard."""
    worker = worker_of([{"url": URLS[0], "errback": "gone"}, URLS[1]])
    failing, good = start(worker)
    assert failing.errback
    batch = session_of(worker)._batch
    open_before = batch.requests

    async def break_off(outputs: Any) -> None:
        await anext(outputs)
        await outputs.aclose()

    page = Response(good.url, request=good)
    run(break_off(worker.process_spider_output(page, each_of({"a": 1}, {"a": 2}))))
    run(break_off(failing.errback(failed(TimeoutError("slow")))))
    gc.collect()
    assert batch.requests == open_before
    failing.errback(failed(TimeoutError("slow")))  # its output is thrown away, as by Scrapy 2.13
    gc.collect()
    assert batch.requests == open_before - 1


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, 1),
        ({"DISTRIBUTED_TARGET_RULE": 0}, 0),
        ({"DISTRIBUTED_TARGET_CALLBACKS": "parse_item"}, None),
    ],
)
def test_a_bare_url_is_taken_by_the_projects_own_target(
    settings: dict[str, Any], rule: int | None
) -> None:
    worker = worker_of(["http://web/"], Ruled, **settings)
    (request,) = start(worker)
    spider = worker._crawler.spider
    assert isinstance(spider, Ruled)
    assert request.meta.get("rule") == rule
    assert request.callback == (spider.parse_item if rule is None else spider._callback)


@pytest.mark.parametrize(
    "value",
    ['"no-scheme"', '""', '{"url": "http://web/", "callback": "nothing"}',
     '{"url": "http://web/", "headers": "text"}', '{"url": "http://web/", "headers": {"A": 5}}',
     '{"url": "http://web/", "headers": {"A": ["\\ud83d"]}}', '{"url": "http://web/", "meta": 5}',
     '{"url": "http://web/", "body": {"$bytes": "!"}}', '{"url": "http://web/", "rule": "x"}',
     '{"url": "http://web/", "priority": "high"}'],
)  # fmt: skip
def test_a_request_that_cannot_be_made_is_dead_alone_and_says_why(value: str) -> None:
    worker = worker_of(f'["http://web/0", {value}, "http://web/2"]')
    assert [request.url for request in start(worker)] == ["http://web/0", "http://web/2"]
    closed = account(worker)
    assert (closed["requests"], closed["missed"], worker._problem) == (3, 1, "")
    (dead,) = closed["dead"]
    assert dead["reason"].startswith("it cannot be made here: ")


@pytest.mark.parametrize("batch", ["no json", "[1]", '[{"rule": 1}]', "z:AAAA", "e:AAAA"])
def test_a_batch_that_is_none_is_a_problem_in_words_and_no_request_is_made(batch: str) -> None:
    worker = worker_of(batch)
    assert start(worker) == []
    assert worker._problem.startswith("This batch cannot be crawled: ")


def opened(folder: Path, **options: Any) -> Worker:
    log = str(folder / "logs/p/plain/c.b1.a1.log")
    return worker_of(job=options.pop("job", {}), LOG_FILE=log, **options)


def ended(worker: Worker, folder: Path, reason: str = "finished") -> Any:
    worker._closed(reason)
    run(worker._stopped())
    return read_report((folder / "logs/_sdist/c.0/c.0.b1.a1.json").read_bytes())


def test_a_good_batch_ends_with_a_report_that_is_accepted(tmp_path: Path) -> None:
    worker = opened(tmp_path)
    for request in start(worker):
        (item,) = through(worker, request, {"url": request.url})
        session_of(worker).tracker.note_item(item, Response(request.url, request=request))
    report = ended(worker, tmp_path)
    assert refusal(report, 3, feed=False) == ""
    assert (report.items, report.part.items, report.done) == (3, 3, 3)


def test_a_batch_that_came_too_late_makes_no_request(tmp_path: Path) -> None:
    worker = opened(tmp_path, job={"start_by": 5.0})
    assert start(worker) == []
    report = ended(worker, tmp_path)
    assert report.finish_reason == "superseded"
    assert "too late" in refusal(report, 3, feed=False)


def test_a_lost_item_of_a_page_behind_the_batch_is_told_for_the_batch(tmp_path: Path) -> None:
    worker = opened(tmp_path)
    session_of(worker).tracker.note_item(
        {"a": {(1, 2): 3}}, Response("http://web/more", request=Request("http://web/more"))
    )
    assert "An item was lost" in refusal(ended(worker, tmp_path), 3, feed=False)


@pytest.mark.parametrize(
    ("reason", "refused", "kind", "why"),
    [
        ("closespider_itemcount", "", "gone", "CLOSESPIDER_ITEMCOUNT"),
        ("closespider_errorcount", "", "failed", "CLOSESPIDER_ERRORCOUNT"),
        ("shutdown", "the worker ended early (shutdown)", "unended", "nothing was heard of it"),
    ],
)
def test_a_batch_that_the_settings_end_is_done_and_an_interrupted_one_is_not(
    tmp_path: Path, reason: str, refused: str, kind: str, why: str
) -> None:
    report = ended(opened(tmp_path), tmp_path, reason)
    assert refusal(report, 3, feed=False) == refused
    assert [url for url, _ in report.missed_urls[kind]] == URLS
    assert why in report.missed_urls[kind][0][1]


def test_a_full_disk_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = opened(tmp_path, DISTRIBUTED_MIN_FREE=1 << 60)
    closed: list[str] = []
    monkeypatch.setattr(
        "scrapyd_dist.middlewares.worker.worker.close_spider",
        lambda _, reason: closed.append(reason),
    )
    worker._check_folder()
    assert closed == ["disk-full"]
    ended(worker, tmp_path, "disk-full")


def test_a_node_without_log_files_makes_no_request() -> None:
    worker = worker_of(job={}, LOG_FILE=None)
    assert start(worker) == []
    assert "no way home" in worker._problem


def test_a_password_of_a_feed_is_not_in_the_report(tmp_path: Path) -> None:
    session = session_of(opened(tmp_path, job={"feed": True}))
    session._feed_closed(SimpleNamespace(uri="ftp://me:secret@host:21/1.jl", itemcount=0))
    assert session._feeds == ["ftp://host:21/1.jl"]


def test_a_worker_that_runs_for_days_remembers_its_last_batches_only() -> None:
    tracker = session_of(worker_of()).tracker
    for number in range(1, REMEMBERED + 6):
        unit = WorkUnit(number, 1, None, RequestLedger([]))
        tracker.enter(unit)
        tracker.leave(unit, acked=True)
    assert len(tracker._acked) == REMEMBERED
    assert (REMEMBERED + 5, 1) in tracker._acked
