"""The engine for a file of this machine: SQLite."""

from pathlib import Path

from scrapyd_dist.errors import StoreError
from scrapyd_dist.nodes import Node
from scrapyd_dist.store.ports.address_text import FILE_SCHEME, file_of
from scrapyd_dist.store.ports.engine import Engine, Ports, StoreRequest
from scrapyd_dist.store.sqlite.file_systems import check_local, kind_on
from scrapyd_dist.this_machine import is_here


def _open_ports(request: StoreRequest) -> Ports:
    from scrapyd_dist.store.sqlite.sqlite_ports import sqlite_ports  # noqa: PLC0415 - only the engine asked for is loaded

    return sqlite_ports(_path(request.where), request)


def _why_unreached(where: str, node: Node) -> str:
    """Return why the node's workers do not reach the file; empty when they do."""
    path = _path(where)
    if not is_here(node.host):
        return (
            f"the store {path} is a file of this machine, and {node.name} is another one; a Redis"
            " server (SDIST_STORE=redis://…) is reached from everywhere"
        )
    if not path.is_absolute():
        return f"the store {path} has no absolute path"
    try:
        check_local(path)
    except StoreError as error:
        return str(error)
    kind = kind_on(path)
    if kind == "fuse" or kind.startswith("fuse."):
        return (
            f"the store {path} is on a file system of the kind {kind}, where locks between"
            " processes cannot be trusted"
        )
    return ""


def _path(where: str) -> Path:
    return file_of(where) or Path(where)


SQLITE_ENGINE = Engine(
    title="an SQLite file",
    example="the path of an SQLite file",
    schemes=frozenset({"", FILE_SCHEME}),
    open_ports=_open_ports,
    why_unreached=_why_unreached,
)
