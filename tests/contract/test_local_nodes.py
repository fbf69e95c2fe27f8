"""Local nodes as real processes: started once, found again, shielded from what lies around, ended without a rest."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest
from rig.fixtures import MakeProject
from rig.http import fetch
from rig.projects import Project
from rig.waiting import wait_for
from scrapyd_dist.deploy import local_nodes
from scrapyd_dist.deploy.egg import build
from scrapyd_dist.deploy.local_nodes import Leader, is_alive, running, start_nodes, stop_nodes
from scrapyd_dist.deploy.rollout import RollOutRequest, ensure

from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports.requests import RequestsTransport

Start = Callable[..., tuple[Node, ...]]
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
LOW = "SDIST_LOW_PYTHON"

#: says that it began, and then never ends; `-a deaf=1` also ignores signals
SPIDER = """
import asyncio, signal
import scrapy

class Endless(scrapy.Spider):
    name = "endless"
    deaf = None

    async def start(self):
        if self.deaf:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        self.logger.info("it began")
        while True:
            await asyncio.sleep(0.05)
            yield None

class Short(scrapy.Spider):
    name = "short"

    async def start(self):
        return
        yield
"""


@pytest.fixture
def made(project: MakeProject) -> Project:
    """A project whose scrapy.cfg would lead a Scrapyd below its folder astray."""
    return project(
        spiders={"all": SPIDER},
        extra="[scrapyd]\nhttp_port = 1\nmax_proc = 77\nnode_name = astray\n",
    )


@pytest.fixture
def state(made: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = made.path.parent / "home"
    home.mkdir()
    (home / ".scrapyd.conf").write_text(
        "[scrapyd]\nitems_dir = items\nnode_name = astray\n", encoding="utf-8"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "no.such.module")
    folder = made.path / ".sdist"
    yield folder
    stop_nodes(folder, grace=0)


@pytest.fixture
def start(state: Path, node_python: Path) -> Start:
    return lambda count, **options: start_nodes(
        state, count, **{"python": str(node_python), **options}
    )


def ask(node: Node, call: Call[Any]) -> Any:
    return RequestsTransport().send(node, call)


def pids(state: Path) -> list[int]:
    return [
        row["pid"]
        for row in json.loads((state / "nodes/nodes.json").read_text(encoding="utf-8"))["nodes"]
    ]


def begin(node: Node, made: Project, job: str, **args: str) -> int:
    """Deploy, start the endless spider, and give its process id once it is under way."""
    result = ensure(
        [node],
        "small",
        build(made.path, "small.settings"),
        RollOutRequest(spider="endless"),
        now=NOON,
    )
    ask(node, api.schedule("small", "endless", jobid=job, version=result.version, args=args))
    log = made.path / ".sdist/nodes" / node.name / f"logs/small/endless/{job}.log"
    wait_for(lambda: "it began" in log.read_text(encoding="utf-8"), 60, f"the begin of {job}")
    (row,) = ask(node, api.listjobs()).running
    assert row.pid is not None
    return int(row.pid)


def is_there(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_up_and_down(start: Start, state: Path) -> None:
    assert (running(state), stop_nodes(state)) == ((), ())
    nodes = start(2)
    assert [node.name for node in nodes] == ["local1", "local2"]
    assert [ask(node, api.daemonstatus()).node_name for node in nodes] == ["local1", "local2"]
    assert {node.slots for node in nodes} == {max(1, len(os.sched_getaffinity(0)) // 2)}
    assert running(state) == nodes

    before = pids(state)
    assert start(1) == start(2) == nodes
    assert pids(state) == before

    # One that died is replaced, the other one stays.
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: not is_there(before[0]), 10, "the end of a node")
    assert [node.name for node in running(state)] == ["local2"]
    assert [node.name for node in start(2)] == ["local1", "local2"]
    assert pids(state)[1] == before[1]

    assert stop_nodes(state) == ("local1", "local2")
    assert not any(is_there(pid) for pid in before)
    assert (running(state), stop_nodes(state)) == ((), ())


@pytest.mark.black_box
def test_nothing_around_leads_it_astray(start: Start, state: Path, made: Project) -> None:
    (node,) = start(1, slots=3)
    assert ask(node, api.daemonstatus()).node_name == "local1"
    # The settings of the project's scrapy.cfg would make a project without an egg.
    assert ask(node, api.listprojects()) == ()
    assert "max_proc=3" in (state / "nodes/local1/scrapyd.log").read_text(encoding="utf-8")
    result = ensure([node], "small", build(made.path, "small.settings"), now=NOON)
    ask(node, api.schedule("small", "short", jobid="j", version=result.version))
    wait_for(lambda: ask(node, api.listjobs()).finished, 60, "the end of a job")
    assert "finish_reason': 'finished'" in (
        state / "nodes/local1/logs/small/short/j.log"
    ).read_text(encoding="utf-8")
    assert not (state / "nodes/local1/items").exists()

    # What finished is remembered over a restart.
    stop_nodes(state)
    (node,) = start(1)
    assert [job.id for job in ask(node, api.listjobs()).finished] == ["j"]


def test_only_its_owner_gets_in(start: Start, state: Path) -> None:
    (node,) = start(1)
    assert node.password
    assert fetch(node.url_of("daemonstatus.json")).status == 401
    assert fetch(node.url_of("daemonstatus.json"), auth=("sdist", "wrong")).status == 401
    assert stat.S_IMODE((state / "nodes/nodes.json").stat().st_mode) == 0o600
    command = Path(f"/proc/{pids(state)[0]}/cmdline").read_bytes().decode()
    files = [
        path.read_text(encoding="utf-8")
        for path in (state / "nodes/local1").iterdir()
        if path.is_file()
    ]
    assert node.password not in "".join([command, repr(node), *files])
    # Ctrl-C in this terminal does not reach it.
    assert os.getsid(pids(state)[0]) == pids(state)[0]


def test_down_ends_jobs_in_good_order_and_kills_what_does_not_listen(
    start: Start, state: Path, made: Project
) -> None:
    (node,) = start(1)
    job = begin(node, made, "j1")
    stop_nodes(state, grace=30)
    assert not is_there(job)
    assert "Spider closed (shutdown)" in (
        state / "nodes/local1/logs/small/endless/j1.log"
    ).read_text(encoding="utf-8")
    (node,) = start(1)
    job = begin(node, made, "j2", deaf="1")
    stop_nodes(state, grace=0.2)
    assert not is_there(job)


@pytest.mark.black_box
def test_down_ends_the_jobs_of_a_killed_node(start: Start, state: Path, made: Project) -> None:
    (node,) = start(1)
    job = begin(node, made, "j1")
    os.kill(pids(state)[0], signal.SIGKILL)
    wait_for(lambda: not running(state), 10, "the end of the node")
    assert is_there(job)
    # A new node does not take the place of one that has left a job.
    assert [node.name for node in start(1)] == ["local2"]
    assert stop_nodes(state, grace=30) == ("local2",)
    assert not is_there(job)


def test_a_reused_pid_is_left_alone(start: Start, state: Path) -> None:
    start(1)
    stop_nodes(state)
    # As if the id of a node belonged to another process by now.
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        path = state / "nodes/nodes.json"
        row = {
            "name": "local1",
            "port": 1,
            "password": "x",
            "slots": 1,
            "pid": other.pid,
            "folder": "/",
        }
        path.write_text(json.dumps({"schema": 1, "nodes": [row]}), encoding="utf-8")
        assert running(state) == ()
        assert stop_nodes(state, grace=0) == ()
        assert other.poll() is None
        other.communicate(b"\n", timeout=30)
        assert other.returncode == 0


class TestWhatGoesWrong:
    def test_without_scrapyd(self, state: Path, tmp_path: Path) -> None:
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        with pytest.raises(ConfigError, match=r"pip install 'scrapyd-dist\[local\]'"):
            start_nodes(state, 1, python=str(bare / "bin/python"))
        assert running(state) == ()

    @pytest.mark.parametrize(("count", "slots"), [(0, None), (-1, None), (1, 0)])
    def test_numbers_that_make_no_sense(self, state: Path, count: int, slots: int | None) -> None:
        with pytest.raises(ConfigError, match="must be one or more"):
            start_nodes(state, count, slots=slots)

    def test_one_that_dies_says_why(
        self, start: Start, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "scrapyd.py").write_text(
            "raise OSError('the disk is full of bees')\n", encoding="utf-8"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(DistError, match="the disk is full of bees"):
            start(1)
        assert running(state) == ()

    def test_one_that_never_answers_is_stopped(
        self, start: Start, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        note = tmp_path / "pid"
        text = f"import os, signal, pathlib\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\nsignal.pause()\n"
        (tmp_path / "scrapyd.py").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(local_nodes, "START_TIMEOUT", 2.0)
        with pytest.raises(DistError, match="did not answer within 2 seconds"):
            start(1)
        assert not is_there(int(note.read_text(encoding="utf-8")))
        assert running(state) == ()

    def test_a_port_that_is_taken(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as taken:
            ports = iter([taken.getsockname()[1]])
            free = local_nodes._free_port
            monkeypatch.setattr(local_nodes, "_free_port", lambda: next(ports, None) or free())
            (node,) = start(1)
        assert ask(node, api.daemonstatus()).node_name == "local1"

    def test_a_list_that_cannot_be_read(self, start: Start, state: Path) -> None:
        start(1)
        path = state / "nodes/nodes.json"
        good = path.read_text(encoding="utf-8")
        for bad in ("", "[]", '{"nodes": [{}]}'):
            path.write_text(bad, encoding="utf-8")
            with pytest.raises(ConfigError, match=r"nodes\.json"):
                running(state)
        path.write_text(good, encoding="utf-8")


if LOW in os.environ:

    def test_the_lowest_versions(start: Start, state: Path, made: Project) -> None:
        (node,) = start(1, python=os.environ[LOW])
        job = begin(node, made, "j1")
        assert stop_nodes(state, grace=30) == ("local1",)
        assert not is_there(job)


def test_without_psutil_the_extra_is_named(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert running(state) == ()
    with pytest.raises(ConfigError, match=r"need psutil.*pip install 'scrapyd-dist\[local\]'"):
        is_alive(Leader(pid=os.getpid(), folder=tmp_path))


def test_what_has_ended_is_no_leader(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        wait_for(lambda: process.poll() is not None, 30, "the end of a process")
    assert not is_alive(Leader(pid=process.pid, folder=tmp_path))
