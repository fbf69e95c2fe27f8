"""How the process of a spider writes into a frontier, beside its crawl and in order.

The rule it keeps: what was taken stays here until the store has it; a store that is away is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from scrapyd_dist.errors import DistError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapyd_dist.batches import Miss
    from scrapyd_dist.frontier.filling import Found
    from scrapyd_dist.frontier.producing import FrontierProducer
    from scrapyd_dist.store.worker_thread import StoreThread

logger = logging.getLogger(__name__)

#: requests that may wait for the store; more wait in Scrapy
ROOM = 10_000
#: requests in one step of the store, at most
STEP = 2_000


class FrontierWriter:
    """What one producer has found and not written yet."""

    def __init__(self, producer: FrontierProducer, thread: StoreThread) -> None:
        self._producer = producer
        self._thread = thread
        self._waiting: list[Found] = []
        self._counts: dict[str, int] = {}
        self._misses: list[Miss] = []
        self._room = asyncio.Event()
        self._room.set()
        self.totals: dict[str, int] = {}  #: the account, as it is in the store
        self.fault = ""  #: why the store did not take what was last brought to it

    @property
    def waiting(self) -> int:
        """Requests that are not in the store."""
        return len(self._waiting)

    def take(self, found: Sequence[Found], counts: Mapping[str, int], misses: Sequence[Miss] = ()) -> None:
        """Remember this until the next `write`."""
        self._waiting += found
        self._misses += misses
        for name, number in counts.items():
            self._counts[name] = self._counts.get(name, 0) + number
        if len(self._waiting) >= ROOM:
            self._room.clear()

    async def room(self) -> None:
        """Wait while too much waits for the store."""
        await self._room.wait()

    async def write(self) -> None:
        """Bring all that waits into the store, and say that this producer is alive; `fault` says what did not work."""
        try:
            await self._thread(self._producer.renew)
            while self._waiting or self._counts or self._misses:
                await self._step()
        except Exception as error:  # whatever it was, all is kept for the next time
            if not isinstance(error, DistError) and not self.fault:
                logger.exception("The frontier cannot be written")
            self.fault = str(error) if isinstance(error, DistError) else f"{type(error).__name__}: {error}."
        else:
            self.fault = ""

    async def _step(self) -> None:
        found, counts, misses = self._waiting[:STEP], dict(self._counts), list(self._misses)
        kept = await self._thread(partial(self._producer.keep, found, counts, misses))
        # What came in meanwhile stands behind what was kept.
        self._waiting = self._waiting[len(found) :]
        self._misses = self._misses[len(misses) :]
        self._counts = {name: left for name, n in self._counts.items() if (left := n - counts.get(name, 0))}
        for name, number in kept.items():
            self.totals[name] = self.totals.get(name, 0) + number
        if len(self._waiting) < ROOM:
            self._room.set()
