"""How many permits a second one worker can take from a store, ahead and one by one, beside Scrapy Cluster's way.

    python benchmarks/permits.py                       # a table for docs/explanation/throttle.md, in half a minute
    python benchmarks/permits.py --short               # a first look, in seconds

The limit is so high that no request ever waits: only the store's work is measured. An SQLite store is opened as
workers open it, without waiting for the disk at each step; the Redis server keeps its data in memory, as that of Scrapy
Cluster does.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import redis
from cluster_rival import ClusterThrottle
from rig.redis import RedisServer

from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import Limit, PermitRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapyd_dist.store import Store

#: permits in one step
AHEAD = (1, 10, 50, 100)
#: never reached; the second one keeps fewer in mind, since each of its permits is bounded by one of them
EVEN = Limit(hits=1_000_000, window=60.0)
BURST = Limit(hits=10_000, window=0.1, moderated=False)
#: Scrapy Cluster's own clients never catch up with that, either
RIVALS = Limit(hits=1_000_000, window=60.0, moderated=False)


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    ahead: int  #: permits in one step
    rate: float  #: permits per second
    middle: float  #: seconds that a step takes: median
    late: float  #: and 99th percentile


HEADS = "| store | permits in a step | permits per second | step, ms: median | 99 % |\n|---|---|---|---|---|"


def line(row: Row) -> str:
    """A row of the table, as Markdown."""
    return f"| {row.what} | {row.ahead} | {row.rate:,.0f} | {row.middle * 1000:.2f} | {row.late * 1000:.2f} |"


def timed(what: str, ahead: int, seconds: float, step: Callable[[], object]) -> Row:
    """Make the step again and again for so long."""
    for _ in range(20):
        step()
    times, begun = [], time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds:
        step()
        times.append(time.perf_counter() - now)
    cuts = quantiles(times, n=100)
    return Row(
        what=what, ahead=ahead, rate=ahead * len(times) / sum(times), middle=cuts[49], late=cuts[98]
    )


def ours(what: str, store: Store, seconds: float) -> Iterator[Row]:
    for words, limit in (("moderated", EVEN), ("not moderated", BURST)):
        for ahead in AHEAD:
            ask = PermitRequest(
                key=f"{words}{ahead}", domain="example.com", count=ahead, limit=limit
            )
            take = partial(store.take_permits, [ask])
            yield timed(f"{what}, {words}", ahead, seconds, take)


def handed_back(what: str, store: Store, seconds: float) -> Row:
    """One is taken and handed back: two steps."""
    ask = PermitRequest(key="back", domain="example.com", limit=EVEN)
    return timed(
        f"{what}, taken and handed back",
        1,
        seconds,
        lambda: store.return_permits(store.take_permits([ask]).answers[0].permits),
    )


def theirs(client: redis.Redis, seconds: float) -> Row:
    rival = ClusterThrottle(client, "queue", RIVALS, "one")
    rival.fill(int(seconds * 10_000) + 100)
    return timed("Redis, Scrapy Cluster's steps", 1, seconds, rival.pop)


def rows(seconds: float) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        store = stack.enter_context(closing(open_store(folder / "store.db", durable=False)))
        yield from ours("SQLite", store, seconds)
        yield handed_back("SQLite", store, seconds)
        server = stack.enter_context(closing(RedisServer(folder / "redis", None, appendonly="no")))
        store = stack.enter_context(closing(open_store(server.url)))
        yield from ours("Redis", store, seconds)
        yield handed_back("Redis", store, seconds)
        yield theirs(stack.enter_context(closing(redis.Redis.from_url(server.url))), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row")
    parser.add_argument("--short", action="store_true", help="a fifth of a second for each row")
    arguments = parser.parse_args()
    print(HEADS)
    for row in rows(0.2 if arguments.short else arguments.seconds):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
