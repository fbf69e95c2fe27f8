"""The versions on all nodes, the jobs that use them and their spiders; and which old versions may be deleted.

Scrapyd names the version of pending jobs only; that of a running job is known from its id, or unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scrapyd_dist.errors import ApiRefused, DistError, NodeError, NothingMatched
from scrapyd_dist.nodes import Node, names_by
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Job
from scrapyd_dist.scrapyd.jobs import content_of
from scrapyd_dist.scrapyd.versions import (
    behind,
    by_time,
    current,
    hash_in,
    is_crawls,
    sanitised,
    told_content,
)
from scrapyd_dist.transports import Sender, thread_pool
from scrapyd_dist.transports.requests import RequestsTransport

from .rollout import NodeResult

T = TypeVar("T")
N = TypeVar("N")
#: the version of a crawl's job by its id, None if unknown
VersionOf = Callable[[str], str | None]


def _on_all(nodes: Sequence[N], call: Callable[[Sender, N], T]) -> tuple[T, ...]:
    sender = RequestsTransport()
    with thread_pool(len(nodes)) as pool:
        return tuple(pool.map(lambda node: call(sender, node), nodes))


@dataclass(frozen=True, kw_only=True)
class NodeVersions:
    node: Node
    project: str  #: the project's name on the node
    versions: tuple[str, ...] = ()  #: versions of the project, in Scrapyd's order
    jobs: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  #: version -> ids of jobs that need it
    unknown: tuple[str, ...] = ()  #: ids of running jobs whose version is unknown
    old: tuple[str, ...] = ()  #: versions to delete, or those that were deleted
    error: NodeError | None = None

    @property
    def default(self) -> str | None:
        """The version that a job runs by default."""
        return self.versions[-1] if self.versions else None


def look(
    nodes: Sequence[Node],
    project: str,
    version_of: VersionOf | None = None,
    *,
    timeout: float = api.TIMEOUT,
) -> tuple[NodeVersions, ...]:
    """Ask every node for its versions of the project, whose name a node may have otherwise, and for the jobs on them.

    `version_of` knows the version of a crawl's job, by its id; without it, no jobs are asked for. Each node is asked in
    a thread of its own, at most 64 at once; `timeout` is that of each call, in seconds.
    """
    return _on_all(
        nodes,
        lambda sender, node: _look(sender, node, node.project or project, version_of, timeout),
    )


def _look(
    sender: Sender, node: Node, project: str, version_of: VersionOf | None, timeout: float
) -> NodeVersions:
    seen = NodeVersions(node=node, project=project)
    try:
        seen = replace(seen, versions=sender.send(node, api.listversions(project), timeout=timeout))
        if not seen.versions or version_of is None:
            return seen
        jobs = sender.send(node, api.listjobs(project), timeout=timeout)
    except NodeError as error:
        return replace(seen, versions=(), error=error)
    return in_use(seen, jobs.running + jobs.pending, version_of)


def spiders(
    nodes: Sequence[Node],
    project: str,
    *,
    version: str | None = None,
    known: Mapping[str, float] | None = None,
    timeout: float = api.SLOW_TIMEOUT,
) -> tuple[NodeResult, ...]:
    """Ask every node for the spiders of a version, by default of its newest deployment; see `look`.

    `known` are upload times of versions whose names have none. The first call for a version makes the node import the
    project.
    """

    def one(sender: Sender, node: Node) -> NodeResult:
        name = node.project or project
        try:
            there = sender.send(node, api.listversions(name), timeout=timeout)
            if not there:
                raise NothingMatched(
                    f"There is no version of the project {name}. Deploy it first: sdist deploy --all."
                )
            wanted = (
                sanitised(version) if version is not None else current(there, known) or there[-1]
            )
            if wanted not in there:
                shown = ", ".join(there)
                raise NothingMatched(
                    f"There is no version {version} of the project {name}. It has: {shown}."
                )
            found = sender.send(node, api.listspiders(name, wanted), timeout=timeout)
        except DistError as error:
            return NodeResult(node=node, version=version, error=error)
        return NodeResult(node=node, version=wanted, spiders=tuple(sorted(found)))

    return _on_all(nodes, one)


def in_use(seen: NodeVersions, running: Iterable[Job], version_of: VersionOf) -> NodeVersions:
    """Add which versions of the node its jobs need."""
    jobs: dict[str, tuple[str, ...]] = {}
    unknown = []
    for job in running:
        needed = _needed(job, seen, version_of)
        if not needed:
            unknown.append(job.id)
        for version in needed:
            jobs[version] = (*jobs.get(version, ()), job.id)
    return replace(seen, jobs=jobs, unknown=tuple(unknown))


def _needed(job: Job, seen: NodeVersions, version_of: VersionOf) -> list[str]:
    """Return the versions of a node that a job may run; empty if unknown."""
    version = job.version or version_of(job.id)
    if version is not None:
        return [sanitised(version)]
    content = content_of(job.id)
    if content is not None:
        # The node may have the same code under several names.
        return [name for name in seen.versions if hash_in(name) == content]
    return [seen.default] if job.state is api.JobState.PENDING and seen.default else []


def differences(
    seen: Iterable[NodeVersions], known: Mapping[str, float] | None = None
) -> list[str]:
    """Return a sentence for each reason why the default version is not the same newest code on all nodes.

    `known` are upload times of versions whose names have none, in seconds since the epoch.
    """
    answered = [entry for entry in seen if entry.error is None]
    contents = [told_content(entry.default) for entry in answered]
    common = max(contents, key=contents.count, default=None)
    usual = next(
        (entry.default for entry in answered if told_content(entry.default) == common), None
    )
    other = (
        (
            f"{entry.default or 'no version at all'}, most nodes {usual or 'no version at all'}",
            entry.node,
        )
        for entry, content in zip(answered, contents, strict=True)
        if content != common
    )
    wrong = (
        (f"{entry.default}, which Scrapyd sorts behind {why}", entry.node)
        for entry in answered
        if (why := behind(entry.versions, known))
    )
    return [
        f"{', '.join(names)} would run {what}."
        for what, names in names_by([*other, *wrong]).items()
    ]


def only_crawls(seen: Iterable[NodeVersions]) -> list[str]:
    """Return a sentence for each default version that a crawl brought."""
    brought = names_by(
        (one.default, one.node)
        for one in seen
        if one.default is not None and is_crawls(one.default)
    )
    return [
        f"{', '.join(names)} would run {version}, which a crawl brought: nothing was deployed there."
        for version, names in brought.items()
    ]


def plan(seen: NodeVersions, keep: int, known: Mapping[str, float] | None = None) -> NodeVersions:
    """Choose the old versions: all except the newest `keep`, those in use, the newest deployment, the default.

    Of the jobs, those stay because of which an old version is kept. For `known` see `differences`.
    """
    stay = {*by_time(seen.versions, known)[-keep:], current(seen.versions, known), seen.default}
    old = [name for name in seen.versions if name not in stay]
    if not old:
        return replace(seen, jobs={}, unknown=())
    if seen.unknown:
        return replace(seen, jobs={})  # a running job may still import from any of them
    held = {name: jobs for name, jobs in seen.jobs.items() if name in old}
    return replace(seen, jobs=held, old=tuple(name for name in old if name not in held))


def delete(
    plans: Sequence[NodeVersions], version_of: VersionOf, *, timeout: float = api.TIMEOUT
) -> tuple[NodeVersions, ...]:
    """Delete the old versions from all nodes concurrently, except those that have come into use since."""

    def one(sender: Sender, entry: NodeVersions) -> NodeVersions:
        if entry.error is not None or not entry.old:
            return entry
        now = _look(sender, entry.node, entry.project, version_of, timeout)
        if now.error is not None or now.unknown:
            return replace(entry, old=(), unknown=now.unknown, error=now.error)
        gone: list[str] = []
        for name in entry.old:
            if name in now.jobs or name == now.default or name not in now.versions:
                continue
            try:
                sender.send(entry.node, api.delversion(entry.project, name), timeout=timeout)
            except ApiRefused:
                continue  # it was deleted in the meantime
            except NodeError as error:
                return replace(entry, old=tuple(gone), error=error)
            gone.append(name)
        return replace(entry, old=tuple(gone))

    return _on_all(plans, one)
