"""What a node that fails after the egg was sent may have, and that it is undone; the nodes are in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scrapyd_dist.deploy import rollout
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.rollout import RollOut, RollOutRequest, ensure

from scrapyd_dist.errors import ApiRefused, ConnectionLost, ConnectionRefused, NodeError, NoReply
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Jobs

NAMES = ("a", "b", "c")
NODES = [Node(name=name, url=f"http://{name}:6800/") for name in NAMES]
EGG = Egg(make=lambda: b"egg", content_hash="f" * 12)
OLD = "20260101T000000Z-000000000000"
#: page -> what becomes of each call of it: nothing, or this error; "done" if the node did it all the same
Faults = Mapping[str, Sequence[tuple[type[NodeError], str] | None]]
ADD = "addversion.json"
LIST = "listversions.json"
CHECK = "listspiders.json"
REMOVE = "delversion.json"


class Nodes:
    """Nodes that have a version; calls of the last one fail."""

    def __init__(self, faults: Faults, *, old: str = OLD, lost_removal: str = "") -> None:
        self.lost_removal = lost_removal  #: the node whose first answer to a removal is lost
        self.versions = {name: [old] for name in NAMES}
        self.faults = {page: list(calls) for page, calls in faults.items()}

    def send(self, node: Node, call: Any, *, timeout: float | None = None) -> Any:
        if call.path == REMOVE and node.name == self.lost_removal:
            self.lost_removal = ""
            self._answer(node.name, call)
            raise ConnectionLost.at(node.name)
        fault = None
        if node.name == NAMES[-1] and self.faults.get(call.path):
            fault = self.faults[call.path].pop(0)
        if fault is None:
            return self._answer(node.name, call)
        error, when = fault
        if when == "done":
            self._answer(node.name, call)
        raise error.at(node.name)

    def _answer(self, name: str, call: Any) -> Any:
        have = self.versions[name]
        version = dict(call.data).get("version", "")
        if call.path == ADD and version not in have:
            have.append(version)
        if call.path == REMOVE:
            if version not in have:
                raise ApiRefused.at(name, "no such version")
            have.remove(version)
        if call.path == CHECK:
            return ("one",)
        if call.path == "listjobs.json":
            return Jobs(pending=(), running=(), finished=())
        return tuple(have)

    def deployed(self, **wish: Any) -> RollOut:
        return ensure(NODES, "p", EGG, RollOutRequest(**wish), transport=self)


LOST: list[Faults] = [
    {CHECK: [(NoReply, "")]},
    {ADD: [(NoReply, "done")], LIST: [None, (NoReply, "")]},
    {ADD: [(NoReply, "")], LIST: [None, (NoReply, "")]},
    {
        ADD: [(ConnectionLost, "done"), (ConnectionRefused, "")],
        LIST: [None, (NoReply, "")],
    },
]


@pytest.mark.parametrize("faults", LOST)
def test_all_or_none_removes_it_from_the_node_that_failed_too(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "BACKOFF", 0.0)
    nodes = Nodes(faults)
    result = nodes.deployed(atomic=True, retries=1)
    assert nodes.versions == {name: [OLD] for name in NAMES}
    assert [entry.node.name for entry in result.failed] == ["c"]
    assert result.failed[0].left is None


def test_a_node_that_failed_and_cannot_be_undone_is_told() -> None:
    nodes = Nodes({CHECK: [(NoReply, "")], REMOVE: [(NoReply, "")]})
    (failed,) = nodes.deployed(atomic=True).failed
    version = nodes.versions["c"][-1]
    assert failed.stays.startswith(f"the version {version} could not be removed again")
    assert f"It may have the version {version} now" in failed.reason


def test_a_node_that_removed_it_and_lost_its_answer_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout, "BACKOFF", 0.0)
    nodes = Nodes({CHECK: [(NoReply, "")]}, lost_removal="a")
    result = nodes.deployed(atomic=True, retries=1)
    assert nodes.versions == {name: [OLD] for name in NAMES}
    assert [entry.stays for entry in result.results] == ["", "", ""]


def test_a_node_that_refuses_to_remove_it_is_not_undone() -> None:
    nodes = Nodes({CHECK: [(NoReply, "")], REMOVE: [(ApiRefused, "")]})
    (failed,) = nodes.deployed(atomic=True).failed
    assert "could not be removed again" in failed.stays
    assert failed.left in nodes.versions["c"]


def test_a_replaced_version_of_a_node_that_failed_stays() -> None:
    nodes = Nodes({CHECK: [(NoReply, "")]}, old="r1")
    (failed,) = nodes.deployed(atomic=True, given=dict.fromkeys(NAMES, "r1")).failed
    assert "replaced a version of the same name" in failed.stays
    assert nodes.versions["c"] == ["r1"]


@pytest.mark.parametrize("faults", LOST)
def test_without_that_the_result_says_that_the_node_may_have_it(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "BACKOFF", 0.0)
    result = Nodes(faults).deployed(retries=1)
    assert f"It may have the version {result.ready[0].version} now" in result.failed[0].reason


@pytest.mark.parametrize(
    "faults", [{ADD: [(ConnectionRefused, "")]}, {ADD: [(NoReply, "")]}, {ADD: [(ApiRefused, "")]}]
)
def test_a_node_that_surely_has_it_not_is_told_apart(faults: Faults) -> None:
    assert Nodes(faults).deployed().failed[0].left is None


def test_a_lost_reply_is_not_taken_for_success_where_the_name_was_there_before() -> None:
    nodes = Nodes({ADD: [(NoReply, "")]}, old="r1")
    result = nodes.deployed(given=dict.fromkeys(NAMES, "r1"))
    assert [entry.node.name for entry in result.failed] == ["c"]
    assert "It may have the version r1 now" in result.failed[0].reason
