"""The port for batches, in memory; leases are in `memory_leases`."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from scrapyd_dist.batches import LEASABLE, Attempt, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.frontier.backlog import Backlog, NewBatch, SeenBefore
from scrapyd_dist.goals import COUNTED, Spent, spend
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.frontier_rows import BatchStep, prints_of, slot_counts
from scrapyd_dist.store.ports.rows import storable

from .memory_data import CrawlData
from .memory_leases import MemoryLeases


class MemoryBatches(MemoryLeases, BatchStore):
    def make_step(self, step: BatchStep) -> list[Batch]:
        """Make the step as a part of a larger one."""
        return self._step(step)

    def _step(self, step: BatchStep) -> list[Batch]:
        with self._connection.step():
            kept = self._crawl(step.crawl)
            self._check(step)
            prints = prints_of(step.new) if step.unseen else []
            if seen := kept.seen.intersection(prints):
                raise SeenBefore(frozenset(seen))
            events = self._connection.link_rows.event_texts(step.crawl, step.events)
            kept.seen.update(prints)
            kept.change(step)
            kept.strategy.add_events([one.partition for one in step.events], events)
            return [self._add(step.crawl, kept, new) for new in step.new]

    def _add(self, crawl: str, kept: CrawlData, new: NewBatch) -> Batch:
        kept.last_batch += 1
        batch = new.numbered(kept.last_batch)
        kept.batches[batch.number] = storable(vars(batch))
        text = self._door.payload_text(crawl, batch, new.payload)
        kept.payloads[batch.number] = (text, tuple(new.fingerprints))
        return batch

    def counts(self, crawl: str) -> dict[str, int]:
        return dict(self._found(crawl).counts)

    def spend(
        self, crawl: str, limits: Mapping[str, float], requests: int = 0,
        done: Mapping[str, int] = MappingProxyType({}), *, reserve: bool = False,
    ) -> Spent:  # fmt: skip
        with self._connection.step():
            counts = self._crawl(crawl).counts
            own = {
                name[len(COUNTED) :]: counts[name] for name in counts if name.startswith(COUNTED)
            }
            spent = spend(limits, own, requests, done, reserve=reserve)
            changed = {
                name: value for name, value in spent.counts.items() if value != own.get(name)
            }
            for name, value in changed.items():
                counts[COUNTED + name] = value
            return spent

    def misses(self, crawl: str) -> list[Miss]:
        rows = sorted(self._found(crawl).misses, key=lambda row: not row["batch"])
        return [self._door.miss(crawl, row) for row in rows]

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        yield from list(self._found(crawl).seen)

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._found(crawl).batches.get(number)
        if row is None:
            raise self._door.no_batch(crawl, number)
        return self._door.batch(row)

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        with self._connection.step():
            found = [self.batch(crawl, number) for number in self._found(crawl).batches]
        return [one for one in found if not states or one.state in states]

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        batch = self.batch(crawl, number)
        return self._door.payload(crawl, batch, self._crawl(crawl).payloads[number][0])

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        return list(self._found(crawl).payloads.get(number, ("", ()))[1])

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        with self._connection.step():
            found = [self.batch(crawl, number) for number in sorted(set(numbers))]
            dead = [one for one in found if one.state is BatchState.DEAD]
            for one in dead:
                row = {"state": BatchState.SEALED, "earlier": one.attempts, "forgiven": 0}
                self._crawl(crawl).batches[one.number].update(row)
            return [one.number for one in dead]

    def prioritise(self, crawl: str, numbers: Collection[int], priority: int) -> list[int]:
        with self._connection.step():
            waiting = {
                row["number"]: row for rows in self._crawl(crawl).waiting().values() for row in rows
            }
            changed = sorted(waiting.keys() & set(numbers))
            for number in changed:
                waiting[number]["priority"] = priority
            return changed

    def _attempt_state(self, crawl: str, batch: int, number: int) -> AttemptState | None:
        row = self._found(crawl).attempts.get((batch, number))
        return None if row is None else AttemptState(row["state"])

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        with self._connection.step():
            rows = list(self._found(crawl).attempts.values())
            found = [self._door.attempt(crawl, row) for row in rows]
        found.sort(key=lambda one: (one.sent_at, one.batch, one.number))
        return [one for one in found if not states or one.state in states]

    def expired(self, crawl: str) -> list[Attempt]:
        late = {key for key, (_, until) in self._found(crawl).leases.items() if until < self._now()}
        return [one for one in self.attempts(crawl, LEASABLE) if (one.batch, one.number) in late]

    def backlog(self, crawl: str) -> Backlog:
        with self._connection.step():
            kept, now = self._crawl(crawl), self._now()
            lost = sorted(name for name, until in kept.producers.items() if until < now)
            return Backlog(
                slots=slot_counts(kept.slot_rows()),
                expired=sum(until < now for _, until in kept.leases.values()),
                acked=len(self.attempts(crawl, [AttemptState.ACKED])),
                producers=tuple(sorted(kept.producers.keys() - set(lost))),
                lost=tuple(lost),
                standing=bool(kept.row["standing"]),
            )

    def peek(self, crawl: str, slot: str, limit: int) -> list[Batch]:
        with self._connection.step():
            rows = self._found(crawl).waiting().get(slot, [])
            return [self._door.batch(row) for row in rows[: max(0, limit)]]
