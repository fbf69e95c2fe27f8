"""`sdist crawls batches`, `misses`, `retry`, `pause` and `clean`: crawls in the store, and what to do.

A request to a running crawl is written into the store, where its producer reads it. A crawl that has ended gets a new
producer process. A miss is forgotten in the same step that lets its request wait again. A crawl that runs, or was not
named, is never removed. Its name goes last: an interrupted clean can be repeated.
"""

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.batches import (
    Attempt,
    AttemptState,
    BatchState,
    Crawl,
    Miss,
    check_crawl_name,
    home_of,
)
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.items.json_lines import places
from scrapyd_dist.payload import REPLACES, fit
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress import as_left
from scrapyd_dist.progress import number as number_in
from scrapyd_dist.store import Store

from ..context import Context, key_of, requests_in
from ..options import DryRun, Yes, argument, crawls, option, seconds
from ..output import Output, complain, confirm, poll_until, put, say, some_of
from . import producer_process
from .crawl import CrawlId, Detach, NewCode, SomeCrawl, follow
from .missing import missing
from .watcher import LOOK, WatchOptions

#: why a URL gave no result
Kind = Enum("Kind", {"gone": "gone", "failed": "failed", "dead": "dead", "index": "index"})


def misses(
    context: Context,
    crawl: SomeCrawl = None,
    kind: Annotated[
        list[Kind] | None, option("Only gone, failed, dead or index. Repeatable.", metavar="KIND")
    ] = None,
    urls: Annotated[bool, option("Print the URLs only, one a line.")] = False,
    output: Output = Output(),
) -> None:
    """List the URLs of a crawl or a frontier that gave no result so far, and why.

    The kinds are gone (the site does not give it), failed (it may be there),
    dead (given up: with its batch, or since the spider has no such callback) and
    index (a failed index page). `sdist crawls retry CRAWL --failed-urls`, and of a
    frontier `sdist frontier requeue FRONTIER --failed-urls`, let them wait again.

    Example: sdist crawls misses easy-20260102T030405Z --kind dead
    """
    store = context.store
    crawl = producer_process.crawl_or_latest(store, crawl).id
    wanted = {one.value for one in kind or Kind}
    found = [miss for miss in missing(store, context.root, crawl) if miss.kind in wanted]
    if urls and not output.as_json:
        for miss in found:
            put(miss.url)
        return
    document = {"crawl": crawl, "misses": [asdict(miss) for miss in found]}
    rows = [(miss.kind, miss.batch or None, miss.url, miss.reason) for miss in found]
    output.table(document, ("kind", "batch", "url", "why"), rows)


def try_again(
    store: Store, root: Path, crawl: str, kinds: Collection[str], numbers: Collection[int]
) -> int:
    """Requests of batches that are done wait again, in new batches; gives how many.

    What they yield takes the place of what they yielded before; where it is not known which items those are, that is
    reported. kinds: of the misses that are tried again; numbers: only those of these batches, none: of all.
    """
    missed: dict[int, list[Miss]] = {}
    for miss in store.misses(crawl):
        if miss.kind in kinds and miss.batch and (not numbers or miss.batch in numbers):
            missed.setdefault(miss.batch, []).append(miss)
    reports = (
        {one.batch: one.report for one in store.attempts(crawl, {AttemptState.ACCEPTED})}
        if missed
        else {}
    )
    total, doubled = 0, list[str]()
    for number, its in missed.items():
        report = reports.get(number, {})
        known = places(report)
        again = _retry(store, root, crawl, number, its, known)
        total += len(again)
        if report.get("items") and any(known.get(place) is None for place in again):
            doubled.append(str(number))
    if doubled:
        complain(
            f"Which items of {'batch' if len(doubled) == 1 else 'batches'} {some_of(doubled)} are those of the requests"
            " that are tried again is not known: a feed took only some of its items. What these requests yielded before"
            " they failed stays beside what they yield now;"
            " `sdist items merge CRAWL -o FILE --key FIELD` leaves out the second item with the same value."
        )
    return total


def _retry(
    store: Store,
    root: Path,
    crawl: str,
    number: int,
    missed: Sequence[Miss],
    known: Mapping[int, Any],
) -> list[int]:
    """Put the missed requests of a batch into new batches; gives their places in the old one."""
    by_url: dict[str, list[Miss]] = {}
    for miss in missed:
        by_url.setdefault(miss.url, []).append(miss)
    values, again = dict[int, Any](), list[Miss]()
    requests = list(enumerate(requests_in(store, root, crawl, store.batch(crawl, number))))
    requests.sort(
        key=lambda one: one[0] not in known
    )  # where two have the same URL, the one that failed
    for place, value in requests:
        its = by_url.get(
            str(value["url"])
        )  # two requests may have the same one; what the batch led to is not in it
        if its:
            values[place] = {**value, REPLACES: [number, place]}
            again.append(its.pop())
    if values:
        pieces = fit(list(values.values()), key=key_of(root))
        parts = [NewBatch(payload=settings, size=len(piece)) for piece, settings in pieces]
        store.retry(crawl, number, parts, misses=again, now=time.time())
    return list(values)


#: seconds in which a producer takes notice of what is asked of it
NOTICE = 15.0
Numbers = Annotated[list[int] | None, option("Only this batch. Repeatable.", metavar="N", min=1)]


def batches(
    context: Context,
    crawl: CrawlId,
    state: Annotated[
        list[BatchState] | None, option("Only batches in this state. Repeatable.", metavar="STATE")
    ] = None,
    batch: Numbers = None,
    urls: Annotated[bool, option("Print the URLs of these batches instead, one a line.")] = False,
    output: Output = Output(),
) -> None:
    """List the batches of a crawl: how each stands, its attempts, and why they failed.

    The states are sealed (waits for a node), sent, running, done, failed (waits
    for its next attempt), dead (no attempts left; `sdist crawls retry` gives it new
    ones) and split (its requests are in smaller batches, because one of them
    killed its workers).

    Example: sdist crawls batches easy-20260102T030405Z --state dead --urls
    """
    store = context.store
    ended = store.crawl(crawl)
    all_rows = (as_left(row, ended) for row in store.batches(crawl))
    rows = [
        row
        for row in all_rows
        if (not state or row.state in state) and (not batch or row.number in batch)
    ]
    if not rows and (state or batch):
        raise NothingMatched(
            f"The crawl {crawl} has no such batch. `sdist crawls batches {crawl}` lists all."
        )
    if urls:
        for row in rows:
            for value in requests_in(store, context.root, crawl, row):
                put(str(value["url"]))
        return
    tries: dict[int, list[Attempt]] = {}
    for attempt in store.attempts(crawl):
        tries.setdefault(attempt.batch, []).append(attempt)
    documents, cells = [], []
    for row in rows:
        its = tries.get(row.number, [])
        attempts = [
            {
                "number": one.number,
                "job": one.job,
                "worker": one.worker or None,
                "node": one.node,
                "state": one.state.value,
                "reason": one.reason,
            }
            for one in its
        ]
        whole = {
            "batch": row.number,
            "state": row.state.value,
            "requests": row.size,
            "reason": row.reason,
        }
        documents.append({**whole, "split_from": row.parent or None, "attempts": attempts})
        on = ", ".join(dict.fromkeys(one.node for one in its))
        cells.append((row.number, row.state.value, row.size, row.attempts, on, row.reason))
    headings = ("batch", "state", "requests", "attempts", "nodes", "why the last attempt failed")
    output.table({"crawl": crawl, "batches": documents}, headings, cells)


def retry(
    context: Context,
    watched: WatchOptions,
    crawl: SomeCrawl = None,
    failed_urls: Annotated[
        bool, option("Crawl again what failed in batches that are done, too.")
    ] = False,
    batch: Numbers = None,
    new_code: NewCode = False,
    detach: Detach = False,
) -> int:
    """Try again what a crawl gave up: its dead batches and URLs and, if asked for, its failed URLs.

    A dead batch gets as many attempts as a new one. URLs of batches that are
    done go into new batches; what a URL yields now takes the place of what it
    yielded before it failed, as soon as its new batch is done. All else that came
    home stays, and the merged file is written anew. Pages that are gone (404) are
    left alone.
    `sdist crawls misses` lists all of these. As with `sdist resume`, the
    code is that which the crawl began with.

    Example: sdist crawls retry easy-20260102T030405Z --failed-urls
    """
    root, store = context.root, context.store
    crawl = producer_process.crawl_or_latest(store, crawl).id
    row = store.own_crawl(crawl)
    producer_process.check_is_crawl(row)
    if producer_process.runs(row):
        raise ConfigError(
            f"The crawl {crawl} still runs; wait for its end: sdist crawls wait {crawl}"
        )
    store.update_crawl(crawl, options=producer_process.anew(row))
    dead = [
        one.number
        for one in store.batches(crawl, {BatchState.DEAD})
        if not batch or one.number in batch
    ]
    requeued = store.requeue(crawl, dead) if dead else []
    urls = try_again(
        store, root, crawl, {"dead", "failed"} if failed_urls else {"dead"}, batch or ()
    )
    if not requeued and not urls:
        hint = "" if failed_urls else " Failed URLs of done batches are retried with --failed-urls."
        raise NothingMatched(
            f"The crawl {crawl} has nothing to try again: no batch of it is dead.{hint}"
        )
    if not watched.quiet:
        batches = counted(len(requeued), "dead batch", "dead batches")
        say(f"Trying again: {batches}, {counted(urls, 'URL')} of others.")
    again, process = producer_process.begin_again(
        root, store, crawl, finished=True, new_code=new_code
    )
    return follow(context, again, process, watched, detach=detach)


def pause(context: Context, crawl: CrawlId) -> None:
    """Let a crawl rest: no request of it leaves until `sdist resume`, within 5 seconds.

    Jobs that run on the nodes keep their batches and wait, and so do a frontier's
    workers. Responses that are on their way still arrive. Jobs that do not reach the
    store cannot wait: they go on to their end, and are told.

    Example: sdist crawls pause easy-20260102T030405Z
    """
    rest(
        context,
        crawl,
        f"The {context.store.crawl(crawl).kind} {crawl} rests. Go on with: sdist resume {crawl}",
    )


def rest(context: Context, crawl: str, told: str) -> None:
    """Let a crawl rest, and say so as it is told."""
    store = context.store
    row = store.crawl(crawl)
    if not producer_process.runs(row):
        raise ConfigError(f"The crawl {crawl} does not run; there is nothing to pause.")
    store.want(crawl, "pause")

    def noticed() -> bool:
        row = store.crawl(crawl)
        return row.state.ended or bool(row.summary.get("paused"))

    poll_until(noticed, LOOK, time.monotonic() + NOTICE)
    say(told)
    unheld = sum(
        number_in(node, "unleased") for node in store.crawl(crawl).summary.get("nodes") or ()
    )
    if unheld:
        say(f"Of its jobs, {unheld:,} cannot reach the store, and go on to their end.")


DAY = 86400.0
#: seconds for which the throttle remembers a domain without requests
DOMAINS_STAY = 90 * DAY


def clean(
    context: Context,
    crawl: Annotated[list[str] | None, argument("CRAWL", "Names of crawls.", crawls)] = None,
    older_than: Annotated[
        str | None,
        option(
            "All crawls that ended longer ago than this; with its unit, as in 30d.", metavar="TIME"
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Output(),
) -> int:
    """Remove crawls and all that is kept of them: batches, fingerprints, parts, the producer's log.

    The merged item files stay; so do files on the nodes, which have a term of
    their own. A removed crawl cannot be resumed. One that runs is not removed.
    With --older-than the store also forgets plain jobs that ended longer ago, and
    the throttle domains that had no request for that long, and for 90 days at least.

    Example: sdist crawls clean --older-than 30d
    """
    if bool(crawl) == (older_than is not None):
        raise ConfigError("Name what to remove: crawls, or --older-than TIME. One of the two.")
    if (
        older_than is not None and older_than.isdecimal() and int(older_than)
    ):  # days once, and seconds elsewhere: neither is meant for sure
        raise ConfigError(
            f"--older-than {older_than} has no unit: {older_than}d is days, {older_than}h hours."
        )
    age = (
        None
        if older_than is None
        else 0.0
        if older_than == "0"
        else seconds("--older-than", older_than)
    )
    store = context.store if crawl else context.store_if_any
    rows = _named(store, crawl) if store and crawl else _old(store, age or 0.0) if store else []
    removed = [_removal(context.root, row) for row in rows]
    jobs = _old_jobs(store, age) if store else 0
    lines = [
        f"{one['crawl']} ({one['state']}, {one['bytes'] / 1e6:,.1f} MB in its folder)"
        for one in removed
    ]
    if store is not None and not dry_run:
        if rows and not yes:
            count = counted(len(rows), "crawl")
            confirm(f"Remove {count} for good?", lines, refusal=f"{count} would be removed")
        for row in rows:
            remove(store, context.root, row)
        if age is not None:
            store.forget_jobs(time.time() - age)
            store.forget_permits(time.time() - max(age, DOMAINS_STAY))
    lines += [counted(jobs, "plain job")] if jobs else []
    if not output.document({"dry_run": dry_run, "removed": removed, "jobs": jobs}):
        if not lines:
            say(f"Nothing to remove: no crawl ended more than {older_than} ago.")
        for line in lines:
            say(f"{'Would remove' if dry_run else 'Removed'} {line}")
    return 10 if dry_run and lines else 0


def _removal(root: Path, row: Crawl) -> dict[str, Any]:
    folder = producer_process.crawl_folder(root, row.id)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    document = {
        "crawl": row.id,
        "spider": row.spider,
        "state": row.state.value,
        "created": row.created,
    }
    return {**document, "bytes": size}


def _old_jobs(store: Store, age: float | None) -> int:
    """How many plain jobs ended, or were posted and not seen to end, longer ago than so many seconds."""
    if age is None:
        return 0
    before = time.time() - age
    return sum(one.at < before for one in store.jobs())


def _named(store: Store, names: Sequence[str]) -> list[Crawl]:
    by_name = {crawl.id: crawl for crawl in store.crawls()}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise NothingMatched(
            f"There is no crawl {', '.join(unknown)}; nothing was removed. `sdist crawls` lists all."
        )
    running = [name for name in names if producer_process.runs(by_name[name])]
    if running:
        raise ConfigError(
            f"{', '.join(running)}: still at work, so nothing was removed. Stop it first, or wait for its end:"
            f" `sdist watch {running[0]}`."
        )
    rows = [by_name[name] for name in dict.fromkeys(names)]
    for row in rows:
        check_idle(store, row)
    return rows


def _old(store: Store, age: float) -> list[Crawl]:
    before = time.time() - age
    # A frontier may rest for long and be meant: it only goes by its name.
    over = [
        crawl
        for crawl in store.crawls()
        if crawl.kind != "frontier" and not producer_process.runs(crawl)
    ]
    return [crawl for crawl in over if (crawl.ended or crawl.beat or crawl.created) < before]


def check_idle(store: Store, row: Crawl) -> None:
    """Refuse a frontier that is still being filled or crawled: the error says by what."""
    if row.kind != "frontier":
        return
    backlog = store.backlog(row.id)
    why = f"producers are filling it ({', '.join(backlog.producers)})" if backlog.producers else ""
    why = f"workers have {backlog.leased} of its batches" if backlog.leased else why
    why = (
        f"its workers are kept running (process {row.pid} on {row.host})"
        if producer_process.lives(row)
        else why
    )
    if why:
        raise ConfigError(
            f"The frontier {row.id} is in use: {why}. Nothing was removed; stop that first."
        )


def remove(store: Store, root: Path, row: Crawl) -> None:
    """Remove a crawl, or a frontier: its folder, then everything in the store."""
    folder = producer_process.crawl_folder(
        root, check_crawl_name(row.id)
    )  # others may write into a shared store
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} of the crawl {row.id} cannot be removed: {error.strerror}. The crawl is still in"
            " the store: make the folder writable and clean it again."
        ) from error
    store.forget_pages([row.id, home_of(row.id, row.created)])
    store.forget(row.id)
