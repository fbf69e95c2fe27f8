"""Findings that need all nodes: mixed code, and names and addresses that come twice."""

from dataclasses import replace
from datetime import datetime, timezone

from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.fleet_findings import fleet_findings
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
LOCAL = Node.parse("http://127.0.0.1:6800", name="web1")
WELL = NodeDiagnosis(
    node=LOCAL,
    load=Load(pending=0, running=0, finished=0, node_name="web1", date=NOW),
    project="p",
    versions=("a",),
)


def test_a_fleet_that_is_mixed() -> None:
    other = Node.parse("web2", name="web2")
    same = fleet_findings([WELL, replace(WELL, node=other)], [LOCAL, other])
    assert [(one.topic, one.node) for one in same] == [
        ("names", "web1, web2")
    ]  # both call themselves web1
    (mixed, *_) = fleet_findings(
        [WELL, replace(WELL, node=other, versions=("b",)), replace(WELL, versions=())], [LOCAL]
    )
    assert mixed.topic == "versions"
    assert "a on web1; b on web2" in mixed.text
    twice = fleet_findings([], [LOCAL, replace(LOCAL, name="again")])
    assert twice[0].remedy == "scrapy.cfg: remove [deploy:again]"


def test_two_projects_are_not_compared() -> None:
    one, two = (
        replace(LOCAL, project="one"),
        replace(Node.parse("web2", name="web2"), project="two"),
    )
    load = replace(WELL.load, node_name="web2") if WELL.load else None
    assert not fleet_findings(
        [replace(WELL, node=one), replace(WELL, node=two, load=load, versions=("b",))], []
    )
    assert not fleet_findings([], [one, replace(one, name="again", project="two")])
