"""Collects the installed Redis client, with licence and byte code, for eggs whose workers use a Redis store.

An egg comes last on Python's path, so a client installed on the node is preferred.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store.address import is_url

from .bytecode import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_PACKAGE = "redis"
#: the packages of the client in an egg; not unpacked where an egg's project runs on this machine
CLIENT = (_PACKAGE, "async_timeout")
#: Before Python 3.11.3 the client imports async-timeout for its asyncio half, which no worker uses.
_STAND_IN_NAME = "async_timeout/__init__.py"
_STAND_IN = b'''"""Stands in for async-timeout, which redis imports on old Pythons and a worker never calls."""


def timeout(delay):
    raise NotImplementedError
'''


def redis_client(where: str) -> dict[str, bytes]:
    """Return the files for the store at `where`: path inside the egg -> content; empty unless it is a Redis URL.

    Raises:
        ConfigError: the client is not installed here.
    """
    if not is_url(where):
        return {}
    if find_spec(_PACKAGE) is None:
        raise ConfigError(
            "The workers of a crawl whose store is a Redis server need the package redis, and it is not installed here:"
            " pip install 'scrapyd-dist[redis]'."
        )
    return {**dict(_modules(files(_PACKAGE), _PACKAGE)), **dict(_licence()), _STAND_IN_NAME: _STAND_IN}


def _modules(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
            yield from _modules(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".py"):
            source = entry.read_bytes()
            yield f"{path}/{entry.name}", source
            yield f"{path}/{entry.name}c", compiled(source, f"{path}/{entry.name}")


def _licence() -> Iterator[tuple[str, bytes]]:
    try:
        found = distribution(_PACKAGE)
    except PackageNotFoundError:
        return
    for path in found.files or ():
        if path.name.upper().startswith("LICEN"):
            yield f"{_PACKAGE}/{path.name}", path.read_binary()
