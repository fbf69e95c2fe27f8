"""The workers of a frontier that may be at work, as the store lists them: each is listed before it is posted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import WorkerEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapyd_dist.store.worker_thread import StoreThread

#: where a version before schema 7 kept them: a document in the options of the crawl, written anew for each worker
_KEY = "workers"


async def read_workers(store: StoreThread, crawl: str) -> list[WorkerEntry]:
    """The workers that an earlier process has left; those that an older version has left in the options are listed."""
    options = dict((await store(store.store.own_crawl, crawl)).options)
    if _KEY in options:  # broken off, this begins anew
        last = int(options[_KEY].get("last", 0))
        await store(store.store.add_workers, crawl, earlier_workers(options), last=last)
        del options[_KEY]
        await store(store.store.update_crawl, crawl, options=options)
    return await store(store.store.workers, crawl)


def earlier_workers(options: Mapping[str, Any]) -> list[WorkerEntry]:
    """The workers that an older version has listed in a crawl's options."""
    rows = (options.get(_KEY) or {}).get("hired", ())
    return [WorkerEntry(**{"pool" if name == "lane" else name: value for name, value in row.items()}) for row in rows]
