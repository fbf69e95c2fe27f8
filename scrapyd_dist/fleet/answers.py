"""What follows when some nodes, or all, do not answer: the exit code, or the error to raise."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from scrapyd_dist.errors import (
    PARTIAL,
    ApiRefused,
    AuthRefused,
    DistError,
    NodeError,
    NoNodeReachable,
)

E = TypeVar("E", bound=DistError)


def exit_code(total: int, found: Iterable[DistError | None]) -> int:
    """Return the exit code of a command that asked all nodes.

    That is 0, or 3 when some failed, else the code of what kept all of them away. total: how many
    were asked; found: their errors, None for none.
    """
    errors = _errors_in(found)
    if not errors:
        return 0
    if len(errors) < total:
        return PARTIAL
    for error in errors:
        # A node that answered and said no has more to tell than those that did not answer.
        if isinstance(error, ApiRefused) or not isinstance(error, NodeError):
            return error.exit_code
    for error in errors:
        if error.exit_code == AuthRefused.exit_code:
            return error.exit_code
    return NoNodeReachable.exit_code


def _errors_in(found: Iterable[E | None]) -> list[E]:
    return [error for error in found if error is not None]


def must_answer(total: int, found: Iterable[NodeError | None]) -> None:
    """Raise why there is no answer, in one paragraph, where nothing can be said without one.

    total: how many nodes were asked; found: their errors, None for none.
    """
    errors = _errors_in(found)
    if not errors or len(errors) < total:
        return
    texts = list(dict.fromkeys(map(str, errors)))
    if len(texts) > 1:
        texts.insert(0, "No node answered.")
    raise _kind_of(errors)(" ".join(texts))


def _kind_of(errors: Sequence[NodeError]) -> type[NodeError] | type[NoNodeReachable]:
    """Return the class of the error that decides the exit code."""
    code = exit_code(len(errors), errors)
    for error in errors:
        if error.exit_code == code:
            return type(error)
    return NoNodeReachable
