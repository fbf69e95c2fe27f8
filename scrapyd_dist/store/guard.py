"""What an engine trips over in rows that another program wrote becomes an error of ours, whichever verb it was."""

from __future__ import annotations

import sqlite3
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from scrapyd_dist.errors import ForeignRow

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=type)

#: what reading and computing with a value of another type or size ends with
_TRIPPED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, sqlite3.Error)
#: not verbs of the port, or ones that give what they find bit by bit
_OTHERS = frozenset({"ask", "close", "fingerprints", "read", "snapshot", "step"})


def guarded(engine: C) -> C:
    """The engine, whose verbs raise `ForeignRow` where what is stored is not what any version of ours has written."""
    for base in reversed(engine.__mro__[:-1]):
        for name, verb in vars(base).items():
            if callable(verb) and not name.startswith("_") and name not in _OTHERS:
                setattr(engine, name, _guarded(verb))
    return engine


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
