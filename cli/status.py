"""`sdist watch` and `sdist status`: how a crawl stands, or the whole fleet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .candidates import crawls
from .crawls.crawl import Json, Watched
from .grouping import asks

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


def watch(watched: Watched, crawl: SomeCrawl = None, fleet: Fleet = False) -> None:
    """Watch a crawl to its end, and end with its exit code; or watch the fleet. Ctrl-C leaves all running.

    Of a crawl: how far the index is, what is found, sent and done, what each
    node does per second, and which batch is far slower than the others. With
    --fleet: every node, and each job of any kind that runs on it; jobs of crawls
    with their pages, items and errors per minute.

    Example: sdist watch easy-20260102T030405Z
    """
    from scrapyd_dist.config import load

    from . import storing
    from .crawls import producing, watching
    from .nodes import fleetwatch

    manner = watched.manner()
    project = load()
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleetwatch.watch(project, manner))
    with closing(storing.existing_store(project.root)) as store:
        found = store.crawl(crawl) if crawl else producing.latest(store)
    raise typer.Exit(watching.watch(project.root, found.id, manner))


def status(crawl: SomeCrawl = None, fleet: Fleet = False, as_json: Json = False) -> None:
    """Say how a crawl stands, once; or how the fleet does.

    Example: sdist status easy-20260102T030405Z --json
    """
    from scrapyd_dist.config import load

    from . import storing
    from .crawls import producing, watching
    from .frontier import listing
    from .nodes import fleetwatch
    from .speaking import put_json

    project = load()
    if fleet:
        _no_crawl(crawl)
        raise typer.Exit(fleetwatch.status(project, as_json=as_json))
    with closing(storing.existing_store(project.root)) as store:
        row = store.crawl(crawl) if crawl else producing.latest(store)
        if row.kind == "frontier":
            listing.status(store, row, as_json=as_json)
            return
    if as_json:
        from scrapyd_dist.account.summary import told

        put_json({**told(row), "state": watching.alive_state(row)})
    else:
        _show(row, project.root)


def _no_crawl(crawl: str | None) -> None:
    from scrapyd_dist.errors import ConfigError

    if crawl is not None:
        raise ConfigError(f"--fleet is about all nodes, not about the crawl {crawl}: give one of the two.")


def _show(row: Crawl, root: Path) -> None:
    from .crawls import watching, words
    from .speaking import put

    if row.state.ended:
        for line in words.closing(row, watching.misses_of(root, row.id)):
            put(line)
        return
    for line in words.standing(row):
        put(line)
    if watching.alive_state(row) == "died":
        put(watching.died(root, row))
