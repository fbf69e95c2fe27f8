"""What `sdist nodes` and `nodes drain` make of what nodes answer: states, drift, when the waiting is over."""

from datetime import datetime, timezone
from pathlib import Path

import pytest
from scrapyd_dist.cli.context import quick_project
from scrapyd_dist.cli.node_status import IdleWatch, NodeStatus, newest_of
from scrapyd_dist.cli.nodes.node_commands import SILENT_LOOKS, DrainResult, clock

from scrapyd_dist.config import ProjectConfig
from scrapyd_dist.errors import AuthRefused, ConnectionRefused, NodeError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

NODE = Node.parse("http://me:hush@web1:6800", name="web1")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OLD, NEW = "20261101T000000Z-aaaaaaaaaaaa", "20261102T000000Z-bbbbbbbbbbbb"


def load(pending: int = 0, running: int = 0) -> Load:
    return Load(pending=pending, running=running, finished=0, node_name="web1", date=NOW)


def seen(pending: int = 0, running: int = 0, error: NodeError | None = None, *versions: str) -> NodeStatus:
    return NodeStatus(node=NODE, load=None if error else load(pending, running), error=error, versions=versions or None)


@pytest.mark.parametrize(
    ("mine", "others", "drift"),
    [
        ((OLD, NEW), (NEW,), False),
        ((OLD,), (OLD, NEW), True),
        # Scrapyd would run the old one by default; the newest is there all the same
        ((NEW, "zzz"), (NEW,), False),
        # the same code under another name is no drift
        (("20261103T000000Z-bbbbbbbbbbbb",), (NEW,), False),
        (("1_9",), ("1_9",), False),
        (("1_9",), ("1_10", "1_10"), True),
    ],
)
def test_drift(mine: tuple[str, ...], others: tuple[str, ...], drift: bool) -> None:
    one, two, three = seen(0, 0, None, *mine), seen(0, 0, None, *others), seen(0, 0, None, *others)
    assert one.drifts(newest_of([one, two, three])) is drift
    one.versions = None
    assert (newest_of([one]), one.drifts(NEW)) == (None, None), "without versions it is not known"
    one.versions = ()
    assert one.drifts(NEW) is True


def test_a_row_has_no_password() -> None:
    one = seen(error=ConnectionRefused.at(str(NODE)))
    one.draining = 0.0
    found = one.document(NEW)
    assert "hush" not in str(found)
    assert (found["state"], found["draining"]) == ("down", "1970-01-01T00:00:00+00:00")
    assert found["reason"].startswith("connection refused")


def test_a_clock_is_told_of_when_it_is_wrong() -> None:
    assert [clock(skew) for skew in (None, 0.4, -1.9, 2.0, -3600.2)] == ["", "", "", "+2 s", "-3600 s"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('BOT_NAME = "shop"\n', "shop"),
        ('BOT_NAME = "old"\nBOT_NAME = "shop"\n', "shop"),
        ('import os\nBOT_NAME = os.environ["X"]\n', None),
        ("not python", None),
        (None, None),
    ],
)
def test_the_project_is_named_without_running_it(tmp_path: Path, text: str | None, name: str | None) -> None:
    if text is not None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "settings.py").write_text(text, "utf-8")
    found = ProjectConfig(root=tmp_path, settings_module="shop.settings", targets=(), project=None)
    assert quick_project(found) == name
    assert quick_project(found, "chosen") == "chosen"


def test_a_node_is_drained_when_it_has_been_empty_for_a_while() -> None:
    waited = DrainResult(node=NODE)
    waited.saw(seen(running=1), 100, settled=3)
    assert (waited.state, waited.text()) == ("draining", "web1: 1 running, 0 waiting")
    waited.saw(seen(), 101, settled=3)
    waited.saw(seen(pending=1), 103, settled=3)  # a last job came
    waited.saw(seen(), 104, settled=3)
    assert not waited.over
    waited.saw(seen(), 107, settled=3)
    assert (waited.over, waited.state) == (True, "drained")


def test_waiting_for_one_that_is_silent_ends() -> None:
    silent = seen(error=ConnectionRefused.at(str(NODE)))
    waited = DrainResult(node=NODE)
    for look in range(SILENT_LOOKS):
        assert not waited.over
        waited.saw(silent, look, settled=0)
    assert (waited.over, waited.state) == (True, "unknown")
    waited = DrainResult(node=NODE)
    waited.saw(seen(error=AuthRefused.at(str(NODE))), 1, settled=0)
    assert waited.over, "a wrong password does not become right by waiting"


def test_waiting_for_one_that_starts_nothing_ends() -> None:
    waited = DrainResult(node=NODE, idle=IdleWatch(start_delay=10))
    for at in (100, 106, 112, 118, 124):
        waited.saw(seen(pending=2), at, settled=0)
    assert (waited.over, waited.state) == (True, "wedged")
