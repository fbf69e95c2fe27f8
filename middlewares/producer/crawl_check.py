"""Check what a crawl is asked to be, before its store and its nodes are known.

A crawl and its plan are refused for the same reasons, in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapyd_dist.batches import Shard
from scrapyd_dist.differences import FoundDifference

from ..targets import Target, find_target
from .crawl_request import (
    CrawlRequest,
    asked_for,
    check_crawl,
    find_project,
    for_target,
    shards_of,
)
from .difference_finder import kept_by_callbacks
from .producer_options import ProducerOptions, read_options

#: reads what was given with -a and with -s
GivenReader: TypeAlias = Callable[[BaseSettings], tuple[Mapping[str, str], Mapping[str, str]]]


@dataclass(frozen=True, kw_only=True)
class AskedCrawl:
    """Says what a crawl is asked to be; its spider can be crawled so, wherever its pages go."""

    options: ProducerOptions
    args: Mapping[str, str]  #: of -a
    given: Mapping[str, str]  #: of -s
    differences: Sequence[FoundDifference]  #: what differs from `scrapy crawl`, to be told


@dataclass(frozen=True, kw_only=True)
class CheckedCrawl:
    """Says what a crawl is asked to be, once all of that has passed the checks."""

    request: CrawlRequest
    target: Target
    shards: Sequence[Shard]  #: of a crawl that begins; one that goes on has its own
    differences: Sequence[FoundDifference]  #: what differs from `scrapy crawl`, to be told


def check_asked(
    settings: BaseSettings, spider: Spider, given: GivenReader = asked_for
) -> AskedCrawl:
    """Return what was asked for; ConfigError if such a crawl of the spider cannot work."""
    options = read_options(settings)
    args, given_settings = given(settings)
    differences = check_crawl(options, settings, spider, args)
    return AskedCrawl(options=options, args=args, given=given_settings, differences=differences)


def check_target(asked: AskedCrawl, settings: BaseSettings, spider: Spider) -> CheckedCrawl:
    """Return the whole request; ConfigError if it has no target, or no start pages."""
    target = find_target(spider, settings)
    options = for_target(asked.options, target, settings)
    kept = kept_by_callbacks(type(spider), target.methods(spider))
    request = CrawlRequest(
        spider=spider.name,
        options=options,
        project=find_project(settings),
        args=asked.args,
        given=asked.given,
    )
    return CheckedCrawl(
        request=request,
        target=target,
        shards=shards_of(options, spider),
        differences=[*asked.differences, *kept],
    )
