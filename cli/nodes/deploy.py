"""`sdist deploy`: one egg, built once, is sent to many nodes at the same time."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.deploy import egg as eggs
from scrapyd_dist.deploy import requirements
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.kept_eggs import SavedEgg, choose, kept_eggs, read_egg
from scrapyd_dist.deploy.project_files import describe, is_dirty
from scrapyd_dist.deploy.requirements import store_client
from scrapyd_dist.deploy.rollout import (
    RollOut,
    RollOutRequest,
)

from scrapyd_dist.config import state_dir, write_file
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.keys import state_key
from scrapyd_dist.nodes import Node, distinct_nodes, names_of
from scrapyd_dist.plurals import counted
from scrapyd_dist.project_names import project_name
from scrapyd_dist.scrapyd.versions import check_version, sanitised

from ..context import Context
from ..options import PATIENCE, Project, Quiet, argument, nodes, option
from ..output import Output, say
from .roll_out_screen import node_row, print_result, roll_out, roll_out_exit_code, say_findings

#: how often a node that does not answer is asked again
RETRIES = 2
DEFAULT = "default"  #: the name of the target that scrapy.cfg has as [deploy]
#: options under the headings of the help
_how = partial(option, panel="How it is sent")
_what = partial(option, panel="What is sent")


@dataclass(frozen=True, kw_only=True)
class DeployOptions(Output):
    """Its options; a field is a parameter of the command."""

    project: Project = None
    version: Annotated[
        str | None,
        _what(
            "Name of the version; GIT or HG adds the commit's name to time and content hash.",
            "--version",
            "-v",
            metavar="NAME",
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
    left alone, unless --version names it; one that cannot import it does not keep
    it. Exit code 0 when all have it, 3 when some do.

    Example: sdist deploy web1 'eu-*'
    Example: sdist deploy --all -p properties
    """
    if asked.build_egg is not None:
        if all_ or targets or asked.egg or asked.only_missing or asked.version:
            raise ConfigError(
                "--build-egg sends nothing: leave out targets, --all, --egg, --only-missing and"
                " --version, which names it when it is sent."
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
    return roll_out_exit_code(*results)


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
        say_findings(sent.result, sent.request)


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
        is_dirty=lambda: not (asked.only_missing or asked.egg) and is_dirty(root),
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
