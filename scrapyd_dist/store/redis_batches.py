"""The Redis store's verbs about batches, their attempts and leases; each step goes by the tables of batches.py."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from scrapyd_dist.batches import (
    ATTEMPT_STEPS,
    LEASABLE,
    STEPS,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Miss,
    check_attempt_step,
    check_step,
    job_id,
)
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.store.base import AttemptStore, BatchStore
from scrapyd_dist.store.frontier_rows import AttemptMove, FreshBatch, joined, lost_lease, parted
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_crawls import RedisCrawls
from scrapyd_dist.store.redis_link import (
    OPEN,
    THERE,
    Command,
    Condition,
    RedisConnection,
    RedisPort,
    attempt_name,
    packed,
    unpacked,
    whole,
)
from scrapyd_dist.store.rows import retried_already, storable

#: buckets of fingerprints that are read together
_BUCKETS = 100
#: batches that are signed together
_TOGETHER = 100


def before(state: BatchState | AttemptState) -> list[str]:
    """The states from which the tables lead into this one."""
    steps: Mapping[Any, Collection[Any]] = STEPS if isinstance(state, BatchState) else ATTEMPT_STEPS
    return [json.dumps(old.value) for old, new in steps.items() if state in new]


class RedisBatches(RedisPort, BatchStore):
    def __init__(self, connection: RedisConnection, crawls: RedisCrawls) -> None:
        super().__init__(connection)
        self._crawls = crawls

    def _seal(self, crawl: str, new: FreshBatch, fingerprints: Iterable[bytes], counts: Mapping[str, int]) -> Batch:
        needed, counting = [self._there(crawl)], self._counting(crawl, counts)
        answer = self.make("seal", crawl, [new], joined(fingerprints), needed=needed, writes=counting)
        if "refused" in answer:
            raise StoreError(f"there is no crawl {crawl!r} in {self._server.shown}.")
        return numbered([new], answer)[0]

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
        self._crawls.sign(crawl)
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

    def _split(self, crawl: str, number: int, new: Sequence[FreshBatch]) -> list[Batch]:
        key = self._batch_key(crawl, number)
        needed = [(key, "state", before(BatchState.SPLIT))]
        writes = [("HSET", key, *packed({"state": BatchState.SPLIT.value}))]
        answer = self.make("split", crawl, new, needed=needed, writes=writes, whole=number)
        if "refused" in answer:
            check_step(self.batch(crawl, number).state, BatchState.SPLIT)
            raise StepRefused(f"batch {number} of crawl {crawl} was changed by another process meanwhile")
        return numbered(new, answer)

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(self._server.read(lambda: self._client.get(f"{self._base(crawl)}q:{number}")) or b"")

    def _retry(self, crawl: str, number: int, new: Sequence[FreshBatch], misses: Sequence[Miss]) -> list[Batch]:
        # What takes the misses away makes the batches: of two that retry at once only one does.
        needed = [(self._batch_key(crawl, number), "state", [json.dumps(BatchState.DONE.value)])]
        taken = [json.dumps(storable(asdict(miss))) for miss in misses]
        answer = self.make("retry", crawl, new, needed=needed, misses=taken)
        if "refused" in answer:
            raise retried_already(crawl, number)
        return numbered(new, answer)

    def make(self, verb: str, crawl: str, new: Iterable[FreshBatch], *more: bytes, **step: Any) -> dict[str, Any]:
        """Make a step that keeps new batches: the fields of each, and two blobs, its payload and its fingerprints."""
        rows: list[list[str]] = []
        blobs: list[bytes | str] = []
        for batch, payload, prints in new:
            row = {field.name: getattr(batch, field.name) for field in fields(Batch) if field.name != "number"}
            rows.append(packed({**row, "state": batch.state.value}))
            blobs += [self._door.payload_text(crawl, batch, payload), joined(prints)]
        return self._server.step(verb, self._base(crawl), new=rows, blobs=[*blobs, *more], **step)


def numbered(new: Sequence[FreshBatch], answer: Mapping[str, Any]) -> list[Batch]:
    """The batches with the numbers that the step has given them."""
    return [replace(one.batch, number=number) for one, number in zip(new, answer["numbers"], strict=True)]


class RedisAttempts(RedisPort, AttemptStore):
    _batches: RedisBatches

    def __init__(self, connection: RedisConnection, batches: RedisBatches) -> None:
        super().__init__(connection)
        self._batches = batches

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        key, batch = self._attempt_key(crawl, attempt.batch, attempt.number), self._batch_key(crawl, attempt.batch)
        old = self._server.read(lambda: self._client.hget(key, "state"))
        fresh = old is None
        row = {**asdict(attempt), "report": "{}"}
        if not fresh:  # what the refused post of this number left is forgotten
            kept = {name: getattr(attempt, name) for name in ("node", "url", "sent_at", "worker")}
            row = {**kept, "state": attempt.state.value, "ended_at": None, "reason": ""}
        needed: list[Condition] = [
            (batch, "state", before(BatchState.SENT)),
            (key, "state", () if fresh else before(AttemptState.SENDING)),
        ]
        commands: list[Command] = [
            ("HSET", batch, *packed({"state": BatchState.SENT.value, "attempts": attempt.number})),
            ("HSET", key, *packed(storable(row))),
            ("SADD", f"{self._base(crawl)}attempts", f"{attempt.batch}.{attempt.number}"),
        ]
        answer = self._move(crawl, attempt.batch, attempt.number, needed, commands)
        self.check(answer, crawl, attempt.batch, attempt.number, [BatchState.SENT, AttemptState.SENDING])

    def _move(
        self, crawl: str, batch: int, attempt: int, needed: Sequence[Condition], writes: Sequence[Command]
    ) -> dict[str, Any]:
        base, moved = self._base(crawl), [f"{batch}.{attempt}"]
        return self._server.step("moves", base, needed=needed, writes=writes, batches=[batch], attempts=moved)

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        if states and {state.value for state in states} <= set(OPEN):
            keys = [f"{self._base(crawl)}open:{state.value}" for state in states]
            names = self._door.each(attempt_name, self._server.read(lambda: self._client.sunion(keys)))
        else:
            names = self._attempt_names(crawl)
        chosen = [one for one in self._some_attempts(crawl, names) if not states or one.state in states]
        return sorted(chosen, key=lambda attempt: (attempt.sent_at, attempt.batch, attempt.number))

    def _some_attempts(self, crawl: str, names: Collection[str]) -> list[Attempt]:
        rows = self._server.ask([("HGETALL", f"{self._base(crawl)}a:{name}") for name in names])

        def attempt(named: tuple[str, Mapping[bytes, bytes]]) -> Attempt:
            name, row = named
            # One that was leased has no job written down.
            found = self._door.attempt(crawl, {"job": job_id(crawl, *map(int, name.split("."))), **unpacked(row)})
            if f"{found.batch}.{found.number}" != name:
                raise foreign(f"attempt {name} of {crawl}", "it is another one")
            return found

        return self._door.each(attempt, (pair for pair in zip(names, rows, strict=True) if pair[1]))

    def _step(self, move: AttemptMove) -> None:
        crawl, batch, number, to, holder = move.crawl, move.batch, move.number, move.to, move.holder
        needed = self.needed(crawl, batch, number, to, move.batch_to, holder)
        if move.out:  # an attempt that was acked meanwhile is refused: `check` finds no other reason
            key, field, states = needed[0]
            needed[0] = key, field, [state for state in states if state != json.dumps(AttemptState.ACKED.value)]
        changes = {**move.changes, "state": to.value}
        commands = self.commands(crawl, batch, number, changes) + self._missing(crawl, move.misses)
        if move.batch_to is not None:
            row = storable({"state": move.batch_to.value, **move.batch_changes})
            commands.append(("HSET", self._batch_key(crawl, batch), *packed(row)))
        answer = self._move(crawl, batch, number, needed, commands)
        self.check(answer, crawl, batch, number, [*([holder] if holder else []), to, None, move.batch_to])

    def needed(
        self,
        crawl: str,
        batch: int,
        number: int,
        to: AttemptState,
        batch_to: BatchState | None = None,
        holder: str | None = None,
    ) -> list[Condition]:
        """What has to be so for a step of an attempt; in this order, whose refusals `check` tells."""
        key = self._batch_key(crawl, batch)
        needed: list[Condition] = [
            (self._attempt_key(crawl, batch, number), "state", before(to)),
            (key, "attempts", [number]),
        ]
        if holder is not None:
            needed.insert(0, (f"{self._base(crawl)}holders", f"{batch}.{number}", [holder]))
        return needed if batch_to is None else [*needed, (key, "state", before(batch_to))]

    def commands(self, crawl: str, batch: int, number: int, changes: Mapping[str, Any]) -> list[Command]:
        """What a step writes into an attempt; one that has ended has no lease."""
        commands: list[Command] = [("HSET", self._attempt_key(crawl, batch, number), *packed(storable(changes)))]
        if "ended_at" in changes:
            base, member = self._base(crawl), f"{batch}.{number}"
            commands += [("ZREM", f"{base}leases", member), ("HDEL", f"{base}holders", member)]
        return commands

    def check(
        self,
        answer: Mapping[str, Any],
        crawl: str,
        batch: int,
        number: int,
        wanted: Sequence[AttemptState | BatchState | str | None],
    ) -> None:
        """Raise what the first condition that did not hold means."""
        if "refused" not in answer:
            return
        state, found = wanted[answer["refused"] - 1], answer.get("found")
        if isinstance(state, AttemptState):
            if found is None:
                raise NothingMatched(f"crawl {crawl} has no attempt {number} of batch {batch}.")
            check_attempt_step(AttemptState(json.loads(found)), state)
        elif isinstance(state, BatchState):
            if found is None:
                raise NothingMatched(f"crawl {crawl} has no batch {batch}.")
            check_step(BatchState(json.loads(found)), state)
        elif state is not None:
            raise lost_lease(batch, number, state)
        raise StepRefused(f"attempt {number} of batch {batch} is over; attempt {found} is the one that counts")

    def _lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float, *, again: bool) -> bool:
        current: list[Condition] = [
            (self._batch_key(crawl, batch), "attempts", [attempt]),
            (self._attempt_key(crawl, batch, attempt), "state", [json.dumps(state.value) for state in LEASABLE]),
        ]
        base, name = self._base(crawl), f"{batch}.{attempt}"
        answer = self._server.step(
            "lease", base, needed=current, attempt=name, holder=holder, seconds=seconds, again=again
        )
        return "refused" not in answer

    def expired(self, crawl: str) -> list[Attempt]:
        names = map(str.encode, self._server.step("expired", self._base(crawl))["attempts"])
        late = self._some_attempts(crawl, self._door.each(attempt_name, names))
        return sorted((a for a in late if a.state in LEASABLE), key=lambda a: (a.sent_at, a.batch, a.number))
