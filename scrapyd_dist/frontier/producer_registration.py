"""Registers a producer of a frontier before its first write, adds its batches, and signs it off after its last.

Invariant: every producer that may still add to a frontier is registered in the store. Blocking.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.frontier.intake import add_unseen, open_frontier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapyd_dist.batches import Batch, Miss
    from scrapyd_dist.frontier.backlog import NewBatch
    from scrapyd_dist.frontier.intake import FrontierIntake, FrontierStore

#: seconds until a producer that sends no heartbeat counts as lost
REGISTERED = 60.0
#: seconds between a producer's heartbeats
RENEW = REGISTERED / 3
#: separates work and process in a producer's name; not a dot, because names of spiders and hosts have dots
_BEHIND = "@"


@dataclass(kw_only=True)
class FrontierProducer:
    """A producer of a frontier.

    Attributes:
        name: the producer's name in the store, `work@process`.
    """

    store: FrontierStore
    frontier: str
    project: str  #: the project's name on the nodes, for a new frontier
    work: str  #: the name of its work; a new process of the same work takes over from a killed one
    process: str  #: `<host>.<pid>`, which tells apart processes of the same work
    size: int  #: maximum requests per batch
    key: bytes | None  #: the Fernet key for requests that must be encrypted
    standing: bool = False  #: whether a new frontier never finishes by itself
    arguments: bool = False  #: whether its rows are spider arguments instead of requests
    _registered: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """The producer's name in the store, `work@process`."""
        return f"{self.work}{_BEHIND}{self.process}"

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
        if self._registered is not None and time.monotonic() - self._registered >= RENEW:
            self._register()

    def keep(
        self, found: Iterable[FrontierIntake], counts: Mapping[str, int] | None = None, misses: Sequence[Miss] = ()
    ) -> dict[str, int]:
        """Add the requests that the frontier does not have yet; returns the stored counts by name."""
        if self._registered is None:
            self._register()

        def add(new: Sequence[NewBatch], told: Mapping[str, int]) -> list[Batch]:
            return self.store.add_batches(self.frontier, new, now=time.time(), counts=told)

        _, kept = add_unseen(add, found, size=self.size, key=self.key, counts=counts)
        if misses:
            self.store.add_misses(self.frontier, misses)
        return kept

    def sign_off(self) -> None:
        """Tell the store that this producer adds nothing more."""
        if self._registered is not None:
            self._take_over()
            self.store.sign_off(self.frontier, self.name)

    def _register(self) -> None:
        open_frontier(
            self.store, self.frontier, project=self.project, now=time.time(), standing=self.standing,
            arguments=self.arguments,
        )  # fmt: skip
        self.store.register_producer(self.frontier, self.name, REGISTERED)
        self._take_over()
        self._registered = time.monotonic()

    def _take_over(self) -> None:
        """Sign off lost producers of the same work, and those whose process on this machine is dead."""
        backlog = self.store.backlog(self.frontier)
        for name in (*backlog.lost, *backlog.producers):
            work, _, process = name.rpartition(_BEHIND)
            if work == self.work and name != self.name and (name in backlog.lost or self._is_dead(process)):
                self.store.sign_off(self.frontier, name)

    def _is_dead(self, process: str) -> bool:
        """Whether `<host>.<pid>` names a process of this machine that has ended."""
        place, _, number = process.rpartition(".")
        if place != self.process.rpartition(".")[0] or not number.isdecimal():
            return False
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False
