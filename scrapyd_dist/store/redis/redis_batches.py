"""The Redis store's verbs about batches, their attempts and leases.

What waits was counted as it came.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from scrapyd_dist.batches import (
    LEASABLE,
    OUT,
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Miss,
    states_before,
)
from scrapyd_dist.errors import StepRefused, StoreError
from scrapyd_dist.frontier.backlog import (
    SLOT_NAME,
    Backlog,
    Leased,
    LeaseRequest,
    NewBatch,
    SeenBefore,
)
from scrapyd_dist.goals import Spent
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.frontier_rows import (
    HUNGRY,
    BatchStep,
    joined,
    not_listed,
    parted,
    prints_of,
    retried_before,
    slot_counts,
)
from scrapyd_dist.store.ports.judging import foreign
from scrapyd_dist.store.ports.rows import Door, storable
from scrapyd_dist.store.redis.redis_link import (
    CHUNK,
    OPEN,
    THERE,
    Command,
    Condition,
    RedisPort,
    Row,
    by_word,
    packed,
    rows_there,
    unpacked,
    whole,
)

#: what stays of the account when the index is walked again
KEPT_COUNT = "sealed"
#: the largest count that Redis can hold
_LARGEST = (1 << 63) - 1
#: buckets of fingerprints that are read together
_BUCKETS = 100
_STATES = frozenset(state.value for state in BatchState)
#: fields of an attempt that its name tells
_FIELDS_IN_NAME = frozenset({"batch", "number", "job"})


V = TypeVar("V", Batch, Attempt)


class RedisBatches(RedisPort, BatchStore):
    """The port for batches on a Redis server."""

    def _step(self, step: BatchStep) -> list[Batch]:
        prints = prints_of(step.new) if step.unseen else []
        rows, blobs = new_rows(self._door, step.crawl, step.new)
        needed = self._needed(step)
        writes = self._writes(step)
        blobs.append(joined(step.prints))
        blobs += self._server.link_rows.event_texts(step.crawl, step.events)
        answer = self._server.step(
            "batches",
            self._base(step.crawl),
            needed=needed,
            check=partial(self._refuse, step),
            writes=writes,
            batches=[step.batch] if step.batch else [],
            attempts=[f"{step.batch}.{step.attempt}"] if step.attempt else [],
            # What takes the misses away makes the batches: of two that retry at once only one does.
            misses=_miss_texts(step.retried),
            unseen=step.unseen,
            dropped=step.dropped,
            forget=step.forget,
            new=rows,
            events=[event.partition for event in step.events],
            blobs=blobs,
        )
        if "seen" in answer:
            seen = frozenset(prints[place - 1] for place in answer["seen"])
            raise SeenBefore(seen)
        if "refused" in answer:
            raise retried_before(step)
        return numbered(step.new, answer["numbers"])

    def _refuse(self, step: BatchStep) -> None:
        """Raise why the rows do not allow the step."""
        self._check(step)
        raise StepRefused(
            f"another process changed batch {step.batch} of crawl {step.crawl} meanwhile"
        )

    # what has to hold before a step; `_check` says the same of the rows

    def _needed(self, step: BatchStep) -> list[Condition]:
        needed = []
        if not step.batch:
            needed.append(self._crawl_is_there(step.crawl))
        if step.holder is not None:
            holders = f"{self._base(step.crawl)}holders"
            needed.append(Condition(holders, f"{step.batch}.{step.attempt}", [step.holder]))
        needed += self._needed_of_attempt(step)
        needed += self._needed_of_batch(step)
        return needed

    def _needed_of_attempt(self, step: BatchStep) -> list[Condition]:
        needed = []
        attempt_key = self._attempt_key(step.crawl, step.batch, step.attempt)
        if step.to is not None:
            batch_key = self._batch_key(step.crawl, step.batch)
            needed.append(in_state(attempt_key, step.attempt_before))
            needed.append(Condition(batch_key, "attempts", [step.attempt]))
        if step.opened is not None:
            old = self._attempt_state(step.crawl, step.batch, step.attempt)
            allowed = () if old is None else states_before(step.opened.state)
            needed.append(in_state(attempt_key, allowed))
        return needed

    def _needed_of_batch(self, step: BatchStep) -> list[Condition]:
        needed = []
        batch_key = self._batch_key(step.crawl, step.batch)
        if step.batch_to is not None:
            needed.append(in_state(batch_key, step.batch_before))
        if step.retried:
            needed.append(in_state(batch_key, [BatchState.DONE]))
        if step.dropped:
            needed.append(in_state(batch_key, set(BatchState) - OUT))
        return needed

    # what a step writes

    def _writes(self, step: BatchStep) -> list[Command]:
        base = self._base(step.crawl)
        name = f"{step.batch}.{step.attempt}"
        writes = self._account_writes(step)
        if "ended_at" in step.changes:  # then it has no lease
            writes.append(("ZREM", f"{base}leases", name))
            writes.append(("HDEL", f"{base}holders", name))
        if step.to is not None:
            writes.append(("HSET", f"{base}a:{name}", *packed({"state": step.to, **step.changes})))
        if step.batch_to is not None:
            row = {"state": step.batch_to, **step.batch_changes}
            writes.append(("HSET", self._batch_key(step.crawl, step.batch), *packed(row)))
        if step.opened is not None:
            writes.append(("HSET", f"{base}a:{name}", *packed(vars(step.opened))))
            writes.append(("SADD", f"{base}attempts", name))
        return writes

    def _account_writes(self, step: BatchStep) -> list[Command]:
        base = self._base(step.crawl)
        for value in step.counts.values():
            if abs(value) > _LARGEST:
                raise StoreError(f"the store {self._server.shown} cannot hold so large a count.")
        writes = count_writes(base, step.counts)
        for miss, text in zip(step.misses, _miss_texts(step.misses), strict=True):
            kind = "misses" if miss.batch else "misses:own"
            writes.append(("RPUSH", base + kind, text))
        return writes

    # the account

    def counts(self, crawl: str) -> dict[str, int]:
        """Return the counts that can be read, by name."""
        base = self._base(crawl)
        kept, others = self._server.query_all(
            [("HGETALL", f"{base}kept"), ("HGETALL", f"{base}counts")]
        )
        return self._door.counts(by_word({**others, **kept}).items())

    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        done: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        """Let the script count what a process did, and grant it requests."""
        answer = self._crawl_step(
            "spend", crawl, limits=dict(limits), requests=requests, done=dict(done), reserve=reserve
        )
        return Spent(int(answer["granted"]), {name: int(value) for name, value in answer["counts"]})

    def misses(self, crawl: str) -> list[Miss]:
        """Return the misses of batches, then the producer's own."""
        base = self._base(crawl)
        of_batches, own = self._server.query_all(
            [("LRANGE", f"{base}misses", 0, -1), ("LRANGE", f"{base}misses:own", 0, -1)]
        )
        return self._door.each(partial(self._door.miss, crawl), (*of_batches, *own))

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests, some buckets at a time."""
        # A bucket that is split meanwhile gives what was in it to a new one, behind all others:
        # nothing is passed over.
        base = self._base(crawl)
        start = 0
        while True:
            buckets = range(start, min(start + _BUCKETS, self._number_of(crawl, "buckets")))
            if not buckets:
                return
            commands = [("HKEYS", f"{base}f:{bucket}") for bucket in buckets]
            for prints in self._server.query_all(commands):
                yield from prints
            start = buckets.stop

    # batches

    def batch(self, crawl: str, number: int) -> Batch:
        """Return the batch; `NothingMatched` when there is none of this number."""
        row = self._query("HGETALL", self._batch_key(crawl, number))
        return self._batch_in(row, crawl, number)

    def _batch_in(self, row: Row, crawl: str, number: int) -> Batch:
        if not row:
            raise self._door.no_batch(crawl, number)
        return self._door.batch(unpacked(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """Return the batches in one of these states, or all, by number."""
        batches = self._batches(crawl, range(1, self._number_of(crawl, "batches") + 1))
        return _in_states(batches, states) if states else batches

    def _batches(self, crawl: str, numbers: Iterable[int]) -> list[Batch]:
        """Return those of these batches that are there."""
        rows = self._hashes(f"{self._base(crawl)}b:", numbers)
        return self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """Return the settings that carry the batch."""
        row, text = self._server.query_all(
            [("HGETALL", self._batch_key(crawl, number)), ("GET", f"{self._base(crawl)}p:{number}")]
        )
        return self._door.payload(crawl, self._batch_in(row, crawl, number), text)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        """Let dead batches of these wait again, and return their numbers."""
        ordered = sorted(set(numbers))
        needed = []
        for number in ordered:
            missing = self._door.no_batch(crawl, number)
            needed.append(Condition(self._batch_key(crawl, number), "state", THERE, missing))
        answer = self._server.step(
            "requeue",
            self._base(crawl),
            needed=needed,
            batches=ordered,
            dead=json.dumps(BatchState.DEAD.value),
            sealed=json.dumps(BatchState.SEALED.value),
        )
        return list(answer["numbers"])

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        """Set the priority of those of these batches that wait, and return their numbers."""
        changed: list[int] = []
        ordered = sorted(set(numbers))
        kept = json.dumps(priority)  # Lua would round a number
        needed = [self._crawl_is_there(crawl)]
        for start in range(0, len(ordered), CHUNK):
            chunk = ordered[start : start + CHUNK]
            answer = self._server.step(
                "prioritise", self._base(crawl), needed=needed, batches=chunk, priority=kept
            )
            changed += answer["numbers"]
        return changed

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        """Return the fingerprints that are kept with an added batch."""
        return parted(self._query("GET", f"{self._base(crawl)}q:{number}") or b"")

    # attempts

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        state = self._query("HGET", self._attempt_key(crawl, batch, number), "state")
        return None if state is None else AttemptState(json.loads(state))

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        holders = f"{self._base(crawl)}holders"
        holder: bytes | None = self._query("HGET", holders, f"{batch}.{number}")
        return None if holder is None else holder.decode()

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """Return the attempts in one of these states, or all, in the order they were sent."""
        wanted = {state.value for state in states}
        if wanted and wanted <= set(OPEN):
            keys = [f"{self._base(crawl)}open:{state.value}" for state in states]
        else:
            keys = [f"{self._base(crawl)}attempts"]
        names = self._attempt_names(self._query("SUNION", *keys))
        found = self._attempts_named(crawl, names)
        return _in_states(found, states) if states else found

    def _hashes(self, prefix: str, names: Iterable[object]) -> list[Row]:
        """Return the hashes of these keys, empty where there is none."""
        return self._server.query_all(("HGETALL", f"{prefix}{name}") for name in names)

    def _attempts_named(self, crawl: str, names: Collection[str]) -> list[Attempt]:
        """Return those of these attempts that are there, in the order they were sent."""
        rows = self._hashes(f"{self._base(crawl)}a:", names)

        def read_attempt(named_row: tuple[str, Row]) -> Attempt:
            name, row = named_row
            found = self._door.attempt(crawl, unpacked(row))
            if f"{found.batch}.{found.number}" != name:
                raise foreign(f"attempt {name} of {crawl}", "it is another one")
            return found

        found = self._door.each(read_attempt, rows_there(names, rows))
        return sorted(found, key=lambda attempt: (attempt.sent_at, attempt.batch, attempt.number))

    def lease(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        holder: str,
        seconds: float,
        *,
        again: bool = False,
    ) -> bool:
        """Take or prolong the lease of an attempt; False when the holder must stop."""
        current = [
            Condition(self._batch_key(crawl, batch), "attempts", [attempt]),
            in_state(self._attempt_key(crawl, batch, attempt), LEASABLE),
        ]
        answer = self._server.step(
            "lease",
            self._base(crawl),
            needed=current,
            attempt=f"{batch}.{attempt}",
            holder=holder,
            seconds=seconds,
            again=again,
        )
        return "refused" not in answer

    def expired(self, crawl: str) -> list[Attempt]:
        """Return the attempts that are out and whose lease has run out."""
        names = map(str.encode, self._server.step("expired", self._base(crawl))["attempts"])
        late = self._attempts_named(crawl, self._attempt_names(names))
        return _in_states(late, LEASABLE)

    # leasing

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        """Lease the next batches in one step of the script, then read them in one round trip."""
        # The attempt as it is when it is leased, without what its name tells.
        row = dict(vars(wanted.attempt_at(0, 0)))
        for name in _FIELDS_IN_NAME:
            row.pop(name, None)
        base = self._base(wanted.crawl)
        needed = [self._crawl_is_there(wanted.crawl)]
        if wanted.listed:
            unlisted = not_listed(wanted)
            needed.append(Condition(f"{base}workers", wanted.lessee.job, THERE, unlisted))
        answer = self._server.step(
            "lease_next",
            base,
            needed=needed,
            limit=wanted.limit,
            seconds=wanted.seconds,
            slots=list(wanted.slots),
            fair=bool(wanted.fair),
            alone=wanted.alone,
            enough=list(wanted.enough),
            holder=wanted.lessee.job,
            fields=packed(row),
            state=json.dumps(BatchState.RUNNING.value),
            hungry=HUNGRY,
        )
        names = answer.get("attempts", ())
        if not names:  # idle workers ask again and again
            return []
        return self._read_leased(wanted.crawl, [name.split(".") for name in names])

    def _read_leased(self, crawl: str, pairs: Sequence[list[str]]) -> list[Leased]:
        """Return the leased batches; `pairs` are the numbers of batch and attempt, as texts."""
        base = self._base(crawl)
        # Together: each question costs a round trip, as much as the step itself.
        commands = []
        for number, _ in pairs:
            commands.append(("HGETALL", f"{base}b:{number}"))
            commands.append(("GET", f"{base}p:{number}"))
        answers = self._server.query_all(commands)

        def read_batch(leased: tuple[list[str], Row, bytes | None]) -> Leased:
            (_, attempt), row, text = leased
            return self._door.leased(crawl, self._door.batch(unpacked(row)), int(attempt), text)

        rows = answers[::2]
        payloads = answers[1::2]
        return self._door.each(read_batch, zip(pairs, rows, payloads, strict=True))

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Note until when the producer may add something."""
        self._crawl_step("producer", crawl, name=producer, seconds=seconds)

    def sign_off(self, crawl: str, producer: str) -> None:
        """Remove the producer: it adds nothing more."""
        base = self._base(crawl)
        self._server.step("steps", base, writes=[("ZREM", f"{base}producers", producer)])

    # how far the workers are

    def backlog(self, crawl: str) -> Backlog:
        """Return the counts that the script keeps, whatever the number of batches."""
        found = self._crawl_step("backlog", crawl)
        words = iter(found["slots"])  # names and values, one after the other
        counts = dict(zip(words, words, strict=True))
        return Backlog(
            slots=slot_counts(_slot_rows(counts)),
            expired=found["expired"],
            acked=found["acked"],
            producers=tuple(sorted(found["producers"])),
            lost=tuple(sorted(found["lost"])),
            standing=json.loads(found["standing"]),
        )

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        """Return the batches that are first in the line of a slot."""
        if limit < 1:
            return []
        members = self._query("ZRANGE", f"{self._base(crawl)}w:{slot}", 0, limit - 1)
        what = f"a number in the slot {slot[:100]!r}"
        numbers = self._door.each(lambda member: whole(member, what), members)
        return self._batches(crawl, numbers)


def new_rows(
    door: Door, crawl: str, new: Iterable[NewBatch]
) -> tuple[list[list[str]], list[bytes | str]]:
    """Return what a script needs of batches to be added: their fields, and two blobs for each.

    The blobs are the text of the payload, and the joined fingerprints.
    """
    rows: list[list[str]] = []
    blobs: list[bytes | str] = []
    for new_batch in new:
        batch = new_batch.numbered(0)
        fields = dict(vars(batch))
        del fields["number"]
        rows.append(packed(fields))
        blobs.append(door.payload_text(crawl, batch, new_batch.payload))
        blobs.append(joined(new_batch.fingerprints))
    return rows, blobs


def numbered(new: Iterable[NewBatch], numbers: Iterable[int]) -> list[Batch]:
    """Return the new batches under the numbers that the script has given them."""
    return [batch.numbered(number) for batch, number in zip(new, numbers, strict=True)]


def count_writes(base: str, counts: Mapping[str, int]) -> list[Command]:
    """Return the commands that add to these counts of the crawl whose keys begin with `base`."""
    writes: list[Command] = []
    for name, value in counts.items():
        if value:
            kind = "kept" if name == KEPT_COUNT else "counts"
            writes.append(("HINCRBY", base + kind, name, value))
    return writes


def in_state(key: str, states: Iterable[BatchState | AttemptState]) -> Condition:
    """Return the condition that the row of a key is in one of these states.

    Without states, it is that there is no such row.
    """
    return Condition(key, "state", [json.dumps(state.value) for state in states])


def _in_states(found: Iterable[V], states: Collection[object]) -> list[V]:
    """Return the batches or attempts in one of these states."""
    return [value for value in found if value.state in states]


def _miss_texts(misses: Iterable[Miss]) -> list[str]:
    return [json.dumps(storable(vars(miss))) for miss in misses]


def _slot_rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """Yield rows for `slot_counts` from the hash of counts.

    There `b:<state>:<slot>` are batches, `r:<state>:<slot>` requests.
    """
    for name, value in counts.items():
        kind, _, place = name.partition(":")
        state, _, slot = place.partition(":")
        if kind == "b" and SLOT_NAME.fullmatch(slot) and state in _STATES:
            what = f"the count of the slot {slot!r}"
            yield slot, state, whole(value, what), whole(counts.get(f"r:{place}"), what)
