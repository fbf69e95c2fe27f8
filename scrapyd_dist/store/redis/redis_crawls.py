"""The Redis store's verbs about crawls as a whole, with shards, samples and workers; and nodes."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import CRAWL_NAME, Crawl, Shard, ShardState, WorkerEntry
from scrapyd_dist.errors import StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.judging import foreign, from_json
from scrapyd_dist.store.ports.link_rows import split_evenly
from scrapyd_dist.store.ports.rows import NODE_FIELDS, check_fields, dated, storable
from scrapyd_dist.store.redis.redis_link import (
    CHUNK,
    LOG,
    MOST_LINKS,
    OF_A_STRATEGY,
    OPEN,
    Command,
    Condition,
    RedisPort,
    by_word,
    packed,
    rows_there,
    unpacked,
    whole,
    word,
)

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
    """The port for crawls and nodes on a Redis server."""

    # nodes

    def nodes(self) -> list[NodeRecord]:
        """Return what is remembered of nodes, by name."""
        prefix = self._server.prefix
        names = sorted(map(word, self._query("SMEMBERS", f"{prefix}nodes")))
        commands = [("HGETALL", f"{prefix}node:{name}") for name in names]
        commands.append(("HGETALL", f"{prefix}nodes:signed"))
        *rows, signatures = self._server.query_all(commands)
        empty = storable(asdict(NodeRecord(name="")))

        def read_node(named_row: tuple[str, Mapping[bytes, bytes]]) -> NodeRecord:
            name, row = named_row
            signature = word(signatures.get(name.encode(), b""))
            return self._door.node({**empty, **unpacked(row), "name": name}, signature)

        return self._door.each(read_node, zip(names, rows, strict=True))

    def update_node(self, name: str, **changes: Any) -> None:
        """Set fields of the node's record; with an address, its signature as well."""
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

    # crawls

    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        base = self._base(crawl)
        index = f"{self._server.prefix}crawls"
        answer = self._server.step(
            "crawl",
            base,
            needed=[Condition(f"{base}crawl", "id", ())],
            writes=[("HSET", f"{base}crawl", *packed(row))],
            keys=[index],
            index=index,
            id=crawl,
        )
        return "refused" not in answer

    def _row(self, crawl: str) -> dict[str, Any]:
        row = self._query("HGETALL", f"{self._base(crawl)}crawl")
        if not row:
            raise self._door.no_crawl(crawl)
        return unpacked(row)

    def crawls(self) -> list[Crawl]:
        """Return all crawls that can be read, newest first."""
        index = self._query("HGETALL", f"{self._server.prefix}crawls")
        index.pop(b"", None)
        order = dict(self._door.each(_place, by_word(index).items()))
        rows = self._server.query_all([("HGETALL", f"{self._base(name)}crawl") for name in order])
        crawls = self._door.each(
            lambda named_row: self._door.crawl(unpacked(named_row[1]), named_row[0]),
            rows_there(order, rows),
        )
        return sorted(crawls, key=lambda crawl: (crawl.created, order[crawl.id]), reverse=True)

    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        if not row:
            return True
        key = f"{self._base(crawl)}crawl"
        kept = {**before, "id": crawl}
        needed = [Condition(key, name, [json.dumps(value)]) for name, value in kept.items()]
        writes = [("HSET", key, *packed(row))]
        answer = self._server.step("steps", self._base(crawl), needed=needed, writes=writes)
        return "refused" not in answer

    def wanted(self, crawl: str) -> str:
        """Return what the crawl was asked for."""
        kept = self._query("HGET", f"{self._base(crawl)}crawl", "wanted")
        return str(json.loads(kept or b'""'))

    def forget(self, crawl: str) -> None:
        """Remove the crawl's keys in pieces, then its single keys and its name in one step."""
        base = self._base(crawl)
        for chunk in split_evenly(list(self._keys(crawl)), CHUNK):
            self._server.query_all([("UNLINK", *chunk)])
        writes: list[Command] = [("UNLINK", base + name) for name in _KEYS]
        writes.append(("HDEL", f"{self._server.prefix}crawls", crawl))
        self._server.step("steps", base, writes=writes)

    def _keys(self, crawl: str) -> Iterator[str]:
        """Yield the keys of a crawl of which there may be many."""
        base = self._base(crawl)
        for bucket in range(self._number_of(crawl, "buckets")):
            yield f"{base}f:{bucket}"
        for name in self._attempt_names(self._query("SMEMBERS", f"{base}attempts")):
            yield f"{base}a:{name}"
        for number in range(1, self._number_of(crawl, "batches") + 1):
            yield from (f"{base}b:{number}", f"{base}p:{number}", f"{base}q:{number}")
        for slot in self._query("SMEMBERS", f"{base}waiting"):
            yield f"{base}w:{word(slot)}"
        for holder in self._query("HKEYS", f"{base}turns:held"):
            yield f"{base}turns:of:{word(holder)}"
        yield from self._strategy_keys(f"{base}s:")

    def _strategy_keys(self, base: str) -> Iterator[str]:
        for slot, partitions in self._query("HGETALL", f"{base}lines").items():
            for partition in word(partitions).split(","):
                if partition:
                    yield f"{base}q:{partition}:{word(slot)}"
        kept = self._query("HGET", f"{base}meta", "changes")
        changes = whole(kept, "the number of changes", MOST_LINKS)
        for number in range(changes // LOG + 1):
            yield f"{base}log:{number}"

    # samples

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep a sample of the crawl."""
        self._write(crawl, ("RPUSH", f"{self._base(crawl)}samples", json.dumps([at, dict(values)])))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Return time and document of each sample, in order of time."""

        def read_sample(row: bytes) -> tuple[float, dict[str, Any]]:
            pair = from_json(f"a sample of {crawl}", row)
            if not isinstance(pair, list) or len(pair) != 2:
                pair = (None, None)
            return self._door.sample(crawl, *pair)

        (rows,) = self._server.query_all([("LRANGE", f"{self._base(crawl)}samples", 0, -1)])
        return sorted(self._door.each(read_sample, rows), key=lambda sample: sample[0])

    # shards

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        """Keep new shards; `StoreError` when a number is taken."""
        key = f"{self._base(crawl)}shards"
        taken = StoreError(f"the store {self._server.shown} has shards of these numbers already.")
        rows: dict[str, str] = {}
        for shard in shards:
            signed = self._door.signer.signed(vars(shard), "shard", crawl)
            rows[str(shard.number)] = json.dumps(signed)
        if len(rows) < len(shards):
            raise taken
        needed = [self._crawl_is_there(crawl)]
        commands = []
        for number, row in rows.items():
            needed.append(Condition(key, number, (), taken))
            commands.append(("HSET", key, number, row))
        self._server.step("steps", self._base(crawl), needed=needed, writes=commands)

    def shards(self, crawl: str) -> list[Shard]:
        """Return the shards, by number."""
        rows = self._query("HVALS", f"{self._base(crawl)}shards")
        finished = set(map(word, self._query("SMEMBERS", f"{self._base(crawl)}finished")))

        def read_shard(row: bytes) -> Shard:
            shard = self._door.shard(crawl, row)
            if str(shard.number) in finished:
                return replace(shard, state=ShardState.FINISHED)
            return shard

        return sorted(self._door.each(read_shard, rows), key=lambda shard: shard.number)

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """Note that these shards need no walk any more."""
        key = f"{self._base(crawl)}finished"
        self._write(crawl, *(("SADD", key, number) for number in numbers))

    def walk_again(self, crawl: str) -> None:
        """Forget the producer's own misses, and all counts but what is sealed."""
        base = self._base(crawl)
        self._write(crawl, ("UNLINK", f"{base}misses:own"), ("UNLINK", f"{base}counts"))

    # workers

    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List workers that are about to be posted; `last` is the highest number given."""
        base = self._base(crawl)
        commands = []
        for worker in workers:
            row = self._door.signer.signed(asdict(worker), "worker", crawl)
            commands.append(("HSET", f"{base}workers", worker.job, json.dumps(row)))
        needed = [self._crawl_is_there(crawl)]
        self._server.step("workers", base, needed=needed, writes=commands, last=last)

    def remove_worker(self, crawl: str, job: str) -> None:
        """Take the worker with this job from the list."""
        base = self._base(crawl)
        self._server.step("steps", base, writes=[("HDEL", f"{base}workers", job)])

    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        """Return the listed workers by number, and the highest number given."""
        (rows,) = self._server.query_all([("HGETALL", f"{self._base(crawl)}workers")])
        listed = self._door.each(partial(self._door.worker, crawl), rows.values())
        return sorted(listed, key=lambda worker: worker.number), self._number_of(crawl, "workers")


def _place(listed_crawl: tuple[str, bytes]) -> tuple[str, int]:
    """Return the name of a crawl of the list, and where it stands there."""
    name, number = listed_crawl
    if not CRAWL_NAME.fullmatch(name):
        raise foreign(f"a crawl {name[:100]!r}", "no crawl can be called so")
    return name, whole(number, f"the place of the crawl {name}")
