"""`sdist misses`, and the way back of what it lists: requests without a result, and new batches for them.

The rule it keeps: a miss is forgotten in the same step that lets its request wait again.
"""

from __future__ import annotations

import time
from contextlib import closing
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError

from ..choosing import Json
from ..frontier.naming import key_of, requests_in
from .crawl import CrawlId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.store import Store


class Kind(Enum):
    """Why a URL gave no result."""

    gone = "gone"
    failed = "failed"
    dead = "dead"
    index = "index"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("misses", rich_help_panel="Crawls")(misses)


def misses(
    crawl: CrawlId,
    kind: Annotated[
        Optional[list[Kind]], typer.Option(metavar="KIND", help="Only gone, failed, dead or index; can be given again.")
    ] = None,
    urls: Annotated[bool, typer.Option("--urls", help="Print the URLs only, one a line.")] = False,
    as_json: Json = False,
) -> None:
    """List the URLs of a crawl or a frontier that gave no result so far, and why.

    The kinds are gone (the site says that it is not there), failed (it may be),
    dead (given up: with its batch, or since the spider has no such callback) and
    index (a failed index page). `sdist retry CRAWL --failed-urls`, and of a
    frontier `sdist frontier requeue FRONTIER --failed-urls`, let them wait again.

    Example: sdist misses easy-20260102T030405Z --kind dead
    """
    from dataclasses import asdict

    from scrapyd_dist.config import load

    from ..render import table
    from ..speaking import put, put_json
    from ..storing import existing_store

    root = load().root
    with closing(existing_store(root)) as store:
        store.crawl(crawl)
        wanted = {one.value for one in kind or Kind}
        found = [miss for miss in _all(store, root, crawl) if miss.kind in wanted]
    if as_json:
        put_json({"crawl": crawl, "misses": [asdict(miss) for miss in found]})
    elif urls:
        for miss in found:
            put(miss.url)
    else:
        table(("kind", "batch", "url", "why"), [(one.kind, one.batch or None, one.url, one.reason) for one in found])


def _all(store: Store, root: Path, crawl: str) -> Iterator[Miss]:
    """Those that are written down, and the requests of dead batches."""
    from scrapyd_dist.batches import BatchState, Miss

    yield from store.misses(crawl)
    for batch in store.batches(crawl, {BatchState.DEAD}):
        try:
            values = requests_in(store, root, crawl, batch)
        except ConfigError as error:
            yield Miss(url="", kind="dead", reason=f"{batch.reason}; {error}", batch=batch.number)
            continue
        for value in values:
            yield Miss(url=str(value["url"]), kind="dead", reason=batch.reason, batch=batch.number)


def try_again(
    store: Store, root: Path, crawl: str, kinds: Collection[str], *, numbers: Collection[int] = ()
) -> dict[int, int]:
    """Requests of batches that are done wait again, in new batches.

    Args:
        store: where they are.
        root: the project's folder.
        crawl: the crawl or frontier.
        kinds: of the misses that are tried again.
        numbers: only those of these batches; none: of all.

    Returns:
        Batch -> how many requests of it.

    Raises:
        ConfigError: those of a batch cannot be read here.
    """
    missed: dict[int, list[Miss]] = {}
    for miss in store.misses(crawl):
        if miss.kind in kinds and miss.batch and (not numbers or miss.batch in numbers):
            missed.setdefault(miss.batch, []).append(miss)
    counts = {number: _retry(store, root, crawl, number, its) for number, its in missed.items()}
    return {number: count for number, count in counts.items() if count}


def _retry(store: Store, root: Path, crawl: str, number: int, missed: list[Miss]) -> int:
    from scrapyd_dist.payload import fit

    by_url: dict[str, list[Miss]] = {}
    for miss in missed:
        by_url.setdefault(miss.url, []).append(miss)
    values, again = [], []
    for value in requests_in(store, root, crawl, store.batch(crawl, number)):
        its = by_url.get(str(value["url"]))  # two requests may have the same one; what the batch led to is not in it
        if its:
            values.append(value)
            again.append(its.pop())
    if values:
        parts = [(settings, len(piece)) for piece, settings in fit(values, key=key_of(root))]
        store.retry(crawl, number, parts, misses=again, now=time.time())
    return len(values)
