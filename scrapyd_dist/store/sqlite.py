"""The embedded store: one SQLite file on a local disk, one immediate transaction per verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.store.guard import assembled
from scrapyd_dist.store.sqlite_batches import SqliteAttempts, SqliteBatches
from scrapyd_dist.store.sqlite_crawls import SqliteAccount, SqliteCrawls
from scrapyd_dist.store.sqlite_file import SqliteConnection
from scrapyd_dist.store.sqlite_frontier import SqliteFrontier
from scrapyd_dist.store.sqlite_throttle import SqliteThrottle

if TYPE_CHECKING:
    from scrapyd_dist.store.base import Store


def sqlite_store(path: str, *, durable: bool, key: bytes | None) -> Store:
    """The store in this file: its ports share one connection. It belongs to one thread at a time."""
    connection = SqliteConnection(path, durable=durable, key=key)
    crawls, account = SqliteCrawls(connection), SqliteAccount(connection)
    batches = SqliteBatches(connection, crawls)
    attempts = SqliteAttempts(connection, batches)
    frontier = SqliteFrontier(connection, crawls, batches, attempts)
    return assembled(connection, crawls, account, batches, attempts, frontier, SqliteThrottle(connection))
