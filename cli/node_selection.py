"""Which nodes a command is about, what their project is called, and what the store remembers of them."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
from contextlib import closing
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from scrapyd_dist.deploy.kept_eggs import kept_eggs

from scrapyd_dist.config import STATE_FOLDER, addresses_of, with_netrc
from scrapyd_dist.errors import ApiRefused, ConfigError, NodeError, NoNodeReachable, NothingMatched
from scrapyd_dist.nodes import Node, distinct
from scrapyd_dist.scheduling.worker_registry import earlier_workers
from scrapyd_dist.scrapyd.jobs import read_id

from .project_store import maybe_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Crawl, WorkerEntry
    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.errors import DistError

#: seconds that the project's settings may take to load
SETTINGS_TIMEOUT = 60


def nodes_of(project: ProjectConfig) -> tuple[Node, ...]:
    """The nodes, each once; empty when nothing names one and no local one runs.

    Raises:
        ConfigError: a name that is to be looked up has no address.
        StoreError: the store does not tell which nodes were added.
    """
    from scrapyd_dist.deploy import local_nodes

    listed = (*project.targets, *added(project.root))
    nodes = distinct(one for node in listed for one in (addresses_of(node) if node.lookup else (node,)))
    return nodes or local_nodes.running(project.root / STATE_FOLDER)


def unused_local(project: ProjectConfig) -> str:
    """A note on local nodes that run and get no work, since others are named; empty where there are none."""
    from scrapyd_dist.deploy import local_nodes
    from scrapyd_dist.deploy.local_nodes import USERNAME, list_path

    state = project.root / STATE_FOLDER
    urls = {node.url for node in (*project.targets, *added(project.root))}
    idle = [node for node in local_nodes.running(state) if urls and node.url not in urls]
    if not idle:
        return ""
    names = ", ".join(node.name for node in idle)
    return (
        f"Note: local nodes run that get no work ({names}): they are used only where scrapy.cfg and `sdist nodes add`"
        f" name no other. To use both, give each a section in scrapy.cfg, such as [deploy:{idle[0].name}] with url ="
        f" {idle[0].url}, username = {USERNAME} and its password, which is in {list_path(state)}; or stop them:"
        " sdist nodes down."
    )


def added(root: Path) -> tuple[Node, ...]:
    """The nodes that `sdist nodes add` put into the store."""
    store = maybe_store(root)
    if store is None:
        return ()
    with closing(store):
        return tuple(with_netrc(Node.parse(one.url, name=one.name)) for one in store.nodes() if one.url)


def no_nodes(project: ProjectConfig) -> ConfigError:
    """What to do about a project without nodes."""
    return ConfigError(
        f"{project.root / 'scrapy.cfg'} names no node, and no local one runs. Add a section such as [deploy:node1] "
        "with url = http://web1:6800/, or start nodes on this machine: sdist nodes up 3."
    )


def project_name(project: ProjectConfig, nodes: Sequence[Node], chosen: str | None) -> str:
    """Scrapyd's name of the project: chosen, else that of [deploy] or of all targets, else BOT_NAME.

    Raises:
        ConfigError: the settings module cannot be loaded.
    """
    known = chosen or project.project
    if known:
        return known
    names = [node.project for node in nodes if node.project]
    return names[0] if names and len(names) == len(nodes) else _bot_name(project.root)


def _bot_name(root: Path) -> str:
    # In a process of its own: only Scrapy knows how the settings come together, and the project's code runs.
    command = [sys.executable, "-m", "scrapy", "settings", "--get", "BOT_NAME"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=SETTINGS_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"The project's settings did not load within {SETTINGS_TIMEOUT} seconds. Name the project with -p, or by "
            "`project = NAME` in [deploy] of scrapy.cfg."
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return lines[-1]
    why = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1].rstrip(".")
    raise ConfigError(
        f"The project's name is its BOT_NAME, and the settings cannot be loaded: {why}. Correct them, or name the "
        "project with -p."
    )


def exit_code(total: int, errors: Sequence[DistError]) -> int:
    """The exit code of a command that asked all nodes: 0, 3 when some failed, else what kept all of them away."""
    if not errors:
        return 0
    if len(errors) < total:
        return 3
    # A node that answered and said no has more to tell than those that did not answer.
    told = [error for error in errors if isinstance(error, ApiRefused) or not isinstance(error, NodeError)]
    if told:
        return told[0].exit_code
    return 6 if any(error.exit_code == 6 for error in errors) else NoNodeReachable.exit_code


def no_answer(total: int, errors: Sequence[NodeError]) -> DistError | None:
    """What to raise where nothing can be said without an answer: why there is none, in one paragraph; else None."""
    if not errors or len(errors) < total:
        return None
    code, texts = exit_code(total, errors), list(dict.fromkeys(map(str, errors)))
    kind = next((type(error) for error in errors if error.exit_code == code), NoNodeReachable)
    return kind(" ".join(texts if len(texts) == 1 else ["No node answered.", *texts]))


def names_of(nodes: Iterable[Node]) -> str:
    return ", ".join(repr(node.name) if " " in node.name else node.name for node in nodes)


def quick_project(found: ProjectConfig, chosen: str | None = None) -> str | None:
    """Scrapyd's name of the project, where it can be told without running the project's code."""
    return chosen or found.project or _written_bot_name(found.root.joinpath(*found.settings_module.split(".")))


def _written_bot_name(module: Path) -> str | None:
    for file in (module.with_suffix(".py"), module / "__init__.py"):
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError):
            continue
        names = [
            one.value.value
            for one in tree.body
            if isinstance(one, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "BOT_NAME" for target in one.targets)
            and isinstance(one.value, ast.Constant)
        ]
        return names[-1] if names and isinstance(names[-1], str) else None
    return None


def chosen(project: ProjectConfig, patterns: Sequence[str] | None) -> tuple[Node, ...]:
    """The nodes that these names and globs mean, each once; None or none = all there are.

    Raises:
        ConfigError: there is no node at all.
        NothingMatched: a name or a glob means no node.
    """
    every = nodes_of(project)
    if not every:
        raise no_nodes(project)
    if not patterns:
        return every
    # two targets may have one url: each of their names will do
    named = (*(node for node in project.targets if not node.lookup), *(n for n in every if n not in project.targets))
    for pattern in patterns:
        if not any(fnmatchcase(node.name, pattern) for node in named):
            known = ", ".join(repr(node.name) if " " in node.name else node.name for node in named)
            close = difflib.get_close_matches(pattern, [node.name for node in named], 1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise NothingMatched(f"No target is called {pattern!r}. {hint}The targets are: {known}.")
    return distinct(node for node in named if any(fnmatchcase(node.name, pattern) for pattern in patterns))


def known_times(root: Path, nodes: Sequence[Node], project: str | None = None) -> dict[str, float]:
    """When versions were sent from here whose names do not tell it: name -> seconds since the epoch."""
    names = {name for name in (project, *(node.project for node in nodes)) if name}
    return {egg.version: egg.at for name in names for egg in kept_eggs(root / STATE_FOLDER, name)}


def version_lookup(project: ProjectConfig) -> Callable[[str], str | None]:
    """Tells the version of a job of one of the project's crawls by its id; None for every other job."""
    from contextlib import closing

    store = maybe_store(project.root)
    if store is None:
        return versions_by_job(())
    with closing(store):
        crawls = store.crawls()
        return versions_by_job(crawls, [worker for crawl in crawls for worker in store.workers(crawl.id)])


def versions_by_job(crawls: Iterable[Crawl], workers: Iterable[WorkerEntry] = ()) -> Callable[[str], str | None]:
    """The same, of these crawls: of attempts and rows, of workers, and of those that work in other projects."""
    versions: dict[str, str | None] = {}
    elsewhere = {worker.job: worker.version for worker in workers if worker.version}
    for crawl in crawls:
        # Of a crawl that went on with other code, a job may run either.
        versions[crawl.id] = None if crawl.options.get("earlier_versions") else crawl.version
        elsewhere |= {worker.job: worker.version for worker in earlier_workers(crawl.options) if worker.version}

    def version_of(job: str) -> str | None:
        ours = read_id(job)
        return None if ours is None else elsewhere.get(job) or versions.get(ours.crawl)

    return version_of


def must_name(patterns: Sequence[str] | None, command: str, otherwise: str) -> None:
    """Refuse a command without a selector.

    Raises:
        ConfigError: nothing was named.
    """
    if not patterns:
        raise ConfigError(f"Name the targets to {command}, or globs like 'eu-*'. {otherwise}")
