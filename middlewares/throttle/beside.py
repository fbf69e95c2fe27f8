"""A blocking call beside the event loop, in a thread that the end of the process does not wait for.

Part of the worker half: the standard library only.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def beside(work: Callable[[], T], unwanted: Callable[[T], object]) -> T:
    """What a blocking call gives.

    Args:
        work: the call; it raises nothing.
        unwanted: called with its answer where the answer comes too late.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def take(found: T) -> None:
        if answer.done():
            unwanted(found)
        else:
            answer.set_result(found)

    def run() -> None:
        found = work()
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(take, found)

    threading.Thread(target=run, name="sdist-beside", daemon=True).start()
    return await answer
