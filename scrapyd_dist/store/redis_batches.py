"""The Redis store's verbs about batches, their attempts and leases; what waits was counted as it came."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

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
from scrapyd_dist.store.base import BatchStore
from scrapyd_dist.store.frontier_rows import (
    HUNGRY,
    BatchStep,
    joined,
    parted,
    prints_of,
    retried_before,
    slot_counts,
)
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.redis_link import (
    CHUNK,
    OPEN,
    THERE,
    Command,
    Condition,
    RedisPort,
    packed,
    unpacked,
    whole,
    word,
)
from scrapyd_dist.store.rows import Door, storable

#: what stays of the account when the index is walked again, and the largest count
KEPT_COUNT, _LARGEST = "sealed", (1 << 63) - 1
#: buckets of fingerprints that are read together
_BUCKETS = 100
_STATES = frozenset(state.value for state in BatchState)


class RedisBatches(RedisPort, BatchStore):
    def _step(self, step: BatchStep) -> list[Batch]:
        prints = prints_of(step.new) if step.unseen else []
        rows, blobs = new_rows(self._door, step.crawl, step.new)
        answer = self._server.step(
            "batches",
            self._base(step.crawl),
            needed=self._needed(step),
            check=partial(self._refuse, step),
            writes=self._writes(step),
            batches=[step.batch] if step.batch else [],
            attempts=[f"{step.batch}.{step.attempt}"] if step.attempt else [],
            # What takes the misses away makes the batches: of two that retry at once only one does.
            misses=[json.dumps(storable(vars(miss))) for miss in step.retried],
            unseen=step.unseen,
            dropped=step.dropped,
            forget=step.forget,
            new=rows,
            events=[event.partition for event in step.events],
            blobs=[*blobs, joined(step.prints), *self._event_texts(step)],
        )
        if "seen" in answer:
            raise SeenBefore(frozenset(prints[place - 1] for place in answer["seen"]))
        if "refused" in answer:
            raise retried_before(step)
        return [
            one.numbered(number) for one, number in zip(step.new, answer["numbers"], strict=True)
        ]

    def _event_texts(self, step: BatchStep) -> list[str]:
        return [self._server.link_rows.event_text(step.crawl, event) for event in step.events]

    def _refuse(self, step: BatchStep) -> None:
        self._check(step)
        raise StepRefused(
            f"another process changed batch {step.batch} of crawl {step.crawl} meanwhile"
        )

    def _needed(self, step: BatchStep) -> list[Condition]:
        """What has to hold before the step, as `_check` says it of the rows."""
        crawl, base, name = step.crawl, self._base(step.crawl), f"{step.batch}.{step.attempt}"
        of_batch, of_attempt = f"{base}b:{step.batch}", f"{base}a:{name}"
        needed = [] if step.batch else [self._there(crawl)]
        if step.holder is not None:
            needed.append(Condition(f"{base}holders", name, [step.holder]))
        if step.to is not None:
            before = [
                state
                for state in states_before(step.to)
                if not (step.out and state is AttemptState.ACKED)
            ]
            needed += [
                in_state(of_attempt, before),
                Condition(of_batch, "attempts", [step.attempt]),
            ]
        if step.opened is not None:
            old = self._attempt_state(crawl, step.batch, step.attempt)
            needed.append(
                in_state(of_attempt, () if old is None else states_before(step.opened.state))
            )
        if step.batch_to is not None:
            needed.append(in_state(of_batch, states_before(step.batch_to)))
        if step.retried:
            needed.append(in_state(of_batch, [BatchState.DONE]))
        if step.dropped:
            needed.append(in_state(of_batch, set(BatchState) - OUT))
        return needed

    def _writes(self, step: BatchStep) -> list[Command]:
        crawl, base, name = step.crawl, self._base(step.crawl), f"{step.batch}.{step.attempt}"
        if any(abs(value) > _LARGEST for value in step.counts.values()):
            raise StoreError(f"the store {self._server.shown} cannot hold so large a count.")
        writes: list[Command] = [
            ("HINCRBY", base + ("kept" if name == KEPT_COUNT else "counts"), name, value)
            for name, value in step.counts.items()
            if value
        ]
        writes += [
            (
                "RPUSH",
                base + ("misses" if miss.batch else "misses:own"),
                json.dumps(storable(vars(miss))),
            )
            for miss in step.misses
        ]
        if "ended_at" in step.changes:  # then it has no lease
            writes += [("ZREM", f"{base}leases", name), ("HDEL", f"{base}holders", name)]
        if step.to is not None:
            writes.append(("HSET", f"{base}a:{name}", *packed({"state": step.to, **step.changes})))
        if step.batch_to is not None:
            row = {"state": step.batch_to, **step.batch_changes}
            writes.append(("HSET", self._batch_key(crawl, step.batch), *packed(row)))
        if step.opened is not None:
            writes += [
                ("HSET", f"{base}a:{name}", *packed(vars(step.opened))),
                ("SADD", f"{base}attempts", name),
            ]
        return writes

    def counts(self, crawl: str) -> dict[str, int]:
        kept, others = self._server.ask(
            [("HGETALL", self._base(crawl) + name) for name in ("kept", "counts")]
        )
        return self._door.counts((word(name), value) for name, value in {**others, **kept}.items())

    def spend(
        self,
        crawl: str,
        limits: Mapping[str, float],
        requests: int = 0,
        told: Mapping[str, int] = MappingProxyType({}),
        *,
        reserve: bool = False,
    ) -> Spent:
        answer = self._ask(
            "spend", crawl, limits=dict(limits), requests=requests, told=dict(told), reserve=reserve
        )
        return Spent(int(answer["granted"]), {name: int(value) for name, value in answer["counts"]})

    def misses(self, crawl: str) -> list[Miss]:
        base = self._base(crawl)
        of_batches, own = self._server.ask(
            [("LRANGE", base + name, 0, -1) for name in ("misses", "misses:own")]
        )
        return self._door.each(partial(self._door.miss, crawl), (*of_batches, *own))

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
            raise self._door.no_batch(crawl, number)
        return self._door.batch(unpacked(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        batches = self._batches(crawl, range(1, self._number_of(crawl, "batches") + 1))
        return [batch for batch in batches if not states or batch.state in states]

    def _batches(self, crawl: str, numbers: Iterable[int]) -> list[Batch]:
        """Those of these batches that are there."""
        rows = self._server.ask(("HGETALL", self._batch_key(crawl, number)) for number in numbers)
        return self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        looks = [
            ("HGETALL", self._batch_key(crawl, number)),
            ("GET", f"{self._base(crawl)}p:{number}"),
        ]
        row, text = self._server.ask(looks)
        if not row:
            raise self._door.no_batch(crawl, number)
        return self._door.payload(crawl, self._door.batch(unpacked(row)), text)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        wanted = sorted(set(numbers))
        there = [
            Condition(self._batch_key(crawl, one), "state", THERE, self._door.no_batch(crawl, one))
            for one in wanted
        ]
        dead, sealed = (json.dumps(state.value) for state in (BatchState.DEAD, BatchState.SEALED))
        answer = self._server.step(
            "requeue", self._base(crawl), needed=there, batches=wanted, dead=dead, sealed=sealed
        )
        return list(answer["numbers"])

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        changed, ordered, kept = (
            list[int](),
            sorted(set(numbers)),
            json.dumps(priority),
        )  # Lua would round it
        there = [self._there(crawl)]
        for at in range(0, len(ordered), CHUNK):
            some = ordered[at : at + CHUNK]
            answer = self._server.step(
                "prioritise", self._base(crawl), needed=there, batches=some, priority=kept
            )
            changed += answer["numbers"]
        return changed

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return parted(self._look("GET", f"{self._base(crawl)}q:{number}") or b"")

    # attempts

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        state = self._look("HGET", self._attempt_key(crawl, batch, number), "state")
        return None if state is None else AttemptState(json.loads(state))

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        holder: bytes | None = self._look(
            "HGET", f"{self._base(crawl)}holders", f"{batch}.{number}"
        )
        return None if holder is None else holder.decode()

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        if states and {state.value for state in states} <= set(OPEN):
            keys = [f"{self._base(crawl)}open:{state.value}" for state in states]
        else:
            keys = [f"{self._base(crawl)}attempts"]
        found = self._some_attempts(crawl, self._attempt_names(self._look("SUNION", *keys)))
        return [one for one in found if not states or one.state in states]

    def _some_attempts(self, crawl: str, names: Collection[str]) -> list[Attempt]:
        rows = self._server.ask([("HGETALL", f"{self._base(crawl)}a:{name}") for name in names])

        def attempt(named: tuple[str, Mapping[bytes, bytes]]) -> Attempt:
            name, row = named
            found = self._door.attempt(crawl, unpacked(row))
            if f"{found.batch}.{found.number}" != name:
                raise foreign(f"attempt {name} of {crawl}", "it is another one")
            return found

        found = self._door.each(
            attempt, (pair for pair in zip(names, rows, strict=True) if pair[1])
        )
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
        current = [
            Condition(self._batch_key(crawl, batch), "attempts", [attempt]),
            in_state(self._attempt_key(crawl, batch, attempt), LEASABLE),
        ]
        base, name = self._base(crawl), f"{batch}.{attempt}"
        answer = self._server.step(
            "lease", base, needed=current, attempt=name, holder=holder, seconds=seconds, again=again
        )
        return "refused" not in answer

    def expired(self, crawl: str) -> list[Attempt]:
        names = map(str.encode, self._server.step("expired", self._base(crawl))["attempts"])
        late = self._some_attempts(crawl, self._attempt_names(names))
        return [attempt for attempt in late if attempt.state in LEASABLE]

    # leasing

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        crawl, base = wanted.crawl, self._base(wanted.crawl)
        # The attempt as it is when it is leased; its batch, its number and its job are told by its name.
        row = {
            name: it
            for name, it in vars(wanted.attempt_at(0, 0)).items()
            if name not in {"batch", "number", "job"}
        }
        answer = self._ask(
            "lease_next",
            crawl,
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
        pairs = [name.split(".") for name in answer.get("attempts", ())]
        if not pairs:  # idle workers ask again and again
            return []
        # Together: each question costs a round trip, as much as the step itself.
        looks = [("HGETALL", f"{base}b:{number}") for number, _ in pairs]
        looks += [("GET", f"{base}p:{number}") for number, _ in pairs]
        told = self._server.ask(looks)
        rows, payloads = told[: len(pairs)], told[len(pairs) :]

        def leased(one: tuple[str, Mapping[bytes, bytes], bytes | None]) -> Leased:
            attempt, row, text = one
            return self._door.leased(crawl, self._door.batch(unpacked(row)), int(attempt), text)

        return self._door.each(
            leased, zip((attempt for _, attempt in pairs), rows, payloads, strict=True)
        )

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        self._ask("producer", crawl, name=producer, seconds=seconds)

    def sign_off(self, crawl: str, producer: str) -> None:
        base = self._base(crawl)
        self._server.step("steps", base, writes=[("ZREM", f"{base}producers", producer)])

    # looking

    def backlog(self, crawl: str) -> Backlog:
        found = self._ask("backlog", crawl)
        counts = iter(found["slots"])
        return Backlog(
            slots=slot_counts(_slot_rows(dict(zip(counts, counts, strict=True)))),
            expired=found["expired"],
            acked=found["acked"],
            producers=tuple(sorted(found["producers"])),
            lost=tuple(sorted(found["lost"])),
            standing=json.loads(found["standing"]),
        )

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        if limit < 1:
            return []
        members = self._look("ZRANGE", f"{self._base(crawl)}w:{slot}", 0, limit - 1)
        numbers = self._door.each(
            lambda member: whole(member, f"a number in the slot {slot[:100]!r}"), members
        )
        return self._batches(crawl, numbers)

    def _ask(self, verb: str, crawl: str, **argument: Any) -> dict[str, Any]:
        """Make a step of a crawl that has to be there."""
        return self._server.step(verb, self._base(crawl), needed=[self._there(crawl)], **argument)


def new_rows(
    door: Door, crawl: str, new: Iterable[NewBatch]
) -> tuple[list[list[str]], list[bytes | str]]:
    """What a script needs of batches that are to be added: their fields, and blobs, two for each."""
    rows: list[list[str]] = []
    blobs: list[bytes | str] = []
    for one in new:
        batch = one.numbered(0)
        rows.append(
            packed({name: value for name, value in vars(batch).items() if name != "number"})
        )
        blobs += [door.payload_text(crawl, batch, one.payload), joined(one.fingerprints)]
    return rows, blobs


def in_state(key: str, states: Iterable[BatchState | AttemptState]) -> Condition:
    """The row of a key has to be in one of these states; with none of them, it must not be there."""
    return Condition(key, "state", [json.dumps(one.value) for one in states])


def _slot_rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """For `slot_counts`, from the hash of counts: `b:<state>:<slot>` are batches, `r:<state>:<slot>` requests."""
    for name, value in counts.items():
        kind, _, place = name.partition(":")
        state, _, slot = place.partition(":")
        if kind == "b" and SLOT_NAME.fullmatch(slot) and state in _STATES:
            what = f"the count of the slot {slot!r}"
            yield slot, state, whole(value, what), whole(counts.get(f"r:{place}"), what)
