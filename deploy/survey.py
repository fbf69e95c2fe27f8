"""What the nodes have and run, asked of all at the same time; rule: nothing here changes a node.

Scrapyd names the version of a waiting job only. Of a running one it is known from the job's id, or not at all.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.errors import DistError, NodeError, NothingMatched
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.jobids import content_of
from scrapyd_dist.scrapyd.versions import behind, current, hash_in, is_crawls, sanitised, told_content
from scrapyd_dist.transports.requests import RequestsTransport

from .side_by_side import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.api import Job
    from scrapyd_dist.transports import Sender

T = TypeVar("T")

#: seconds for each call; a node that reads an egg answers nobody meanwhile
TIMEOUT = 15.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One node, as it answered."""

    node: Node
    #: the project's name there
    project: str
    #: in Scrapyd's order
    versions: tuple[str, ...] = ()
    #: the jobs of the project that run or wait
    jobs: tuple[Job, ...] = ()
    error: NodeError | None = None

    @property
    def default(self) -> str | None:
        """What a job runs that names no version."""
        return self.versions[-1] if self.versions else None


@dataclass(frozen=True, kw_only=True)
class Use:
    """Who uses which version of one node."""

    #: version -> ids of jobs
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: ids of running jobs whose version nobody knows
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SpiderList:
    """The spiders of one version on one node."""

    node: Node
    version: str | None = None
    spiders: tuple[str, ...] = ()
    error: DistError | None = None


def look(
    nodes: Sequence[Node], project: str, *, timeout: float = TIMEOUT, transport: Sender | None = None
) -> tuple[Seen, ...]:
    """Ask every node for its versions of the project and for its jobs.

    Args:
        nodes: each is asked in a thread of its own, at most 64 at once.
        project: a node's own `project` goes before it.
        timeout: seconds for each call.
        transport: what sends; by default one of requests.
    """

    def one(sender: Sender, node: Node) -> Seen:
        name = node.project or project
        try:
            versions = sender.send(node, api.listversions(name), timeout=timeout)
            jobs = sender.send(node, api.listjobs(name), timeout=timeout) if versions else None
        except NodeError as error:
            return Seen(node=node, project=name, error=error)
        alive = jobs.running + jobs.pending if jobs else ()
        return Seen(node=node, project=name, versions=versions, jobs=alive)

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
        nodes: as for `look`.
        project: as for `look`.
        version: of this version; None = of the newest deployment.
        known: when versions were sent whose names do not tell it, seconds since the epoch.
        timeout: seconds for each call; the node imports the project when it is asked for the first time.
        transport: as for `look`.
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


def in_use(seen: Seen, version_of: Callable[[str], str | None]) -> Use:
    """Which versions the jobs of a node need.

    Args:
        seen: the node.
        version_of: gives the version of a job of ours by its id, None for other jobs.
    """
    jobs: dict[str, tuple[str, ...]] = {}
    unknown = []
    for job in seen.jobs:
        needed = _needed(job, seen, version_of)
        if not needed:
            unknown.append(job.id)
        for version in needed:
            jobs[version] = (*jobs.get(version, ()), job.id)
    return Use(jobs=jobs, unknown=tuple(unknown))


def _needed(job: Job, seen: Seen, version_of: Callable[[str], str | None]) -> list[str]:
    """The versions of a node that a job may run; none = nobody knows."""
    version = job.version or version_of(job.id)
    if version is not None:
        return [sanitised(version)]
    content = content_of(job.id)
    if content is not None:
        # The same code may be there under several names.
        return [name for name in seen.versions if hash_in(name) == content]
    return [seen.default] if job.state is api.JobState.PENDING and seen.default else []


def differences(seen: Iterable[Seen], known: Mapping[str, float] | None = None) -> list[str]:
    """Why jobs that name no version would not run the same newest code everywhere: a sentence for each cause.

    Args:
        seen: the nodes.
        known: when versions were sent whose names do not tell it, seconds since the epoch.
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


def only_crawls(seen: Iterable[Seen]) -> list[str]:
    """Where jobs that name no version would run what a crawl brought: a sentence for each such version."""
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
