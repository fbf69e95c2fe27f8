"""`sdist deploy` and `deploy-all`: one egg, built once, to many nodes at the same time; and how that is shown."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy import requirements, rollout
from scrapyd_dist.deploy.kept_eggs import choose, kept_eggs
from scrapyd_dist.deploy.key import state_key
from scrapyd_dist.deploy.node_upload import RollOutRequest
from scrapyd_dist.deploy.project_files import describe, is_dirty
from scrapyd_dist.deploy.requirements import redis_client

from scrapyd_dist.config import state_dir
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.scrapyd.versions import sanitised

from ..candidates import nodes
from ..context import Context
from ..crawls.wording import counted
from ..node_selection import exit_code, must_name
from ..options import Json, Project
from ..output import complain, on_terminal, put_json, say, table
from ..project_store import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from scrapyd_dist.deploy.egg import Egg
    from scrapyd_dist.deploy.node_upload import NodeResult, Step
    from scrapyd_dist.deploy.node_versions import NodeVersions
    from scrapyd_dist.deploy.rollout import RollOut, RollOutInterrupted

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node

_DONE = {"present", "uploaded", "failed"}
#: names in the line beside the bar
_SHOWN = 4
Note = "Callable[[Node, Step], None]"


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """Yield a function to call with each step of each node.

    Args:
        nodes: how many there are.
        shown: False draws and says nothing.
    """
    if not shown:
        yield lambda _node, _step: None
    elif on_terminal():
        with _drawn(nodes) as note:
            yield note
    else:
        yield _plain(nodes)


def _plain(nodes: int) -> Callable[[Node, Step], None]:
    done = 0

    def note(node: Node, step: Step) -> None:
        nonlocal done
        if step.value in _DONE:
            done += 1
            say(f"{done} of {nodes}: {node.name} {step.value}")
        elif step.value == "undone":
            say(f"{node.name} undone")

    return note


@contextmanager
def _drawn(nodes: int) -> Iterator[Callable[[Node, Step], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task, busy = progress.add_task("", total=nodes), dict[str, str]()

        def note(node: Node, step: Step) -> None:
            if step.value in _DONE or step.value == "undone":
                busy.pop(node.name, None)
            else:
                busy[node.name] = step.value
            words = ", ".join(f"{name} {what}" for name, what in list(busy.items())[:_SHOWN])
            progress.update(task, advance=step.value in _DONE, description=words + " …" * (len(busy) > _SHOWN))

        yield note


#: a dry run found something to do
WOULD_CHANGE = 10
#: a node's last step -> its meaning after Ctrl-C
_AT_CTRL_C = {
    "uploaded": "has it",
    "present": "has it",
    "failed": "failed",
    "undone": "had it, and it was deleted again",
    "asking": "was not sent it",
}


def tell(result: RollOut, project: str, wish: RollOutRequest, *, as_json: bool, quiet: bool) -> None:
    """Show all of it."""
    if as_json:
        document = {"project": project, "version": result.version, "dry_run": wish.dry_run}
        put_json({**document, "nodes": [_row(entry, project) for entry in result.results]})
    elif not quiet:
        _show(result, project)
    _say_failures(result)
    _say_differences(result)
    _say_undone(result, wish)
    if not quiet and not wish.dry_run:
        _say_defaults(result)


def exit_code_of(result: RollOut) -> int:
    """0 = all have it; 10 = a dry run would change something; else as for every command that asks all nodes."""
    if any(entry.planned for entry in result.results):
        return WOULD_CHANGE
    errors = [entry.error for entry in result.failed if entry.error is not None]
    if errors and not result.ready:
        return exit_code(len(errors), errors)
    return exit_code(len(result.results), errors) or (3 if len(result.spider_lists) > 1 else 0)


def present_document(seen: Sequence[NodeVersions], project: str) -> dict[str, Any]:
    """The same document as `tell`, of nodes to which nothing was sent."""
    rows = [
        {"name": entry.node.name, "url": entry.node.url, "project": entry.project, "state": "present",
         "version": entry.default, "default": entry.default, "spiders": None, "reason": ""}
        for entry in seen
    ]  # fmt: skip
    names = {entry.default for entry in seen}
    version = names.pop() if len(names) == 1 else None
    return {"project": project, "version": version, "dry_run": False, "nodes": rows}


def tell_interrupted(known: RollOutInterrupted) -> None:
    """Which nodes have it after Ctrl-C, and which may have it or not."""
    groups: dict[str, list[str]] = {}
    for name, step in known.steps.items():
        groups.setdefault(_AT_CTRL_C.get(step.value, "nobody knows yet"), []).append(name)
    told = "; ".join(f"{words}: {', '.join(names)}" for words, names in groups.items())
    complain(
        f"Interrupted. The version {known.version} so far: {told}. A node that was being sent it goes on by itself. "
        "See what they have with `sdist versions`; `sdist deploy-all --only-missing` brings it to the others."
    )


def _state(result: NodeResult) -> str:
    if result.error is not None:
        return "failed"
    if result.undone:
        return "undone"
    if result.planned:
        return "missing"
    return "uploaded" if result.uploaded else "present"


def _row(result: NodeResult, project: str) -> dict[str, Any]:
    known = result.error is None and not result.undone and bool(result.spiders or result.default)
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": _state(result),
        "version": result.version,
        "default": result.default,
        "spiders": len(result.spiders) if known else None,
        "reason": result.reason or result.stays,
    }


def _show(result: RollOut, project: str) -> None:
    names = ("name", "state", "version", "spiders", "url")
    table(names, [tuple(_row(entry, project)[name] for name in names) for entry in result.results])


def _say_failures(result: RollOut) -> None:
    for reason, names in result.failures.items():
        complain(reason if len(names) == 1 else f"{', '.join(names)}: {reason}")
    if result.failures and result.ready:
        say("The others have it. Once that is put right, `sdist deploy-all --only-missing` brings it to those without.")


def _say_differences(result: RollOut) -> None:
    if len(result.spider_lists) > 1:
        told = "; ".join(f"{', '.join(names)}: {', '.join(found) or 'none'}" for found, names in
                         result.spider_lists.items())  # fmt: skip
        complain(f"The same version has different spiders on different nodes ({told}). Does its code look at its node?")


def _say_undone(result: RollOut, wish: RollOutRequest) -> None:
    if not wish.atomic or not result.failed:
        return
    names = [entry.node.name for entry in result.results if entry.undone]
    if names:
        say(f"Undone, since not every node could have it: {', '.join(names)}.")
    for entry in result.results:
        if entry.stays:
            complain(f"{entry.node.name} was not undone: {entry.stays}.")


def _say_defaults(result: RollOut) -> None:
    """Name the nodes whose default is another version: Scrapyd runs what sorts last."""
    others: dict[str, list[str]] = {}
    for entry in result.ready:
        if entry.default not in {None, entry.version}:
            others.setdefault(f"{entry.default}", []).append(entry.node.name)
    for version, names in others.items():
        say(
            f"Note: on {', '.join(names)} Scrapyd sorts {version} behind this version, so jobs that name no version "
            "run that one. What sdist starts names its version."
        )


#: seconds for all that one node is asked
TIMEOUT = 60.0
RETRIES = 2
_HOW, _WHAT = "How it is sent", "What is sent"


def _option(panel: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """The options of both commands; a field is a parameter of the command."""

    project: Project = None
    version: Annotated[
        Optional[str],
        _option(_WHAT, "Name of the version; GIT or HG puts the commit's name behind time and content hash."),
    ] = None
    only_missing: Annotated[
        bool,
        _option(_WHAT, "Send the egg that was sent last to those that lack it; build nothing.", "--only-missing"),
    ] = False
    include_dependencies: Annotated[
        bool,
        _option(_WHAT, "Put the pure-Python packages of requirements.txt into the egg.", "--include-dependencies"),
    ] = False
    use_setup_py: Annotated[
        bool, _option(_WHAT, "Let the project's own setup.py build the egg, in a copy.", "--use-setup-py")
    ] = False
    atomic: Annotated[bool, _option(_HOW, "All or none: undo it on all nodes when one fails.", "--atomic")] = False
    dry_run: Annotated[bool, _option(_HOW, "Change nothing; exit code 10 if it would.", "--dry-run")] = False
    timeout: Annotated[float, _option(_HOW, "Seconds that each node gets.", min=0.1)] = TIMEOUT
    retries: Annotated[int, _option(_HOW, "How often a node that does not answer is asked again.", min=0, max=20)] = (
        RETRIES
    )
    as_json: Json = False
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False


def deploy(
    context: Context,
    asked: DeployOptions,
    targets: Annotated[
        Optional[list[str]], typer.Argument(metavar="TARGET", autocompletion=nodes, help="Names of targets, or globs.")
    ] = None,
) -> None:
    """Build the project once and upload it to the named nodes at the same time.

    TARGET is the name of a target in scrapy.cfg, or a glob in quotes.
    For all nodes there is `sdist deploy-all`, which says the rest.

    Example: sdist deploy web1 'eu-*'
    """
    must_name(targets, "deploy to", "For all of them: sdist deploy-all.")
    _deploy(context, targets, asked)


def deploy_all(context: Context, asked: DeployOptions) -> None:
    """Build the project once and upload it to all nodes at the same time.

    A node that has this code already is left alone; one that cannot import it
    does not keep it. Exit code 0 when all nodes have it, 3 when some do.

    Example: sdist deploy-all -p properties
    """
    _deploy(context, None, asked)


def _deploy(context: Context, targets: Sequence[str] | None, asked: DeployOptions) -> None:
    found = context.project
    name, nodes = context.project_nodes(targets, asked.project)
    state = state_dir(found.root)
    egg, kept_name = _egg(found, name, state, asked)
    wish = _wish(found, nodes, asked, kept_name)
    if not asked.quiet:
        _say_what(name, egg, nodes, asked)
    result = roll_out(
        found, name, nodes, egg, state, asked.timeout, wish, progress=not (asked.no_progress or asked.quiet)
    )
    tell(result, name, wish, as_json=asked.as_json, quiet=asked.quiet)
    raise typer.Exit(exit_code_of(result))


def _egg(found: ProjectConfig, project: str, state: Path, asked: DeployOptions) -> tuple[Egg, str | None]:
    """Return the egg to send, and the name that it has already."""
    if asked.only_missing:
        saved = _last_sent(project, state, asked.version)
        return saved.read(), saved.version
    extra = _store_client(found.root)
    if asked.include_dependencies:
        extra.update(requirements.read_requirements(found.root))
    egg = eggs.build(
        found.root,
        found.settings_module,
        key=state_key(state),
        requirements=extra,
        use_setup_py=asked.use_setup_py,
    )
    return egg, None


def _store_client(root: Path) -> dict[str, bytes]:
    """Return the files that workers need to reach the store."""
    try:
        return redis_client(where(root))
    except ConfigError:  # an address that the settings compute: the crawl itself brings the code that it needs
        return {}


def _last_sent(project: str, state: Path, version: str | None) -> Any:
    kept = kept_eggs(state, project)
    if version is not None:
        return choose(kept, version, None, folder=state / "eggs")
    if not kept:
        raise NothingMatched(
            f"No egg of the project {project} was sent from here yet, so there is none to send to those that lack it. "
            "Without --only-missing it is built: sdist deploy-all."
        )
    return kept[0]


def _wish(found: ProjectConfig, nodes: Sequence[Node], asked: DeployOptions, kept_name: str | None) -> RollOutRequest:
    names = {node.name: kept_name or asked.version or node.version or "" for node in nodes}
    kinds = {name for name in names.values() if name in {"GIT", "HG"}}
    return RollOutRequest(
        label=describe(found.root, min(kinds)) if kinds else "",
        given={node: sanitised(name) for node, name in names.items() if name and name not in kinds},
        only_missing=asked.only_missing,
        atomic=asked.atomic,
        retries=asked.retries,
        dry_run=asked.dry_run,
    )


def roll_out(
    found: ProjectConfig,
    project: str,
    nodes: Sequence[Node],
    egg: Egg,
    state: Path,
    timeout: float,
    wish: RollOutRequest,
    *,
    progress: bool,
) -> RollOut:
    """Send the egg, and draw how far it is; Ctrl-C says what is known by then, and is raised again."""
    dirty = not wish.only_missing and is_dirty(found.root)
    try:
        with bar(len(nodes), shown=progress) as note:
            return rollout.ensure(
                nodes, project, egg, state=state, dirty=dirty, timeout=timeout, wish=wish, progress=note
            )  # fmt: skip
    except rollout.RollOutInterrupted as known:
        tell_interrupted(known)
        raise


def _say_what(project: str, egg: Egg, nodes: Sequence[Node], asked: DeployOptions) -> None:
    done = "Took the kept egg of" if asked.only_missing else "Built"
    say(f"{done} {project}, {len(egg.data) // 1024 + 1} KiB; asking {counted(len(nodes), 'node')} …")
