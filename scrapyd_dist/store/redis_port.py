"""What the ports of the Redis store share: the connection, the names of keys, and how rows are written there.

Keys: `<prefix>crawls` has the ids, `<prefix>node:<name>` a node's record, and all of a crawl begins with
`<prefix>c:<id>:`. The prefix has a hash tag. Every value is JSON, but for fingerprints.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import NothingMatched, StoreError
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.rows import storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.store.redis_link import Command, Condition, RedisConnection

#: a field that is there, whatever it says
THERE = ("*",)
_LARGEST = (1 << 63) - 1
#: of batches, and of buckets of fingerprints, no crawl has more
MOST = 100_000_000
_ATTEMPT_NAME = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
#: attempts in one of these are not over; they are listed by it
OPEN = ("sending", "sent", "running", "acked")
#: what stays of the account when the index is walked again
_KEPT_COUNT = "sealed"


def packed(row: Mapping[str, Any]) -> list[str]:
    """Names and values, one after the other, as a hash keeps them."""
    return [word for name, value in row.items() for word in (name, json.dumps(value))]


def unpacked(words: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        return {name.decode(): json.loads(value) for name, value in words.items()}
    except (ValueError, RecursionError):
        raise foreign("a row", f"it is no JSON (it begins with {b' '.join(words.values())[:60]!r})") from None


def word(name: bytes) -> str:
    """A name as the server has it; what no version of ours wrote is replaced, and then matches no row."""
    return name.decode("utf-8", "replace")


def whole(said: Any, what: str) -> int:
    """A number of the server.

    Raises:
        ForeignRow: it is none.
    """
    try:
        number = int(said or 0)
    except ValueError:
        number = -1
    if not 0 <= number <= MOST:
        raise foreign(what, f"it is no whole number up to {MOST:,}")
    return number


class RedisPort:
    """What each port of the store stands on: the connection that they share, and the keys of a crawl."""

    def __init__(self, connection: RedisConnection) -> None:
        self._server, self._client, self._door = connection, connection.client, connection.door

    def _base(self, crawl: str) -> str:
        return f"{self._server.prefix}c:{crawl}:"

    def _there(self, crawl: str) -> Condition:
        return f"{self._base(crawl)}crawl", "id", THERE

    def _write(self, crawl: str, *commands: Command) -> None:
        """Make changes to a crawl that has to be there."""
        if "refused" in self._server.step("steps", self._base(crawl), needed=[self._there(crawl)], writes=commands):
            raise StoreError(f"there is no crawl {crawl!r} in {self._server.shown}.")

    def _batch_key(self, crawl: str, number: int) -> str:
        return f"{self._base(crawl)}b:{number}"

    def _attempt_key(self, crawl: str, batch: int, attempt: int) -> str:
        return f"{self._base(crawl)}a:{batch}.{attempt}"

    def _no_crawl(self, crawl: str) -> NothingMatched:
        return NothingMatched(
            f"there is no crawl {crawl!r} in {self._server.shown}; `sdist crawls` lists those there are."
        )

    def _attempt_names(self, crawl: str) -> list[str]:
        names = self._server.read(lambda: self._client.smembers(f"{self._base(crawl)}attempts"))
        return self._door.each(attempt_name, names)

    def _counting(self, crawl: str, counts: Mapping[str, int]) -> list[Command]:
        if any(abs(value) > _LARGEST for value in counts.values()):
            raise StoreError(f"the store {self._server.shown} cannot hold so large a count.")
        base = self._base(crawl)
        return [
            ("HINCRBY", base + ("kept" if name == _KEPT_COUNT else "counts"), name, value)
            for name, value in counts.items()
            if value
        ]

    def _missing(self, crawl: str, misses: Iterable[Miss]) -> list[Command]:
        base = self._base(crawl)
        rows = [(base + ("misses" if m.batch else "misses:own"), json.dumps(storable(asdict(m)))) for m in misses]
        return [("RPUSH", key, row) for key, row in rows]


def attempt_name(name: bytes) -> str:
    """`<batch>.<attempt>`."""
    if not _ATTEMPT_NAME.fullmatch(word(name)):
        raise foreign(f"an attempt {word(name)[:100]!r}", "no attempt is called so")
    return word(name)
