"""What a frontier costs in the store, beside scrapy-redis' queue and dupefilter, and whether that grows with its size.

    python benchmarks/frontier_store.py                # 50,000 requests; then 10 thousand against 10 million stored
    python benchmarks/frontier_store.py --short        # a first look, in seconds

Both begin with Scrapy's requests and end with them: fingerprints, encoding and decoding are in the times. Ours go in as
batches of 100, and come out leased and are acked; scrapy-redis asks its dupefilter and its queue for each request, and
takes it out for good.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import redis
from rig.redis import RedisServer
from scrapy import Request, Spider
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue
from scrapyd_dist.middlewares.codec import from_value, to_value

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import LeaseRequest, Lessee, NewBatch
from scrapyd_dist.frontier.intake import BATCH_SIZE
from scrapyd_dist.frontier.packing import FrontierIntake, add_unseen
from scrapyd_dist.payload import decode, encode
from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapyd_dist.store import Store

T = TypeVar("T")

NAME = "shop"
ME = Lessee(job="shop.w1.a1", node="one", url="http://one:6800")
#: a store that is asked how long its verbs take has so many slots
SLOTS = [f"site-{number}" for number in range(8)]
#: how often each verb is timed
TIMES = 300
#: where each step waits for the disk, it is measured with so many times fewer requests
ON_DISK = 10
#: batches that are filled in with one step, where the filling itself is not timed
AT_ONCE = 50


class Shop(Spider):
    name = NAME

    def parse_item(self, response: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to keep a queue."""

    what: str
    add: float  #: requests per second, from Scrapy's request on
    keep: float  #: the same, but only the time that the store took
    take: float  #: to Scrapy's request
    size: float  #: bytes per request


def found_requests(count: int, spider: Shop) -> list[Request]:
    """Links as a page of a shop has them, all different."""
    words = [
        "oak",
        "steel",
        "garden",
        "corner",
        "sofa",
        "folding",
        "table",
        "lamp",
        "vintage",
        "outdoor",
    ]

    def link(number: int) -> str:
        name = "-".join(words[number // 10**place % 10] for place in range(4))
        page = f"{words[number % 10]}/{name}-{number:08d}.html?ref=list&page={number // 30}"
        return f"https://www.example-shop.co.uk/home/{page}"

    return [Request(link(number), callback=spider.parse_item) for number in range(count)]


class Watch:
    """A stop-watch for parts of a work."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, work: Callable[[], T]) -> T:
        begun = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds += time.perf_counter() - begun


# ours


def add_all(store: Store, requests: Sequence[Request], spider: Shop, kept: Watch) -> None:
    for start in range(0, len(requests), BATCH_SIZE):
        some = requests[start : start + BATCH_SIZE]
        found = [
            FrontierIntake(value=to_value(one, spider), fingerprint=fingerprint(one))
            for one in some
        ]
        add_unseen(
            lambda new, counts: kept(lambda: store.add_batches(NAME, new, counts=counts)),
            found,
            size=BATCH_SIZE,
            key=None,
        )


def take_all(store: Store, spider: Shop) -> int:
    taken = 0
    while leased := store.lease_next(
        LeaseRequest(crawl=NAME, lessee=ME, seconds=60.0, now=time.time())
    ):
        for one in leased:
            taken += len([from_value(value, spider) for value in decode(one.payload.get)])
            store.ack(
                NAME, one.batch.number, one.attempt, ME.job, report={"items": 100}, now=time.time()
            )
    return taken


def ours(what: str, where: str, count: int, size: Callable[[], float]) -> Row:
    spider = Shop()
    requests = found_requests(count, spider)
    with closing(open_store(where)) as store:
        store.add_crawl(frontier())
        before, added, kept, took = size(), Watch(), Watch(), Watch()
        added(lambda: add_all(store, requests, spider, kept))
        grown = size() - before
        with closing(open_store(where, durable=False)) as workers:  # as they open it
            taken = took(lambda: take_all(workers, spider))
    return row(what, count, taken, grown, [added, kept, took])


def frontier() -> Crawl:
    return Crawl(id=NAME, project="p", spider=NAME, created=time.time(), kind="frontier")


# scrapy-redis


def theirs(what: str, client: Any, count: int, size: Callable[[], float]) -> Row:
    spider = Shop()
    requests = found_requests(count, spider)
    queue, seen = (
        PriorityQueue(client, spider, "%(spider)s:requests"),
        RFPDupeFilter(client, "shop:dupefilter"),
    )
    before, added, kept, took = size(), Watch(), Watch(), Watch()
    plain = client.execute_command
    client.execute_command = lambda *words, **options: kept(lambda: plain(*words, **options))

    def add() -> None:
        for request in requests:
            if not seen.request_seen(request):
                queue.push(request)

    added(add)
    client.execute_command = plain
    grown = size() - before
    taken = took(lambda: sum(1 for _ in iter(queue.pop, None)))
    return row(what, count, taken, grown, [added, kept, took])


def row(what: str, count: int, taken: int, grown: float, watches: Sequence[Watch]) -> Row:
    if taken != count:
        raise SystemExit(f"{what}: {count} requests went in, {taken} came out")
    add, keep, take = (count / watch.seconds for watch in watches)
    return Row(what=what, add=add, keep=keep, take=take, size=grown / count)


def seconds(work: Callable[[], object]) -> float:
    watch = Watch()
    watch(work)
    return watch.seconds


# side by side


def rates(count: int) -> list[Row]:
    """All ways, one after the other. Each makes its requests anew: Scrapy remembers their fingerprints."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        rows = [ours("SQLite store", str(path), count, partial(file_size, path))]
    for disk, few in ((False, count), (True, max(count // ON_DISK, BATCH_SIZE))):
        where = "Redis, each step on disk" if disk else "Redis, in memory alone"
        for name in ("scrapyd-dist", "scrapy-redis"):
            with ExitStack() as stack:
                server, client = server_of(stack, on_disk=disk)
                memory = partial(used_memory, client)
                what = f"{name}, {where}"
                if name == "scrapyd-dist":
                    rows.append(ours(what, server.url, few, memory))
                else:
                    rows.append(theirs(what, client, few, memory))
    return rows


def server_of(stack: ExitStack, *, on_disk: bool) -> tuple[RedisServer, Any]:
    folder = Path(stack.enter_context(TemporaryDirectory()))
    server = stack.enter_context(
        closing(RedisServer(folder / "redis", None, appendonly="yes" if on_disk else "no"))
    )
    return server, stack.enter_context(closing(redis.Redis.from_url(server.url)))


def used_memory(client: Any) -> float:
    return float(client.info("memory")["used_memory"])


def file_size(path: Path) -> float:
    with closing(open_store(path)) as store:
        store.connection.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # type: ignore[attr-defined]  # what is in the log counts too
    return path.stat().st_size


# does it grow


def fill(store: Store, count: int) -> Store:
    """Bring an empty store to so many requests."""
    store.add_crawl(frontier())
    payload = a_payload()
    batches = count // BATCH_SIZE
    for start in range(0, batches, AT_ONCE):
        new = [
            NewBatch(
                payload=payload,
                size=BATCH_SIZE,
                slot=SLOTS[number % len(SLOTS)],
                fingerprints=tuple(os.urandom(20) for _ in range(BATCH_SIZE)),
            )
            for number in range(start, min(batches, start + AT_ONCE))
        ]
        store.add_batches(NAME, new)
    return store


def a_payload() -> dict[str, str]:
    spider = Shop()
    return encode([to_value(request, spider) for request in found_requests(BATCH_SIZE, spider)])


def verbs(store: Store) -> dict[str, Callable[[], object]]:
    """What is timed."""

    def lease_and_return() -> None:
        (leased,) = store.lease_next(
            LeaseRequest(crawl=NAME, lessee=ME, seconds=60.0, now=time.time())
        )
        store.give_back(
            NAME, leased.batch.number, leased.attempt, ME.job, reason="", now=time.time()
        )

    def add() -> None:
        prints = tuple(os.urandom(20) for _ in range(BATCH_SIZE))
        store.add_batches(
            NAME, [NewBatch(payload={}, size=BATCH_SIZE, slot="new", fingerprints=prints)]
        )

    return {
        "lease a batch and give it back": lease_and_return,
        "add a batch of 100": add,
        "count a frontier (`backlog`)": lambda: store.backlog(NAME),
        "look at the next ten": lambda: store.peek(NAME, SLOTS[0], 10),
    }


def compared(few: Store, many: Store) -> list[tuple[str, float, float]]:
    """Milliseconds that each verb takes in either store: medians, taken in turn, so that both meet the same load."""
    one, other = verbs(few), verbs(many)
    rows = []
    for name in one:
        times = [(seconds(one[name]), seconds(other[name])) for _ in range(TIMES)]
        rows.append(
            (name, *(statistics.median(column) * 1000 for column in zip(*times, strict=True)))
        )
    return rows


def growth(few: int, many: int) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """For each engine: what each verb takes with few requests stored, and with many."""
    for engine in ("SQLite", "Redis"):
        with ExitStack() as stack:
            if engine == "SQLite":
                folder = stack.enter_context(TemporaryDirectory())
                places = [f"{folder}/few.db", f"{folder}/many.db"]
            else:
                url = server_of(stack, on_disk=False)[0].url
                places = [f"{url}?prefix=few:", f"{url}?prefix=many:"]
            stores = [stack.enter_context(closing(open_store(place))) for place in places]
            for store, count in zip(stores, (few, many), strict=True):
                fill(store, count)
            os.sync()  # or the disk would still be busy with the filling
            yield engine, compared(*stores)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--few", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=10_000_000)
    parser.add_argument(
        "--short",
        action="store_true",
        help="10,000 requests; 10 thousand against 100 thousand stored",
    )
    arguments = parser.parse_args()
    if arguments.short:
        arguments.requests, arguments.many = 10_000, 100_000
    print(
        "| what | added, requests/s | in the store alone | taken, requests/s | bytes per request |"
    )
    print("|---|---|---|---|---|")
    for one in rates(arguments.requests):
        print(
            f"| {one.what} | {one.add:,.0f} | {one.keep:,.0f} | {one.take:,.0f} | {one.size:.0f} |",
            flush=True,
        )
    print(
        f"\n| milliseconds | {arguments.few:,} requests stored | {arguments.many:,} | ratio |\n|---|---|---|---|"
    )
    for engine, rows in growth(arguments.few, arguments.many):
        for name, before, after in rows:
            print(
                f"| {engine}: {name} | {before:.2f} | {after:.2f} | {after / before:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
