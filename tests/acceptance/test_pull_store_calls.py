"""How often a pulling worker goes to its store: twice for each batch, to take it and to end it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from rig.pullers import values_of
from rig.redis import RedisServer

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
def test_a_thousand_requests_are_two_ways_to_the_store(
    project: Any, site: Any, frontier: Any, run_scrapy: Any, tmp_path: Path
) -> None:
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
        done = run_scrapy(place, *queue.arguments(1, lease=600.0, max_batches=BATCHES))
        assert (done.code, queue.said(1)["batches"]) == (0, {"acked": BATCHES, "held": 0}), queue.log(1)
        assert len(shop.item_hits()) == BATCHES * 10
        assert steps(client) - before <= 2 * BATCHES + BESIDES


def steps(client: redis.Redis) -> int:
    """How many steps of the store's script the server was asked for."""
    told: dict[str, dict[str, int]] = client.info("commandstats")
    return told["cmdstat_evalsha"]["calls"]
