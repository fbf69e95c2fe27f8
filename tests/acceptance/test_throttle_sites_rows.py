"""What a site says to one worker is heeded by all: a rest, a slower pace, a delay; and how many it can bear at once."""

from typing import Any

import pytest
from rig.fixtures import StartCommand
from rig.throttled import SPIDERS, Throttled, mean_gap
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box

#: seconds between two requests of the limit
GAP = 0.05
#: seconds after which everybody has heard the news: one look at the store is due in each; and a busy machine
HEARD = 4.0
REFUSES, DELAYS, SLOW = "127.0.2.1", "127.0.2.2", "127.0.2.3"
#: seconds that the site wants to be left alone for
REST = 8
DELAY = 0.5
LATENCY = 0.25


@pytest.fixture
def crawls(project: Any, site: Any, start_scrapy: StartCommand) -> Throttled:
    shop = site(10_000, "--host=0.0.0.0")
    shop.behave(
        {
            shop.site.detail_path(9000): f"busy:{REST}",
            "/robots.txt": f"says:User-agent: *\nCrawl-delay: {DELAY}",
            "/properties/property_0080*": f"slow:{LATENCY}",
        }
    )
    limit = {"DISTRIBUTED_THROTTLE_HITS": 20, "DISTRIBUTED_THROTTLE_WINDOW": 20 * GAP, "RETRY_ENABLED": False}
    return Throttled(project(spiders={"pages": SPIDERS}), shop, start_scrapy, limit)


def test_what_a_site_says_to_one_worker_is_heeded_by_all(crawls: Throttled) -> None:
    """B9: refusals, a Crawl-delay, and the concurrency of AutoThrottle, each at a host of its own."""
    bound: dict[str, Any] = {"DISTRIBUTED_THROTTLE_HITS": 2000, "DISTRIBUTED_THROTTLE_CONCURRENCY": 1}
    workers = [
        crawls.crawl(REFUSES, 0, 2000),
        crawls.crawl(REFUSES, 2000, 4000, spider="others"),
        crawls.crawl(DELAYS, 0, 2000),
        crawls.crawl(SLOW, 8000, 8050, **bound),
        crawls.crawl(SLOW, 8050, 8099, spider="others", **bound),
    ]
    wait_for(lambda: _spiders(crawls, REFUSES) == 2 and _spiders(crawls, DELAYS) == 1, 60, "hits of three processes")
    crawls.crawl(REFUSES, 9000, 9001).wait(60)
    crawls.crawl(DELAYS, 3000, 4000, spider="others", ROBOTSTXT_OBEY=True)

    _check_rest(crawls)
    _check_delay(crawls)
    for worker in workers[:3]:
        worker.interrupt()
    _check_concurrency(crawls)


def _spiders(crawls: Throttled, host: str) -> int:
    return len({row["target"].rpartition("=")[2] for row in crawls.hits(host)})


def _hit(crawls: Throttled, host: str, part: str) -> float:
    """When the first request with this in its target came."""
    return float(next(row["time"] for row in crawls.hits(host) if part in row["target"]))


def _check_rest(crawls: Throttled) -> None:
    """Nobody comes while the site rests, and then both do, half as often as before."""
    refused = _hit(crawls, REFUSES, "009000")
    later = wait_for(lambda: _two_after(crawls, refused + REST), 60, "both spiders after the rest")
    times = crawls.times(REFUSES)
    before = [moment for moment in times if moment <= refused]
    assert len(before) > 20
    assert [moment - refused for moment in times if refused + HEARD < moment < refused + REST] == []
    assert mean_gap(before) < GAP * 1.5
    assert mean_gap(later) > GAP * 2 * 0.9


def _two_after(crawls: Throttled, moment: float) -> list[float]:
    """The hits after a moment, once there are many of both spiders."""
    rows = [row for row in crawls.hits(REFUSES) if row["time"] >= moment]
    enough = len(rows) >= 30 and len({row["target"].rpartition("=")[2] for row in rows}) == 2
    return [row["time"] for row in rows] if enough else []


def _check_delay(crawls: Throttled) -> None:
    """One of the two has read robots.txt; the other does not even ask for it."""
    read = wait_for(lambda: _robots(crawls), 60, "a look at robots.txt")
    later = wait_for(lambda: _many([t for t in crawls.times(DELAYS) if t > read + HEARD], 6), 60, "six delayed hits")
    assert mean_gap([t for t in crawls.times(DELAYS) if t < read]) < DELAY / 2
    assert mean_gap(later) > DELAY * 0.9
    assert len([row for row in crawls.hits(DELAYS) if row["target"] == "/robots.txt"]) == 1


def _robots(crawls: Throttled) -> float | None:
    return next((row["time"] for row in crawls.hits(DELAYS) if row["target"] == "/robots.txt"), None)


def _many(times: list[float], number: int) -> list[float]:
    return times if len(times) >= number else []


def _check_concurrency(crawls: Throttled) -> None:
    """Two processes, and one request at a time: it takes as long as the site does."""
    times = wait_for(lambda: _many(crawls.times(SLOW), 60), 60, "hits of the slow pages")
    settled = [moment for moment in times if moment > times[0] + HEARD]
    assert len(settled) > 5
    assert mean_gap(settled) > LATENCY * 0.9
