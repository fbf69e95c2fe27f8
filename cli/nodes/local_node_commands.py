"""`sdist nodes up`, `nodes down`: real Scrapyd nodes on this machine."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from ..selectors import Json


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    group.command("up")(up)
    group.command("down")(down)


def up(
    count: Annotated[int, typer.Argument(metavar="N", help="How many local nodes shall run.", min=1)] = 3,
    slots: Annotated[
        Optional[int],
        typer.Option(help="Jobs that each runs at once; the cores divided among them if left out.", min=1),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start real Scrapyd nodes on this machine, each with a port and a password of its own.

    They stay until `sdist nodes down`, and are what `sdist crawl` uses when
    scrapy.cfg names no node.

    Example: sdist nodes up 3 --slots 2
    """
    from scrapyd_dist.deploy import local_nodes

    from scrapyd_dist.config import load, state_dir

    from ..output import put_json, say
    from ..tables import table
    from ..target_nodes import unused_local

    project = load()
    running = local_nodes.up(state_dir(project.root), count, slots=slots)
    rows = [{"name": node.name, "url": node.url, "slots": node.slots} for node in running]
    if as_json:
        put_json({"nodes": rows})
    else:
        table(("name", "url", "slots"), [tuple(row.values()) for row in rows])
    if idle := unused_local(project):
        say(idle)
    say("Stop them with: sdist nodes down")


def down() -> None:
    """Stop the local nodes and their jobs.

    Example: sdist nodes down
    """
    from scrapyd_dist.deploy import local_nodes

    from scrapyd_dist.config import STATE_FOLDER, load

    from ..output import say

    stopped = local_nodes.down(load().root / STATE_FOLDER)
    say(f"Stopped {', '.join(stopped)}." if stopped else "No local node was running.")
