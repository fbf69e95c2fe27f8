"""One line about what is waited for; rule: drawn in place on a terminal, elsewhere said now and then."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..output import on_terminal, one_line, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
