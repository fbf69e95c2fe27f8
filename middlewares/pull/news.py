"""What several coroutines of one worker wait for: that something has changed. Standard library only."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class News:
    """Wakes all who wait, each time."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something has changed."""
        waiting, self._waiting = self._waiting, set()
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Until something has changed, or until `timeout` seconds have passed."""
        one = asyncio.get_running_loop().create_future()
        self._waiting.add(one)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(one, timeout)
