"""`sdist deploy`: one egg, built once, to many nodes at the same time; and how that is shown."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy import requirements
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.kept_eggs import SavedEgg, choose, kept_eggs, read_egg
from scrapyd_dist.deploy.project_files import describe, is_dirty
from scrapyd_dist.deploy.requirements import redis_client
from scrapyd_dist.deploy.rollout import (
    NodeResult,
    RollOut,
    RollOutInterrupted,
    RollOutRequest,
    Step,
    ensure,
)

from scrapyd_dist.config import state_dir, write_file
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.keys import state_key
from scrapyd_dist.nodes import Node, distinct, names_by, names_of
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.versions import check_version, sanitised

from ..context import Context, exit_code, project_name, where
from ..options import PATIENCE, Project, Quiet, argument, nodes, option
from ..output import Output, complain, on_terminal, say

#: the last step of a node, but where that is undone
_DONE = {Step.PRESENT, Step.UPLOADED, Step.FAILED}
#: names in the line beside the bar
_SHOWN = 4


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """A function to call with each step of each node; without `shown` it draws and says nothing."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    done, busy, task = count(1), dict[str, str](), TaskID(0)
    drawn: Progress | None = None
    if shown and on_terminal():
        drawn = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        task = drawn.add_task("", total=nodes)

    def note(node: Node, step: Step) -> None:
        busy[node.name] = step.value
        if ended := step in _DONE or step is Step.UNDONE:
            del busy[node.name]
        if drawn is not None:
            words = ", ".join(f"{name} {what}" for name, what in list(busy.items())[:_SHOWN])
            drawn.update(
                task, advance=step in _DONE, description=words + " …" * (len(busy) > _SHOWN)
            )
        elif shown and ended:
            undone = step is Step.UNDONE
            say(
                f"{node.name} undone"
                if undone
                else f"{next(done)} of {nodes}: {node.name} {step.value}"
            )

    with drawn or nullcontext():
        yield note


#: a node's last step -> its meaning after Ctrl-C
_AT_CTRL_C = {
    Step.UPLOADED: "has it",
    Step.PRESENT: "has it",
    Step.FAILED: "failed",
    Step.UNDONE: "had it, and it was deleted again",
    Step.ASKING: "was not sent it",
}


def tell(
    result: RollOut, project: str, wish: RollOutRequest, output: Output, *, quiet: bool
) -> None:
    """Print the document, or a table and what has to be known of it."""
    rows = [node_row(entry, project) for entry in result.results]
    document = {
        "project": project,
        "version": result.version,
        "dry_run": wish.dry_run,
        "nodes": rows,
    }
    if output.as_json or not quiet:
        output.columns(document, "nodes", ("name", "state", "version", "spiders", "url"))
    _tell_findings(result, wish, quiet=quiet)


def _tell_findings(result: RollOut, wish: RollOutRequest, *, quiet: bool) -> None:
    for reason, failed in result.failures.items():
        complain(reason if len(failed) == 1 else f"{', '.join(failed)}: {reason}")
    if result.failures and result.ready:
        say(
            "The others have it. Put that right; then `sdist deploy --all --only-missing` brings it to the rest."
        )
    if len(result.spider_lists) > 1:
        lists = "; ".join(
            f"{', '.join(on)}: {', '.join(found) or 'none'}"
            for found, on in result.spider_lists.items()
        )
        complain(
            f"The same version has different spiders on different nodes ({lists}). Does its code look at its node?"
        )
    if undone := [entry.node.name for entry in result.results if entry.undone]:
        say(f"Undone, since not every node could have it: {', '.join(undone)}.")
    for entry in (one for one in result.results if one.stays):
        complain(f"{entry.node.name} was not undone: {entry.stays}.")
    # Scrapyd runs what sorts last.
    others = names_by(
        (one.default, one.node) for one in result.ready if one.default not in {None, one.version}
    )
    for version, on in () if quiet or wish.dry_run else others.items():
        say(
            f"Note: on {', '.join(on)} Scrapyd sorts {version} behind this version, so jobs that name no version "
            "run that one. What sdist starts names its version."
        )


def exit_code_of(*results: RollOut) -> int:
    """0 = all have it; 10 = a dry run would change something; else as for every command that asks all nodes.

    Several results are those of several projects.
    """
    entries = [entry for result in results for entry in result.results]
    if any(entry.planned for entry in entries):
        return 10
    errors = [entry.error for entry in entries if entry.error is not None]
    total = len(entries) if any(result.ready for result in results) else len(errors)
    differ = any(len(result.spider_lists) > 1 for result in results)
    return exit_code(total, errors) or (3 if differ else 0)


def node_row(result: NodeResult, project: str) -> dict[str, Any]:
    known = result.error is None and not result.undone and bool(result.spiders or result.default)
    states = {
        "failed": result.error,
        "undone": result.undone,
        "missing": result.planned,
        "uploaded": result.uploaded,
    }
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": next((state for state, holds in states.items() if holds), "present"),
        "version": result.version,
        "default": result.default,
        "spiders": len(result.spiders) if known else None,
        "reason": result.reason or result.stays,
    }


RETRIES = 2
DEFAULT = "default"  #: the name of the target that scrapy.cfg has as [deploy]
_how, _what = partial(option, panel="How it is sent"), partial(option, panel="What is sent")


@dataclass(frozen=True, kw_only=True)
class DeployOptions(Output):
    """Its options; a field is a parameter of the command."""

    project: Project = None
    version: Annotated[
        str | None,
        _what(
            "Name of the version; GIT or HG puts the commit's name behind time and content hash.",
            "--version",
            "-v",
        ),
    ] = None
    egg: Annotated[Path | None, _what("Send this egg, and build nothing.", metavar="FILE")] = None
    build_egg: Annotated[
        Path | None, _what("Write the egg to a file, and send nothing.", metavar="FILE")
    ] = None
    only_missing: Annotated[
        bool, _what("Send the egg sent last to those that lack it; build nothing.")
    ] = False
    include_dependencies: Annotated[
        bool, _what("Put the pure-Python packages of requirements.txt in the egg.")
    ] = False
    use_setup_py: Annotated[
        bool, _what("Let the project's own setup.py build the egg, in a copy.")
    ] = False
    atomic: Annotated[bool, _how("All or none: undo it on all nodes when one fails.")] = False
    dry_run: Annotated[bool, _how("Change nothing, and say what would be.")] = False
    timeout: Annotated[float, _how("Seconds that each node gets.", min=0.1, max=PATIENCE)] = 60.0
    retries: Annotated[
        int, _how("How often a node that does not answer is asked again.", min=0, max=20)
    ] = RETRIES
    no_progress: Annotated[bool, option("No progress.")] = False
    quiet: Quiet = False


def deploy(
    context: Context,
    asked: DeployOptions,
    targets: Annotated[
        list[str] | None, argument("TARGET", "Names of targets, or globs.", nodes)
    ] = None,
    all_: Annotated[bool, option("To all nodes.", "--all", "-a")] = False,
) -> int:
    """Build the project once, and upload it to nodes at once.

    TARGET is the name of a target in scrapy.cfg, or a glob in quotes. Without one
    it is the target `default`, which is the section [deploy], or the only one.
    A target is a url and a project: its settings module is that of the project's
    line in [settings], else the default one. A node that has this code already is left alone; one that cannot import it
    does not keep it. Exit code 0 when all have it, 3 when some do.

    Example: sdist deploy web1 'eu-*'
    Example: sdist deploy --all -p properties
    """
    if asked.build_egg is not None:
        if all_ or targets or asked.egg or asked.only_missing:
            raise ConfigError(
                "--build-egg sends nothing: leave out targets, --all, --egg and --only-missing."
            )
        settings = context.project.module_of(asked.project)
        return _write_egg(_built(context, asked, settings), asked.build_egg)
    if asked.egg is not None and (
        asked.only_missing or asked.include_dependencies or asked.use_setup_py
    ):
        raise ConfigError(
            "--egg is sent as it is: leave out --only-missing, --include-dependencies and --use-setup-py."
        )
    if all_ and targets:
        raise ConfigError(
            f"--all is all nodes, and {' '.join(targets)} some of them: give one of the two."
        )
    return _deploy(context, None if all_ else targets or _usual(context), asked)


def _usual(context: Context) -> list[str]:
    """Where it goes when no target is named."""
    names = [node.name for node in context.targets()]
    if DEFAULT not in names and len(names) > 1:
        raise ConfigError(
            f"There are {len(names)} targets, and none is called {DEFAULT!r}. Name some, or globs like 'eu-*'; for all"
            " of them: sdist deploy --all."
        )
    return [DEFAULT] if DEFAULT in names else names


@dataclass(frozen=True, kw_only=True)
class ProjectTargets:
    """The targets of projects that have one settings module, so that they get one egg."""

    project: str  #: Scrapyd's name of the project on the nodes whose targets name none
    settings_module: str
    nodes: tuple[Node, ...]  #: each once per project


def _by_project(
    context: Context, patterns: Sequence[str] | None, asked: DeployOptions
) -> list[ProjectTargets]:
    """Group the targets by their settings modules, in the order of the targets."""
    config = context.project
    nodes = context.targets(patterns)
    wanted = context.one_project(asked.project, distinct(nodes))
    if wanted is not None:
        nodes = distinct(replace(node, project=wanted) for node in nodes)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(config.module_of(node.project), []).append(node)
    found = []
    for module, group in groups.items():
        own = module == config.settings_module
        # Another module is that of a name in [settings], which each of these targets has.
        name = project_name(config, group, wanted) if own or wanted else str(group[0].project)
        once = {(node.url, node.project or name): node for node in group}
        found.append(
            ProjectTargets(project=name, settings_module=module, nodes=tuple(once.values()))
        )
    if len(found) > 1 and (asked.egg or asked.atomic):
        what = "an egg is one project's" if asked.egg else "--atomic is for one project"
        names = "; ".join(f"{names_of(one.nodes)}: {one.settings_module}" for one in found)
        raise ConfigError(
            f"These targets are for projects with settings modules of their own ({names}), and {what}. Nothing was"
            " sent. Name the targets of one of them: sdist deploy TARGET."
        )
    return found


def _deploy(context: Context, patterns: Sequence[str] | None, asked: DeployOptions) -> int:
    root = context.root
    groups = _by_project(context, patterns, asked)
    for version in filter(
        None, (asked.version, *(node.version for group in groups for node in group.nodes))
    ):
        check_version(version)
    # All are built before the first one is sent: one that cannot be built is refused before anything starts.
    packed = [_egg_for(context, group, asked) for group in groups]
    done = []
    for group, (egg, kept_name) in zip(groups, packed, strict=True):
        wish = _wish(root, group, kept_name, asked)
        if not asked.quiet:
            where_to = counted(len(distinct(group.nodes)), "node")
            say(
                f"{_origin(asked)} {group.project}, {len(egg.data) // 1024 + 1} KiB; asking {where_to} …"
            )
        progress = not (asked.no_progress or asked.quiet)
        result = roll_out(root, group.project, group.nodes, egg, wish, progress=progress)
        done.append(SentProject(project=group.project, result=result, wish=wish))
    _tell_projects(done, asked)
    return exit_code_of(*(one.result for one in done))


@dataclass(frozen=True, kw_only=True)
class SentProject:
    """What came of sending one project's egg."""

    project: str
    result: RollOut
    wish: RollOutRequest


def _tell_projects(done: Sequence[SentProject], asked: DeployOptions) -> None:
    """Tell of one project as ever; of several as one document, or one table after the other."""
    if not asked.as_json or len(done) == 1:
        for one in done:
            tell(one.result, one.project, one.wish, asked, quiet=asked.quiet)
        return
    rows = [node_row(entry, one.project) for one in done for entry in one.result.results]
    asked.document({"project": None, "version": None, "dry_run": asked.dry_run, "nodes": rows})
    for one in done:
        _tell_findings(one.result, one.wish, quiet=asked.quiet)


def _wish(
    root: Path, group: ProjectTargets, kept_name: str | None, asked: DeployOptions
) -> RollOutRequest:
    names = {node.name: kept_name or asked.version or node.version or "" for node in group.nodes}
    kinds = {label for label in names.values() if label in {"GIT", "HG"}}
    return RollOutRequest(
        label=describe(root, min(kinds)) if kinds else "",
        given={
            node: sanitised(label) for node, label in names.items() if label and label not in kinds
        },
        only_missing=asked.only_missing,
        atomic=asked.atomic,
        retries=asked.retries,
        dry_run=asked.dry_run,
        timeout=asked.timeout,
        dirty=not (asked.only_missing or asked.egg) and is_dirty(root),
    )


def _origin(asked: DeployOptions) -> str:
    """Where the egg of a project comes from."""
    if asked.egg is not None:
        return f"Took {asked.egg} for"
    return "Took the kept egg of" if asked.only_missing else "Built"


def _egg_for(
    context: Context, group: ProjectTargets, asked: DeployOptions
) -> tuple[Egg, str | None]:
    """The egg for these targets, and the name of its version if that is settled."""
    if asked.only_missing:
        saved = _last_sent(group.project, state_dir(context.root), asked.version)
        return saved.read(), saved.version
    if asked.egg is not None:
        return _given(asked.egg), None
    return _built(context, asked, group.settings_module), None


def _built(context: Context, asked: DeployOptions, settings: str) -> Egg:
    """Build the egg of the project with this settings module."""
    root, extra = context.root, dict[str, bytes]()
    with suppress(
        ConfigError
    ):  # an address that the settings compute: the crawl itself brings the code that it needs
        extra = redis_client(where(root))
    if asked.include_dependencies:
        extra.update(requirements.read_requirements(root))
    key = state_key(state_dir(root))
    return eggs.build(root, settings, key=key, requirements=extra, use_setup_py=asked.use_setup_py)


def _given(path: Path) -> Egg:
    """Read an egg that this program or another has built; ConfigError if Scrapyd would not take it for one."""
    try:
        return read_egg(path)
    except OSError as error:
        raise ConfigError(f"The egg {path} cannot be read: {error.strerror}.") from error


def _write_egg(egg: Egg, path: Path) -> int:
    """Write an egg, which may hold the project's key, for its owner only; gives the exit code."""
    try:
        write_file(path, egg.data)
    except OSError as error:
        raise ConfigError(f"The egg cannot be written to {path}: {error.strerror}.") from error
    say(
        f"Wrote {path}, {len(egg.data) // 1024 + 1} KiB. Send it with: sdist deploy --all --egg {path}"
    )
    return 0


def _last_sent(project: str, state: Path, version: str | None) -> SavedEgg:
    kept = kept_eggs(state, project)
    if version is not None:
        return choose(kept, version, None, folder=state / "eggs")
    if not kept:
        raise NothingMatched(
            f"No egg of the project {project} was sent from here yet, so there is none to send to those that lack it. "
            "Without --only-missing it is built: sdist deploy --all."
        )
    return kept[0]


def roll_out(
    root: Path,
    project: str,
    nodes: Sequence[Node],
    egg: Egg,
    wish: RollOutRequest,
    *,
    progress: bool,
) -> RollOut:
    """Send the egg, and draw how far it is; Ctrl-C says what is known by then, and is raised again."""
    try:
        with bar(len(nodes), shown=progress) as note:
            return ensure(nodes, project, egg, wish, state=state_dir(root), progress=note)
    except RollOutInterrupted as known:
        groups: dict[str, list[str]] = {}
        for name, step in known.steps.items():
            groups.setdefault(_AT_CTRL_C.get(step, "not known yet"), []).append(name)
        told = "; ".join(f"{words}: {', '.join(names)}" for words, names in groups.items())
        complain(
            f"Interrupted. The version {known.version} so far: {told}. A node that was being sent it goes on by itself."
            " See what they have with `sdist code versions`; `sdist deploy --all --only-missing` brings it to the rest."
        )
        raise
