"""The Redis store's verbs about batches: sealing, requeueing, splitting; each step goes by the table of batches.py."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import (
    STEPS,
    Batch,
    BatchState,
    check_step,
)
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.store.frontier_rows import batch_from, handed_down, joined, parted
from scrapyd_dist.store.redis_port import THERE, RedisPort, packed, unpacked, whole
from scrapyd_dist.store.rows import check_done, check_parts, crawl_row, retried_already, signed_row, storable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.frontier.backlog import NewBatch
    from scrapyd_dist.store.redis_crawls import RedisCrawls
    from scrapyd_dist.store.redis_link import RedisConnection

#: buckets of fingerprints that are read together
_BUCKETS = 100
#: batches that are signed together
_TOGETHER = 100


def before(state: BatchState) -> list[str]:
    """The states from which the table leads into this one."""
    return [json.dumps(old.value) for old, new in STEPS.items() if state in new]


class RedisBatches(RedisPort):
    """Batches and fingerprints."""

    def __init__(self, connection: RedisConnection, crawls: RedisCrawls) -> None:
        super().__init__(connection)
        self._crawls = crawls

    # sealing

    def seal(
        self,
        crawl: str,
        payload: Mapping[str, str],
        *,
        size: int,
        fingerprints: Iterable[bytes],
        now: float,
        counts: Mapping[str, int],
    ) -> Batch:
        batch = Batch(number=0, size=size, sealed_at=now)
        made, blobs = self.fresh(crawl, [(batch, payload, ())])
        answer = self._server.step(
            "seal",
            self._base(crawl),
            needed=[self._there(crawl)],
            writes=self._counting(crawl, counts),
            blobs=[*blobs, joined(fingerprints)],
            new=made,
        )
        if "refused" in answer:
            raise StoreError(f"there is no crawl {crawl!r} in {self._server.shown}.")
        return numbered([batch], answer)[0]

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        # A bucket that is split meanwhile gives what was in it to a new one, behind all others: nothing is passed over.
        base, start = self._base(crawl), 0
        while True:
            end = whole(
                self._server.read(lambda: self._client.hget(f"{base}meta", "buckets")), f"the buckets of {crawl}"
            )
            if start >= end:
                return
            some = range(start, min(start + _BUCKETS, end))
            for prints in self._server.ask([("HKEYS", f"{base}f:{bucket}") for bucket in some]):
                yield from prints
            start = some.stop

    # batches

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._server.read(lambda: self._client.hgetall(self._batch_key(crawl, number)))
        if not row:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.batch(unpacked(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        said = self._server.read(lambda: self._client.hget(f"{self._base(crawl)}meta", "batches"))
        last = whole(said, f"the number of batches of {crawl}")
        rows = self._server.ask(("HGETALL", self._batch_key(crawl, number)) for number in range(1, last + 1))
        batches = self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))
        return [batch for batch in batches if not states or batch.state in states]

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        looks = [("HGETALL", self._batch_key(crawl, number)), ("GET", f"{self._base(crawl)}p:{number}")]
        row, text = self._server.ask(looks)
        if not row or text is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.payload(crawl, self._door.batch(unpacked(row)), text)

    def trust(self, crawl: str) -> int:
        row = self._crawls.crawl(crawl)
        text = signed_row(self._door.signer, crawl_row(vars(row)), self._crawls.unchecked(crawl))
        self._crawls.set_row(crawl, {"options": text})
        return self._sign_batches(crawl)

    def _sign_batches(self, crawl: str) -> int:
        batches = self.batches(crawl)
        for start in range(0, len(batches), _TOGETHER):
            some = batches[start : start + _TOGETHER]
            keys = [f"{self._base(crawl)}p:{batch.number}" for batch in some]
            found = zip(keys, some, self._server.ask([("GET", key) for key in keys]), strict=True)
            there = [("SET", key, self._door.resigned(crawl, batch, text)) for key, batch, text in found if text]
            self._write(crawl, *there)
        return len(batches)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        wanted = sorted(set(numbers))
        there = [(self._batch_key(crawl, number), "state", THERE) for number in wanted]
        check_step(BatchState.DEAD, BatchState.SEALED)
        old, new = (json.dumps(state.value) for state in (BatchState.DEAD, BatchState.SEALED))
        # `from` is a word of Python's own
        states = {"from": old, "to": new}
        answer = self._server.step("requeue", self._base(crawl), needed=there, batches=wanted, **states)
        if "refused" in answer:
            raise NothingMatched(f"crawl {crawl} has no batch {wanted[answer['refused'] - 1]}.")
        return list(answer["numbers"])

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        whole = self.batch(crawl, number)
        check_parts(number, whole.size, [part.size for part in parts])
        check_step(whole.state, BatchState.SPLIT)
        new = [batch_from(part, whole.sealed_at, parent=number) for part in parts]
        prints = handed_down(self.batch_fingerprints(crawl, number), whole.size, parts)
        key = self._batch_key(crawl, number)
        made, blobs = self.fresh(crawl, list(zip(new, (part.payload for part in parts), prints, strict=True)))
        answer = self._server.step(
            "split",
            self._base(crawl),
            needed=[(key, "state", before(BatchState.SPLIT))],
            writes=[("HSET", key, *packed({"state": BatchState.SPLIT.value}))],
            blobs=blobs,
            whole=number,
            new=made,
        )
        if "refused" in answer:
            check_step(self.batch(crawl, number).state, BatchState.SPLIT)
            raise StepRefused(f"batch {number} of crawl {crawl} was changed by somebody else meanwhile")
        return numbered(new, answer)

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(self._server.read(lambda: self._client.get(f"{self._base(crawl)}q:{number}")) or b"")

    def retry(
        self,
        crawl: str,
        number: int,
        parts: Sequence[tuple[Mapping[str, str], int]],
        *,
        misses: Sequence[Miss],
        now: float,
    ) -> list[Batch]:
        check_parts(number, len(misses), [size for _, size in parts])
        old = self.batch(crawl, number)
        check_done(number, old.state)
        new = [Batch(number=0, size=size, sealed_at=now, slot=old.slot, priority=old.priority) for _, size in parts]
        # Whoever takes the misses away makes the batches: of two people who retry at once only one does.
        made, blobs = self.fresh(crawl, [(one, payload, ()) for one, (payload, _) in zip(new, parts, strict=True)])
        answer = self._server.step(
            "retry",
            self._base(crawl),
            needed=[(self._batch_key(crawl, number), "state", [json.dumps(BatchState.DONE.value)])],
            blobs=blobs,
            misses=[json.dumps(storable(asdict(miss))) for miss in misses],
            new=made,
        )
        if "refused" in answer:
            raise retried_already(crawl, number)
        return numbered(new, answer)

    def fresh(
        self, crawl: str, new: Iterable[tuple[Batch, Mapping[str, str], Collection[bytes]]]
    ) -> tuple[list[list[str]], list[bytes | str]]:
        """New batches as the script takes them, from batch, payload and the fingerprints that stay with it.

        Returns:
            The fields of each but its number; and two blobs for each, its payload and its fingerprints.
        """
        rows: list[list[str]] = []
        blobs: list[bytes | str] = []
        for batch, payload, prints in new:
            row = {field.name: getattr(batch, field.name) for field in fields(Batch) if field.name != "number"}
            rows.append(packed({**row, "state": batch.state.value}))
            blobs += [self._door.payload_text(crawl, batch, payload), joined(prints)]
        return rows, blobs


def numbered(batches: Sequence[Batch], answer: Mapping[str, Any]) -> list[Batch]:
    """The batches with the numbers that the step has given them."""
    return [replace(batch, number=number) for batch, number in zip(batches, answer["numbers"], strict=True)]
