"""Asks nodes for their load and versions: one, or all of them at the same time."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from scrapyd_dist.errors import NodeError
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.liveness import skew_of
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import newest
from scrapyd_dist.transports import Sender, sweep

S = TypeVar("S", bound=NodeStatus)
#: seconds that a node gets to answer
TIMEOUT = 10.0


def poll_load(sender: Sender, status: S, timeout: float) -> S:
    """Return the status with the load, latency and clock skew of an answer that is asked for now.

    Without an answer, it is what it was, with the error.
    """
    began = time.monotonic()
    before = time.time()
    try:
        load = sender.send(status.node, api.daemonstatus(), timeout=timeout)
    except NodeError as error:
        return replace(status, error=error)
    latency = time.monotonic() - began
    skew = skew_of(load.date, (before + time.time()) / 2)
    return replace(status, load=load, error=None, latency=latency, skew=skew)


def poll_versions(sender: Sender, status: S, project: str, timeout: float) -> S:
    """Return the status with the versions that the node has of the project of its target.

    project: where its target names none.

    Raises:
        NodeError: it does not answer.
    """
    name = status.node.project or project
    return replace(
        status, versions=sender.send(status.node, api.listversions(name), timeout=timeout)
    )


def ask_nodes(
    sender: Sender,
    nodes: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
) -> Iterator[NodeStatus]:
    """Ask all nodes at the same time, and generate a status whenever more is known of a node.

    project: whose versions are wanted, None = none; timeout: seconds for each answer; known: when
    versions were sent whose names do not tell it, seconds since the epoch.
    """
    statuses = [NodeStatus(node=node, known=known or {}) for node in nodes]
    silent = set[int]()
    # Versions are a question of their own, so that a sweep takes as long as one answer. All loads
    # come first.
    questions = [_Question(place, node) for place, node in enumerate(nodes)]
    if project is not None:
        questions += [_Question(place, node, project) for place, node in enumerate(nodes)]

    for answer in sweep(questions, lambda question: _ask(sender, question, silent, timeout)):
        place = answer.asked.place
        if answer.value is not None:
            is_load = answer.asked.project is None
            statuses[place] = _with_answer(statuses[place], answer.value, is_load=is_load)
        status = statuses[place]
        if status.load is not None or status.error is not None:
            yield status


class _Question(NamedTuple):
    """What one node is asked: its load, or its versions of a project."""

    place: int  #: of the node in the fleet
    node: Node
    project: str | None = None  #: None: its load


def _ask(sender: Sender, question: _Question, silent: set[int], timeout: float) -> NodeStatus:
    """Return the answer to one question.

    silent: the places of nodes that did not answer, which are not asked again; gets this one, if
    need be.
    """
    unknown = NodeStatus(node=question.node)
    if question.project is None:
        status = poll_load(sender, unknown, timeout)
        if status.error is not None:
            silent.add(question.place)
        return status
    if question.place in silent:
        return unknown
    return poll_versions(sender, unknown, question.project, timeout)


def _with_answer(status: NodeStatus, answer: NodeStatus, *, is_load: bool) -> NodeStatus:
    """Return what is known of a node with the answer to one question more."""
    if is_load:
        return replace(answer, versions=status.versions, known=status.known)
    return replace(status, versions=answer.versions)


def poll_nodes(
    sender: Sender,
    nodes: Sequence[Node],
    project: str | None,
    timeout: float,
    known: Mapping[str, float] | None = None,
    *,
    note: Callable[[NodeStatus], None] | None = None,
) -> list[NodeStatus]:
    """Ask all nodes at once, and return their statuses in the order of the nodes.

    project, timeout, known: as for `ask_nodes`; note: gets a status whenever more is known of it.
    """
    statuses: dict[Node, NodeStatus] = {}
    for status in ask_nodes(sender, nodes, project, timeout, known):
        statuses[status.node] = status
        if note is not None:
            note(status)
    return [statuses[node] for node in nodes]


def newest_of(statuses: Iterable[NodeStatus]) -> str | None:
    """Return the newest deployment of the whole fleet; None if no node has any version.

    Where no version tells its time, it is the one that most nodes have.
    """
    names: list[str] = []
    usual = Counter[str | None]()
    known: Mapping[str, float] | None = None
    for status in statuses:
        if status.versions:
            names += status.versions
            usual[status.version] += 1
            if known is None:
                known = status.known
    if known is None:
        return None
    return newest(names, known) or usual.most_common(1)[0][0]


def newest_by_project(
    statuses: Iterable[NodeStatus], usual_project: str | None
) -> dict[str | None, str | None]:
    """Return the newest version of each project, over the nodes whose targets are for it."""
    by_project: dict[str | None, list[NodeStatus]] = {}
    for status in statuses:
        by_project.setdefault(status.node.project or usual_project, []).append(status)
    return {project: newest_of(of_project) for project, of_project in by_project.items()}
