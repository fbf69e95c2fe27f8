"""Adds nodes to the fleet beside those of scrapy.cfg, and takes them away again.

The rule it keeps: the store has names and addresses of nodes, and no passwords; those come from
~/.netrc.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from scrapyd_dist.config import state_folder, with_netrc
from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    DistError,
    NoNodeReachable,
    NothingMatched,
)
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace, match_nodes
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.nodes import Node, names_of


def read_addresses(workspace: Workspace, addresses: Sequence[str], name: str | None) -> list[Node]:
    """Return the nodes at these addresses, with the passwords of ~/.netrc.

    name: what the only one of them is called; None: by its address.

    Raises:
        ConfigError: an address has a user name in it, or another node has the name.
    """
    named = {node.name: node for node in (*workspace.project.targets, *workspace.added)}
    nodes = []
    for address in addresses:
        node = Node.parse(address, name=name)
        if node.username is not None:
            raise ConfigError(
                f"The address of {node.name} has a user name in it, and the store keeps no "
                "secrets. Put it into ~/.netrc (`machine HOST login USER password PASSWORD`, "
                "chmod 600), or add a [deploy:…] section to scrapy.cfg."
            )
        other = named.get(node.name)
        if other is not None and other != node:
            raise ConfigError(
                f"There is a node {node.name!r} already, {other.url}. Choose another name with "
                "--name."
            )
        nodes.append(with_netrc(node))
    return nodes


def check_any_answers(statuses: Sequence[NodeStatus], resting: Sequence[Node]) -> None:
    """Refuse nodes of which none answers, where the local nodes would rest for them.

    resting: those local nodes; where there are none, nothing is refused.

    Raises:
        NoNodeReachable: none answers.
    """
    if not resting:
        return
    errors = []
    for status in statuses:
        if status.error is None or status.error.exit_code == AuthRefused.exit_code:
            return
        errors.append(str(status.error))
    raise NoNodeReachable(
        f"{' '.join(errors)} Nothing was added: the local nodes ({names_of(resting)}) are used "
        "only where no other node is named, so no node at all would work. Add it when it answers; "
        "or stop the local nodes first: sdist nodes down."
    )


def add_nodes(workspace: Workspace, nodes: Iterable[Node]) -> None:
    """Keep the nodes in the store: crawls that run give them work within seconds."""
    changes = {}
    for node in nodes:
        scheme = "dns+" if node.lookup else ""
        changes[node.name] = {"url": scheme + node.url}
    workspace.remember(changes)


def choose_removed(workspace: Workspace, patterns: Sequence[str]) -> list[Node]:
    """Return the nodes that were added, or are local and dead, and have such names.

    Raises:
        ConfigError: a name is that of a target of scrapy.cfg, or of a local node that runs.
        NothingMatched: a name is that of no node.
    """
    added = workspace.added
    dead = workspace.dead_local_nodes
    for pattern in patterns:
        if not _matching([*added, *dead], pattern):
            raise _nothing_added(workspace, pattern)
    return match_nodes([*added, *dead], patterns)


def remove_nodes(workspace: Workspace, nodes: Iterable[Node]) -> None:
    """Take these nodes away again, which were added, or are local and dead."""
    dead = []
    changes: dict[str, dict[str, Any]] = {}
    for node in nodes:
        if node.local:
            dead.append(node.name)
        else:
            changes[node.name] = {"url": "", "draining": None, "idle_looks": ()}
    workspace.remember(changes)
    if dead:
        from scrapyd_dist.deploy.local_nodes import forget_dead  # noqa: PLC0415 - slow to load

        forget_dead(state_folder(workspace.root), dead)


def _matching(nodes: Iterable[Node], pattern: str) -> list[Node]:
    return [node for node in nodes if fnmatchcase(node.name, pattern)]


def _nothing_added(workspace: Workspace, pattern: str) -> DistError:
    """Return the error for a name, or glob, of no node that was added."""
    if _matching(workspace.project.targets, pattern):
        file = workspace.root / "scrapy.cfg"
        return ConfigError(
            f"{pattern!r} is a target of {file}: remove its section there. Crawls that run notice."
        )
    if _matching(workspace.local_nodes, pattern):
        return ConfigError(
            f"{pattern!r} is a local node, and runs: `sdist nodes down` stops the local nodes."
        )
    names = [node.name for node in workspace.added]
    return NothingMatched(
        f"There is no node {pattern!r} that was added.{did_you_mean(pattern, names)} Those that"
        f" were: {', '.join(names) or 'none'}."
    )
