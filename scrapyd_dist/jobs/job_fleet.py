"""Finds nodes for plain jobs: asks all for their load and versions before anything is sent."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.fleet.no_answer import process_ended
from scrapyd_dist.fleet.node_poll import poll_load, poll_versions
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.node_answers import must_answer
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.scheduling.node_capacity import jobs_per_slot
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import current, is_crawls, newest, resolve_version, time_of
from scrapyd_dist.transports import Sender, sweep

from .job_list import list_node_jobs
from .job_site import JobSite


@dataclass(kw_only=True)
class JobFleet:
    """The nodes that may be given jobs; their `project` is set."""

    sender: Sender
    nodes: Sequence[Node]
    timeout: float  #: seconds that a node gets for each answer
    draining: Sequence[Node] = ()  #: nodes that get no new jobs; asked only what they run
    dead: Sequence[Node] = ()  #: local nodes whose processes have ended
    messenger: Messenger = NO_MESSENGER
    #: name of a version -> when it was sent, in seconds since the epoch, if its name does not tell
    known: Mapping[str, float] = field(default_factory=dict)
    version: str = ""  #: what every job is pinned to; set by `settle_version`
    why: str = ""  #: why that one, where it was not named
    errors: dict[Node, NodeError] = field(default_factory=dict)  #: of those that did not answer
    _on: str | None = None  #: name of the one node that all jobs go to; None: to any
    _seen: dict[Node, NodeStatus] = field(default_factory=dict)  #: of those that answered
    _given: Counter[str] = field(default_factory=Counter)  #: jobs placed so far, by base address
    _spiders: tuple[str, ...] | None = None  #: of the version; None until a node has been asked

    def pass_over_draining(self) -> None:
        """Name the nodes that get no new work; ConfigError if all of them are such."""
        if not self.draining:
            return
        if not self.nodes:
            raise draining_error(self.draining)
        self.messenger.say(f"Passed over, since draining: {names_of(self.draining)}.")

    def settle_version(self, version: str | None, on: str | None = None) -> None:
        """Ask all nodes for their load and versions, and settle on a version.

        on: name of the node that all jobs go to, whose versions alone count then.

        Raises what kept the nodes away if none of them answered; ConfigError or NothingMatched if
        there is no version that all have.
        """
        self._on = on
        self.poll_nodes()
        must_answer(len(self.nodes), self.errors.values())
        self.version = self._common(version)

    def poll_nodes(self) -> None:
        """Ask all nodes for their load and versions."""
        statuses = {}
        for answer in sweep(self.nodes, self._read):
            if answer.error is not None:
                self.errors[answer.asked] = answer.error
            if answer.value is not None:
                statuses[answer.asked] = answer.value
        self._seen = {}
        for node in self.nodes:
            if node in statuses:
                self._seen[node] = statuses[node]

    def _read(self, node: Node) -> NodeStatus:
        status = poll_load(self.sender, NodeStatus(node=node, known=self.known), self.timeout)
        if status.error is not None:
            raise status.error
        return poll_versions(self.sender, status, "", self.timeout)

    @property
    def _holders(self) -> list[Node]:
        """The nodes that must have the version: the one that jobs go to, else all that answered."""
        return _of_name(self._seen, self._on or "") or list(self._seen)

    def _common(self, wanted: str | None) -> str:
        """Return the newest deployment of the nodes that jobs go to, or the version that was named.

        It is named as Scrapyd has it.

        Raises:
            ConfigError: the nodes have no version in common.
            NothingMatched: not all have the one that was named, or none has the project.
        """
        versions: dict[Node, Sequence[str]] = {}
        for node in self._holders:
            versions[node] = self._seen[node].versions or ()
        common = _in_all(list(versions.values()))
        is_missing = not any(versions.values())
        if wanted is not None and not is_missing:
            project = self._holders[0].project or ""
            return _named_version(wanted, common, versions, project)
        chosen = current(common, self.known)
        if chosen is None:
            raise self._nothing_common(is_missing=is_missing)
        self.why = self._explain(chosen, common)
        return chosen

    def _nothing_common(self, *, is_missing: bool) -> ConfigError | NothingMatched:
        """Return the error for no common version; is_missing: whether no node has the project."""
        project = self._holders[0].project
        shown = names_of(self._holders)
        if is_missing:
            return NothingMatched(
                f"The project {project!r} is not on {shown}. `sdist code versions --projects` lists"
                " what is there; `sdist deploy --all` brings code there."
            )
        return ConfigError(
            f"There is no version of the project {project!r} that all of these nodes have: {shown}."
            " Bring the code to all of them with `sdist deploy --all`, or choose nodes with --node."
        )

    def _explain(self, chosen: str, common: Sequence[str]) -> str:
        """Return why this version is chosen of those that all nodes have."""
        if is_crawls(chosen):
            return "which a crawl brought, since nothing was deployed that all of these nodes have"
        if newest(common, self.known) is None:
            return "the one that Scrapyd sorts last: when it was deployed is not known"
        why = "the newest deployment that all of these nodes have"
        if len(self._holders) == 1:
            why = f"the newest deployment that {self._holders[0].name} has"
        undated = [name for name in common if time_of(name, self.known) is None]
        if undated:
            why += f" (when {', '.join(undated)} came is not known)"
        return why

    def spiders(self, pattern: str) -> list[str]:
        """Return the spiders that fit, of the version that will run; NothingMatched for none."""
        if self._spiders is None:
            node = self._holders[0]
            call = api.listspiders(node.project or "", self.version)
            self._spiders = self.sender.send(node, call, timeout=self.timeout)
        found = [name for name in self._spiders if fnmatchcase(name, pattern)]
        if found:
            return found
        hint = did_you_mean(pattern, self._spiders)
        if not hint:
            hint = f" There are: {', '.join(self._spiders) or 'none'}."
        raise NothingMatched(f"The version {self.version} has no spider {pattern!r}.{hint}")

    def busy_spiders(self, *, all_nodes: bool) -> dict[str, list[Node]]:
        """Return the spiders of the project that wait or run, and on which nodes.

        all_nodes: whether each node gets a job of its own; what runs on a node that gets none
        does not matter then.

        Raises NodeError if a node that matters does not answer: a second job beside the first
        would be worse than none. So it is with a dead local node, whose jobs may live on. A
        drained node counts for nothing then.
        """
        asked = list(self._seen)
        errors: dict[Node, NodeError] = {}
        if not all_nodes:
            asked += self.draining
            errors = self.absent
        found: dict[str, list[Node]] = {}
        muted: list[Node] = []
        for answer in sweep(asked, self._list_busy_spiders):
            if answer.error is None:
                for spider in answer.value or ():
                    found.setdefault(spider, []).append(answer.asked)
            elif answer.asked in self.draining:
                muted.append(answer.asked)
            else:
                errors[answer.asked] = answer.error
        if errors:
            raise _is_not_known(errors)
        if muted:
            self.messenger.say(
                f"What runs on {names_of(muted)} is not known: drained, and without an answer."
            )
        return found

    def _list_busy_spiders(self, node: Node) -> set[str]:
        """Return the spiders of the project that wait or run on a node."""
        jobs = list_node_jobs(self.sender, node, node.project, timeout=self.timeout)
        return {job.spider for job in jobs if not job.over}

    def places(self, name: str | None, *, all_nodes: bool) -> list[Node]:
        """Return the nodes that the next job goes to.

        These are all, or the named one, or the one with the least to do per process slot.

        Raises:
            ConfigError: the named node is draining.
            NodeError: the named node did not answer, or is a local one that has died.
            NothingMatched: there is no node of that name.
        """
        if all_nodes:
            return list(self._seen)
        nodes = list(self._seen)
        if name is not None:
            nodes = _of_name(self._seen, name)
            if not nodes:
                raise self._no_place(name)
        return [self._choose(nodes)]

    @property
    def absent(self) -> dict[Node, NodeError]:
        """Why nodes get no jobs: those that did not answer, and the local ones that have died."""
        absent = dict(self.errors)
        for node in self.dead:
            absent.setdefault(node, process_ended(node))
        return absent

    def _no_place(self, name: str) -> ConfigError | NodeError | NothingMatched:
        if aside := _of_name(self.draining, name):
            return draining_error(aside)
        absent = self.absent
        for node in _of_name(absent, name):
            return absent[node]
        names = [node.name for node in self.nodes]
        question = did_you_mean(name, names)
        return NothingMatched(
            f"There is no node {name!r}.{question} There are: {', '.join(names)}."
        )

    def place_of(self, record: JobRecord) -> Node | None:
        """Return the node for a job that waits, if there is one.

        It has the job's version and, where such a node is there, has had no earlier attempt.
        """
        nodes = []
        fresh = []
        for node, status in self._seen.items():
            if not _may_run(record, node, status):
                continue
            nodes.append(node)
            if node.url not in record.tried:
                fresh.append(node)
        if not nodes:
            return None
        return self._choose(fresh or nodes)

    def _choose(self, nodes: Sequence[Node]) -> Node:
        """Return the node with the least to do, and count a job more for it."""
        chosen = min(nodes, key=self._load)
        self._given[chosen.url] += 1
        return chosen

    def _load(self, node: Node) -> float:
        load = self._seen[node].load
        busy = load.pending + load.running if load else 0
        return jobs_per_slot(busy + self._given[node.url], node.slots)


def _in_all(versions: Sequence[Sequence[str]]) -> list[str]:
    """Return the names that are in each of the lists, in the order of the first."""
    common = list(versions[0])
    for names in versions[1:]:
        common = [name for name in common if name in names]
    return common


def _named_version(
    wanted: str, common: Sequence[str], versions: Mapping[Node, Sequence[str]], project: str
) -> str:
    """Return Scrapyd's own name for the version; NothingMatched if not all nodes have it.

    wanted: the name, or how it or its content hash begins; common: what all nodes have.
    """
    everything: dict[str, None] = {}
    for names in versions.values():
        everything.update(dict.fromkeys(names))
    matches = resolve_version(wanted, list(everything), project)
    for name in matches:
        if name in common:
            return name
    lacking = [node for node, names in versions.items() if matches[0] not in names]
    raise NothingMatched(
        f"The version {wanted!r} is not on {names_of(lacking)}. `sdist deploy --all` brings code"
        " there."
    )


def _of_name(nodes: Iterable[Node], name: str) -> list[Node]:
    return [node for node in nodes if node.name == name]


def _may_run(record: JobRecord, node: Node, status: NodeStatus) -> bool:
    """Tell whether a job that waits may go to this node, as far as its options and code go."""
    if record.on not in ("", node.name):
        return False
    if record.among and node.name not in record.among:
        return False
    if record.wanted_project:
        return True
    return record.version in (status.versions or ())


def _is_not_known(errors: Mapping[Node, NodeError]) -> NodeError:
    """Return what to do about nodes that do not tell what runs there."""
    first = next(iter(errors.values()))
    names = names_of(errors, " ")
    return type(first)(
        f"{first} So whether a spider runs there is not known, and none is started"
        f" (--unless-running). If it stays away: sdist nodes drain {names} --no-wait; then it"
        f" counts for nothing until `sdist nodes resume {names}`."
    )


def draining_error(nodes: Sequence[Node]) -> ConfigError:
    """Return the error for nodes that were asked for and get no new work."""
    if len(nodes) > 1:
        state = "are draining"
        them = "them"
    else:
        state = "is draining"
        them = "it"
    return ConfigError(
        f"{names_of(nodes)} {state}: no new work goes there. Give {them} work again with"
        f" `sdist nodes resume {names_of(nodes, ' ')}`, or choose another node."
    )


def make_fleet(
    site: JobSite,
    nodes: Sequence[Node],
    timeout: float,
    find_times: Callable[[Sequence[Node]], Mapping[str, float]],
    patterns: Sequence[str] | None = None,
) -> JobFleet:
    """Return the nodes that may get jobs, which have not been asked for anything yet.

    timeout: seconds that a node gets for each answer; find_times: gives when versions were sent to
    such nodes from here, by name, in seconds since the epoch; patterns: by which the nodes were
    chosen, None = all.
    """
    dead = site.find_dead(patterns)
    drained = site.find_drained([*nodes, *dead])
    fit = [node for node in nodes if node not in drained]
    return JobFleet(
        sender=site.sender,
        nodes=fit,
        draining=[node for node in nodes if node in drained],
        timeout=timeout,
        dead=[node for node in dead if node not in drained],
        messenger=site.messenger,
        known=find_times(fit),
    )
