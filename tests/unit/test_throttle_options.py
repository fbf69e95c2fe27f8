"""The settings of the throttle, how it comes into a Scrapy process, what it refuses, and what a request is charged to.

Scrapy Cluster's settings are taken where ours are not given; charges are to a budget of pages, and to an address.
"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.throttle.gate import Gate
from scrapyd_dist.middlewares.throttle.install import (
    AWARE,
    PLAIN,
    charge_pages_to,
    install_throttle,
    why_not_heeded,
)
from scrapyd_dist.middlewares.throttle.queue import HeedingQueue, ThrottledQueue
from scrapyd_dist.middlewares.throttle.site_feedback import PERMIT_ORDER, PermitMiddleware
from scrapyd_dist.middlewares.throttle.throttle_client import open_for
from scrapyd_dist.middlewares.throttle.throttle_options import (
    ADDRESSES,
    META,
    UNKNOWN,
    Egress,
    PageBudget,
    ThrottleOptions,
    address_in,
    options_of,
)

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.payload import START_URLS
from scrapyd_dist.throttle.permits import Limit


def options(values: dict[str, Any] | None = None, **ours: Any) -> ThrottleOptions:
    said = {f"DISTRIBUTED_THROTTLE_{name}": value for name, value in ours.items()}
    return ThrottleOptions.from_settings(Settings({**said, **(values or {})}))


def test_the_rules_of_the_store_are_heeded_without_settings_and_with_the_switch_alone_and_nothing_is_with_a_no() -> (
    None
):
    assert options() == ThrottleOptions(heeds=True)
    assert options({"DISTRIBUTED_THROTTLE": "1"}) == ThrottleOptions(on=True)
    assert not options({"DISTRIBUTED_THROTTLE": "1"}, MODERATED=False).moderated
    for said in (False, "False", "0", 0):
        assert options({"DISTRIBUTED_THROTTLE": said}) == ThrottleOptions()


@pytest.mark.parametrize("asks", [{"HITS": 5}, {"MAX_PAGES": "9"}, {"CONCURRENCY": 0.5}])
def test_a_limit_switches_it_on_unless_the_switch_is_off(asks: dict[str, Any]) -> None:
    assert options(**asks).on
    assert options({"DISTRIBUTED_THROTTLE": False}, **asks) == ThrottleOptions()


def test_values_of_the_command_line_are_read_like_those_of_a_file() -> None:
    as_text = options(
        HITS="5", WINDOW="2.5", MODERATED="0", PER_SPIDER="1", PER_IP="True", PUBLIC_IP="2001:DB8:0::1",
        PUBLIC_IP_REFRESH="9", MAX_PAGES="7", CONCURRENCY="1.5", LONGEST_DELAY="30",
    )  # fmt: skip
    as_values = options(
        HITS=5, WINDOW=2.5, MODERATED=False, PER_SPIDER=True, PER_IP=True, PUBLIC_IP="2001:db8::1",
        PUBLIC_IP_REFRESH=9, MAX_PAGES=7, CONCURRENCY=1.5, LONGEST_DELAY=30.0,
    )  # fmt: skip
    assert as_text == as_values
    assert as_text.limit == Limit(hits=5, window=2.5, moderated=False)
    assert (as_text.public_ip, as_text.max_pages, as_text.concurrency) == ("2001:db8::1", 7, 1.5)


THEIRS = {
    "QUEUE_HITS": 10, "QUEUE_WINDOW": 60, "QUEUE_MODERATED": False, "SCHEDULER_TYPE_ENABLED": True,
    "SCHEDULER_IP_ENABLED": True, "PUBLIC_IP_URL": "http://ip.example/raw", "IP_ADDR_REGEX": r"(\d+\.\d+)",
    "SCHEDULER_IP_REFRESH": 30, "GLOBAL_PAGE_PER_DOMAIN_LIMIT": 100,
}  # fmt: skip


def test_scrapy_clusters_settings_work_as_they_are_once_it_is_on_and_ours_go_before_theirs_one_by_one() -> (
    None
):
    assert options({"DISTRIBUTED_THROTTLE": True, **THEIRS}) == ThrottleOptions(
        on=True, limit=Limit(hits=10, window=60.0, moderated=False), moderated=False, per_spider=True, per_ip=True,
        public_ip="http://ip.example/raw", public_ip_regex=r"(\d+\.\d+)", public_ip_refresh=30.0, max_pages=100,
    )  # fmt: skip
    assert not options(THEIRS).on
    found = options(THEIRS, HITS=3, PER_SPIDER=False, MAX_PAGES="")
    assert (found.limit, found.per_spider, found.max_pages) == (
        Limit(hits=3, window=60.0, moderated=False),
        False,
        100,
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"DISTRIBUTED_THROTTLE": "perhaps"}, "DISTRIBUTED_THROTTLE is 'perhaps', and must be True or False"),
    ({"DISTRIBUTED_THROTTLE_HITS": 0}, "DISTRIBUTED_THROTTLE_HITS is 0, and must be 1 or more"),
    ({"DISTRIBUTED_THROTTLE_HITS": 2.5}, "whole number"),
    ({"QUEUE_HITS": "many"}, "QUEUE_HITS is 'many', and must be a whole number"),
    ({"DISTRIBUTED_THROTTLE_WINDOW": 5}, "WINDOW is given without DISTRIBUTED_THROTTLE_HITS"),
    ({"QUEUE_HITS": 5, "QUEUE_WINDOW": 0}, "QUEUE_WINDOW is 0, and must be more than 0 seconds"),
    ({"QUEUE_HITS": 5, "QUEUE_WINDOW": "inf"}, "number of seconds"),
    ({"QUEUE_HITS": 5, "QUEUE_WINDOW": 1e9}, "31 days"),
    ({"QUEUE_HITS": 5, "QUEUE_MODERATED": "x"}, "QUEUE_MODERATED is 'x'"),
    ({"SCHEDULER_TYPE_ENABLED": "x"}, "SCHEDULER_TYPE_ENABLED"),
    ({"DISTRIBUTED_THROTTLE_PUBLIC_IP": "ftp://ip.example"}, "must be an address"),
    ({"PUBLIC_IP_URL": "ip.example"}, "PUBLIC_IP_URL must be an address"),
    ({"DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX": "("}, "PUBLIC_IP_REGEX is no regular expression"),
    ({"SCHEDULER_IP_REFRESH": -1}, "SCHEDULER_IP_REFRESH"),
    ({"DISTRIBUTED_THROTTLE_MAX_PAGES": -1}, "MAX_PAGES is -1"),
    ({"DISTRIBUTED_THROTTLE_CONCURRENCY": 0}, "CONCURRENCY is 0, and must be more than 0"),
    ({"DISTRIBUTED_THROTTLE_CONCURRENCY": "inf"}, "CONCURRENCY"),
    ({"DISTRIBUTED_THROTTLE_LONGEST_DELAY": "long"}, "LONGEST_DELAY is 'long'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_told_with_its_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        options({"DISTRIBUTED_THROTTLE": True, **values})


QUEUE = "SCHEDULER_PRIORITY_QUEUE"
JOB = '{"crawl": "c", "batch": 1, "attempt": 1}'


def installed(**values: Any) -> Settings:
    made = Settings(
        {"TWISTED_REACTOR_ENABLED": False, "DISTRIBUTED_THROTTLE": True, **values},
        priority="project",
    )
    install_throttle(made)
    return made


def test_it_is_the_queue_and_the_middleware_next_to_the_downloader() -> None:
    assert Settings()[QUEUE] in (AWARE, PLAIN), (
        "in this Scrapy it cannot take the place of the usual queue"
    )
    made = installed()
    assert made[QUEUE] is ThrottledQueue
    orders: dict[Any, int] = dict(
        made.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES")
    )
    assert orders[PermitMiddleware] == PERMIT_ORDER == max(orders.values())
    install_throttle(made)
    assert made[QUEUE] is ThrottledQueue
    off = installed(DISTRIBUTED_THROTTLE=False)
    assert (off[QUEUE], options_of(off).on) == (Settings()[QUEUE], False)
    assert not off["DOWNLOADER_MIDDLEWARES"]
    unsaid = installed(
        DISTRIBUTED_THROTTLE=None
    )  # Scrapy's own queue is there until there is a rule
    assert (options_of(unsaid).on, unsaid[QUEUE], why_not_heeded(unsaid)) == (
        False,
        HeedingQueue,
        "",
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"DISTRIBUTED_THROTTLE_HITS": "many"}, "DISTRIBUTED_THROTTLE_HITS is 'many'"),
        ({QUEUE: ScrapyPriorityQueue}, QUEUE),
        ({"CONCURRENT_REQUESTS_PER_IP": "2"}, "CONCURRENT_REQUESTS_PER_IP"),
        ({"DISTRIBUTED_STORE": "cassandra://there"}, "cassandra"),
        (
            {},
            "Nothing says where the store of the throttle is",
        ),  # one of its own would be a limit of its own
        ({START_URLS: "", "DISTRIBUTED_JOB": JOB}, "its job was told of no store"),
    ],
)
def test_what_it_cannot_do_is_one_sentence_and_does_not_turn_it_off(
    values: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SDIST_STORE", raising=False)
    crawler: Any = SimpleNamespace(settings=installed(**values))
    store, why = open_for(crawler)
    assert (store, options_of(crawler.settings).on, list(tmp_path.iterdir())) == (None, True, [])
    assert named in why


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"DISTRIBUTED_THROTTLE": False}, "DISTRIBUTED_THROTTLE is False"),
        (
            {"DISTRIBUTED_THROTTLE": None, QUEUE: "queuelib.PriorityQueue"},
            "SCHEDULER_PRIORITY_QUEUE is queuelib",
        ),
        (
            {"DISTRIBUTED_THROTTLE": None, "CONCURRENT_REQUESTS_PER_IP": 2},
            "CONCURRENT_REQUESTS_PER_IP",
        ),
    ],
)
def test_what_keeps_a_crawl_from_heeding_rules_is_named(values: dict[str, Any], named: str) -> None:
    made = installed(**values)
    assert named in why_not_heeded(made)
    assert made[QUEUE] == values.get(QUEUE, Settings()[QUEUE])


def budget(settings: dict[str, Any] | None = None, most: int | None = None) -> PageBudget:
    options = ThrottleOptions(on=True, max_pages=most)
    return PageBudget(
        options, get_crawler(Spider, {"DISTRIBUTED_ENABLED": False, **(settings or {})})
    )


@pytest.mark.parametrize(
    ("most", "said", "pages_"),
    [
        (None, None, None),
        (None, 0, None),
        (None, 5, 5),
        (9, None, 9),
        (9, 0, 9),
        (9, 5, 5),
        (9, 50, 9),
    ],
)
def test_of_two_budgets_the_smaller_holds(
    most: int | None, said: int | None, pages_: int | None
) -> None:
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


def test_a_producer_counts_with_its_workers_and_a_process_without_a_crawl_has_its_own_budget() -> (
    None
):
    crawler = get_crawler(
        Spider, {"DISTRIBUTED_CRAWL": "shop", "DISTRIBUTED_THROTTLE_MAX_PAGES": 5}
    )
    charge_pages_to(crawler, "shop.1a2b3c4d")
    assert Gate.for_crawler(crawler).budget.name == "shop.1a2b3c4d"
    mine, yours = budget(), budget()
    assert mine.name == mine.name
    assert mine.name != yours.name


#: seconds that no test should take
LONG = 20.0
URL = "http://ip.example/raw"


def egress(
    fetch: Callable[[str], str] | None = None,
    *,
    bind: Any = None,
    refresh: float = 60.0,
    **options: Any,
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
        (
            None,
            {"proxy": "http://user:secret@Proxy.Example:8080", "bindaddress": "127.0.0.2"},
            "proxy.example",
        ),
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
    assert (found.own(request), found.machine, found.own(request.replace(meta={}))) == (
        "127.0.0.2",
        PUBLIC,
        "",
    )
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
