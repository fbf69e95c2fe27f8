"""Processes that outlive the program that started them; rule: none is signalled unless it is certainly ours.

A process is known by its id together with the moment of its start, since ids are used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = Path("/proc")
_PID_FILE = "pid"
#: seconds between two looks at processes that were told to end
_LOOK = 0.05


@dataclass(frozen=True, kw_only=True)
class Leader:
    """The first process of a session, which all others of its group descend from."""

    pid: int
    #: `Process.mark` when it was started
    mark: str
    #: the working directory it was started in, which its descendants share
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """One line of the process table."""

    group: int
    #: the moment of its start, as the system writes it
    mark: str


def note_pid(folder: Path, pid: int) -> None:
    """Write down in a crawl's folder which process of this machine works on it."""
    (folder / _PID_FILE).write_text(str(pid), "ascii")


def noted_pid(folder: Path) -> int | None:
    """The same, back. A process is signalled on the word of this file only, never on that of the store."""
    try:
        text = (folder / _PID_FILE).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() and len(text) < 10 else None


def processes() -> dict[int, Process]:
    """All processes by id, except those that ended and only wait to be asked how."""
    return _from_proc() if (_PROC / "self/stat").exists() else _from_ps()


def is_alive(leader: Leader) -> bool:
    """Whether this very process still runs."""
    return _is_it(leader, processes())


def left_something(leader: Leader) -> bool:
    """Whether it, or anything that it started, still runs."""
    return bool(_members([leader]))


def stop(leaders: Iterable[Leader], *, grace: float) -> None:
    """End processes with all that runs in their groups: TERM, then KILL after `grace` seconds.

    Scrapy and Scrapyd both take TERM as the wish to end in good order.
    """
    everyone = tuple(leaders)
    for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for pid in _members(everyone):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + patience
        while _members(everyone) and time.monotonic() < deadline:
            time.sleep(_LOOK)
    for leader in everyone:
        # Only its parent can take a process that ended from the table; that may be us.
        with suppress(ChildProcessError):
            os.waitpid(leader.pid, os.WNOHANG)


def _members(leaders: Iterable[Leader]) -> list[int]:
    table = processes()
    found = []
    for leader in leaders:
        group = [pid for pid, process in table.items() if process.group == leader.pid]
        # The jobs of a node that was killed live on. With their leader gone, the folder tells whose they are.
        certain = _is_it(leader, table)
        found += [pid for pid in group if certain or (leader.pid not in table and _folder_of(pid) == leader.folder)]
    return found


def _is_it(leader: Leader, table: dict[int, Process]) -> bool:
    process = table.get(leader.pid)
    return process is not None and process.mark == leader.mark


def _folder_of(pid: int) -> Path | None:
    try:
        return (_PROC / str(pid) / "cwd").readlink()
    except OSError:
        return None


def _from_proc() -> dict[int, Process]:
    table = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it ended while we looked
        # The name stands in brackets and may hold anything, brackets and spaces too.
        state, _parent, group, *rest = stat.rpartition(")")[2].split()
        if state not in "ZX":
            table[int(folder.name)] = Process(group=int(group), mark=rest[16])
    return table


def _from_ps() -> dict[int, Process]:
    command = ["ps", "-A", "-o", "pid=", "-o", "pgid=", "-o", "stat=", "-o", "lstart="]
    listing = subprocess.run(command, capture_output=True, check=True, text=True, env={**os.environ, "LC_ALL": "C"})
    rows = (line.split(None, 3) for line in listing.stdout.splitlines())
    return {
        int(pid): Process(group=int(group), mark=started)
        for pid, group, state, started in rows
        if not state.startswith(("Z", "X"))
    }


def started(pid: int, folder: Path) -> Leader | None:
    """The value by which a process just started will be known; None if it has ended already."""
    process = processes().get(pid)
    return None if process is None else Leader(pid=pid, mark=process.mark, folder=folder.resolve())
