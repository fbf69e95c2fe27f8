"""What docs/howto/operating.md tells to type, typed in its order, on nodes of our own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rig.fixtures import MakeProject, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.processes import private_environment

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "operating.md"
SECRET = "hush-77"
ITEMS = 90


def guided(site: str, nodes: list[ScrapydNode]) -> list[str]:
    """The commands, with our addresses and smaller numbers."""
    text = GUIDE.read_text("utf-8")
    ours = {"http://web:9312": site, "--pages 1667": f"--pages {ITEMS // 30}", "--shards 20": "--shards 3"}
    ours |= {f"web{n}.example.com:6800": f"127.0.0.1:{node.port}" for n, node in enumerate(nodes, 1)}
    for theirs, instead in ours.items():
        text = text.replace(theirs, instead)
    return re.findall(r"^    (sdist [^\n]*)$", text, re.MULTILINE)


@pytest.mark.black_box
def test_the_guide_works_from_its_first_line_to_its_last(
    fleet: StartFleet, site: StartSite, project: MakeProject
) -> None:
    as_printed = {"jobs_to_keep": "1000000", "jobstorage": "scrapyd.jobstorage.SqliteJobStorage"}
    nodes = fleet(2, username="crawler", password=SECRET, **as_printed)
    made = project()
    made.home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = private_environment(made.home, {"PATH": path, "SDIST_WEB1_PASSWORD": SECRET, "SDIST_WEB2_PASSWORD": SECRET})
    said = []
    for line in guided(site(ITEMS).url, nodes):
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=made.path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=200, check=False,
        )  # fmt: skip
        said.append(f"$ {line}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, "\n".join(said)
        assert SECRET not in done.stdout + done.stderr
    assert len(said) > 20
    assert len(list(made.items("items.jl"))) == ITEMS
    assert "# TYPE" in (made.path / "sdist.prom").read_text("utf-8")
    assert "<svg" in (made.path / "first.html").read_text("utf-8")
