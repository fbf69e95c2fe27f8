"""The SQLite store's verbs about crawls as a whole, with shards, samples and workers; and nodes."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import Crawl, Shard, ShardState, WorkerEntry
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.judging import SHARD, judged
from scrapyd_dist.store.ports.rows import FIELD, NODE_FIELDS, check_fields, dated
from scrapyd_dist.store.sqlite.sqlite_file import SqlitePort


class SqliteCrawls(SqlitePort, CrawlStore):
    """The port for crawls and nodes in an SQLite file."""

    # nodes

    def nodes(self) -> list[NodeRecord]:
        """Return what is remembered of nodes, by name."""
        query = "SELECT * FROM nodes ORDER BY name"
        return self._all(lambda row: self._door.node(row, row[FIELD]), query)

    def update_node(self, name: str, **changes: Any) -> None:
        """Set fields of the node's record; with an address, its signature as well."""
        check_fields("node", changes, NODE_FIELDS)
        row = dated(changes)
        if "url" in row:
            row[FIELD] = self._door.node_signature(name, row)
        with self._file.step():
            self._db.execute("INSERT OR IGNORE INTO nodes (name) VALUES (?)", (name,))
            if row:
                self._update("nodes", row, name=name)

    # crawls

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        with self._file.step():
            if self._value("SELECT 1 FROM crawls WHERE id = ?", crawl):
                return False
            last = self._value("SELECT max(number) FROM crawls") or 0
            self._insert("crawls", {**row, "number": last + 1})
            return True

    def _row(self, crawl: str) -> dict[str, Any]:
        row = self._db.execute("SELECT * FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            raise self._door.no_crawl(crawl)
        return dict(row)

    def crawls(self) -> list[Crawl]:
        """Return all crawls that can be read, newest first."""
        query = "SELECT * FROM crawls ORDER BY created DESC, number DESC"
        return self._all(self._door.crawl, query)

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        with self._file.step():
            if not row:
                return True
            return self._update("crawls", row, **{**before, "id": crawl}) > 0

    def wanted(self, crawl: str) -> str:
        """Return what the crawl was asked for."""
        return str(self._value("SELECT wanted FROM crawls WHERE id = ?", crawl) or "")

    def forget(self, crawl: str) -> None:
        """Remove all of the crawl in many steps, its row last."""
        number = self._value("SELECT number FROM crawls WHERE id = ?", crawl)
        if number is None:
            return
        self._change("UPDATE strategies SET crawl = NULL WHERE crawl = ?", (number,))
        self._file.clear(crawl, number)
        self._change("DELETE FROM samples WHERE crawl = ?", (crawl,))
        self._change("DELETE FROM crawls WHERE id = ?", (crawl,))

    # samples

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep a sample of the crawl."""
        self._crawl_number(crawl)  # raises when there is no such crawl
        self._change("INSERT INTO samples VALUES (?, ?, ?)", (crawl, at, json.dumps(dict(values))))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Return time and document of each sample, in order of time."""

        def read_sample(row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
            return self._door.sample(crawl, row["at"], row["sample"])

        query = "SELECT * FROM samples WHERE crawl = ? ORDER BY at, rowid"
        return self._all(read_sample, query, crawl)

    # shards

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        """Keep new shards; their numbers must not be taken."""
        self._crawl_number(crawl)
        with self._file.step():
            for shard in shards:
                plain = asdict(shard)
                # The state changes, and is not signed.
                state = plain.pop("state")
                row = self._signed(plain, "shard", crawl)
                self._insert("shards", {"crawl": crawl, **row, "state": state.value})

    def shards(self, crawl: str) -> list[Shard]:
        """Return the shards, by number."""

        def read_shard(row: dict[str, Any]) -> Shard:
            state = judged(f"a shard of {crawl}", {"state": row.pop("state")}, SHARD)["state"]
            del row["crawl"]
            return replace(self._door.shard(crawl, row), state=state)

        query = "SELECT * FROM shards WHERE crawl = ? ORDER BY number"
        return self._all(read_shard, query, crawl)

    def _signed(self, row: Mapping[str, Any], kind: str, crawl: str) -> dict[str, Any]:
        """Return a row with the column of its signature, which is empty where there is no key."""
        return {FIELD: "", **self._door.signer.signed(row, kind, crawl)}

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """Note that these shards need no walk any more."""
        rows = [(ShardState.FINISHED.value, crawl, number) for number in numbers]
        self._change("UPDATE shards SET state = ? WHERE crawl = ? AND number = ?", *rows)

    def walk_again(self, crawl: str) -> None:
        """Forget the producer's own misses, and all counts but what is sealed and goals."""
        counts = (
            "DELETE FROM counts WHERE crawl = ? AND name != 'sealed' AND name NOT LIKE 'goal.%'"
        )
        with self._file.step():
            self._db.execute("DELETE FROM misses WHERE crawl = ? AND batch = 0", (crawl,))
            self._db.execute(counts, (crawl,))

    # workers

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List workers that are about to be posted; `last` is the highest number given."""
        query = "UPDATE crawls SET last_worker = max(last_worker, ?) WHERE id = ?"
        with self._file.step():
            if not self._db.execute(query, (last, crawl)).rowcount:
                raise self._door.no_crawl(crawl)
            for worker in workers:
                plain = {**asdict(worker), "since": float(worker.since)}
                row = self._signed(plain, "worker", crawl)
                self._insert("workers", {"crawl": crawl, **row}, verb="INSERT OR REPLACE")

    def remove_worker(self, crawl: str, job: str) -> None:
        """Take the worker with this job from the list."""
        self._change("DELETE FROM workers WHERE crawl = ? AND job = ?", (crawl, job))

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        """Return the listed workers by number, and the highest number given."""

        def read_worker(row: dict[str, Any]) -> WorkerEntry:
            del row["crawl"]
            row["introduces"] = bool(row["introduces"])
            return self._door.worker(crawl, row)

        last = self._value("SELECT last_worker FROM crawls WHERE id = ?", crawl)
        query = "SELECT * FROM workers WHERE crawl = ? ORDER BY number"
        return self._all(read_worker, query, crawl), int(last or 0)
