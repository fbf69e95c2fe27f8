"""What one remembered URL costs: in the producer's memory, in the SQLite and the Redis store, and in scrapy-redis.

    python benchmarks/fingerprints.py --urls 1000000

Each row is measured in the same run, memory in a process of its own. The scrapy-redis row is what its dupefilter does:
one set of 40 hexadecimal digits per URL, on the same kind of server. It asks for each URL by itself; here many are sent
together, so its seconds say nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import redis
from rig.redis import RedisServer

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.scheduling.fingerprints import FingerprintSet
from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapyd_dist.store import Store

#: fingerprints that are sealed with one batch
BATCH = 500
KINDS = ("set", "seen", "sqlite", "redis", "scrapy-redis")
NAMES = {
    "set": "producer, a Python set",
    "seen": "producer, scrapyd-dist",
    "sqlite": "SQLite store, the file",
    "redis": "Redis store, used memory",
    "scrapy-redis": "scrapy-redis dupefilter, used memory",
}


def fingerprints(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield hashlib.sha1(b"http://web:9312/properties/property_%09d.html" % number).digest()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * 4096


def of_memory(kind: str, count: int) -> tuple[float, bool]:
    """Bytes that this process grew by, and whether the set is exact."""
    plain, kept = set[bytes](), FingerprintSet()
    before = resident()
    add = plain.add if kind == "set" else kept.add
    for fingerprint in fingerprints(count):
        add(fingerprint)
    grown = resident() - before
    return grown, len(plain) == count if kind == "set" else holds(kept, count)


def holds(kept: FingerprintSet, count: int) -> bool:
    """Whether it has so many; it is of no use afterwards."""
    return kept.count == count and all(map(kept.discard, fingerprints(min(count, 1000))))


def fill(store: Store, count: int) -> None:
    store.add_crawl(Crawl(id="easy-20260102T030405Z", project="p", spider="s", created=time.time()))
    batch = []
    for fingerprint in fingerprints(count):
        batch.append(fingerprint)
        if len(batch) == BATCH:
            store.seal("easy-20260102T030405Z", NewBatch(payload={}, size=BATCH), batch, {})
            batch = []
    store.seal("easy-20260102T030405Z", NewBatch(payload={}, size=1), batch, {})


def exact(store: Store, count: int) -> bool:
    return holds(FingerprintSet(store.fingerprints("easy-20260102T030405Z")), count)


def of_sqlite(folder: Path, count: int) -> tuple[float, bool]:
    path = folder / "store.db"
    with closing(open_store(path)) as store:
        fill(store, count)
        right = exact(store, count)
    return path.stat().st_size, right


def of_redis(folder: Path, kind: str, count: int) -> tuple[float, bool]:
    with closing(RedisServer(folder / "redis", None, appendonly="no")) as server:
        client: Any = redis.Redis.from_url(server.url)
        before = client.info("memory")["used_memory"]
        if kind == "redis":
            with closing(open_store(server.url)) as store:
                fill(store, count)
                right = exact(store, count)
        else:
            fill_set(client, count)
            right = client.scard("easy:dupefilter") == count
        grown = client.info("memory")["used_memory"] - before
        client.close()
    return grown, right


def fill_set(client: Any, count: int) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number, fingerprint in enumerate(fingerprints(count)):
            pipeline.sadd("easy:dupefilter", fingerprint.hex())
            if number % BATCH == 0:
                pipeline.execute()
        pipeline.execute()


def measure(kind: str, count: int) -> dict[str, Any]:
    """One row."""
    begun = time.perf_counter()
    with TemporaryDirectory() as folder:
        if kind in {"set", "seen"}:
            size, right = of_memory(kind, count)
        elif kind == "sqlite":
            size, right = of_sqlite(Path(folder), count)
        else:
            size, right = of_redis(Path(folder), kind, count)
    seconds = time.perf_counter() - begun
    return {
        "what": NAMES[kind],
        "urls": count,
        "bytes_per_url": size / count,
        "seconds": seconds,
        "exact": right,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--urls", type=int, default=100_000)
    parser.add_argument("--only", choices=KINDS, action="append", help="one row, or some")
    parser.add_argument("--here", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(measure(arguments.here, arguments.urls)))
        return
    print(
        "| what | URLs | bytes per URL | seconds, with the making of the fingerprints | exact |\n|---|---|---|---|---|"
    )
    wrong = 0
    for kind in arguments.only or KINDS:
        line = [sys.executable, __file__, "--urls", str(arguments.urls), "--here", kind]
        row = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
        wrong += not row["exact"]
        told = "yes" if row["exact"] else "NO"
        print(
            f"| {row['what']} | {row['urls']:,} | {row['bytes_per_url']:.1f} | {row['seconds']:.1f} | {told} |",
            flush=True,
        )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
