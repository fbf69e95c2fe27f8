"""The same question to many, side by side; rule: answers come as they are ready, and one who fails delays nobody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from scrapyd_dist.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

A = TypeVar("A")
V = TypeVar("V")

#: most questions that are out at the same time
MAX_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[A, V]):
    """What came of one question: a value, or why there is none."""

    asked: A
    value: V | None = None
    error: NodeError | None = None


def sweep(whom: Sequence[A], ask: Callable[[A], V], *, threads: int = MAX_THREADS) -> Iterator[Answer[A, V]]:
    """Ask all of them at the same time, and give each answer when it is there.

    Whoever stops taking answers waits only for the questions that are out already.

    Args:
        whom: nodes, or jobs, or whatever `ask` takes.
        ask: gives the value, or raises NodeError; anything else it raises comes through.
        threads: most of them at once.
    """
    if not whom:
        return
    pool = ThreadPoolExecutor(max_workers=max(1, min(threads, len(whom))))
    try:
        asked = {pool.submit(ask, one): one for one in whom}
        for done in as_completed(asked):
            failed = done.exception()
            if isinstance(failed, NodeError):
                yield Answer(asked=asked[done], error=failed)
            else:
                yield Answer(asked=asked[done], value=done.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
