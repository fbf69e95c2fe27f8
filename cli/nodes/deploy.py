"""`sdist deploy`: one egg, built once, is sent to many nodes at the same time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from scrapyd_dist.deploy.requirements import store_client
from scrapyd_dist.deploy.rollout import (
    NodeResult,
    RollOut,
    RollOutInterrupted,
    RollOutRequest,
    Step,
    ensure,
)

from scrapyd_dist.config import state_dir, write_file
from scrapyd_dist.errors import ConfigError, DistError, NothingMatched
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.keys import state_key
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.nodes import Node, distinct_nodes, names_of
from scrapyd_dist.plurals import counted
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd.versions import check_version, sanitised

from ..context import Context
from ..options import PATIENCE, Project, Quiet, argument, nodes, option
from ..output import Output, complain, on_terminal, say

#: the last step of a node, but where that is undone
_DONE = {Step.PRESENT, Step.UPLOADED, Step.FAILED}
#: names in the line beside the bar
_SHOWN = 4
#: how often a node that does not answer is asked again
RETRIES = 2
DEFAULT = "default"  #: the name of the target that scrapy.cfg has as [deploy]
#: options under the headings of the help
_how = partial(option, panel="How it is sent")
_what = partial(option, panel="What is sent")
#: a node's last step -> its meaning after Ctrl-C
_AT_CTRL_C = {
    Step.UPLOADED: "has it",
    Step.PRESENT: "has it",
    Step.FAILED: "failed",
    Step.UNDONE: "had it, and it was deleted again",
    Step.ASKING: "was not sent it",
}


@contextmanager
def bar(nodes: int, *, shown: bool) -> Iterator[Callable[[Node, Step], None]]:
    """Give a function to call with each step of each node.

    On a terminal it draws a bar, elsewhere it says lines; without `shown` it does nothing.
    """
    if not shown:
        yield lambda _node, _step: None
    elif on_terminal():
        with _drawn_bar(nodes) as note:
            yield note
    else:
        yield _said_steps(nodes)


def _said_steps(nodes: int) -> Callable[[Node, Step], None]:
    """Return a function that says a line when a node has made its last step."""
    done = count(1)

    def note(node: Node, step: Step) -> None:
        """Say the step, if it is the last one."""
        if step is Step.UNDONE:
            say(f"{node.name} undone")
        elif step in _DONE:
            say(f"{next(done)} of {nodes}: {node.name} {step.value}")

    return note


@contextmanager
def _drawn_bar(nodes: int) -> Iterator[Callable[[Node, Step], None]]:
    """Give a function that draws how many nodes are done, and what the first others do."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )
    task = progress.add_task("", total=nodes)
    busy: dict[str, str] = {}  # name of a node -> its step

    def note(node: Node, step: Step) -> None:
        """Draw the step."""
        if step in _DONE or step is Step.UNDONE:
            busy.pop(node.name, None)
        else:
            busy[node.name] = step.value
        shown = list(busy.items())[:_SHOWN]
        words = ", ".join([f"{name} {doing}" for name, doing in shown])
        if len(busy) > _SHOWN:
            words += " …"
        progress.update(task, advance=step in _DONE, description=words)

    with progress:
        yield note


def print_result(
    result: RollOut, project: str, request: RollOutRequest, output: Output, *, quiet: bool
) -> None:
    """Print the document, or a table and what has to be known of it."""
    document = {
        "project": project,
        "version": result.version,
        "dry_run": request.dry_run,
        "nodes": [node_row(entry, project) for entry in result.results],
    }
    if output.as_json or not quiet:
        output.columns(document, "nodes", ("name", "state", "version", "spiders", "url"))
    _say_findings(result, request, quiet=quiet)


def _say_findings(result: RollOut, request: RollOutRequest, *, quiet: bool) -> None:
    for reason, failed in result.failures.items():
        complain(reason if len(failed) == 1 else f"{', '.join(failed)}: {reason}")
    if result.failures and result.ready:
        say(
            "The others have it. Put that right; then `sdist deploy --all --only-missing` brings "
            "it to the rest."
        )
    if len(result.spider_lists) > 1:
        _complain_of_spiders(result)
    _say_undone(result)
    if not quiet and not request.dry_run:
        _note_other_defaults(result)


def _complain_of_spiders(result: RollOut) -> None:
    """Say which nodes have which spiders, where these differ."""
    lists = []
    for spiders, names in result.spider_lists.items():
        found = ", ".join(spiders) or "none"
        lists.append(f"{', '.join(names)}: {found}")
    complain(
        f"The same version has different spiders on different nodes ({'; '.join(lists)}). Does its "
        "code look at its node?"
    )


def _say_undone(result: RollOut) -> None:
    undone = [entry.node.name for entry in result.results if entry.undone]
    if undone:
        say(f"Undone, since not every node could have it: {', '.join(undone)}.")
    for entry in result.results:
        if entry.stays:
            complain(f"{entry.node.name} was not undone: {entry.stays}.")


def _note_other_defaults(result: RollOut) -> None:
    """Say where a job without a version runs another one: Scrapyd runs what sorts last."""
    others: dict[str | None, list[str]] = {}
    for entry in result.ready:
        if entry.default not in {None, entry.version}:
            others.setdefault(entry.default, []).append(entry.node.name)
    for version, names in others.items():
        say(
            f"Note: on {', '.join(names)} Scrapyd sorts {version} behind this version, so jobs "
            "that name no version run that one. What sdist starts names its version."
        )


def exit_code_of(*results: RollOut) -> int:
    """Return 0 when all have it; 10 when a dry run would change something.

    Else the code is as for every command that asks all nodes. Several results are those of several
    projects.
    """
    total = 0
    errors: list[DistError] = []
    any_ready = False
    differ = False
    for result in results:
        any_ready = any_ready or bool(result.ready)
        differ = differ or len(result.spider_lists) > 1
        for entry in result.results:
            if entry.planned:
                return 10
            total += 1
            if entry.error is not None:
                errors.append(entry.error)
    code = answers_exit_code(total if any_ready else len(errors), errors)
    if not code and differ:
        return 3
    return code


def node_row(result: NodeResult, project: str) -> dict[str, Any]:
    """Return what `--json` says of a node; project: its name where the node's target has none."""
    known = result.error is None and not result.undone and bool(result.spiders or result.default)
    return {
        "name": result.node.name,
        "url": result.node.url,
        "project": result.node.project or project,
        "state": _state_of(result),
        "version": result.version,
        "default": result.default,
        "spiders": len(result.spiders) if known else None,
        "reason": result.reason or result.stays,
    }


def _state_of(result: NodeResult) -> str:
    if result.error:
        return "failed"
    if result.undone:
        return "undone"
    if result.planned:
        return "missing"
    if result.uploaded:
        return "uploaded"
    return "present"


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
    dry_run: Annotated[
        bool, _how("Change nothing, and say what would be; exit code 10 if there is something.")
    ] = False
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
    line in [settings], else the default one. A node that has this code already is
    left alone; one that cannot import it does not keep it. Exit code 0 when all
    have it, 3 when some do.

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
    _check_options(asked, targets, all_=all_)
    if all_:
        return _deploy(context, None, asked)
    return _deploy(context, targets or _usual(context), asked)


def _check_options(asked: DeployOptions, targets: Sequence[str] | None, *, all_: bool) -> None:
    """Refuse options of sending an egg that exclude each other."""
    builds = asked.only_missing or asked.include_dependencies or asked.use_setup_py
    if asked.egg is not None and builds:
        raise ConfigError(
            "--egg is sent as it is: leave out --only-missing, --include-dependencies and "
            "--use-setup-py."
        )
    if all_ and targets:
        raise ConfigError(
            f"--all is all nodes, and {' '.join(targets)} some of them: give one of the two."
        )


def _usual(context: Context) -> list[str]:
    """Return where it goes when no target is named."""
    names = [node.name for node in context.targets()]
    if DEFAULT in names:
        return [DEFAULT]
    if len(names) > 1:
        raise ConfigError(
            f"There are {len(names)} targets, and none is called {DEFAULT!r}. Name some, or globs "
            "like 'eu-*'; for all of them: sdist deploy --all."
        )
    return names


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
    wanted = context.one_project(asked.project, distinct_nodes(nodes))
    if wanted is not None:
        nodes = distinct_nodes(replace(node, project=wanted) for node in nodes)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(config.module_of(node.project), []).append(node)
    found = []
    for module, group in groups.items():
        if module == config.settings_module or wanted:
            name = project_name(config, group, wanted)
        else:
            # Another module is that of a name in [settings], which each of these targets has.
            name = str(group[0].project)
        once = {(node.url, node.project or name): node for node in group}
        found.append(
            ProjectTargets(project=name, settings_module=module, nodes=tuple(once.values()))
        )
    if len(found) > 1:
        _check_several(found, asked)
    return found


def _check_several(found: Sequence[ProjectTargets], asked: DeployOptions) -> None:
    """Refuse options that are for one project."""
    if asked.egg:
        reason = "an egg is one project's"
    elif asked.atomic:
        reason = "--atomic is for one project"
    else:
        return
    modules = [f"{names_of(group.nodes)}: {group.settings_module}" for group in found]
    raise ConfigError(
        "These targets are for projects with settings modules of their own "
        f"({'; '.join(modules)}), and {reason}. Nothing was sent. Name the targets of one of them: "
        "sdist deploy TARGET."
    )


def _deploy(context: Context, patterns: Sequence[str] | None, asked: DeployOptions) -> int:
    groups = _by_project(context, patterns, asked)
    _check_versions(groups, asked)
    # All are built before the first one is sent: one that cannot be built is refused before
    # anything starts.
    packed = [_egg_for(context, group, asked) for group in groups]
    done = []
    results = []
    for group, (egg, kept_name) in zip(groups, packed, strict=True):
        sent = _send(context.root, group, egg, kept_name, asked)
        done.append(sent)
        results.append(sent.result)
    _report_projects(done, asked)
    return exit_code_of(*results)


def _check_versions(groups: Sequence[ProjectTargets], asked: DeployOptions) -> None:
    versions = [asked.version]
    for group in groups:
        versions += [node.version for node in group.nodes]
    for version in filter(None, versions):
        check_version(version)


@dataclass(frozen=True, kw_only=True)
class SentProject:
    """What came of sending one project's egg."""

    project: str  #: Scrapyd's name of it
    result: RollOut
    request: RollOutRequest


def _send(
    root: Path, group: ProjectTargets, egg: Egg, kept_name: str | None, asked: DeployOptions
) -> SentProject:
    """Send a project's egg; kept_name: that of its version, if it is settled."""
    request = _request(root, group, kept_name, asked)
    if not asked.quiet:
        size = f"{len(egg.data) // 1024 + 1} KiB"
        where_to = counted(len(distinct_nodes(group.nodes)), "node")
        say(f"{_origin(asked)} {group.project}, {size}; asking {where_to} …")
    progress = not (asked.no_progress or asked.quiet)
    result = roll_out(root, group.project, group.nodes, egg, request, progress=progress)
    return SentProject(project=group.project, result=result, request=request)


def _report_projects(done: Sequence[SentProject], asked: DeployOptions) -> None:
    """Tell of one project as ever; of several as one document, or one table after the other."""
    if not asked.as_json or len(done) == 1:
        for sent in done:
            print_result(sent.result, sent.project, sent.request, asked, quiet=asked.quiet)
        return
    rows: list[dict[str, Any]] = []
    for sent in done:
        rows += [node_row(entry, sent.project) for entry in sent.result.results]
    asked.document({"project": None, "version": None, "dry_run": asked.dry_run, "nodes": rows})
    for sent in done:
        _say_findings(sent.result, sent.request, quiet=asked.quiet)


def _request(
    root: Path, group: ProjectTargets, kept_name: str | None, asked: DeployOptions
) -> RollOutRequest:
    kinds: set[str] = set()
    given: dict[str, str] = {}
    for node in group.nodes:
        label = kept_name or asked.version or node.version or ""
        if label in {"GIT", "HG"}:
            kinds.add(label)
        elif label:
            given[node.name] = sanitised(label)
    return RollOutRequest(
        label=describe(root, min(kinds)) if kinds else "",
        given=given,
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
    if asked.only_missing:
        return "Took the kept egg of"
    return "Built"


def _egg_for(
    context: Context, group: ProjectTargets, asked: DeployOptions
) -> tuple[Egg, str | None]:
    """Return the egg for these targets, and the name of its version if that is settled."""
    if asked.only_missing:
        saved = _last_sent(group.project, state_dir(context.root), asked.version)
        return saved.read(), saved.version
    if asked.egg is not None:
        return _given(asked.egg), None
    return _built(context, asked, group.settings_module), None


def _built(context: Context, asked: DeployOptions, settings: str) -> Egg:
    """Build the egg of the project with this settings module."""
    root = context.root
    extra: dict[str, bytes] = {}
    # An address that the settings compute: the crawl itself brings the code that it needs.
    with suppress(ConfigError):
        extra = store_client(find_store_address(root))
    if asked.include_dependencies:
        extra.update(requirements.read_requirements(root))
    key = state_key(state_dir(root))
    return eggs.build(root, settings, key=key, requirements=extra, use_setup_py=asked.use_setup_py)


def _given(path: Path) -> Egg:
    """Read an egg that this program or another has built; ConfigError if it is none for Scrapyd."""
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
        f"Wrote {path}, {len(egg.data) // 1024 + 1} KiB. Send it with: sdist deploy --all --egg "
        f"{path}"
    )
    return 0


def _last_sent(project: str, state: Path, version: str | None) -> SavedEgg:
    kept = kept_eggs(state, project)
    if version is not None:
        return choose(kept, version, None, folder=state / "eggs")
    if not kept:
        raise NothingMatched(
            f"No egg of the project {project} was sent from here yet, so there is none to send to "
            "those that lack it. Without --only-missing it is built: sdist deploy --all."
        )
    return kept[0]


def roll_out(
    root: Path,
    project: str,
    nodes: Sequence[Node],
    egg: Egg,
    request: RollOutRequest,
    *,
    progress: bool,
) -> RollOut:
    """Send the egg, and draw how far it is.

    Ctrl-C says what is known by then, and is raised again.
    """
    try:
        with bar(len(nodes), shown=progress) as note:
            return ensure(nodes, project, egg, request, state=state_dir(root), progress=note)
    except RollOutInterrupted as known:
        complain(
            f"Interrupted. The version {known.version} so far: {_steps_in_words(known.steps)}. A "
            "node that was being sent it goes on by itself. See what they have with `sdist code "
            "versions`; `sdist deploy --all --only-missing` brings it to the rest."
        )
        raise


def _steps_in_words(steps: Mapping[str, Step]) -> str:
    """Return which nodes have the egg, and which do not; steps: the last one of each node."""
    groups: dict[str, list[str]] = {}
    for name, step in steps.items():
        groups.setdefault(_AT_CTRL_C.get(step, "not known yet"), []).append(name)
    return "; ".join([f"{words}: {', '.join(names)}" for words, names in groups.items()])
