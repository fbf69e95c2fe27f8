"""Feed Scrapy's exporter at the end of a crawl with the items of all its workers.

The rule it keeps: what lies elsewhere is written before what is local, a local file is renamed when
it is whole, and what could not be stored is an error.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from itemadapter import ItemAdapter
from scrapy import Spider
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.settings import BaseSettings, Settings
from scrapy.signalmanager import SignalManager
from scrapy.signals import feed_exporter_closed
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.misc import load_object

from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.items.added_items import AddedFile, AddedRanges
from scrapyd_dist.items.delivery import Delivery, deliver
from scrapyd_dist.items.json_lines import Items, item_in
from scrapyd_dist.items.merging import is_elsewhere
from scrapyd_dist.plurals import counted
from scrapyd_dist.typed_lines import plain_line, read_form
from scrapyd_dist.whole_files import FreshFile

from ..feed_place import exporter_class
from ..typed_json import unpack
from .feed_outputs import CrawlOutputs, shown

logger = logging.getLogger(__name__)
#: items between two turns of the event loop
TURN = 100
#: reasons that are shown
REASONS = 3
#: the schemes of local files, whose storage is ours if the project has none of its own
_LOCAL = ("", "file")
#: what a line from a node may raise
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
#: the account in an address
_ACCOUNT = re.compile(r"(?<=://)[^/\s]*@")
#: what a feed raises whose options make no sense, or of which a part is missing
_WRONG_FEED = (NotConfigured, ImportError, NameError, AttributeError, TypeError, ValueError)
#: the statistics of feeds that could not be stored, and of those that were stored in a file
_FAILED = "feedexport/failed_count/"
_STORED = f"feedexport/success_count/{FileFeedStorage.__name__}"


class FeedsNotStored(DistError):
    """A feed could not be stored; the items are all at home."""


class WholeFileStorage(FileFeedStorage):
    """Stores a feed in a local file that gets its name when it is whole."""

    ranges: AddedRanges | None = None  #: what the crawl has added to files before

    def open(self, spider: Spider) -> IO[bytes]:
        """Open a file that has no name yet, with what there is where items are appended."""
        path = Path(self.path)
        self._whole: FreshFile | AddedFile
        if self.write_mode == "ab":
            self._whole = AddedFile(path, self.ranges)
        else:
            self._whole = FreshFile(path)
        return self._whole.file

    def store(self, file: IO[bytes]) -> None:
        """Give the file its name."""
        self._whole.finish()


WholeFileStorage.__name__ = FileFeedStorage.__name__  # by which Scrapy counts in the statistics


@dataclass
class FeedHost:
    """Gives exporters and storages what they need of a crawler, in a process without one."""

    settings: BaseSettings
    spider: Spider
    signals: SignalManager = field(default_factory=SignalManager)

    def __post_init__(self) -> None:
        self.stats = MemoryStatsCollector(self)  # type: ignore[arg-type]

    @classmethod
    def with_new_spider(
        cls, kind: type[Spider], settings: BaseSettings, args: Mapping[str, str]
    ) -> "FeedHost":
        """Return a host with a new spider of this class."""
        host = cls(settings, Spider(name=kind.name))
        host.spider = kind.from_crawler(host, **args)  # type: ignore[arg-type]
        return host


class _Complaints(logging.Handler):
    """Collects what Scrapy's exporter logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is logged, without accounts."""
        text = record.getMessage().rstrip(".")
        error = record.exc_info[1] if record.exc_info else None
        if error:
            text = f"{text} ({type(error).__name__}: {error})"
        self.texts.append(_ACCOUNT.sub("", text))


@contextmanager
def _complaints() -> Iterator[_Complaints]:
    """Collect what Scrapy's exporter complains of meanwhile."""
    log = logging.getLogger(FeedExporter.__module__)
    complaints = _Complaints()
    log.addHandler(complaints)
    try:
        yield complaints
    finally:
        log.removeHandler(complaints)


@contextmanager
def _enabled_logging() -> Iterator[None]:
    """Let loggers work also where all of them are disabled, as in `sdist plan`.

    Scrapy says only in its log why a feed is refused.
    """
    root = logging.getLogger()
    disabled = root.manager.disable
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)


class _SignalsOfSome:
    """The signals of a crawler whose feeds are not all closed yet.

    That they are closed comes once, with the last of them.
    """

    def __init__(self, signals: SignalManager) -> None:
        self._signals = signals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signals, name)

    async def send_catch_log_async(self, signal: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Send a signal, unless it says that all feeds are closed."""
        if signal is feed_exporter_closed:
            return []
        return await self._signals.send_catch_log_async(signal, **named)


class MergedFeeds:
    """Writes the feeds of a crawl, by URI, with their options as in FEEDS.

    Args:
        crawler: Scrapy's, or a `FeedHost`; it has the spider.
        feeds: at least one.
        ranges: what the crawl has added to local files before; None: nothing.

    Raises:
        ConfigError: one of them cannot be written: its options make no sense, or a storage, driver
            or format is missing.
    """

    def __init__(
        self,
        crawler: Any,
        feeds: Mapping[str, Mapping[str, Any]],
        ranges: AddedRanges | None = None,
    ) -> None:
        self._crawler = crawler
        self._ranges = ranges
        self._feeds = dict(feeds)
        self.lost = 0  #: items that are not in every feed where they should be
        self.why_lost = Counter[str]()  #: why they are not, with the number of such items
        self.problems = Counter[str]()  #: why items are dicts there
        self._check()

    def _check(self) -> None:
        """Raise ConfigError if a feed cannot be written."""
        with _enabled_logging(), _complaints() as complaints:
            try:
                self._new_exporter(self._feeds)
                self._load_plugins()
            except _WRONG_FEED as error:
                why = "; ".join(complaints.texts) or f"{type(error).__name__}: {error}"
                raise ConfigError(
                    f"The items cannot be written to {self._places()}: {why.rstrip('.')}. Correct"
                    " -o, -O or FEEDS; nothing was started."
                ) from error

    def _load_plugins(self) -> None:
        """Load what Scrapy loads only when it has an item."""
        for feed in self._feeds.values():
            for plugin in feed.get("postprocessing") or ():
                load_object(plugin)

    def _places(self) -> str:
        return ", ".join(map(shown, self._feeds))

    async def write(self, items: Items) -> None:
        """Write all feeds, in the event loop.

        Raises:
            FeedsNotStored: one could not be stored; others may be.
        """
        elsewhere: dict[str, Mapping[str, Any]] = {}
        local: dict[str, Mapping[str, Any]] = {}
        for uri, feed in self._feeds.items():
            feeds = elsewhere if is_elsewhere(uri) else local
            feeds[uri] = feed
        if elsewhere:
            await self._write(elsewhere, items, is_last=not local)
        if local:
            await self._write(local, items, is_last=True)

    async def _write(
        self, feeds: Mapping[str, Mapping[str, Any]], items: Items, *, is_last: bool
    ) -> None:
        """Write some of the feeds; FeedsNotStored if one could not be stored."""
        spider = self._crawler.spider
        failed = self._count_failed()
        with _complaints() as complaints:
            exporter = self._new_exporter(feeds, is_last=is_last)
            exporter.open_spider(spider)
            for number, item in enumerate(self._make_items(items)):
                if number % TURN == 0:
                    await asyncio.sleep(0)
                self._export(exporter, item)
            await exporter.close_spider(spider)
        if self._count_failed() > failed:
            raise FeedsNotStored(f"A feed could not be stored: {'; '.join(complaints.texts)}.")

    def _export(self, exporter: FeedExporter, item: Any) -> None:
        """Write an item; one that cannot be written counts as lost."""
        try:
            exporter.item_scraped(item, self._crawler.spider)
        except Exception as error:
            self.lost += 1
            self.why_lost[f"{type(error).__name__}: {error}"] += 1
            logger.exception("An item cannot be exported: %r", item)

    def _make_items(self, items: Items) -> Iterator[Any]:
        """Yield the items as the spiders made them, by their classes."""
        package = package_of(type(self._crawler.spider))
        for line in items.typed_lines():
            try:
                form, is_typed = read_form(line)
                item = unpack(form, package) if is_typed else form
            except _UNREADABLE as error:
                item = self._plain_item(line, error)
            if item is not None:
                yield item

    def _plain_item(self, line: bytes, error: Exception) -> dict[str, Any] | None:
        """Return the item on a line whose class or values cannot be made; None if it has none."""
        item = item_in(plain_line(line))
        if item is None:
            self.lost += 1
            self.why_lost[f"{type(error).__name__}: {error}"] += 1
        else:
            self.problems[str(error)] += 1
        return item

    def warnings(self) -> list[str]:
        """Warn of items that are not in a feed, or not as the spider made them."""
        places = self._places()
        warnings: list[str] = []
        if self.lost:
            items = counted(self.lost, "item")
            warnings.append(
                f"{items} could not be written to {places}: {_most_frequent(self.why_lost)}."
            )
        if self.problems:
            items = counted(self.problems.total(), "item was", "items were")
            warnings.append(
                f"{items} written to {places} as JSON: {_most_frequent(self.problems)}."
            )
        return warnings

    def _count_failed(self) -> int:
        """Return how many feeds could not be stored so far, by Scrapy's statistics."""
        stats = self._crawler.stats.get_stats()
        return sum(count for name, count in stats.items() if name.startswith(_FAILED))

    def _new_exporter(
        self, feeds: Mapping[str, Mapping[str, Any]], *, is_last: bool = True
    ) -> FeedExporter:
        """Make an exporter of these feeds that hears no signals: it is given the items here.

        Only the last exporter says that all feeds are closed.
        """
        settings = self._crawler.settings
        with_feeds = Settings(settings.copy())
        own_feeds = {uri: dict(feed) for uri, feed in feeds.items()}
        with_feeds.set("FEEDS", own_feeds, priority="cmdline")
        with_feeds.set("FEED_URI", None, priority="cmdline")
        with_feeds.set("FEED_STORAGES", _storages(settings, self._ranges), priority="cmdline")
        crawler = copy(self._crawler)
        crawler.settings = with_feeds
        if not is_last:
            crawler.signals = _SignalsOfSome(crawler.signals)
        return exporter_class(settings)(crawler)


def _most_frequent(reasons: Counter[str]) -> str:
    return "; ".join(why for why, _ in reasons.most_common(REASONS))


def _storages(settings: BaseSettings, ranges: AddedRanges | None) -> dict[str, Any]:
    """Return FEED_STORAGES, with ours for local files where Scrapy's would be used."""
    storages: dict[str, Any] = dict(settings.getdict("FEED_STORAGES"))
    effective = settings.getwithbase("FEED_STORAGES")
    for scheme in _LOCAL:
        if load_object(effective[scheme]) is FileFeedStorage:
            kind = type(WholeFileStorage.__name__, (WholeFileStorage,), {"ranges": ranges})
            storages[scheme] = kind
    return storages


def package_of(kind: type[Spider]) -> str:
    """Return the top-level package of the spider's project.

    Its modules have the classes of the items.
    """
    return kind.__module__.partition(".")[0]


def exported_values(items: Items, package: str) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of each item as an exporter is given them.

    They are as the spider made them, or as their serializers do.
    """
    for line in items.typed_lines():
        try:
            form, is_typed = read_form(line)
            yield _serialized(unpack(form, package)) if is_typed else form
        except _UNREADABLE:  # its class is not here: what its line has is all
            yield item_in(plain_line(line)) or {}


def _serialized(item: Any) -> dict[str, Any]:
    fields = ItemAdapter(item)
    serialized = {}
    for name, value in fields.items():
        serializer = fields.get_field_meta(name).get("serializer", _unchanged)
        serialized[name] = serializer(value)
    return serialized


def _unchanged(value: Any) -> Any:
    return value


async def deliver_to(
    outputs: CrawlOutputs, crawler: Any, folder: Path, *, package: str = "", **found: Any
) -> Delivery:
    """Write everything that a finished crawl leaves behind.

    That is its feeds, and then what `delivery.deliver` writes.

    Args:
        outputs: where the items go.
        crawler: as for `MergedFeeds`; None where there are no feeds, and statistics are not read.
        folder: the crawl's folder in the state folder.
        package: the project's, for the classes of items in CSV; that of the crawler's spider if
            there is one.
        found: what `deliver` needs besides.

    Raises:
        FeedsNotStored: a feed could not be stored; nothing else is written then.
    """
    if crawler is not None:
        package = package_of(type(crawler.spider))
    values = partial(exported_values, package=package)
    work = partial(deliver, folder, outputs=outputs.files, values=values, **found)
    if not outputs.feeds:
        delivered = await asyncio.to_thread(work)
        _count_files(outputs, crawler)
        return delivered
    feeds = MergedFeeds(crawler, outputs.feeds, AddedRanges(folder))
    loop = asyncio.get_running_loop()

    def write(items: Items) -> tuple[int, list[str]]:
        """Write the feeds from the thread that delivers; return lost items, and warnings."""
        asyncio.run_coroutine_threadsafe(feeds.write(items), loop).result()
        return feeds.lost, feeds.warnings()

    left = await asyncio.to_thread(partial(work, write_feeds=write))
    _count_files(outputs, crawler)
    return replace(left, outputs=outputs.shown)


def _count_files(outputs: CrawlOutputs, crawler: Any) -> None:
    """Count the files in the statistics as Scrapy's exporter counts feeds: monitors look there."""
    if crawler is None:
        return
    for _ in outputs.files:
        crawler.stats.inc_value(_STORED)
