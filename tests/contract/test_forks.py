"""Forked nodes and jobs are like those that their command line starts (rig/forks.py, rig/forked_runner.py)."""

import io
import json
import re
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.forks import ForkedProgram
from rig.nodes import IMPORTS, Nodes, ScrapydNode
from rig.waiting import wait_for

#: prints what a process was given
PROBE = """
import json, os, resource, signal, sys

print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path, "executable": sys.executable,
    "stdin": os.readlink("/proc/self/fd/0"), "umask": os.umask(0),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
    "the daemon leads a session": os.getsid(os.getppid()) == os.getppid(),
}))
"""
#: writes what a job was given, and then does as its argument says
SPIDER = """
import json, os, resource, signal, sys
from scrapy import Request, Spider

def read(name):
    with open(f"/proc/self/{name}", "rb") as file:
        return sorted(part.decode() for part in file.read().split(b"\\0") if part)

class Probe(Spider):
    name = "probe"
    custom_settings = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False}
    act = "end"

    async def start(self):
        seen = {
            "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "executable": sys.executable, "path": sys.path,
            "cwd": os.getcwd(), "env": dict(os.environ), "cmdline": read("cmdline"), "environ": read("environ"),
            "stdin": os.readlink("/proc/self/fd/0"), "umask": os.umask(0),
            "main": sys.modules["__main__"].__spec__.name,
            "streams": [(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)],
            "handlers": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals()
                         if isinstance(number, signal.Signals)},
            "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name],
            "priority": self.settings.getpriority("LOG_FILE"), "text": self.text, "_job": self._job,
        }
        with open("seen.json", "w") as file:
            json.dump(seen, file)
        print("to standard output ä")
        print("to standard errors", file=sys.stderr)
        sys.stdout.flush()
        if self.act == "exit":
            os._exit(7)
        if self.act == "abort":
            os.kill(os.getpid(), signal.SIGABRT)
        if self.act == "wait":
            self.crawler.engine.pause()
            self.logger.info("It waits.")
            yield Request("data:,x")

    def closed(self, reason):
        self.logger.info("It ends: %s", reason)
"""


def probe_egg(spiders: str = SPIDER) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("EGG-INFO/PKG-INFO", "Metadata-Version: 1.1\nName: probed\nVersion: 1\n")
        archive.writestr("EGG-INFO/entry_points.txt", "[scrapy]\nsettings = probed.settings\n")
        archive.writestr("probed/__init__.py", "")
        archive.writestr("probed/settings.py", 'SPIDER_MODULES = ["probed.spiders"]\n')
        archive.writestr("probed/spiders.py", spiders)
    return packed.getvalue()


@pytest.fixture(scope="module")
def twins(
    node_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[ScrapydNode]]:
    """A node that forks its jobs, and one whose jobs start as they do for a user."""
    maker = Nodes(node_python, tmp_path_factory.mktemp("twins"))
    options: dict[str, Any] = {"poll_interval": 0.1, "max_proc": 1}
    pair = [*maker.fleet(1, **options), *maker.fleet(1, **options, runner="scrapyd.runner")]
    for node in pair:
        assert node.add_version("probed", "1", probe_egg())["spiders"] == 1
    yield pair
    maker.close()


def run_probe(node: ScrapydNode, job: str, act: str) -> None:
    options = {
        "project": "probed",
        "spider": "probe",
        "jobid": job,
        "_version": "1",
        "act": act,
        "text": "ä = b\n'c'",
    }
    answer = node.api("schedule.json", **options, setting=["A=x=y", "LOG_LEVEL=INFO"])
    assert answer["status"] == "ok", answer


def wait_running(node: ScrapydNode, job: str) -> None:
    """Return when a job that waits has said so."""
    wait_for(lambda: "It waits." in node.job_log(job), 30, f"the start of {job}")


def wait_gone(node: ScrapydNode) -> None:
    """Return when none of its jobs has a process; a fork ends a moment after what stood for it."""
    wait_for(lambda: not node.job_pids(), 10, "the end of its processes")


def alike(node: ScrapydNode, text: str) -> str:
    """A text in which nothing is left that only this node has."""
    for own, word in (
        (str(node.home.parent), "FOLDER"),
        (node.name, "NODE"),
        (str(node.port), "PORT"),
    ):
        text = text.replace(own, word)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+0000)?", "TIME", text)
    text = re.sub(r"datetime\([\d, ]+", "TIME", text)
    text = re.sub(r"0x[0-9a-f]+|pipe:.[0-9]+", "ADDRESS", text)
    return re.sub(r"(pid=|Launcher,|startup': |max': |seconds': )[\d.]+", r"\1NUMBER", text)


def test_a_job_is_given_the_same(twins: list[ScrapydNode]) -> None:
    seen = []
    for node in twins:
        run_probe(node, "given", "end")
        node.wait_idle()
        seen.append(json.loads(alike(node, (node.work / "seen.json").read_text(encoding="utf-8"))))
    forked, real = seen
    # Both have the variables of their node, and it is only the node that knows how its jobs are forked.
    assert forked == real
    assert forked["cmdline"].count("_job=given") == 1
    assert any(path.endswith(".egg") for path in forked["path"])


def test_its_log_is_the_same(twins: list[ScrapydNode]) -> None:
    logs = []
    for node in twins:
        run_probe(node, "logged", "end")
        node.wait_idle()
        logs.append(alike(node, node.job_log("logged")).splitlines())
    assert logs[0] == logs[1]
    assert "It ends: finished" in "\n".join(logs[0])


#: what the job does -> how its node tells of its end
ENDS = {"exit": "exitstatus=7", "abort": "exitstatus=None", "end": "finished"}


@pytest.mark.full
@pytest.mark.parametrize(("act", "ended"), ENDS.items())
def test_its_node_hears_how_it_ends_and_what_it_prints(
    twins: list[ScrapydNode], act: str, ended: str
) -> None:
    for node in twins:
        run_probe(node, f"ends-{act}", act)
        node.wait_idle()
        lines = [line for line in node.log.splitlines() if f"job='ends-{act}'" in line]
        assert len(lines) == 2, lines
        assert ended in lines[1]
        number = re.findall(r"pid=(\d+)", lines[0])[0]
        assert f"[Launcher,{number}/stdout] to standard output ä" in node.log
        assert f"[Launcher,{number}/stderr] to standard errors" in node.log


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(twins: list[ScrapydNode], number: signal.Signals) -> None:
    logs = []
    for node in twins:
        job = f"cancelled-{number.name}"
        run_probe(node, job, "wait")
        wait_running(node, job)
        answer = node.api("cancel.json", project="probed", job=job, signal=number.name[3:])
        assert answer["prevstate"] == "running"
        node.wait_idle()
        logs.append(alike(node, node.job_log(job)).splitlines())
    assert logs[0] == logs[1]
    assert "It ends: shutdown" in "\n".join(logs[0])


def test_a_killed_one_is_gone_whichever_of_its_processes_was_killed(
    twins: list[ScrapydNode],
) -> None:
    for node in twins:
        for way in ("by the node", "by hand"):
            job = f"killed {way}".replace(" ", "-")
            run_probe(node, job, "wait")
            wait_running(node, job)
            assert list(node.job_pids().values()) == [job]
            if way == "by hand":
                node.kill_jobs()
            else:
                node.api("cancel.json", project="probed", job=job, signal="KILL")
            node.wait_idle()
            wait_gone(node)
            assert "It ends" not in node.job_log(job)
            assert re.search(f"Process died: exitstatus=None.*{job}", node.log)


def test_a_version_has_the_same_spiders_and_errors(twins: list[ScrapydNode]) -> None:
    for node in twins:
        assert node.api("listspiders.json", project="probed", _version="1")["spiders"] == ["probe"]
        answer = node.add_version("broken", "1", probe_egg("import not_there"))
        assert answer["message"].endswith("ModuleNotFoundError: No module named 'not_there'\n")


def test_a_job_that_a_fork_cannot_be_given_starts_as_it_does_for_a_user(
    twins: list[ScrapydNode],
) -> None:
    node = twins[0]
    options = [f"LONG{number}={'x' * 100_000}" for number in range(12)]
    node.api(
        "schedule.json", project="probed", spider="probe", jobid="long", text="", setting=options
    )
    node.wait_idle()
    assert "It ends: finished" in node.job_log("long")


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
        answers = [
            node.api(f"{name}.json") for name in ("daemonstatus", "listprojects", "listjobs")
        ]
        added = node.add_version("p", "1", egg)
        assert added["status"] == "ok", added
        spiders = node.api("listspiders.json", project="p")
        files = sorted(
            str(path.relative_to(node.home.parent)) for path in node.home.parent.rglob("*")
        )
        told = json.dumps([answers, spiders, files])
        seen.append(told.replace(node.name, "NODE").replace(str(node.port), "PORT"))
    assert json.loads(seen[0]) == json.loads(seen[1])
