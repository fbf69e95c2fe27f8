"""`sdist watch` and `sdist status`: how a crawl stands, or the whole fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.progress.summary import told

from .candidates import crawls
from .context import Context
from .crawls import producer_process, watcher, wording
from .crawls.crawl import WatchOptions
from .frontier import frontier_list
from .nodes import fleet_view
from .output import Output, put

if TYPE_CHECKING:
    from scrapyd_dist.batches import Crawl

SomeCrawl = Annotated[
    Optional[str], typer.Argument(metavar="CRAWL", autocompletion=crawls, help="Its name; the newest if left out.")
]
Fleet = Annotated[
    bool, typer.Option("--fleet", help="All nodes and the jobs of any kind that run there, instead of a crawl.")
]


def watch(context: Context, watched: WatchOptions, crawl: SomeCrawl = None, fleet: Fleet = False) -> None:
    """Watch a crawl to its end, and end with its exit code; or watch the fleet. Ctrl-C leaves all running.

    Of a crawl: how far the index is, what is found, sent and done, what each
    node does per second, and which batch is far slower than the others. With
    --fleet: every node, and each job of any kind that runs on it; jobs of crawls
    with their pages, items and errors per minute.

    Example: sdist watch easy-20260102T030405Z
    """
    manner = watched.manner()
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleet_view.watch(context, manner))
    found = _crawl(context, crawl)
    raise typer.Exit(watcher.watch(context.root, found.id, manner))


def status(context: Context, crawl: SomeCrawl = None, fleet: Fleet = False, output: Output = Output()) -> None:
    """Say how a crawl stands, once; or how the fleet does.

    Example: sdist status easy-20260102T030405Z --json
    """
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleet_view.status(context, output))
    row = _crawl(context, crawl)
    if row.kind == "frontier":
        frontier_list.status(context.store, row, output)
    elif not output.document({**told(row), "state": watcher.alive_state(row)}):
        _show(row, context.root)


def _crawl(context: Context, name: str | None) -> Crawl:
    return context.store.crawl(name) if name else producer_process.latest(context.store)


def _no_crawl(crawl: str | None) -> None:
    if crawl is not None:
        raise ConfigError(f"--fleet is about all nodes, not about the crawl {crawl}: give one of the two.")


def _show(row: Crawl, root: Path) -> None:
    if row.state.ended:
        for line in wording.closing(row, watcher.misses_of(root, row.id)):
            put(line)
        return
    for line in wording.standing(row):
        put(line)
    if watcher.alive_state(row) == "died":
        put(watcher.died(root, row))
