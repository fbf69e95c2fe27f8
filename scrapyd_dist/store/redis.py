"""The store that several machines share: a Redis server or cluster, one run of a script per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.store.guard import assembled
from scrapyd_dist.store.redis_batches import RedisAttempts, RedisBatches
from scrapyd_dist.store.redis_crawls import RedisAccount, RedisCrawls
from scrapyd_dist.store.redis_frontier import RedisFrontier
from scrapyd_dist.store.redis_link import RedisConnection
from scrapyd_dist.store.redis_throttle import RedisThrottle

if TYPE_CHECKING:
    from scrapyd_dist.store.base import Store


def redis_store(url: str, *, key: bytes | None) -> Store:
    """The store on this server, 6.0 or newer: its ports share one connection. It belongs to one thread at a time."""
    connection = RedisConnection(url, key=key)
    crawls, account = RedisCrawls(connection), RedisAccount(connection)
    batches = RedisBatches(connection, crawls)
    attempts = RedisAttempts(connection, batches)
    frontier = RedisFrontier(connection, batches, attempts)
    return assembled(connection, crawls, account, batches, attempts, frontier, RedisThrottle(connection))
