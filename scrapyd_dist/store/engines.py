"""Opens the store at an address: the ports of the engine for that kind of address, as one store."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, cast

from scrapyd_dist.errors import ConfigError, ForeignRow, StoreError
from scrapyd_dist.store.address import is_url
from scrapyd_dist.store.base import Store

#: what reading and computing with a value of another type or size ends with
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
#: how SQLite's errors begin that say nothing of what is stored: others of the class do, such as text that is not UTF-8
_FOR_NOW = ("database ", "disk I/O error", "interrupted", "unable to open")
#: not guarded: these give what they find bit by bit, and must not fail
_UNGUARDED = {"fingerprints", "close"}


def open_store(
    where: str | Path, *, durable: bool = True, owned: bool = True, key: bytes | None = None
) -> Store:
    """The store at `where`: the path of an SQLite file, made when it is not there, or the URL of a Redis server.

    It belongs to one thread at a time. A step on a file that is `durable` is on the disk before it returns. A worker
    does without: a power cut that takes its last steps takes the worker as well; and it has the file to itself for a
    shorter time. A file that is to be `owned` is refused if others than this user and root can write to it; a job need
    not ask: it is told of a file of its producer, which may be another user. Rows are signed with `key`, the project's;
    without one nothing is signed, and nothing can be checked.

    Raises `ConfigError` when nothing here knows this kind of address, or what it needs is not installed; `StoreError`
    when it cannot be opened, or is not a store that this version can use.
    """
    if not is_url(where):
        from scrapyd_dist.store.sqlite_strategy import sqlite_parts

        parts = sqlite_parts(
            str(where).removeprefix("sqlite://"), durable=durable, owned=owned, key=key
        )
        return cast("Store", _Assembled(*parts))
    kind = str(where).split("://", 1)[0]
    if kind not in {"redis", "rediss", "unix"}:
        raise ConfigError(
            f"a store of the kind {kind.rpartition('@')[2]}:// is not known; give the path of an SQLite file, or"
            " redis://host:6379/0."
        )
    from scrapyd_dist.store.redis_strategy import redis_parts

    return cast("Store", _Assembled(*redis_parts(str(where), key=key)))


class _Assembled:
    """The verbs of all ports; they raise `ForeignRow` where no version of ours has written what is stored."""

    def __init__(self, connection: object, *ports: object) -> None:
        self.connection = connection
        for name in (name for name in dir(Store) if not name.startswith("_")):
            verb = getattr(next(part for part in (connection, *ports) if hasattr(part, name)), name)
            setattr(self, name, verb if name in _UNGUARDED else _guarded(verb))


def _guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    import sqlite3

    @wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except (*_TRIPPED, sqlite3.Error) as error:
            if isinstance(error, sqlite3.OperationalError) and str(error).startswith(_FOR_NOW):
                raise StoreError(f"the store failed: {error}.") from error
            raise ForeignRow(
                f"The store has something that no version of sdist has written, so it cannot {verb.__name__} there:"
                f" {type(error).__name__}: {str(error)[:200]}. Another program has written to it, or it is damaged."
            ) from error

    return call
