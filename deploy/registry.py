"""Reads and writes the list of local nodes, which has passwords and is readable by its owner only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node

from .processes import Leader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

USERNAME = "sdist"


@dataclass(frozen=True, kw_only=True)
class LocalNode:
    """A node started by `up`."""

    name: str
    port: int
    password: str = field(repr=False)
    slots: int
    leader: Leader

    @property
    def node(self) -> Node:
        return Node.parse(
            f"127.0.0.1:{self.port}", name=self.name, username=USERNAME, password=self.password, slots=self.slots
        )


def list_path(state: Path) -> Path:
    return state / "nodes" / "nodes.json"


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold a lock, so that concurrent commands do not start the same nodes twice."""
    folder = state / "nodes"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(state: Path) -> list[LocalNode]:
    path = list_path(state)
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["nodes"]
        return [_from_row(row) for row in rows]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}, the list of the local nodes, cannot be read ({type(error).__name__}). Remove it, and end the "
            "nodes that may still run by hand; they are processes called `python -m scrapyd`."
        ) from error


def _from_row(row: dict[str, Any]) -> LocalNode:
    return LocalNode(
        name=str(row["name"]),
        port=int(row["port"]),
        password=str(row["password"]),
        slots=int(row["slots"]),
        leader=Leader(pid=int(row["pid"]), folder=Path(row["folder"])),
    )


def write(state: Path, nodes: Iterable[LocalNode]) -> None:
    rows = [
        {
            "name": node.name,
            "port": node.port,
            "password": node.password,
            "slots": node.slots,
            "pid": node.leader.pid,
            "folder": str(node.leader.folder),
        }
        for node in sorted(nodes, key=lambda node: (len(node.name), node.name))
    ]
    # A temporary file is readable by its owner only, and keeps its mode when renamed.
    handle, temporary = tempfile.mkstemp(dir=list_path(state).parent, prefix=".new-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "nodes": rows}, file, indent=1)
    Path(temporary).replace(list_path(state))
