"""Opens an SQLite file, and makes the ports that share its connection."""

from pathlib import Path

from scrapyd_dist.store.ports.engine import Ports, StoreRequest
from scrapyd_dist.store.sqlite.sqlite_batches import SqliteBatches
from scrapyd_dist.store.sqlite.sqlite_crawls import SqliteCrawls
from scrapyd_dist.store.sqlite.sqlite_file import SqliteConnection
from scrapyd_dist.store.sqlite.sqlite_jobs import SqliteJobs
from scrapyd_dist.store.sqlite.sqlite_strategy import SqliteStrategy
from scrapyd_dist.store.sqlite.sqlite_throttle import SqliteThrottle


def sqlite_ports(path: Path, request: StoreRequest) -> Ports:
    """Return the parts of the store in this file."""
    connection = SqliteConnection(
        path, durable=request.durable, owned=request.owned, key=request.key
    )
    return Ports(
        connection=connection,
        crawls=SqliteCrawls(connection),
        batches=SqliteBatches(connection),
        throttle=SqliteThrottle(connection),
        jobs=SqliteJobs(connection),
        strategies=SqliteStrategy(connection),
    )
