"""`sdist retry`, `pause` and `crawls clean`: what to do with stored crawls.

A request to a running crawl is written into the store, where its producer reads it. A crawl that
has ended gets a new producer process. A miss is forgotten in the same step that lets its request
wait again. A crawl that runs, or was not named, is never removed. Its name goes last: an
interrupted clean can be repeated.
"""

import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.batches import (
    AttemptState,
    BatchState,
    Crawl,
    Miss,
    check_crawl_name,
    home_of,
    is_fault_of_code,
)
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.fleet.live_crawls import lives, runs
from scrapyd_dist.fleet.project_store import find_store_address, key_of, requests_in
from scrapyd_dist.frontier.packing import make_batches
from scrapyd_dist.items.json_lines import places
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.payload import REPLACES, RequestValue
from scrapyd_dist.plurals import counted, some_of
from scrapyd_dist.progress.summary_document import count_in as number_in
from scrapyd_dist.settings import read_seconds
from scrapyd_dist.store import Store

from ..context import Context
from ..options import DryRun, Yes, argument, crawls, option
from ..output import Output, complain, confirm, poll_until, say
from . import producer_process
from .crawl import Detach, RunningCrawl, SomeCrawl, follow
from .watcher import LOOK, WatchOptions

#: seconds in which a producer takes notice of what is asked of it
NOTICE = 15.0
#: a value of --older-than with which all that ended is old
_NO_TIME = re.compile("0+[smhd]?")
#: seconds of a day
DAY = 86400.0
#: seconds for which the throttle remembers a domain without requests
DOMAINS_STAY = 90 * DAY


def try_again(
    store: Store, root: Path, crawl: str, kinds: Collection[str], numbers: Collection[int]
) -> int:
    """Let requests of batches that are done wait again, in new batches; gives how many.

    What they yield takes the place of what they yielded before; where it is not known which items
    those are, that is reported. kinds: of the misses that are tried again; numbers: only those of
    these batches, none: of all.
    """
    missed = _missed_by_batch(store, crawl, kinds, numbers)
    reports = _accepted_reports(store, crawl) if missed else {}
    total = 0
    doubled: list[str] = []
    for number, misses_of_batch in missed.items():
        report = reports.get(number, {})
        known = places(report)
        again = _retry(store, root, crawl, number, misses_of_batch, known)
        total += len(again)
        if report.get("items") and any(known.get(place) is None for place in again):
            doubled.append(str(number))
    if doubled:
        batches = "batches"
        if len(doubled) == 1:
            batches = "batch"
        complain(
            f"Which items of {batches} {some_of(doubled)} are those of the requests that are tried "
            "again is not known: a feed took only some of its items. What these requests yielded "
            "before they failed stays beside what they yield now; `sdist items merge CRAWL -o FILE "
            "--key FIELD` leaves out the second item with the same value."
        )
    return total


def _missed_by_batch(
    store: Store, crawl: str, kinds: Collection[str], numbers: Collection[int]
) -> dict[int, list[Miss]]:
    missed: dict[int, list[Miss]] = {}
    for miss in store.misses(crawl):
        if miss.kind in kinds and miss.batch and (not numbers or miss.batch in numbers):
            missed.setdefault(miss.batch, []).append(miss)
    return missed


def _accepted_reports(store: Store, crawl: str) -> dict[int, Mapping[str, Any]]:
    """Return the report of each batch that is done."""
    accepted = store.attempts(crawl, {AttemptState.ACCEPTED})
    return {attempt.batch: attempt.report for attempt in accepted}


def _retry(
    store: Store,
    root: Path,
    crawl: str,
    number: int,
    missed: Sequence[Miss],
    known: Mapping[int, Any],
) -> list[int]:
    """Put the missed requests of a batch into new batches; gives their places in the old one.

    known: places of requests in the old batch -> which of its items are theirs.
    """
    by_url: dict[str, list[Miss]] = {}
    for miss in missed:
        by_url.setdefault(miss.url, []).append(miss)
    values: dict[int, RequestValue] = {}
    again: list[Miss] = []
    requests = list(enumerate(requests_in(store, root, crawl, store.batch(crawl, number))))
    # Where two have the same URL, the one that failed comes first.
    requests.sort(key=lambda request: request[0] not in known)
    for place, value in requests:
        # Two requests may have the same URL; what the batch led to is not in it.
        of_url = by_url.get(str(value["url"]))
        if of_url:
            values[place] = {**value, REPLACES: [number, place]}
            again.append(of_url.pop())
    if values:
        parts = make_batches(list(values.values()), key=key_of(root))
        store.retry(crawl, number, parts, misses=again, now=time.time())
    return list(values)


def retry(
    context: Context,
    watched: WatchOptions,
    crawl: SomeCrawl = None,
    failed_urls: Annotated[
        bool, option("Crawl again what failed in batches that are done, too.")
    ] = False,
    batch: Annotated[
        list[int] | None, option("Only this batch. Repeatable.", metavar="N", min=1)
    ] = None,
    new_code: Annotated[
        bool | None,
        option(
            "With the code that is here now, or that with which the crawl began.",
            "--new-code/--old-code",
            show_default=False,
        ),
    ] = None,
    detach: Detach = False,
) -> int:
    """Try again what a crawl gave up and, if asked for, what failed.

    A crawl gives up dead batches and URLs; --failed-urls adds the URLs that failed,
    but no index pages: a new crawl fetches these. A dead batch gets as many attempts
    as a new one. URLs of batches that are done go into new batches; what a URL yields
    now takes the place of what it yielded before it failed, as soon as its new batch
    is done. All else that came home stays, and the merged file is written anew. Pages
    that are gone (404) are left alone.
    `sdist crawls show --misses` lists all of these. As with `sdist resume`, the
    code is that which the crawl began with; where that has raised in callbacks or
    pipelines and other code is here now, one of the two has to be named.

    Example: sdist retry easy-20260102T030405Z --failed-urls
    """
    store = context.store
    crawl = producer_process.crawl_or_latest(store, crawl).id
    row = store.own_crawl(crawl)
    producer_process.check_is_crawl(row)
    if runs(row):
        raise ConfigError(
            f"The crawl {crawl} still runs; wait for its end: sdist watch {crawl} --quiet"
        )
    kinds = {"dead", "failed"} if failed_urls else {"dead"}
    if new_code is None:
        _check_code(store, context.root, row, kinds, batch or ())
    store.update_crawl(crawl, options=producer_process.options_for_rewrite(row))
    requeued = _requeue_dead(store, crawl, batch)
    urls = try_again(store, context.root, crawl, kinds, batch or ())
    if not requeued and not urls:
        hint = ""
        if not failed_urls:
            hint = " Failed URLs of done batches are retried with --failed-urls."
        raise NothingMatched(
            f"The crawl {crawl} has nothing to try again: no batch of it is dead.{hint}"
        )
    if not watched.quiet:
        batches = counted(requeued, "dead batch", "dead batches")
        say(f"Trying again: {batches}, {counted(urls, 'URL')} of others.")
    again, process = producer_process.begin_again(
        context.root, store, crawl, finished=True, new_code=bool(new_code)
    )
    return follow(context, again, process, watched, detach=detach)


def _check_code(
    store: Store, root: Path, row: Crawl, kinds: Collection[str], numbers: Collection[int]
) -> None:
    """Refuse to try again what the crawl's code has raised for, where other code is here now.

    The old code would raise again, and the new one is not taken unasked. Arguments are those of
    `try_again`.
    """
    from scrapyd_dist.middlewares.producer.crawl_code import has_other_code_here

    raised = 0
    for misses in _missed_by_batch(store, row.id, kinds, numbers).values():
        raised += sum(is_fault_of_code(miss.reason) for miss in misses)
    folder = crawl_folder(root, row.id)
    if not raised or not has_other_code_here(row, folder, root, find_store_address(root)):
        return
    urls = counted(raised, "URL")
    raise ConfigError(
        f"For {urls} of what is to be tried again, the code raised with which the crawl {row.id}"
        " began, and the code here is another one now. Nothing was started. Choose: --new-code"
        " takes the code that is here, --old-code that with which the crawl began."
    )


def _requeue_dead(store: Store, crawl: str, numbers: Collection[int] | None) -> int:
    """Let dead batches wait again, and give how many; numbers: only these, none: all."""
    dead = []
    for row in store.batches(crawl, {BatchState.DEAD}):
        number = row.number
        if not numbers or number in numbers:
            dead.append(number)
    if dead:
        return len(store.requeue(crawl, dead))
    return 0


def pause(context: Context, crawl: RunningCrawl = None) -> None:
    """Let a crawl rest until `sdist resume`: no request of it leaves.

    That takes 5 seconds at most. Jobs that run on the nodes keep their batches and
    wait, and so do a frontier's workers. Responses that are on their way still
    arrive. Jobs that do not reach the store cannot wait: they go on to their end,
    and the command says how many.

    Example: sdist pause easy-20260102T030405Z
    """
    row = producer_process.crawl_or_running(context.store, crawl)
    announcement = f"The {row.kind} {row.id} rests. Go on with: sdist resume {row.id}"
    pause_crawl(context, row.id, announcement)


def pause_crawl(context: Context, crawl: str, announcement: str) -> None:
    """Let a crawl rest, and say so with the announcement; ConfigError where it does not run."""
    store = context.store
    row = store.crawl(crawl)
    if not runs(row):
        raise ConfigError(f"The crawl {crawl} does not run; there is nothing to pause.")
    store.want(crawl, "pause")

    def has_noticed() -> bool:
        """Return whether the producer has paused, or ended."""
        row = store.crawl(crawl)
        return row.state.ended or bool(row.summary.get("paused"))

    poll_until(has_noticed, LOOK, time.monotonic() + NOTICE)
    say(announcement)
    nodes = store.crawl(crawl).summary.get("nodes") or ()
    unheld = sum(number_in(node, "unleased") for node in nodes)
    if unheld:
        say(f"Of its jobs, {unheld:,} cannot reach the store, and go on to their end.")


def clean(
    context: Context,
    crawl: Annotated[list[str] | None, argument("CRAWL", "Names of crawls.", crawls)] = None,
    older_than: Annotated[
        str | None,
        option(
            "All crawls that ended longer ago than this, with its unit, as in 30d; 0: all that"
            " ended.",
            metavar="TIME",
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
    age = _age(crawl, older_than)
    store = context.store if crawl else context.store_if_any
    rows = _chosen_crawls(store, crawl, age)
    removed = [_removal(context.root, row) for row in rows]
    jobs = _count_old_jobs(store, age)
    if store is not None and not dry_run:
        if not yes:
            _confirm_removal(removed)
        _remove_all(store, context.root, rows, age)
    if not output.document({"dry_run": dry_run, "removed": removed, "jobs": jobs}):
        _say_removed(_lines(removed, jobs), older_than, dry_run=dry_run)
    if dry_run and (removed or jobs):
        return 10
    return 0


def _age(names: Sequence[str] | None, older_than: str | None) -> float | None:
    """Return the value of --older-than in seconds, None where crawls are named instead.

    ConfigError where both are given, or none, or where the value has no unit.
    """
    if bool(names) == (older_than is not None):
        raise ConfigError("Name what to remove: crawls, or --older-than TIME. One of the two.")
    if older_than is None:
        return None
    # Once that was days, and elsewhere it is seconds: neither is meant for sure.
    if older_than.isdecimal() and int(older_than):
        raise ConfigError(
            f"--older-than {older_than} has no unit: {older_than}d is days, {older_than}h hours."
        )
    if _NO_TIME.fullmatch(older_than):
        return 0.0
    return read_seconds("--older-than", older_than)


def _chosen_crawls(
    store: Store | None, names: Sequence[str] | None, age: float | None
) -> list[Crawl]:
    if store is None:
        return []
    if names:
        return _named(store, names)
    return _old(store, age or 0.0)


def _confirm_removal(removed: Sequence[Mapping[str, Any]]) -> None:
    """Ask whether these crawls are to be removed, if there are any."""
    if not removed:
        return
    count = counted(len(removed), "crawl")
    lines = _lines(removed)
    confirm(f"Remove {count} for good?", lines, refusal=f"{count} would be removed")


def _remove_all(store: Store, root: Path, rows: Sequence[Crawl], age: float | None) -> None:
    """Remove the crawls and, where an age in seconds is given, old jobs and domains."""
    for row in rows:
        remove(store, root, row)
    if age is not None:
        store.forget_jobs(time.time() - age)
        store.forget_permits(time.time() - max(age, DOMAINS_STAY))


def _lines(removed: Sequence[Mapping[str, Any]], jobs: int = 0) -> list[str]:
    """Return what is removed, for people; removed: of `_removal`, jobs: how many plain jobs."""
    lines = []
    for crawl in removed:
        size = f"{crawl['bytes'] / 1e6:,.1f} MB in its folder"
        lines.append(f"{crawl['crawl']} ({crawl['state']}, {size})")
    if jobs:
        lines.append(counted(jobs, "plain job"))
    return lines


def _say_removed(lines: Sequence[str], older_than: str | None, *, dry_run: bool) -> None:
    if not lines:
        ended = f"ended more than {older_than} ago"
        if older_than is None or _NO_TIME.fullmatch(older_than):
            ended = "that has ended is kept"
        say(f"Nothing to remove: no crawl {ended}.")
    verb = "Removed"
    if dry_run:
        verb = "Would remove"
    for line in lines:
        say(f"{verb} {line}")


def _removal(root: Path, row: Crawl) -> dict[str, Any]:
    """Return what `--json` says of a crawl that is removed."""
    folder = crawl_folder(root, row.id)
    size = 0
    for file in folder.rglob("*"):
        if file.is_file():
            size += file.stat().st_size
    return {
        "crawl": row.id,
        "spider": row.spider,
        "state": row.state.value,
        "created": row.created,
        "bytes": size,
    }


def _count_old_jobs(store: Store | None, age: float | None) -> int:
    """Return how many plain jobs ended, or were posted and not seen to end, longer ago.

    age: in seconds; without one there are none.
    """
    if store is None or age is None:
        return 0
    before = time.time() - age
    return sum(job.at < before for job in store.jobs())


def _named(store: Store, names: Sequence[str]) -> list[Crawl]:
    """Return the crawls of these names, each once; an error where one must not be removed."""
    by_name = {crawl.id: crawl for crawl in store.crawls()}
    unknown = []
    running = []
    for name in names:
        if name not in by_name:
            unknown.append(name)
        elif runs(by_name[name]):
            running.append(name)
    if unknown:
        raise NothingMatched(
            f"There is no crawl {', '.join(unknown)}; nothing was removed."
            f"{did_you_mean(unknown[0], by_name)} `sdist crawls` lists all."
        )
    if running:
        raise ConfigError(
            f"{', '.join(running)}: still at work, so nothing was removed. Stop it first, or wait "
            f"for its end: `sdist watch {running[0]}`."
        )
    rows = [by_name[name] for name in dict.fromkeys(names)]
    for row in rows:
        check_idle(store, row)
    return rows


def _old(store: Store, age: float) -> list[Crawl]:
    """Return the crawls that ended, or were last seen, so many seconds ago or longer."""
    before = time.time() - age
    rows = []
    for crawl in store.crawls():
        # A frontier may rest for long on purpose: it only goes by its name.
        if crawl.kind == "frontier" or runs(crawl):
            continue
        if (crawl.ended or crawl.beat or crawl.created) < before:
            rows.append(crawl)
    return rows


def check_idle(store: Store, row: Crawl) -> None:
    """Refuse a frontier that is still being filled or crawled: the error says by what."""
    if row.kind != "frontier":
        return
    backlog = store.backlog(row.id)
    if lives(row):
        why = f"its workers are kept running (process {row.pid} on {row.host})"
    elif backlog.leased:
        why = f"workers have {backlog.leased} of its batches"
    elif backlog.producers:
        why = f"producers are filling it ({', '.join(backlog.producers)})"
    else:
        return
    raise ConfigError(
        f"The frontier {row.id} is in use: {why}. Nothing was removed; stop that first."
    )


def remove(store: Store, root: Path, row: Crawl) -> None:
    """Remove a crawl, or a frontier: its folder, then everything in the store."""
    # Others may write into a shared store, so its name is checked before it names a folder.
    folder = crawl_folder(root, check_crawl_name(row.id))
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} of the crawl {row.id} cannot be removed: {error.strerror}. The "
            "crawl is still in the store: make the folder writable and clean it again."
        ) from error
    store.forget_pages([row.id, home_of(row.id, row.created)])
    store.forget(row.id)
