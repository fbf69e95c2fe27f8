"""Processes that outlive the program that started them; rule: none is signalled unless it is certainly ours.

A node leads a process group of its own and works in a folder of its own. Process ids are used again, so a process is
ours only if its id and its folder are those of the node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: seconds between two looks at processes that were told to end
_LOOK = 0.05


@dataclass(frozen=True, kw_only=True)
class Leader:
    """The first process of a process group."""

    pid: int
    #: the working directory it was started in, which its descendants share
    folder: Path


def started(pid: int, folder: Path) -> Leader | None:
    """The value by which a process just started in this folder will be known; None if it has ended already."""
    leader = Leader(pid=pid, folder=folder.resolve())
    return leader if is_alive(leader) else None


def is_alive(leader: Leader) -> bool:
    """Whether this very process still runs."""
    return _folder_of(leader.pid) == leader.folder


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
        # Only its parent can take a process that ended from the table; that may be this one.
        with suppress(ChildProcessError):
            os.waitpid(leader.pid, os.WNOHANG)


def not_installed(package: str, python: str = sys.executable) -> ConfigError:
    """The error that says what local nodes lack, and how to install it."""
    return ConfigError(
        f"Local nodes need {package}, which is not installed for {python}. Install it with "
        "pip install 'scrapyd-dist[local]', or name nodes of your own: [deploy:NAME] sections in scrapy.cfg, or --node."
    )


def _members(leaders: Iterable[Leader]) -> list[int]:
    groups = defaultdict(list)
    for pid in _psutil().pids():
        with suppress(OSError):
            groups[os.getpgid(pid)].append(pid)
    found = []
    for leader in leaders:
        certain = is_alive(leader)
        folders = {pid: _folder_of(pid) for pid in groups[leader.pid]}
        # The jobs of a node that was killed live on. With their leader gone, the folder tells which node they are of.
        found += [pid for pid, folder in folders.items() if folder == leader.folder or (certain and folder is not None)]
    return found


def _folder_of(pid: int) -> Path | None:
    """The working directory of a process; None for one that ended, or is another user's."""
    psutil = _psutil()
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return Path(process.cwd())
    return None


def _psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 - of the extra `local`
    except ImportError:
        raise not_installed("psutil") from None
    return psutil
