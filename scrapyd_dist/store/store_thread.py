"""A blocking store for an event loop: one thread makes all calls, so that they keep their order."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import ParamSpec, TypeVar

from scrapyd_dist.errors import StoreAway
from scrapyd_dist.store.guarded_store import Store

P = ParamSpec("P")
T = TypeVar("T")
#: seconds for which a store is waited for
PATIENCE = 30.0
#: seconds between two tries at a store that is away
STORE_RETRY_SECONDS = 0.5


class StoreThread:
    """Makes `await thread(store.verb, ...)` give the verb's answer, in the order of the calls.

    A store that is away is asked again for `patience` seconds.
    """

    def __init__(self, store: Store, *, patience: float = 0.0) -> None:
        self.store = store
        self._patience = patience
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sdist-store")

    async def __call__(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        work: Callable[[], T] = partial(verb, *args, **kwargs)
        return await loop.run_in_executor(self._pool, self._wait_for, work)

    def _wait_for(self, work: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return work()
            except StoreAway:
                if time.monotonic() + STORE_RETRY_SECONDS > deadline:
                    raise
            Event().wait(STORE_RETRY_SECONDS)

    def close(self) -> None:
        """Wait for what is under way and close the store."""
        self._pool.submit(self.store.close).result()
        self._pool.shutdown()
