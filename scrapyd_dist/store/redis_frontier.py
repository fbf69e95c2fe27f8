"""The Redis store's verbs about the frontier: adding, leasing, acking; what is counted was counted as it came."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scrapyd_dist.batches import OUT, AttemptState, Batch, BatchState
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, SLOT_NAME, Backlog, Leased, SeenBefore, SlotCount
from scrapyd_dist.store.base import QueueStore
from scrapyd_dist.store.frontier_rows import (
    HUNGRY,
    FreshBatch,
    LeaseRequest,
    backlog_of,
    check_not_out,
    joined,
    prints_of,
    slot_counts,
)
from scrapyd_dist.store.redis_batches import RedisAttempts, RedisBatches, numbered
from scrapyd_dist.store.redis_crawls import RedisAccount, RedisCrawls
from scrapyd_dist.store.redis_link import RedisConnection, RedisPort, packed, unpacked, whole, word
from scrapyd_dist.store.redis_throttle import RedisThrottle
from scrapyd_dist.store.rows import storable

#: fingerprints that are looked for together
_PRINTS = 5_000
STATES = frozenset(state.value for state in BatchState)


class RedisFrontier(RedisPort, QueueStore):
    def __init__(self, connection: RedisConnection, batches: RedisBatches, attempts: RedisAttempts) -> None:
        super().__init__(connection)
        self._batches, self._attempts = batches, attempts

    # adding

    def _add(self, crawl: str, new: Sequence[FreshBatch], counts: Mapping[str, int]) -> list[Batch]:
        counting = self._counting(crawl, counts)
        answer = self._add_new(crawl, new, needed=[self._there(crawl)], writes=counting, batches=[], attempts=[])
        if "refused" in answer:
            raise self._door.no_crawl(crawl)
        return numbered(new, answer)

    def _add_new(self, crawl: str, new: Sequence[FreshBatch], **step: Any) -> dict[str, Any]:
        """The answer of the script; `step` has what else it needs, changes and writes."""
        prints = prints_of(new)
        answer = self._batches.make("add", crawl, new, **step)
        if "seen" in answer:
            raise SeenBefore(frozenset(prints[place - 1] for place in answer["seen"]))
        return answer

    def seen(self, crawl: str, fingerprints: Collection[bytes]) -> set[bytes]:
        prints, found = list(fingerprints), set()
        for start in range(0, len(prints), _PRINTS):
            some = prints[start : start + _PRINTS]
            places = self._look("seen", crawl, blobs=[joined(some)])["places"]
            found |= {some[place - 1] for place in places}
        return found

    def _look(self, look: str, crawl: str, **argument: Any) -> dict[str, Any]:
        """The answer of a step of a crawl that has to be there."""
        answer = self._server.step(look, self._base(crawl), needed=[self._there(crawl)], **argument)
        if "refused" in answer:
            raise self._door.no_crawl(crawl)
        return answer

    # leasing

    def _lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        crawl = wanted.crawl
        answer = self._server.step(
            "lease_next",
            self._base(crawl),
            needed=[self._there(crawl)],
            limit=wanted.limit,
            seconds=wanted.seconds,
            holder=wanted.lessee.job,
            state=json.dumps(BatchState.RUNNING.value),
            fields=_leased_fields(wanted),
            other=OTHER_SPIDER,
            fair=wanted.fair,
            alone=wanted.alone,
            hungry=HUNGRY,
            slots=list(wanted.slots),
            enough=list(wanted.enough),
        )
        if answer.get("refused"):
            raise self._door.no_crawl(crawl)
        pairs = [name.split(".") for name in answer.get("attempts", ())]
        base = self._base(crawl)
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

        return self._door.each(leased, zip((attempt for _, attempt in pairs), rows, payloads, strict=True))

    def _ack(
        self, crawl: str, batch: int, attempt: int, holder: str, ends: Mapping[str, Any], new: Sequence[FreshBatch],
        counts: Mapping[str, int],
    ) -> None:  # fmt: skip
        changes = {**ends, "state": AttemptState.ACKED.value}
        commands = [*self._attempts.commands(crawl, batch, attempt, changes), *self._counting(crawl, counts)]
        needed = self._attempts.needed(crawl, batch, attempt, AttemptState.ACKED, holder=holder)
        step = {"needed": needed, "writes": commands, "batches": [batch], "attempts": [f"{batch}.{attempt}"]}
        answer = self._add_new(crawl, new, **step)
        self._attempts.check(answer, crawl, batch, attempt, [holder, AttemptState.ACKED, None])

    # producers

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        self._look("producer", crawl, name=producer, seconds=seconds)

    def sign_off(self, crawl: str, producer: str) -> None:
        base = self._base(crawl)
        self._server.step("steps", base, writes=[("ZREM", f"{base}producers", producer)])

    # looking

    def backlog(self, crawl: str) -> Backlog:
        found = self._look("backlog", crawl)
        counts = iter(found["slots"])
        return backlog_of(
            _slots(dict(zip(counts, counts, strict=True))),
            expired=found["expired"],
            acked=found["acked"],
            producers=found["producers"],
            lost=found["lost"],
            standing=json.loads(found["standing"]),
        )

    def slots(self, crawl: str) -> list[SlotCount]:
        counts = self._server.read(lambda: self._client.hgetall(f"{self._base(crawl)}slots"))
        return _slots({word(name): value for name, value in counts.items()})

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        if limit < 1:
            return []
        members = self._server.read(lambda: self._client.zrange(f"{self._base(crawl)}w:{slot}", 0, limit - 1))
        numbers = self._door.each(lambda member: whole(member, f"a number in the slot {slot[:100]!r}"), members)
        rows = self._server.ask([("HGETALL", self._batch_key(crawl, number)) for number in numbers])
        return self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))

    def drop_batch(self, crawl: str, number: int, *, forget: bool) -> None:
        key = self._batch_key(crawl, number)
        states = [json.dumps(state.value) for state in BatchState if state not in OUT]
        answer = self._server.step(
            "drop", self._base(crawl), needed=[(key, "state", states)], batch=number, forget=forget
        )
        if "refused" not in answer:
            return
        if "found" not in answer:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        check_not_out(number, BatchState(json.loads(answer["found"])))


def _leased_fields(wanted: LeaseRequest) -> list[str]:
    """An attempt as it is when it is leased; its batch, its number and its job are told by its name."""
    attempt = wanted.attempt_at(0, 0)
    row = {**asdict(attempt), "state": attempt.state.value, "report": "{}"}
    return packed(storable({name: value for name, value in row.items() if name not in {"batch", "number", "job"}}))


def _slots(counts: Mapping[str, Any]) -> list[SlotCount]:
    """From the hash of counts: `b:<state>:<slot>` are batches, `r:<state>:<slot>` requests."""

    def rows() -> Iterator[tuple[str, str, int, int]]:
        for name, value in counts.items():
            kind, _, place = name.partition(":")
            state, _, slot = place.partition(":")
            if kind == "b" and SLOT_NAME.fullmatch(slot) and state in STATES:
                what = f"the count of the slot {slot!r}"
                yield slot, state, whole(value, what), whole(counts.get(f"r:{place}"), what)

    return slot_counts(rows())


def redis_parts(url: str, *, key: bytes | None) -> tuple[object, ...]:
    """The store on this server, 6.0 or newer: the connection, and the ports that share it."""
    connection = RedisConnection(url, key=key)
    crawls = RedisCrawls(connection)
    batches = RedisBatches(connection, crawls)
    attempts = RedisAttempts(connection, batches)
    frontier = RedisFrontier(connection, batches, attempts)
    return connection, crawls, RedisAccount(connection), batches, attempts, frontier, RedisThrottle(connection)
