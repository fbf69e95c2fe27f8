"""How the throttle comes into a Scrapy process, and what it refuses."""

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
from scrapyd_dist.middlewares.throttle.throttle_options import options_of

from scrapyd_dist.payload import START_URLS

QUEUE = "SCHEDULER_PRIORITY_QUEUE"
JOB = '{"crawl": "c", "batch": 1, "attempt": 1}'


def settings(**values: Any) -> Settings:
    made = Settings({"TWISTED_REACTOR_ENABLED": False, "DISTRIBUTED_THROTTLE": True, **values}, priority="project")
    put_in(made)
    return made


def test_the_usual_queue_is_one_whose_place_it_can_take() -> None:
    """So it is in each Scrapy that is supported."""
    assert Settings()[QUEUE] in (AWARE, PLAIN)


def test_it_is_the_queue_and_the_middleware_next_to_the_downloader() -> None:
    made = settings()
    assert made[QUEUE] is ThrottledQueue
    orders: dict[Any, int] = dict(made.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES"))
    assert orders[PermitMiddleware] == PERMIT_ORDER == max(orders.values())
    put_in(made)
    assert made[QUEUE] is ThrottledQueue
    off = settings(DISTRIBUTED_THROTTLE=False)
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
        (
            {START_URLS: "", "DISTRIBUTED_JOB": '{"crawl": "c", "batch": 1, "attempt": 1}'},
            "its job was told of no store",
        ),
    ],
)
def test_what_it_cannot_do_is_one_sentence_and_does_not_turn_it_off(
    values: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SDIST_STORE", raising=False)
    crawler: Any = SimpleNamespace(settings=settings(**values))
    store, why = open_for(crawler)
    assert store is None
    assert named in why
    assert options_of(crawler.settings).on
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_said_scrapys_own_queue_is_there_until_there_is_a_rule() -> None:
    made = settings(DISTRIBUTED_THROTTLE=None)
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
    made = settings(**values)
    assert named in why_not_heeded(made)
    assert made[QUEUE] == values.get(QUEUE, Settings()[QUEUE])
