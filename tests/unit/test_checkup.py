"""A fleet that is examined: what is found on which node, what endangers work, and where work is stuck."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.fleet_sender import FleetSender, loaded
from scrapyd_dist.cli.nodes.doctor import _report
from scrapyd_dist.cli.output import Output

from scrapyd_dist.fleet import waiting_work
from scrapyd_dist.fleet.checkup import check_fleet
from scrapyd_dist.fleet.findings import Severity
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.scheduling import liveness


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    targets = [f"[deploy:web{n}]\nurl = http://127.0.0.1:{n}/\n" for n in (1, 2)]
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = s\n" + "".join(targets))
    with closing(Workspace(tmp_path)) as opened:
        yield opened


def well(**jobs: int) -> dict[str, Any]:
    """The answers of a node on which nothing is wrong."""
    return {**loaded(**jobs), "listversions.json": ("1",), "listspiders.json": ("s",)}


def test_what_several_nodes_have_is_one_note_about_them(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = FleetSender(
        web1={**well(), "listversions.json": ()}, web2={**well(), "listversions.json": ()}
    )
    checkup = check_fleet(workspace, workspace.nodes(), "p", sender=sender)
    _report(checkup, Output(), verbose=True)
    shown = capsys.readouterr()
    assert "note: web1, web2: versions: they have no version of the project p" in shown.out
    notes = shown.out.count("note: ")
    assert f"{notes} note" in shown.err


def test_findings_stand_with_the_worst_first(workspace: Workspace) -> None:
    sender = FleetSender(web1=well())
    checkup = check_fleet(workspace, workspace.nodes(), "p", sender=sender)
    assert [exam.node.name for exam in checkup.exams] == ["web1", "web2"]
    found = [(finding.severity, finding.node, finding.topic) for finding in checkup.findings]
    assert found[0] == (Severity.DANGER, "web2", "reach")
    assert (Severity.WARNING, "web1", "version") in found, "it has no status.json"
    assert not checkup.endangers_work, "who does not answer decides another exit code"
    document = checkup.document()
    assert [node["state"] for node in document["nodes"]] == ["up", "down"]
    assert document["nodes"][0]["versions"] == ("1",)
    assert document["findings"][0]["severity"] == "danger"


def test_where_work_waits_and_none_runs_it_is_looked_at_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_work, "EVERY", 0.0)
    monkeypatch.setattr(liveness, "POLL", 0.0)
    workspace.remember({"web2": {"draining": 1.0}})
    sender = FleetSender(web1=well(pending=2), web2=well())
    checkup = check_fleet(workspace, workspace.nodes(), None, sender=sender)
    assert [exam.state.value for exam in checkup.exams] == ["wedged", "drained"]
    assert checkup.endangers_work
    assert sender.asked.count(("web1", "daemonstatus.json")) >= liveness.LOOKS
    assert sender.asked.count(("web2", "daemonstatus.json")) == 1
