"""`sdist misses`, and the way back of what it lists: requests without a result, and new batches for them.

The rule it keeps: a miss is forgotten in the same step that lets its request wait again.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.batches import AttemptState, BatchState, Miss
from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.replaced import places
from scrapyd_dist.payload import REPLACES, fit

from ..output import put, put_json
from ..project_store import existing_store, key_of, requests_in
from ..selectors import Json
from ..tables import table
from .crawl import CrawlId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.store import Store


class Kind(Enum):
    """Why a URL gave no result."""

    gone = "gone"
    failed = "failed"
    dead = "dead"
    index = "index"


#: batches that are named in a sentence
_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class Again:
    """Requests of one batch that are tried again."""

    batch: int
    requests: int
    unknown: bool  #: some of its items may be theirs, and which is not known


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("misses")(misses)


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
) -> list[Again]:
    """Requests of batches that are done wait again, in new batches; what they yield takes the place of what they did.

    Args:
        store: where they are.
        root: the project's folder.
        crawl: the crawl or frontier.
        kinds: of the misses that are tried again.
        numbers: only those of these batches; none: of all.

    Raises:
        ConfigError: those of a batch cannot be read here.
    """
    missed: dict[int, list[Miss]] = {}
    for miss in store.misses(crawl):
        if miss.kind in kinds and miss.batch and (not numbers or miss.batch in numbers):
            missed.setdefault(miss.batch, []).append(miss)
    reports = {one.batch: one.report for one in store.attempts(crawl, {AttemptState.ACCEPTED})} if missed else {}
    tried = [_retry(store, root, crawl, number, its, reports.get(number, {})) for number, its in missed.items()]
    return [one for one in tried if one.requests]


def told_doubles(tried: Sequence[Again]) -> str:
    """What is to be said of items that may come twice; empty where none can."""
    unknown = [one for one in tried if one.unknown]
    if not unknown:
        return ""
    numbers = [str(one.batch) for one in unknown]
    what = f"batch {numbers[0]}" if len(numbers) == 1 else f"batches {', '.join(numbers[:_LISTED])}"
    what += f" and {len(numbers) - _LISTED:,} more" if len(numbers) > _LISTED else ""
    return (
        f"Which items of {what} are those of the requests that are tried again is not known: the code that crawled"
        " them was older than this, or a feed took only some of its items. What these requests yielded before they"
        " failed stays beside what they yield now; `sdist items merge CRAWL -o FILE --key FIELD` leaves out the second"
        " item with the same value."
    )


def _retry(store: Store, root: Path, crawl: str, number: int, missed: list[Miss], report: Mapping[str, Any]) -> Again:
    known = places(report)

    by_url: dict[str, list[Miss]] = {}
    for miss in missed:
        by_url.setdefault(miss.url, []).append(miss)
    values, again = [], []
    requests = list(enumerate(requests_in(store, root, crawl, store.batch(crawl, number))))
    requests.sort(key=lambda one: one[0] not in known)  # where two have the same URL, the one that failed
    again_places = []
    for place, value in requests:
        its = by_url.get(str(value["url"]))  # two requests may have the same one; what the batch led to is not in it
        if its:
            values.append({**value, REPLACES: [number, place]})
            again.append(its.pop())
            again_places.append(place)
    if values:
        parts = [(settings, len(piece)) for piece, settings in fit(values, key=key_of(root))]
        store.retry(crawl, number, parts, misses=again, now=time.time())
    doubles = any(known.get(place) is None for place in again_places) and bool(report.get("items"))
    return Again(batch=number, requests=len(values), unknown=doubles)
