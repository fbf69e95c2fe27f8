"""A pulling worker whose store goes away: it waits as long as a lease lasts, and no longer."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.pullers import values_of
from rig.redis import RedisServer
from rig.waiting import wait_for

pytestmark = pytest.mark.black_box


def test_a_store_that_comes_back_in_time_was_never_away(
    project: Any, site: Any, frontier: Any, start_scrapy: Any, tmp_path: Path
) -> None:
    """H19: what is under way goes on, and nothing is lost or doubled."""
    shop = site(120, "--latency=0.2")
    with closing(RedisServer(tmp_path / "redis", password=None)) as server:
        place = project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": 8})
        queue = frontier(place, where=server.url)
        queue.add(values_of(map(shop.detail, range(120)), callback="parse_article"))
        worker = start_scrapy(place, *queue.arguments(1, lease=30.0))
        wait_for(lambda: queue.acked() >= 2, 30, "two acked batches")
        server.kill()
        before = sum(shop.item_hits().values())
        wait_for(lambda: sum(shop.item_hits().values()) >= before + 5, 20, "pages that are fetched without the store")
        server.start()
        wait_for(lambda: queue.accept() or queue.states() == {"done": 12}, 60, "the end")
        assert worker.wait(30).code == 0
        assert shop.differences(queue.items) == {}
        assert queue.report(1).finish_reason == "finished"
        assert set(shop.item_hits().values()) == {1}


def test_a_worker_without_its_store_ends_and_says_so(
    project: Any, site: Any, frontier: Any, start_scrapy: Any, tmp_path: Path
) -> None:
    """It makes no more requests than it had, and what it had is somebody else's."""
    shop = site(400, "--latency=0.3")
    with closing(RedisServer(tmp_path / "redis", password=None)) as server:
        place = project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": 2})
        queue = frontier(place, where=server.url)
        queue.add(values_of(map(shop.detail, range(400)), callback="parse_article"), size=100)
        worker = start_scrapy(place, *queue.arguments(1, lease=3.0))
        wait_for(lambda: sum(shop.item_hits().values()) >= 5, 30, "the first pages")
        server.kill()
        assert worker.wait(60).code == 0
        report = queue.report(1)
        assert report.finish_reason == "store-lost"
        assert "The store was lost" in report.problem
        assert queue.said(1)["batches"]["held"] == 0
        assert sum(shop.item_hits().values()) < 100
        assert [path.suffix for path in queue.folder.iterdir()] == [".json"]
        server.start()
        assert queue.acked() == 0
