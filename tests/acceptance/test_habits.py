"""What users of other tools type, and what the page of habits says instead, at a real node."""

import re
import shlex
from pathlib import Path

import pytest
from rig.fixtures import MakeProject, RunCommand, StartFleet
from rig.nodes import ScrapydNode

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "habits.md"
ROWS = re.findall(
    r"^\| (.+) \| (`sdist .+`|) ?\| `(sdist .+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE
)


@pytest.fixture
def node(fleet: StartFleet) -> ScrapydNode:
    return fleet(1)[0]


@pytest.mark.black_box
def test_what_is_typed_elsewhere_is_understood(
    run_cli: RunCommand, project: MakeProject, node: ScrapydNode
) -> None:
    made = project(extra=f"[deploy]\nurl = {node.url}\nproject = properties\n")
    made.write("urls.txt", f"{node.url}\n")
    job = ""
    for there, same, own in ROWS:
        words = there.strip("`").split()
        if same and words[0] in {"scrapyd-client", "scrapyd-deploy", "shub", "curl"}:
            verb = {"scrapyd-deploy": ["deploy"], "curl": ["api"]}.get(words[0], [])
            assert same.strip("`").split() == ["sdist", *verb, *words[1:]], "the words are the same"
        for line in dict.fromkeys(
            filter(None, (own if "frontier add" in own else same.strip("`"), own))
        ):
            typed = shlex.split(
                line.replace("http://localhost:6800", node.url.rstrip("/")).replace("JOB", job)
            )[1:]
            done = run_cli(made, *typed).expect(0)
            if found := re.search(r"easy-\d{8}T\d{6}Z-\w+", done.out):
                job = found[0]
                node.wait_idle()
    assert len(ROWS) > 15
    assert "lpush" in PAGE.read_text("utf-8")


@pytest.mark.black_box
def test_nodes_are_named_by_their_addresses_outside_a_project(
    run_cli: RunCommand, project: MakeProject, node: ScrapydNode, tmp_path: Path
) -> None:
    made = project()
    outside = tmp_path / "outside"
    outside.mkdir()
    (made.path / "scrapy.cfg").rename(outside / "kept.cfg")
    for words in (["nodes", "-t"], ["jobs", "-t"], ["projects", "-t"], ["api"]):
        run_cli(made, *words, node.url, *(["listprojects"] if words == ["api"] else [])).expect(0)
    assert "Traceback" not in run_cli(made, "doctor", node.url).err
    named = {"SDIST_NODES": node.url, "SDIST_PROJECT": "properties"}
    assert run_cli(made, "nodes", "--json", env=named, code=0).json()["nodes"][0][
        "url"
    ] == node.url.rstrip("/")
    assert run_cli(made, "nodes", env={"SDIST_NODES": "nosuch"}).code == 4
    assert not (made.path / ".sdist").exists()
