"""The SQLite store's verbs about crawls as a whole, their shards, counts, samples and misses, and about nodes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import ShardState
from scrapyd_dist.errors import NameTaken, NothingMatched
from scrapyd_dist.store.rows import (
    CRAWL_COLUMNS,
    CRAWL_FIELDS,
    NODE_FIELDS,
    SIGNED,
    WORKER_COLUMNS,
    check_fields,
    check_wanted,
    crawl_row,
    node_row,
    signed_row,
    text,
    unsigned,
)
from scrapyd_dist.store.sqlite_file import SqlitePort

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from scrapyd_dist.batches import Crawl, Miss, Shard, WorkerEntry
    from scrapyd_dist.nodes import NodeRecord
    from scrapyd_dist.store.sqlite_file import SqliteConnection

_CRAWL_COLUMNS = ", ".join(CRAWL_COLUMNS)
#: rows that are removed in one step when a crawl is forgotten, so that nobody waits long for his turn
_ROWS = 50_000
#: pages of the file given back in one step
_PAGES = 2_000


class SqliteCrawls(SqlitePort):
    """Nodes and crawls."""

    # nodes

    def nodes(self) -> list[NodeRecord]:
        return self._door.each(self._door.node, map(dict, self._db.execute("SELECT * FROM nodes ORDER BY name")))

    def update_node(self, name: str, **changes: Any) -> None:
        check_fields("node", changes, NODE_FIELDS)
        with self._file.step():
            self._db.execute("INSERT OR IGNORE INTO nodes (name) VALUES (?)", (name,))
            for field, value in node_row(changes).items():
                self._db.execute(f"UPDATE nodes SET {field} = ? WHERE name = ?", (value, name))  # noqa: S608 - own names

    # crawls

    def add_crawl(self, crawl: Crawl) -> None:
        row = crawl_row({name: getattr(crawl, name) for name in CRAWL_COLUMNS})
        row["options"] = signed_row(self._door.signer, row, crawl.options)
        marks = ", ".join(f":{name}" for name in row)
        with self._file.step():
            if self._db.execute("SELECT 1 FROM crawls WHERE id = ?", (crawl.id,)).fetchone():
                raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")
            self._db.execute(
                f"INSERT INTO crawls ({', '.join(row)}, number)"  # noqa: S608 - own names
                f" VALUES ({marks}, (SELECT coalesce(max(number), 0) + 1 FROM crawls))",
                row,
            )

    def crawl(self, crawl: str) -> Crawl:
        return self._door.crawl(self._crawl_row(crawl), crawl)

    def _crawl_row(self, crawl: str) -> dict[str, Any]:
        row = self._db.execute(f"SELECT {_CRAWL_COLUMNS} FROM crawls WHERE id = ?", (crawl,)).fetchone()  # noqa: S608 - own names
        if row is None:
            raise self.no_crawl(crawl)
        return dict(row)

    def own_crawl(self, crawl: str) -> Crawl:
        return self._door.own(self.crawl(crawl))

    def no_crawl(self, crawl: str) -> NothingMatched:
        return NothingMatched(
            f"there is no crawl {crawl!r} in {self._file.path}; `sdist crawls` lists those there are."
        )

    def crawls(self) -> list[Crawl]:
        query = f"SELECT {_CRAWL_COLUMNS} FROM crawls ORDER BY created DESC, number DESC"  # noqa: S608 - own names
        return self._door.each(self._door.crawl, map(dict, self._db.execute(query)))

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        check_fields("crawl", changes, CRAWL_FIELDS)
        with self._file.step(), suppress(NothingMatched):
            row = crawl_row(changes)
            if {"options", *SIGNED} & changes.keys():
                new = replace(self.own_crawl(crawl), **changes)
                row["options"] = signed_row(self._door.signer, crawl_row(vars(new)), new.options)
            self.set_row(crawl, row)

    def set_row(self, crawl: str, row: Mapping[str, Any]) -> None:
        assignments = ", ".join(f"{name} = :{name}" for name in row)
        if row:
            self._db.execute(f"UPDATE crawls SET {assignments} WHERE id = :id", {**row, "id": crawl})  # noqa: S608 - own names

    def unchecked(self, crawl: str) -> dict[str, Any]:
        return unsigned(self._crawl_row(crawl))

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        with self._file.step():
            self.crawl(crawl)
            query = "UPDATE crawls SET pid = ?, host = ? WHERE id = ? AND pid IS ? AND host = ?"
            return self._db.execute(query, (pid, host, crawl, *before)).rowcount > 0

    def want(self, crawl: str, what: str) -> None:
        check_wanted(what)
        with self._file.step():
            if not self._db.execute("UPDATE crawls SET wanted = ? WHERE id = ?", (what, crawl)).rowcount:
                raise self.no_crawl(crawl)

    def forget(self, crawl: str) -> None:
        row = self._db.execute("SELECT number FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            return
        for table, key, value in (
            ("seen", "crawl, fingerprint", row[0]),
            ("payloads", "crawl, batch", crawl),
            ("attempts", "crawl, batch, number", crawl),
            ("batches", "crawl, number", crawl),
            ("misses", "rowid", crawl),
            ("samples", "rowid", crawl),
        ):
            some = f"SELECT {key} FROM {table} WHERE crawl = ? LIMIT {_ROWS}"  # noqa: S608 - own names
            removed = _ROWS
            while removed == _ROWS:
                with self._file.step():
                    removed = self._db.execute(f"DELETE FROM {table} WHERE ({key}) IN ({some})", (value,)).rowcount  # noqa: S608 - own names
        with self._file.step():
            self._db.execute("DELETE FROM crawls WHERE id = ?", (crawl,))
        self._give_back()

    def _give_back(self) -> None:
        """Shrink the file, where it was made so that it can."""
        while True:
            free = self._db.execute("PRAGMA freelist_count").fetchone()[0]
            if not free:
                return
            with self._file.step():
                self._db.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
            if self._db.execute("PRAGMA freelist_count").fetchone()[0] >= free:
                return


class SqliteAccount(SqlitePort):
    """Counts, samples, shards, workers and misses of a crawl."""

    def __init__(self, connection: SqliteConnection, crawls: SqliteCrawls) -> None:
        super().__init__(connection)
        self._crawls = crawls

    # counts

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        with self._file.step():
            self.add_counts(crawl, counts)

    def add_counts(self, crawl: str, counts: Mapping[str, int]) -> None:
        self._db.executemany(
            "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
            [(crawl, name, value) for name, value in counts.items() if value],
        )

    def counts(self, crawl: str) -> dict[str, int]:
        return self._door.counts(self._db.execute("SELECT name, value FROM counts WHERE crawl = ?", (crawl,)))

    # samples

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        with self._file.step():
            self._db.execute("INSERT INTO samples VALUES (?, ?, ?)", (crawl, at, json.dumps(dict(values))))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        rows = self._db.execute("SELECT at, sample FROM samples WHERE crawl = ? ORDER BY at, rowid", (crawl,))
        return self._door.each(lambda row: self._door.sample(crawl, row["at"], row["sample"]), rows)

    # shards

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        rows = [(crawl, s.number, s.url, s.first_page, s.last_page, s.state.value) for s in shards]
        with self._file.step():
            self._db.executemany("INSERT INTO shards VALUES (?, ?, ?, ?, ?, ?)", rows)

    def shards(self, crawl: str) -> list[Shard]:
        query = "SELECT number, url, first_page, last_page, state FROM shards WHERE crawl = ? ORDER BY number"
        return self._door.each(lambda row: self._door.shard(crawl, dict(row)), self._db.execute(query, (crawl,)))

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        with self._file.step():
            self._db.executemany(
                "UPDATE shards SET state = ? WHERE crawl = ? AND number = ?",
                [(ShardState.FINISHED.value, crawl, number) for number in numbers],
            )

    def walk_again(self, crawl: str) -> None:
        with self._file.step():
            self._db.execute("DELETE FROM misses WHERE crawl = ? AND batch = 0", (crawl,))
            self._db.execute("DELETE FROM counts WHERE crawl = ? AND name != 'sealed'", (crawl,))

    # workers

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        marks = ", ".join(f":{name}" for name in ("crawl", *WORKER_COLUMNS))
        query = f"INSERT OR REPLACE INTO workers (crawl, {', '.join(WORKER_COLUMNS)}) VALUES ({marks})"  # noqa: S608 - own names
        with self._file.step():
            there = "UPDATE crawls SET last_worker = max(last_worker, ?) WHERE id = ?"
            if not self._db.execute(there, (last, crawl)).rowcount:
                raise self._crawls.no_crawl(crawl)
            self._db.executemany(query, [{"crawl": crawl, **asdict(worker)} for worker in workers])

    def remove_worker(self, crawl: str, job: str) -> None:
        with self._file.step():
            self._db.execute("DELETE FROM workers WHERE crawl = ? AND job = ?", (crawl, job))

    def workers(self, crawl: str) -> list[WorkerEntry]:
        query = f"SELECT {', '.join(WORKER_COLUMNS)} FROM workers WHERE crawl = ? ORDER BY number"  # noqa: S608 - own names
        return self._door.each(lambda row: self._door.worker(crawl, dict(row)), self._db.execute(query, (crawl,)))

    def last_worker(self, crawl: str) -> int:
        row = self._db.execute("SELECT last_worker FROM crawls WHERE id = ?", (crawl,)).fetchone()
        return int(row[0]) if row else 0

    # misses

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        with self._file.step():
            self.insert_misses(crawl, misses)

    def insert_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        self._db.executemany(
            "INSERT INTO misses VALUES (?, ?, ?, ?, ?)",
            [(crawl, miss.batch, text(miss.url), miss.kind, text(miss.reason)) for miss in misses],
        )

    def misses(self, crawl: str) -> list[Miss]:
        query = "SELECT url, kind, reason, batch FROM misses WHERE crawl = ? ORDER BY batch = 0, rowid"
        return self._door.each(lambda row: self._door.miss(crawl, dict(row)), self._db.execute(query, (crawl,)))
