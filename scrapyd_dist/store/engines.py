"""Opens the store at an address, by the engine for that kind of address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store.address import is_url

if TYPE_CHECKING:
    from pathlib import Path

    from scrapyd_dist.store.base import Store


def open_store(where: str | Path, *, durable: bool = True, key: bytes | None = None) -> Store:
    """The store at `where`: the path of an SQLite file, made when it is not there, or the URL of a Redis server.

    Args:
        where: the address.
        durable: for a file, whether a step is on the disk before it returns. A worker does without: a power cut that
            takes its last steps takes the worker as well; and it has the file to itself for a shorter time.
        key: the project's key, by which rows are signed, and by which it is known that they are the project's own.
            Without one nothing is signed, and nothing can be checked.

    Raises:
        ConfigError: nothing here knows this kind of address, or what it needs is not installed.
        StoreError: it cannot be opened, or is not a store that this version can use.
    """
    if not is_url(where):
        from scrapyd_dist.store.sqlite import sqlite_store  # noqa: PLC0415 - only the engine asked for is loaded

        return sqlite_store(str(where).removeprefix("sqlite://"), durable=durable, key=key)
    kind = str(where).split("://", 1)[0]
    if kind not in {"redis", "rediss", "unix"}:
        raise ConfigError(
            f"a store of the kind {kind.rpartition('@')[2]}:// is not known; give the path of an SQLite file, or"
            " redis://host:6379/0."
        )
    from scrapyd_dist.store.redis import redis_store  # noqa: PLC0415 - as above

    return redis_store(str(where), key=key)
