"""A fleet that is watched: nodes that join and leave, jobs that come and go, their pace."""

from contextlib import closing
from pathlib import Path

import pytest

from scrapyd_dist.fleet import fleet_watch
from scrapyd_dist.fleet.fleet_watch import FleetWatch
from scrapyd_dist.fleet.workspace import Workspace


def test_nodes_that_join_and_leave_while_the_fleet_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "LIST", 0.0)
    config = tmp_path / "scrapy.cfg"
    text = "[settings]\ndefault = shop.settings\n[deploy:web1]\nurl = http://127.0.0.1:9/\n"
    config.write_text(text)
    with closing(Workspace(tmp_path)) as workspace:
        fleet = FleetWatch(workspace)
        before = fleet.nodes[0]
        config.write_text(text + "[deploy:web2]\nurl = http://127.0.0.1:19/\n")
        fleet.poll()
        assert [one.status.node.name for one in fleet.nodes] == ["web1", "web2"]
        assert fleet.nodes[0] is before, "what is known of it is kept"
        config.write_text("[deploy:web2")
        fleet.poll()
        assert len(fleet.nodes) == 2, "a file that cannot be read says nothing"
        config.write_text(text)
        fleet.poll()
        assert fleet.nodes == [before]
