"""The Redis store's verbs about crawls as a whole, their shards, samples and workers, and about nodes."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import CRAWL_NAME, Crawl, Shard, ShardState, WorkerEntry
from scrapyd_dist.errors import StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.base import CrawlStore
from scrapyd_dist.store.judging import foreign, from_json
from scrapyd_dist.store.redis_link import (
    CHUNK,
    LOG,
    MOST_LINKS,
    OF_A_STRATEGY,
    OPEN,
    Condition,
    RedisPort,
    packed,
    unpacked,
    whole,
    word,
)
from scrapyd_dist.store.rows import NODE_FIELDS, check_fields, dated, storable

#: the keys of a crawl of which there is one
_KEYS = (
    "meta",
    "attempts",
    "counts",
    "kept",
    "shards",
    "finished",
    "samples",
    "workers",
    "misses",
    "misses:own",
    "leases",
    "holders",
    "crawl",
    "slots",
    "waiting",
    "producers",
    *(f"open:{state}" for state in OPEN),
    *(f"turns:{name}" for name in ("free", "out", "last", "holder", "held", "hungry")),
    *(f"s:{name}" for name in OF_A_STRATEGY),
)


class RedisCrawls(RedisPort, CrawlStore):
    def nodes(self) -> list[NodeRecord]:
        names = sorted(map(word, self._look("SMEMBERS", f"{self._server.prefix}nodes")))
        empty = storable(asdict(NodeRecord(name="")))
        looks = [("HGETALL", f"{self._server.prefix}node:{name}") for name in names]
        *rows, signatures = self._server.ask(
            [*looks, ("HGETALL", f"{self._server.prefix}nodes:signed")]
        )

        def node(named: tuple[str, Mapping[bytes, bytes]]) -> NodeRecord:
            name, row = named
            return self._door.node(
                {**empty, **unpacked(row), "name": name}, word(signatures.get(name.encode(), b""))
            )

        return self._door.each(node, zip(names, rows, strict=True))

    def update_node(self, name: str, **changes: Any) -> None:
        check_fields("node", changes, NODE_FIELDS)
        changes = dated(changes)
        row = packed({**changes, "name": name})
        commands = [
            ("SADD", f"{self._server.prefix}nodes", name),
            ("HSET", f"{self._server.prefix}node:{name}", *row),
        ]
        if "url" in changes:
            signature = self._door.node_signature(name, changes)
            commands.append(("HSET", f"{self._server.prefix}nodes:signed", name, signature))
        self._server.step("steps", self._server.prefix, writes=commands)

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        base, index = self._base(crawl), f"{self._server.prefix}crawls"
        made = [("HSET", f"{base}crawl", *packed(row))]
        new = Condition(f"{base}crawl", "id", ())
        answer = self._server.step(
            "crawl", base, needed=[new], writes=made, keys=[index], index=index, id=crawl
        )
        return "refused" not in answer

    def _row(self, crawl: str) -> dict[str, Any]:
        row = self._look("HGETALL", f"{self._base(crawl)}crawl")
        if not row:
            raise self._door.no_crawl(crawl)
        return unpacked(row)

    def crawls(self) -> list[Crawl]:
        index = self._look("HGETALL", f"{self._server.prefix}crawls")
        order = dict(
            self._door.each(
                _place, ((word(name), number) for name, number in index.items() if name)
            )
        )
        rows = zip(
            order,
            self._server.ask([("HGETALL", f"{self._base(name)}crawl") for name in order]),
            strict=True,
        )
        there = [(name, row) for name, row in rows if row]  # one may have been forgotten meanwhile
        crawls = self._door.each(lambda pair: self._door.crawl(unpacked(pair[1]), pair[0]), there)
        return sorted(crawls, key=lambda crawl: (crawl.created, order[crawl.id]), reverse=True)

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        key, as_before = f"{self._base(crawl)}crawl", {**before, "id": crawl}
        needed = [Condition(key, name, [json.dumps(value)]) for name, value in as_before.items()]
        writes = [("HSET", key, *packed(row))]
        return not row or "refused" not in self._server.step(
            "steps", self._base(crawl), needed=needed, writes=writes
        )

    def wanted(self, crawl: str) -> str:
        return str(json.loads(self._look("HGET", f"{self._base(crawl)}crawl", "wanted") or b'""'))

    def forget(self, crawl: str) -> None:
        base, keys = self._base(crawl), list(self._keys(crawl))
        for start in range(0, len(keys), CHUNK):
            self._server.ask([("UNLINK", *keys[start : start + CHUNK])])
        gone = [("UNLINK", base + name) for name in _KEYS]
        self._server.step(
            "steps", base, writes=[*gone, ("HDEL", f"{self._server.prefix}crawls", crawl)]
        )

    def _keys(self, crawl: str) -> Iterator[str]:
        """The keys of a crawl of which there may be many."""
        base = self._base(crawl)
        yield from (f"{base}f:{bucket}" for bucket in range(self._number_of(crawl, "buckets")))
        yield from (
            f"{base}a:{number}"
            for number in self._attempt_names(self._look("SMEMBERS", f"{base}attempts"))
        )
        for number in range(1, self._number_of(crawl, "batches") + 1):
            yield from (f"{base}b:{number}", f"{base}p:{number}", f"{base}q:{number}")
        yield from (f"{base}w:{word(slot)}" for slot in self._look("SMEMBERS", f"{base}waiting"))
        yield from (
            f"{base}turns:of:{word(holder)}" for holder in self._look("HKEYS", f"{base}turns:held")
        )
        for slot, partitions in self._look("HGETALL", f"{base}s:lines").items():
            yield from (
                f"{base}s:q:{one}:{word(slot)}" for one in word(partitions).split(",") if one
            )
        changes = whole(
            self._look("HGET", f"{base}s:meta", "changes"), "the number of changes", MOST_LINKS
        )
        yield from (f"{base}s:log:{number}" for number in range(changes // LOG + 1))

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        self._write(crawl, ("RPUSH", f"{self._base(crawl)}samples", json.dumps([at, dict(values)])))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        def sample(row: bytes) -> tuple[float, dict[str, Any]]:
            said = from_json(f"a sample of {crawl}", row)
            at, values = said if isinstance(said, list) and len(said) == 2 else (None, None)
            return self._door.sample(crawl, at, values)

        (rows,) = self._server.ask([("LRANGE", f"{self._base(crawl)}samples", 0, -1)])
        return sorted(self._door.each(sample, rows), key=lambda row: row[0])

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        key = f"{self._base(crawl)}shards"
        rows = {
            str(shard.number): self._door.signer.signed(vars(shard), "shard", crawl)
            for shard in shards
        }
        taken = StoreError(f"the store {self._server.shown} has shards of these numbers already.")
        if len(rows) < len(shards):
            raise taken
        needed = [self._there(crawl), *(Condition(key, number, (), taken) for number in rows)]
        commands = [("HSET", key, number, json.dumps(row)) for number, row in rows.items()]
        self._server.step("steps", self._base(crawl), needed=needed, writes=commands)

    def shards(self, crawl: str) -> list[Shard]:
        rows = self._look("HVALS", f"{self._base(crawl)}shards")
        finished = set(map(word, self._look("SMEMBERS", f"{self._base(crawl)}finished")))

        def shard(row: bytes) -> Shard:
            found = self._door.shard(crawl, row)
            return (
                replace(found, state=ShardState.FINISHED)
                if str(found.number) in finished
                else found
            )

        return sorted(self._door.each(shard, rows), key=lambda shard: shard.number)

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        self._write(
            crawl, *(("SADD", f"{self._base(crawl)}finished", number) for number in numbers)
        )

    def walk_again(self, crawl: str) -> None:
        base = self._base(crawl)
        self._write(crawl, ("UNLINK", f"{base}misses:own"), ("UNLINK", f"{base}counts"))

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        base = self._base(crawl)
        rows = [
            (worker.job, self._door.signer.signed(asdict(worker), "worker", crawl))
            for worker in workers
        ]
        commands = [("HSET", f"{base}workers", job, json.dumps(row)) for job, row in rows]
        self._server.step("workers", base, needed=[self._there(crawl)], writes=commands, last=last)

    def remove_worker(self, crawl: str, job: str) -> None:
        base = self._base(crawl)
        self._server.step("steps", base, writes=[("HDEL", f"{base}workers", job)])

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        (rows,) = self._server.ask([("HGETALL", f"{self._base(crawl)}workers")])
        listed = self._door.each(partial(self._door.worker, crawl), rows.values())
        return sorted(listed, key=lambda worker: worker.number), self._number_of(crawl, "workers")


def _place(listed_: tuple[str, bytes]) -> tuple[str, int]:
    """A crawl of the list of crawls, and where it stands there."""
    name, number = listed_
    if not CRAWL_NAME.fullmatch(name):
        raise foreign(f"a crawl {name[:100]!r}", "no crawl can be called so")
    return name, whole(number, f"the place of the crawl {name}")
