"""A fleet that is asked once: rows, states and versions, what is remembered, the exit code."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rig.fleet_sender import FleetSender, loaded

from scrapyd_dist.errors import ConnectionRefused, StoreError
from scrapyd_dist.fleet.node_status import NodeHealth, NodeStatus, show_state
from scrapyd_dist.fleet.survey import fleet_exit_code, survey_fleet
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.nodes import Node

OLD, NEW = "1793491200-187649984473770", "1793577600-206414982921147"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    targets = [f"[deploy:web{n}]\nurl = http://web{n}:6800/\n" for n in (1, 2, 3)]
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = s\n" + "".join(targets))
    with closing(Workspace(tmp_path)) as opened:
        yield opened


def fleet() -> FleetSender:
    """Two nodes that answer with different versions; the third one is down."""
    one = {**loaded(running=2), "listversions.json": (OLD,)}
    two = {**loaded(pending=1), "listversions.json": (OLD, NEW)}
    return FleetSender(web1=one, web2=two)


def test_all_nodes_are_asked_and_stand_in_their_order(workspace: Workspace) -> None:
    notes: list[str] = []

    @contextmanager
    def progress(nodes: int) -> Iterator[object]:
        notes.append(str(nodes))
        yield lambda status: notes.append(status.node.name)

    sender = fleet()
    survey = survey_fleet(
        workspace,
        workspace.nodes(),
        "shop",
        sender=sender,
        progress=progress,  # type: ignore[arg-type]
    )
    assert [status.state.value for status in survey.statuses] == ["up", "up", "down"]
    rows = [survey.document(status) for status in survey.statuses]
    assert [(row["name"], row["running"], row["version"], row["drift"]) for row in rows] == [
        ("web1", 2, OLD, True),
        ("web2", 0, NEW, False),
        ("web3", None, None, None),
    ]
    assert (survey.usual_version, survey.exit_code) == (NEW, 3)
    assert [one.node.name for one in survey.in_states([NodeHealth.DOWN])] == ["web3"]
    assert len(survey.in_states(None)) == 3
    assert (notes[0], set(notes[1:])) == ("3", {"web1", "web2", "web3"})
    assert ("web3", "listversions.json") not in sender.asked, "who is down is not asked again"


def test_what_is_remembered_of_the_nodes_is_added(workspace: Workspace) -> None:
    workspace.remember({"web2": {"draining": 1.0}, "web3": {"draining": 1.0}})
    survey = survey_fleet(workspace, workspace.nodes(), sender=fleet())
    assert [status.state.value for status in survey.statuses] == ["up", "draining", "down"]
    shown = [show_state(survey.document(status)) for status in survey.statuses]
    assert shown == ["up", "draining", "down, drained"]
    for state, names in (("DRAINED", ["web3"]), ("DOWN", ["web3"]), ("DRAINING", ["web2"])):
        found = survey.in_states([NodeHealth[state]])
        assert [status.node.name for status in found] == names
    assert survey.exit_code == 0, "a drained node need not answer"
    looks = workspace.node_records(workspace.nodes())["web2"].idle_looks
    assert len(looks) == 1, "that it starts nothing is remembered"


def test_a_store_that_is_away_is_complained_of_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints = []

    class Kept(NoMessenger):
        def complain(self, text: str) -> None:
            complaints.append(text)

    def away(_self: object) -> None:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(Workspace, "store_if_any", property(away))
    nodes = [Node.parse("web1:6800", name="web1")]
    survey = survey_fleet(workspace, nodes, sender=fleet(), messenger=Kept())
    assert survey.statuses[0].state is NodeHealth.UP
    assert len(complaints) == 1
    assert "draining or wedged" in complaints[0]


def test_a_node_that_starts_nothing_is_a_failure_of_one() -> None:
    nodes = [NodeStatus(node=Node.parse("web1"), wedged=True), NodeStatus(node=Node.parse("web2"))]
    assert (fleet_exit_code(nodes), fleet_exit_code(nodes[1:])) == (3, 0)


def test_a_drained_node_need_not_answer_unless_it_is_the_only_one() -> None:
    drained = NodeStatus(node=Node.parse("web1"), error=ConnectionRefused(), draining=1.0)
    down = NodeStatus(node=Node.parse("web3"), error=ConnectionRefused())
    well = NodeStatus(node=Node.parse("web2"))
    codes = [
        fleet_exit_code(seen)
        for seen in ([drained, well], [drained, well, down], [drained], [drained, down])
    ]
    assert codes == [0, 3, 5, 5]
