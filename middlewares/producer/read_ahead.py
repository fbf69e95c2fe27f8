"""Read in a thread what comes slowly, so that other work goes on between two of its rows."""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
#: maximum number of rows in one list
STEP = 2_000
#: maximum number of rows that are read ahead
AHEAD = 5_000


def read_ahead(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of rows that a thread reads ahead; an empty one if none came for a second.

    Raises what reading them raised, behind the rows before it.
    """
    # Its end is None, or why it broke off.
    ahead: queue.Queue[list[T] | Exception | None] = queue.Queue(AHEAD)

    def read() -> None:
        """Put all rows into the queue, and its end."""
        try:
            for row in rows:
                ahead.put([row])
            ahead.put(None)
        except Exception as error:  # noqa: BLE001  (the reader raises it)
            ahead.put(error)

    # A daemon: nothing ends a read from a terminal or a pipe, nor one whose rows are taken no more.
    threading.Thread(target=read, name="sdist-read-ahead", daemon=True).start()
    while True:
        batch: list[T] = []
        with suppress(queue.Empty):
            while len(batch) < STEP:
                row = ahead.get(timeout=0.0 if batch else 1.0)
                if row is None or isinstance(row, Exception):
                    yield batch
                    if row is not None:
                        raise row
                    return
                batch += row
        yield batch
