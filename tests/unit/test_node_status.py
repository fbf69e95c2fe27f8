"""How one node is said to be: its health, its version beside others, no password."""

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from scrapyd_dist.errors import (
    AuthRefused,
    ConnectionRefused,
    ConnectTimeout,
    NodeError,
    NoReply,
    TlsRefused,
)
from scrapyd_dist.fleet.node_poll import newest_of
from scrapyd_dist.fleet.node_status import NodeHealth, NodeStatus
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

NODE = Node.parse("http://me:hush@web1:6800", name="web1")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OLD, NEW = "1793491200-187649984473770", "1793577600-206414982921147"


def seen(
    pending: int = 0, running: int = 0, error: NodeError | None = None, *versions: str
) -> NodeStatus:
    load = (
        None
        if error
        else Load(pending=pending, running=running, finished=0, node_name="web1", date=NOW)
    )
    return NodeStatus(node=NODE, load=load, error=error, versions=versions or None)


@pytest.mark.parametrize(
    ("mine", "others", "drift"),
    [
        ((OLD, NEW), (NEW,), False),
        ((OLD,), (OLD, NEW), True),
        # Scrapyd would run the old one by default; the newest is there all the same
        ((NEW, "zzz"), (NEW,), False),
        # the same code under another name is no drift
        (("1793664000-206414982921147",), (NEW,), False),
        (("1_9",), ("1_9",), False),
        (("1_9",), ("1_10", "1_10"), True),
    ],
)
def test_drift(mine: tuple[str, ...], others: tuple[str, ...], drift: bool) -> None:
    one, two, three = seen(0, 0, None, *mine), seen(0, 0, None, *others), seen(0, 0, None, *others)
    assert one.document(newest_of([one, two, three]))["drift"] is drift
    unknown = replace(one, versions=None)
    assert (newest_of([unknown]), unknown.document(NEW)["drift"]) == (None, None), (
        "without versions it is not known"
    )
    assert replace(one, versions=()).document(NEW)["drift"] is True


def test_a_row_has_no_password() -> None:
    one = seen(error=ConnectionRefused.at(str(NODE)))
    found = replace(one, draining=0.0).document(NEW)
    assert "hush" not in str(found)
    assert (found["state"], found["draining"]) == ("down", "1970-01-01T00:00:00+00:00")
    assert found["reason"].startswith("connection refused")


def health_of(error: NodeError | None, **fields: Any) -> NodeHealth:
    return NodeStatus(node=Node.parse("node1"), error=error, **fields).state


def test_the_state_of_one_that_does_not_answer_and_of_one_that_does() -> None:
    for health, errors in (
        (NodeHealth.DOWN, (ConnectionRefused, ConnectTimeout)),
        (NodeHealth.BUSY, (NoReply,)),
        (NodeHealth.REFUSED, (AuthRefused, TlsRefused)),
    ):
        assert {health_of(error.at("node1"), draining=1.0) for error in errors} == {health}
    assert health_of(None) is NodeHealth.UP
    assert health_of(None, draining=1.0) is NodeHealth.DRAINING
    for running, pending, health in (
        (1, 0, NodeHealth.DRAINING),
        (0, 1, NodeHealth.DRAINING),
        (0, 0, NodeHealth.DRAINED),
    ):
        load = Load(running=running, pending=pending, finished=0, node_name="web1", date=None)
        assert health_of(None, draining=1.0, load=load) is health
    assert health_of(None, draining=1.0, wedged=True) is NodeHealth.WEDGED
