"""Makes one store of its ports. What an engine trips over in rows of another program becomes an error of ours."""

from __future__ import annotations

import sqlite3
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, cast

from scrapyd_dist.errors import ForeignRow
from scrapyd_dist.store import base

if TYPE_CHECKING:
    from collections.abc import Callable

#: what reading and computing with a value of another type or size ends with
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, sqlite3.Error)
#: it gives what it finds bit by bit
_UNGUARDED = {"fingerprints"}


class Connection(Protocol):
    """What the ports of an engine share."""

    def close(self) -> None: ...

    def warnings(self) -> list[str]: ...


class _Assembled:
    """The verbs of all ports; they raise `ForeignRow` where no version of ours has written what is stored."""

    def __init__(self, connection: Connection, ports: dict[type, object]) -> None:
        self.connection = connection
        self.close, self.warnings = connection.close, _guarded(connection.warnings)
        for kind, port in ports.items():
            for name in (name for name in vars(kind) if not name.startswith("_")):
                verb = getattr(port, name)
                setattr(self, name, verb if name in _UNGUARDED else _guarded(verb))


def assembled(
    connection: Connection,
    crawls: base.CrawlStore,
    account: base.AccountStore,
    batches: base.BatchStore,
    attempts: base.AttemptStore,
    frontier: base.QueueStore,
    throttle: base.ThrottleStore,
) -> base.Store:
    """The store that has the verbs of these ports."""
    ports: dict[type, object] = {
        base.CrawlStore: crawls,
        base.AccountStore: account,
        base.BatchStore: batches,
        base.AttemptStore: attempts,
        base.QueueStore: frontier,
        base.ThrottleStore: throttle,
    }
    return cast("base.Store", _Assembled(connection, ports))


def _guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except _TRIPPED as error:
            raise ForeignRow(
                f"The store has something that no version of sdist has written, so it cannot {verb.__name__} there:"
                f" {type(error).__name__}: {str(error)[:200]}. Another program has written to it, or it is damaged."
            ) from error

    return call
