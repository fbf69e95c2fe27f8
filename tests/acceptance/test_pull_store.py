"""A pulling worker and its store: two ways there for each batch; and without it, the worker ends."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from rig.pullers import values_of
from rig.redis import RedisServer
from rig.waiting import wait_for

PICKY = """
import scrapy


class Picky(scrapy.Spider):
    name = "picky"

    def few(self, request):
        return request if request.url.endswith("00.html") else None

    def parse_article(self, response):
        yield {"url": response.url}
"""
BATCHES = 20
#: steps of a worker that are for no batch: is the store one of this version, on each of its connections, and the like
BESIDES = 5


@pytest.mark.black_box
def test_a_thousand_requests_are_two_ways_to_the_store(project: Any, site: Any, frontier: Any, tmp_path: Path) -> None:
    """H17: batches of a thousand; a hook drops most of their requests, so that it is the store that counts."""
    shop = site(BATCHES * 1000)
    with (
        closing(RedisServer(tmp_path / "redis", password=None)) as server,
        closing(redis.Redis.from_url(server.url)) as client,
    ):
        place = project(spiders={"picky": PICKY}, settings={"DISTRIBUTED_REQUEST_HOOK": "few"})
        queue = frontier(place, "picky", where=server.url)

        queue.add(values_of(map(shop.detail, range(BATCHES * 1000)), callback="parse_article"), size=1000)
        before = steps(client)
        # With a limit it does not look for more at the end, and a long lease is not renewed meanwhile.
        done = queue.begin(1, lease=600.0, max_batches=BATCHES).wait()
        assert (done.code, queue.said(1)["batches"]) == (0, {"acked": BATCHES, "held": 0}), queue.log(1)
        assert len(shop.item_hits()) == BATCHES * 10
        assert steps(client) - before <= 2 * BATCHES + BESIDES


def steps(client: redis.Redis) -> int:
    """How many steps of the store's script the server was asked for."""
    told: dict[str, dict[str, int]] = client.info("commandstats")
    return told["cmdstat_evalsha"]["calls"]


@pytest.mark.black_box
def test_a_worker_without_its_store_ends_and_says_so(project: Any, site: Any, frontier: Any, tmp_path: Path) -> None:
    """It makes no more requests than it had, and what it had is somebody else's."""
    shop = site(400, "--latency=0.3")
    with closing(RedisServer(tmp_path / "redis", password=None)) as server:
        place = project(settings={"START_URL": shop.start_url, "CONCURRENT_REQUESTS": 2})
        queue = frontier(place, where=server.url)
        queue.add(values_of(map(shop.detail, range(400)), callback="parse_article"), size=100)
        worker = queue.begin(1, lease=3.0)
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
