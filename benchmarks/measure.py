"""Measuring a run: wall seconds by the monotonic clock, CPU seconds of everything that worked for it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rig.processes import private_environment
from rig.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


class RunError(Exception):
    """A measured run did not do its work, so its time means nothing."""


@dataclass(frozen=True, kw_only=True)
class Took:
    """What a run cost, in seconds."""

    wall: float
    #: of the commands and all their descendants, also those that were detached
    cpu: float


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that their CPU seconds come to us (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_of(pid: int) -> float:
    """CPU seconds of a live process and of those children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def run_all(commands: Sequence[Sequence[str]], *, cwd: Path, output: Path, timeout: float) -> Took:
    """Run commands side by side to their end.

    Args:
        commands: program and arguments of each.
        cwd: where they run.
        output: an existing folder; gets what they say, and their HOME.
        timeout: seconds until they are killed.

    Raises:
        RunError: when one ends with another exit code than 0.
    """
    strangers, before, begun = _children(), _cpu_of_children(), time.monotonic()
    running = [_start(command, cwd, output, at) for at, command in enumerate(commands)]
    watchdog = threading.Timer(timeout, _kill, [running])
    watchdog.daemon = True
    watchdog.start()
    codes = [process.wait() for process in running]
    wall = time.monotonic() - begun
    watchdog.cancel()
    _reap_adopted(strangers, timeout)
    for at, code in enumerate(codes):
        if code:
            said = (output / f"{at}.log").read_text(encoding="utf-8", errors="replace")
            raise RunError(
                f"{' '.join(commands[at])} ended with {code} after {wall:.0f} s:\n{said[-3000:]}"
            )
    return Took(wall=wall, cpu=_cpu_of_children() - before)


def _start(command: Sequence[str], cwd: Path, output: Path, at: int) -> subprocess.Popen[bytes]:
    home = output / "home"
    home.mkdir(exist_ok=True)
    environment = private_environment(home)
    # Where this is set, each process compiles all that no installer has compiled: this project, when it is a checkout.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with (output / f"{at}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap_adopted(strangers: set[int], timeout: float) -> None:
    """Wait for descendants that outlived their command and became our children."""

    def none_left() -> bool:
        left = _children() - strangers
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return not left

    wait_for(none_left, timeout, "the end of what a command left behind")
