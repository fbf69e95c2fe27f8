"""Adds found requests to a frontier: creates the frontier, packs requests into batches, leaves out duplicates.

Invariant: requests that the frontier has seen are counted as duplicates, and all others are added in one step. Part of
the worker half: imports the standard library only.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeVar

from scrapyd_dist.batches import CRAWL_NAME, Crawl, CrawlState
from scrapyd_dist.errors import ConfigError, NameTaken, NothingMatched
from scrapyd_dist.frontier.backlog import NewBatch, SeenBefore
from scrapyd_dist.payload import fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scrapyd_dist.batches import Batch, Miss
    from scrapyd_dist.frontier.backlog import Backlog
    from scrapyd_dist.payload import RequestValue

T = TypeVar("T")

#: the frontier option that names the kind of its rows, and its value for rows of arguments; absent for requests
ROWS, ARGUMENTS = "rows", "arguments"
#: default requests per leased batch
BATCH_SIZE = 100
#: default requests per batch if slots are shared fairly: small, so that a worker holds few requests of a slow site
FAIR_SIZE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierIntake:
    """A request to be added to a frontier."""

    value: RequestValue
    fingerprint: bytes
    slot: str = ""
    priority: int = 0


class FrontierStore(Protocol):
    """What the producers of a frontier need of the store; each verb as `store.Store` has it."""

    def add_crawl(self, crawl: Crawl) -> None: ...

    def crawl(self, crawl: str) -> Crawl: ...

    def own_crawl(self, crawl: str) -> Crawl: ...

    def backlog(self, crawl: str) -> Backlog: ...

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None: ...

    def sign_off(self, crawl: str, producer: str) -> None: ...

    def add_batches(
        self, crawl: str, new: Sequence[NewBatch], *, now: float, counts: Mapping[str, int] | None = None
    ) -> list[Batch]: ...

    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None: ...


def check_frontier_name(name: str) -> str:
    """Return the name, or raise `ConfigError` if it is not a valid frontier name."""
    if not CRAWL_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a frontier: it becomes part of job ids and file names on the nodes, so it may only"
            " have letters, digits, '-' and '_', 80 at most."
        )
    return name


def open_frontier(
    store: FrontierStore, name: str, *, project: str, now: float, standing: bool = False, arguments: bool = False
) -> Crawl:
    """Return the store's row of the frontier, creating it if it does not exist.

    Args:
        store: the store of the frontier.
        name: the frontier's name.
        project: the project's name on the nodes, for a new frontier.
        now: seconds since the epoch.
        standing: a new frontier never finishes by itself.
        arguments: its rows are spider arguments, not requests.

    Raises:
        ConfigError: the name is invalid or belongs to a crawl, or the frontier holds rows of the other kind.
    """
    check_frontier_name(name)
    new = Crawl(
        id=name, project=project, spider="", state=CrawlState.FINDING, created=now, kind="frontier", standing=standing,
        options={ROWS: ARGUMENTS} if arguments else {},
    )  # fmt: skip
    with suppress(NothingMatched):
        return _checked(store.own_crawl(name), arguments=arguments)
    with suppress(NameTaken):  # another producer created it in the meantime
        store.add_crawl(new)
    return _checked(store.own_crawl(name), arguments=arguments)


def has_arguments(frontier: Crawl) -> bool:
    """Whether the rows of this frontier are spider arguments."""
    return frontier.options.get(ROWS) == ARGUMENTS


def _checked(row: Crawl, *, arguments: bool) -> Crawl:
    if row.kind != "frontier":
        raise ConfigError(
            f"{row.id} is the name of a crawl, and a frontier needs one of its own. `sdist frontier list` has those"
            " that there are."
        )
    if has_arguments(row) is not arguments:
        are, and_not = ("requests", ARGUMENTS) if arguments else (ARGUMENTS, "requests")
        raise ConfigError(f"The rows of the frontier {row.id} are {are}; it takes no {and_not}. Name another one.")
    return row


def distinct(found: Iterable[FrontierIntake]) -> list[FrontierIntake]:
    """Return the first request of each fingerprint, in order."""
    first: dict[bytes, FrontierIntake] = {}
    for one in found:
        first.setdefault(one.fingerprint, one)
    return list(first.values())


def pack(found: Sequence[FrontierIntake], *, size: int, key: bytes | None) -> list[NewBatch]:
    """Pack requests into batches of one slot and priority, at most `size` requests each, fewer if they encode large.

    Raises:
        TooLarge: a single request does not fit into a batch.
        PayloadError: a request must be encrypted, and there is no key.
    """
    batches: list[NewBatch] = []
    for (slot, priority), group in groupby(sorted(found, key=_place), key=_place):
        together = list(group)
        for start in range(0, len(together), size):
            batches += _batches(together[start : start + size], slot, priority, key)
    return batches


def _place(one: FrontierIntake) -> tuple[str, int]:
    return one.slot, one.priority


def _batches(together: Sequence[FrontierIntake], slot: str, priority: int, key: bytes | None) -> Iterable[NewBatch]:
    start = 0
    for values, payload in fit([one.value for one in together], key=key):
        prints = tuple(one.fingerprint for one in together[start : start + len(values)])
        start += len(values)
        yield NewBatch(payload=payload, size=len(values), slot=slot, priority=priority, fingerprints=prints)


def add_unseen(
    add: Callable[[Sequence[NewBatch], Mapping[str, int]], T],
    found: Iterable[FrontierIntake],
    *,
    size: int,
    key: bytes | None,
    counts: Mapping[str, int] | None = None,
) -> tuple[T, dict[str, int]]:
    """Add the requests that the frontier does not have yet, and count all of them.

    Args:
        add: stores batches and counts in one step, or raises `SeenBefore`: calls the store's `add_batches` or `ack`.
        found: the requests; of those with the same fingerprint, the first is added.
        size: maximum requests per batch.
        key: the Fernet key for requests that must be encrypted.
        counts: counts of requests that were filtered out earlier.

    Returns:
        The result of `add`, and the counts that it stored, including `sealed` and `duplicate`.
    """
    every = list(found)
    left = distinct(every)
    while True:
        told = dict(counts or {})
        told["sealed"] = told.get("sealed", 0) + len(left)
        told["duplicate"] = told.get("duplicate", 0) + len(every) - len(left)
        told = {name: number for name, number in told.items() if number}
        try:
            return add(pack(left, size=size, key=key), told), told
        except SeenBefore as seen:
            left = [one for one in left if one.fingerprint not in seen.prints]
