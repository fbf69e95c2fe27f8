"""The port for crawling strategies, in memory."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

from scrapyd_dist.batches import LEASABLE, Batch, BatchState
from scrapyd_dist.store.ports.frontier_rows import BatchStep, at_work
from scrapyd_dist.store.ports.link_rows import checked_metadata
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.strategy.links import (
    Link,
    LinkChange,
    LinkEvent,
    StrategyBacklog,
    StrategyStep,
    is_empty,
)

from .memory_batches import MemoryBatches
from .memory_data import MemoryConnection, MemoryPort
from .memory_links import StrategyData


class MemoryStrategies(MemoryPort, StrategyStore):
    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection)
        self._batches = MemoryBatches(connection)
        self._rows = connection.link_rows

    def _strategy(self, crawl: str) -> StrategyData:
        return self._crawl(crawl).strategy

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        with self._connection.step():
            return self._strategy(crawl).hold(process, self._now(), seconds, finished=finished)

    def leave_partitions(self, crawl: str, process: str) -> None:
        with self._connection.step():
            self._strategy(crawl).leave(process)

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        with self._connection.step():
            rows = self._strategy(crawl).waiting_events().items()
            mine = [(number, row["text"]) for number, row in rows if row["partition"] in partitions]
            return [self._rows.event(crawl, *row) for row in mine[:limit]]

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        with self._connection.step():
            kept = self._strategy(crawl)
            there = [kept.links[one] for one in dict.fromkeys(fingerprints) if one in kept.links]
            waits = kept.places.keys()
            return {
                one.fingerprint: replace(one, request=None, waits=one.fingerprint in waits)
                for one in there
            }

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        kept = self._strategy(crawl).domains
        return {name: self._rows.domain(name, kept[name]) for name in names if name in kept}

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        with self._connection.step():
            kept, data = self._strategy(crawl), self._crawl(crawl)
            if kept.ended or data.row["wanted"]:
                return []
            rooms = {
                slot: sum(row["size"] for row in rows) for slot, rows in data.waiting().items()
            }
            return list(islice(kept.heads(partitions, rooms, ahead, now), limit))

    def apply(self, step: StrategyStep) -> list[Batch]:
        with self._connection.step():
            kept, data = self._strategy(step.crawl), self._crawl(step.crawl)
            dead = [one.number for one in self._batches.batches(step.crawl, [BatchState.DEAD])]
            kept.check(step, dead)
            events = self._rows.event_texts(step.crawl, step.events)
            for one in step.links:
                self._rows.fields(one)  # raises what cannot be kept
                self._rows.request_text(step.crawl, one.fingerprint, one.request or {"url": ""})
            sites = {name: checked_metadata(name, one or {}) for name, one in step.domains.items()}
            kept.change(step)
            kept.add_events([one.partition for one in step.events], events)
            kept.domains |= sites
            for name in [name for name, one in step.domains.items() if one is None]:
                del kept.domains[name]
            for number in step.dropped:
                data.drop(number)
            return self._batches.make_step(BatchStep(step.crawl, new=step.new, counts=step.counts))

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        with self._connection.step():
            kept = self._strategy(crawl)
            return StrategyBacklog(
                states=Counter(one.state for one in kept.links.values()),
                queued=len(kept.places) - len(kept.later),
                later=len(kept.later),
                events=len(kept.waiting_events()),
                dead=len(kept.dead_events()),
                processes=kept.live(self._now()),
                ended=kept.ended,
            )

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        with self._connection.step():
            kept = self._strategy(crawl)
            if if_empty and not is_empty(
                self._batches.backlog(crawl), self.strategy_backlog(crawl)
            ):
                return False
            kept.ended = ended
            return True

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        with self._connection.step():
            kept = self._strategy(crawl)
            found = kept.changes[after : after + limit]
            return [replace(one, url=kept.links[one.fingerprint].url) for one in found]

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        dead = self._strategy(crawl).dead_events().items()
        rows = [(number, row["text"], row["fault"]) for number, row in dead]
        return [self._rows.event(crawl, *row) for row in rows[: max(0, limit)]]

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        with self._connection.step():
            dead = self._strategy(crawl).dead_events()
            revived = [row for number, row in dead.items() if numbers is None or number in numbers]
            for row in revived:
                row["fault"] = None
            return len(revived)

    def reset_strategy(self, crawl: str) -> None:
        with self._connection.step():
            states = [*LEASABLE, "acked"]
            out = sum(row["state"] in states for row in self._crawl(crawl).attempts.values())
            busy = [one.name for one in self.strategy_backlog(crawl).processes if one.partitions]
            if out or busy:
                raise at_work(crawl, out, busy[0] if busy else "")
            self._crawl(crawl).clear()
