"""`sdist batches`, `misses`, `retry` and `pause`: what became of batches and URLs, and what to do about it.

A request to a running crawl is written into the store, where its producer reads it. A crawl that has ended gets a new
producer process. A miss is forgotten in the same step that lets its request wait again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.batches import AttemptState, BatchState, Miss
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.items.json_lines import places
from scrapyd_dist.payload import REPLACES, fit

from ..context import Context, key_of, requests_in
from ..output import Output, complain, poll_until, put, say, some_of, table
from . import producer_process, wording
from .crawl import CrawlId, Detach, NewCode, follow
from .watcher import WatchOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import Attempt, Batch, Crawl
    from scrapyd_dist.store import Store


class Kind(Enum):
    """Why a URL gave no result."""

    gone = "gone"
    failed = "failed"
    dead = "dead"
    index = "index"


@dataclass(frozen=True, kw_only=True)
class Again:
    """Requests of one batch that are tried again."""

    batch: int
    requests: int
    unknown: bool  #: some of its items may be theirs, and which is not known


def misses(
    context: Context,
    crawl: CrawlId,
    kind: Annotated[
        Optional[list[Kind]], typer.Option(metavar="KIND", help="Only gone, failed, dead or index; can be given again.")
    ] = None,
    urls: Annotated[bool, typer.Option("--urls", help="Print the URLs only, one a line.")] = False,
    output: Output = Output(),
) -> None:
    """List the URLs of a crawl or a frontier that gave no result so far, and why.

    The kinds are gone (the site says that it is not there), failed (it may be),
    dead (given up: with its batch, or since the spider has no such callback) and
    index (a failed index page). `sdist retry CRAWL --failed-urls`, and of a
    frontier `sdist frontier requeue FRONTIER --failed-urls`, let them wait again.

    Example: sdist misses easy-20260102T030405Z --kind dead
    """
    root = context.root
    store = context.store
    store.crawl(crawl)
    wanted = {one.value for one in kind or Kind}
    found = [miss for miss in _all(store, root, crawl) if miss.kind in wanted]
    if output.document({"crawl": crawl, "misses": [asdict(miss) for miss in found]}):
        return
    if urls:
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

    kinds: of the misses that are tried again; numbers: only those of these batches, none: of all.

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
    what = f"{'batch' if len(numbers) == 1 else 'batches'} {some_of(numbers)}"
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


#: seconds in which a producer takes notice of what is asked of it
NOTICE = 15.0
#: seconds between two looks
LOOK = 0.2
Numbers = Annotated[
    Optional[list[int]], typer.Option("--batch", metavar="N", help="Only this batch; can be given again.", min=1)
]


def batches(
    context: Context,
    crawl: CrawlId,
    state: Annotated[
        Optional[list[BatchState]],
        typer.Option(metavar="STATE", help="Only batches in this state; can be given again."),
    ] = None,
    batch: Numbers = None,
    urls: Annotated[bool, typer.Option("--urls", help="Print the URLs of these batches instead, one a line.")] = False,
    output: Output = Output(),
) -> None:
    """List the batches of a crawl: how each stands, its attempts, and why they failed.

    The states are sealed (waits for a node), sent, running, done, failed (waits
    for its next attempt), dead (no attempts left; `sdist retry` gives it new
    ones) and split (its requests are in smaller batches, because one of them
    killed its workers).

    Example: sdist batches easy-20260102T030405Z --state dead --urls
    """
    root = context.root
    store = context.store
    store.crawl(crawl)
    rows = [row for row in store.batches(crawl, set(state or ())) if not batch or row.number in batch]
    if not rows and (state or batch):
        raise NothingMatched(f"The crawl {crawl} has no such batch. `sdist batches {crawl}` lists all.")
    if urls:
        for row in rows:
            for value in requests_in(store, root, crawl, row):
                put(str(value["url"]))
        return
    tries: dict[int, list[Attempt]] = {}
    for attempt in store.attempts(crawl):
        tries.setdefault(attempt.batch, []).append(attempt)
    if output.document({"crawl": crawl, "batches": [_document(row, tries.get(row.number, [])) for row in rows]}):
        return
    cells = []
    for row in rows:
        on = ", ".join(dict.fromkeys(one.node for one in tries.get(row.number, [])))
        cells.append((row.number, row.state.value, row.size, row.attempts, on, row.reason))
    table(("batch", "state", "requests", "attempts", "nodes", "why the last attempt failed"), cells)


def _document(row: Batch, tries: Sequence[Attempt]) -> dict[str, Any]:
    return {
        "batch": row.number,
        "state": row.state.value,
        "requests": row.size,
        "reason": row.reason,
        "split_from": row.parent or None,
        "attempts": [
            {"number": one.number, "job": one.job, "worker": one.worker or None, "node": one.node,
             "state": one.state.value, "reason": one.reason}
            for one in tries
        ],
    }  # fmt: skip


def retry(
    context: Context,
    crawl: CrawlId,
    watched: WatchOptions,
    failed_urls: Annotated[
        bool, typer.Option("--failed-urls", help="Crawl again what failed in batches that are done, too.")
    ] = False,
    batch: Numbers = None,
    new_code: NewCode = False,
    detach: Detach = False,
) -> None:
    """Try again what a crawl gave up: its dead batches and URLs and, if asked for, its failed URLs.

    A dead batch gets as many attempts as a new one. URLs of batches that are
    done go into new batches; what a URL yields now takes the place of what it
    yielded before it failed, as soon as its new batch is done. All else that came
    home stays, and the merged file is written anew. Pages that are gone (404) are
    left alone.
    `sdist misses` lists all of these. As with `sdist resume`, the
    code is that which the crawl began with.

    Example: sdist retry easy-20260102T030405Z --failed-urls
    """
    root = context.root
    store = context.store
    row = store.own_crawl(crawl)
    producer_process.check_is_crawl(row)
    if producer_process.runs(row):
        raise ConfigError(f"The crawl {crawl} still runs; wait for its end: sdist wait {crawl}")
    store.update_crawl(crawl, options=_anew(row))
    dead, tried = _give_new_attempts(store, root, row, batch or [], failed_urls=failed_urls)
    urls = sum(one.requests for one in tried)
    if doubles := told_doubles(tried):
        complain(doubles)
    if not watched.quiet:
        batches, others = wording.counted(dead, "dead batch", "dead batches"), wording.counted(urls, "URL")
        say(f"Trying again: {batches}, {others} of others.")
    again, process = producer_process.begin_again(root, store, crawl, finished=True, new_code=new_code)
    raise typer.Exit(follow(context, again, process, watched, detach=detach))


def _anew(row: Crawl) -> dict[str, Any]:
    """The crawl's options, with outputs that may be written a second time.

    A file that this crawl made itself is replaced. One that it only added to may hold the items of others: then
    there will be one beside it that has all of this crawl.
    """
    settings = dict(row.options["settings"])
    outputs = []
    for output in settings.get("DISTRIBUTED_OUTPUTS") or []:
        path = Path(output["path"])
        if not output["overwrite"] and not row.options.get("own_outputs"):
            path = path.with_name(f"{path.stem}-{row.id}{path.suffix}")
        outputs.append({**output, "path": str(path), "overwrite": True})
    return {**row.options, "settings": {**settings, "DISTRIBUTED_OUTPUTS": outputs}}


def _give_new_attempts(
    store: Store, root: Path, crawl: Crawl, numbers: Sequence[int], *, failed_urls: bool
) -> tuple[int, list[Again]]:
    """How many dead batches, and which URLs of batches that are done, wait again."""
    dead = [row.number for row in store.batches(crawl.id, {BatchState.DEAD}) if not numbers or row.number in numbers]
    requeued = store.requeue(crawl.id, dead) if dead else []
    kinds = {"dead", "failed"} if failed_urls else {"dead"}
    urls = try_again(store, root, crawl.id, kinds, numbers=numbers)
    if not requeued and not urls:
        hint = "" if failed_urls else " Failed URLs of done batches are retried with --failed-urls."
        raise NothingMatched(f"The crawl {crawl.id} has nothing to try again: no batch of it is dead.{hint}")
    return len(requeued), urls


def pause(context: Context, crawl: CrawlId) -> None:
    """Let a crawl rest: it sends nothing and walks no index page until `sdist resume`.

    Jobs that run on the nodes go on to their end, and their items come home.

    Example: sdist pause easy-20260102T030405Z
    """
    store = context.store
    row = store.crawl(crawl)
    if not producer_process.runs(row):
        raise ConfigError(f"The crawl {crawl} does not run; there is nothing to pause.")
    store.want(crawl, "pause")

    def noticed() -> bool:
        row = store.crawl(crawl)
        return row.state.ended or bool(row.summary.get("paused"))

    poll_until(noticed, LOOK, deadline=time.monotonic() + NOTICE)
    say(f"The crawl {crawl} rests. Go on with: sdist resume {crawl}")
