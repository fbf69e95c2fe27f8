"""One limit in four styles, over spiders and addresses; and budgets of pages, over all workers of a crawl."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from rig.fixtures import StartCommand
from rig.pullers import CRAWL, Frontier, values_of
from rig.throttled import SPIDERS, Throttled
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

#: requests of each style in the only window that there is
HITS = 3
#: host, the settings of its style, and what is counted apart at it
STYLES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("127.0.1.1", {}, ()),
    ("127.0.1.2", {"DISTRIBUTED_THROTTLE_PER_SPIDER": True}, ("spider",)),
    ("127.0.1.3", {"DISTRIBUTED_THROTTLE_PER_IP": True}, ("address",)),
    ("127.0.1.4", {"SCHEDULER_TYPE_ENABLED": True, "SCHEDULER_IP_ENABLED": True}, ("spider", "address")),
]
ADDRESSES = "127.0.0.2,127.0.0.3"
#: nobody listens there
NO_SERVICE = "http://127.0.0.1:9/raw"


def test_two_spiders_on_two_addresses_have_one_two_two_or_four_limits(
    project: Any, site: Any, start_scrapy: StartCommand
) -> None:
    """C6, C7: and two processes that cannot learn their address crawl, and share one limit."""
    limit = {
        "DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": 3600,
        "DISTRIBUTED_THROTTLE_MODERATED": False,
    }  # fmt: skip
    crawls = Throttled(project(spiders={"pages": SPIDERS}), site(20, "--host=0.0.0.0"), start_scrapy, limit)
    running = [
        crawls.crawl(host, 0, 10, spider=spider, addresses=ADDRESSES, **style)
        for host, style, _ in STYLES
        for spider in ("pages", "others")
    ]
    unknown: dict[str, Any] = {"DISTRIBUTED_THROTTLE_PER_IP": True, "DISTRIBUTED_THROTTLE_PUBLIC_IP": NO_SERVICE}
    nameless = [crawls.crawl("127.0.1.5", 0, 10, **unknown) for _ in range(2)]
    expected = {host: [HITS] * 2 ** len(apart) for host, _, apart in STYLES} | {"127.0.1.5": [HITS]}

    def came() -> dict[str, list[int]]:
        counts = {
            host: Counter(tuple(_part(row, what) for what in apart) for row in crawls.hits(host))
            for host, _, apart in [*STYLES, ("127.0.1.5", {}, ())]
        }
        return {host: list(count.values()) for host, count in counts.items()}

    # All further requests wait for the next window, an hour from now.
    def allowed() -> bool:
        assert came() == expected
        return True

    wait_for(allowed, 90, "the hits that the limits allow")
    for command in [*running, *nameless]:
        command.signal()
        assert command.wait(90).code == 0
        assert "log_count/ERROR" not in command.err
    assert came() == expected
    assert all("127.0.0.1 does not tell the address" in command.err for command in nameless)


def _part(row: dict[str, Any], what: str) -> str:
    return str(row["target"].rpartition("=")[2] if what == "spider" else row["address"])


def test_a_budget_of_pages_is_exact_over_all_workers_of_a_crawl(
    project: Any, site: Any, frontier: Callable[..., Frontier], start_scrapy: StartCommand
) -> None:
    """C13: eight workers lease 240 pages, 100 may be made; the others are listed, with the reason."""
    shop = site(240)
    place = project(spiders={"pages": SPIDERS}, settings={"DISTRIBUTED_THROTTLE_MAX_PAGES": 100})
    pages = frontier(place, "pages")
    pages.add(values_of(shop.detail(number) for number in range(240)), size=10)
    workers = [start_scrapy(place, *pages.arguments(number)) for number in range(1, 9)]

    def over() -> bool:
        pages.accept()
        return pages.states() == {"done": 24}

    wait_for(over, 90, "the end of all batches")
    for worker in workers:
        assert worker.wait(60).code == 0
    assert len(shop.item_hits()) == sum(shop.hits().values()) == len(pages.items) == 100
    missed = pages.store.misses(CRAWL)
    assert len(missed) == 140
    assert {(miss.kind, miss.reason) for miss in missed} == {
        ("gone", "the budget of 100 pages of 127.0.0.1 is used up")
    }
