"""Divide the start pages of a crawl into shards, and refuse a start that would make no request."""

from pathlib import Path

from scrapy import Spider
from w3lib.url import safe_url_string

from scrapyd_dist import config
from scrapyd_dist.batches import Shard
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.shards import ShardTemplate, check_page, shards_of_pages, shards_of_urls

from .producer_options import ProducerOptions

#: digits that stand for a page number while an address is escaped
_PLACEHOLDER = "9081726354"


def template_of(options: ProducerOptions) -> ShardTemplate | None:
    """Return the address of the index pages, when they are numbered."""
    if options.index is None:
        return None
    plain = ShardTemplate(options.index)
    check_page(plain.url(0), "The index address (--index, DISTRIBUTED_INDEX)")
    # Scrapy escapes spaces and letters beyond ASCII in an address: pages are recognised by what it
    # makes of it.
    escaped = safe_url_string(plain.url_with(_PLACEHOLDER))
    return ShardTemplate(escaped.replace(_PLACEHOLDER, plain.place))


def shards_of(options: ProducerOptions, spider: Spider) -> list[Shard]:
    """Return the shards: of the numbered index, of a list, or one for the spider's own start.

    ConfigError if the start pages cannot be divided so, or the spider's own start would never be
    called.
    """
    template = template_of(options)
    if template is not None:
        assert options.pages is not None
        return shards_of_pages(
            template, pages=options.pages, shards=options.shards, first_page=options.first_page
        )
    if options.start_urls_file is not None:
        return shards_of_urls(_read_start_urls(Path(options.start_urls_file)))
    _check_start(spider)
    return [Shard(number=0, url="")]


def _read_start_urls(path: Path) -> list[str]:
    """Return the addresses in a list of start pages; ConfigError if a line has none."""
    text = config.read_text(path, f"The list of start URLs {path}")
    urls = []
    for number, line in enumerate(text.splitlines(), 1):
        url = line.strip()
        if url and not line.startswith("#"):
            urls.append(check_page(url, f"{path}, line {number},"))
    return urls


def _check_start(spider: Spider) -> None:
    """Raise ConfigError if the spider's own start would make no request."""
    kind = type(spider)
    if kind.start is not Spider.start:
        return
    scrapys = getattr(Spider, "start_requests", None)
    own = getattr(kind, "start_requests", None)
    # Scrapy 2.16 and later never call `start_requests`: such a spider makes no request, and ends
    # well.
    if own is not None and scrapys is None:
        raise ConfigError(
            f"The spider {spider.name} has a start_requests() method, which this version of Scrapy"
            " never calls: it would make no request at all. Rename it to `async def start(self)`"
            " (the yields stay), or give the index pages with --index and --pages."
        )
    has_pages = bool(spider.start_urls) or bool(getattr(spider, "start_url", ""))
    if own is scrapys and not has_pages:
        raise ConfigError(
            f"The spider {spider.name} has no start_urls, and no start() of its own: it would make"
            " no request at all. Give it start pages, or the index pages with --index and --pages."
        )
