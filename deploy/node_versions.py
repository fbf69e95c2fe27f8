"""Lists the versions on all nodes, the jobs that use them and their spiders; deletes old versions.

Scrapyd names the version of pending jobs only; that of a running job is known from its id, or
unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scrapyd_dist.errors import ApiRefused, DistError, NodeError, NothingMatched
from scrapyd_dist.nodes import Node, group_names
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Job
from scrapyd_dist.scrapyd.jobs import content_of
from scrapyd_dist.scrapyd.versions import (
    behind,
    by_time,
    content_or_name,
    current,
    hash_in,
    is_crawls,
    resolve_version,
    sanitised,
)
from scrapyd_dist.transports import Sender, thread_pool
from scrapyd_dist.transports.requests import RequestsTransport

from .rollout import NodeResult

T = TypeVar("T")
N = TypeVar("N")
#: the version of a crawl's job by its id, None if unknown
VersionOf = Callable[[str], str | None]


def _on_all(nodes: Sequence[N], call: Callable[[Sender, N], T]) -> tuple[T, ...]:
    """Return the result of a call for each node; each has a thread, at most 64 run at once."""
    sender = RequestsTransport()
    with thread_pool(len(nodes)) as pool:
        return tuple(pool.map(lambda node: call(sender, node), nodes))


@dataclass(frozen=True, kw_only=True)
class NodeVersions:
    """Lists the versions of a project on a node, and the jobs that need them."""

    node: Node
    project: str  #: the project's name on the node
    versions: tuple[str, ...] = ()  #: versions of the project, in Scrapyd's order
    #: version -> ids of jobs that need it
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()  #: ids of running jobs whose version is unknown
    old: tuple[str, ...] = ()  #: versions to delete, or those that were deleted
    error: NodeError | None = None

    @property
    def default(self) -> str | None:
        """Return the version that a job runs by default."""
        return self.versions[-1] if self.versions else None


def list_versions(
    nodes: Sequence[Node],
    project: str,
    version_of: VersionOf | None = None,
    *,
    timeout: float = api.TIMEOUT,
) -> tuple[NodeVersions, ...]:
    """Ask every node for its versions of the project, and for the jobs on them.

    A node may have another name for the project. `version_of` knows the version of a crawl's job,
    by its id; without it, no jobs are asked for. Each node is asked in a thread of its own, at most
    64 at once; `timeout` is that of each call, in seconds.
    """

    def read(sender: Sender, node: Node) -> NodeVersions:
        """Ask one node."""
        return _read_versions(sender, node, node.project or project, version_of, timeout)

    return _on_all(nodes, read)


def _read_versions(
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

    `known` are upload times of versions whose names have none. The first call for a version makes
    the node import the project.
    """

    def read(sender: Sender, node: Node) -> NodeResult:
        """Ask one node."""
        name = node.project or project
        try:
            present = sender.send(node, api.listversions(name), timeout=timeout)
            chosen = _version_to_ask(name, version, present, known)
            found = sender.send(node, api.listspiders(name, chosen), timeout=timeout)
        except DistError as error:
            return NodeResult(node=node, version=version, error=error)
        return NodeResult(node=node, version=chosen, spiders=tuple(sorted(found)))

    return _on_all(nodes, read)


def _version_to_ask(
    project: str, version: str | None, present: Sequence[str], known: Mapping[str, float] | None
) -> str:
    """Return this version, else the current one, of those on the node.

    `version` may be how its name or its content hash begins. Raises NothingMatched if the node
    lacks it, or has none.
    """
    if not present:
        raise NothingMatched(
            f"There is no version of the project {project}. Deploy it first: sdist deploy --all."
        )
    if version is None:
        return current(present, known) or present[-1]
    return resolve_version(version, present, project)[0]


def in_use(seen: NodeVersions, running: Iterable[Job], version_of: VersionOf) -> NodeVersions:
    """Return the versions of a node with the jobs that need them."""
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
    if job.state is api.JobState.PENDING and seen.default:
        return [seen.default]
    return []


def differences(
    seen: Iterable[NodeVersions], known: Mapping[str, float] | None = None
) -> list[str]:
    """Return a sentence for each reason why the default is not the same newest code on all nodes.

    `known` are upload times of versions whose names have none, in seconds since the epoch.
    """
    answered = [entry for entry in seen if entry.error is None]
    reasons = _unusual_defaults(answered) + _wrongly_sorted(answered, known)
    return _sentences(reasons)


def _sentences(reasons: Iterable[tuple[str, Node]]) -> list[str]:
    """Return a sentence for each reason, which names its nodes."""
    return [f"{', '.join(names)} would run {what}." for what, names in group_names(reasons).items()]


def _unusual_defaults(answered: Sequence[NodeVersions]) -> list[tuple[str, Node]]:
    """Return the nodes whose default has other code than most, each with what it has."""
    contents = [content_or_name(entry.default) for entry in answered]
    common = max(contents, key=contents.count, default=None)
    usual: str | None = None
    if answered:
        usual = answered[contents.index(common)].default
    unusual = []
    for entry, content in zip(answered, contents, strict=True):
        if content != common:
            default = entry.default or "no version at all"
            what = f"{default}, others {usual or 'no version at all'}"
            unusual.append((what, entry.node))
    return unusual


def _wrongly_sorted(
    answered: Sequence[NodeVersions], known: Mapping[str, float] | None
) -> list[tuple[str, Node]]:
    """Return the nodes whose default is not their newest version, each with what it has."""
    wrong = []
    for entry in answered:
        why = behind(entry.versions, known)
        if why:
            wrong.append((f"{entry.default}, which Scrapyd sorts behind {why}", entry.node))
    return wrong


def only_crawls(seen: Iterable[NodeVersions]) -> list[str]:
    """Return a sentence for each default version that a crawl brought."""
    brought = []
    for entry in seen:
        if entry.default is not None and is_crawls(entry.default):
            what = f"{entry.default}, which a crawl brought: nothing was deployed there"
            brought.append((what, entry.node))
    return _sentences(brought)


def plan(seen: NodeVersions, keep: int, known: Mapping[str, float] | None = None) -> NodeVersions:
    """Choose the old versions.

    These are all except the newest `keep`, those in use, the newest deployment, and the default. Of
    the jobs, those stay because of which an old version is kept. For `known` see `differences`.
    """
    stay = {*by_time(seen.versions, known)[-keep:], current(seen.versions, known), seen.default}
    old = [name for name in seen.versions if name not in stay]
    if not old:
        return replace(seen, jobs={}, unknown=())
    if seen.unknown:
        return replace(seen, jobs={})  # a running job may still import from any of them
    held = {name: jobs for name, jobs in seen.jobs.items() if name in old}
    unused = [name for name in old if name not in held]
    return replace(seen, jobs=held, old=tuple(unused))


def delete(
    plans: Sequence[NodeVersions], version_of: VersionOf, *, timeout: float = api.TIMEOUT
) -> tuple[NodeVersions, ...]:
    """Delete the old versions from all nodes, except those that have come into use since.

    Each node has a thread of its own, at most 64 run at once.
    """

    def delete_old(sender: Sender, entry: NodeVersions) -> NodeVersions:
        """Delete the old versions from one node."""
        if entry.error is not None or not entry.old:
            return entry
        now = _read_versions(sender, entry.node, entry.project, version_of, timeout)
        if now.error is not None or now.unknown:
            return replace(entry, old=(), unknown=now.unknown, error=now.error)
        return _delete_unused(sender, entry, now, timeout)

    return _on_all(plans, delete_old)


def _delete_unused(
    sender: Sender, entry: NodeVersions, now: NodeVersions, timeout: float
) -> NodeVersions:
    """Delete the old versions that are still there and not in use `now`."""
    deleted: list[str] = []
    for name in entry.old:
        if name in now.jobs or name == now.default or name not in now.versions:
            continue
        try:
            sender.send(entry.node, api.delversion(entry.project, name), timeout=timeout)
        except ApiRefused:
            continue  # it was deleted in the meantime
        except NodeError as error:
            return replace(entry, old=tuple(deleted), error=error)
        deleted.append(name)
    return replace(entry, old=tuple(deleted))
