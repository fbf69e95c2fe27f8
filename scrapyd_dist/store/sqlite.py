"""The embedded store: one SQLite file on a local disk, one immediate transaction per verb."""

from __future__ import annotations

from scrapyd_dist.store.sqlite_frontier import SqliteFrontier


class SqliteStore(SqliteFrontier):
    """`Store` on an SQLite file. One instance belongs to one thread at a time."""
