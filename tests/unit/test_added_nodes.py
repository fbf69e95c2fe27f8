"""Nodes beside those of scrapy.cfg: which addresses are taken, and which names are taken away."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

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
    choose_added,
    read_addresses,
    remove_nodes,
)
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.workspace import Workspace
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
    chosen = choose_added(workspace, ["sp*"])
    assert [node.name for node in chosen] == ["spare"]
    remove_nodes(workspace, chosen)
    assert workspace.added == ()


def test_what_cannot_be_added_or_removed_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="netrc") as caught:
        read_addresses(workspace, ["http://me:hush@web4:6800"], None)
    assert "hush" not in str(caught.value)
    with pytest.raises(ConfigError, match="is a target of"):
        choose_added(workspace, ["web1"])
    with pytest.raises(NothingMatched, match="Those that were: none"):
        choose_added(workspace, ["web9"])


def test_local_nodes_do_not_rest_for_nodes_of_which_none_answers() -> None:
    silent = NodeStatus(node=NODE, error=ConnectionRefused("web4: connection refused."))
    locked = NodeStatus(node=NODE, error=AuthRefused("web4: wrong password."))
    with pytest.raises(NoNodeReachable, match="Nothing was added"):
        check_any_answers([silent], [NODE])
    check_any_answers([silent, locked], [NODE])
    check_any_answers([silent], [])
