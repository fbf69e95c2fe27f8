"""The Redis store's verbs about batches, their attempts and leases; each step goes by the tables of batches.py."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, Miss, check_step, states_before
from scrapyd_dist.errors import NothingMatched, StepRefused
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.store.base import BatchStore
from scrapyd_dist.store.frontier_rows import AttemptMove, check_done, joined, lost_lease, over, parted, prints_of
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_link import OPEN, THERE, Command, Condition, RedisPort, attempt_name, packed, unpacked
from scrapyd_dist.store.rows import storable

#: buckets of fingerprints that are read together
_BUCKETS = 100
#: batches that are signed together
_TOGETHER = 100


class RedisBatches(RedisPort, BatchStore):
    def _seal(self, crawl: str, new: NewBatch, fingerprints: Iterable[bytes], counts: Mapping[str, int]) -> Batch:
        needed, counting = [self._still_there(crawl)], self._counting(crawl, counts)
        answer = self.make("seal", crawl, [new], joined(fingerprints), needed=needed, writes=counting)
        return numbered([new], answer)[0]

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        # A bucket that is split meanwhile gives what was in it to a new one, behind all others: nothing is passed over.
        base, start = self._base(crawl), 0
        while True:
            some = range(start, min(start + _BUCKETS, self._number_of(crawl, "buckets")))
            if not some:
                return
            for prints in self._server.ask([("HKEYS", f"{base}f:{bucket}") for bucket in some]):
                yield from prints
            start = some.stop

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._look("HGETALL", self._batch_key(crawl, number))
        if not row:
            raise no_batch(crawl, number)
        return self._door.batch(unpacked(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        numbers = range(1, self._number_of(crawl, "batches") + 1)
        rows = self._server.ask(("HGETALL", self._batch_key(crawl, number)) for number in numbers)
        batches = self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))
        return [batch for batch in batches if not states or batch.state in states]

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        looks = [("HGETALL", self._batch_key(crawl, number)), ("GET", f"{self._base(crawl)}p:{number}")]
        row, text = self._server.ask(looks)
        if not row or text is None:
            raise no_batch(crawl, number)
        return self._door.payload(crawl, self._door.batch(unpacked(row)), text)

    def sign_batches(self, crawl: str) -> int:
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
        there = [
            Condition(self._batch_key(crawl, one), "state", THERE, partial(no_batch, crawl, one)) for one in wanted
        ]
        old, new = (json.dumps(state.value) for state in (BatchState.DEAD, BatchState.SEALED))
        # `from` is a word of Python's own
        states = {"from": old, "to": new}
        return list(self._server.step("requeue", self._base(crawl), needed=there, batches=wanted, **states)["numbers"])

    def _split(self, crawl: str, number: int, new: Sequence[NewBatch]) -> list[Batch]:
        key = self._batch_key(crawl, number)
        writes = [("HSET", key, *packed({"state": BatchState.SPLIT}))]
        needed = [self.batch_step(crawl, number, BatchState.SPLIT)]
        return numbered(new, self.make("split", crawl, new, needed=needed, writes=writes, whole=number))

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(self._look("GET", f"{self._base(crawl)}q:{number}") or b"")

    def _retry(self, crawl: str, number: int, new: Sequence[NewBatch], misses: Sequence[Miss]) -> list[Batch] | None:
        # What takes the misses away makes the batches: of two that retry at once only one does.
        needed = [self.batch_in(crawl, number, [BatchState.DONE], partial(check_done, number))]
        taken = [json.dumps(storable(asdict(miss))) for miss in misses]
        answer = self.make("retry", crawl, new, needed=needed, misses=taken)
        return None if "refused" in answer else numbered(new, answer)

    def make(self, verb: str, crawl: str, new: Iterable[NewBatch], *more: bytes, **step: Any) -> dict[str, Any]:
        """Make a step that keeps new batches: the fields of each, and two blobs, its payload and its fingerprints."""
        rows: list[list[str]] = []
        blobs: list[bytes | str] = []
        for one in new:
            batch = one.numbered(0)
            rows.append(packed({name: value for name, value in vars(batch).items() if name != "number"}))
            blobs += [self._door.payload_text(crawl, batch, one.payload), joined(one.fingerprints)]
        return self._server.step(verb, self._base(crawl), new=rows, blobs=[*blobs, *more], **step)

    def add(self, crawl: str, new: Sequence[NewBatch], **step: Any) -> list[Batch]:
        """Keep batches with their fingerprints, of which none may be there; `step` has what else is done."""
        prints = prints_of(new)
        answer = self.make("add", crawl, new, **step)
        if "seen" in answer:
            raise SeenBefore(frozenset(prints[place - 1] for place in answer["seen"]))
        return numbered(new, answer)

    def batch_step(self, crawl: str, number: int, to: BatchState) -> Condition:
        """The batch may take this step."""
        return self.batch_in(crawl, number, states_before(to), lambda state: check_step(state, to))

    def batch_in(
        self, crawl: str, number: int, states: Iterable[BatchState], check: Callable[[BatchState], None]
    ) -> Condition:
        """The batch has to be in one of these states; `check` raises what another one means."""
        what, key = f"batch {number} of crawl {crawl}", self._batch_key(crawl, number)
        return in_state(key, states, what, no_batch(crawl, number), lambda found: check(BatchState(found)))

    # attempts

    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        batch, number, key = attempt.batch, attempt.number, self._attempt_key(crawl, attempt.batch, attempt.number)
        opens = self._attempt_step(crawl, batch, number, attempt.state)
        if self._look("HGET", key, "state") is None:  # else a post of this number was refused
            opens = opens._replace(values=())
        commands: list[Command] = [
            ("HSET", self._batch_key(crawl, batch), *packed({"state": BatchState.SENT, "attempts": number})),
            ("HSET", key, *packed(vars(attempt))),
            ("SADD", f"{self._base(crawl)}attempts", f"{batch}.{number}"),
        ]
        needed = [self.batch_step(crawl, batch, BatchState.SENT), opens]
        self._move(crawl, batch, number, needed=needed, writes=commands)

    def _move(self, crawl: str, batch: int, number: int, new: Sequence[NewBatch] = (), **step: Any) -> None:
        """Make a step in which this batch and its attempt change, and perhaps new ones are added."""
        step |= {"batches": [batch], "attempts": [f"{batch}.{number}"]}
        if new:
            self.add(crawl, new, **step)
        else:
            self._server.step("moves", self._base(crawl), **step)

    def _attempt_step(self, crawl: str, batch: int, number: int, to: AttemptState) -> Condition:
        """The attempt may take this step."""
        what, key = f"attempt {number} of batch {batch}", self._attempt_key(crawl, batch, number)
        missing = NothingMatched(f"crawl {crawl} has no {what}.")
        return in_state(key, states_before(to), what, missing, lambda found: check_step(AttemptState(found), to))

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        if states and {state.value for state in states} <= set(OPEN):
            keys = [f"{self._base(crawl)}open:{state.value}" for state in states]
            names = self._door.each(attempt_name, self._look("SUNION", *keys))
        else:
            names = self._attempt_names(crawl)
        return [one for one in self._some_attempts(crawl, names) if not states or one.state in states]

    def _some_attempts(self, crawl: str, names: Collection[str]) -> list[Attempt]:
        rows = self._server.ask([("HGETALL", f"{self._base(crawl)}a:{name}") for name in names])

        def attempt(named: tuple[str, Mapping[bytes, bytes]]) -> Attempt:
            name, row = named
            found = self._door.attempt(crawl, unpacked(row))
            if f"{found.batch}.{found.number}" != name:
                raise foreign(f"attempt {name} of {crawl}", "it is another one")
            return found

        found = self._door.each(attempt, (pair for pair in zip(names, rows, strict=True) if pair[1]))
        return sorted(found, key=lambda attempt: (attempt.sent_at, attempt.batch, attempt.number))

    def _step(self, move: AttemptMove) -> None:
        crawl, batch, number, name = move.crawl, move.batch, move.number, f"{move.batch}.{move.number}"
        base, key = self._base(crawl), self._batch_key(crawl, batch)
        step = self._attempt_step(crawl, batch, number, move.to)
        if move.out:
            acked = json.dumps(AttemptState.ACKED.value)
            step = step._replace(values=[state for state in step.values if state != acked])
        needed = [step, Condition(key, "attempts", [number], lambda found: over(batch, number, found))]
        changes = packed({**move.changes, "state": move.to})
        writes: list[Command] = [("HSET", self._attempt_key(crawl, batch, number), *changes)]
        if "ended_at" in move.changes:  # then it has no lease
            writes += [("ZREM", f"{base}leases", name), ("HDEL", f"{base}holders", name)]
        if (holder := move.holder) is not None:
            held = Condition(f"{base}holders", name, [holder], lambda _: lost_lease(batch, number, holder))
            needed.insert(0, held)
        if move.batch_to is not None:
            needed.append(self.batch_step(crawl, batch, move.batch_to))
            writes.append(("HSET", key, *packed({"state": move.batch_to, **move.batch_changes})))
        writes += self._missing(crawl, move.misses) + self._counting(crawl, move.counts)
        self._move(crawl, batch, number, move.new, needed=needed, writes=writes)

    def _lease(self, crawl: str, batch: int, attempt: int, holder: str, seconds: float, *, again: bool) -> bool:
        current = [
            Condition(self._batch_key(crawl, batch), "attempts", [attempt]),
            Condition(self._attempt_key(crawl, batch, attempt), "state", [json.dumps(one.value) for one in LEASABLE]),
        ]
        base, name = self._base(crawl), f"{batch}.{attempt}"
        answer = self._server.step(
            "lease", base, needed=current, attempt=name, holder=holder, seconds=seconds, again=again
        )
        return "refused" not in answer

    def expired(self, crawl: str) -> list[Attempt]:
        names = map(str.encode, self._server.step("expired", self._base(crawl))["attempts"])
        late = self._some_attempts(crawl, self._door.each(attempt_name, names))
        return [attempt for attempt in late if attempt.state in LEASABLE]


def in_state(
    key: str, states: Iterable[BatchState | AttemptState], what: str, missing: Exception, check: Callable[[str], None]
) -> Condition:
    """The row of a key has to be in one of these states; `check` raises what another one means."""

    def error(found: str | None) -> Exception:
        if found is None:
            return missing
        check(json.loads(found))
        return StepRefused(f"{what} was changed by another process meanwhile")

    return Condition(key, "state", [json.dumps(one.value) for one in states], error)


def no_batch(crawl: str, number: int, _found: str | None = None) -> NothingMatched:
    return NothingMatched(f"crawl {crawl} has no batch {number}.")


def numbered(new: Sequence[NewBatch], answer: Mapping[str, Any]) -> list[Batch]:
    """The batches with the numbers that the step has given them."""
    return [one.numbered(number) for one, number in zip(new, answer["numbers"], strict=True)]
