"""Sends calls from asyncio without a reactor; each node has its own threads, so a silent node blocks no other."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.transports import SILENCE
from scrapyd_dist.transports.requests import RequestsTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scrapyd.call import Call
    from scrapyd_dist.transports import Sender

T = TypeVar("T")

#: Maximum concurrent calls per node.
THREADS = 8


class ThreadTransport:
    """An `AsyncSender` over a blocking `Sender`, with a thread pool per node.

    A cancelled call continues in its thread until its timeout; the node may still accept it. The timeout of a call
    starts when a thread begins it.
    """

    def __init__(self, sender: Sender | None = None, *, threads: int = THREADS) -> None:
        self._sender = sender or RequestsTransport()
        self._threads = threads
        self._pools: dict[str, ThreadPoolExecutor] = {}  #: by node url

    async def send(self, node: Node, call: Call[T], *, timeout: float | None = None) -> T:
        """See `Sender.send`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool(node), lambda: self._sender.send(node, call, timeout=timeout))

    async def download(
        self, node: Node, call: Call[T], sink: Callable[[bytes], object], *, silence: float = SILENCE
    ) -> T:
        """See `Sender.download`. The sink is called in a thread of the pool."""
        loop = asyncio.get_running_loop()
        work = partial(self._sender.download, node, call, sink, silence=silence)
        return await loop.run_in_executor(self._pool(node), work)

    def close(self) -> None:
        """Shut the pools down; a thread that waits for a reply ends with it."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._sender.close()

    def _pool(self, node: Node) -> ThreadPoolExecutor:
        if node.url not in self._pools:
            self._pools[node.url] = ThreadPoolExecutor(max_workers=self._threads, thread_name_prefix="sdist-send")
        return self._pools[node.url]
