"""Notice that the spider's start still waits when all that it has asked for is done."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: seconds without any work after which people are told
PATIENCE = 60.0


class StartWatch:
    """Knows whether the spider's start has ended, and how long nothing else was left to do."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._runs = False
        self._idle_since: float | None = None
        self._has_told = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take the start as running inside."""
        self._runs = True
        try:
            yield
        finally:
            self._runs = False

    def waits_in_vain(self, *, has_work: bool) -> bool:
        """Return, once, whether the start has been all that is left for so long.

        `has_work` says whether there is any now. It is asked at each tick.
        """
        if has_work or not self._runs:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = self._now()
        if self._has_told or self._now() - self._idle_since < PATIENCE:
            return False
        self._has_told = True
        return True
