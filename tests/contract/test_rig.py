"""The rig keeps its word: nodes are real, know nothing of this project, and leave nothing running behind."""

import subprocess
from pathlib import Path

from rig.fixtures import MakeProject, StartSite
from rig.nodes import Nodes
from rig.processes import private_environment, with_home
from rig.waiting import wait_for


def test_a_node_cannot_import_this_project(node_python: Path, tmp_path: Path) -> None:
    line = [str(node_python), "-c", "import scrapyd_dist"]
    done = subprocess.run(
        line, cwd=tmp_path, env=private_environment(tmp_path), check=False, capture_output=True
    )
    assert b"No module named 'scrapyd_dist'" in done.stderr


def test_jobs_outlive_a_killed_daemon_and_end_with_the_node(
    nodes: Nodes, project: MakeProject, site: StartSite
) -> None:
    running = site(30)
    running.behave({"/*": "hang"})
    node = nodes.make(poll_interval=0.1)
    demo = project(settings={"START_URL": running.start_url})
    # Without an egg: Scrapyd also serves the project it is started in.
    for name in ("scrapy.cfg", demo.name):
        (demo.path / name).rename(node.work / name)
    node.start()
    node.wait()
    job = node.api(
        "schedule.json", project="default", spider="plain", setting=["A=1", "B=2"], jobid="j1"
    )
    assert job["status"] == "ok", job
    wait_for(running.hits, 60, "the job's first request")
    assert list(node.job_pids().values()) == ["j1"]
    assert [row["id"] for row in node.jobs("running", "default")] == ["j1"]
    assert "Spider opened" in node.job_log("j1")
    node.kill()
    assert list(node.job_pids().values()) == ["j1"]
    node.close()
    assert with_home(node.home) == {}
