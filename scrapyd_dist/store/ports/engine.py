"""An engine as a value: how a store of its kind is addressed, reached and opened, and its client.

Nothing here loads a client: the table of engines (`engines.py`) is read by commands that open no
store.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scrapyd_dist.nodes import Node
from scrapyd_dist.store.ports.batch_store import BatchStore
from scrapyd_dist.store.ports.crawl_store import CrawlStore
from scrapyd_dist.store.ports.job_store import JobStore
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.store.ports.throttle_store import ThrottleStore


class Connection(ABC):
    """The connection that the ports of one store share. It belongs to one thread at a time."""

    #: errors of the client that a verb may raise where others have written to the store
    client_errors: tuple[type[Exception], ...] = ()

    def is_outage(self, error: Exception) -> bool:
        """Return whether an error says nothing of what is stored.

        Of the client's errors none does, unless the engine can tell them apart.
        """
        return isinstance(error, self.client_errors)

    @abstractmethod
    def warnings(self) -> list[str]:
        """Return what endangers the store, a sentence each, for the user who starts a crawl."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection to what is stored."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The parts of one open store."""

    connection: Connection
    crawls: CrawlStore
    batches: BatchStore
    throttle: ThrottleStore
    jobs: JobStore
    strategies: StrategyStore


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """Which store is opened, and how."""

    #: its address, which may hold a password
    where: str = field(repr=False)
    #: a step is on the disk before it returns, as far as the engine decides that
    durable: bool = True
    #: a file is refused if others than this user and root can write to it
    owned: bool = True
    #: the project's, with which rows are signed
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class ClientPackage:
    """A package that an engine needs, and that scrapyd-dist brings only as an extra."""

    #: as it is imported and installed
    name: str
    #: the extra of scrapyd-dist that brings it
    extra: str
    #: what travels in an egg in place of a module that it imports and no worker uses: path -> text
    stand_ins: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def folders(self) -> list[str]:
        """Return the top-level folders that it has in an egg."""
        return [self.name, *(path.partition("/")[0] for path in self.stand_ins)]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What is known of a kind of store before one is opened."""

    #: what a store of it is, as messages have it
    title: str
    #: an address, as messages have it
    example: str
    #: what stands before `://` in its addresses; empty for a path
    schemes: frozenset[str]
    #: opens a store, and loads the client for it
    open_ports: Callable[[StoreRequest], Ports]
    #: says why the workers of a node do not reach the store at an address; empty when they do
    why_unreached: Callable[[str, Node], str]
    #: None where Python is enough
    client: ClientPackage | None = None
