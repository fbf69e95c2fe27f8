"""Nodes and plain jobs as commands see them: states, drift, drains; how jobs ended, and arguments."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from scrapyd_dist.cli.context import Context, quick_project
from scrapyd_dist.cli.jobs.schedule import (
    _job_queue,
    _queue_runner,
    _work_off,
    split_arguments,
)
from scrapyd_dist.cli.node_status import newest_of
from scrapyd_dist.cli.nodes.node_commands import SILENT_LOOKS, DrainResult, clock
from scrapyd_dist.cli.output import Output

from scrapyd_dist.config import ProjectConfig
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import AuthRefused, ConfigError, ConnectionRefused, NodeError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import IdleWatch
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.transports.event_hook import EventHook

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
    one.versions = None
    assert (newest_of([one]), one.document(NEW)["drift"]) == (None, None), (
        "without versions it is not known"
    )
    one.versions = ()
    assert one.document(NEW)["drift"] is True


def test_a_row_has_no_password() -> None:
    one = seen(error=ConnectionRefused.at(str(NODE)))
    one.draining = 0.0
    found = one.document(NEW)
    assert "hush" not in str(found)
    assert (found["state"], found["draining"]) == ("down", "1970-01-01T00:00:00+00:00")
    assert found["reason"].startswith("connection refused")


def test_a_clock_is_told_of_when_it_is_wrong() -> None:
    assert [clock(skew) for skew in (None, 0.4, -1.9, 2.0, -3600.2)] == [
        "",
        "",
        "",
        "+2 s",
        "-3600 s",
    ]


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
def test_the_project_is_named_without_running_it(
    tmp_path: Path, text: str | None, name: str | None
) -> None:
    if text is not None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "settings.py").write_text(text, "utf-8")
    found = ProjectConfig(root=tmp_path, settings_module="shop.settings", targets=(), project=None)
    assert quick_project(found) == name
    assert quick_project(found, "chosen") == "chosen"


def test_a_node_is_drained_when_it_has_been_empty_for_a_while() -> None:
    waited, stages = DrainResult(node=NODE), []
    for at, pending, running in [
        (100, 0, 1),
        (101, 0, 0),
        (103, 1, 0),
        (104, 0, 0),
        (107, 0, 0),
    ]:  # one more job came
        waited.load = seen(pending, running).load
        waited.saw(None, at, settled=3)
        stages.append((waited.text(), waited.over, waited.stage))
    assert stages[0] == ("web1: 1 running, 0 waiting", False, "draining")
    assert [over for _, over, _ in stages] == [False] * 4 + [True]
    assert waited.stage == "drained"


def test_waiting_for_one_that_is_silent_ends() -> None:
    waited = DrainResult(node=NODE)
    for look in range(SILENT_LOOKS):
        assert not waited.over
        waited.saw(ConnectionRefused.at(str(NODE)), look, settled=0)
    assert (waited.over, waited.stage) == (True, "unknown")
    waited = DrainResult(node=NODE)
    waited.saw(AuthRefused.at(str(NODE)), 1, settled=0)
    assert waited.over, "a wrong password does not become right by waiting"


def test_waiting_for_one_that_starts_nothing_ends() -> None:
    waited = DrainResult(node=NODE, idle_watch=IdleWatch(start_delay=10))
    for at in (100, 106, 112, 118, 124):
        waited.load = seen(pending=2).load
        waited.saw(None, at, settled=0)
    assert (waited.over, waited.stage) == (True, "wedged")


def test_jobs_that_were_removed_while_their_command_waited_have_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    hook = EventHook(target="", option="--on-finish", event="the end of the jobs")
    with closing(Context(tmp_path)) as context:
        runner = _queue_runner(context, _job_queue(context), ["easy-1"], "shop", 1.0)
        assert _work_off(runner, [], hook, Output(as_json=True)) == 1
    assert "easy-1" in capsys.readouterr().err


def test_an_argument_may_be_a_setting_as_for_scrapyd_client() -> None:
    args, settings = split_arguments(
        ["a=1", "setting=LOG_LEVEL=INFO", "settings2=x"], ["LOG_LEVEL=DEBUG", "X=Y=Z"]
    )
    assert args == {"a": "1", "settings2": "x"}
    assert settings == {"LOG_LEVEL": "DEBUG", "X": "Y=Z"}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        split_arguments(["setting=LOG_LEVEL"], [])
    with pytest.raises(ConfigError, match="DISTRIBUTED_JOB_TIMEOUT"):
        split_arguments(["setting=DISTRIBUTED_JOB_TIMEOUT=soon"], [])
