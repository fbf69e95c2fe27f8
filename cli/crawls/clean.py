"""`sdist clean` and `trust`: removes crawls that are over, and signs those that the store has from elsewhere.

A crawl that runs, or was not named, is never removed. Its name goes last: an interrupted clean can be repeated.
"""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scrapyd_dist.batches import Crawl, check_crawl_name, home_of
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.store import Store

from ..context import Context
from ..options import Yes, argument, crawls, option
from ..output import Output, confirm, say
from .crawl import CrawlId
from .producer_process import crawl_folder, lives, runs
from .wording import counted

DAY = 86400.0
#: days for which the throttle remembers a domain without requests
DOMAINS_STAY = 90.0


def clean(
    context: Context,
    crawl: Annotated[list[str] | None, argument("CRAWL", "Names of crawls.", crawls)] = None,
    older_than: Annotated[float | None, option("All that ended longer ago than this.", metavar="DAYS", min=0)] = None,
    dry_run: Annotated[bool, option("Only tell what would be removed; exit code 10.")] = False,
    yes: Yes = False,
    output: Output = Output(),
) -> None:
    """Remove crawls and all that is kept of them: batches, fingerprints, parts, the producer's log.

    The merged item files stay; so do files on the nodes, which have a term of
    their own. A removed crawl cannot be resumed. One that runs is not removed.
    With --older-than the throttle also forgets domains that had no request for
    that long, and for 90 days at least.

    Example: sdist clean --older-than 30
    """
    if bool(crawl) == (older_than is not None):
        raise ConfigError("Name what to remove: crawls, or --older-than DAYS. One of the two.")
    root, store = context.root, context.store if crawl else context.store_if_any
    rows = _named(store, crawl) if store and crawl else _old(store, older_than or 0.0) if store else []
    removed = list[dict[str, Any]]()
    for row in rows:
        folder = crawl_folder(root, row.id)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        document = {"crawl": row.id, "spider": row.spider, "state": row.state.value, "created": row.created}
        removed.append({**document, "bytes": size})
    lines = [f"{one['crawl']} ({one['state']}, {one['bytes'] / 1e6:,.1f} MB in its folder)" for one in removed]
    if store is not None and not dry_run:
        if rows and not yes:
            count = counted(len(rows), "crawl")
            confirm(f"Remove {count} for good?", lines, refusal=f"{count} would be removed")
        for row in rows:
            remove(store, root, row)
        if older_than is not None:
            store.forget_permits(time.time() - max(older_than, DOMAINS_STAY) * DAY)
    if not output.document({"dry_run": dry_run, "removed": removed}):
        if not removed:
            say(f"Nothing to remove: no crawl ended more than {older_than:g} days ago.")
        for line in lines:
            say(f"{'Would remove' if dry_run else 'Removed'} {line}")
    raise typer.Exit(10 if dry_run and removed else 0)


def _named(store: Store, names: Sequence[str]) -> list[Crawl]:
    by_name = {crawl.id: crawl for crawl in store.crawls()}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise NothingMatched(f"There is no crawl {', '.join(unknown)}; nothing was removed. `sdist crawls` lists all.")
    running = [name for name in names if runs(by_name[name])]
    if running:
        raise ConfigError(
            f"{', '.join(running)}: still at work, so nothing was removed. Stop it first, or wait for its end:"
            f" `sdist watch {running[0]}`."
        )
    rows = [by_name[name] for name in dict.fromkeys(names)]
    for row in rows:
        check_idle(store, row)
    return rows


def _old(store: Store, days: float) -> list[Crawl]:
    before = time.time() - days * DAY
    # A frontier may rest for long and be meant: it only goes by its name.
    over = [crawl for crawl in store.crawls() if crawl.kind != "frontier" and not runs(crawl)]
    return [crawl for crawl in over if (crawl.ended or crawl.beat or crawl.created) < before]


def check_idle(store: Store, row: Crawl) -> None:
    """Refuse a frontier that is still being filled or crawled: the error says by what."""
    if row.kind != "frontier":
        return
    backlog = store.backlog(row.id)
    why = f"producers are filling it ({', '.join(backlog.producers)})" if backlog.producers else ""
    why = f"workers have {backlog.leased} of its batches" if backlog.leased else why
    why = f"its workers are kept running (process {row.pid} on {row.host})" if lives(row) else why
    if why:
        raise ConfigError(f"The frontier {row.id} is in use: {why}. Nothing was removed; stop that first.")


def remove(store: Store, root: Path, row: Crawl) -> None:
    """Remove a crawl, or a frontier: its folder, then everything in the store."""
    folder = crawl_folder(root, check_crawl_name(row.id))  # others may write into a store that is shared
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


def trust(context: Context, crawl: CrawlId, yes: Yes = False, output: Output = Output()) -> None:
    """Believe what the store says of a crawl or frontier, and sign it with this project's key.

    For one that an older sdist left on a Redis server, or that another copy of
    the project made, with a key that is lost. It shows what the row says: read
    it, since `sdist resume` does all of that, commands too. Its batches are
    signed as they are.

    Example: sdist trust easy-20260102T030405Z
    """
    store = context.new_store
    row, options = store.crawl(crawl), store.unchecked(crawl)
    if not yes:
        told = {"spider": row.spider, "project": row.project, "version": row.version, **options}
        for name, value in told.items():  # in lines that a terminal cannot take for anything else
            say(f"  {json.dumps(str(name))[1:-1]} = {json.dumps(value)}")
        confirm(f"Do you know all of this, and shall {crawl} be believed?", refusal=f"{crawl} would be signed")
    batches = store.sign_batches(crawl)
    store.sign(crawl)  # last: a crawl that is believed has batches that are
    if not output.document({"crawl": crawl, "batches": batches, "options": options}):
        say(f"{crawl} is signed with this project's key, with {batches:,} batches. Go on with: sdist resume {crawl}")
