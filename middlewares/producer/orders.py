"""What people ask of a crawl that runs, through its row in the store: to rest, to go on, to be cancelled.

The rule it keeps: an order is looked for once a tick, so that it reaches a producer on any machine of the store.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from .modes import AnyCoordinator
    from .record import Record

logger = logging.getLogger(__name__)


class Orders:
    """Looks for orders, and obeys."""

    def __init__(self, crawler: Crawler, record: Record, coordinator: AnyCoordinator) -> None:
        self._crawler, self._record, self._coordinator = crawler, record, coordinator
        self.cancelled = False

    @property
    def paused(self) -> bool:
        """Whether the crawl rests."""
        return self._coordinator.paused

    async def look(self) -> None:
        """Do what is wanted now, if it is something new."""
        wanted = await self._record.wanted()
        if wanted == "cancel":
            self._cancel()
        elif (wanted == "pause") != self.paused:
            self._rest(paused=not self.paused)

    def _rest(self, *, paused: bool) -> None:
        engine = self._crawler.engine
        assert engine is not None
        logger.info("The crawl %s", "rests: it sends nothing and walks no index page" if paused else "goes on")
        self._coordinator.rest(paused=paused)
        if paused:
            engine.pause()
        else:
            engine.unpause()

    def _cancel(self) -> None:
        """End it; whoever wants that cancels its jobs, when this process sends no more."""
        if self.cancelled:
            return
        self.cancelled = True
        if self.paused:
            self._rest(paused=False)  # an engine that rests does not close
        self._coordinator.desk.stop_now("The crawl was cancelled.")
