"""`sdist watch` and `sdist status`: how a crawl stands, or the whole fleet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .candidates import crawls
from .crawls.crawl import Json, WatchOptions
from .option_groups import asks

if TYPE_CHECKING:
    from scrapyd_dist.batches import Crawl

SomeCrawl = Annotated[
    Optional[str], typer.Argument(metavar="CRAWL", autocompletion=crawls, help="Its name; the newest if left out.")
]
Fleet = Annotated[
    bool, typer.Option("--fleet", help="All nodes and the jobs of any kind that run there, instead of a crawl.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("watch")(asks(watch))
    app.command("status")(status)


def watch(watched: WatchOptions, crawl: SomeCrawl = None, fleet: Fleet = False) -> None:
    """Watch a crawl to its end, and end with its exit code; or watch the fleet. Ctrl-C leaves all running.

    Of a crawl: how far the index is, what is found, sent and done, what each
    node does per second, and which batch is far slower than the others. With
    --fleet: every node, and each job of any kind that runs on it; jobs of crawls
    with their pages, items and errors per minute.

    Example: sdist watch easy-20260102T030405Z
    """
    from scrapyd_dist.config import load

    from . import project_store
    from .crawls import producer_process, watcher
    from .nodes import fleet_view

    manner = watched.manner()
    project = load()
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleet_view.watch(project, manner))
    with closing(project_store.existing_store(project.root)) as store:
        found = store.crawl(crawl) if crawl else producer_process.latest(store)
    raise typer.Exit(watcher.watch(project.root, found.id, manner))


def status(crawl: SomeCrawl = None, fleet: Fleet = False, as_json: Json = False) -> None:
    """Say how a crawl stands, once; or how the fleet does.

    Example: sdist status easy-20260102T030405Z --json
    """
    from scrapyd_dist.config import load

    from . import project_store
    from .crawls import producer_process, watcher
    from .frontier import frontier_list
    from .nodes import fleet_view
    from .output import put_json

    project = load()
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleet_view.status(project, as_json=as_json))
    with closing(project_store.existing_store(project.root)) as store:
        row = store.crawl(crawl) if crawl else producer_process.latest(store)
        if row.kind == "frontier":
            frontier_list.status(store, row, as_json=as_json)
            return
    if as_json:
        from scrapyd_dist.progress.summary import told

        put_json({**told(row), "state": watcher.alive_state(row)})
    else:
        _show(row, project.root)


def _no_crawl(crawl: str | None) -> None:
    from scrapyd_dist.errors import ConfigError

    if crawl is not None:
        raise ConfigError(f"--fleet is about all nodes, not about the crawl {crawl}: give one of the two.")


def _show(row: Crawl, root: Path) -> None:
    from .crawls import watcher, wording
    from .output import put

    if row.state.ended:
        for line in wording.closing(row, watcher.misses_of(root, row.id)):
            put(line)
        return
    for line in wording.standing(row):
        put(line)
    if watcher.alive_state(row) == "died":
        put(watcher.died(root, row))
