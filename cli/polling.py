"""Waiting: asks again until something is so, and shows how it stands meanwhile."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .output import on_terminal, one_line, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


@contextmanager
def waiting(every: float, *, terminal_only: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function that says how it stands, on standard error.

    Args:
        every: seconds between two lines where there is no terminal; the first one comes at once.
        terminal_only: say nothing elsewhere.
    """
    if on_terminal():
        from rich.console import Console
        from rich.status import Status
        from rich.text import Text

        with Status("", console=Console(stderr=True), refresh_per_second=4) as status:
            yield lambda text: status.update(Text(one_line(text)))
        return
    last: float | None = None

    def show(text: str) -> None:
        nonlocal last
        if not terminal_only and (last is None or time.monotonic() - last >= every):
            last = time.monotonic()
            say(text)

    yield show
