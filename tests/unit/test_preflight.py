"""Local nodes start only for a crawl that can run on them, and stop wherever they were started."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Result
from rig.fleet_sender import FleetSender
from scrapy.settings import Settings
from scrapyd_dist.deploy import local_nodes, rollout
from scrapyd_dist.deploy.local_nodes import LocalNode
from scrapyd_dist.middlewares.producer import preflight
from scrapyd_dist.middlewares.producer.crawl_request import CrawlRequest, find_project
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions

from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    ConfigError,
    ConnectionLost,
    NodeError,
    NoNodeReachable,
    NoReply,
)
from scrapyd_dist.nodes import Node


def request_of(**options: Any) -> CrawlRequest:
    return CrawlRequest(
        spider="s", options=ProducerOptions(**options), project=find_project(Settings())
    )


@pytest.fixture
def no_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a scrapy.cfg, in which no node may be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        local_nodes, "start_nodes", lambda *_, **__: pytest.fail("nodes were started")
    )
    return tmp_path


def test_a_script_without_a_project_is_refused_before_nodes_start(no_nodes: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no scrapy\.cfg here"):
        preflight.prepare(request_of(), ())


@pytest.mark.parametrize("has_project", [True, False])
def test_nodes_without_the_code_are_not_started(no_nodes: Path, has_project: bool) -> None:
    if has_project:
        (no_nodes / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
        (no_nodes / "shop").mkdir()
        (no_nodes / "shop/settings.py").touch()
    with pytest.raises(ConfigError, match="Name the nodes that have it"):
        preflight.prepare(request_of(deploy="never"), ())


def test_an_error_with_nodes_that_were_started_names_them(
    no_nodes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_nodes / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (no_nodes / "shop").mkdir()
    (no_nodes / "shop/settings.py").touch()
    started = LocalNode(name="local1", port=1, password="p", slots=1, pid=1, folder=no_nodes).node
    monkeypatch.setattr(local_nodes, "start_nodes", lambda *_, **__: (started,))
    with pytest.raises(NoNodeReachable, match=r"started on this machine \(1 node\) still runs"):
        preflight.prepare(request_of(), ())


# nodes that cannot be asked for their code

GOOD = {
    "daemonstatus.json": True,
    "logs/": True,
    "listversions.json": ("v1",),
    "listspiders.json": ("s",),
}
NODES = [Node.parse(f"{name}:6800", name=name) for name in ("one", "two")]


@pytest.fixture
def answer(no_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> FleetSender:
    """What two nodes answer that have the code; `no_nodes`: there is none here to be sent."""
    sender = FleetSender(one=dict(GOOD), two=dict(GOOD))
    monkeypatch.setattr(preflight, "RequestsTransport", lambda: sender)
    monkeypatch.setattr(rollout, "RequestsTransport", lambda: sender)
    return sender


@pytest.mark.parametrize("path", ["listversions.json", "listspiders.json"])
@pytest.mark.parametrize(
    ("error", "is_answer"),
    [(NoReply, False), (ConnectionLost, False), (AuthRefused, True), (ApiRefused, True)],
)
def test_a_node_that_does_not_answer_while_it_gets_the_code_is_not_judged(
    answer: FleetSender, path: str, error: type[NodeError], is_answer: bool
) -> None:
    request = request_of(deploy="never")
    prepared = preflight.prepare(request, NODES)
    answer.answers["two"][path] = error.at("two")
    if is_answer:
        assert str(error.at("two")) in preflight.bring(request, NODES[1], prepared)
    else:
        with pytest.raises(error):
            preflight.bring(request, NODES[1], prepared)


def test_a_node_that_does_not_answer_amid_the_start_is_one_that_is_away(
    answer: FleetSender,
) -> None:
    answer.answers["two"]["listspiders.json"] = NoReply.at("two")
    prepared = preflight.prepare(request_of(deploy="never"), NODES)
    one, two = prepared.members
    assert (one.able, one.up) == (True, True)
    assert (two.up, two.readiness.unfit, two.readiness.prepared) == (False, "", False)
    assert [warning.split(":")[0] for warning in prepared.warnings] == ["two"]
    assert "uses it when it answers" in prepared.warnings[0]


@pytest.mark.parametrize("configuration", [None, "no section\n"])
def test_they_are_stopped_where_no_scrapy_cfg_can_be_read(
    sdist: Callable[..., Result], root: Path, configuration: str | None
) -> None:
    (root / "scrapy.cfg").unlink()
    if configuration is not None:
        (root / "scrapy.cfg").write_text(configuration)
    state = root / ".sdist"
    folder = state / "nodes/local1"
    folder.mkdir(parents=True)
    process = subprocess.Popen(["sleep", "60"], cwd=folder, start_new_session=True)
    node = LocalNode(
        name="local1", port=1, password="p", slots=1, pid=process.pid, folder=folder.resolve()
    )
    local_nodes.write(state, [node])
    assert sdist("nodes", "down").expect(0).err == "Stopped local1.\n"
    assert not local_nodes.is_alive(node)
    process.returncode = 0  # the command has reaped it


def test_without_a_state_folder_it_says_that_there_is_no_project(
    sdist: Callable[..., Result], root: Path
) -> None:
    (root / "scrapy.cfg").unlink()
    sdist("nodes", "down").expect(2, "There is no scrapy.cfg")
