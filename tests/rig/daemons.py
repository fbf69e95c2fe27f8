"""The process of a Scrapyd daemon: started by its command, or forked from one that has imported Scrapyd already."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .processes import private_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

FORKS = Path(__file__).parent / "scrapyd_forks.py"


class DaemonProcess(Protocol):
    """What a node does with its process; a Popen is one."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """None while it runs, else an exit code."""

    def wait(self, timeout: float) -> int:
        """The exit code, after at most `timeout` seconds."""


def start_daemon(python: Path, cwd: Path, env: Mapping[str, str], log: Path) -> DaemonProcess:
    """Run `python -m scrapyd` in `cwd`, its output appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [python, "-m", "scrapyd", "--pidfile="],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def fork_daemon(python: Path, cwd: Path, env: Mapping[str, str], log: Path) -> DaemonProcess:
    """The same in a tenth of the time: a fork, whose /proc/PID/environ and command line are not its own."""
    return _forks(python).daemon({"cwd": str(cwd), "env": dict(env), "log": str(log)})


@cache
def _forks(python: Path) -> _ScrapydForks:
    forks = _ScrapydForks(python)
    atexit.register(forks.close)
    return forks


class _ScrapydForks:
    """The process that forks daemons, and lives as long as this one."""

    def __init__(self, python: Path) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [python, "-I", FORKS],
            env=private_environment(Path(os.devnull)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def daemon(self, asked: dict[str, object]) -> _Fork:
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return _Fork(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Fork:
    """A daemon that is another process's child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle: int | None = None
        with suppress(ProcessLookupError):  # it has ended already
            self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self._handle is not None and not select.select([self._handle], [], [], 0)[0]:
            return None
        return self.wait(0)

    def wait(self, timeout: float) -> int:
        if self._handle is not None:
            assert select.select([self._handle], [], [], timeout)[0], f"{self.pid} still runs after {timeout:g} s"
            os.close(self._handle)
            self._handle = None
        return -signal.SIGKILL  # only its parent learns how it ended
