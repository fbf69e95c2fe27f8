"""Reads what the store knows of one crawl, once, and reads the names and addresses in it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scrapyd_dist.batches import Attempt, Batch, Crawl, Miss
from scrapyd_dist.progress.earlier_runs import earlier_runs
from scrapyd_dist.store import Store

_USER = re.compile(r"(://)[^/?#\s]*@")


@dataclass(frozen=True, kw_only=True)
class NodeNow:
    """A node's current versions of the project."""

    name: str
    versions: tuple[str, ...] = ()  #: in Scrapyd's order; the last one runs by default
    reason: str = ""  #: why the node did not answer


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One crawl, as the store has it now."""

    crawl: Crawl
    now: float  #: seconds since the epoch
    lives: bool = False  #: whether a process works on the crawl
    batches: Sequence[Batch] = ()
    attempts: Sequence[Attempt] = ()
    #: (seconds since the epoch, values), oldest first
    samples: Sequence[tuple[float, Mapping[str, Any]]] = ()
    misses: Sequence[Miss] = ()
    nodes_now: Sequence[NodeNow] = ()  #: empty if the nodes were not asked
    runs: Sequence[Crawl] = ()  #: comparable crawls before this one, oldest first, and this one

    @property
    def state(self) -> str:
        """The crawl's state, or `died` if its process is gone before the end."""
        if self.crawl.state.ended or self.lives:
            return self.crawl.state.value
        return "died"

    @cached_property
    def until(self) -> float:
        """The last moment that is known of, in seconds since the epoch."""
        if self.lives:
            return max(self.now, self.crawl.created)
        known = [self.crawl.created, self.crawl.ended or self.crawl.beat or 0.0]
        if self.samples:
            known.append(self.samples[-1][0])
        known += [attempt.ended_at or 0.0 for attempt in self.attempts]
        return max(known)

    @property
    def span(self) -> float:
        """Seconds from the beginning to the last moment that is known of."""
        return max(self.until - self.crawl.created, 0.001)


def gather_growth(store: Store, row: Crawl, *, now: float, lives: bool) -> Facts:
    """Read only how a crawl has grown, which takes the same time however many batches it has."""
    return Facts(crawl=row, now=now, lives=lives, samples=tuple(store.samples(row.id)))


def gather(store: Store, crawl: str, *, now: float, lives: bool) -> Facts:
    """Read a crawl from the store; raise NothingMatched if there is none of that id."""
    row = store.crawl(crawl)
    misses = []
    for miss in store.misses(crawl):
        url = hidden(miss.url)
        misses.append(replace(miss, url=url, reason=hidden(miss.reason)))
    return Facts(
        crawl=row,
        now=now,
        lives=lives,
        batches=tuple(store.batches(crawl)),
        attempts=tuple(store.attempts(crawl)),
        samples=tuple(store.samples(crawl)),
        misses=tuple(misses),
        runs=(*earlier_runs(store.crawls(), row), row),
    )


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts web2 before web10."""
    key = []
    for piece in re.split(r"(\d+)", name):
        digits = len(piece) if piece.isdigit() else 0
        key.append((digits, piece))
    return tuple(key)


def hidden(text: str) -> str:
    """Return a text without the user names and passwords of the addresses in it."""
    return _USER.sub(r"\1***@", text)
