"""An open store as its callers have it: the verbs of all ports, each guarded."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from scrapyd_dist.errors import ForeignRow, StoreError
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.engine import Connection, Ports
from scrapyd_dist.store.ports.job_store import JobStore
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.store.ports.throttle_store import ThrottleStore

P = ParamSpec("P")
R = TypeVar("R")
#: the errors of reading and computing with a value of another type or size
_TRIPPED: tuple[type[Exception], ...] = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class Guarded(Generic[P, R]):
    """The verb of a port as a verb of the store, made when it is first used.

    It raises `ForeignRow` where no version of ours has written what is stored, and `StoreError`
    where the engine has failed for the moment. Like a `functools.cached_property` it stands among
    the store's own attributes from then on, so that a call costs no more than the guard.

    Args:
        port: the attribute of `Store` that has the port.
        verb: as the port defines it.
    """

    def __init__(self, port: str, verb: Callable[Concatenate[Any, P], R]) -> None:
        self._port = port
        self._name = verb.__name__
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, store: None, owner: type["Store"]) -> "Guarded[P, R]": ...

    @overload
    def __get__(self, store: "Store", owner: type["Store"]) -> Callable[P, R]: ...

    def __get__(
        self, store: "Store | None", owner: type["Store"]
    ) -> "Guarded[P, R] | Callable[P, R]":
        if store is None:
            return self
        verb: Callable[P, R] = getattr(getattr(store, self._port), self._name)
        call = _guarded(verb, self._name, store.connection)
        vars(store)[self._name] = call
        return call


def _guarded(verb: Callable[P, R], name: str, connection: Connection) -> Callable[P, R]:
    @wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return verb(*args, **kwargs)
        except _TRIPPED + connection.client_errors as error:
            if connection.is_outage(error):
                raise StoreError(f"the store failed: {error}.") from error
            raise ForeignRow(
                "The store has something that no version of sdist has written, so it cannot"
                f" {name} there: {type(error).__name__}: {str(error)[:200]}. Another program has"
                " written to it, or it is damaged."
            ) from error

    return call


class Store:
    """All verbs of an engine's ports; what each one does is said where its port defines it."""

    def __init__(self, ports: Ports) -> None:
        self.connection = ports.connection
        self.crawl_port = ports.crawls
        self.batch_port = ports.batches
        self.throttle_port = ports.throttle
        self.job_port = ports.jobs
        self.strategy_port = ports.strategies

    def close(self) -> None:
        """Close the connection to what is stored."""
        self.connection.close()

    warnings = Guarded("connection", Connection.warnings)

    # crawls and nodes

    nodes = Guarded("crawl_port", CrawlStore.nodes)
    update_node = Guarded("crawl_port", CrawlStore.update_node)
    add_crawl = Guarded("crawl_port", CrawlStore.add_crawl)
    crawl = Guarded("crawl_port", CrawlStore.crawl)
    own_crawl = Guarded("crawl_port", CrawlStore.own_crawl)
    crawls = Guarded("crawl_port", CrawlStore.crawls)
    update_crawl = Guarded("crawl_port", CrawlStore.update_crawl)
    claim = Guarded("crawl_port", CrawlStore.claim)
    want = Guarded("crawl_port", CrawlStore.want)
    wanted = Guarded("crawl_port", CrawlStore.wanted)
    forget = Guarded("crawl_port", CrawlStore.forget)
    add_sample = Guarded("crawl_port", CrawlStore.add_sample)
    samples = Guarded("crawl_port", CrawlStore.samples)
    add_shards = Guarded("crawl_port", CrawlStore.add_shards)
    shards = Guarded("crawl_port", CrawlStore.shards)
    finish_shards = Guarded("crawl_port", CrawlStore.finish_shards)
    walk_again = Guarded("crawl_port", CrawlStore.walk_again)
    add_workers = Guarded("crawl_port", CrawlStore.add_workers)
    remove_worker = Guarded("crawl_port", CrawlStore.remove_worker)
    workers = Guarded("crawl_port", CrawlStore.workers)

    # batches, attempts, leases

    seal = Guarded("batch_port", BatchStore.seal)
    add_batches = Guarded("batch_port", BatchStore.add_batches)
    count = Guarded("batch_port", BatchStore.count)
    counts = Guarded("batch_port", BatchStore.counts)
    spend = Guarded("batch_port", BatchStore.spend)
    add_misses = Guarded("batch_port", BatchStore.add_misses)
    misses = Guarded("batch_port", BatchStore.misses)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests; they come bit by bit, and unguarded."""
        return self.batch_port.fingerprints(crawl)

    batch = Guarded("batch_port", BatchStore.batch)
    batches = Guarded("batch_port", BatchStore.batches)
    payload = Guarded("batch_port", BatchStore.payload)
    batch_fingerprints = Guarded("batch_port", BatchStore.batch_fingerprints)
    requeue = Guarded("batch_port", BatchStore.requeue)
    prioritise = Guarded("batch_port", BatchStore.prioritise)
    split = Guarded("batch_port", BatchStore.split)
    retry = Guarded("batch_port", BatchStore.retry)
    drop_batch = Guarded("batch_port", BatchStore.drop_batch)
    open_attempt = Guarded("batch_port", BatchStore.open_attempt)
    sent = Guarded("batch_port", BatchStore.sent)
    give_back = Guarded("batch_port", BatchStore.give_back)
    running = Guarded("batch_port", BatchStore.running)
    accept = Guarded("batch_port", BatchStore.accept)
    fail = Guarded("batch_port", BatchStore.fail)
    reopen = Guarded("batch_port", BatchStore.reopen)
    ack = Guarded("batch_port", BatchStore.ack)
    attempts = Guarded("batch_port", BatchStore.attempts)
    lease = Guarded("batch_port", BatchStore.lease)
    expired = Guarded("batch_port", BatchStore.expired)
    lease_next = Guarded("batch_port", BatchStore.lease_next)
    register_producer = Guarded("batch_port", BatchStore.register_producer)
    sign_off = Guarded("batch_port", BatchStore.sign_off)
    backlog = Guarded("batch_port", BatchStore.backlog)
    peek = Guarded("batch_port", BatchStore.peek)

    # the throttle

    take_permits = Guarded("throttle_port", ThrottleStore.take_permits)
    return_permits = Guarded("throttle_port", ThrottleStore.return_permits)
    tell_sites = Guarded("throttle_port", ThrottleStore.tell_sites)
    rules = Guarded("throttle_port", ThrottleStore.rules)
    change_rules = Guarded("throttle_port", ThrottleStore.change_rules)
    domain_states = Guarded("throttle_port", ThrottleStore.domain_states)
    forget_permits = Guarded("throttle_port", ThrottleStore.forget_permits)
    forget_pages = Guarded("throttle_port", ThrottleStore.forget_pages)

    # plain jobs

    job_revision = Guarded("job_port", JobStore.job_revision)
    jobs = Guarded("job_port", JobStore.jobs)
    named_jobs = Guarded("job_port", JobStore.named_jobs)
    keep_jobs = Guarded("job_port", JobStore.keep_jobs)
    forget_jobs = Guarded("job_port", JobStore.forget_jobs)
    keep_verdicts = Guarded("job_port", JobStore.keep_verdicts)
    verdicts = Guarded("job_port", JobStore.verdicts)

    # strategies

    hold_partitions = Guarded("strategy_port", StrategyStore.hold_partitions)
    leave_partitions = Guarded("strategy_port", StrategyStore.leave_partitions)
    events = Guarded("strategy_port", StrategyStore.events)
    links = Guarded("strategy_port", StrategyStore.links)
    domains = Guarded("strategy_port", StrategyStore.domains)
    queue_heads = Guarded("strategy_port", StrategyStore.queue_heads)
    apply = Guarded("strategy_port", StrategyStore.apply)
    strategy_backlog = Guarded("strategy_port", StrategyStore.strategy_backlog)
    end_strategy = Guarded("strategy_port", StrategyStore.end_strategy)
    changes = Guarded("strategy_port", StrategyStore.changes)
    dead_events = Guarded("strategy_port", StrategyStore.dead_events)
    replay = Guarded("strategy_port", StrategyStore.replay)
    reset_strategy = Guarded("strategy_port", StrategyStore.reset_strategy)
