"""Ctrl-C on a watch, in a terminal and without one. The crawl is a row and a process that stands for it."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from rig.crawls import store_of
from rig.fixtures import MakeProject, RunCommand, StartCommand
from rig.processes import private_environment
from rig.projects import Project
from rig.waiting import wait_for

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.pidfile import note_pid

#: a producer that knows one thing: SIGINT ends it in good order
PRODUCER = """
import signal, sys
from scrapyd_dist.batches import CrawlState
from scrapyd_dist.store import open_store

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
signal.sigwait([signal.SIGINT])
store = open_store(sys.argv[1])
message = "Go on with: sdist resume c"
store.update_crawl("c", state=CrawlState.STOPPED, exit_code=130, message=message, summary={"items": 7})
store.close()
"""


class Terminal:
    """`sdist watch` in a terminal of its own."""

    def __init__(self, project: Project) -> None:
        self._master, slave = pty.openpty()
        environment = private_environment(project.home, {"TERM": "xterm"})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scrapyd_dist", "watch", "c"],
            cwd=project.path, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(self._master, False)
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_text(self, text: str) -> None:
        wait_for(lambda: text in self.seen(), 20, f"{text!r} on the terminal")

    def seen(self) -> str:
        with suppress(OSError):  # nothing there, or the other end is closed
            while piece := os.read(self._master, 65536):
                self._seen += piece
        return self._seen.decode("utf-8", "replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._master)


@pytest.fixture
def made(project: MakeProject) -> Project:
    return project()


@pytest.fixture
def producer(made: Project) -> Iterator[subprocess.Popen[str]]:
    path = made.path / ".sdist" / "store.db"
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, path], stdout=subprocess.PIPE, text=True
    )
    with process, closing(store_of(made)) as store:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        store.add_crawl(
            Crawl(
                id="c", project="p", spider="easy", created=time.time(), beat=time.time(), state=CrawlState.WORKING,
                pid=process.pid, summary={"items": 5, "requests": {"total": 10, "done": 5, "succeeded": 5}},
            )
        )  # fmt: skip
        folder = path.parent / "crawls" / "c"
        folder.mkdir(parents=True)
        note_pid(folder, process.pid)
        yield process
        process.kill()


@pytest.fixture
def terminal(made: Project, producer: subprocess.Popen[str]) -> Iterator[Terminal]:
    with closing(Terminal(made)) as opened:
        opened.wait_text("5 done of 10")
        yield opened


@pytest.mark.parametrize(
    "said",
    [
        ("Come back with: sdist watch c",),
        ("Press Ctrl-C again", "Stop the crawl c? [y/N]"),
        ("Press Ctrl-C again", "Stop the crawl c? [y/N]", ""),
    ],
    ids=["once", "twice, and no", "thrice"],
)
def test_ctrl_c_leaves_the_crawl_running(
    terminal: Terminal, producer: subprocess.Popen[str], said: tuple[str, ...]
) -> None:
    for text in said:
        terminal.interrupt()
        terminal.wait_text(text)
    if len(said) == 2:
        terminal.type("\n")
    assert terminal.process.wait(20) == 130
    assert producer.poll() is None


def test_yes_stops_the_crawl_in_good_order(
    terminal: Terminal, producer: subprocess.Popen[str]
) -> None:
    for text in ("Press Ctrl-C again", "Stop the crawl c? [y/N]"):
        terminal.interrupt()
        terminal.wait_text(text)
    terminal.type("y\n")
    terminal.wait_text("Crawl c stopped: 7 items.")
    assert terminal.process.wait(20) == 130
    assert "Go on with: sdist resume c" in terminal.seen()
    assert producer.wait(20) == 0


def test_without_a_terminal_ctrl_c_leaves_at_once(
    start_cli: StartCommand, made: Project, producer: subprocess.Popen[str]
) -> None:
    command = start_cli(made, "watch", "--json")
    command.wait_text("c: working")
    command.interrupt()
    assert command.wait(10).expect(130, "sdist watch c").out == ""
    assert producer.poll() is None


def test_a_watch_with_a_time_limit(
    run_cli: RunCommand, made: Project, producer: subprocess.Popen[str]
) -> None:
    done = run_cli(made, "watch", "c", "--timeout", "0.2", "-q", code=124)
    assert (done.out, done.err.startswith("sdist: The crawl c still runs")) == ("", True)
    assert producer.poll() is None


def test_status_and_list_of_a_crawl_whose_process_died(
    run_cli: RunCommand, made: Project, producer: subprocess.Popen[str]
) -> None:
    assert run_cli(made, "status", "--json").json()["state"] == "working"
    producer.kill()
    producer.wait(10)
    assert run_cli(made, "status", "c", "--json").json()["state"] == "died"
    assert "sdist resume c" in run_cli(made, "status").out
    assert [row["state"] for row in run_cli(made, "crawls", "--json").json()["crawls"]] == ["died"]
    run_cli(made, "watch", "c").expect(1, "sdist resume c")


def test_a_project_without_crawls_lists_none(run_cli: RunCommand, made: Project) -> None:
    assert run_cli(made, "crawls", "--json", code=0).json() == {"schema": 1, "crawls": []}
    assert not (made.path / ".sdist").exists()
