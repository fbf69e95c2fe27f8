"""Whose pages are counted together, and how many there may be."""

import json
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.codec import PagesUsedUp
from scrapyd_dist.middlewares.throttle.charges import META, PageBudget
from scrapyd_dist.middlewares.throttle.gate import Gate
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions
from scrapyd_dist.middlewares.worker.request_ledger import judge
from twisted.python.failure import Failure


def budget(settings: dict[str, Any] | None = None, most: int | None = None) -> PageBudget:
    options = ThrottleOptions(on=True, max_pages=most)
    return PageBudget(options, get_crawler(Spider, {"DISTRIBUTED_ENABLED": False, **(settings or {})}))


def pages(most: int | None, said: Any) -> int | None:
    return budget(most=most).pages_of(Request("http://shop.example/", meta={META: said}))


@pytest.mark.parametrize(
    ("most", "said", "pages_"),
    [(None, None, None), (None, 0, None), (None, 5, 5), (9, None, 9), (9, 0, 9), (9, 5, 5), (9, 50, 9)],
)
def test_of_two_budgets_the_smaller_holds(most: int | None, said: int | None, pages_: int | None) -> None:
    assert pages(most, said) == pages_


def test_a_budget_that_is_no_number_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = budget(most=9)
    for said in ("5", -1, 2.5):
        assert asked.pages_of(Request("http://shop.example/", meta={META: said})) == 9
    (line,) = [record.getMessage() for record in caplog.records]
    assert "'5'" in line
    assert META in line


PULL = {"crawl": "shop", "worker": 3, "home": "shop.1a2b3c4d", "node": "n"}
PUSH = {"crawl": "shop", "batch": 3, "attempt": 1, "home": "shop.1a2b3c4d"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"DISTRIBUTED_PULL": json.dumps(PULL), "DISTRIBUTED_CRAWL": "other"}, "shop.1a2b3c4d"),
        ({"DISTRIBUTED_START_URLS": "[]", "DISTRIBUTED_JOB": json.dumps(PUSH)}, "shop.1a2b3c4d"),
        ({"DISTRIBUTED_FRONTIER": "shop", "DISTRIBUTED_ENABLED": True}, "shop"),
        ({"DISTRIBUTED_CRAWL": "shop"}, "shop"),
        ({"DISTRIBUTED_START_URLS": "[]", "DISTRIBUTED_CRAWL": "shop"}, "shop"),
    ],
)
def test_all_processes_of_a_crawl_share_its_budget_and_no_other_crawl_of_that_name(
    settings: dict[str, Any], name: str
) -> None:
    assert budget(settings).name == name


def test_a_producer_counts_with_its_workers() -> None:
    crawler = get_crawler(Spider, {"DISTRIBUTED_ENABLED": True, "DISTRIBUTED_CRAWL": "shop"})
    gate = Gate(crawler, ThrottleOptions(on=True, max_pages=5))
    gate.charge_pages_to("shop.1a2b3c4d")
    assert gate._budget.name == "shop.1a2b3c4d"


def test_a_process_without_a_crawl_has_its_own() -> None:
    mine, yours = budget(), budget()
    assert mine.name == mine.name
    assert mine.name != yours.name


def test_a_page_that_was_not_wanted_is_no_failure() -> None:
    failure = Failure(PagesUsedUp("shop.example", 5))  # type: ignore[no-untyped-call]  # Twisted has no types
    assert judge(failure) == (
        "gone", "the budget of 5 pages of shop.example is used up",
    )  # fmt: skip
