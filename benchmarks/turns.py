"""What it costs to lease fairly: the slot with the least under way of 10, 1,000 or 10,000, beside the oldest batch.

python benchmarks/turns.py                         # a table, in two minutes
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from rig.redis import RedisServer

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import FAIR, LeaseRequest, Lessee, NewBatch
from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from scrapyd_dist.store import Store

WORKERS = [Lessee(job=f"shop.w{number}.a1", node="one", url="http://one:6800") for number in (1, 2)]
#: how often each is timed, and how many batches a worker leases at once
TIMES, AT_ONCE = 60, 20
_names = itertools.count(1)


def filled(store: Store, slots: int) -> str:
    """A frontier with so many slots that have enough batches each."""
    name = f"shop{next(_names)}"
    store.add_crawl(Crawl(id=name, project="p", spider="s", created=time.time(), kind="frontier"))
    of_each = 3 + 2 * TIMES * (1 + AT_ONCE) // slots
    new = [
        NewBatch(payload={}, size=10, slot=f"site{slot}.com")
        for _ in range(of_each)
        for slot in range(slots)
    ]
    for start in range(0, len(new), 1000):
        store.add_batches(name, new[start : start + 1000])
    return name


def milliseconds(store: Store, name: str, fair: str, limit: int) -> float:
    """The median of leases by two workers in turn."""
    times = []
    for worker in itertools.islice(itertools.cycle(WORKERS), TIMES):
        begun = time.perf_counter()
        store.lease_next(
            LeaseRequest(
                crawl=name, lessee=worker, seconds=60.0, limit=limit, fair=fair, now=time.time()
            )
        )
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def main() -> None:
    print(f"| milliseconds | slots | one batch | {AT_ONCE} at once |\n|---|---|---|---|")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(closing(RedisServer(folder / "redis", None, appendonly="no")))
        stores = {
            "SQLite": open_store(folder / "store.db", durable=False),
            "Redis": open_store(server.url),
        }
        for store in stores.values():
            stack.enter_context(closing(store))
        for (engine, store), fair, slots in itertools.product(
            stores.items(), FAIR, (10, 1_000, 10_000)
        ):
            name = filled(store, slots)
            one = milliseconds(store, name, fair, 1)
            print(f"| {engine}: {fair or 'unfair'} | {slots:,} | {one:.2f} | ", end="", flush=True)
            print(f"{milliseconds(store, name, fair, AT_ONCE):.2f} |", flush=True)


if __name__ == "__main__":
    main()
