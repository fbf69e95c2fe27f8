"""Asks all nodes concurrently for their versions, jobs and spiders, without changing anything.

Scrapyd names the version of pending jobs only; that of a running job is known from its id, or unknown.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.errors import DistError, NodeError, NothingMatched
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.jobs import content_of
from scrapyd_dist.scrapyd.versions import behind, current, hash_in, is_crawls, sanitised, told_content
from scrapyd_dist.transports.requests import RequestsTransport

from .rollout import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Job
    from scrapyd_dist.transports import Sender

T = TypeVar("T")

#: timeout of each call in seconds; a node does not answer while it reads an egg
TIMEOUT = 15.0


@dataclass(frozen=True, kw_only=True)
class NodeVersions:
    """Versions and jobs of a node."""

    node: Node
    #: the project's name on the node
    project: str
    #: versions of the project, in Scrapyd's order
    versions: tuple[str, ...] = ()
    #: running and pending jobs of the project
    jobs: tuple[Job, ...] = ()
    error: NodeError | None = None

    @property
    def default(self) -> str | None:
        """The version that a job runs by default."""
        return self.versions[-1] if self.versions else None


@dataclass(frozen=True, kw_only=True)
class VersionUse:
    """The versions of a node that jobs use."""

    #: version -> ids of jobs
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: ids of running jobs whose version is unknown
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpiderList:
    """The spiders of a version on a node."""

    node: Node
    version: str | None = None
    spiders: tuple[str, ...] = ()
    error: DistError | None = None


def look(
    nodes: Sequence[Node], project: str, *, timeout: float = TIMEOUT, transport: Sender | None = None
) -> tuple[NodeVersions, ...]:
    """Ask every node for its versions of the project and for its jobs.

    Args:
        nodes: the nodes, each asked in its own thread, at most 64 at once.
        project: the project's name on the nodes, unless a node has its own.
        timeout: seconds for each call.
        transport: sends calls; by default a `RequestsTransport`.
    """

    def one(sender: Sender, node: Node) -> NodeVersions:
        name = node.project or project
        try:
            versions = sender.send(node, api.listversions(name), timeout=timeout)
            jobs = sender.send(node, api.listjobs(name), timeout=timeout) if versions else None
        except NodeError as error:
            return NodeVersions(node=node, project=name, error=error)
        alive = jobs.running + jobs.pending if jobs else ()
        return NodeVersions(node=node, project=name, versions=versions, jobs=alive)

    return _side_by_side(nodes, one, transport)


def spiders(
    nodes: Sequence[Node],
    project: str,
    *,
    version: str | None = None,
    known: Mapping[str, float] | None = None,
    timeout: float = api.SLOW_TIMEOUT,
    transport: Sender | None = None,
) -> tuple[SpiderList, ...]:
    """Ask every node for its spiders.

    Args:
        nodes: see `look`.
        project: see `look`.
        version: the version; None for the newest deployment.
        known: upload times of versions whose names have none, seconds since the epoch.
        timeout: seconds for each call; the first call for a version makes the node import the project.
        transport: see `look`.
    """

    def one(sender: Sender, node: Node) -> SpiderList:
        name = node.project or project
        try:
            there = sender.send(node, api.listversions(name), timeout=timeout)
            wanted = _one_of(there, version, name, known)
            found = sender.send(node, api.listspiders(name, wanted), timeout=timeout)
        except DistError as error:
            return SpiderList(node=node, version=version, error=error)
        return SpiderList(node=node, version=wanted, spiders=tuple(sorted(found)))

    return _side_by_side(nodes, one, transport)


def _one_of(there: Sequence[str], version: str | None, project: str, known: Mapping[str, float] | None) -> str:
    if not there:
        raise NothingMatched(f"There is no version of the project {project}. Deploy it first: sdist deploy-all.")
    if version is None:
        return current(there, known) or there[-1]
    if sanitised(version) not in there:
        raise NothingMatched(f"There is no version {version} of the project {project}. It has: {', '.join(there)}.")
    return sanitised(version)


def in_use(seen: NodeVersions, version_of: Callable[[str], str | None]) -> VersionUse:
    """Return the versions that the jobs of a node need.

    Args:
        seen: the node.
        version_of: returns the version of a crawl's job by its id, None for other jobs.
    """
    jobs: dict[str, tuple[str, ...]] = {}
    unknown = []
    for job in seen.jobs:
        needed = _needed(job, seen, version_of)
        if not needed:
            unknown.append(job.id)
        for version in needed:
            jobs[version] = (*jobs.get(version, ()), job.id)
    return VersionUse(jobs=jobs, unknown=tuple(unknown))


def _needed(job: Job, seen: NodeVersions, version_of: Callable[[str], str | None]) -> list[str]:
    """Return the versions of a node that a job may run; empty if unknown."""
    version = job.version or version_of(job.id)
    if version is not None:
        return [sanitised(version)]
    content = content_of(job.id)
    if content is not None:
        # The node may have the same code under several names.
        return [name for name in seen.versions if hash_in(name) == content]
    return [seen.default] if job.state is api.JobState.PENDING and seen.default else []


def differences(seen: Iterable[NodeVersions], known: Mapping[str, float] | None = None) -> list[str]:
    """Return a sentence for each reason why the default version is not the same newest code on all nodes.

    Args:
        seen: the nodes.
        known: upload times of versions whose names have none, seconds since the epoch.
    """
    answered = [entry for entry in seen if entry.error is None]
    found = []
    defaults = Counter(told_content(entry.default) for entry in answered)
    if len(defaults) > 1:
        common = defaults.most_common(1)[0][0]
        groups: dict[str, list[str]] = {}
        for entry in answered:
            if told_content(entry.default) != common:
                groups.setdefault(entry.default or "no version at all", []).append(entry.node.name)
        names = (
            next(entry.default for entry in answered if told_content(entry.default) == common) or "no version at all"
        )
        found += [f"{', '.join(where)} would run {what}, most nodes {names}." for what, where in groups.items()]
    wrong: dict[str, list[str]] = {}
    for entry in answered:
        if why := behind(entry.versions, known):
            wrong.setdefault(f"{entry.default}, which Scrapyd sorts behind {why}", []).append(entry.node.name)
    return found + [f"{', '.join(where)} would run {why}." for why, where in wrong.items()]


def only_crawls(seen: Iterable[NodeVersions]) -> list[str]:
    """Return a sentence for each default version that a crawl brought."""
    where: dict[str, list[str]] = {}
    for entry in seen:
        if entry.default is not None and is_crawls(entry.default):
            where.setdefault(entry.default, []).append(entry.node.name)
    return [
        f"{', '.join(names)} would run {version}, which a crawl brought: nothing was deployed there."
        for version, names in where.items()
    ]


def _side_by_side(nodes: Sequence[Node], ask: Callable[[Sender, Node], T], transport: Sender | None) -> tuple[T, ...]:
    if not nodes:
        return ()
    with closing(RequestsTransport()) as own, threads(len(nodes)) as pool:
        return tuple(pool.map(lambda node: ask(transport or own, node), nodes))
