"""The embedded store: one SQLite file on a local disk, one immediate transaction per verb."""

from __future__ import annotations

from scrapyd_dist.store.guard import guarded
from scrapyd_dist.store.sqlite_frontier import SqliteFrontier
from scrapyd_dist.store.sqlite_throttle import SqliteThrottle


@guarded
class SqliteStore(SqliteFrontier, SqliteThrottle):
    """`Store` on an SQLite file. One instance belongs to one thread at a time."""
