"""A look at a crawl or a frontier costs the same however much is stored: counted in steps of SQLite's machine."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rig.stores import CRAWL

from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import Store, open_store

#: what `sdist status`, `watch`, `frontier list` and `frontier count` ask
LOOKS: dict[str, Callable[[Store], object]] = {
    "crawl": lambda store: store.crawl("c"),
    "crawls": lambda store: store.crawls(),
    "slots": lambda store: store.slots("c"),
    "backlog": lambda store: store.backlog("c"),
}
#: batches of a hundred requests: a thousand requests, and a million
FEW, MANY = 10, 10_000


def steps(path: Path, batches: int) -> dict[str, int]:
    """Look -> steps that it takes with so many batches."""
    taken = dict.fromkeys(LOOKS, 0)
    with closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
        for start in range(0, batches, 1000):
            new = [
                NewBatch(payload={"DISTRIBUTED_START_URLS": "[]"}, size=100, slot=f"p{number % 4}", fingerprints=())
                for number in range(start, min(start + 1000, batches))
            ]
            store.add_batches("c", new, now=time.time())
        assert store.backlog("c").waiting in {batches, batches * 100}
        database: sqlite3.Connection = store.connection.db  # type: ignore[attr-defined]  # to count what it does
        for name, look in LOOKS.items():
            look(store)

            def count(name: str = name) -> int:
                taken[name] += 1
                return 0

            database.set_progress_handler(count, 1)
            look(store)
            database.set_progress_handler(None, 1)
    return taken


def test_a_look_at_a_million_requests_takes_no_more_steps_than_one_at_a_thousand(tmp_path: Path) -> None:
    few, many = steps(tmp_path / "few.db", FEW), steps(tmp_path / "many.db", MANY)
    assert all(number > 0 for number in few.values())
    assert many == few
