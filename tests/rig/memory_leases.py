"""Leases of an engine in memory, and whose turn it is, which is found by looking at everything."""

import math
from collections import Counter

from scrapyd_dist.batches import LEASABLE, BatchState
from scrapyd_dist.frontier.backlog import OTHER_SPIDER, Leased, LeaseRequest
from scrapyd_dist.store.ports.frontier_rows import HUNGRY, not_listed
from scrapyd_dist.store.ports.rows import storable

from .memory_data import CrawlData, MemoryPort


class MemoryLeases(MemoryPort):
    """The part of the port for batches that is about leases and producers."""

    def _holder(self, crawl: str, batch: int, number: int) -> str | None:
        return self._found(crawl).leases.get((batch, number), (None, 0.0))[0]

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
        with self._connection.step():
            kept, key = self._found(crawl), (batch, attempt)
            if kept.batches.get(batch, {}).get("attempts") != attempt:
                return False
            if kept.attempts.get(key, {}).get("state") not in LEASABLE:
                return False
            other, until = kept.leases.get(key, (None if again else holder, 0.0))
            if other != holder and (again or until >= self._now()):
                return False
            kept.leases[key] = (holder, self._now() + seconds)
            return True

    def lease_next(self, wanted: LeaseRequest) -> list[Leased]:
        with self._connection.step():
            kept = self._crawl(wanted.crawl)
            if wanted.listed and wanted.lessee.job not in kept.workers:
                raise not_listed(wanted)
            if kept.row["wanted"]:
                return []
            return [
                self._lease(kept, wanted, one) for one in next_batches(kept, wanted, self._now())
            ]

    def _lease(self, kept: CrawlData, wanted: LeaseRequest, number: int) -> Leased:
        row = kept.batches[number]
        row.update({"state": BatchState.RUNNING, "attempts": row["attempts"] + 1})
        key = (number, row["attempts"])
        kept.attempts[key] = storable(vars(wanted.attempt_at(*key)))
        kept.leases[key] = (wanted.lessee.job, self._now() + wanted.seconds)
        text = kept.payloads[number][0]
        return self._door.leased(wanted.crawl, self._door.batch(row), key[1], text)

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        self._crawl(crawl).producers[producer] = self._now() + seconds

    def sign_off(self, crawl: str, producer: str) -> None:
        self._found(crawl).producers.pop(producer, None)


def next_batches(kept: CrawlData, wanted: LeaseRequest, now: float) -> list[int]:
    """The batches that a worker gets."""
    named = {
        slot: [row["number"] for row in rows]
        for slot, rows in kept.waiting().items()
        if (slot in wanted.slots if wanted.slots else not slot.startswith(OTHER_SPIDER))
    }
    if not wanted.fair:
        numbers = [number for one in named.values() for number in one]
        numbers.sort(key=lambda number: (-kept.batches[number]["priority"], number))
        return numbers[: wanted.limit]
    found: list[int] = []
    enough = set(wanted.enough)
    under_way = kept.under_way()
    most = _share(kept, wanted, now)
    while len(found) < wanted.limit:
        held = Counter(kept.holders.values())[wanted.lessee.job]
        slot = _next_slot(
            kept, wanted, {*named} - enough, held=held, most=most, under_way=under_way
        )
        if slot is None:
            break
        enough.add(slot)
        found.append(named[slot][0])
        kept.turn += 1
        kept.turns[slot] = kept.turn
        if wanted.alone:
            kept.holders[slot] = wanted.lessee.job
    if wanted.alone and named and not found and wanted.lessee.job not in kept.holders.values():
        kept.hungry[wanted.lessee.job] = now
    return found


def _share(kept: CrawlData, wanted: LeaseRequest, now: float) -> float:
    """How many slots this worker may have."""
    if not wanted.alone:
        return math.inf
    waiting = [slot for slot in kept.waiting() if not slot.startswith(OTHER_SPIDER)]
    slots = {*kept.holders, *waiting}
    hungry = {name for name, at in kept.hungry.items() if at > now - HUNGRY}
    return math.ceil(len(slots) / len({wanted.lessee.job, *kept.holders.values(), *hungry}))


def _next_slot(
    kept: CrawlData, wanted: LeaseRequest, slots: set[str], *, held: int, most: float, under_way: Counter[str]
) -> str | None:  # fmt: skip
    allowed = {""} if held < most else set()
    if held <= most:
        allowed.add(wanted.lessee.job)
    open_slots = [slot for slot in slots if kept.holders.get(slot, "") in allowed]
    return min(open_slots, key=lambda slot: (under_way[slot], kept.turns[slot], slot), default=None)
