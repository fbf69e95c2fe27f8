"""Sums up what nodes answered that were asked side by side: which errors count, and for what.

The rule it keeps: where no node answered, nothing is said of what is there. No IO.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from scrapyd_dist.errors import (
    PARTIAL,
    ApiRefused,
    AuthRefused,
    DistError,
    NodeError,
    NoNodeReachable,
    StoreError,
)
from scrapyd_dist.messenger import Messenger
from scrapyd_dist.nodes import Node, names_of

E = TypeVar("E", bound=DistError)


def answers_exit_code(total: int, found: Iterable[DistError | None]) -> int:
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
    code = answers_exit_code(len(errors), errors)
    for error in errors:
        if error.exit_code == code:
            return type(error)
    return NoNodeReachable


def without_drained(
    answers: Mapping[Node, E | None],
    find_drained: Callable[[Sequence[Node]], Collection[Node]],
    messenger: Messenger,
) -> dict[Node, E | None]:
    """Return what counts of the nodes' errors, or None for each that answered.

    A drained node that does not answer is left out, and named; where no other one was asked, all
    count. find_drained: gives those of the nodes that get no new work; where it raises StoreError,
    all count, too.
    """
    silent = [node for node, error in answers.items() if error is not None]
    if not silent:
        return dict(answers)
    try:
        left_out = find_drained(silent)
    except StoreError:  # so it is not known which nodes are drained
        return dict(answers)
    counting = dict(answers)
    for node in left_out:
        del counting[node]
    if not left_out or not counting:
        return dict(answers)
    messenger.say_once(
        f"Passed over, since drained and without an answer: {names_of(left_out)}. What is there is"
        " not known."
    )
    return counting
