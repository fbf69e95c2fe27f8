"""The store that several machines share: a Redis server, one run of a script per step."""

from __future__ import annotations

from scrapyd_dist.store.guard import guarded
from scrapyd_dist.store.redis_frontier import RedisFrontier
from scrapyd_dist.store.redis_throttle import RedisThrottle


@guarded
class RedisStore(RedisFrontier, RedisThrottle):
    """`Store` on a Redis server, 6.0 or newer. One instance belongs to one thread at a time."""
