"""Goals of a whole crawl: where they are said, what is granted, and how one process keeps to them."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from rig.scheduling import run
from scrapy import Request, Spider, signals
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.goal_keeper import GoalKeeper, GoalReached, goals_of, take_settings
from scrapyd_dist.middlewares.worker import work_unit

from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.goals import Goals, Spent, in_words, spend


def goals(**settings: Any) -> dict[str, float]:
    return Goals.from_settings(Settings(settings)).limits


def test_they_are_settings_of_ours_and_of_scrapy_where_the_project_says_so() -> None:
    theirs = {
        "CLOSESPIDER_ITEMCOUNT": 5,
        "CLOSESPIDER_TIMEOUT_NO_ITEM": "2.5",
        "CLOSESPIDER_PAGECOUNT_NO_ITEM": 9,
    }
    assert goals() == goals(**theirs) == goals(DISTRIBUTED_GOAL_ITEMS=0) == {}
    assert goals(DISTRIBUTED_GOAL_REQUESTS="100", DISTRIBUTED_GOAL_TIME=1.5) == {
        "requests": 100,
        "time": 1.5,
    }
    whole = {"DISTRIBUTED_CLOSESPIDER": "crawl", **theirs}
    assert goals(**whole) == {"items": 5, "dry_pages": 9, "dry_time": 2.5}
    assert goals(**whole, DISTRIBUTED_GOAL_ITEMS=0) == {"dry_pages": 9, "dry_time": 2.5}
    wrong = {
        "DISTRIBUTED_GOAL_PAGES": -1,
        "CLOSESPIDER_ITEMCOUNT": "many",
        "CLOSESPIDER_TIMEOUT": "inf",
    }
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            goals(**{**whole, name: value})


def test_what_counts_for_the_whole_crawl_does_not_count_for_each_process_too() -> None:
    settings = Settings(
        {
            "DISTRIBUTED_CLOSESPIDER": "crawl",
            "CLOSESPIDER_ITEMCOUNT": 5,
            "DISTRIBUTED_GOAL_DEPTH": 2,
        }
    )
    take_settings(settings)
    assert (settings.getint("CLOSESPIDER_ITEMCOUNT"), settings.getint("DEPTH_LIMIT")) == (0, 2)
    assert goals_of(settings) == {"items": 5}
    settings = Settings({"CLOSESPIDER_ITEMCOUNT": 5})
    take_settings(settings)
    assert settings.getint("CLOSESPIDER_ITEMCOUNT") == 5
    filler = {
        "DISTRIBUTED_CLOSESPIDER": "crawl",
        "CLOSESPIDER_ITEMCOUNT": 5,
        "DISTRIBUTED_FRONTIER": "shop",
    }
    row = {
        **filler,
        "DISTRIBUTED_START_URLS": "[]",
        "DISTRIBUTED_JOB": '{"crawl": "c", "row": "a=1"}',
    }
    for settings in map(Settings, (filler, row)):
        take_settings(settings)
        assert (settings.getint("CLOSESPIDER_ITEMCOUNT"), goals_of(settings)) == (5, {}), (
            "it has no goals to keep to"
        )
    worker = {
        "DISTRIBUTED_GOAL_ITEMS": 3,
        "DISTRIBUTED_PULL": '{"crawl": "c", "goals": {"items": 7}}',
    }
    assert goals_of(Settings(worker)) == {"items": 7}, "a worker keeps to what its crawl told it"


@pytest.mark.parametrize(
    ("limits", "counts", "asks", "told", "granted", "after"),
    [
        ({}, {}, 5, {}, 5, {"requests": 5}),
        ({"requests": 10}, {"requests": 8}, 5, {}, 2, {"requests": 10}),
        ({"requests": 10}, {"requests": 12}, 5, {}, 0, {"requests": 12}),
        (
            {"requests": 10},
            {"requests": 4, "reserved": 4},
            5,
            {},
            2,
            {"requests": 6, "reserved": 4},
        ),
        (
            {"items": 3},
            {"items": 2},
            5,
            {"items": 1},
            0,
            {"requests": 0, "items": 3, "dry_pages": 0},
        ),
        (
            {"items": 3},
            {"dry_pages": 4},
            1,
            {"pages": 2},
            1,
            {"requests": 1, "pages": 2, "dry_pages": 6},
        ),
        (
            {"dry_pages": 5},
            {"dry_pages": 4},
            1,
            {"pages": 1},
            0,
            {"requests": 0, "pages": 1, "dry_pages": 5},
        ),
    ],
)
def test_requests_are_granted_as_far_as_the_goals_leave(
    limits: Mapping[str, float], counts: Mapping[str, int], asks: int, told: Mapping[str, int], granted: int,
    after: Mapping[str, int],
) -> None:  # fmt: skip
    assert spend(limits, counts, asks, told) == Spent(granted, after)


def test_they_are_named_by_what_set_them() -> None:
    assert in_words("requests", 1000) == "1,000 requests (--max-requests)"
    assert in_words("time", 2.5) == "2.5 seconds (--max-time)"
    assert in_words("dry_pages", 9) == "9 pages without an item (CLOSESPIDER_PAGECOUNT_NO_ITEM)"


class FakeThread:
    """A store that answers when it is told to."""

    def __init__(self, limits: Mapping[str, float], fails: int = 0) -> None:
        self.store, self.asked, self.fails = self, list[int](), fails
        self.counts: Mapping[str, int] = {}
        self.gate, self.failed = asyncio.Event(), asyncio.Event()
        self.limits = limits

    def spend(
        self, crawl: str, limits: Mapping[str, float], requests: int, told: Mapping[str, int]
    ) -> Spent:
        self.asked.append(requests)
        if self.fails:
            self.fails -= 1
            self.failed.set()
            raise StoreError("away")
        spent = spend(limits, self.counts, requests, told)
        self.counts = spent.counts
        return spent

    async def __call__(self, verb: Any, *args: Any) -> Any:
        await self.gate.wait()
        return verb(*args)


async def outcome(keeper: GoalKeeper, url: str = "http://web/") -> bool:
    try:
        await keeper.process_request(Request(url))
    except GoalReached:
        return False
    return True


def test_all_that_wait_are_one_question_and_the_last_ones_stay() -> None:
    async def work() -> None:
        thread, ended = FakeThread({"requests": 5}), list[str]()
        keeper = GoalKeeper({"requests": 5})
        assert await outcome(keeper), "until it is opened, all pass"
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        several = [asyncio.ensure_future(outcome(keeper)) for _ in range(4)]
        await asyncio.sleep(0)
        more = [asyncio.ensure_future(outcome(keeper)) for _ in range(3)]
        thread.gate.set()
        assert await outcome(keeper, "data:,x"), "no site sees it"
        assert sum(await asyncio.gather(*several, *more)) == 5
        assert sum(thread.asked) == 7
        assert len(thread.asked) <= 3
        assert ended == ["requests"]
        keeper.count("items")
        await keeper.close()
        assert thread.counts["items"] == 1, "what was counted is told before the end"
        keeper.count("items")

    run(work())


def test_items_and_errors_are_counted_as_scrapy_tells_of_them() -> None:
    async def work() -> None:
        crawler = get_crawler(Spider, {"DISTRIBUTED_GOAL_ERRORS": 2})
        keeper, ended, thread = (
            GoalKeeper.for_crawler(crawler),
            list[str](),
            FakeThread({"errors": 2}),
        )
        assert keeper is GoalKeeper.for_crawler(crawler)
        assert keeper is not None
        assert GoalKeeper.for_crawler(get_crawler(Spider)) is None, (
            "nothing is put in without goals"
        )
        thread.gate.set()
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        for signal in (signals.item_scraped, signals.spider_error, signals.spider_error):
            crawler.signals.send_catch_log(signal)
        await keeper.close()
        assert +Counter(thread.counts) == {"items": 1, "errors": 2}
        assert ended == ["errors"]

    run(work())


def test_the_last_request_that_may_leave_is_no_end_by_itself() -> None:
    async def work() -> None:
        thread, ended = FakeThread({"requests": 2}), list[str]()
        keeper = GoalKeeper({"requests": 2})
        thread.gate.set()
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        assert [await outcome(keeper) for _ in range(2)] == [True, True]
        assert ended == []
        assert not await outcome(keeper)
        assert ended == ["requests"]
        keeper.stop()
        assert not await outcome(keeper)

    run(work())


def test_what_is_reserved_for_others_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapyd_dist.middlewares.goal_keeper.STORE_RETRY_SECONDS", 0.01)

    async def work() -> None:
        thread, ended = FakeThread({"requests": 3}), list[str]()
        thread.counts = {"reserved": 2}
        thread.gate.set()
        keeper = GoalKeeper({"requests": 3})
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        several = [asyncio.ensure_future(outcome(keeper)) for _ in range(3)]
        while len(thread.asked) < 3:
            await asyncio.wait(several, timeout=0.01)
        assert (sum(one.done() for one in several), ended) == (1, [])
        thread.counts = {"reserved": 0, "requests": 2}  # one was used, and one is free
        assert sorted(await asyncio.gather(*several)) == [False, True, True]
        assert ended == ["requests"]

    run(work())


def test_a_store_that_is_away_is_waited_for_and_a_process_that_ends_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scrapyd_dist.middlewares.goal_keeper.STORE_RETRY_SECONDS", 0.01)

    async def work() -> None:
        thread = FakeThread({"requests": 2}, fails=2)
        keeper = GoalKeeper({"requests": 2})
        thread.gate.set()
        keeper.open(thread, "c", lambda _: None)  # type: ignore[arg-type]  # a fake
        assert await outcome(keeper)
        thread.fails = 10**6
        thread.failed.clear()
        waits = asyncio.ensure_future(outcome(keeper))
        await asyncio.wait_for(thread.failed.wait(), 10)
        keeper.stop()
        assert not await waits
        await keeper.close()

    run(work())


def test_a_fault_of_ours_lets_no_request_wait_for_ever() -> None:
    async def work() -> None:
        thread, ended = FakeThread({}), list[str]()
        thread.gate.set()
        keeper = GoalKeeper({"requests": 2})
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        thread.counts = None  # type: ignore[assignment]  # which cannot be added to
        assert not await asyncio.wait_for(outcome(keeper), 10)
        keeper.count("items")
        assert not await outcome(keeper)
        assert ended == [""], "its process ends, and what was not made waits"
        await keeper.close()

    run(work())


@pytest.mark.parametrize("fails", [0, 10**6], ids=["what is reserved", "the store"])
def test_a_spider_that_closes_does_not_wait(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, when no component is told before the last request has ended."""
    monkeypatch.setattr("scrapyd_dist.middlewares.goal_keeper.STORE_RETRY_SECONDS", 0.01)

    async def work() -> None:
        thread, ended, crawler = (
            FakeThread({"requests": 1}, fails),
            list[str](),
            get_crawler(Spider),
        )
        slot = SimpleNamespace(closing=None)
        crawler.engine = SimpleNamespace(_slot=slot)  # type: ignore[assignment]  # a fake
        keeper = GoalKeeper({"requests": 1})
        keeper.put_in(crawler)
        thread.counts = {"reserved": 1}
        thread.gate.set()
        keeper.open(thread, "c", ended.append)  # type: ignore[arg-type]  # a fake
        waits = asyncio.ensure_future(outcome(keeper))
        while len(thread.asked) < 2:
            await asyncio.wait([waits], timeout=0.01)
        slot.closing = True
        assert (await asyncio.wait_for(waits, 5), ended) == (False, [])

    run(work())


def test_a_job_without_the_store_keeps_to_what_was_left() -> None:
    async def work() -> None:
        ended = list[str]()
        keeper = GoalKeeper({"requests": 100})
        keeper.open_alone({"requests": 3}, ended.append)
        assert [await outcome(keeper) for _ in range(4)] == [True, True, True, False]
        assert ended == ["requests"]

    run(work())


def test_a_request_that_is_put_off_is_neither_done_nor_failed() -> None:
    ledger = work_unit.RequestLedger(["http://web/0", "http://web/1", "http://web/2"])
    ledger.done(0)
    ledger.item(0)
    ledger.put_off(0)  # what followed from it was not made
    ledger.done(0)
    ledger.done(1)
    ledger.rest = work_unit.REST_PUT_OFF
    report = ledger.close()
    assert (report["done"], report["missed"], report["errors"]) == (1, 0, 0)
    assert [row["url"] for row in report["put-off"]] == ["http://web/0", "http://web/2"]
    assert report["missed_requests"] == [[0, "put-off", [[0, 1]]], [2, "put-off", []]]


@pytest.mark.parametrize(
    ("asked", "came", "counts"),
    [
        ("/item/1", "/login", 1),
        ("/item/1", "/users/sign_in?next=/item/1", 1),
        ("/item/1", "/account/Log-In.aspx", 1),
        ("/item/1", "/item/one", 0),
        ("/item/1", "/blogging/login-tips", 0),
        ("/login", "/login/", 0),  # what was asked for has come
        ("", "/login", 0),
    ],
)
def test_a_page_that_is_the_login_in_its_place_is_counted(
    asked: str, came: str, counts: int
) -> None:
    meta = {"redirect_urls": [f"http://web{asked}"]} if asked else {}
    request = Request(f"http://web{came}", meta=meta)
    ledger = work_unit.RequestLedger(["http://web/item/1"])
    ledger.page(0, Response(request.url, request=request))
    assert ledger.close()["logins"] == counts
