"""Draining: when a node is empty, when waiting for it is of no use, and what a drain leaves."""

from datetime import datetime, timezone

from scrapyd_dist.errors import AuthRefused, ConnectionRefused, NodeError
from scrapyd_dist.fleet.drain import SILENT_LOOKS, DrainWatch
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import IdleWatch
from scrapyd_dist.scrapyd.api import Load

NODE = Node.parse("http://me:hush@web1:6800", name="web1")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def loaded(pending: int = 0, running: int = 0) -> NodeStatus:
    load = Load(pending=pending, running=running, finished=0, node_name="web1", date=NOW)
    return NodeStatus(node=NODE, load=load)


def failed(kind: type[NodeError]) -> NodeStatus:
    return NodeStatus(node=NODE, error=kind.at(str(NODE)))


def test_a_node_is_drained_when_it_has_been_empty_for_a_while() -> None:
    waited, stages = DrainWatch(status=NodeStatus(node=NODE)), []
    for at, pending, running in [
        (100, 0, 1),
        (101, 0, 0),
        (103, 1, 0),
        (104, 0, 0),
        (107, 0, 0),
    ]:  # one more job came
        waited.saw(loaded(pending, running), at, settled=3)
        stages.append((waited.text(), waited.over, waited.stage))
    assert stages[0] == ("web1: 1 running, 0 waiting", False, "draining")
    assert [over for _, over, _ in stages] == [False] * 4 + [True]
    assert waited.stage == "drained"


def test_waiting_for_one_that_is_silent_ends() -> None:
    waited = DrainWatch(status=NodeStatus(node=NODE))
    for look in range(SILENT_LOOKS):
        assert not waited.over
        waited.saw(failed(ConnectionRefused), look, settled=0)
    assert (waited.over, waited.stage) == (True, "unknown")
    waited = DrainWatch(status=NodeStatus(node=NODE))
    waited.saw(failed(AuthRefused), 1, settled=0)
    assert waited.over, "a wrong password does not become right by waiting"


def test_waiting_for_one_that_starts_nothing_ends() -> None:
    waited = DrainWatch(status=NodeStatus(node=NODE), idle_watch=IdleWatch(start_delay=10))
    for at in (100, 106, 112, 118, 124):
        waited.saw(loaded(pending=2), at, settled=0)
    assert (waited.over, waited.stage) == (True, "wedged")
