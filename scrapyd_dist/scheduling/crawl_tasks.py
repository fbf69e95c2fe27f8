"""Runs the tasks of a scheduler, none of which fails unnoticed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CrawlTasks:
    """Holds the tasks that run, and the posts among them, which the end waits for.

    `failed` is called with the error of a task that has failed, `ended` for any other that has
    ended.
    """

    def __init__(
        self, *, failed: Callable[[BaseException], None], ended: Callable[[], None]
    ) -> None:
        self._failed = failed
        self._ended = ended
        self._tasks: set[asyncio.Task[Any]] = set()
        self.posts: set[asyncio.Task[Any]] = set()  #: posts in flight

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def post(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that posts a job."""
        task = self.spawn(work)
        self.posts.add(task)
        task.add_done_callback(self.posts.discard)

    def _end(self, task: asyncio.Task[Any]) -> None:
        """Forget a task that has ended."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
        else:
            self._ended()

    async def finish_posts(self) -> None:
        """Wait until no post is in flight."""
        while self.posts:
            await asyncio.wait(set(self.posts))

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
