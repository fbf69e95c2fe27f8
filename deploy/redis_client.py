"""The Redis client for an egg whose workers use a store on Redis: the one that is installed here, licence included.

An egg is the last place where Python looks: where a node has a client of its own, that one is used. Its byte code
travels along.
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
#: the packages that an egg has for it; where a project's code runs here, the installed ones are used
CLIENT = (_PACKAGE, "async_timeout")
#: Before Python 3.11.3 the client imports async-timeout, for the half of it that is asyncio's and that no worker uses.
_STAND_IN_NAME = "async_timeout/__init__.py"
_STAND_IN = b'''"""Stands in for async-timeout, which redis imports on old Pythons and a worker never calls."""


def timeout(delay):
    raise NotImplementedError
'''


def redis_client(where: str) -> dict[str, bytes]:
    """What an egg needs for the store at `where`, as path inside the egg -> content; nothing unless that is a server.

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
