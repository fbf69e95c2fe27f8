"""A thread for each node; rule: what is interrupted does not wait for the nodes that have not answered."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: nodes that are talked to at the same time
MAX_THREADS = 64


@contextmanager
def threads(nodes: int) -> Iterator[ThreadPoolExecutor]:
    """A pool with a thread for each node; 64 at most.

    When its block is left by an error or by Ctrl-C, calls that have not begun do not begin, and nobody waits for the
    others.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, min(MAX_THREADS, nodes)))
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
