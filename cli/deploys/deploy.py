"""`sdist deploy` and `sdist deploy-all`: one egg, built once, onto many nodes at the same time."""

from __future__ import annotations

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
from ..node_selection import called, chosen, must_name
from ..options import Json, Project
from ..output import say
from ..project_store import where
from .deploy_result import exit_code_of, tell, tell_interrupted
from .deploy_result import bar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapyd_dist.deploy.egg import Egg
    from scrapyd_dist.deploy.rollout import RollOut

    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node

#: seconds for all that one node is asked
TIMEOUT = 60.0
RETRIES = 2
_HOW, _WHAT = "How it is sent", "What is sent"
Version = Annotated[
    Optional[str],
    typer.Option(
        help="Name of the version; GIT or HG puts the commit's name behind time and content hash.",
        rich_help_panel=_WHAT,
    ),
]
OnlyMissing = Annotated[
    bool, typer.Option("--only-missing", help="Send the egg that was sent last to those that lack it; build nothing.",
                       rich_help_panel=_WHAT),
]  # fmt: skip
Dependencies = Annotated[
    bool, typer.Option("--include-dependencies", help="Put the pure-Python packages of requirements.txt into the egg.",
                       rich_help_panel=_WHAT),
]  # fmt: skip
SetupPy = Annotated[
    bool, typer.Option("--use-setup-py", help="Let the project's own setup.py build the egg, in a copy.",
                       rich_help_panel=_WHAT),
]  # fmt: skip
Atomic = Annotated[
    bool, typer.Option("--atomic", help="All or none: undo it on all nodes when one fails.", rich_help_panel=_HOW)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; exit code 10 if it would.", rich_help_panel=_HOW)
]
Timeout = Annotated[float, typer.Option(help="Seconds that each node gets.", min=0.1, rich_help_panel=_HOW)]
Retries = Annotated[
    int, typer.Option(help="How often a node that does not answer is asked again.", min=0, max=20, rich_help_panel=_HOW)
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """What both commands can be asked for; a field is a parameter of the command."""

    project: Project = None
    version: Version = None
    only_missing: OnlyMissing = False
    include_dependencies: Dependencies = False
    use_setup_py: SetupPy = False
    atomic: Atomic = False
    dry_run: DryRun = False
    timeout: Timeout = TIMEOUT
    retries: Retries = RETRIES
    as_json: Json = False
    no_progress: NoProgress = False
    quiet: Quiet = False

    @property
    def progress(self) -> bool:
        return not (self.no_progress or self.quiet)


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
    name, nodes = called(chosen(found, targets), found, asked.project)
    state = state_dir(found.root)
    egg, kept_name = _egg(found, name, state, asked)
    wish = _wish(found, nodes, asked, kept_name)
    if not asked.quiet:
        _say_what(name, egg, nodes, asked)
    result = roll_out(found, name, nodes, egg, state, asked.timeout, wish, progress=asked.progress)
    tell(result, name, wish, as_json=asked.as_json, quiet=asked.quiet)
    raise typer.Exit(exit_code_of(result))


def _egg(found: ProjectConfig, project: str, state: Path, asked: DeployOptions) -> tuple[Egg, str | None]:
    """What is sent, and the name that it has already."""
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
    """What the workers of a crawl need to reach its store, as files for the egg."""
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
