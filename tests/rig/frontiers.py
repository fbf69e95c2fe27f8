"""What tests of frontiers share: one that is filled through the store, and how it stands."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from scrapyd_dist.batches import Attempt, Batch, Crawl
from scrapyd_dist.config import state_dir
from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.frontier.intake import open_frontier
from scrapyd_dist.frontier.packing import FrontierIntake, pack
from scrapyd_dist.frontier.slots import SlotRule
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import Store, open_store

from .projects import Project


class Frontier:
    """A frontier in the store of a project, or in another `store`; made with this object."""

    def __init__(
        self, project: Project, name: str = "shop", *, standing: bool = False, store: str = ""
    ) -> None:
        self.name = name
        state = state_dir(project.path)
        #: the file of the project's store
        self.path = state / "store.db"
        self._where, self._key = store or self.path, state_key(state)
        with closing(self._open()) as opened:
            open_frontier(opened, name, project=project.name, now=time.time(), standing=standing)

    def _open(self) -> Store:
        return open_store(self._where, key=self._key)

    def fill(
        self, urls: Iterable[str], *, prefix: str = "p", slots: int = 1, size: int = 100, slot: str | None = None,
        **fields: Any,
    ) -> None:  # fmt: skip
        """Add these pages; `fields` are those of each request, `slot` is where all of them go."""
        family, found = SlotRule(prefix=prefix, number=slots), []
        for url in urls:
            fingerprint = hashlib.sha256(url.encode()).digest()
            where = family.slot_for(url, fingerprint) if slot is None else slot
            found.append(
                FrontierIntake(value={"url": url, **fields}, fingerprint=fingerprint, slot=where)
            )
        with closing(self._open()) as store:
            store.add_batches(
                self.name, pack(found, size=size, key=None), counts={"sealed": len(found)}
            )

    def register(self, producer: str, *, seconds: float) -> None:
        """A producer fills it, with a lease of that many seconds."""
        with closing(self._open()) as store:
            store.register_producer(self.name, producer, seconds)

    def sign_off(self, producer: str) -> None:
        """It will add nothing more."""
        with closing(self._open()) as store:
            store.sign_off(self.name, producer)

    def counts(self) -> Mapping[str, int]:
        """State of batches -> requests in them, over all slots."""
        total: dict[str, int] = {}
        with closing(self._open()) as store:
            for one in store.backlog(self.name).slots:
                for state, number in one.requests.items():
                    total[state] = total.get(state, 0) + number
        return {state: number for state, number in total.items() if number}

    def waiting(self) -> Mapping[str, int]:
        """Slot -> requests that wait there, where there are any."""
        with closing(self._open()) as store:
            return {one.slot: one.waiting for one in store.backlog(self.name).slots if one.waiting}

    def backlog(self) -> Backlog:
        with closing(self._open()) as store:
            return store.backlog(self.name)

    def row(self) -> Crawl:
        with closing(self._open()) as store:
            return store.crawl(self.name)

    def attempts(self) -> list[Attempt]:
        with closing(self._open()) as store:
            return store.attempts(self.name)

    def batches(self) -> list[Batch]:
        with closing(self._open()) as store:
            return store.batches(self.name)
