"""The port for crawls and nodes, in memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import Crawl, Shard, ShardState, WorkerEntry
from scrapyd_dist.errors import StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.rows import NODE_FIELDS, check_fields, dated, storable

from .memory_data import CrawlData, MemoryPort


class MemoryCrawls(MemoryPort, CrawlStore):
    def nodes(self) -> list[NodeRecord]:
        with self._connection.step() as data:
            rows = sorted(data.nodes.items())
            return self._door.each(lambda named: self._node(*named), rows)

    def _node(self, name: str, row: Mapping[str, Any]) -> NodeRecord:
        plain = {**storable(asdict(NodeRecord(name=name))), **row}
        return self._door.node(plain, plain.pop("signature", ""))

    def update_node(self, /, name: str, **changes: Any) -> None:
        check_fields("node", changes, NODE_FIELDS)
        row = storable(dated(changes))
        if "url" in row:
            row["signature"] = self._door.node_signature(name, row)
        with self._connection.step() as data:
            data.nodes.setdefault(name, {}).update(row)

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        with self._connection.step() as data:
            if crawl in data.crawls:
                return False
            data.crawls[crawl] = CrawlData(storable(row), len(data.crawls))
            return True

    def _row(self, crawl: str) -> dict[str, Any]:
        return dict(self._crawl(crawl).row)

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        with self._connection.step() as data:
            if not row:
                return True
            kept = data.crawls.get(crawl)
            if kept is None or any(kept.row[name] != value for name, value in before.items()):
                return False
            kept.row.update(storable(row))
            return True

    def crawls(self) -> list[Crawl]:
        with self._connection.step() as data:
            kept = sorted(
                data.crawls.values(), key=lambda one: (one.row["created"], one.number), reverse=True
            )
            return self._door.each(lambda one: self._door.crawl(one.row), kept)

    def wanted(self, crawl: str) -> str:
        return str(self._found(crawl).row.get("wanted", ""))

    def forget(self, crawl: str) -> None:
        with self._connection.step():
            self._found(crawl).clear()
        with self._connection.step() as data:
            data.crawls.pop(crawl, None)

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        self._crawl(crawl).samples.append((at, dict(values)))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        return sorted(self._found(crawl).samples, key=lambda sample: sample[0])

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        kept = self._crawl(crawl).shards
        numbers = {shard.number for shard in shards}
        if len(numbers) < len(shards) or numbers & kept.keys():
            raise StoreError("there are shards of these numbers already")
        kept.update({shard.number: shard for shard in shards})

    def shards(self, crawl: str) -> list[Shard]:
        return [shard for _, shard in sorted(self._found(crawl).shards.items())]

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        kept = self._crawl(crawl).shards
        for number in kept.keys() & set(numbers):
            kept[number] = replace(kept[number], state=ShardState.FINISHED)

    def walk_again(self, crawl: str) -> None:
        kept = self._crawl(crawl)
        kept.misses = [row for row in kept.misses if row["batch"]]
        for name in list(kept.counts):
            if name != "sealed" and not name.startswith("goal."):
                del kept.counts[name]

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        kept = self._crawl(crawl)
        kept.workers.update({worker.job: worker for worker in workers})
        kept.last_worker = max(kept.last_worker, last)

    def remove_worker(self, crawl: str, job: str) -> None:
        self._found(crawl).workers.pop(job, None)

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        kept = self._found(crawl)
        listed = sorted(kept.workers.values(), key=lambda worker: worker.number)
        return listed, kept.last_worker
