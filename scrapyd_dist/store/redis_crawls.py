"""The Redis store's verbs about crawls as a whole, their shards, counts, samples and misses, and about nodes.

Keys: `<prefix>crawls` has the ids, `<prefix>node:<name>` a node's record, and all of a crawl begins with
`<prefix>c:<id>:`. Every value is JSON, but for fingerprints.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Crawl, Miss, ShardState
from scrapyd_dist.errors import NameTaken, NothingMatched, StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.redis_link import CHUNK, RedisLink
from scrapyd_dist.store.rows import (
    CRAWL_FIELDS,
    NODE_FIELDS,
    check_fields,
    check_wanted,
    crawl_of,
    crawl_row,
    node_of,
    node_row,
    shard_of,
    storable,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Shard

#: a field that is there, whatever it says
THERE = ("*",)
_LARGEST = (1 << 63) - 1
#: attempts in one of these are not over; they are listed by it
OPEN = ("sending", "sent", "running", "acked")
#: what stays of the account when the index is walked again
_KEPT_COUNT = "sealed"


def packed(row: Mapping[str, Any]) -> list[str]:
    """Names and values, one after the other, as a hash keeps them."""
    return [word for name, value in row.items() for word in (name, json.dumps(value))]


def unpacked(words: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {name.decode(): json.loads(value) for name, value in words.items()}


def conditions(*needed: tuple[str, str, Collection[object]]) -> list[object]:
    """As the script reads them: a key, a field, and the values it may have."""
    words: list[object] = [len(needed)]
    for key, field, values in needed:
        words += [key, field, len(values), *values]
    return words


def writes(*commands: Sequence[object]) -> list[object]:
    """As the script reads them: commands that are made one after the other."""
    words: list[object] = [len(commands)]
    for command in commands:
        words += [len(command), *command]
    return words


def listed(words: Collection[object]) -> list[object]:
    """As the script reads a list."""
    return [len(words), *words]


class RedisCrawls(RedisLink):
    """Nodes, crawls, counts, shards, samples, misses."""

    def _base(self, crawl: str) -> str:
        return f"{self.prefix}c:{crawl}:"

    def _there(self, crawl: str) -> tuple[str, str, Collection[object]]:
        return f"{self._base(crawl)}crawl", "id", THERE

    def _write(self, crawl: str, *commands: Sequence[object]) -> None:
        """Make changes to a crawl that has to be there."""
        if self.step("steps", *conditions(self._there(crawl)), *writes(*commands))[0] != "ok":
            raise StoreError(f"there is no crawl {crawl!r} in {self.shown}.")

    # nodes

    def nodes(self) -> list[NodeRecord]:
        names = sorted(name.decode() for name in self.read(lambda: self._client.smembers(f"{self.prefix}nodes")))
        empty = node_row(asdict(NodeRecord(name="")))
        rows = self.ask([("HGETALL", f"{self.prefix}node:{name}") for name in names])
        return [node_of({**empty, **unpacked(row), "name": name}) for name, row in zip(names, rows, strict=True)]

    def update_node(self, name: str, **changes: Any) -> None:
        check_fields("node", changes, NODE_FIELDS)
        row = packed({**node_row(changes), "name": name})
        commands = writes(("SADD", f"{self.prefix}nodes", name), ("HSET", f"{self.prefix}node:{name}", *row))
        self.step("steps", *conditions(), *commands)

    # crawls

    def add_crawl(self, crawl: Crawl) -> None:
        key = f"{self._base(crawl.id)}crawl"
        row = crawl_row({field.name: getattr(crawl, field.name) for field in fields(Crawl)})
        taken, index = conditions((key, "id", ())), f"{self.prefix}crawls"
        made = writes(("HSET", key, *packed(row)), ("HSET", f"{self._base(crawl.id)}meta", "indexed", 1))
        if self.step("crawl", *taken, index, crawl.id, *made)[0] != "ok":
            raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")

    def crawl(self, crawl: str) -> Crawl:
        row = self.read(lambda: self._client.hgetall(f"{self._base(crawl)}crawl"))
        if not row:
            raise self._no_crawl(crawl)
        return crawl_of(unpacked(row))

    def _no_crawl(self, crawl: str) -> NothingMatched:
        return NothingMatched(f"there is no crawl {crawl!r} in {self.shown}; `sdist crawls` lists those there are.")

    def crawls(self) -> list[Crawl]:
        index = self.read(lambda: self._client.hgetall(f"{self.prefix}crawls"))
        order = {name.decode(): int(number) for name, number in index.items() if name}
        rows = self.ask([("HGETALL", f"{self._base(name)}crawl") for name in order])
        crawls = [crawl_of(unpacked(row)) for row in rows if row]  # one may have been forgotten meanwhile
        return sorted(crawls, key=lambda crawl: (crawl.created, order[crawl.id]), reverse=True)

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        check_fields("crawl", changes, CRAWL_FIELDS)
        if changes:
            change = ("HSET", f"{self._base(crawl)}crawl", *packed(crawl_row(changes)))
            self.step("steps", *conditions(self._there(crawl)), *writes(change))

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        self.crawl(crawl)
        key = f"{self._base(crawl)}crawl"
        named = [(key, name, [json.dumps(value)]) for name, value in zip(("pid", "host"), before, strict=True)]
        change = ("HSET", key, *packed({"pid": pid, "host": host}))
        return self.step("steps", *conditions(self._there(crawl), *named), *writes(change))[0] == "ok"

    def want(self, crawl: str, what: str) -> None:
        check_wanted(what)
        change = ("HSET", f"{self._base(crawl)}crawl", *packed({"wanted": what}))
        if self.step("steps", *conditions(self._there(crawl)), *writes(change))[0] != "ok":
            raise self._no_crawl(crawl)

    def forget(self, crawl: str) -> None:
        base = self._base(crawl)
        keys = list(self._keys(crawl))
        for start in range(0, len(keys), CHUNK):
            self.ask([("UNLINK", *keys[start : start + CHUNK])])
        last = [base + name for name in ("meta", "attempts", "counts", "kept", "shards", "finished", "samples")]
        last += [base + name for name in ("misses", "misses:own", "leases", "holders", "crawl")]
        last += [base + name for name in ("slots", "waiting", "producers", *(f"open:{state}" for state in OPEN))]
        last += [f"{base}turns:{name}" for name in ("free", "out", "last", "holder", "held", "hungry")]
        self.step("steps", *conditions(), *writes(("UNLINK", *last), ("HDEL", f"{self.prefix}crawls", crawl)))

    def _keys(self, crawl: str) -> Iterator[str]:
        """The keys of a crawl of which there may be many."""
        base = self._base(crawl)
        meta = {
            name.decode(): int(value) for name, value in self.read(lambda: self._client.hgetall(f"{base}meta")).items()
        }
        yield from (f"{base}f:{bucket}" for bucket in range(meta.get("buckets", 0)))
        yield from (f"{base}a:{number}" for number in self._attempt_names(crawl))
        for number in range(1, meta.get("batches", 0) + 1):
            yield from (f"{base}b:{number}", f"{base}p:{number}", f"{base}q:{number}")
        slots = self.read(lambda: self._client.smembers(f"{base}waiting"))
        yield from (f"{base}w:{slot.decode()}" for slot in slots)
        holders = self.read(lambda: self._client.hkeys(f"{base}turns:held"))
        yield from (f"{base}turns:of:{holder.decode()}" for holder in holders)

    def _attempt_names(self, crawl: str) -> list[str]:
        names = self.read(lambda: self._client.smembers(f"{self._base(crawl)}attempts"))
        return [name.decode() for name in names]

    # counts

    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        self._write(crawl, *self._counting(crawl, counts))

    def _counting(self, crawl: str, counts: Mapping[str, int]) -> list[Sequence[object]]:
        if any(abs(value) > _LARGEST for value in counts.values()):
            raise StoreError(f"the store {self.shown} cannot hold so large a count.")
        base = self._base(crawl)
        return [
            ("HINCRBY", base + ("kept" if name == _KEPT_COUNT else "counts"), name, value)
            for name, value in counts.items()
            if value
        ]

    def counts(self, crawl: str) -> dict[str, int]:
        kept, others = self.ask([("HGETALL", self._base(crawl) + name) for name in ("kept", "counts")])
        return {name.decode(): int(value) for name, value in {**others, **kept}.items()}

    # samples

    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        self._write(crawl, ("RPUSH", f"{self._base(crawl)}samples", json.dumps([at, dict(values)])))

    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        rows = [json.loads(row) for row in self.read(lambda: self._client.lrange(f"{self._base(crawl)}samples", 0, -1))]
        return sorted(((at, values) for at, values in rows), key=lambda row: row[0])

    # shards

    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        key = f"{self._base(crawl)}shards"
        rows = {str(s.number): {**asdict(s), "state": s.state.value} for s in shards}
        taken = conditions(self._there(crawl), *((key, number, ()) for number in rows))
        commands = [("HSET", key, number, json.dumps(row)) for number, row in rows.items()]
        if len(rows) < len(shards) or self.step("steps", *taken, *writes(*commands))[0] != "ok":
            raise StoreError(f"the store {self.shown} has shards of these numbers already, or no crawl {crawl!r}.")

    def shards(self, crawl: str) -> list[Shard]:
        rows = self.read(lambda: self._client.hvals(f"{self._base(crawl)}shards"))
        finished = {int(number) for number in self.read(lambda: self._client.smembers(f"{self._base(crawl)}finished"))}
        shards = [json.loads(row) for row in rows]
        for shard in shards:
            shard["state"] = ShardState.FINISHED.value if shard["number"] in finished else shard["state"]
        return sorted(map(shard_of, shards), key=lambda shard: shard.number)

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        self._write(crawl, *(("SADD", f"{self._base(crawl)}finished", number) for number in numbers))

    def walk_again(self, crawl: str) -> None:
        base = self._base(crawl)
        self._write(crawl, ("UNLINK", f"{base}misses:own", f"{base}counts"))

    # misses

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None:
        self._write(crawl, *self._missing(crawl, misses))

    def _missing(self, crawl: str, misses: Iterable[Miss]) -> list[Sequence[object]]:
        base = self._base(crawl)
        rows = [(base + ("misses" if m.batch else "misses:own"), json.dumps(storable(asdict(m)))) for m in misses]
        return [("RPUSH", key, row) for key, row in rows]

    def misses(self, crawl: str) -> list[Miss]:
        base = self._base(crawl)
        of_batches, own = self.ask([("LRANGE", base + name, 0, -1) for name in ("misses", "misses:own")])
        return [Miss(**json.loads(row)) for row in (*of_batches, *own)]
