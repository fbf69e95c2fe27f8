"""Nodes beside those of scrapy.cfg: which addresses are taken, and which names are taken away."""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from scrapyd_dist.deploy import local_nodes

from scrapyd_dist.config import STATE_FOLDER, state_dir
from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    ConnectionRefused,
    NoNodeReachable,
    NothingMatched,
)
from scrapyd_dist.fleet.added_nodes import (
    add_nodes,
    check_any_answers,
    choose_removed,
    read_addresses,
    remove_nodes,
)
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.jobs.job_site import open_site
from scrapyd_dist.nodes import Node

NODE = Node.parse("web4:6800", name="web4")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = "[settings]\ndefault = s\n[deploy:web1]\nurl = http://web1:6800/\n"
    (tmp_path / "scrapy.cfg").write_text(text)
    with closing(Workspace(tmp_path)) as opened:
        yield opened


def test_what_is_added_is_of_the_fleet_until_it_is_removed(workspace: Workspace) -> None:
    nodes = read_addresses(workspace, ["web4:6800"], "spare")
    add_nodes(workspace, nodes)
    assert [node.name for node in workspace.added] == ["spare"]
    with pytest.raises(ConfigError, match="There is a node 'spare' already"):
        read_addresses(workspace, ["web5:6800"], "spare")
    chosen = choose_removed(workspace, ["sp*"])
    assert [node.name for node in chosen] == ["spare"]
    remove_nodes(workspace, chosen)
    assert workspace.added == ()


def test_what_cannot_be_added_or_removed_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="netrc") as caught:
        read_addresses(workspace, ["http://me:hush@web4:6800"], None)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="is a target of"):
        choose_removed(workspace, ["web1"])
    with pytest.raises(NothingMatched, match="Those that were: none"):
        choose_removed(workspace, ["web9"])


@pytest.fixture
def with_local_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace whose only nodes are local: local1 runs (it is this process), local2 is dead."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = s\n")
    with local_nodes.locked(state_dir(tmp_path)):
        rows: list[local_nodes.LocalNode] = []
        for name, folder in (("local1", Path.cwd()), ("local2", tmp_path)):
            row = local_nodes.LocalNode(
                name=name, port=1, password="hush", slots=1, pid=os.getpid(), folder=folder
            )
            rows.append(replace(row, port=1 + len(rows)))
        local_nodes.write(tmp_path / STATE_FOLDER, rows)
    with closing(Workspace(tmp_path)) as opened:
        yield opened


def test_a_dead_local_node_is_known_by_its_name_and_gets_nothing(
    with_local_nodes: Workspace,
) -> None:
    def names(nodes: Iterable[Node]) -> list[str]:
        return [node.name for node in nodes]

    assert names(with_local_nodes.nodes()) == ["local1"]
    assert names(with_local_nodes.nodes(["local2"])) == ["local2"]
    assert names(with_local_nodes.known_nodes()) == ["local1", "local2"]
    assert names(with_local_nodes.configured_nodes()) == ["local1", "local2"]
    assert names(open_site(with_local_nodes).find_dead(None)) == ["local2"]
    assert names(open_site(with_local_nodes).find_dead(["local1"])) == [], "another was asked for"
    add_nodes(with_local_nodes, [NODE])
    assert names(open_site(with_local_nodes).find_dead(None)) == [], "local nodes rest"


def test_a_dead_local_node_is_forgotten_and_one_that_runs_is_not(
    with_local_nodes: Workspace,
) -> None:
    with pytest.raises(ConfigError, match="runs: `sdist nodes down`"):
        choose_removed(with_local_nodes, ["local1"])
    chosen = choose_removed(with_local_nodes, ["local*"])
    assert [node.name for node in chosen] == ["local2"]
    remove_nodes(with_local_nodes, chosen)
    assert with_local_nodes.dead_local_nodes == ()
    assert [node.name for node in with_local_nodes.local_nodes] == ["local1"]


def test_local_nodes_do_not_rest_for_nodes_of_which_none_answers() -> None:
    silent = NodeStatus(node=NODE, error=ConnectionRefused("web4: connection refused."))
    locked = NodeStatus(node=NODE, error=AuthRefused("web4: wrong password."))
    with pytest.raises(NoNodeReachable, match="Nothing was added"):
        check_any_answers([silent], [NODE])
    check_any_answers([silent, locked], [NODE])
    check_any_answers([silent], [])
