"""Reads what comes slowly in a thread, so that other work goes on between two of its rows."""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
#: most rows in one list
STEP = 2_000
#: rows that are read ahead
AHEAD = 5_000


def read_ahead(rows: Iterable[T]) -> Iterator[list[T]]:
    """Rows that a thread reads ahead, in lists; an empty one when none has come for a second.

    Raises what reading them raised, behind the rows before it.
    """
    ahead: queue.Queue[list[T] | Exception | None] = queue.Queue(
        AHEAD
    )  # its end is None, or why it broke off

    def read() -> None:
        try:
            for row in rows:
                ahead.put([row])
            ahead.put(None)
        except Exception as error:
            ahead.put(error)

    # A daemon: nothing ends a read from a terminal or a pipe, nor one whose rows are taken no more.
    threading.Thread(target=read, name="sdist-read-ahead", daemon=True).start()
    while True:
        some: list[T] = []
        with suppress(queue.Empty):
            while len(some) < STEP:
                row = ahead.get(timeout=0.0 if some else 1.0)
                if row is None or isinstance(row, Exception):
                    yield some
                    if row is not None:
                        raise row
                    return
                some += row
        yield some
