"""Which nodes plain jobs go to, and which version they run."""

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from scrapyd_dist.errors import ConfigError, ConnectionRefused, NothingMatched
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.jobs.job_fleet import JobFleet, make_fleet
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.queue_runner import _is_complete
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
NODES = [
    replace(Node.parse(f"web{number}", slots=slots), project="p")
    for number, slots in [(1, 2), (2, 2), (3, 8)]
]


def load_of(running: int) -> Load:
    return Load(pending=0, running=running, finished=0, node_name="web1", date=NOW)


def fleet(*loads: int, versions: list[list[str]] | None = None) -> JobFleet:
    """Three nodes with so many jobs each, and these versions."""
    sender: Any = None  # nothing is sent here
    made = JobFleet(sender=sender, nodes=NODES, timeout=1)
    names = versions or [["a", "b"]] * len(NODES)
    for node, load, known in zip(NODES, loads, names, strict=True):
        made._seen[node] = NodeStatus(node=node, load=load_of(load), versions=tuple(known))
    return made


def places(made: JobFleet, count: int) -> list[str]:
    return [node.host for _ in range(count) for node in made.places(None, all_nodes=False)]


def test_jobs_go_where_there_is_least_to_do_per_slot() -> None:
    assert places(fleet(2, 0, 4), 4) == ["web2", "web2", "web3", "web3"]
    assert places(fleet(0, 0, 0), 12).count("web3") == 8


def test_a_named_node_and_all_nodes() -> None:
    made = fleet(9, 0, 0)
    assert [node.host for node in made.places("web1:6800", all_nodes=False)] == ["web1"]
    assert [node.host for node in made.places(None, all_nodes=True)] == ["web1", "web2", "web3"]
    with pytest.raises(NothingMatched, match="web2:6800"):
        made.places("nosuch", all_nodes=False)
    made = replace(
        made,
        errors={NODES[1]: ConnectionRefused.at("web2")},
        _seen={NODES[0]: made._seen[NODES[0]]},
    )
    with pytest.raises(ConnectionRefused, match="web2"):
        made.places("web2:6800", all_nodes=False)


def test_a_local_node_that_has_died_is_named_as_one_that_is_down() -> None:
    dead = Node.parse("127.0.0.1:1", name="local2", local=True)
    made = replace(fleet(0, 0, 0), dead=[dead])
    with pytest.raises(ConnectionRefused, match=r"local2 .* its process has ended.*nodes up N"):
        made.places("local2", all_nodes=False)
    with pytest.raises(NothingMatched, match="There is no node 'local3'"):
        made.places("local3", all_nodes=False)
    assert _is_complete(fleet(0, 0, 0))
    assert not _is_complete(made), "a job that waits for it goes on waiting"
    with pytest.raises(ConnectionRefused, match="sdist nodes drain local2 --no-wait"):
        replace(made, _seen={}).busy_spiders(all_nodes=False)  # its jobs may live on


CRAWLS, OLDER, NEWER = "0-a1795176000-001250999896491", "1795170000", "1795180000-001250999896491"
BEHIND = "r2-z1795180001-000000000000001"


@pytest.mark.parametrize(
    ("versions", "wanted", "chosen", "why"),
    [
        ([["a", "b"], ["a"], ["a", "b"]], None, "a", "when it was deployed is not known"),
        ([["1_9", "1_10"], ["1_9", "1_10"], ["1_10"]], "1.10", "1_10", ""),
        ([[CRAWLS, OLDER, NEWER, "r9-main"]] * 3, None, NEWER, "(when r9-main came is not known)"),
        (
            [[CRAWLS, OLDER, NEWER], [CRAWLS, OLDER], [OLDER]],
            None,
            OLDER,
            "newest deployment that all",
        ),
        ([[CRAWLS]] * 3, None, CRAWLS, "which a crawl brought"),
    ],
)
def test_the_version_is_one_that_all_have(
    versions: list[list[str]], wanted: str | None, chosen: str, why: str
) -> None:
    made = fleet(0, 0, 0, versions=versions)
    assert made._common(wanted) == chosen
    assert why in made.why


def test_the_version_of_jobs_for_one_node_is_that_nodes_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way of scrapyd-deploy: new code on one node, and a job there."""
    made = fleet(0, 0, 0, versions=[[OLDER, NEWER], [OLDER], [OLDER]])
    monkeypatch.setattr(made, "poll_nodes", lambda: None)
    made.settle_version(None, "web1:6800")
    assert (made.version, made.why) == (NEWER, "the newest deployment that web1:6800 has")
    made.settle_version(NEWER[:10], "web1:6800")
    assert made.version == NEWER
    made.settle_version(None, "nosuch")  # which is refused when the job is placed
    assert made.version == OLDER


def test_no_version_in_common() -> None:
    apart = fleet(0, 0, 0, versions=[["a"], ["b"], []])
    with pytest.raises(ConfigError, match="deploy --all"):
        apart._common(None)
    with pytest.raises(NothingMatched, match="not on web2:6800, web3:6800"):
        apart._common("a")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [("0123", NEWER), ("17951800", NEWER), ("r2-z", BEHIND), ("r1", "r1"), ("1795170", OLDER)],
)
def test_a_version_may_be_asked_for_by_how_its_name_or_its_content_hash_begins(
    wanted: str, chosen: str
) -> None:
    names = [CRAWLS, OLDER, NEWER, "r1", "r10", BEHIND]
    assert fleet(0, 0, 0, versions=[names, names, names[1:]])._common(wanted) == chosen


def test_what_fits_several_versions_or_none_is_answered_with_those_that_are_there() -> None:
    made = fleet(0, 0, 0, versions=[[OLDER, NEWER], [NEWER], [NEWER, "r10"]])
    with pytest.raises(NothingMatched, match=rf"'1795' may be each of {OLDER}, {NEWER}. Give more"):
        made._common("1795")
    # That of a name that was chosen may be another one that is gone; three digits say little.
    for wanted in ("r1", "179"):
        with pytest.raises(NothingMatched, match=rf"no version '{wanted}' .*: {OLDER}, {NEWER}, r"):
            made._common(wanted)


def test_a_node_that_is_draining_is_asked_for_with_a_reason() -> None:
    made = replace(fleet(0, 0, 0), draining=[Node.parse("web9", name="web 9")])
    with pytest.raises(ConfigError, match="sdist nodes resume 'web 9'"):
        made.places("web 9", all_nodes=False)
    assert places(made, 6).count("web9") == 0
    assert "web9" not in [node.host for node in made.places(None, all_nodes=True)]


class Listener(NoMessenger):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def test_nodes_that_are_draining_are_passed_over_and_named() -> None:
    sender: Any = None  # nothing is sent here
    listener = Listener()
    site = JobSite(
        root=Path(),
        sender=sender,
        find_store=lambda: None,
        find_drained=lambda nodes: [node for node in nodes if node.host != "web1"],
        messenger=listener,
    )
    made = make_fleet(site, NODES, 1.0, lambda nodes: {"v1": float(len(nodes))})
    assert ([node.host for node in made.nodes], made.known) == (["web1"], {"v1": 1.0})
    made.pass_over_draining()
    assert listener.texts == ["Passed over, since draining: web2:6800, web3:6800."]
    with pytest.raises(ConfigError, match="sdist nodes resume web2:6800 web3:6800"):
        make_fleet(site, NODES[1:], 1.0, lambda _: {}).pass_over_draining()
    make_fleet(site, [], 1.0, lambda _: {}).pass_over_draining()
    assert len(listener.texts) == 1
