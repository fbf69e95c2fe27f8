"""`sdist nodes`: the fleet as it is, each node as it answers; draining and local nodes are in modules of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..selectors import Json, Nodes
from .node_status import CONNECT_TIMEOUT, TIMEOUT, ConnectTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node_status import NodeStatus

#: nodes in trouble of which all is said
SAID = 5


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    from . import drain, local_node_commands, node_add

    group = typer.Typer(no_args_is_help=False)
    group.callback(invoke_without_command=True)(nodes)
    drain.register(group)
    node_add.register(group)
    local_node_commands.register(group)
    app.add_typer(group, name="nodes")


def nodes(
    context: typer.Context,
    node: Nodes = None,
    project: Annotated[
        Optional[str],
        typer.Option("--project", "-p", help="Whose versions are compared: \\[deploy] project, else BOT_NAME."),
    ] = None,
    as_json: Json = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a node gets to answer.", min=0.1)] = TIMEOUT,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
) -> None:
    """List the nodes, each with its state, load, latency, version and clock.

    These are the targets of scrapy.cfg or, where it names none, the local nodes.
    All are asked at once. States: up; draining (gets no new work); wedged (work
    waits, nothing starts); busy (connected, but no answer in time); down;
    refused (user name, password, certificate). Exit code 0 when all work,
    3 when some do not, 5 when none answers, 6 when none lets us in.

    Example: sdist nodes --node 'eu-*'
    """
    if context.invoked_subcommand is not None:
        return
    from scrapyd_dist.config import load
    from scrapyd_dist.transports.requests import RequestsTransport

    from ..output import put_json, say
    from ..selectors import chosen, known_times
    from ..target_nodes import quick_project, unused_local
    from .drain import recognise
    from .node_status import exit_code_of, look, newest_of, row

    found = load()
    fleet = chosen(found, node)
    name = quick_project(found, project)
    sender = RequestsTransport(connect_timeout=connect_timeout)
    seen = look(sender, fleet, name, timeout, known=known_times(found.root, fleet, name), shown=not as_json)
    recognise(found.root, sender, seen, timeout)
    newest = newest_of(seen)
    rows = [row(one, newest) for one in seen]
    if as_json:
        put_json({"project": name, "version": newest, "nodes": rows})
    else:
        _show(seen, rows)
    if idle := unused_local(found):
        say(idle)
    raise typer.Exit(exit_code_of(seen))


def _show(seen: Sequence[NodeStatus], rows: Sequence[dict[str, Any]]) -> None:
    from ..output import complain
    from ..tables import table
    from .node_status import in_short

    names = ("name", "state", "running", "pending", "finished", "slots")
    skewed = any(clock(row["skew_s"]) for row in rows)
    table(
        (*names, "latency", "version", *(("clock",) if skewed else ()), "url", ""),
        [
            (
                *(row[name] for name in names),
                latency(row["latency_ms"]),
                _version(row),
                *((clock(row["skew_s"]),) if skewed else ()),
                row["url"],
                in_short(one),
            )
            for one, row in zip(seen, rows, strict=True)
        ],
    )
    troubles = [f"{one.node}: {row['reason']}" for one, row in zip(seen, rows, strict=True) if row["reason"]]
    for text in troubles[:SAID]:
        complain(text)
    if len(troubles) > SAID:
        complain(
            f"and {len(troubles) - SAID} nodes more; `sdist nodes --json` says why of each, `sdist doctor` what to do."
        )


def latency(milliseconds: float | None) -> str | None:
    """A time to answer, for a table."""
    return None if milliseconds is None else f"{milliseconds:.0f} ms"


def clock(skew: float | None) -> str:
    """How wrong a node's clock is, where that is worth a word."""
    from scrapyd_dist.scheduling.node_state import SKEW

    return "" if skew is None or abs(skew) < SKEW else f"{skew:+.0f} s"


def _version(row: dict[str, Any]) -> str | None:
    if row["drift"] is None:
        return None
    return f"{row['version'] or 'none'} (drift)" if row["drift"] else row["version"]
