"""The SQLite store's verbs about crawls as a whole, their shards, samples and workers, and about nodes."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import Crawl, Shard, ShardState, WorkerEntry
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.base import CrawlStore
from scrapyd_dist.store.judging import SHARD, judged
from scrapyd_dist.store.rows import FIELD, NODE_FIELDS, check_fields, dated
from scrapyd_dist.store.sqlite_file import SqlitePort


class SqliteCrawls(SqlitePort, CrawlStore):
    def nodes(self) -> list[NodeRecord]:
        return self._all(
            lambda row: self._door.node(row, row[FIELD]), "SELECT * FROM nodes ORDER BY name"
        )

    def update_node(self, name: str, **changes: Any) -> None:
        check_fields("node", changes, NODE_FIELDS)
        row = dated(changes)
        if "url" in row:
            row[FIELD] = self._door.node_signature(name, row)
        with self._file.step():
            self._db.execute("INSERT OR IGNORE INTO nodes (name) VALUES (?)", (name,))
            if row:
                self._update("nodes", row, name=name)

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
        return self._all(
            self._door.crawl, "SELECT * FROM crawls ORDER BY created DESC, number DESC"
        )

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        with self._file.step():
            return not row or self._update("crawls", row, **{**before, "id": crawl}) > 0

    def wanted(self, crawl: str) -> str:
        return str(self._value("SELECT wanted FROM crawls WHERE id = ?", crawl) or "")

    def forget(self, crawl: str) -> None:
        number = self._value("SELECT number FROM crawls WHERE id = ?", crawl)
        if number is None:
            return
        self._change("UPDATE strategies SET crawl = NULL WHERE crawl = ?", (number,))
        self._file.clear(crawl, number)
        self._change("DELETE FROM samples WHERE crawl = ?", (crawl,))
        self._change("DELETE FROM crawls WHERE id = ?", (crawl,))

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        self._crawl_number(crawl)  # else there is no such crawl
        self._change("INSERT INTO samples VALUES (?, ?, ?)", (crawl, at, json.dumps(dict(values))))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        query = "SELECT * FROM samples WHERE crawl = ? ORDER BY at, rowid"
        return self._all(
            lambda row: self._door.sample(crawl, row["at"], row["sample"]), query, crawl
        )

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        self._crawl_number(crawl)
        rows = [
            {**self._signed(_told_of(shard), "shard", crawl), "state": shard.state.value}
            for shard in shards
        ]
        with self._file.step():
            for row in rows:
                self._insert("shards", {"crawl": crawl, **row})

    def shards(self, crawl: str) -> list[Shard]:
        query = "SELECT * FROM shards WHERE crawl = ? ORDER BY number"

        def shard(row: dict[str, Any]) -> Shard:
            # The state changes, and is not signed.
            state = judged(f"a shard of {crawl}", {"state": row["state"]}, SHARD)["state"]
            signed = {name: value for name, value in row.items() if name not in {"crawl", "state"}}
            return replace(self._door.shard(crawl, signed), state=state)

        return self._all(shard, query, crawl)

    def _signed(self, row: Mapping[str, Any], kind: str, crawl: str) -> dict[str, Any]:
        """A row with the column of its signature, which is empty where there is no key."""
        return {FIELD: "", **self._door.signer.signed(row, kind, crawl)}

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        rows = [(ShardState.FINISHED.value, crawl, number) for number in numbers]
        self._change("UPDATE shards SET state = ? WHERE crawl = ? AND number = ?", *rows)

    def walk_again(self, crawl: str) -> None:
        with self._file.step():
            self._db.execute("DELETE FROM misses WHERE crawl = ? AND batch = 0", (crawl,))
            self._db.execute(
                "DELETE FROM counts WHERE crawl = ? AND name != 'sealed' AND name NOT LIKE 'goal.%'",
                (crawl,),
            )

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        with self._file.step():
            there = "UPDATE crawls SET last_worker = max(last_worker, ?) WHERE id = ?"
            if not self._db.execute(there, (last, crawl)).rowcount:
                raise self._door.no_crawl(crawl)
            for worker in workers:
                row = self._signed(
                    {**asdict(worker), "since": float(worker.since)}, "worker", crawl
                )
                self._insert("workers", {"crawl": crawl, **row}, verb="INSERT OR REPLACE")

    def remove_worker(self, crawl: str, job: str) -> None:
        self._change("DELETE FROM workers WHERE crawl = ? AND job = ?", (crawl, job))

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        query = "SELECT * FROM workers WHERE crawl = ? ORDER BY number"
        last = self._value("SELECT last_worker FROM crawls WHERE id = ?", crawl)

        def worker(row: dict[str, Any]) -> WorkerEntry:
            signed = {name: value for name, value in row.items() if name != "crawl"}
            return self._door.worker(crawl, {**signed, "introduces": bool(row["introduces"])})

        return self._all(worker, query, crawl), int(last or 0)


def _told_of(shard: Shard) -> dict[str, Any]:
    """What stays of a shard."""
    return {name: value for name, value in asdict(shard).items() if name != "state"}
