"""What the store knows of one crawl, read once; all pictures and tables are made from this value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scrapyd_dist.report.texts import hidden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.batches import Attempt, Batch, Crawl, Miss, Shard
    from scrapyd_dist.store import Store

#: runs of one spider that are compared
RUNS = 20

Sample = tuple[float, "Mapping[str, Any]"]


@dataclass(frozen=True, kw_only=True)
class NodeNow:
    """What a node has of the project at the moment."""

    name: str
    versions: tuple[str, ...] = ()  #: in Scrapyd's order: what sorts last runs by default
    reason: str = ""  #: why it did not answer


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One crawl, as the store has it now."""

    crawl: Crawl
    now: float  #: seconds since the epoch
    lives: bool = False  #: whether a process works on it
    shards: Sequence[Shard] = ()
    batches: Sequence[Batch] = ()
    attempts: Sequence[Attempt] = ()
    samples: Sequence[Sample] = ()
    misses: Sequence[Miss] = ()
    nodes_now: Sequence[NodeNow] = ()  #: where somebody asked them
    runs: Sequence[Crawl] = ()  #: crawls of the same spider up to this one, oldest first

    @property
    def begun(self) -> float:
        return self.crawl.created

    @cached_property
    def until(self) -> float:
        """The last moment that is told of, in seconds since the epoch."""
        if self.lives:
            return max(self.now, self.begun)
        told = [self.begun, self.crawl.ended or self.crawl.beat or 0.0, *(at for at, _ in self.samples[-1:])]
        return max([*told, *(attempt.ended_at or 0.0 for attempt in self.attempts)])

    @property
    def span(self) -> float:
        """Seconds from its beginning to the last moment that is told of."""
        return max(self.until - self.begun, 0.001)

    @property
    def ran(self) -> float | None:
        """Seconds in which a process worked on it, as its summary has it; a retry an hour later adds its own only."""
        told = self.crawl.summary.get("duration_s")
        return float(told) if isinstance(told, (int, float)) else None


def gather(store: Store, crawl: str, *, now: float, lives: bool) -> Facts:
    """Read a crawl from the store.

    Raises:
        NothingMatched: there is none of that id.
    """
    row = store.crawl(crawl)
    same = [one for one in store.crawls() if (one.spider, one.project) == (row.spider, row.project)]
    before = [one for one in same if one.id == crawl or (one.created <= row.created and has_items(one))]
    return Facts(
        crawl=row,
        now=now,
        lives=lives,
        shards=tuple(store.shards(crawl)),
        batches=tuple(store.batches(crawl)),
        attempts=tuple(store.attempts(crawl)),
        samples=tuple(store.samples(crawl)),
        misses=tuple(replace(miss, url=hidden(miss.url), reason=hidden(miss.reason)) for miss in store.misses(crawl)),
        runs=tuple(sorted(before, key=lambda one: (one.created, one.id == crawl))[-RUNS:]),
    )


def has_items(crawl: Crawl) -> bool:
    """Whether its number of items can be compared with that of another run: it came to its end."""
    return crawl.state.value == "finished" and bool(crawl.summary)


def number(value: Any) -> float:
    """A finite number of what a worker or an older version wrote; 0 where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if abs(value) < 1e18 and math.isfinite(value) else 0.0


def of(document: Any, *names: str) -> Any:
    """What stands in a nested document, None where it is not there."""
    for name in names:
        document = document.get(name) if hasattr(document, "get") else None
    return document


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts web2 before web10."""
    return tuple((len(piece), piece) if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name))
