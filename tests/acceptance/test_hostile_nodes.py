"""Commands on a node that says what it should not: nothing reaches the terminal as it is, and no fault is ours."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from rig.badpeer import BadPeer, Connection
from rig.fixtures import MakeProject, RunCommand
from rig.projects import Project

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\x9b"
JOB = f"job{ESCAPES}"
LOG = f"2026-11-20 20:00:00 [shop] ERROR: \x1b[31mred\x1b[0m {ESCAPES}\n".encode()
ROW = {"id": JOB, "project": "properties", "spider": f"easy{ESCAPES}", "start_time": "2026-11-20 20:00:00", "pid": 1}
ANSWERS: dict[str, dict[str, Any]] = {
    "daemonstatus.json": {"pending": 0, "running": 1, "finished": 0, "node_name": ESCAPES},
    "listjobs.json": {"pending": [], "running": [ROW], "finished": []},
    "listprojects.json": {"projects": ["properties", ESCAPES]},
    "listversions.json": {"versions": [f"r1{ESCAPES}"]},
    "listspiders.json": {"spiders": [f"easy{ESCAPES}"]},
}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("jobs",), ("logs", JOB), ("grep", "red"), ("versions",), ("spiders",), ("stats", JOB), ("nodes",),
    ("watch", "--fleet", "--timeout", "1"),
)  # fmt: skip


def hostile(connection: Connection, request: bytes) -> None:
    page = urlsplit(request.split(b" ", 2)[1].decode()).path.rpartition("/")[2]
    if page.endswith(".json"):
        connection.answer(200, json.dumps({"status": "ok", **ANSWERS[page]}).encode())
    elif page.endswith(".log"):
        connection.answer(200, LOG, "Content-Type: text/plain")
    else:
        connection.answer(404, b"File not found.")


def digits(connection: Connection, _: bytes) -> None:
    body = '{"status": "ok", "pending": @, "running": @, "finished": @, "node_name": "n", "versions": @, "projects": @}'
    connection.answer(200, body.replace("@", "9" * 5000).encode())


@pytest.fixture
def on(project: MakeProject) -> Iterator[MakeProject]:
    with ExitStack() as stack:

        def make(play: Callable[[Connection, bytes], None]) -> Project:
            peer = stack.enter_context(closing(BadPeer(play)))
            return project(extra=f"[deploy:bad]\nurl = http://127.0.0.1:{peer.port}/\nproject = properties\n")

        yield make


def test_nothing_steers_the_terminal(run_cli: RunCommand, on: MakeProject) -> None:
    it = on(hostile)
    for arguments in COMMANDS:
        name, done = arguments[0], run_cli(it, *arguments)
        said = done.out + done.err
        assert not set(said) & set("\x1b\x07\x9b\u202e"), (name, said)
        assert "no words for" not in said, (name, said)
        if name not in {"stats", "nodes", "watch"}:  # those show no name of a job, or none of the node's
            assert SHOWN in said, (name, said)
        assert "red" in said or name not in {"logs", "grep"}
    assert run_cli(it, "jobs", "--json").json()["jobs"][0]["job"] == JOB
    for arguments in (("logs", JOB, "--raw"), ("grep", "red", "--raw")):
        assert LOG.decode() in run_cli(it, *arguments).out


def test_numbers_without_an_end_are_a_bad_answer(run_cli: RunCommand, on: MakeProject) -> None:
    it = on(digits)
    for command in ("jobs", "nodes", "doctor"):  # 5,000 digits in each answer make them fail
        done = run_cli(it, command)
        said = done.out + done.err
        assert "no words for" not in said, (command, said)
        assert "itself failed" not in said, (command, said)
        assert "bad" in said
        assert len(said) < 5000
