"""`sdist trust`: show what a store says of a crawl, and sign it with this project's key."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError

from ..output import ask, can_ask, put_json, say
from ..project_store import project_store
from .crawl import CrawlId, Json

if TYPE_CHECKING:
    from collections.abc import Mapping


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("trust")(trust)


def trust(
    crawl: CrawlId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Believe what the store says of a crawl or frontier, and sign it with this project's key.

    For one that an older sdist left on a Redis server, or that another copy of
    the project made, with a key that is lost. It shows what the row says: read
    it, since `sdist resume` does all of that, commands too. Its batches are
    signed as they are.

    Example: sdist trust easy-20260102T030405Z
    """
    with closing(project_store(load().root)) as store:
        row, options = store.crawl(crawl), store.unchecked(crawl)
        if not yes:
            for line in _lines({"spider": row.spider, "project": row.project, "version": row.version, **options}):
                say(line)
            if not can_ask():
                raise ConfigError(f"`sdist trust {crawl}` asks for confirmation, and this is no terminal. Add --yes.")
            if not ask(f"Do you know all of this, and shall {crawl} be believed?"):
                raise typer.Exit(130)
        batches = store.trust(crawl)
    if as_json:
        put_json({"crawl": crawl, "batches": batches, "options": options})
    else:
        say(f"{crawl} is signed with this project's key, with {batches:,} batches. Go on with: sdist resume {crawl}")


def _lines(options: Mapping[str, Any]) -> list[str]:
    """What the row says, in lines that a terminal cannot take for anything else."""
    return [f"  {json.dumps(str(name))[1:-1]} = {json.dumps(value)}" for name, value in options.items()]
