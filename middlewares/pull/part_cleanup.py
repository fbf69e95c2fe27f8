"""Parts of a frontier that are home leave their node: a frontier may never finish, and its files would grow for ever.

The rule it keeps: only what the store says has been accepted, or will never be, is removed. Part of the worker half:
imports the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

from scrapyd_dist.batches import BatchState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from scrapyd_dist.batches import Batch

logger = logging.getLogger(__name__)

#: seconds between two sweeps, and files that are looked at in one
EVERY, MOST = 300.0, 1_000
_PART = re.compile(r"\.b(?P<batch>\d+)\.a(?P<attempt>\d+)\.jl")


async def keep_sweeping(folder: Path, crawl: str, batch: Callable[[int], Awaitable[Batch | None]]) -> None:
    """Sweep now, and then from time to time, until it is cancelled.

    Args:
        folder: the frontier's own, in the node's logs.
        crawl: the frontier.
        batch: gives the batch of a number as the store has it; None where it cannot tell.
    """
    while True:
        removed = await sweep(folder, crawl, batch)
        if removed:
            logger.info("%d files whose items are home were removed from %s", removed, folder)
        await asyncio.sleep(EVERY)


async def sweep(folder: Path, crawl: str, batch: Callable[[int], Awaitable[Batch | None]]) -> int:
    """Remove the parts that nobody needs here any more; how many."""
    removed = 0
    for path in (await asyncio.to_thread(lambda: sorted(folder.glob(f"{crawl}.b*.jl"))))[:MOST]:
        found = _PART.fullmatch(path.name.removeprefix(crawl))
        row = await batch(int(found["batch"])) if found else None
        if found and row is not None and row.state is BatchState.DONE and int(found["attempt"]) <= row.attempts:
            path.unlink(missing_ok=True)  # another worker of this node may sweep as well
            removed += 1
    return removed
