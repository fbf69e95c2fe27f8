"""What goes on beside a crawl in its process. The rule it keeps: an error that nobody awaits does not go unseen."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

logger = logging.getLogger(__name__)


class TaskGroup:
    """Tasks that have a name, of which there is one at most; and others, whose end can be waited for.

    Args:
        broken: is called when one has failed, for the first time.
    """

    def __init__(self, broken: Callable[[], object]) -> None:
        self._broken = broken
        self._named: dict[str, asyncio.Task[Any]] = {}
        self._others: set[asyncio.Task[Any]] = set()
        self.fault: BaseException | None = None  #: the first error, which nothing here could handle

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """The task of that name; it is made when there has been none."""
        if name not in self._named:
            self._named[name] = self._task(work())
        return self._named[name]

    async def cancel(self, name: str) -> None:
        """End the task of that name, if there is one."""
        if name in self._named:
            self._named[name].cancel()
            await asyncio.gather(self._named[name], return_exceptions=True)

    def add(self, work: Coroutine[Any, Any, Any]) -> None:
        """One more task without a name."""
        task = self._task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def settle(self) -> None:
        """Wait for all tasks without a name; raises the first error that any task has had."""
        while self._others:
            await asyncio.gather(*self._others)
        if self.fault is not None:
            raise self.fault

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._notice)
        return task

    def _notice(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.fault is None:
            self.fault = error
            logger.error("The crawl cannot go on: %s", error, exc_info=error)
            self._broken()
