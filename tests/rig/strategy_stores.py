"""A strategy's manager on a store of either engine, with a worker that leases and acks through the same store."""

from collections.abc import Callable, Mapping
from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.frontier.backlog import LeaseRequest, Lessee
from scrapyd_dist.payload import RequestValue, decode
from scrapyd_dist.store import Store
from scrapyd_dist.strategy import CrawlingStrategy, States
from scrapyd_dist.strategy.manager import StrategyManager

from .strategy_memory import HandClock, Page, events_of, fingerprint_of

NAME = "news"
LESSEE = Lessee(job=f"{NAME}.w1.a1", node="one", url="http://one:6800")


class WatchedStore:
    """A store; `before` is called in front of each verb and behind each step, and may raise in its place."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.before: Callable[[str], None] = lambda _: None
        self.calls: list[str] = []

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.before(verb)
            self.calls.append(verb)
            answer = getattr(self.store, verb)(*args, **options)
            if verb == "apply":
                self.before("applied")
            return answer

        return call


class StoredStrategy:
    """A strategy whose frontier is in this store."""

    def __init__(
        self, store: Store, strategy: CrawlingStrategy, pages: Mapping[str, Page], *, key: bytes | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.clock = HandClock()
        self.store, self.strategy, self.pages, self.key = WatchedStore(store), strategy, pages, key
        self.options = options
        self.values: list[RequestValue] = []
        store.add_crawl(Crawl(id=NAME, project="p", spider="page", created=1.0, kind="frontier"))
        self.manager = self.another("one", strategy)

    def another(self, name: str, strategy: CrawlingStrategy | None = None) -> StrategyManager:
        return StrategyManager(
            store=self.store, crawl=NAME, process=name, strategy=strategy or type(self.strategy)(), key=self.key,
            fingerprint=fingerprint_of, clock=self.clock, **self.options,
        )  # fmt: skip

    @property
    def made(self) -> list[str]:
        return [value["url"] for value in self.values]

    def work(self, batches: int = 1_000) -> bool:
        """Lease the next batches, request what is in them, and ack; whether there were any."""
        store = self.store.store
        wanted = LeaseRequest(
            crawl=NAME, lessee=LESSEE, seconds=60.0, now=self.clock(), limit=batches
        )
        leased = store.lease_next(wanted)
        for one in leased:
            values = decode(one.payload.get, key=self.key)
            self.values += values
            key = (NAME, one.batch.number, one.attempt)
            events = [event for value in values for event in events_of(value, self.pages)]
            store.ack(*key, LESSEE.job, report={}, now=self.clock(), events=events)
            store.accept(*key, report={}, part="", misses=[], now=self.clock())
        return bool(leased)

    def crawl(self, *managers: StrategyManager, rounds: int = 300) -> None:
        """Go on until all managers see the end, or for so many rounds."""
        every = managers or (self.manager,)
        for _ in range(rounds):
            self.clock.time += 1
            for manager in every:
                manager.work()
            self.work()
            if all(manager.over for manager in every):
                break

    def states(self) -> dict[str, States]:
        """URL -> state, by the log of changes."""
        return {
            change.url: change.after for change in self.store.store.changes(NAME, limit=1_000_000)
        }
