"""What the store knows of one crawl, read once, and how names and addresses in it are read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scrapyd_dist.batches import Attempt, Batch, Crawl, Miss
from scrapyd_dist.store import Store

#: maximum number of runs of one spider that are compared
RUNS = 20

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
    samples: Sequence[tuple[float, Mapping[str, Any]]] = ()
    misses: Sequence[Miss] = ()
    nodes_now: Sequence[NodeNow] = ()  #: empty if the nodes were not asked
    runs: Sequence[Crawl] = ()  #: crawls of the same spider up to this one, oldest first

    @property
    def state(self) -> str:
        """The crawl's state, or `died` if its process is gone before the end."""
        return self.crawl.state.value if self.crawl.state.ended or self.lives else "died"

    @cached_property
    def until(self) -> float:
        """The last moment that is known of, in seconds since the epoch."""
        if self.lives:
            return max(self.now, self.crawl.created)
        known = [
            self.crawl.created,
            self.crawl.ended or self.crawl.beat or 0.0,
            *(at for at, _ in self.samples[-1:]),
        ]
        return max([*known, *(attempt.ended_at or 0.0 for attempt in self.attempts)])

    @property
    def span(self) -> float:
        """Seconds from the beginning to the last moment that is known of."""
        return max(self.until - self.crawl.created, 0.001)


def gather(store: Store, crawl: str, *, now: float, lives: bool) -> Facts:
    """Read a crawl from the store; NothingMatched if there is none of that id."""
    row = store.crawl(crawl)
    same = [one for one in store.crawls() if (one.spider, one.project) == (row.spider, row.project)]
    before = [
        one for one in same if one.id == crawl or (one.created <= row.created and has_items(one))
    ]
    return Facts(
        crawl=row,
        now=now,
        lives=lives,
        batches=tuple(store.batches(crawl)),
        attempts=tuple(store.attempts(crawl)),
        samples=tuple(store.samples(crawl)),
        misses=tuple(
            replace(miss, url=hidden(miss.url), reason=hidden(miss.reason))
            for miss in store.misses(crawl)
        ),
        runs=tuple(sorted(before, key=lambda one: (one.created, one.id == crawl))[-RUNS:]),
    )


def has_items(crawl: Crawl) -> bool:
    """Whether the number of items can be compared with other runs: the crawl came to its end."""
    return crawl.state.value == "finished" and bool(crawl.summary)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key: web2 before web10."""
    return tuple(
        (len(piece), piece) if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)
    )


def hidden(text: str) -> str:
    """A text without the user names and passwords of the addresses in it."""
    return _USER.sub(r"\1***@", text)
