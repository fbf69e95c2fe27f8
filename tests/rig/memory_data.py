"""What an engine in memory keeps, and the connection that its ports share."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from scrapyd_dist.batches import LEASABLE, WAITING, BatchState, Shard, WorkerEntry
from scrapyd_dist.store.ports.engine import Connection, StoreRequest
from scrapyd_dist.store.ports.frontier_rows import BatchStep, retried_before
from scrapyd_dist.store.ports.link_rows import LinkRows
from scrapyd_dist.store.ports.rows import Door, Signer, storable
from scrapyd_dist.throttle.domain_status import DomainRules
from scrapyd_dist.throttle.permits import WindowTerms, moments

from .memory_links import Row, StrategyData

#: an attempt: the numbers of its batch and its own
Key = tuple[int, int]


class CrawlData:
    """What is kept of one crawl."""

    def __init__(self, row: Mapping[str, Any], number: int) -> None:
        self.row, self.number = dict(row), number
        self.samples: list[tuple[float, Row]] = []
        self.shards: dict[int, Shard] = {}
        self.workers: dict[str, WorkerEntry] = {}
        self.last_worker = 0
        self.turn = 0
        self.turns: Counter[str] = Counter()
        self.holders: dict[str, str] = {}
        self.hungry: dict[str, float] = {}
        self.producers: dict[str, float] = {}
        self.last_batch = 0
        self.clear()

    def clear(self) -> None:
        """Forget batches, the account, and the strategy."""
        self.counts: Counter[str] = Counter()
        self.misses: list[Row] = []
        self.seen: set[bytes] = set()
        self.batches: dict[int, Row] = {}
        self.payloads: dict[int, tuple[str, tuple[bytes, ...]]] = {}
        self.attempts: dict[Key, Row] = {}
        self.leases: dict[Key, tuple[str, float]] = {}
        self.strategy = StrategyData()

    def change(self, step: BatchStep) -> None:
        """Make the changes of a step, but for its new batches and their fingerprints."""
        key = (step.batch, step.attempt)
        self._forget_misses(step)
        self.seen.update(step.prints)
        self.misses += [storable(vars(miss)) for miss in step.misses]
        self.counts.update({name: value for name, value in step.counts.items() if value})
        if "ended_at" in step.changes:
            self.leases.pop(key, None)
        if step.to is not None:
            self.attempts[key].update(storable({"state": step.to, **step.changes}))
        if step.batch_to is not None:
            row = storable({"state": step.batch_to, **step.batch_changes})
            self.batches[step.batch].update(row)
        if step.opened is not None:
            self.attempts[key] = storable(vars(step.opened))
        if step.forget:
            self.seen.difference_update(self.payloads[step.batch][1])
        if step.dropped:
            self.drop(step.batch)
        under_way = self.under_way()
        self.holders = {slot: name for slot, name in self.holders.items() if under_way[slot] > 0}

    def _forget_misses(self, step: BatchStep) -> None:
        left = list(self.misses)
        for row in [storable(vars(miss)) for miss in step.retried]:
            if row not in left:
                raise retried_before(step)
            left.remove(row)
        self.misses = left

    def drop(self, number: int) -> None:
        """Remove a batch, and all that belongs to it."""
        del self.batches[number], self.payloads[number]
        for key in [key for key in self.attempts if key[0] == number]:
            del self.attempts[key]
            self.leases.pop(key, None)

    def waiting(self) -> dict[str, list[Row]]:
        """Slot -> rows of the batches that wait there, in the order in which they are leased."""
        found: defaultdict[str, list[Row]] = defaultdict(list)
        for row in sorted(self.batches.values(), key=lambda row: (-row["priority"], row["number"])):
            if row["state"] in WAITING:
                found[row["slot"]].append(row)
        return found

    def slot_rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Slot, state, and how many batches and requests are there."""
        sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for row in self.batches.values():
            sizes[row["slot"], BatchState(row["state"]).value].append(row["size"])
        for place, of_place in sizes.items():
            yield (*place, len(of_place), sum(of_place))

    def under_way(self) -> Counter[str]:
        """Slot -> requests of batches that workers have."""
        found: Counter[str] = Counter()
        for (batch, _), row in self.attempts.items():
            if row["state"] in LEASABLE:
                found[self.batches[batch]["slot"]] += self.batches[batch]["size"]
        return found


@dataclass
class DomainData:
    """What is kept of one domain."""

    asked: int = 0
    standing: DomainRules = field(default_factory=DomainRules)
    #: key -> its terms, and its grants in order
    keys: dict[str, tuple[WindowTerms, list[int]]] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)

    def counts_at(self, now: int) -> bool:
        """Whether a grant, or a rest, still counts."""
        spans = [(2 * max(terms.window, terms.gap), grants) for terms, grants in self.keys.values()]
        is_near = any(at > now - span for span, grants in spans for at in grants)
        return is_near or self.standing.rest_until > now

    def take_pages(self, budget: str, count: int, most: int) -> tuple[int, int]:
        """Take pages; how many, and how many are used now."""
        used = self.pages.get(budget, 0)
        taken = max(0, min(count, most - used))
        self.pages[budget] = used + taken
        return taken, used + taken

    def grant(self, key: str, count: int, terms: WindowTerms, now: int) -> list[int]:
        """Keep so many more grants of a key."""
        _, own = self.keys.get(key, (terms, []))
        others = [at for other, (_, grants) in self.keys.items() if other != key for at in grants]
        start = max(now, self.standing.rest_until)
        given = moments(count, start, own, terms, sorted(others) if terms.apart else ())
        kept = [at for at in own if at >= now - 2 * terms.memory]
        self.keys[key] = (terms, sorted([*kept, *given]))
        return given


class MemoryData:
    """What one store keeps, for all connections of this process."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.crawls: dict[str, CrawlData] = {}
        self.nodes: dict[str, Row] = {}
        self.jobs: dict[str, Row] = {}
        self.revision = 0
        self.verdicts: dict[str, Row] = {}
        self.rules: dict[str, str] = {}
        self.version = 0
        self.changes: list[tuple[int, str]] = []
        self.domains: dict[str, DomainData] = {}


_stores: defaultdict[str, MemoryData] = defaultdict(MemoryData)


class MemoryConnection(Connection):
    """The connection to a store in memory."""

    def __init__(self, request: StoreRequest) -> None:
        self.data = _stores[request.where]
        self.door = Door(Signer(request.key), request.where)
        self.link_rows = LinkRows(self.door, request.key, is_private=True)

    @contextmanager
    def step(self) -> Iterator[MemoryData]:
        """No other thread reads or writes meanwhile."""
        with self.data.lock:
            yield self.data

    def warnings(self) -> list[str]:
        return ["the store is in memory"]

    def close(self) -> None:
        pass


class MemoryPort:
    """The base of each port."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self._door = connection.door

    def _crawl(self, crawl: str) -> CrawlData:
        """What is kept of a crawl; `NoCrawl` when it is not there."""
        found = self._connection.data.crawls.get(crawl)
        if found is None:
            raise self._door.no_crawl(crawl)
        return found

    def _found(self, crawl: str) -> CrawlData:
        """What is kept of a crawl; nothing where it is not there."""
        return self._connection.data.crawls.get(crawl) or CrawlData({}, 0)

    def _now(self) -> float:
        return time.time()
