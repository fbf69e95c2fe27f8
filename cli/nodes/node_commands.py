"""`sdist nodes`: the fleet as it answers; nodes beside those of scrapy.cfg; real Scrapyd nodes on this machine.

The rule it keeps: the store has names and addresses of nodes, and no passwords; those come from ~/.netrc.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.config import STATE_FOLDER, state_dir, with_netrc
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import SKEW

from ..candidates import nodes as node_names
from ..context import Context
from ..node_selection import added, known_times, names_of, quick_project, unused_local
from ..node_status import TIMEOUT, exit_code_of, look, newest_of, recognise
from ..options import CONNECT_TIMEOUT, ConnectTimeout, Nodes, Timeout, group
from ..output import Output, complain, say, table
from . import drain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..node_status import NodeStatus

#: nodes in trouble of which all is said
SAID = 5


def list_nodes(
    *,
    called: typer.Context,
    context: Context,
    node: Nodes = None,
    project: Annotated[
        Optional[str],
        typer.Option("--project", "-p", help="Whose versions are compared: \\[deploy] project, else BOT_NAME."),
    ] = None,
    output: Output,
    timeout: Timeout = TIMEOUT,
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
    if called.invoked_subcommand is not None:
        return
    fleet = context.nodes(node)
    name = quick_project(context.project, project)
    sender, known = context.sender_within(connect_timeout), known_times(context.root, fleet, name)
    seen = look(sender, fleet, name, timeout, known=known, shown=not output.as_json)
    recognise(context, sender, seen, timeout)
    newest = newest_of(seen)
    if not output.document({"project": name, "version": newest, "nodes": [one.document(newest) for one in seen]}):
        _show(seen, newest)
    if idle := unused_local(context.project):
        say(idle)
    raise typer.Exit(exit_code_of(seen))


def _show(seen: Sequence[NodeStatus], newest: str | None) -> None:
    names = ("name", "state", "running", "pending", "finished", "slots")
    skewed = any(clock(one.skew) for one in seen)
    rows = []
    for one in seen:
        row = one.document(newest)
        version = f"{row['version'] or 'none'} (drift)" if row["drift"] else row["version"]
        rows.append(
            (
                *(row[name] for name in names),
                None if one.latency is None else f"{row['latency_ms']:.0f} ms",
                None if row["drift"] is None else version,
                *((clock(one.skew),) if skewed else ()),
                one.node.url,
                one.short,
            )
        )
    table((*names, "latency", "version", *(("clock",) if skewed else ()), "url", ""), rows)
    troubles = [f"{one.node}: {one.reason}" for one in seen if one.reason]
    for text in troubles[:SAID]:
        complain(text)
    if len(troubles) > SAID:
        complain(
            f"and {len(troubles) - SAID} nodes more; `sdist nodes --json` says why of each, `sdist doctor` what to do."
        )


def clock(skew: float | None) -> str:
    """How wrong a node's clock is, where that is worth a word."""
    return "" if skew is None or abs(skew) < SKEW else f"{skew:+.0f} s"


def add(
    *,
    context: Context,
    address: Annotated[list[str], typer.Argument(metavar="ADDRESS", help="As in web4:6800 or https://web5/scrapyd/.")],
    name: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="What it is called; host and port if left out.")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    output: Output,
) -> None:
    """Add nodes to the fleet, beside those of scrapy.cfg.

    Crawls that run give them work within seconds. User name and password come
    from ~/.netrc. A node that does not answer is added all the same. Local nodes
    are used only where no other one is named, so not beside it.

    Example: sdist nodes add web4:6800 --name spare
    """
    if name is not None and len(address) > 1:
        raise ConfigError("--name is the name of one node; name one address with it.")
    nodes = _new(context, address, name)
    context.remember({node.name: {"url": ("dns+" if node.lookup else "") + node.url} for node in nodes})
    seen = look(context.sender_within(connect_timeout), nodes, None, TIMEOUT)
    output.document({"nodes": [one.document() for one in seen]})
    for one in seen:
        if one.error is not None:
            complain(f"{one.error} It is added all the same.")
        elif not output.as_json:
            say(f"Added {one.node.name} ({one.node.url}).")
    if idle := unused_local(context.project):
        say(idle)
    raise typer.Exit(exit_code_of(seen))


def _new(context: Context, addresses: Sequence[str], name: str | None) -> list[Node]:
    """The nodes that are to be added.

    Raises:
        ConfigError: an address makes no sense, has a password in it, or its name is taken.
    """
    taken = {node.name: node for node in (*context.project.targets, *added(context.root))}
    nodes = []
    for address in addresses:
        node = Node.parse(address, name=name)
        if node.username is not None:
            raise ConfigError(
                f"The address of {node.name} has a user name in it, and the store keeps no secrets. Put it into "
                "~/.netrc (`machine HOST login USER password PASSWORD`, chmod 600), or add a [deploy:…] section "
                "to scrapy.cfg."
            )
        there = taken.get(node.name)
        if there is not None and there != node:
            raise ConfigError(f"There is a node {node.name!r} already, {there.url}. Choose another name with --name.")
        nodes.append(with_netrc(node))
    return nodes


def remove(
    context: Context,
    node: Annotated[
        list[str],
        typer.Argument(metavar="NODE", autocompletion=node_names, help="Names of nodes that were added, or globs."),
    ],
    output: Output = Output(),
) -> None:
    """Take nodes away again that were added with `sdist nodes add`.

    They get no new work; what they have is seen to its end.

    Example: sdist nodes remove spare
    """
    known = added(context.root)
    for pattern in node:
        if any(fnmatchcase(one.name, pattern) for one in known):
            continue
        if any(fnmatchcase(one.name, pattern) for one in context.project.targets):
            file = context.root / "scrapy.cfg"
            raise ConfigError(f"{pattern!r} is a target of {file}: remove its section there. Crawls that run notice.")
        names = ", ".join(one.name for one in known) or "none"
        raise NothingMatched(f"No node {pattern!r} was added. Those that were: {names}.")
    gone = [one for one in known if any(fnmatchcase(one.name, pattern) for pattern in node)]
    nothing: dict[str, Any] = {"url": "", "draining": None, "idle_looks": ()}
    context.remember({one.name: nothing for one in gone})
    if not output.document({"nodes": [{"name": one.name, "url": one.url} for one in gone]}):
        say(f"Removed {names_of(gone)}. A crawl that runs there sees its jobs to their end.")


def up(
    context: Context,
    count: Annotated[int, typer.Argument(metavar="N", help="How many local nodes shall run.", min=1)] = 3,
    slots: Annotated[
        Optional[int],
        typer.Option(help="Jobs that each runs at once; the cores divided among them if left out.", min=1),
    ] = None,
    output: Output = Output(),
) -> None:
    """Start real Scrapyd nodes on this machine, each with a port and a password of its own.

    They stay until `sdist nodes down`, and are what `sdist crawl` uses when
    scrapy.cfg names no node.

    Example: sdist nodes up 3 --slots 2
    """
    from scrapyd_dist.deploy import local_nodes

    running = local_nodes.up(state_dir(context.root), count, slots=slots)
    rows = [{"name": node.name, "url": node.url, "slots": node.slots} for node in running]
    output.columns({"nodes": rows}, "nodes", ("name", "url", "slots"))
    if idle := unused_local(context.project):
        say(idle)
    say("Stop them with: sdist nodes down")


def down(context: Context) -> None:
    """Stop the local nodes and their jobs.

    Example: sdist nodes down
    """
    from scrapyd_dist.deploy import local_nodes

    stopped = local_nodes.down(context.root / STATE_FOLDER)
    say(f"Stopped {', '.join(stopped)}." if stopped else "No local node was running.")


nodes = group(alone=list_nodes, drain=drain.drain, resume=drain.resume, add=add, remove=remove, up=up, down=down)
