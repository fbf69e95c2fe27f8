"""Methods of the spider: the one that a setting names, and what one has returned in any form that Scrapy allows.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.spider import iterate_spider_output
from twisted.internet.defer import Deferred

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from scrapy.crawler import Crawler


async def each(output: Any) -> AsyncIterator[Any]:
    """What an errback, or a method of the spider, has returned, one by one."""
    if isinstance(output, Deferred):
        output = await maybe_deferred_to_future(output)
    several = iterate_spider_output(output)
    if isinstance(several, Deferred):
        several = await maybe_deferred_to_future(several)
    async for one in as_async_generator(several):
        yield one


def spider_method(crawler: Crawler, setting: str) -> Callable[..., Any] | None:
    """The method of the spider that a setting names; None when it names none.

    Raises:
        ConfigError: the spider has no such method.
    """
    name = crawler.settings.get(setting)
    method: Callable[..., Any] | None = getattr(crawler.spider, str(name), None) if name else None
    if name and not callable(method):
        assert crawler.spider
        raise ConfigError(f"{setting} names {name!r}, and the spider {crawler.spider.name} has no method of that name.")
    return method
