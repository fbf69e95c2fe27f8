"""Troubles of a Redis server that pass are known, and waited for."""

import threading
from contextlib import closing

import pytest
import redis
from rig.redis import RedisServer
from rig.stores import redis_server  # noqa: F401 - a fixture

from scrapyd_dist.batches import Crawl
from scrapyd_dist.store import open_store
from scrapyd_dist.store.redis.redis_outages import answer_passes

CRAWL = Crawl(id="c", project="p", spider="s", created=1.0)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
        redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ResponseError(
            "MISCONF Errors writing to the AOF file: No space left on device"
        ),
        redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    ],
)
def test_what_passes_is_known_by_name_or_word(error: Exception) -> None:
    assert answer_passes(error)


@pytest.mark.parametrize(
    "error",
    [
        redis.exceptions.ResponseError(
            "WRONGTYPE Operation against a key holding the wrong kind of value"
        ),
        redis.exceptions.ResponseError("BUSYKEY Target key name already exists."),
    ],
)
def test_all_else_is_no_matter_of_time(error: Exception) -> None:
    assert not answer_passes(error)


def test_a_server_that_cannot_keep_anything_is_waited_for(redis_server: RedisServer) -> None:  # noqa: F811 - as above
    address = f"{redis_server.url}?prefix=outage:"
    with (
        closing(redis.Redis.from_url(redis_server.url)) as admin,
        closing(open_store(address)) as store,
    ):
        admin.config_set("maxmemory", 1)
        later = threading.Timer(0.5, admin.config_set, ("maxmemory", 0))
        later.start()
        try:
            store.add_crawl(CRAWL)
        finally:
            later.join()
            admin.config_set("maxmemory", 0)
        assert store.crawl("c").id == "c"
