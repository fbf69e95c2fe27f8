"""Ctrl-C while something is watched. Rule: it comes through at a pause only, so that no look is torn apart by it."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class CtrlC:
    """What became of SIGINT since it is looked out for."""

    def __init__(self) -> None:
        self._came = self._pausing = False

    def take(self, _number: int, _frame: FrameType | None) -> None:
        """The handler. A second one breaks off whatever is under way: that may hang."""
        if self._pausing or self._came:
            raise KeyboardInterrupt
        self._came = True

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            KeyboardInterrupt: Ctrl-C came, now or since the last pause.
        """
        self._pausing = True
        try:
            if self._came:
                raise KeyboardInterrupt
            time.sleep(seconds)
        finally:
            self._pausing = False


@contextmanager
def looked_out_for() -> Iterator[CtrlC]:
    """Within this block SIGINT becomes a KeyboardInterrupt of `CtrlC.pause`."""
    found = CtrlC()
    before = signal.signal(signal.SIGINT, found.take)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
