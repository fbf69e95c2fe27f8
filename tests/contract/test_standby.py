"""A process that waits for its crawl: it becomes that crawl's, or ends without having done anything."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapyd_dist.cli import producer_standby
from scrapyd_dist.cli.crawls.crawl import _end_pause

from scrapyd_dist.python_process import command_of_waiting
from scrapyd_dist.store.address import VARIABLE

MODULE = "scrapyd_dist.middlewares.producer.standby"


#: the ids of processes that were written down
claimed: list[int] = []


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    claimed.clear()
    yield
    producer_standby.end()


def call(folder: Path) -> subprocess.Popen[bytes] | None:
    environment = {**os.environ, VARIABLE: str(folder / "store.db")}
    return producer_standby.call(
        "nosuch",
        root=folder,
        log=folder / "producer.log",
        environment=environment,
        claim=claimed.append,
    )


def test_without_an_order_it_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        command_of_waiting(MODULE),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_it_becomes_the_process_of_the_crawl_that_it_is_told(tmp_path: Path) -> None:
    assert call(tmp_path) is None  # none waits
    assert claimed == []
    producer_standby.start()
    process = call(tmp_path)
    assert process
    assert process.wait(120) != 0
    assert claimed == [process.pid]
    assert "nosuch" in (tmp_path / "producer.log").read_text()
    assert (tmp_path / "store.db").exists()


def test_one_that_is_not_needed_ends_with_the_command() -> None:
    producer_standby.start()
    (process,) = producer_standby._waiting
    producer_standby.end()
    assert process.returncode is not None


def test_one_that_a_paused_crawl_does_not_need_ends_before_the_crawl_is_watched() -> None:
    producer_standby.start()
    (process,) = producer_standby._waiting
    context: Any = SimpleNamespace(store=SimpleNamespace(want=lambda *_: None))
    watched: Any = SimpleNamespace(quiet=True)
    assert _end_pause(context, "c", watched, detach=True) == 0
    assert process.returncode is not None


def test_one_that_has_died_takes_no_order(tmp_path: Path) -> None:
    producer_standby.start()
    (process,) = producer_standby._waiting
    process.kill()
    process.wait(60)
    assert call(tmp_path) is None


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (["crawl", "easy"], True),
        (["resume"], True),
        (["crawl", "--help"], False),
        (["crawls"], False),
        ([], False),
    ],
)
def test_only_a_command_that_crawls_starts_one(words: list[str], *, waits: bool) -> None:
    producer_standby.start_for(words)
    assert bool(producer_standby._waiting) is waits


def test_its_process_is_written_down_before_the_crawl_can_have_its_end(tmp_path: Path) -> None:
    """What comes to its end at once would be given a process after that."""
    producer_standby.start()
    (process,) = producer_standby._waiting
    assert process.stdin
    process.stdin.close()  # an order would raise ValueError now
    with pytest.raises(ValueError, match="closed file"):
        call(tmp_path)
    assert claimed == [process.pid]
    process.kill()
    process.wait(60)


def test_a_ctrl_c_while_it_is_started_ends_the_command_as_any_other() -> None:
    code = (
        "from scrapyd_dist.cli import main, producer_standby\n"
        "def interrupted(words): raise KeyboardInterrupt\n"
        "producer_standby.start_for = interrupted\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def gives_input(*words: str, stdin: Any, stdout: Any = None) -> bool:
    """Tell whether a command with these words and streams gives its input to its crawl."""
    code = (
        "import sys\n"
        "from scrapyd_dist.cli import producer_standby\n"
        "producer_standby.start = lambda: None\n"
        "producer_standby.start_for(sys.argv[1:])\n"
        "sys.exit(7 if producer_standby.has_input() else 8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], stdin=stdin, stdout=stdout, check=False
    )
    assert done.returncode in (7, 8)
    return done.returncode == 7


def test_a_crawl_that_stays_behind_holds_nobody_by_its_standard_input(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, other = ends
    assert gives_input("crawl", "easy", stdin=one)
    assert gives_input("crawl", "easy", stdin=one, stdout=other)
    assert not gives_input("crawl", "easy", stdin=one, stdout=one), "as ssh starts it"
    assert gives_input("resume", stdin=subprocess.PIPE)
    assert not gives_input("resume", "--detach", stdin=subprocess.PIPE)
    assert not gives_input("web", stdin=subprocess.PIPE), "its crawls have begun by a click"
    assert not gives_input("crawl", "easy", stdin=subprocess.DEVNULL)
    with Path(__file__).open() as file:
        assert gives_input("crawl", "easy", "--detach", stdin=file), (
            "a file keeps no process waiting"
        )
