"""Hands the requests of batches to Scrapy's engine together, not one by one at the spider's start.

Scrapy takes what a spider's start yields one by one, each in a turn of the event loop of its own:
from a site that answers as fast as that, hardly more than one page is ever under way. What a batch
has is known as a whole, like the requests that a callback yields, and those Scrapy gets together.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from .shortcuts import HAND_OVER, is_used

#: requests that are handed over before what else there is to do has its turn
GROUP = 50


async def hand_over(
    engine: Any, beyond: Sequence[BaseSpiderMiddleware], requests: AsyncIterator[Request]
) -> None:
    """Hand the requests to the engine, as the middlewares `beyond` leave them."""
    number = 0
    async for request in requests:
        if engine.spider is None:  # it was closed meanwhile, and takes no more
            return
        processed = _pass_through(beyond, request)
        if processed is None:
            continue
        engine.crawl(processed)
        number += 1
        if number % GROUP == 0:
            await asyncio.sleep(0)


def find_known_beyond(crawler: Crawler, own: object) -> Sequence[BaseSpiderMiddleware] | None:
    """Return Scrapy's own middlewares that process what a start yields, nearest to `own` first.

    They are those between `own` and the engine. None if one of the project is there, too, or this
    part is left out: then the start has to yield each request. Call it when the engine is there.
    """
    if not is_used(HAND_OVER):
        return None
    middlewares = crawler.engine.scraper.spidermw.middlewares
    if own not in middlewares:
        return None
    beyond = []
    for middleware in reversed(middlewares[: middlewares.index(own)]):
        if not _sees_start(middleware):
            continue
        if not _is_known(middleware):
            return None
        beyond.append(middleware)
    return beyond


def _sees_start(middleware: Any) -> bool:
    # An older Scrapy has the second one as well.
    return hasattr(middleware, "process_start") or hasattr(middleware, "process_start_requests")


def _is_known(middleware: Any) -> bool:
    """Tell whether `get_processed_request` is all that this one does with a request."""
    kind = type(middleware)
    return (
        isinstance(middleware, BaseSpiderMiddleware)
        and kind.__module__.startswith("scrapy.spidermiddlewares.")
        and kind.process_start is BaseSpiderMiddleware.process_start
    )


def _pass_through(middlewares: Sequence[BaseSpiderMiddleware], request: Request) -> Request | None:
    """Return the request as the engine gets it from these middlewares; None if one drops it."""
    processed: Request | None = request
    for middleware in middlewares:
        if processed is None:
            return None
        processed = middleware.get_processed_request(processed, None)
    return processed
