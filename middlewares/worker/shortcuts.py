"""Puts shorter ways through Scrapy's private parts in place, which end where Scrapy's own ways end.

Each is put in only where Scrapy is as it is known here, on the objects of one crawler; elsewhere
Scrapy goes its own way. What each does, and what Scrapy could do in its place, is in
docs/internals/upstream.md. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import linecache
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

from scrapy import Request
from scrapy.core import scraper as scraper_module
from scrapy.core.scraper import Scraper
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import aiter_errback, iter_errback
from twisted.python.failure import Failure

#: the variable of the environment with the parts to leave out, separated by commas, or `all`
WITHOUT = "SDIST_WITHOUT"
#: the requests of a batch are handed to the engine together
HAND_OVER = "hand-over"
#: a page has as many tasks as it has outputs
ITEM_TASKS = "item-tasks"
#: the parts, each of which can be left out
PARTS = (HAND_OVER, ITEM_TASKS)
#: how the sources of Scrapy's functions begin as SHA-256, of Scrapy 2.14 to 2.19
_KNOWN_OUTPUT = frozenset({"194d54885f022012"})
_KNOWN_PARALLEL = frozenset({"517469df7d6ee52d", "d05a3a6213124208"})


def is_used(part: str) -> bool:
    """Tell whether this process may use a part; the crawl comes to the same without it."""
    left_out = os.environ.get(WITHOUT, "").split(",")
    return part not in left_out and "all" not in left_out


def put_in_shortcuts(crawler: Crawler) -> None:
    """Put in what fits this Scrapy and this project; call it when the engine is there."""
    if is_used(ITEM_TASKS):
        _share_item_tasks(crawler)


def source_hash(function: Callable[..., Any]) -> str:
    """Return how the source of a function begins as SHA-256; "" where there is no source."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        return ""
    source = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


# the outputs of a page


def _share_item_tasks(crawler: Crawler) -> None:
    """Let a page have no more tasks than outputs: Scrapy gives it CONCURRENT_ITEMS and one more."""
    scraper: Any = crawler.engine.scraper
    if not knows_outputs(scraper):
        return

    async def handle_spider_output_async(
        result: Iterable[Any] | AsyncIterator[Any], request: Request, response: Response | Failure
    ) -> None:
        outputs: Iterable[Any] | AsyncIterator[Any]
        if isinstance(result, AsyncIterator):
            outputs = aiter_errback(result, scraper.handle_spider_error, request, response)
        else:
            outputs = iter_errback(result, scraper.handle_spider_error, request, response)
        work = OutputWork(
            scraper.concurrent_items,
            lambda output: scraper._process_spidermw_output_async(output, response),  # noqa: SLF001
        )
        await work.do(as_async_generator(outputs))

    # On this instance only.
    scraper.handle_spider_output_async = handle_spider_output_async


def knows_outputs(scraper: Any) -> bool:
    """Tell whether this scraper handles a page's outputs as is known here."""
    # Scrapy 2.13 works through them in another way.
    parallel = getattr(scraper_module, "_parallel_asyncio", None)
    if parallel is None or type(scraper) is not Scraper:
        return False
    if "handle_spider_output_async" in vars(scraper):
        return False
    return (
        source_hash(Scraper.handle_spider_output_async) in _KNOWN_OUTPUT
        and source_hash(parallel) in _KNOWN_PARALLEL
    )


class OutputWork:
    """Works through the outputs of one page, in a task for each of them, but at most `count` tasks.

    As in Scrapy, they begin in their order, and twice as many are read ahead as may be in work.
    """

    def __init__(self, count: int, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self._count = count
        self._work = work
        self._waiting: deque[Any] = deque()
        self._room = asyncio.Event()  #: an output waits no more
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, outputs: AsyncIterator[Any]) -> None:
        """Read all outputs, and work until none is left."""
        async for output in outputs:
            self._waiting.append(output)
            if len(self._tasks) < self._count:
                self._start()
            elif len(self._waiting) >= 2 * self._count:
                self._room.clear()
                await self._room.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        task = asyncio.create_task(self._work_on())
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def _work_on(self) -> None:
        while self._waiting:
            output = self._waiting.popleft()
            self._room.set()
            await self._work(output)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:  # the work on one has failed, and others are left to it
            self._start()
