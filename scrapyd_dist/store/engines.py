"""Opens the store at an address: the ports of the engine for that kind of address, as one store."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, cast

from scrapyd_dist.errors import ConfigError, ForeignRow, StoreError
from scrapyd_dist.store.address import is_url
from scrapyd_dist.store.base import Store

#: the errors of reading and computing with a value of another type or size
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
#: how SQLite's errors begin that say nothing of what is stored: others of the class do, such as
#: text that is not UTF-8
_FOR_NOW = ("database ", "disk I/O error", "interrupted", "unable to open")
#: not guarded: these give what they find bit by bit, and must not fail
_UNGUARDED = {"fingerprints", "close"}


def open_store(
    where: str | Path, *, durable: bool = True, owned: bool = True, key: bytes | None = None
) -> Store:
    """Open the store at `where`: the path of an SQLite file, or the URL of a Redis server.

    It belongs to one thread at a time.

    Args:
        where: the file is made when it is not there.
        durable: a step on a file is on the disk before it returns. A worker does without: a power
            cut that takes its last steps takes the worker as well; and it has the file to itself
            for a shorter time.
        owned: the file is refused if others than this user and root can write to it. A job need not
            ask: its producer names the file, and may be another user.
        key: the project's, with which rows are signed; without one nothing is signed, and nothing
            can be checked.

    Raises:
        ConfigError: nothing here knows this kind of address, or what it needs is not installed.
        StoreError: it cannot be opened, or is not a store that this version can use.
    """
    if not is_url(where):
        from scrapyd_dist.store.sqlite_strategy import sqlite_parts  # noqa: PLC0415 - only the engine asked for is loaded

        path = str(where).removeprefix("sqlite://")
        parts = sqlite_parts(path, durable=durable, owned=owned, key=key)
        return cast("Store", _Assembled(*parts))
    kind = str(where).split("://", 1)[0]
    if kind not in {"redis", "rediss", "unix"}:
        raise ConfigError(
            f"a store of the kind {kind.rpartition('@')[2]}:// is not known; give the path of an"
            " SQLite file, or redis://host:6379/0."
        )
    from scrapyd_dist.store.redis_strategy import redis_parts  # noqa: PLC0415 - as above

    return cast("Store", _Assembled(*redis_parts(str(where), key=key)))


class _Assembled:
    """The verbs of all ports, each taken from the first part of the engine that has it.

    They raise `ForeignRow` where no version of ours has written what is stored.
    """

    def __init__(self, connection: object, *ports: object) -> None:
        self.connection = connection
        for name in dir(Store):
            if name.startswith("_"):
                continue
            part = _first_with(name, (connection, *ports))
            verb = getattr(part, name)
            setattr(self, name, verb if name in _UNGUARDED else _guarded(verb))


def _first_with(name: str, parts: tuple[object, ...]) -> object:
    for part in parts:
        if hasattr(part, name):
            return part
    raise LookupError(f"no part of the store has {name}")


def _guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    import sqlite3  # noqa: PLC0415 - the help of a command loads this module, and needs no engine

    @wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except (*_TRIPPED, sqlite3.Error) as error:
            if isinstance(error, sqlite3.OperationalError) and str(error).startswith(_FOR_NOW):
                raise StoreError(f"the store failed: {error}.") from error
            raise ForeignRow(
                "The store has something that no version of sdist has written, so it cannot"
                f" {verb.__name__} there: {type(error).__name__}: {str(error)[:200]}. Another"
                " program has written to it, or it is damaged."
            ) from error

    return call
