"""Which process keeps the workers of a frontier running: the one that the frontier's row names, and no other.

The rule it keeps: a process that finds another one named in the row starts nothing more, and changes nothing in it.
"""

from __future__ import annotations

import os
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from scrapyd_dist.batches import CrawlState

    from ..producer.asked import Asked
    from ..producer.record import Record


class Hold:
    """This process at a frontier."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._store = record.thread.store

    async def take(self, frontier: str, spider: str, asked: Asked, before: tuple[int | None, str]) -> None:
        """From now on the row names this process.

        Args:
            frontier: whose row.
            spider: of the workers.
            asked: what the command line asks for.
            before: the process that the row named when it was seen that none works there; its machine.

        Raises:
            ConfigError: another one was faster.
        """
        claim = partial(self._store.claim, frontier, pid=os.getpid(), host=gethostname(), before=before)
        if not await self._record.thread(claim):
            raise _taken(frontier)
        await self._record.take_row(spider, asked)
        await self._record.thread(self._store.want, self._record.id, "")

    async def check(self) -> None:
        """Refuse to go on beside another process.

        Raises:
            ConfigError: the frontier is another one's now.
        """
        if not await self._is_mine():
            raise _taken(self._record.id)

    async def end(self, state: CrawlState, *, code: int, message: str, summary: dict[str, Any] | None) -> None:
        """Nobody keeps workers running there any more, unless somebody else does."""
        if await self._is_mine():
            await self._record.end(state, code=code, message=message, summary=summary)

    async def _is_mine(self) -> bool:
        row = await self._record.thread(self._store.crawl, self._record.id)
        return (row.pid, row.host) == (os.getpid(), gethostname())


def _taken(frontier: str) -> ConfigError:
    return ConfigError(
        f"Another process keeps the workers of the frontier {frontier} running now, and two would start too many."
        f" `sdist status {frontier}` says which one; stop it first, or let it do the work."
    )
