"""The Redis store's verbs about the frontier: adding and leasing; what is counted was counted as it came."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.frontier.backlog import SLOT_NAME, Backlog, Leased, LeaseRequest, SlotCount
from scrapyd_dist.store.base import QueueStore
from scrapyd_dist.store.frontier_rows import HUNGRY, slot_counts
from scrapyd_dist.store.redis_batches import RedisBatches
from scrapyd_dist.store.redis_crawls import RedisCrawls, RedisRuns
from scrapyd_dist.store.redis_link import RedisConnection, RedisPort, packed, unpacked, whole
from scrapyd_dist.store.redis_throttle import RedisThrottle

STATES = frozenset(state.value for state in BatchState)


class RedisFrontier(RedisPort, QueueStore):
    def _ask(self, verb: str, crawl: str, **argument: Any) -> dict[str, Any]:
        """Make a step of a crawl that has to be there."""
        return self._server.step(verb, self._base(crawl), needed=[self._there(crawl)], **argument)

    # leasing

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        crawl, base = wanted.crawl, self._base(wanted.crawl)
        # The attempt as it is when it is leased; its batch, its number and its job are told by its name.
        row = {name: it for name, it in vars(wanted.attempt_at(0, 0)).items() if name not in {"batch", "number", "job"}}
        answer = self._ask(
            "lease_next", crawl, limit=wanted.limit, seconds=wanted.seconds, slots=list(wanted.slots),
            fair=bool(wanted.fair), alone=wanted.alone, enough=list(wanted.enough), holder=wanted.lessee.job,
            fields=packed(row), state=json.dumps(BatchState.RUNNING.value), hungry=HUNGRY,
        )  # fmt: skip
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

        return self._door.each(leased, zip((attempt for _, attempt in pairs), rows, payloads, strict=True))

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
            slots=_slots(dict(zip(counts, counts, strict=True))),
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
        numbers = self._door.each(lambda member: whole(member, f"a number in the slot {slot[:100]!r}"), members)
        rows = self._server.ask([("HGETALL", self._batch_key(crawl, number)) for number in numbers])
        return self._door.each(lambda row: self._door.batch(unpacked(row)), filter(None, rows))


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
    ports = (RedisCrawls, RedisRuns, RedisBatches, RedisFrontier, RedisThrottle)
    return connection, *(port(connection) for port in ports)
