"""Processes that belong to one test: each gets a private HOME, by which it is found again and ended, orphans too."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from .waiting import wait_for

#: what must not leak from the shell that runs the tests into what the tests start
_FOREIGN = ("SCRAPY", "SDIST", "DISTRIBUTED", "PYTEST", "PYTHONPATH", "COVERAGE", "NETRC", "XDG_")


def private_environment(home: Path, extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment with a HOME of its own and without anybody's Scrapy settings or proxies."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and not name.lower().endswith("_proxy")
    }
    return {**inherited, "HOME": str(home), "NO_COLOR": "1", "COLUMNS": "120", **(extra or {})}


def with_home(home: Path) -> dict[int, list[str]]:
    """Pid -> command line of all live processes whose HOME is `home`."""
    mark, found = f"HOME={home}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone, or not ours to look at
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    arguments = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    found[int(entry.name)] = [argument.decode("utf-8", "replace") for argument in arguments]
    return found


def end_all(home: Path) -> None:
    """Kill every process whose HOME is `home`, and wait until none is left."""

    def none_left() -> bool:
        pids = list(with_home(home))
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_for(none_left, 20, f"the end of all processes of {home}")
