"""The URLs of a crawl or a frontier that gave no result: one list for `misses`, `status` and what is said at an end."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import BatchState, Crawl, Miss
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.progress import MISSED, number
from scrapyd_dist.store import Store

from ..context import requests_in


def missing(store: Store, root: Path, crawl: str) -> list[Miss]:
    """All that are known now, those of dead batches last."""
    found = list(store.misses(crawl))
    for row in store.batches(crawl, {BatchState.DEAD}):
        try:
            lost = [
                (str(value["url"]), row.reason) for value in requests_in(store, root, crawl, row)
            ]
        except ConfigError as error:
            lost = [("", f"{row.reason}; {error}")]
        found += [
            Miss(url=url, kind="dead", reason=reason, batch=row.number) for url, reason in lost
        ]
    return found


def missing_rows(store: Store, root: Path, crawl: Crawl) -> list[dict[str, Any]]:
    """The same as documents; nothing is read where the crawl's summary counts none."""
    if not any(number(crawl.summary, name) for name in MISSED.values()):
        return []
    return [asdict(miss) for miss in missing(store, root, crawl.id)]
