"""The URLs of a crawl or a frontier that gave no result: one list for all commands."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Batch, BatchState, Crawl, Miss
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.fleet.project_store import requests_in
from scrapyd_dist.progress.summary_document import MISSED, count_in
from scrapyd_dist.store import Store


def missing(store: Store, root: Path, crawl: str) -> list[Miss]:
    """Return all that are known now, those of dead batches last."""
    found = list(store.misses(crawl))
    for batch in store.batches(crawl, {BatchState.DEAD}):
        found += _dead_misses(store, root, crawl, batch)
    return found


def _dead_misses(store: Store, root: Path, crawl: str, batch: Batch) -> Iterator[Miss]:
    """Yield a miss for each request of a dead batch; one without a URL where it is unreadable."""
    try:
        requests = requests_in(store, root, crawl, batch)
    except ConfigError as error:
        reason = f"{batch.reason}; {error}"
        yield Miss(url="", kind="dead", reason=reason, batch=batch.number)
        return
    for value in requests:
        url = str(value["url"])
        yield Miss(url=url, kind="dead", reason=batch.reason, batch=batch.number)


def missing_rows(store: Store, root: Path, crawl: Crawl) -> list[dict[str, Any]]:
    """Return the same as documents; nothing is read where the crawl's summary counts none."""
    for name in MISSED.values():
        if count_in(crawl.summary, name):
            return [asdict(miss) for miss in missing(store, root, crawl.id)]
    return []
