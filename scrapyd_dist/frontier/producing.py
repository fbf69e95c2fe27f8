"""One producer of a frontier, towards the store: registered before its first write, signed off after its last.

The rule it keeps: whoever works on the frontier knows of everybody who may still add to it. Blocking, as the store is.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.frontier.filling import add_unseen, open_frontier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapyd_dist.batches import Batch, Miss
    from scrapyd_dist.frontier.filling import Found
    from scrapyd_dist.frontier.values import NewBatch
    from scrapyd_dist.store import Store

#: seconds that a producer is good for without a word
REGISTERED = 60.0
#: seconds between two words of it
RENEW = REGISTERED / 3
#: stands between the work and the process in a producer's name; spiders and hosts have dots
_BEHIND = "@"


@dataclass(kw_only=True)
class FrontierProducer:
    """A producer that has not written yet."""

    store: Store
    frontier: str
    project: str  #: the project's name on the nodes, for a new frontier
    work: str  #: what it does, in a word: a process that does the same takes the place of one that was killed
    process: str  #: tells this process from others that do the same: its machine and its number, with a dot between
    size: int  #: requests in a batch, at most
    key: bytes | None  #: the Fernet key for what must be hidden
    standing: bool = False  #: a new frontier never finishes by itself
    arguments: bool = False  #: what it adds are the arguments of a spider, not requests
    _registered: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{self.work}{_BEHIND}{self.process}"

    def begin(self) -> None:
        """Register at once where the frontier is there already; a new one is made by the first write.

        Raises:
            ConfigError: it cannot be called so, or a crawl is.
        """
        with suppress(NothingMatched):
            self.store.crawl(self.frontier)
            self._register()

    def renew(self) -> None:
        """Say that this producer is there still, when it is time to."""
        if self._registered is not None and time.monotonic() - self._registered >= RENEW:
            self._register()

    def keep(
        self, found: Iterable[Found], counts: Mapping[str, int] | None = None, misses: Sequence[Miss] = ()
    ) -> dict[str, int]:
        """Add what the frontier does not have, with the account; the counts that were kept are the answer."""
        if self._registered is None:
            self._register()

        def add(new: Sequence[NewBatch], told: Mapping[str, int]) -> list[Batch]:
            return self.store.add_batches(self.frontier, new, now=time.time(), counts=told)

        _, kept = add_unseen(add, found, size=self.size, key=self.key, counts=counts)
        if misses:
            self.store.add_misses(self.frontier, misses)
        return kept

    def sign_off(self) -> None:
        """It adds nothing more."""
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
        """What one that did the same work has left undone, this one does: lost ones, and dead ones of this machine."""
        backlog = self.store.backlog(self.frontier)
        for name in (*backlog.lost, *backlog.producers):
            work, _, process = name.rpartition(_BEHIND)
            if work == self.work and name != self.name and (name in backlog.lost or self._is_dead(process)):
                self.store.sign_off(self.frontier, name)

    def _is_dead(self, process: str) -> bool:
        """Whether that process was one of this machine, and is gone; its name ends in its number."""
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
