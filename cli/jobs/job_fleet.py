"""The nodes that plain jobs are given to: asked for their load and their versions before anything is sent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.scheduling.node_state import SLOTS_UNKNOWN
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.versions import current, is_crawls, newest, sanitised, time_of
from scrapyd_dist.settings import nearest
from scrapyd_dist.transports import Sender, sweep

from ..context import Context, must_answer
from ..output import say
from .job_list import Listed, jobs_of


@dataclass(kw_only=True)
class JobFleet:
    """The nodes that a command may give jobs to; their `project` is set."""

    sender: Sender
    nodes: Sequence[Node]
    timeout: float
    draining: Sequence[Node] = ()  #: nodes that get no new jobs; asked only what they run
    known: Mapping[str, float] = field(
        default_factory=dict
    )  #: when versions were sent whose names do not tell it
    version: str = ""  #: what every job is pinned to
    why: str = ""  #: why that one, where it was not named
    errors: dict[Node, NodeError] = field(default_factory=dict)  #: of those that did not answer
    _seen: dict[Node, NodeStatus] = field(default_factory=dict)
    _given: Counter[str] = field(default_factory=Counter)
    _spiders: tuple[str, ...] | None = None

    def ask(self, version: str | None) -> None:
        """Ask all nodes for their load and versions, and settle on a version; an error if none of them answers."""
        self.look()
        must_answer(len(self.nodes), self.errors.values())
        self.version = self._common(version)

    def look(self) -> None:
        """Ask all nodes for their load and versions."""
        seen = [NodeStatus(node=node, known=self.known) for node in self.nodes]

        def look(one: NodeStatus) -> None:
            one.ask_load(self.sender, self.timeout)
            one.ask_versions(self.sender, "", self.timeout)

        self.errors |= {
            answer.asked.node: answer.error
            for answer in sweep(seen, look)
            if answer.error is not None
        }
        self._seen = {one.node: one for one in seen if one.versions is not None}

    def _common(self, wanted: str | None) -> str:
        """The newest deployment that all nodes have, or the version that was named, by Scrapyd's own name for it.

        Raises ConfigError if they have none in common, NothingMatched if they do not all have the one that was named,
        or none has the project.
        """
        versions = {node: seen.versions or () for node, seen in self._seen.items()}
        first, *others = versions.values()
        common = [name for name in first if all(name in other for other in others)]
        if wanted is not None:
            kept = sanitised(wanted)
            if kept not in common:
                lack = names_of(node for node, names in versions.items() if kept not in names)
                raise NothingMatched(
                    f"The version {wanted!r} is not on {lack}. `sdist deploy --all` brings code there."
                )
            return kept
        chosen = current(common, self.known)
        if chosen is None:
            project = next(iter(self._seen)).project
            shown = names_of(self._seen)
            if not any(versions.values()):
                raise NothingMatched(
                    f"The project {project!r} is not on {shown}. `sdist code projects` lists what is there; `sdist"
                    " deploy --all` brings code there."
                )
            raise ConfigError(
                f"There is no version of the project {project!r} that all of these nodes have: {shown}. Bring the "
                "code to all of them with `sdist deploy --all`, or choose nodes with --node."
            )
        if is_crawls(chosen):
            self.why = (
                "which a crawl brought, since nothing was deployed that all of these nodes have"
            )
        elif newest(common, self.known) is None:
            self.why = "the one that Scrapyd sorts last: when it was deployed is not known"
        else:
            self.why = "the newest deployment that all of these nodes have"
            unknown = [name for name in common if time_of(name, self.known) is None]
            self.why += f" (when {', '.join(unknown)} came is not known)" if unknown else ""
        return chosen

    def spiders(self, pattern: str) -> list[str]:
        """The spiders that fit, of the version that will run; NothingMatched if none does."""
        if self._spiders is None:
            node = next(iter(self._seen))
            call = api.listspiders(node.project or "", self.version)
            self._spiders = self.sender.send(node, call, timeout=self.timeout)
        found = [name for name in self._spiders if fnmatchcase(name, pattern)]
        if not found:
            hint = (
                nearest(pattern, self._spiders, 0.6)
                or f" There are: {', '.join(self._spiders) or 'none'}."
            )
            raise NothingMatched(f"The version {self.version} has no spider {pattern!r}.{hint}")
        return found

    def busy_spiders(self) -> dict[str, Node]:
        """The spiders of the project that wait or run, and where.

        Raises NodeError if a node does not tell: a second job beside the first would be worse than none. A drained node
        counts for nothing then.
        """
        found: dict[str, Node] = {}

        def ask(node: Node) -> list[Listed]:
            return jobs_of(self.sender, node, node.project, timeout=self.timeout)

        errors, muted = dict(self.errors), list[Node]()
        for answer in sweep([*self._seen, *self.draining], ask):
            if answer.error is not None and answer.asked in self.draining:
                muted.append(answer.asked)
            elif answer.error is not None:
                errors[answer.asked] = answer.error
            found |= {row.spider: row.node for row in answer.value or () if not row.over}
        if errors:
            raise _is_not_known(errors)
        if muted:
            say(f"What runs on {names_of(muted)} is not known: drained, and without an answer.")
        return found

    def places(self, name: str | None, *, all_nodes: bool) -> list[Node]:
        """The nodes that the next job goes to: all, the named one, or the one with the least to do per process slot.

        Raises ConfigError if there is none of that name or it is draining, NodeError if it did not answer.
        """
        if all_nodes:
            return list(self._seen)
        nodes = [node for node in self._seen if name is None or node.name == name]
        if name is not None and not nodes:
            if aside := [node for node in self.draining if node.name == name]:
                raise is_draining(aside)
            for node, error in self.errors.items():
                if node.name == name:
                    raise error
            raise NothingMatched(
                f"There is no node {name!r}. There are: {', '.join(node.name for node in self.nodes)}."
            )
        return [self._taken(nodes)]

    def place_of(self, record: JobRecord) -> Node | None:
        """The node for a job that waits: it has the job's version and, where there is one, no earlier attempt."""
        nodes = [
            node
            for node, seen in self._seen.items()
            if (record.on in ("", node.name) and (not record.among or node.name in record.among))
            and (record.wanted_project or record.version in (seen.versions or ()))
        ]
        fresh = [node for node in nodes if node.url not in record.tried]
        return self._taken(fresh or nodes) if nodes else None

    def _taken(self, nodes: Sequence[Node]) -> Node:
        chosen = min(nodes, key=self._load)
        self._given[chosen.url] += 1
        return chosen

    def _load(self, node: Node) -> float:
        load = self._seen[node].load
        busy = load.pending + load.running if load else 0
        return (busy + self._given[node.url]) / (node.slots or SLOTS_UNKNOWN)


def _is_not_known(errors: Mapping[Node, NodeError]) -> NodeError:
    """What to do about nodes that do not tell what runs there."""
    first = next(iter(errors.values()))
    names = names_of(errors, " ")
    return type(first)(
        f"{first} So whether a spider runs there is not known, and none is started (--unless-running). If it stays"
        f" away: sdist nodes drain {names} --no-wait; then it counts for nothing until `sdist nodes resume {names}`."
    )


def is_draining(nodes: Sequence[Node]) -> ConfigError:
    """What to do about nodes that were asked for and get no new work."""
    are, them = ("are", "them") if len(nodes) > 1 else ("is", "it")
    return ConfigError(
        f"{names_of(nodes)} {are} draining: no new work goes there. Give {them} work again with"
        f" `sdist nodes resume {names_of(nodes, ' ')}`, or choose another node."
    )


def fleet_of(
    context: Context, nodes: Sequence[Node], timeout: float, *, quiet: bool = False
) -> JobFleet:
    """The nodes that may get jobs; those that are draining are passed over, and named unless `quiet`."""
    records = context.node_records(nodes)
    aside = [node for node in nodes if records[node.name].draining is not None]
    if aside and not quiet:
        if len(aside) == len(nodes):
            raise is_draining(aside)
        say(f"Passed over, since draining: {names_of(aside)}.")
    rest = [node for node in nodes if node not in aside]
    known = context.known_times(rest, None)
    return JobFleet(sender=context.sender, nodes=rest, draining=aside, timeout=timeout, known=known)


def post(
    sender: Sender, node: Node, call: Call[str], job: str, timeout: float
) -> tuple[NodeError | None, bool]:
    """Post a job; gives the error if its node did not take it, and whether it may have it all the same."""
    try:
        sender.send(node, call, timeout=timeout)
    except NodeError as error:
        if not error.maybe_accepted:
            return error, False
        try:  # the answer was lost, and perhaps not the job: only the node knows
            there = sender.send(node, api.status(job, node.project), timeout=timeout)
        except NodeError as silence:
            return silence, True
        return (None if there is not None else error), False
    return None, False
