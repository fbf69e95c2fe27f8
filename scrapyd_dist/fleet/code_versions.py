"""Which code nodes have: versions, spiders, projects; and which kept egg to go back to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any, Generic, Protocol, TypeVar

from scrapyd_dist.config import state_dir, state_folder
from scrapyd_dist.deploy import node_versions
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.kept_eggs import (
    SavedEgg,
    all_eggs,
    choose,
    first_name,
    kept_eggs,
    list_same_code,
)
from scrapyd_dist.deploy.node_versions import NodeVersions
from scrapyd_dist.deploy.rollout import NodeResult
from scrapyd_dist.errors import DistError, NodeError
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.version_order import name_last
from scrapyd_dist.scrapyd.versions import current, hash_in, is_crawls, later_than, version_name
from scrapyd_dist.transports import sweep


class NodeCode(Protocol):
    """What one node has of a project; with an error if it did not answer."""

    @property
    def node(self) -> Node: ...

    @property
    def error(self) -> DistError | None: ...


A = TypeVar("A", bound=NodeCode)


@dataclass(frozen=True, kw_only=True)
class CodeSurvey(Generic[A]):
    """What each node has of the code of one project."""

    project: str
    entries: Sequence[A]  #: of all nodes, also those that did not answer

    @property
    def answered(self) -> list[A]:
        """The nodes that answered."""
        return [entry for entry in self.entries if entry.error is None]

    @property
    def errors(self) -> dict[Node, DistError | None]:
        """Why each node did not answer; None for one that did."""
        return {entry.node: entry.error for entry in self.entries}


@dataclass(frozen=True, kw_only=True)
class VersionSurvey(CodeSurvey[NodeVersions]):
    """Which node has which versions of one project."""

    #: when versions were sent whose names do not tell it, seconds since the epoch
    known: Mapping[str, float]
    kept: Sequence[SavedEgg] = ()  #: the project's eggs that were deployed from here, newest first

    @property
    def first_names(self) -> dict[str, str]:
        """Under which name the code of a version was sent before, where it came again."""
        found = {}
        for name in self.names:
            earlier = first_name(self.kept, name)
            if earlier is not None:
                found[name] = earlier
        return found

    @property
    def differences(self) -> list[str]:
        """In what the nodes' newest code differs, a sentence each."""
        return node_versions.differences(self.entries, self.known)

    @property
    def only_crawls(self) -> list[str]:
        """Where nothing was deployed and only crawls brought code, a sentence each."""
        return node_versions.only_crawls(self.entries)

    @property
    def newest(self) -> list[str | None]:
        """Of each node, the deployment that is the newest; None where there is none."""
        return [current(entry.versions, self.known) for entry in self.entries]

    @property
    def names(self) -> list[str]:
        """All names of versions; what Scrapyd sorts last on one of the nodes stands first."""
        places: dict[str, int] = {}
        for entry in self.answered:
            for place, name in enumerate(reversed(entry.versions), 1):
                places[name] = min(place, places.get(name, place))
        return sorted(places, key=lambda name: (places[name], name))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each version, in the order of `names`, with the nodes that have and lack it."""
        found = {entry.node.name: entry.versions for entry in self.answered}
        rows = {row["version"]: row for row in presence_rows("version", found)}
        return [rows[name] for name in self.names]

    def document(self) -> dict[str, Any]:
        """Return all of it as `sdist code versions --json` gives it."""
        differing = self.differences
        rows = []
        for entry, newest in zip(self.entries, self.newest, strict=True):
            row = node_document(
                entry, "jobs", versions=entry.versions, default=entry.default, newest=newest
            )
            rows.append(row)
        return {
            "project": self.project,
            "same": bool(self.answered) and not differing,
            "differences": differing,
            "warnings": self.only_crawls,
            "versions": self.rows,
            "nodes": rows,
        }


def survey_versions(
    workspace: Workspace, patterns: Sequence[str] | None, project: str | None, *, timeout: float
) -> VersionSurvey:
    """Ask the nodes which versions they have of a project, and which of them jobs need.

    patterns: names of nodes; project: its name or a pattern, None = the workspace's own; timeout:
    seconds for each answer.
    """
    name, nodes, known = workspace.project_nodes(patterns, project)
    entries = node_versions.list_versions(nodes, name, workspace.version_lookup(), timeout=timeout)
    kept = kept_eggs(state_folder(workspace.root), name)
    return VersionSurvey(project=name, entries=entries, known=known, kept=kept)


def node_document(entry: NodeVersions, jobs: str, **values: Any) -> dict[str, Any]:
    """Return what `--json` says of a node.

    jobs: what those that need its versions are called there.
    """
    node = {"name": entry.node.name, "url": entry.node.url, "project": entry.project}
    needed = {jobs: entry.jobs, "jobs_of_unknown_version": entry.unknown}
    return {**node, **values, **needed, "reason": str(entry.error or "")}


@dataclass(frozen=True, kw_only=True)
class SpiderSurvey(CodeSurvey[NodeResult]):
    """Which node has which spiders of one project."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each spider, with the nodes that have it and those that lack it."""
        found = {entry.node.name: entry.spiders for entry in self.answered}
        return presence_rows("spider", found)

    def document(self) -> dict[str, Any]:
        """Return all of it as `sdist code versions --spiders --json` gives it."""
        nodes = []
        for entry in self.entries:
            document = {
                "name": entry.node.name,
                "url": entry.node.url,
                "version": entry.version,
                "spiders": entry.spiders,
                "reason": str(entry.error or ""),
            }
            nodes.append(document)
        return {"project": self.project, "spiders": self.rows, "nodes": nodes}


def survey_spiders(
    workspace: Workspace,
    patterns: Sequence[str] | None,
    project: str | None,
    *,
    version: str | None = None,
    timeout: float,
) -> SpiderSurvey:
    """Ask the nodes for the spiders of a version; None = each node's newest deployment.

    patterns, project: as for `survey_versions`; timeout: seconds for each answer.
    """
    name, nodes, known = workspace.project_nodes(patterns, project)
    entries = node_versions.spiders(nodes, name, version=version, known=known, timeout=timeout)
    return SpiderSurvey(project=name, entries=entries)


@dataclass(frozen=True, kw_only=True)
class ProjectSurvey:
    """Which node has which projects."""

    projects: Mapping[str, Sequence[str]]  #: name of a node that answered -> its projects
    errors: Mapping[Node, NodeError | None]  #: of each node; None: it answered

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each project, with the nodes that have it and those that lack it."""
        return presence_rows("project", self.projects)


def survey_projects(
    workspace: Workspace, patterns: Sequence[str] | None, project: str | None, *, timeout: float
) -> ProjectSurvey:
    """Ask the nodes which projects they have; timeout: seconds for each answer.

    patterns: names of nodes; project: only one that it names, or those that fit it; None = all.
    """
    projects: dict[str, Sequence[str]] = {}
    errors: dict[Node, NodeError | None] = {}
    sender = workspace.sender
    call = api.listprojects()
    for answer in sweep(
        workspace.nodes(patterns), lambda node: sender.send(node, call, timeout=timeout)
    ):
        errors[answer.asked] = answer.error
        if answer.value is not None:
            projects[answer.asked.name] = [
                name for name in answer.value if fnmatchcase(name, project or "*")
            ]
    return ProjectSurvey(projects=projects, errors=errors)


def presence_rows(kind: str, names_of_nodes: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return a row for each spider, or project, with the nodes that have it and those that lack it.

    kind: the key of its name in the row; names_of_nodes: the name of each node that answered, and
    the names of what it has.
    """
    everything: set[str] = set()
    for names in names_of_nodes.values():
        everything.update(names)
    rows = []
    for name in sorted(everything):
        row: dict[str, Any] = {kind: name, "nodes": [], "missing": []}
        for node, names in names_of_nodes.items():
            row["nodes" if name in names else "missing"].append(node)
        rows.append(row)
    return rows


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """A kept egg that is to become current on all nodes."""

    saved: SavedEgg
    egg: Egg
    again: str  #: the new name of its version, which sorts behind all that there are
    was_present: bool  #: a node has the version that it was kept under
    is_current: bool  #: every node runs its code already
    skipped: Sequence[str]  #: kept versions before the current one that have its code, too


def plan_rollback(workspace: Workspace, survey: VersionSurvey, version: str | None) -> Rollback:
    """Choose the egg to go back to, and a new name for its version.

    version: its name, or how that begins; None: the one before what the nodes have.

    Raises:
        NothingMatched: no such egg is kept.
    """
    state = state_dir(workspace.root)
    read = kept_eggs if version is None else all_eggs
    kept = read(state, survey.project)
    usual = _usual_version(survey)
    saved = choose(kept, version, usual, folder=state / "eggs")
    egg = saved.read()
    at = later_than(datetime.now(timezone.utc), survey.names, survey.known)
    name = version_name(egg.content_hash, at)
    present: set[str] = set()
    defaults: list[str | None] = []
    for entry in survey.entries:
        present.update(entry.versions)
        defaults.append(entry.default)
    return Rollback(
        saved=saved,
        egg=egg,
        again=name_last(name, [entry.versions for entry in survey.entries]),
        was_present=saved.version in present,
        # The code was deployed last on every node, and runs there by default.
        is_current=_all_have(egg.content_hash, [*survey.newest, *defaults]),
        skipped=() if version is not None else list_same_code(kept, saved, usual),
    )


def _usual_version(survey: VersionSurvey) -> str | None:
    """Return the version that most nodes have as their newest one; None if none has any."""
    deployed = [name for name in survey.newest if name is not None]
    return max(deployed, key=lambda name: (deployed.count(name), name), default=None)


def _all_have(content_hash: str, versions: Iterable[str | None]) -> bool:
    """Return whether each of these is a deployed version with this content."""
    for version in versions:
        if version is None or is_crawls(version) or hash_in(version) != content_hash:
            return False
    return True
