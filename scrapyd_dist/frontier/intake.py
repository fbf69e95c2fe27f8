"""Fills a frontier: opens it, and keeps the list of its producers. Blocking.

Invariant: every producer that may still add is registered in the store. Part of the worker half:
imports the standard library only.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from socket import gethostname
from typing import Any, Protocol

from scrapyd_dist.batches import Batch, Crawl, CrawlState, Miss, check_crawl_name
from scrapyd_dist.errors import ConfigError, NameTaken, NothingMatched
from scrapyd_dist.frontier.backlog import Backlog, NewBatch, producer_name
from scrapyd_dist.frontier.packing import FrontierIntake, add_unseen

#: the frontier option that names the kind of its rows; absent for requests
ROWS = "rows"
#: its value for rows of arguments
ARGUMENTS = "arguments"
#: the frontier option that says which crawling strategy decides what is requested; absent where
#: producers do
STRATEGY = "strategy"
#: default requests per leased batch
BATCH_SIZE = 100
#: default requests per batch if slots are shared fairly: small, so that a worker holds few requests
#: of a slow site
FAIR_SIZE = 10
#: seconds until a producer that sends no heartbeat counts as lost
REGISTERED = 60.0


class ProducerStore(Protocol):
    """What the list of producers needs of the store, with the verbs of `store.Store`."""

    def backlog(self, crawl: str) -> Backlog:
        """Return the backlog of a frontier, with its producers."""

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        """Register a producer, which counts as lost after so many seconds without another call."""

    def sign_off(self, crawl: str, producer: str) -> None:
        """Take a producer off the list."""


class FrontierStore(ProducerStore, Protocol):
    """What the producers of a frontier need of the store, with the verbs of `store.Store`."""

    def add_crawl(self, crawl: Crawl) -> None:
        """Store a new crawl; raise NameTaken if there is one of that name."""

    def crawl(self, crawl: str) -> Crawl:
        """Return a crawl; raise NothingMatched if there is none of that name."""

    def own_crawl(self, crawl: str) -> Crawl:
        """Return a crawl as `crawl` does, as one that this process is going to write to."""

    def add_batches(
        self,
        crawl: str,
        new: Sequence[NewBatch],
        counts: Mapping[str, int],
        misses: Sequence[Miss] = (),
    ) -> list[Batch]:
        """Store batches, counts and requests without a result in one step.

        Raises:
            SeenBefore: requests of them are there already; nothing was stored.
        """


def open_frontier(
    store: FrontierStore,
    name: str,
    *,
    project: str,
    now: float,
    standing: bool = False,
    arguments: bool = False,
    strategy: Mapping[str, Any] | None = None,
) -> Crawl:
    """Return the store's row of the frontier, creating it if it does not exist.

    A new frontier gets the `project` that nodes know, never finishes by itself if it is `standing`,
    and has spider `arguments` as rows, or requests. With the option of a `strategy`, it is that
    strategy's.

    Raises:
        ConfigError: the name is invalid or belongs to a crawl, or the frontier is of another kind.
    """
    check_crawl_name(name, "frontier")
    new = Crawl(
        id=name,
        project=project,
        spider="",
        state=CrawlState.FINDING,
        created=now,
        kind="frontier",
        standing=standing,
        options=_options(arguments, strategy),
    )
    with suppress(NameTaken):  # it exists, or has been created in the meantime
        store.add_crawl(new)
    row = store.own_crawl(name)
    _check_kind(row, arguments=arguments)
    _check_strategy(row, strategy)
    return row


def _options(arguments: bool, strategy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a new frontier."""
    if strategy is not None:
        return {STRATEGY: dict(strategy)}
    if arguments:
        return {ROWS: ARGUMENTS}
    return {}


def _check_kind(row: Crawl, *, arguments: bool) -> None:
    """Raise `ConfigError` if this is no frontier, or one with other rows."""
    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is the name of a crawl, and a frontier needs one of its own. `sdist frontier"
            " list` has those that there are."
        )
    if has_arguments(row) and not arguments:
        raise ConfigError(
            f"The rows of the frontier {row.id} are arguments; it takes no requests. Name another"
            " one."
        )
    if arguments and not has_arguments(row):
        raise ConfigError(
            f"The rows of the frontier {row.id} are requests; it takes no arguments. Name another"
            " one."
        )


def _check_strategy(row: Crawl, strategy: Mapping[str, Any] | None) -> None:
    """Raise `ConfigError` if a strategy decides in this frontier, and is not to, or the reverse."""
    if has_strategy(row) and strategy is None:
        raise ConfigError(
            f"The frontier {row.id} is a crawling strategy's, which alone decides what is"
            " requested. Give it seeds: sdist strategy run … --seeds FILE; or name another"
            " frontier."
        )
    if strategy is not None and not has_strategy(row):
        raise ConfigError(
            f"There is a frontier {row.id} already, and it is no crawling strategy's. Give the"
            " strategy a name of its own: --name NAME"
        )


def has_arguments(frontier: Crawl) -> bool:
    """Say whether the rows of this frontier are spider arguments."""
    return frontier.options.get(ROWS) == ARGUMENTS


def has_strategy(frontier: Crawl) -> bool:
    """Say whether a crawling strategy decides what is requested."""
    return STRATEGY in frontier.options


@dataclass(kw_only=True)
class Registration:
    """The entry of a process in the list of a frontier's producers."""

    store: ProducerStore
    frontier: str
    work: str  #: the name of its work; a new process of the same work takes over from a lost one
    #: `<host>.<pid>`, which tells apart processes of the same work
    process: str = field(default_factory=lambda: this_process())  # noqa: PLW0108 - it stands below
    seconds: float = REGISTERED  #: it counts as lost without a heartbeat for so long
    clock: Callable[[], float] = time.monotonic
    #: when the last heartbeat was sent, by the clock; None while it is not registered
    _at: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The name of the process in the list."""
        return producer_name(self.work, self.process)

    @property
    def begun(self) -> bool:
        """Whether the process is registered."""
        return self._at is not None

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat has to be sent."""
        return self._at is None or not 0.0 <= self.clock() - self._at < self.seconds / 3

    def renew(self) -> None:
        """Send a heartbeat if one is due."""
        if self.is_due:
            self.store.register_producer(self.frontier, self.name, self.seconds)
            self.take_over()
            self._at = self.clock()

    def sign_off(self) -> None:
        """Say that nothing more is to be expected of this process."""
        self.take_over()
        self.store.sign_off(self.frontier, self.name)
        self._at = None

    def take_over(self) -> list[str]:
        """Sign off producers of the same work that are lost, or whose process here is dead.

        Returns the names of other processes of the same work that live.
        """
        backlog = self.store.backlog(self.frontier)
        living = []
        for name in (*backlog.lost, *backlog.producers):
            work, _, process = name.rpartition(producer_name("", ""))
            if work != self.work or name == self.name:
                continue
            if name in backlog.lost or not may_live(process, self.process):
                self.store.sign_off(self.frontier, name)
            else:
                living.append(name)
        return living


@dataclass(kw_only=True)
class FrontierProducer(Registration):
    """A producer of a frontier."""

    store: FrontierStore
    project: str  #: the project's name on the nodes, for a new frontier
    size: int  #: maximum requests per batch
    key: bytes | None  #: the Fernet key for requests that must be encrypted
    arguments: bool = False  #: whether its rows are spider arguments instead of requests

    def begin(self) -> None:
        """Register if the frontier exists; a new frontier is created by the first write.

        Raises:
            ConfigError: the name is invalid or belongs to a crawl.
        """
        with suppress(NothingMatched):
            self.store.crawl(self.frontier)
            self._register()

    def renew(self) -> None:
        """Send a heartbeat to the store if one is due."""
        if self.begun and self.is_due:
            self._register()

    def keep(
        self,
        found: Iterable[FrontierIntake],
        counts: Mapping[str, int] | None = None,
        misses: Sequence[Miss] = (),
    ) -> dict[str, int]:
        """Add the requests that the frontier does not have yet; return the stored counts."""
        if not self.begun:
            self._register()
        # In one step: a producer that fails here does all of it again.
        add = partial(self.store.add_batches, self.frontier, misses=misses)
        _, kept = add_unseen(add, found, size=self.size, key=self.key, counts=counts)
        return kept

    def sign_off(self) -> None:
        """Say in the store that this producer adds nothing more."""
        if self.begun:
            super().sign_off()

    def _register(self) -> None:
        open_frontier(
            self.store,
            self.frontier,
            project=self.project,
            now=time.time(),
            arguments=self.arguments,
        )
        super().renew()


def this_process() -> str:
    """Return the name of this process as `<host>.<pid>`."""
    return f"{gethostname()}.{os.getpid()}"


def may_live(process: str, mine: str) -> bool:
    """Return whether the process `<host>.<pid>` may run still.

    It does not if it has ended on the machine of `mine`; of other machines nothing is known.
    """
    place, _, number = process.rpartition(".")
    if place != mine.rpartition(".")[0] or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except OSError as error:  # PermissionError: it is another user's
        return not isinstance(error, ProcessLookupError)
    return True
