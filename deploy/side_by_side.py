"""A thread pool with a thread per node, which does not wait for silent nodes after an interrupt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: maximum number of nodes called concurrently
MAX_THREADS = 64


@contextmanager
def threads(nodes: int) -> Iterator[ThreadPoolExecutor]:
    """A context manager for a pool with a thread per node, at most `MAX_THREADS`.

    If the block raises, Ctrl-C included, calls that have not begun are cancelled, and the others are not awaited.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, nodes)))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
