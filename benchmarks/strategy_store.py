"""What a crawling strategy costs in the store, and whether that grows with the links that it knows.

    python benchmarks/strategy_store.py                     # both engines; 100 thousand and a million known links
    python benchmarks/strategy_store.py --links 10000000    # the same, up to ten million
    python benchmarks/strategy_store.py --short             # a first look: a tenth of everything

A round is what a strategy process does: the oldest events, one look-up of all their links, and one step that handles
them. The seconds are those of the clock; beside them stands what the process, and the Redis server, worked meanwhile.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import psutil
from rig.redis import RedisServer

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import LeaseRequest, Lessee, NewBatch
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    EventKind,
    FoundLink,
    Link,
    LinkEvent,
    States,
    StrategyStep,
    partition_of,
)

NAME, ME, ALL = "shop", "shop@bench", range(PARTITIONS)
KEY = b"ZmRmZGZkZmRmZGZkZmRmZGZkZmRmZGZkZmRmZGZkZmQ="
WORKER = Lessee(job="shop.w1.a1", node="one", url="http://one:6800")
#: links in an event, events in a round, and links that are filled in with one step
LINKS, ROUND, AT_ONCE = 50, 20, 5_000
#: sites that the links are spread over
SITES = 1_000
GOALS = {"sqlite": 3_000, "redis": 5_000}
#: how often a new seed is timed
SEEDS = 60


def link(number: int, site: str = "") -> Link:
    site = site or f"site-{number % SITES}.example"
    url = f"https://{site}/catalogue/category-{number % 97}/page-{number}.html?ref=list"
    return Link(
        fingerprint=hashlib.sha1(url.encode(), usedforsecurity=False).digest(), url=url, state=States.QUEUED, slot=site,
        partition=partition_of(site), score=(number * 7919 % 1_000_003) / 1_000_003, depth=number % 9,
        request={"url": url, "callback": "parse", "meta": {"depth": number % 9}},
    )  # fmt: skip


def found(number: int) -> FoundLink:
    one = link(number)
    return FoundLink(fingerprint=one.fingerprint, request=one.request or {}, slot=one.slot)


def step(store: Store, **values: object) -> None:
    store.apply(StrategyStep(crawl=NAME, process=ME, partitions=ALL, now=time.time(), **values))  # type: ignore[arg-type]  # names of its fields


class Worked:
    """Seconds of the clock, and of processors."""

    def __init__(self, server: psutil.Process | None) -> None:
        self._processes = [psutil.Process(), *([server] if server else [])]
        self._began, self._before = time.perf_counter(), self._processors()

    def _processors(self) -> list[float]:
        return [sum(one.cpu_times()[:2]) for one in self._processes]

    def told(self) -> tuple[float, list[float]]:
        after = self._processors()
        return time.perf_counter() - self._began, [
            now - was for now, was in zip(after, self._before, strict=True)
        ]


def fill(store: Store, first: int, last: int) -> None:
    for start in range(first, last, AT_ONCE):
        store.hold_partitions(NAME, ME, 3_600.0)
        step(store, links=[link(number) for number in range(start, min(start + AT_ONCE, last))])


def add_events(store: Store, first: int, events: int, known: int) -> None:
    """Events of 50 links each, half of which are known; each in the partition of its first link."""
    for start in range(0, events, ROUND):
        told = []
        for number in range(first + start, first + min(start + ROUND, events)):
            new = [1_000_000_000 + number * LINKS + at for at in range(LINKS // 2)]
            old = [(number * 7907 + at * 104_729) % known for at in range(LINKS - len(new))]
            page = link(number % known)
            told.append(
                LinkEvent(
                    kind=EventKind.LINKS, fingerprint=page.fingerprint, request=page.request or {}, url=page.url,
                    partition=page.partition, status=200, links=[found(one) for one in (*new, *old)],
                )
            )  # fmt: skip
        step(store, events=told)


def rounds(store: Store) -> Iterator[int]:
    """Handle all events; how many links each round had."""
    while events := store.events(NAME, ALL, ROUND):
        every = {one.fingerprint: one for event in events for one in event.links}
        pages = [event.fingerprint for event in events]
        known = store.links(NAME, [*every, *pages])
        new = [
            Link(
                fingerprint=one.fingerprint, url=one.request["url"], state=States.QUEUED, slot=one.slot, score=0.5,
                partition=partition_of(one.slot), request=one.request,
            )
            for one in every.values() if one.fingerprint not in known
        ]  # fmt: skip
        step(store, handled=[event.number for event in events], links=new)
        yield sum(len(event.links) for event in events)


def first_leased(store: Store, number: int) -> tuple[float, float]:
    """Seconds of the look at the front of the queue, and from the step with a new seed to the lease of its batch."""
    seed = link(number, f"new-{number}.example")
    began = time.perf_counter()
    step(store, links=[seed])
    asked = time.perf_counter()
    heads = store.queue_heads(NAME, ALL, ahead=64, limit=1, now=time.time())
    answered = time.perf_counter()
    assert [one.fingerprint for one in heads] == [seed.fingerprint]
    batch = NewBatch(
        payload={"A": seed.url},
        size=1,
        slot=seed.slot,
        fingerprints=(seed.fingerprint,),
        priority=1 << 40,
    )
    step(store, new=[batch])
    (leased,) = store.lease_next(LeaseRequest(crawl=NAME, lessee=WORKER, seconds=60.0, now=1.0))
    ended = time.perf_counter()
    assert leased.batch.slot == seed.slot
    store.ack(NAME, leased.batch.number, leased.attempt, WORKER.job, report={}, now=1.0)
    return answered - asked, ended - began


def take_turns(store: Store) -> None:
    """Each site has had its turn, as in a crawl that runs."""
    heads = store.queue_heads(NAME, ALL, ahead=1, limit=2 * SITES, now=time.time())
    new = [
        NewBatch(payload={"A": one.url}, size=1, slot=one.slot, fingerprints=(one.fingerprint,))
        for one in heads
    ]
    step(store, new=new)


def seeds(store: Store, first: int) -> tuple[float, ...]:
    store.hold_partitions(NAME, ME, 3_600.0)
    timed = [first_leased(store, first + number) for number in range(SEEDS)]
    # The fastest quarter: what else the machine does is not the store's.
    return tuple(
        statistics.median(sorted(times)[: SEEDS // 4]) for times in zip(*timed, strict=True)
    )


def measure(
    kind: str, where: str, server: psutil.Process | None, sizes: Sequence[int], events: int
) -> None:
    with closing(open_store(where, key=KEY)) as store:
        store.add_crawl(Crawl(id=NAME, project="p", spider="s", created=1.0, kind="frontier"))
        fill(store, 0, 1_000 + SITES)
        take_turns(store)  # which takes one link of each
        short = seeds(store, 2_000_000_000)
        print(
            f"{kind}: a new seed at 1,000 queued: front {short[0] * 1e3:.2f} ms, leased after {short[1] * 1e3:.2f} ms"
        )
        known, memory = 1_000 + SITES, list[int]()
        for size in sizes:
            fill(store, known, size)
            known = size
            add_events(store, size, events, known)
            worked = Worked(server)
            handled = sum(rounds(store))
            seconds, processors = worked.told()
            memory.append(psutil.Process().memory_info().rss)
            busy = " + ".join(f"{one:.2f}" for one in processors)
            print(
                f"{kind}: {size:,} links known: {handled / seconds:,.0f} links/s (goal {GOALS[kind]:,}; {handled:,} in"
                f" {seconds:.2f} s; processors {busy} s, {handled / max(processors):,.0f} links/s of the busier one);"
                f" memory {memory[-1] / 1e6:.1f} MB ({memory[-1] / memory[0]:.2f} x)"
            )
            many = seeds(store, 2_000_000_000 + size)
            print(
                f"{kind}: a new seed at {size:,} queued: front {many[0] * 1e3:.2f} ms, leased after"
                f" {many[1] * 1e3:.2f} ms ({many[0] / short[0]:.2f} x, {many[1] / short[1]:.2f} x; goal 1.5 x)"
            )
            if server:
                print(
                    f"{kind}: the server has {server.memory_info().rss / size:,.0f} bytes for each link"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["sqlite", "redis"], action="append")
    parser.add_argument("--links", type=int, default=1_000_000, help="most links that are known")
    parser.add_argument(
        "--events", type=int, default=2_000, help="events that are timed, of 50 links each"
    )
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    most, events = (
        (given.links // 10, given.events // 10) if given.short else (given.links, given.events)
    )
    sizes = [
        size for size in (10_000, 100_000, 1_000_000, 10_000_000) if most // 10 <= size <= most
    ]
    with TemporaryDirectory() as folder:
        for kind in given.engine or ["sqlite", "redis"]:
            if kind == "sqlite":
                measure(kind, str(Path(folder) / "store.db"), None, sizes, events)
                continue
            with closing(RedisServer(Path(folder))) as server:
                measure(kind, server.url, psutil.Process(server.pid), sizes, events)


if __name__ == "__main__":
    main()
