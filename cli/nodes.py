"""`sdist nodes`, `nodes up`, `nodes down`: the fleet as it is, and real local nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.errors import NodeError
    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

MAX_THREADS = 64
#: seconds that a node gets to answer
TIMEOUT = 10.0

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(no_args_is_help=False)
    group.callback(invoke_without_command=True)(nodes)
    group.command("up")(up)
    group.command("down")(down)
    app.add_typer(group, name="nodes", rich_help_panel="Nodes")


def nodes(
    context: typer.Context,
    as_json: Json = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a node gets to answer.", min=0.1)] = TIMEOUT,
) -> None:
    """List the nodes, or start and stop local ones: `nodes up`, `nodes down`.

    These are the targets of scrapy.cfg or, where it names none, the local nodes.
    All are asked at once. Exit code 0 when all are up, 3 when some are not,
    5 when none is, 6 when none lets us in.

    Example: sdist nodes
    """
    if context.invoked_subcommand is not None:
        return
    from scrapyd_dist.config import load

    from .fleet import exit_code, no_nodes, nodes_of
    from .speaking import put_json

    project = load()
    fleet = nodes_of(project)
    if not fleet:
        raise no_nodes(project)
    answers = ask_all(fleet, timeout)
    if as_json:
        put_json({"nodes": [row for row, _ in answers]})
    else:
        _show([row for row, _ in answers])
    raise typer.Exit(exit_code(len(answers), [error for _, error in answers if error is not None]))


def ask_all(fleet: Sequence[Node], timeout: float) -> list[tuple[dict[str, Any], NodeError | None]]:
    """Ask every node at the same time how much it has to do.

    Args:
        fleet: the nodes.
        timeout: seconds for each.

    Returns:
        For each node, in their order, its row of `sdist nodes --json` and what went wrong.
    """
    from concurrent.futures import ThreadPoolExecutor

    from scrapyd_dist.transports.requests import RequestsTransport

    sender = RequestsTransport()
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, len(fleet))) as pool:
        return list(pool.map(lambda node: _ask(sender, node, timeout), fleet))


def _ask(sender: Sender, node: Node, timeout: float) -> tuple[dict[str, Any], NodeError | None]:
    from scrapyd_dist import api
    from scrapyd_dist.errors import NodeError

    row: dict[str, Any] = {"name": node.name, "url": node.url, "state": "down", "reason": "", "slots": node.slots}
    row |= dict.fromkeys(("running", "pending", "finished", "latency_ms"))
    began = time.monotonic()
    try:
        load = sender.send(node, api.daemonstatus(), timeout=timeout)
    except NodeError as error:
        row["state"] = "refused" if error.exit_code == 6 else "down"
        row["reason"] = str(error).removeprefix(f"{node}: ")
        return row, error
    took = round((time.monotonic() - began) * 1000, 1)
    row |= {"state": "up", "running": load.running, "pending": load.pending, "finished": load.finished}
    return {**row, "latency_ms": took}, None


def _show(rows: Sequence[dict[str, Any]]) -> None:
    from .render import table

    names = ("name", "state", "running", "pending", "finished", "slots")
    table(
        (*names, "latency", "url", ""),
        [
            (
                *(row[name] for name in names),
                None if row["latency_ms"] is None else f"{row['latency_ms']:.0f} ms",
                row["url"],
                row["reason"],
            )
            for row in rows
        ],
    )


def up(
    count: Annotated[int, typer.Argument(metavar="[N]", help="How many local nodes shall run.", min=1)] = 3,
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
    from scrapyd_dist.deploy import local

    from scrapyd_dist.config import load, state_dir

    from .render import table
    from .speaking import put_json, say

    project = load()
    running = local.up(state_dir(project.root), count, slots=slots)
    rows = [{"name": node.name, "url": node.url, "slots": node.slots} for node in running]
    if as_json:
        put_json({"nodes": rows})
    else:
        table(("name", "url", "slots"), [tuple(row.values()) for row in rows])
    if project.nodes:
        say("Note: scrapy.cfg names nodes, so crawls use those.")
    say("Stop them with: sdist nodes down")


def down() -> None:
    """Stop the local nodes and their jobs.

    Example: sdist nodes down
    """
    from scrapyd_dist.deploy import local

    from scrapyd_dist.config import STATE_FOLDER, load

    from .speaking import say

    stopped = local.down(load().root / STATE_FOLDER)
    say(f"Stopped {', '.join(stopped)}." if stopped else "No local node was running.")
