"""The workers of a frontier as its row in the store keeps them. The rule: one is written down before it is posted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapyd_dist.store.worker_thread import StoreThread

#: where they are in the options of the row
KEY = "workers"


@dataclass(frozen=True, kw_only=True)
class Hired:
    """One worker that may be at work."""

    number: int
    job: str
    url: str  #: of its node
    lane: str
    since: float  #: seconds since the epoch when it was sent
    spider: str = ""  #: where it is not the crawl's own
    project: str = ""  #: likewise
    version: str = ""  #: of that project's code
    introduces: bool = False  #: it only says whose code it is


@dataclass(kw_only=True)
class Roster:
    """Reads and writes them. One process at a time does so: the row says which."""

    crawl: str
    store: StoreThread
    last: int = 0  #: the highest number that a worker was given
    hired: dict[str, Hired] = field(default_factory=dict)  #: by job

    async def read(self) -> list[Hired]:
        """Those that an earlier process has left."""
        kept = (await self._options()).get(KEY) or {}
        self.last = int(kept.get("last", 0))
        rows = [Hired(**row) for row in kept.get("hired", ())]
        self.hired = {row.job: row for row in rows}
        return rows

    def take_number(self) -> int:
        """A number that no worker has had."""
        self.last += 1
        return self.last

    async def add(self, one: Hired) -> None:
        """It is about to be posted."""
        self.hired[one.job] = one
        await self._write()

    async def remove(self, job: str) -> None:
        """It has ended, or never was."""
        if self.hired.pop(job, None) is not None:
            await self._write()

    async def _write(self) -> None:
        kept = {"last": self.last, "hired": [asdict(row) for row in self.hired.values()]}
        options = {**await self._options(), KEY: kept}
        await self.store(self.store.store.update_crawl, self.crawl, options=options)

    async def _options(self) -> dict[str, Any]:
        return dict((await self.store(self.store.store.own_crawl, self.crawl)).options)
