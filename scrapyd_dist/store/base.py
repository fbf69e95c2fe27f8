"""The port: what a store can do, in domain words; each verb is one atomic step.

The interface is blocking on purpose, and there is only one of it. A process with an event loop makes
all its calls from one worker thread, so that they keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Crawl, Miss, Shard


class Store(Protocol):
    """Crawls, their shards, batches, attempts, misses, counts and fingerprints."""

    def close(self) -> None: ...

    # crawls
    def add_crawl(self, crawl: Crawl) -> None:
        """Raises `NameTaken` when the id is."""

    def crawl(self, crawl: str) -> Crawl:
        """Raises `NothingMatched` when there is none of that id."""

    def crawls(self) -> list[Crawl]:
        """All crawls, newest first."""

    def update_crawl(self, crawl: str, **changes: Any) -> None:
        """Set fields of `Crawl` by their names."""

    def forget(self, crawl: str) -> None:
        """Remove a crawl and everything of it."""

    # counts: the account of found URLs, and what the producer itself did
    def count(self, crawl: str, counts: Mapping[str, int]) -> None:
        """Add to the named counts."""

    def counts(self, crawl: str) -> dict[str, int]: ...

    # shards
    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None: ...

    def shards(self, crawl: str) -> list[Shard]: ...

    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """All that these shards found is sealed; they are not walked again."""

    def walk_again(self, crawl: str) -> None:
        """The index is walked anew: forget the producer's own misses, and all counts but what is sealed."""

    # batches
    def seal(
        self,
        crawl: str,
        payload: Mapping[str, str],
        *,
        size: int,
        fingerprints: Iterable[bytes],
        now: float,
        counts: Mapping[str, int],
    ) -> Batch:
        """Keep a new batch with its payload, and its fingerprints and counts, in one transaction."""

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        """The fingerprints of every sealed request."""

    def batch(self, crawl: str, number: int) -> Batch: ...

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        """In the order they were sealed; all of them when no state is named."""

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        """The settings that carry the batch."""

    # attempts: each verb moves the batch and its attempt together, by the tables of batches.py
    def open_attempt(self, crawl: str, attempt: Attempt) -> None:
        """The batch is about to be posted: written down before anything leaves."""

    def sent(self, crawl: str, batch: int, attempt: int) -> None:
        """The node said ok."""

    def refused(self, crawl: str, batch: int, attempt: int, reason: str, now: float) -> None:
        """The node certainly did not take it: the batch waits again, no attempt is counted."""

    def running(self, crawl: str, batch: int, attempt: int) -> None:
        """Its worker has been heard of."""

    def accept(
        self,
        crawl: str,
        batch: int,
        attempt: int,
        *,
        report: Mapping[str, Any],
        part: str,
        misses: Sequence[Miss],
        now: float,
    ) -> None:
        """This attempt's result counts, and no other one of its batch ever will."""

    def fail(self, crawl: str, batch: int, attempt: int, *, reason: str, now: float, max_attempts: int) -> BatchState:
        """The attempt ended badly: the batch is FAILED, or DEAD when it has none left; which is the answer."""

    def attempts(self, crawl: str, states: Collection[AttemptState] = ()) -> list[Attempt]:
        """In the order they were opened; all of them when no state is named."""

    # misses
    def add_misses(self, crawl: str, misses: Sequence[Miss]) -> None: ...

    def misses(self, crawl: str) -> list[Miss]: ...


def open_store(where: str | Path) -> Store:
    """The store at `where`: a path of an SQLite file, made when it is not there.

    Raises:
        ConfigError: nothing here knows this kind of address.
    """
    text = str(where)
    if "://" in text and not text.startswith("sqlite://"):
        kind = text.split("://", 1)[0]
        raise ConfigError(f"a store of the kind {kind}:// is not known; give the path of an SQLite file.")
    from scrapyd_dist.store.sqlite import SqliteStore  # noqa: PLC0415 - only the engine asked for is loaded

    return SqliteStore(text.removeprefix("sqlite://"))
