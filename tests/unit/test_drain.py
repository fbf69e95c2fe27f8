"""Draining: when a node is empty, when waiting for it is of no use, and what a drain leaves."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rig.fleet_sender import FleetSender
from rig.fleet_sender import loaded as answering

from scrapyd_dist.errors import AuthRefused, ConnectionRefused, NodeError
from scrapyd_dist.fleet import drain
from scrapyd_dist.fleet.drain import (
    SILENT_LOOKS,
    DrainWatch,
    begin_draining,
    resume_nodes,
    settling_time,
    wait_until_empty,
)
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.liveness import WedgeWatch
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
    waited = DrainWatch(status=NodeStatus(node=NODE), wedge_watch=WedgeWatch(start_delay=10))
    for at in (100, 106, 112, 118, 124):
        waited.saw(loaded(pending=2), at, settled=0)
    assert (waited.over, waited.stage) == (True, "wedged")


def test_a_drain_is_remembered_waits_for_jobs_and_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "EVERY", 0.0)
    (tmp_path / "scrapy.cfg").write_text(
        "[settings]\ndefault = s\n[deploy:web1]\nurl = http://web1:6800/\n"
    )
    sender = FleetSender(web1=answering(running=1))
    texts = []

    def note(left: object) -> None:
        texts.append([watch.text() for watch in left])  # type: ignore[attr-defined]
        sender.answers["web1"] = answering()

    with closing(Workspace(tmp_path)) as workspace:
        nodes = workspace.nodes()
        watches = begin_draining(workspace, nodes)
        assert workspace.drained(nodes) == [*nodes]
        assert settling_time(workspace) == 0.0
        assert wait_until_empty(watches, sender, 0.0, float("inf"), note)
        assert (texts, watches[0].stage) == ([["web1: 1 running, 0 waiting"]], "drained")
        assert [entry.was_draining for entry in resume_nodes(workspace, nodes)] == [True]
        assert [entry.was_draining for entry in resume_nodes(workspace, nodes)] == [False]


def test_a_drain_that_is_not_waited_for_looks_once() -> None:
    sender = FleetSender(web1=answering(running=1))
    watch = DrainWatch(status=NodeStatus(node=NODE))
    assert not wait_until_empty([watch], sender, 0.0, 0.0, lambda _: None)
    assert (len(sender.asked), watch.stage) == (1, "draining")
