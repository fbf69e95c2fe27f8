"""What a method of the spider has returned, whatever form Scrapy allows it to have.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.spider import iterate_spider_output
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def each(output: Any) -> AsyncIterator[Any]:
    """What an errback, or a method of the spider, has returned, one by one."""
    if isinstance(output, Deferred):
        output = await maybe_deferred_to_future(output)
    several = iterate_spider_output(output)
    if isinstance(several, Deferred):
        several = await maybe_deferred_to_future(several)
    async for one in as_async_generator(several):
        yield one
