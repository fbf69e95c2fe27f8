"""Adds requests to a frontier: creates it, packs batches, leaves out duplicates, registers its producers. Blocking.

Invariant: requests that the frontier has seen are counted as duplicates, and all others are added in one step; every
producer that may still add is registered in the store. Part of the worker half: imports the standard library only.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from socket import gethostname
from typing import Any, Protocol, TypeVar

from scrapyd_dist.batches import Batch, Crawl, CrawlState, Miss, check_crawl_name
from scrapyd_dist.errors import ConfigError, NameTaken, NothingMatched
from scrapyd_dist.frontier.backlog import Backlog, NewBatch, SeenBefore, producer_name
from scrapyd_dist.payload import RequestValue, fit

T = TypeVar("T")
#: the frontier option that names the kind of its rows, and its value for rows of arguments; absent for requests
ROWS, ARGUMENTS = "rows", "arguments"
#: the frontier option that says which crawling strategy decides what is requested; absent where producers do
STRATEGY = "strategy"
#: default requests per leased batch
BATCH_SIZE = 100
#: default requests per batch if slots are shared fairly: small, so that a worker holds few requests of a slow site
FAIR_SIZE = 10
#: seconds until a producer that sends no heartbeat counts as lost
REGISTERED = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierIntake:
    """A request to be added to a frontier."""

    value: RequestValue
    fingerprint: bytes
    slot: str = ""
    priority: int = 0


class ProducerStore(Protocol):
    """What the list of a frontier's producers needs of the store; each verb as `store.Store` has it."""

    def backlog(self, crawl: str) -> Backlog: ...
    def register_producer(self, crawl: str, producer: str, seconds: float) -> None: ...
    def sign_off(self, crawl: str, producer: str) -> None: ...


class FrontierStore(ProducerStore, Protocol):
    """What the producers of a frontier need of the store; each verb as `store.Store` has it."""

    def add_crawl(self, crawl: Crawl) -> None: ...
    def crawl(self, crawl: str) -> Crawl: ...
    def own_crawl(self, crawl: str) -> Crawl: ...
    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None: ...
    def add_batches(
        self, crawl: str, new: Sequence[NewBatch], counts: Mapping[str, int]
    ) -> list[Batch]: ...


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

    A new frontier gets the `project` that nodes know, never finishes by itself if it is `standing`, and has spider
    `arguments` as rows, or requests. With the option of a `strategy`, it is that strategy's.

    Raises:
        ConfigError: the name is invalid or belongs to a crawl, or the frontier is of another kind.
    """
    check_crawl_name(name, "frontier")
    options: dict[str, Any] = {ROWS: ARGUMENTS} if arguments else {}
    if strategy is not None:
        options = {STRATEGY: dict(strategy)}
    new = Crawl(
        id=name,
        project=project,
        spider="",
        state=CrawlState.FINDING,
        created=now,
        kind="frontier",
        standing=standing,
        options=options,
    )
    with suppress(NameTaken):  # it exists, or has been created in the meantime
        store.add_crawl(new)
    row = store.own_crawl(name)
    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is the name of a crawl, and a frontier needs one of its own. `sdist frontier list` has those"
            " that there are."
        )
    if has_arguments(row) is not arguments:
        are, and_not = ("requests", ARGUMENTS) if arguments else (ARGUMENTS, "requests")
        raise ConfigError(
            f"The rows of the frontier {row.id} are {are}; it takes no {and_not}. Name another one."
        )
    if has_strategy(row) and strategy is None:
        raise ConfigError(
            f"The frontier {row.id} is a crawling strategy's, which alone decides what is requested. Give it seeds:"
            " sdist strategy run … --seeds FILE; or name another frontier."
        )
    if strategy is not None and not has_strategy(row):
        raise ConfigError(
            f"There is a frontier {row.id} already, and it is no crawling strategy's. Give the strategy a name of its"
            " own: --name NAME"
        )
    return row


def has_arguments(frontier: Crawl) -> bool:
    """Whether the rows of this frontier are spider arguments."""
    return frontier.options.get(ROWS) == ARGUMENTS


def has_strategy(frontier: Crawl) -> bool:
    """Whether a crawling strategy decides what is requested."""
    return STRATEGY in frontier.options


def pack(found: Sequence[FrontierIntake], *, size: int, key: bytes | None) -> list[NewBatch]:
    """Pack requests into batches of one slot and priority, at most `size` requests each, fewer if they encode large.

    Raises:
        TooLarge: a single request does not fit into a batch.
        PayloadError: a request must be encrypted, and there is no key.
    """
    batches: list[NewBatch] = []
    place = attrgetter("slot", "priority")
    for (slot, priority), group in groupby(sorted(found, key=place), key=place):
        together = list(group)
        prints = (one.fingerprint for one in together)
        for start in range(0, len(together), size):
            for values, payload in fit(
                [one.value for one in together[start : start + size]], key=key
            ):
                batches.append(
                    NewBatch(
                        payload=payload,
                        size=len(values),
                        slot=slot,
                        priority=priority,
                        sealed_at=time.time(),
                        fingerprints=tuple(islice(prints, len(values))),
                    )
                )
    return batches


def add_unseen(
    add: Callable[[Sequence[NewBatch], Mapping[str, int]], T],
    found: Iterable[FrontierIntake],
    *,
    size: int,
    key: bytes | None,
    counts: Mapping[str, int] | None = None,
) -> tuple[T, dict[str, int]]:
    """Add the requests that the frontier does not have yet, and count all of them, with those filtered out earlier.

    `add` stores batches and counts in one step, or raises `SeenBefore`: it calls the store's `add_batches` or `ack`. Of
    requests with the same fingerprint, the first is added, in batches of at most `size`. Returns the result of `add`,
    and the counts that it stored, including `sealed` and `duplicate`.
    """
    every = list(found)
    first: dict[bytes, FrontierIntake] = {}
    for one in every:
        first.setdefault(one.fingerprint, one)
    left = list(first.values())
    while True:
        told = dict(counts or {})
        told["sealed"] = told.get("sealed", 0) + len(left)
        told["duplicate"] = told.get("duplicate", 0) + len(every) - len(left)
        told = {name: number for name, number in told.items() if number}
        try:
            return add(pack(left, size=size, key=key), told), told
        except SeenBefore as seen:
            left = [one for one in left if one.fingerprint not in seen.prints]


@dataclass(kw_only=True)
class Registration:
    """The entry of a process in the list of a frontier's producers."""

    store: ProducerStore
    frontier: str
    work: str  #: the name of its work; a new process of the same work takes over from a lost one
    #: `<host>.<pid>`, which tells apart processes of the same work
    process: str = field(default_factory=lambda: this_process())
    seconds: float = REGISTERED  #: it counts as lost without a heartbeat for so long
    clock: Callable[[], float] = time.monotonic
    _at: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return producer_name(self.work, self.process)

    @property
    def begun(self) -> bool:
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
        """Sign off lost producers of the same work, and those whose process on this machine is dead.

        Gives the names of other processes of the same work that live.
        """
        backlog, left = self.store.backlog(self.frontier), []
        for name in (*backlog.lost, *backlog.producers):
            work, _, process = name.rpartition(producer_name("", ""))
            if work != self.work or name == self.name:
                continue
            if name in backlog.lost or is_dead(process, self.process):
                self.store.sign_off(self.frontier, name)
            else:
                left.append(name)
        return left


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
        """Add the requests that the frontier does not have yet; returns the stored counts by name."""
        if not self.begun:
            self._register()

        add = partial(self.store.add_batches, self.frontier)
        _, kept = add_unseen(add, found, size=self.size, key=self.key, counts=counts)
        if misses:
            self.store.add_misses(self.frontier, misses)
        return kept

    def sign_off(self) -> None:
        """Tell the store that this producer adds nothing more."""
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
    """This process as `<host>.<pid>`."""
    return f"{gethostname()}.{os.getpid()}"


def is_dead(process: str, mine: str) -> bool:
    """Whether `<host>.<pid>` names a process of the machine of `mine` that has ended."""
    place, _, number = process.rpartition(".")
    if place != mine.rpartition(".")[0] or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except OSError as error:  # PermissionError: it is another user's
        return isinstance(error, ProcessLookupError)
    return False
