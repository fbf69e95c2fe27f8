"""Connects to a Redis server, and makes the ports that share the connection."""

from scrapyd_dist.store.ports.engine import Ports, StoreRequest
from scrapyd_dist.store.redis.redis_batches import RedisBatches
from scrapyd_dist.store.redis.redis_crawls import RedisCrawls
from scrapyd_dist.store.redis.redis_jobs import RedisJobs
from scrapyd_dist.store.redis.redis_link import RedisConnection
from scrapyd_dist.store.redis.redis_strategy import RedisStrategy
from scrapyd_dist.store.redis.redis_throttle import RedisThrottle


def redis_ports(request: StoreRequest) -> Ports:
    """Return the parts of the store on this server."""
    connection = RedisConnection(request.where, key=request.key)
    return Ports(
        connection=connection,
        crawls=RedisCrawls(connection),
        batches=RedisBatches(connection),
        throttle=RedisThrottle(connection),
        jobs=RedisJobs(connection),
        strategies=RedisStrategy(connection),
    )
