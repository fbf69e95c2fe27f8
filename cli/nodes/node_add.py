"""`sdist nodes add`, `nodes remove`: nodes beside those of scrapy.cfg, for crawls that run too.

The rule it keeps: the store has names and addresses, and no passwords; those come from ~/.netrc.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ..candidates import nodes
from ..selectors import Json
from .node_status import CONNECT_TIMEOUT, TIMEOUT, ConnectTimeout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node


def register(group: typer.Typer) -> None:
    """Add the commands of this module."""
    group.command("add")(add)
    group.command("remove")(remove)


def add(
    address: Annotated[list[str], typer.Argument(metavar="ADDRESS", help="As in web4:6800 or https://web5/scrapyd/.")],
    name: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="What it is called; host and port if left out.")
    ] = None,
    connect_timeout: ConnectTimeout = CONNECT_TIMEOUT,
    as_json: Json = False,
) -> None:
    """Add nodes to the fleet, beside those of scrapy.cfg.

    Crawls that run give them work within seconds. User name and password come
    from ~/.netrc. A node that does not answer is added all the same. Local nodes
    are used only where no other one is named, so not beside it.

    Example: sdist nodes add web4:6800 --name spare
    """
    from scrapyd_dist.config import load
    from scrapyd_dist.errors import ConfigError
    from scrapyd_dist.transports.requests import RequestsTransport

    from ..output import complain, put_json, say
    from ..target_nodes import unused_local
    from .drain import note
    from .node_status import exit_code_of, look, row

    if name is not None and len(address) > 1:
        raise ConfigError("--name is the name of one node; name one address with it.")
    found = load()
    nodes = _new(found, address, name)
    note(found.root, {node.name: {"url": ("dns+" if node.lookup else "") + node.url} for node in nodes})
    seen = look(RequestsTransport(connect_timeout=connect_timeout), nodes, None, TIMEOUT)
    if as_json:
        put_json({"nodes": [row(one, None) for one in seen]})
    for one in seen:
        if one.error is not None:
            complain(f"{one.error} It is added all the same.")
        elif not as_json:
            say(f"Added {one.node.name} ({one.node.url}).")
    if idle := unused_local(found):
        say(idle)
    raise typer.Exit(exit_code_of(seen))


def _new(found: ProjectConfig, addresses: Sequence[str], name: str | None) -> list[Node]:
    """The nodes that are to be added.

    Raises:
        ConfigError: an address makes no sense, has a password in it, or its name is taken.
    """
    from scrapyd_dist.config import with_netrc
    from scrapyd_dist.errors import ConfigError
    from scrapyd_dist.nodes import Node

    from ..target_nodes import added

    taken = {node.name: node for node in (*found.targets, *added(found.root))}
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
    node: Annotated[
        list[str],
        typer.Argument(metavar="NODE", autocompletion=nodes, help="Names of nodes that were added, or globs."),
    ],
    as_json: Json = False,
) -> None:
    """Take nodes away again that were added with `sdist nodes add`.

    They get no new work; what they have is seen to its end.

    Example: sdist nodes remove spare
    """
    from scrapyd_dist.config import load

    from ..output import put_json, say
    from ..target_nodes import added, names_of
    from .drain import note

    found = load()
    known = added(found.root)
    for pattern in node:
        if not any(fnmatchcase(one.name, pattern) for one in known):
            raise _not_added(found, known, pattern)
    gone = [one for one in known if any(fnmatchcase(one.name, pattern) for pattern in node)]
    nothing: dict[str, Any] = {"url": "", "draining": None, "idle_looks": ()}
    note(found.root, {one.name: nothing for one in gone})
    if as_json:
        put_json({"nodes": [{"name": one.name, "url": one.url} for one in gone]})
    else:
        say(f"Removed {names_of(gone)}. A crawl that runs there sees its jobs to their end.")


def _not_added(found: ProjectConfig, known: Sequence[Node], pattern: str) -> Exception:
    from scrapyd_dist.errors import ConfigError, NothingMatched

    if any(fnmatchcase(one.name, pattern) for one in found.targets):
        return ConfigError(
            f"{pattern!r} is a target of {found.root / 'scrapy.cfg'}: remove its section there. Crawls that run notice."
        )
    names = ", ".join(one.name for one in known) or "none"
    return NothingMatched(f"No node {pattern!r} was added. Those that were: {names}.")
