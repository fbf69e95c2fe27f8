"""One store out of the ports of an engine, and what it raises where another program has written to it."""

from __future__ import annotations

import sqlite3
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from scrapyd_dist.errors import ForeignRow
from scrapyd_dist.store.base import Store

if TYPE_CHECKING:
    from collections.abc import Callable

#: what reading and computing with a value of another type or size ends with
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, sqlite3.Error)
#: not guarded: these give what they find bit by bit, and must not fail
_UNGUARDED = {"fingerprints", "close"}


class _Assembled:
    """The verbs of all ports; they raise `ForeignRow` where no version of ours has written what is stored."""

    def __init__(self, connection: object, *ports: object) -> None:
        self.connection = connection
        for name in (name for name in dir(Store) if not name.startswith("_")):
            verb = getattr(next(part for part in (connection, *ports) if hasattr(part, name)), name)
            setattr(self, name, verb if name in _UNGUARDED else _guarded(verb))


def assembled(connection: object, *ports: object) -> Store:
    """The store that has the verbs of these ports; the first one that has a verb answers it."""
    return cast("Store", _Assembled(connection, *ports))


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
