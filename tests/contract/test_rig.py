"""The rig keeps its word: nodes are real, know nothing of this project, and leave nothing running behind."""

import json
import subprocess
from pathlib import Path

import pytest
from rig.fixtures import MakeProject, StartSite
from rig.forks import ForkedProgram
from rig.nodes import IMPORTS, Nodes
from rig.processes import private_environment, with_home
from rig.waiting import wait_for

PROBE = """
import json, os, signal, sys

print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path, "executable": sys.executable,
    "stdin": os.readlink("/proc/self/fd/0"), "umask": os.umask(0),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "the daemon leads a session": os.getsid(os.getppid()) == os.getppid(),
}))
"""


def test_a_node_cannot_import_this_project(node_python: Path, tmp_path: Path) -> None:
    line = [str(node_python), "-c", "import scrapyd_dist"]
    done = subprocess.run(line, cwd=tmp_path, env=private_environment(tmp_path), check=False, capture_output=True)
    assert b"No module named 'scrapyd_dist'" in done.stderr


def test_a_forked_node_is_like_one_that_was_started_by_its_command(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, egg = [], b"PK\5\6" + bytes(18)  # an empty ZIP file
    for preload in (IMPORTS, ()):
        monkeypatch.setattr("rig.nodes.IMPORTS", preload)
        node = nodes.make(runner="probe")
        (node.work / "probe.py").write_text(PROBE, encoding="utf-8")
        node.start()
        node.wait()
        assert isinstance(node._daemon, ForkedProgram) is bool(preload)
        answers = [node.api(f"{name}.json") for name in ("daemonstatus", "listprojects", "listjobs")]
        added = node.add_version("p", "1", egg)
        assert added["status"] == "ok", added
        spiders = node.api("listspiders.json", project="p")
        files = sorted(str(path.relative_to(node.home.parent)) for path in node.home.parent.rglob("*"))
        told = json.dumps([answers, spiders, files])
        seen.append(told.replace(node.name, "NODE").replace(str(node.port), "PORT"))
    assert json.loads(seen[0]) == json.loads(seen[1])


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
    job = node.api("schedule.json", project="default", spider="plain", setting=["A=1", "B=2"], jobid="j1")
    assert job["status"] == "ok", job
    wait_for(running.hits, 60, "the job's first request")
    assert list(node.job_pids().values()) == ["j1"]
    assert [row["id"] for row in node.jobs("running", "default")] == ["j1"]
    assert "Spider opened" in node.job_log("j1")
    node.kill()
    assert list(node.job_pids().values()) == ["j1"]
    node.close()
    assert with_home(node.home) == {}
