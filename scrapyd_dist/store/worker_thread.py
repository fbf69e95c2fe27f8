"""A blocking store used from an event loop: every call goes through one thread, so that calls keep their order."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from scrapyd_dist.store.base import Store

P = ParamSpec("P")
T = TypeVar("T")


class StoreThread:
    """`await thread(store.verb, ...)`: the verb's answer, in the order the calls were made."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sdist-store")

    async def __call__(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        work: Callable[[], T] = partial(verb, *args, **kwargs)
        return await loop.run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for what is under way and close the store."""
        self._pool.submit(self.store.close).result()
        self._pool.shutdown()
