"""What a request is charged to: its crawl's budget of pages, and the address from which it leaves."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.throttle.gate import Gate
from scrapyd_dist.middlewares.throttle.install import charge_pages_to
from scrapyd_dist.middlewares.throttle.throttle_options import (
    ADDRESSES,
    META,
    UNKNOWN,
    Egress,
    PageBudget,
    ThrottleOptions,
    address_in,
)


def budget(settings: dict[str, Any] | None = None, most: int | None = None) -> PageBudget:
    options = ThrottleOptions(on=True, max_pages=most)
    return PageBudget(options, get_crawler(Spider, {"DISTRIBUTED_ENABLED": False, **(settings or {})}))


@pytest.mark.parametrize(
    ("most", "said", "pages_"),
    [(None, None, None), (None, 0, None), (None, 5, 5), (9, None, 9), (9, 0, 9), (9, 5, 5), (9, 50, 9)],
)
def test_of_two_budgets_the_smaller_holds(most: int | None, said: int | None, pages_: int | None) -> None:
    assert budget(most=most).pages_of(Request("http://shop.example/", meta={META: said})) == pages_


def test_a_budget_that_is_no_number_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = budget(most=9)
    for said in ("5", -1, 2.5):
        assert asked.pages_of(Request("http://shop.example/", meta={META: said})) == 9
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"'5' as its {META}" in line


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
    crawler = get_crawler(Spider, {"DISTRIBUTED_CRAWL": "shop", "DISTRIBUTED_THROTTLE_MAX_PAGES": 5})
    charge_pages_to(crawler, "shop.1a2b3c4d")
    assert Gate.of(crawler).budget.name == "shop.1a2b3c4d"


def test_a_process_without_a_crawl_has_its_own() -> None:
    mine, yours = budget(), budget()
    assert mine.name == mine.name
    assert mine.name != yours.name


#: seconds that no test should take
LONG = 20.0
URL = "http://ip.example/raw"


def egress(
    fetch: Callable[[str], str] | None = None, *, bind: Any = None, refresh: float = 60.0, **options: Any
) -> Egress:
    settings = {"DOWNLOAD_BIND_ADDRESS": bind} if bind else {}
    wanted = ThrottleOptions(on=True, public_ip_refresh=refresh, **{"per_ip": True, **options})
    return Egress(wanted, get_crawler(Spider, settings), fetch)


def of(found: Egress, **meta: Any) -> str:
    return found.own(Request("http://shop.example/", meta=meta)) or found.machine


PUBLIC = "203.0.113.7"


@pytest.mark.parametrize(
    ("bind", "meta", "address"),
    [
        (None, {"bindaddress": "127.0.0.2"}, "127.0.0.2"),
        (None, {"bindaddress": ("127.0.0.2", 0)}, "127.0.0.2"),
        ("127.0.0.2", {}, "127.0.0.2"),
        (("127.0.0.2", 0), {}, "127.0.0.2"),
        ("127.0.0.2", {"bindaddress": "::0:1"}, "::1"),
        (None, {"proxy": "http://user:secret@Proxy.Example:8080", "bindaddress": "127.0.0.2"}, "proxy.example"),
        (None, {"proxy": "10.0.0.1:3128"}, "10.0.0.1"),
        (None, {"proxy": "http://[::0:2]:3128"}, "::2"),
        # What the environment names is the way of the page that tells the address, too.
        (None, {"proxy": "http://10.0.0.1:3128", "_scheme_proxy": True}, PUBLIC),
        (None, {}, PUBLIC),
    ],
)
def test_a_site_sees_the_proxy_or_what_a_request_is_bound_to_or_the_process(
    bind: Any, meta: dict[str, Any], address: str
) -> None:
    assert of(egress(bind=bind, public_ip=PUBLIC), **meta) == address


def test_what_is_a_requests_own_is_told_apart_from_what_all_others_share() -> None:
    request = Request("http://shop.example/", meta={"bindaddress": ("127.0.0.2", 0)})
    found = egress(public_ip=PUBLIC)
    assert found.settled.is_set()
    assert (found.own(request), found.machine, found.own(request.replace(meta={}))) == ("127.0.0.2", PUBLIC, "")
    assert egress().machine == UNKNOWN
    assert egress(per_ip=False).own(request) == ""


def test_a_page_is_asked_without_waiting_and_again_when_it_is_time() -> None:
    asked, answers = threading.Semaphore(0), ["your address is 203.0.113.7\n", "", "203.0.113.8"]
    go_on = threading.Semaphore(0)

    def fetch(url: str) -> str:
        assert url == URL
        asked.release()
        assert go_on.acquire(timeout=LONG)
        answer = answers.pop(0)
        if not answer:
            raise OSError("down")
        return answer

    found = egress(fetch, public_ip=URL, refresh=0.01)
    assert asked.acquire(timeout=LONG)
    assert (of(found), found.settled.is_set()) == (UNKNOWN, False)
    go_on.release()
    assert found.settled.wait(LONG)
    assert of(found) == "203.0.113.7"
    go_on.release()  # it does not answer: the last known address holds
    assert asked.acquire(timeout=LONG)
    assert asked.acquire(timeout=LONG)
    assert of(found) == "203.0.113.7"
    found.close()
    go_on.release()
    for one in threading.enumerate():
        if one.name == "sdist-public-ip":
            one.join(LONG)
            assert not one.is_alive()
    assert of(found) == "203.0.113.8"


@pytest.mark.parametrize("answer", [OSError("down"), "a login page", ValueError("no page")])
def test_while_no_address_is_known_the_crawl_goes_on_under_a_name_that_all_share(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch(url: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    found = egress(fetch, public_ip=URL + "?key=secret")
    assert found.settled.wait(LONG)
    assert of(found) == UNKNOWN
    (line,) = [record.getMessage() for record in caplog.records]
    assert [word in line for word in ("ip.example", "unknown", "secret")] == [True, True, False]
    found.close()


@pytest.mark.parametrize(
    ("text", "pattern", "address"),
    [
        ("203.0.113.7", ADDRESSES, "203.0.113.7"),
        ('{"cafe": "abc", "ip": "2001:DB8::7"}', ADDRESSES, "2001:db8::7"),
        ("<b>999.1.1.1</b> 10.0.0.1", ADDRESSES, "10.0.0.1"),
        ("from 10.0.0.1 you are 203.0.113.7", r"you are (\S+)", "203.0.113.7"),
        ("nobody", ADDRESSES, ""),
        ("ip: none", r"ip: (\d+)?", ""),
    ],
)
def test_the_first_match_that_is_an_address_counts(text: str, pattern: str, address: str) -> None:
    assert address_in(text, pattern) == address
