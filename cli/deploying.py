"""`sdist deploy-all`: one egg, built once, onto every node at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from scrapyd_dist.deploy.rollout import RollOut
    from scrapyd_dist.deploy.talk import NodeResult

    from scrapyd_dist.config import ProjectConfig

#: seconds for all that one node is asked
TIMEOUT = 60.0


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("deploy-all", rich_help_panel="Nodes")(deploy_all)


def deploy_all(
    project: Annotated[
        Optional[str],
        typer.Option("--project", "-p", help="Scrapyd's name of the project: [deploy] project, else BOT_NAME."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that each node gets.", min=0.1)] = TIMEOUT,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Build the project once and upload it to all nodes at the same time.

    A node that has this code already is left alone; one that cannot import it
    does not keep it. Exit code 0 when all nodes have it, 3 when some do.

    Example: sdist deploy-all -p properties
    """
    from scrapyd_dist.config import load

    from .fleet import exit_code, no_nodes, nodes_of, project_name
    from .speaking import put_json

    found = load()
    nodes = nodes_of(found)
    if not nodes:
        raise no_nodes(found)
    name = project_name(found, nodes, project)
    result = _roll_out(found, name, nodes, timeout, chosen=project is not None, quiet=quiet)
    if as_json:
        put_json({"project": name, "version": result.version, "nodes": [_row(entry, name) for entry in result.results]})
    elif not quiet:
        _show(result, name)
    _say_failures(result)
    errors = [entry.error for entry in result.failed if entry.error is not None]
    raise typer.Exit(exit_code(len(result.results), errors))


def _roll_out(found: ProjectConfig, name: str, nodes: Any, timeout: float, *, chosen: bool, quiet: bool) -> RollOut:
    from dataclasses import replace

    from scrapyd_dist.deploy import egg, rollout, versions
    from scrapyd_dist.deploy.key import state_key

    from scrapyd_dist.config import state_dir

    from .speaking import say

    state = state_dir(found.root)
    built = egg.build(found.root, found.settings_module, key=state_key(state))
    if not quiet:
        say(f"Built {name}, {len(built.data) // 1024 + 1} KiB; asking {len(nodes)} node{'s' * (len(nodes) > 1)} …")
    if chosen:
        nodes = [replace(node, project=name) for node in nodes]
    dirty = versions.is_dirty(found.root)
    return rollout.ensure(nodes, name, built, state=state, dirty=dirty, timeout=timeout)


def _row(result: NodeResult, project: str) -> dict[str, Any]:
    state = "failed" if result.error is not None else "uploaded" if result.uploaded else "present"
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": state,
        "version": result.version,
        "spiders": len(result.spiders) if result.error is None else None,
        "reason": result.reason,
    }


def _show(result: RollOut, project: str) -> None:
    from .render import table

    names = ("name", "state", "version", "spiders", "url")
    table(names, [tuple(_row(entry, project)[name] for name in names) for entry in result.results])


def _say_failures(result: RollOut) -> None:
    from .speaking import complain, say

    for reason, names in result.failures.items():
        complain(reason if len(names) == 1 else f"{', '.join(names)}: {reason}")
    if result.failures and result.ready:
        say("The others have it. Once that is put right, run `sdist deploy-all` again: it goes to those that lack it.")
