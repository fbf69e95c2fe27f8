"""The workers of a frontier that may be at work, as the store lists them: each is listed before it is posted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import WorkerEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.store.worker_thread import StoreThread

#: where a version before schema 7 kept them: a document in the options of the crawl, written anew for each worker
_KEY = "workers"


@dataclass(kw_only=True)
class WorkerRegistry:
    """Reads and writes the list. One process at a time does so: the one that the crawl's row names."""

    crawl: str
    store: StoreThread
    last: int = 0  #: the highest number that a worker was given

    async def read(self) -> list[WorkerEntry]:
        """The workers that an earlier process has left."""
        await self._take_over()
        self.last = await self.store(self.store.store.last_worker, self.crawl)
        return await self.store(self.store.store.workers, self.crawl)

    async def _take_over(self) -> None:
        """List the workers that an older version has left in the options; broken off, it begins anew."""
        options = dict((await self.store(self.store.store.own_crawl, self.crawl)).options)
        if _KEY in options:
            last = int(options[_KEY].get("last", 0))
            await self.store(self.store.store.add_workers, self.crawl, earlier_workers(options), last=last)
            del options[_KEY]
            await self.store(self.store.store.update_crawl, self.crawl, options=options)

    def take_number(self) -> int:
        """A number that no worker has had."""
        self.last += 1
        return self.last

    async def add(self, one: WorkerEntry) -> None:
        """It is about to be posted."""
        await self.store(self.store.store.add_workers, self.crawl, [one], last=one.number)

    async def remove(self, job: str) -> None:
        """It has ended, or never was."""
        await self.store(self.store.store.remove_worker, self.crawl, job)


def earlier_workers(options: Mapping[str, Any]) -> list[WorkerEntry]:
    """The workers that an older version has listed in a crawl's options."""
    rows = (options.get(_KEY) or {}).get("hired", ())
    return [WorkerEntry(**{"pool" if name == "lane" else name: value for name, value in row.items()}) for row in rows]
