"""The throttle that ours is measured against does what it is described to do: so many commands, and hits in vain."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from cluster_rival import ClusterThrottle
from rig.redis import RedisServer

from scrapyd_dist.throttle.permits import Limit

LIMIT = Limit(hits=3, window=60.0)


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with closing(redis.Redis.from_url(redis_server.url)) as opened:
        yield opened


def sent(client: Any) -> int:
    return int(client.info("stats")["total_commands_processed"])


def test_a_permit_takes_sixteen_commands_and_a_denial_four(client: Any) -> None:
    ClusterThrottle(client, "rival-first", LIMIT, "one").pop()  # opens its two connections
    throttle = ClusterThrottle(client, "rival-commands", LIMIT, "one")
    throttle.fill(10)
    before = sent(client)
    assert throttle.pop() == b"element0"
    permit = sent(client)
    assert throttle.pop() is None
    denial = sent(client)
    # The look itself is one of the commands that it counts.
    assert (permit - before - 1, denial - permit - 1) == (16, 4)


def test_a_look_at_an_empty_queue_is_charged(client: Any) -> None:
    throttle = ClusterThrottle(
        client, "rival-empty", Limit(hits=3, window=60.0, moderated=False), "one"
    )
    assert [throttle.pop() for _ in range(3)] == [None] * 3
    throttle.fill(1)
    assert throttle.pop() is None
    assert client.zcard("rival-empty:throttle_window") == 3
