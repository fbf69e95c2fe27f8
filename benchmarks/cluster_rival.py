"""Scrapy Cluster's way to keep a limit, written anew from a description of its steps, to be measured beside ours.

What it does on Redis, for each look: old hits are removed; the moment of the last permit is read under WATCH; the hits
are counted under a second WATCH, and one is added; the moment is written; the queue's first element is taken. The clock
is the client's. A look that loses a race is a denial, even where its hit was counted.
"""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from scrapyd_dist.throttle.permits import Limit

_names = count(1)


class ClusterThrottle:
    """One process's look at a queue that several processes share.

    Args:
        client: of the Redis server.
        key: what the queue is called.
        limit: hits per window.
        name: of this process, so that its hits are its own.
    """

    def __init__(self, client: Any, key: str, limit: Limit, name: str) -> None:
        self._client, self._limit, self._name = client, limit, name
        self._queue, self._hits, self._last = key, f"{key}:throttle_window", f"{key}:throttle_time"
        self._popped = 0

    def fill(self, elements: int) -> None:
        """Put so many elements into the queue."""
        self._client.zadd(self._queue, {f"element{number}": number for number in range(elements)})

    def pop(self) -> bytes | None:
        """The next element, if one may be had now."""
        if not self._allowed():
            return None
        # Once a process has had a windowful, it may catch up wherever the window is not full.
        self._popped = min(self._popped + 1, self._limit.hits)
        with self._client.pipeline() as both:
            both.zrange(self._queue, 0, 0)
            both.zremrangebyrank(self._queue, 0, 0)
            first: list[bytes] = both.execute()[0]
        return first[0] if first else None

    def _allowed(self) -> bool:
        self._client.zremrangebyscore(self._hits, "-inf", time.time() - self._limit.window)
        if not self._limit.moderated:
            return self._charge()
        with self._client.pipeline() as turn:
            turn.watch(self._last)
            now = time.time()
            if self._too_early(turn.get(self._last), now) and not self._late():
                return False
            if not self._charge():
                return False
            turn.multi()
            turn.set(self._last, str(now), ex=int(self._limit.window * 2))
            return _made(turn)

    def _too_early(self, last: object, now: float) -> bool:
        return isinstance(last, bytes) and now - float(last) < self._limit.window / self._limit.hits

    def _late(self) -> bool:
        if self._popped < self._limit.hits or self._limit.hits == 1:
            return False
        return int(self._client.zcard(self._hits)) < self._limit.hits

    def _charge(self) -> bool:
        with self._client.pipeline() as count:
            count.watch(self._hits)
            if int(count.zcard(self._hits)) >= self._limit.hits:
                return False
            count.multi()
            count.zadd(self._hits, {f"{self._name}:{next(_names)}": time.time()})
            count.expire(self._hits, int(self._limit.window * 2))
            return _made(count)


def _made(pipeline: Any) -> bool:
    try:
        pipeline.execute()
    except redis.WatchError:
        return False
    return True
