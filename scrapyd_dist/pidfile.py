"""Reads and writes the process id of a crawl's producer, and finds the start time of processes."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PID_FILE = "pid"
#: digits that no process id has
_TOO_MANY_DIGITS = 10


def note_pid(folder: Path, pid: int) -> None:
    """Write the id of the process that runs a crawl into the crawl's folder."""
    (folder / _PID_FILE).write_text(str(pid), "ascii")


def noted_pid(folder: Path) -> int | None:
    """Return the process id in a crawl's folder, or None.

    Only a process named by this file is signalled, because other machines may write to the store.
    """
    try:
        text = (folder / _PID_FILE).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    if not text.isdecimal() or len(text) >= _TOO_MANY_DIGITS:
        return None
    return int(text)


def started_at(pid: int) -> float | None:
    """Return the start time of a process in seconds since the epoch; None without /proc.

    Raises:
        ProcessLookupError: the process does not run, or is a zombie.
    """
    if not (_PROC / "self/stat").exists():
        listing = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=False, text=True
        )
        if listing.stdout.strip()[:1] in {"", "Z", "X"}:
            raise ProcessLookupError(pid)
        return None
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ProcessLookupError(pid) from None
    # The process name is in parentheses, and may contain parentheses and spaces.
    state, *fields = stat.rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(pid)
    with suppress(OSError):
        for line in (_PROC / "stat").read_text("utf-8").splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return None
