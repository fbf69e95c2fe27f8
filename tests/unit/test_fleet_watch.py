"""A fleet that is watched: nodes that join and leave, jobs that come and go, their pace."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rig.fleet_sender import FleetSender, listed, loaded

from scrapyd_dist.errors import StoreError
from scrapyd_dist.fleet import fleet_watch
from scrapyd_dist.fleet.fleet_watch import FleetWatch
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.scrapyd.api import Chunk


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


def test_jobs_that_come_and_go_and_a_node_that_is_silent_for_a_while(tmp_path: Path) -> None:
    text = "[settings]\ndefault = shop.settings\n[deploy:web1]\nurl = http://web1:6800/\n"
    (tmp_path / "scrapy.cfg").write_text(text)
    sender = FleetSender(web1=loaded(running=2))
    with closing(Workspace(tmp_path)) as workspace:
        workspace.sender = sender
        fleet = FleetWatch(workspace)
        fleet.poll()
        (node,) = fleet.document()["nodes"]
        assert (node["state"], node["running"], len(node["jobs"])) == ("up", 2, 2)
        assert {job["reason"] for job in node["jobs"]} == {"page not found"}, (
            "they have no log here"
        )
        first = fleet.nodes[0].jobs["running0"]
        sender.answers["web1"] = loaded(running=1, finished=1)
        fleet.poll()
        assert fleet.nodes[0].jobs == {"running0": first}, "what is known of it is kept"
        asked = sender.asked.count(("web1", "listjobs.json"))
        sender.answers["web1"]["listjobs.json"] = listed()
        fleet.poll()
        assert sender.asked.count(("web1", "listjobs.json")) == asked, "its numbers are the same"
        sender.answers.clear()
        fleet.poll()
        (node,) = fleet.document()["nodes"]
        assert (node["state"], node["running"], node["jobs"]) == ("down", None, [])


def test_a_node_is_draining_still_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[settings]\ndefault = shop.settings\n[deploy:web1]\nurl = http://web1:6800/\n"
    (tmp_path / "scrapy.cfg").write_text(text)

    def away(_self: object) -> None:
        raise StoreError("the store does not answer")

    with closing(Workspace(tmp_path)) as workspace:
        workspace.sender = FleetSender(web1=loaded())
        workspace.remember({"web1": {"draining": 1.0}})
        fleet = FleetWatch(workspace)
        fleet.poll()
        with monkeypatch.context() as later:
            later.setattr(Workspace, "store_if_any", property(away))
            fleet.poll()
        assert fleet.document()["nodes"][0]["state"] == "drained"


def test_of_a_plain_job_is_known_what_scrapy_has_logged(tmp_path: Path) -> None:
    text = "[settings]\ndefault = shop.settings\n[deploy:web1]\nurl = http://web1:6800/\n"
    (tmp_path / "scrapy.cfg").write_text(text)
    sender = FleetSender(web1=loaded(running=1))
    with closing(Workspace(tmp_path)) as workspace:
        workspace.sender = sender
        fleet = FleetWatch(workspace)
        log = stats_line(pages=0, pages_per_min=0, items=0, items_per_min=0)
        sender.answers["web1"]["logs/p/s/running0.log"] = chunk(log)
        fleet.poll()
        assert numbers(fleet) == (None, None, {"pages": None, "items": None, "errors": None})
        log += stats_line(pages=40, pages_per_min=38, items=33, items_per_min=31)
        sender.answers["web1"]["logs/p/s/running0.log"] = chunk(log)
        fleet.poll()
        assert numbers(fleet) == (40, 33, {"pages": 38.0, "items": 31.0, "errors": None})
        assert fleet.document()["per_min"] == {"pages": 38.0, "items": 31.0, "errors": 0.0}


def stats_line(**counts: int) -> str:
    words = (
        "Crawled {pages} pages (at {pages_per_min} pages/min),"
        " scraped {items} items (at {items_per_min} items/min)\n"
    )
    begun = "2026-11-20 23:05:01 [scrapy.core.engine] INFO: Spider opened\n"
    logger = "2026-11-20 23:05:01 [scrapy.extensions.logstats] INFO: "
    return (begun if not counts["pages"] else "") + logger + words.format(**counts)


def chunk(log: str) -> Chunk:
    now = datetime.now(timezone.utc)
    return Chunk(body=log.encode(), start=0, total=len(log), date=now, modified=now)


def numbers(fleet: FleetWatch) -> tuple[int | None, int | None, dict[str, float | None]]:
    """Pages, items and rates of the only job."""
    (job,) = fleet.document()["nodes"][0]["jobs"]
    return job["pages"], job["items"], job["per_min"]
