"""Check what a crawl is asked to be, before its store and its nodes are known.

A crawl and its plan are refused for the same reasons, in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapyd_dist.batches import Shard
from scrapyd_dist.differences import FoundDifference, Trait, by_trait
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.merging import check_folder, is_elsewhere
from scrapyd_dist.scrapyd.jobs import check_spider_name

from ..classifier import has_own_filter
from ..slot_routing import SlotRouting
from ..targets import Target, find_crawl_target
from .crawl_request import CrawlRequest, asked_for, find_project, known_as
from .difference_finder import (
    find_differences,
    find_made_anew,
    find_set_on_index,
    find_unheard,
    find_unheard_on_index,
    join_rows,
    kept_by_callbacks,
    refuse_differences,
    told_differences,
)
from .feed_outputs import crawl_outputs, shown
from .merged_feeds import FeedHost, MergedFeeds
from .producer_options import ProducerOptions, read_options
from .scrapy_parts import check_parts, import_path
from .spider_check import check_spider
from .start_pages import shards_of

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
    target = find_crawl_target(spider, settings)
    options = for_target(asked.options, target, settings)
    callbacks = target.methods(spider)
    in_callbacks = [
        *find_set_on_index(settings, type(spider), callbacks),
        *find_unheard_on_index(settings, type(spider), callbacks),
        *find_made_anew(settings, type(spider), callbacks),
        *kept_by_callbacks(type(spider), callbacks | target.rule_hooks(spider)),
    ]
    request = CrawlRequest(
        spider=known_as(spider),
        options=options,
        project=find_project(settings),
        args=asked.args,
        given=asked.given,
    )
    return CheckedCrawl(
        request=request,
        target=target,
        shards=shards_of(options, spider),
        differences=join_rows([*asked.differences, *_left_links(target, spider), *in_callbacks]),
    )


def _left_links(target: Target, spider: Spider) -> list[FoundDifference]:
    """Return the row of links that workers do not follow, with the rules of their pages."""
    numbers = target.unfollowed_rules(spider)
    if not numbers:
        return []
    rules = tuple(map("rule {}".format, numbers))
    return [FoundDifference(difference=by_trait(Trait.LEFT_LINKS), found=rules)]


def check_crawl(
    options: ProducerOptions, settings: BaseSettings, spider: Spider, args: Mapping[str, str]
) -> list[FoundDifference]:
    """Return what differs from `scrapy crawl`, as far as people are told of it.

    `args` are those of the spider.

    Raises:
        ConfigError: a crawl of this spider cannot work with these settings, or write its items.
    """
    check_spider_name(known_as(spider))
    check_mode(options, settings)
    check_parts(settings)
    check_outputs(options, settings, spider)
    check_spider(spider, settings, args)
    found = find_differences(settings, type(spider))
    refuse_differences(found)
    crawler: Crawler | None = getattr(spider, "crawler", None)
    return [*told_differences(found), *find_unheard(crawler, type(spider))]


def check_outputs(options: ProducerOptions, settings: BaseSettings, spider: Spider) -> None:
    """Raise ConfigError if the items cannot be written where they shall go."""
    outputs = crawl_outputs(options.outputs, settings)
    for file in outputs.files:
        check_folder(file.path.parent)
    for uri in outputs.feeds:
        if not is_elsewhere(uri):
            known_part, _, _ = uri.partition("%(")
            check_folder(Path(known_part).parent)
    if not outputs.feeds:
        return
    if options.target_feed_url is not None:
        raise ConfigError(
            "With a feed URL (--feed, DISTRIBUTED_TARGET_FEED_URL) items come back as lines of"
            f" JSON, and {', '.join(map(shown, outputs.feeds))} needs more than these (-o, -O,"
            " FEEDS): their classes, or Scrapy's own exporter. Leave out one of the two."
        )
    MergedFeeds(FeedHost(settings, spider), outputs.feeds)


def for_target(options: ProducerOptions, target: Target, settings: BaseSettings) -> ProducerOptions:
    """Return the options of a crawl with this target.

    Workers that follow rules must lease, since links go to the store.

    Raises:
        ConfigError: the options ask for something else, or the workers would need one filter of
            duplicates.
    """
    if not target.follows:
        return options
    if has_own_filter(settings):
        row = by_trait(Trait.OWN_FILTER_FOLLOWS)
        raise ConfigError(
            f"DUPEFILTER_CLASS is {import_path(settings['DUPEFILTER_CLASS'])}. {row.sentence}"
        )
    wrong = "index pages (--index, --start-urls) are the producer's" if options.sharded else ""
    if not options.leases:
        wrong = "batches that are sent (--push, --feed) have no way to hand on links"
    if wrong:
        raise ConfigError(
            f"To the nodes go {target.how}; but {wrong}. Name the pages that workers fetch without"
            " following their links: --rule N (DISTRIBUTED_TARGET_RULE). Or leave the other option"
            " out."
        )
    return replace(
        options,
        only_leased=options.only_leased or "rules that follow links on pages with a callback",
    )


def check_mode(options: ProducerOptions, settings: BaseSettings) -> None:
    """Raise ConfigError if the settings ask for what the mode does not have.

    Also if they ask for slots that cannot be.
    """
    if not options.leases:
        if options.only_leased:
            raise ConfigError(
                f"{options.only_leased}: only workers that lease their batches know of it, and this"
                ' crawl sends its batches to the nodes. Add --pull (DISTRIBUTED_MODE = "pull"), or'
                " take it out of the settings."
            )
        return
    SlotRouting.from_settings(settings)
    if options.sharded and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests of a spider can go to the workers (DISTRIBUTED_SEEDS), but index pages"
            " (--index, --start-urls) are walked by the producer, each shard by itself. Leave out"
            " one of the two."
        )
    if options.limit and settings.getbool("DISTRIBUTED_SEEDS"):
        raise ConfigError(
            "Start requests that go to the workers (DISTRIBUTED_SEEDS) leave the finding to them,"
            " each for itself, and a limit (--limit, DISTRIBUTED_LIMIT) counts what the producer"
            " finds. Leave out one of the two."
        )
