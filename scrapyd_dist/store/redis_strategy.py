"""The Redis store's verbs about crawling strategies."""

from typing import Any

from scrapyd_dist.errors import StoreError
from scrapyd_dist.store.redis_link import RedisPort


class RedisStrategy(RedisPort):
    """In work."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StoreError("a strategy cannot be kept on a Redis server yet")

    hold_partitions = leave_partitions = events = links = domains = queue_heads = apply = strategy_backlog = _refuse
    end_strategy = changes = dead_events = replay = reset_strategy = _refuse
