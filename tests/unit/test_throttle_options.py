"""The settings of the throttle, checked at one door; how it comes into a Scrapy process, and what it refuses.

Scrapy Cluster's settings are taken where ours are not given.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.settings import Settings
from scrapyd_dist.middlewares.throttle.install import AWARE, PLAIN, put_in, why_not_heeded
from scrapyd_dist.middlewares.throttle.queue import HeedingQueue, ThrottledQueue
from scrapyd_dist.middlewares.throttle.site_feedback import PERMIT_ORDER, PermitMiddleware
from scrapyd_dist.middlewares.throttle.throttle_client import open_for
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions, options_of

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.payload import START_URLS
from scrapyd_dist.throttle.permits import Limit


def options(values: dict[str, Any] | None = None, **ours: Any) -> ThrottleOptions:
    said = {f"DISTRIBUTED_THROTTLE_{name}": value for name, value in ours.items()}
    return ThrottleOptions.from_settings(Settings({**said, **(values or {})}))


@pytest.mark.parametrize("said", [False, "False", "0", 0])
def test_without_settings_the_rules_of_the_store_are_heeded_and_with_a_no_nothing_is(said: object) -> None:
    assert options() == ThrottleOptions(heeds=True)
    assert options({"DISTRIBUTED_THROTTLE": said}) == ThrottleOptions()


@pytest.mark.parametrize("asks", [{"HITS": 5}, {"MAX_PAGES": "9"}, {"CONCURRENCY": 0.5}])
def test_a_limit_switches_it_on_unless_somebody_says_otherwise(asks: dict[str, Any]) -> None:
    assert options(**asks).on
    assert options({"DISTRIBUTED_THROTTLE": False}, **asks) == ThrottleOptions()


def test_with_the_switch_alone_the_rules_of_the_store_are_heeded() -> None:
    assert options({"DISTRIBUTED_THROTTLE": "1"}) == ThrottleOptions(on=True)
    assert not options({"DISTRIBUTED_THROTTLE": "1"}, MODERATED=False).moderated


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


def test_scrapy_clusters_settings_work_as_they_are_once_it_is_on() -> None:
    assert options({"DISTRIBUTED_THROTTLE": True, **THEIRS}) == ThrottleOptions(
        on=True, limit=Limit(hits=10, window=60.0, moderated=False), moderated=False, per_spider=True, per_ip=True,
        public_ip="http://ip.example/raw", public_ip_regex=r"(\d+\.\d+)", public_ip_refresh=30.0, max_pages=100,
    )  # fmt: skip
    assert not options(THEIRS).on


def test_ours_go_before_theirs_one_by_one() -> None:
    found = options(THEIRS, HITS=3, PER_SPIDER=False, MAX_PAGES="")
    assert (found.limit, found.per_spider, found.max_pages) == (Limit(hits=3, window=60.0, moderated=False), False, 100)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"DISTRIBUTED_THROTTLE": "perhaps"}, "DISTRIBUTED_THROTTLE is 'perhaps', and must be True or False"),
    ({"DISTRIBUTED_THROTTLE_HITS": 0}, "DISTRIBUTED_THROTTLE_HITS is 0, and must be 1 or more"),
    ({"DISTRIBUTED_THROTTLE_HITS": 2.5}, "whole number"),
    ({"QUEUE_HITS": "many"}, "QUEUE_HITS is 'many', and must be a whole number"),
    ({"DISTRIBUTED_THROTTLE_WINDOW": 5}, "WINDOW is given without DISTRIBUTED_THROTTLE_HITS"),
    ({"QUEUE_HITS": 5, "QUEUE_WINDOW": 0}, "QUEUE_WINDOW is 0.0, and must be more than 0 seconds"),
    ({"QUEUE_HITS": 5, "QUEUE_WINDOW": "inf"}, "31 days"),
    ({"QUEUE_HITS": 5, "QUEUE_MODERATED": "x"}, "QUEUE_MODERATED is 'x'"),
    ({"SCHEDULER_TYPE_ENABLED": "x"}, "SCHEDULER_TYPE_ENABLED"),
    ({"DISTRIBUTED_THROTTLE_PUBLIC_IP": "ftp://ip.example"}, "must be an address"),
    ({"PUBLIC_IP_URL": "ip.example"}, "PUBLIC_IP_URL must be an address"),
    ({"DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX": "("}, "PUBLIC_IP_REGEX is no regular expression"),
    ({"SCHEDULER_IP_REFRESH": -1}, "SCHEDULER_IP_REFRESH"),
    ({"DISTRIBUTED_THROTTLE_MAX_PAGES": -1}, "MAX_PAGES is -1"),
    ({"DISTRIBUTED_THROTTLE_CONCURRENCY": 0}, "CONCURRENCY is 0, and must be a number of requests, more than 0"),
    ({"DISTRIBUTED_THROTTLE_CONCURRENCY": "inf"}, "CONCURRENCY"),
    ({"DISTRIBUTED_THROTTLE_LONGEST_DELAY": "long"}, "LONGEST_DELAY is 'long'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_told_with_its_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        options({"DISTRIBUTED_THROTTLE": True, **values})


# in a process

QUEUE = "SCHEDULER_PRIORITY_QUEUE"
JOB = '{"crawl": "c", "batch": 1, "attempt": 1}'


def installed(**values: Any) -> Settings:
    made = Settings({"TWISTED_REACTOR_ENABLED": False, "DISTRIBUTED_THROTTLE": True, **values}, priority="project")
    put_in(made)
    return made


def test_the_usual_queue_is_one_whose_place_it_can_take() -> None:
    """So it is in each Scrapy that is supported."""
    assert Settings()[QUEUE] in (AWARE, PLAIN)


def test_it_is_the_queue_and_the_middleware_next_to_the_downloader() -> None:
    made = installed()
    assert made[QUEUE] is ThrottledQueue
    orders: dict[Any, int] = dict(made.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES"))
    assert orders[PermitMiddleware] == PERMIT_ORDER == max(orders.values())
    put_in(made)
    assert made[QUEUE] is ThrottledQueue
    off = installed(DISTRIBUTED_THROTTLE=False)
    assert (off[QUEUE], options_of(off).on) == (Settings()[QUEUE], False)
    assert not off["DOWNLOADER_MIDDLEWARES"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"DISTRIBUTED_THROTTLE_HITS": "many"}, "DISTRIBUTED_THROTTLE_HITS is 'many'"),
        ({QUEUE: ScrapyPriorityQueue}, QUEUE),
        ({"CONCURRENT_REQUESTS_PER_IP": "2"}, "CONCURRENT_REQUESTS_PER_IP"),
        ({"DISTRIBUTED_STORE": "cassandra://there"}, "cassandra"),
        ({}, "Nothing says where the store of the throttle is"),  # one of its own would be a limit of its own
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
    assert store is None
    assert named in why
    assert options_of(crawler.settings).on
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_said_scrapys_own_queue_is_there_until_there_is_a_rule() -> None:
    made = installed(DISTRIBUTED_THROTTLE=None)
    assert not options_of(made).on
    assert made[QUEUE] is HeedingQueue
    assert why_not_heeded(made) == ""


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"DISTRIBUTED_THROTTLE": False}, "DISTRIBUTED_THROTTLE is False"),
        ({"DISTRIBUTED_THROTTLE": None, QUEUE: "queuelib.PriorityQueue"}, "SCHEDULER_PRIORITY_QUEUE is queuelib"),
        ({"DISTRIBUTED_THROTTLE": None, "CONCURRENT_REQUESTS_PER_IP": 2}, "CONCURRENT_REQUESTS_PER_IP"),
    ],
)
def test_what_keeps_a_crawl_from_heeding_rules_is_named(values: dict[str, Any], named: str) -> None:
    made = installed(**values)
    assert named in why_not_heeded(made)
    assert made[QUEUE] == values.get(QUEUE, Settings()[QUEUE])
