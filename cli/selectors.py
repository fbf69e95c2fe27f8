"""Which nodes an option means: names and globs of targets; rule: no selector never means all."""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from scrapyd_dist.errors import ConfigError, NothingMatched

from .candidates import nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from scrapyd_dist.batches import Crawl, WorkerEntry
    from scrapyd_dist.config import ProjectConfig
    from scrapyd_dist.nodes import Node

Project = Annotated[
    Optional[str],
    typer.Option("--project", "-p", help="Scrapyd's name of the project: \\[deploy] project, else BOT_NAME."),
]
Nodes = Annotated[
    Optional[list[str]],
    typer.Option(
        "--node", metavar="NAME", autocompletion=nodes, help="Only these nodes: a target's name or a glob; repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")]


def chosen(project: ProjectConfig, patterns: Sequence[str] | None) -> tuple[Node, ...]:
    """The nodes that these names and globs mean, each once; None or none = all there are.

    Raises:
        ConfigError: there is no node at all.
        NothingMatched: a name or a glob means no node.
    """
    from scrapyd_dist.nodes import distinct

    from .target_nodes import no_nodes, nodes_of

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


def among(project: ProjectConfig, patterns: Sequence[str] | None, *, everyone: bool, verb: str) -> tuple[Node, ...]:
    """The nodes that these names and globs mean, or all of them where that was said in so many words.

    Raises:
        ConfigError: neither was said, or both.
        NothingMatched: a name or a glob means no node.
    """
    if everyone and patterns:
        raise ConfigError(f"--all, and names of nodes to {verb}: one of the two has to go.")
    if not everyone:
        must_name(patterns, verb, "For all of them: --all.")
    return chosen(project, patterns)


def called(nodes: Sequence[Node], project: ProjectConfig, name: str | None) -> tuple[str, tuple[Node, ...]]:
    """The project's name on the nodes, and the nodes; a name that was asked for goes before their own."""
    from dataclasses import replace

    from .target_nodes import project_name

    found = project_name(project, nodes, name)
    return found, tuple(replace(node, project=name) for node in nodes) if name is not None else tuple(nodes)


def known_times(root: Path, nodes: Sequence[Node], project: str | None = None) -> dict[str, float]:
    """When versions were sent from here whose names do not tell it: name -> seconds since the epoch."""
    from scrapyd_dist.deploy.kept_eggs import kept_eggs

    from scrapyd_dist.config import STATE_FOLDER

    names = {name for name in (project, *(node.project for node in nodes)) if name}
    return {egg.version: egg.at for name in names for egg in kept_eggs(root / STATE_FOLDER, name)}


def version_lookup(project: ProjectConfig) -> Callable[[str], str | None]:
    """Tells the version of a job of one of the project's crawls by its id; None for every other job."""
    from contextlib import closing

    from .project_store import maybe_store

    store = maybe_store(project.root)
    if store is None:
        return versions_by_job(())
    with closing(store):
        crawls = store.crawls()
        return versions_by_job(crawls, [worker for crawl in crawls for worker in store.workers(crawl.id)])


def versions_by_job(crawls: Iterable[Crawl], workers: Iterable[WorkerEntry] = ()) -> Callable[[str], str | None]:
    """The same, of these crawls: of attempts and rows, of workers, and of those that work in other projects."""
    from scrapyd_dist.scheduling.worker_registry import earlier_workers
    from scrapyd_dist.scrapyd.jobs import read_id

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
