"""An open store as its callers have it: the verbs of all ports, each guarded."""

from collections.abc import Callable, Iterator
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

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


def guarded(
    port: str, verb: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate["Store", P], R]:
    """Return the verb of a port as a verb of the store.

    It raises `ForeignRow` where no version of ours has written what is stored, and `StoreError`
    where the engine has failed for the moment.

    Args:
        port: the attribute of `Store` that has the port.
        verb: as the port defines it.
    """
    name = verb.__name__
    find = attrgetter(f"{port}.{name}")

    @wraps(verb)
    def call(store: "Store", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return find(store)(*args, **kwargs)  # type: ignore[no-any-return]  # as the port says
        except _TRIPPED + store.connection.client_errors as error:
            if store.connection.is_outage(error):
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

    warnings = guarded("connection", Connection.warnings)

    # crawls and nodes

    nodes = guarded("crawl_port", CrawlStore.nodes)
    update_node = guarded("crawl_port", CrawlStore.update_node)
    add_crawl = guarded("crawl_port", CrawlStore.add_crawl)
    crawl = guarded("crawl_port", CrawlStore.crawl)
    own_crawl = guarded("crawl_port", CrawlStore.own_crawl)
    crawls = guarded("crawl_port", CrawlStore.crawls)
    update_crawl = guarded("crawl_port", CrawlStore.update_crawl)
    claim = guarded("crawl_port", CrawlStore.claim)
    want = guarded("crawl_port", CrawlStore.want)
    wanted = guarded("crawl_port", CrawlStore.wanted)
    forget = guarded("crawl_port", CrawlStore.forget)
    add_sample = guarded("crawl_port", CrawlStore.add_sample)
    samples = guarded("crawl_port", CrawlStore.samples)
    add_shards = guarded("crawl_port", CrawlStore.add_shards)
    shards = guarded("crawl_port", CrawlStore.shards)
    finish_shards = guarded("crawl_port", CrawlStore.finish_shards)
    walk_again = guarded("crawl_port", CrawlStore.walk_again)
    add_workers = guarded("crawl_port", CrawlStore.add_workers)
    remove_worker = guarded("crawl_port", CrawlStore.remove_worker)
    workers = guarded("crawl_port", CrawlStore.workers)

    # batches, attempts, leases

    seal = guarded("batch_port", BatchStore.seal)
    add_batches = guarded("batch_port", BatchStore.add_batches)
    count = guarded("batch_port", BatchStore.count)
    counts = guarded("batch_port", BatchStore.counts)
    spend = guarded("batch_port", BatchStore.spend)
    add_misses = guarded("batch_port", BatchStore.add_misses)
    misses = guarded("batch_port", BatchStore.misses)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """Yield the fingerprints of all sealed requests; they come bit by bit, and unguarded."""
        return self.batch_port.fingerprints(crawl)

    batch = guarded("batch_port", BatchStore.batch)
    batches = guarded("batch_port", BatchStore.batches)
    payload = guarded("batch_port", BatchStore.payload)
    batch_fingerprints = guarded("batch_port", BatchStore.batch_fingerprints)
    requeue = guarded("batch_port", BatchStore.requeue)
    prioritise = guarded("batch_port", BatchStore.prioritise)
    split = guarded("batch_port", BatchStore.split)
    retry = guarded("batch_port", BatchStore.retry)
    drop_batch = guarded("batch_port", BatchStore.drop_batch)
    open_attempt = guarded("batch_port", BatchStore.open_attempt)
    sent = guarded("batch_port", BatchStore.sent)
    give_back = guarded("batch_port", BatchStore.give_back)
    running = guarded("batch_port", BatchStore.running)
    accept = guarded("batch_port", BatchStore.accept)
    fail = guarded("batch_port", BatchStore.fail)
    ack = guarded("batch_port", BatchStore.ack)
    attempts = guarded("batch_port", BatchStore.attempts)
    lease = guarded("batch_port", BatchStore.lease)
    expired = guarded("batch_port", BatchStore.expired)
    lease_next = guarded("batch_port", BatchStore.lease_next)
    register_producer = guarded("batch_port", BatchStore.register_producer)
    sign_off = guarded("batch_port", BatchStore.sign_off)
    backlog = guarded("batch_port", BatchStore.backlog)
    peek = guarded("batch_port", BatchStore.peek)

    # the throttle

    take_permits = guarded("throttle_port", ThrottleStore.take_permits)
    return_permits = guarded("throttle_port", ThrottleStore.return_permits)
    tell_sites = guarded("throttle_port", ThrottleStore.tell_sites)
    rules = guarded("throttle_port", ThrottleStore.rules)
    change_rules = guarded("throttle_port", ThrottleStore.change_rules)
    domain_states = guarded("throttle_port", ThrottleStore.domain_states)
    forget_permits = guarded("throttle_port", ThrottleStore.forget_permits)
    forget_pages = guarded("throttle_port", ThrottleStore.forget_pages)

    # plain jobs

    job_revision = guarded("job_port", JobStore.job_revision)
    jobs = guarded("job_port", JobStore.jobs)
    keep_jobs = guarded("job_port", JobStore.keep_jobs)
    forget_jobs = guarded("job_port", JobStore.forget_jobs)
    keep_verdicts = guarded("job_port", JobStore.keep_verdicts)
    verdicts = guarded("job_port", JobStore.verdicts)

    # strategies

    hold_partitions = guarded("strategy_port", StrategyStore.hold_partitions)
    leave_partitions = guarded("strategy_port", StrategyStore.leave_partitions)
    events = guarded("strategy_port", StrategyStore.events)
    links = guarded("strategy_port", StrategyStore.links)
    domains = guarded("strategy_port", StrategyStore.domains)
    queue_heads = guarded("strategy_port", StrategyStore.queue_heads)
    apply = guarded("strategy_port", StrategyStore.apply)
    strategy_backlog = guarded("strategy_port", StrategyStore.strategy_backlog)
    end_strategy = guarded("strategy_port", StrategyStore.end_strategy)
    changes = guarded("strategy_port", StrategyStore.changes)
    dead_events = guarded("strategy_port", StrategyStore.dead_events)
    replay = guarded("strategy_port", StrategyStore.replay)
    reset_strategy = guarded("strategy_port", StrategyStore.reset_strategy)
