"""Asks many nodes concurrently and yields answers as they arrive; a failing node does not delay the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from scrapyd_dist.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

A = TypeVar("A")
V = TypeVar("V")

#: maximum number of concurrent calls
MAX_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class NodeAnswer(Generic[A, V]):
    """The result of one call: a value or an error."""

    asked: A
    value: V | None = None
    error: NodeError | None = None


def sweep(whom: Sequence[A], ask: Callable[[A], V], *, threads: int = MAX_THREADS) -> Iterator[NodeAnswer[A, V]]:
    """Call `ask` for all arguments concurrently, and yield each answer when it arrives.

    Calls that have not begun are cancelled when the generator is closed.

    Args:
        whom: the arguments, such as nodes or jobs.
        ask: returns a value or raises NodeError; any other exception is raised from the generator.
        threads: maximum number of concurrent calls.
    """
    if not whom:
        return
    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(whom))))
    try:
        asked = {pool.submit(ask, one): one for one in whom}
        for done in as_completed(asked):
            failed = done.exception()
            if isinstance(failed, NodeError):
                yield NodeAnswer(asked=asked[done], error=failed)
            else:
                yield NodeAnswer(asked=asked[done], value=done.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
