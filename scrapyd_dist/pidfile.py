"""The process that runs a crawl on this machine: its id, in a file, and when it started. Standard library only."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PID_FILE = "pid"


def note_pid(folder: Path, pid: int) -> None:
    """Write into a crawl's folder which process of this machine runs it."""
    (folder / _PID_FILE).write_text(str(pid), "ascii")


def noted_pid(folder: Path) -> int | None:
    """The process id in a crawl's folder; None where there is none.

    A process is signalled only if this file names it: the store may be written by other machines.
    """
    try:
        text = (folder / _PID_FILE).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() and len(text) < 10 else None


def started_at(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None where the system does not count in ticks.

    Raises:
        ProcessLookupError: it does not run; one that ended and waits for its parent does not.
    """
    if not (_PROC / "self/stat").exists():
        listing = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False, text=True)
        if listing.stdout.strip()[:1] in {"", "Z", "X"}:
            raise ProcessLookupError(pid)
        return None
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ProcessLookupError(pid) from None
    # The name stands in brackets and may hold anything, brackets and spaces too.
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(pid)
    with suppress(OSError):
        for line in (_PROC / "stat").read_text("utf-8").splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return None
