"""Looking again and again until something is so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def poll_until(
    done: Callable[[], bool],
    every: float,
    *,
    deadline: float = float("inf"),
    meanwhile: Callable[[], None] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask until the answer is yes; gives whether it was before the deadline. It is asked once in any case.

    Args:
        done: the question.
        every: seconds between two questions.
        deadline: by the monotonic clock.
        meanwhile: called before each pause.
        pause: waits for so many seconds; that of `looked_out_for` lets Ctrl-C through.
    """
    while not done():
        if time.monotonic() >= deadline:
            return False
        if meanwhile is not None:
            meanwhile()
        pause(every)
    return True
