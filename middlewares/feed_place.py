"""Hear of scraped items at the place that Scrapy's feed exporter has among those that do.

The receivers of `item_scraped` are called in the order in which they were connected, and each may
change the item. A feed of a plain crawl has what those before its exporter have made of it.
Part of the worker half: imports Scrapy and the standard library only.
"""

from collections.abc import Callable
from typing import Any, cast

from pydispatch import dispatcher
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import BaseSettings
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object


def connect_at_feeds(crawler: Crawler, receiver: Callable[..., Any]) -> None:
    """Connect a receiver of `item_scraped` where a plain crawl connects its exporter.

    Call it when the extensions are made, and the spider is not opened yet: what connects then comes
    behind the exporter, whosever it is.
    """
    crawler.signals.connect(receiver, signals.item_scraped)
    # Scrapy has no way to connect before another receiver: this is the list itself.
    receivers = dispatcher.getReceivers(crawler.signals.sender, signals.item_scraped)
    receivers.insert(_find_place(crawler, receivers[:-1]), receivers.pop())


def _find_place(crawler: Crawler, receivers: list[Any]) -> int:
    """Return how many of these come before the exporter's.

    Those up to the last one of an extension that is made before the exporter. Scrapy's own
    CoreStats is one, so that whatever the spider or an add-on has connected is before that.
    Without any, those of the spider are all that is known.
    """
    kinds = _kinds_before(crawler.settings)
    place = 0
    place_of_spider = 0
    for number, receiver in enumerate(receivers, 1):
        if isinstance(receiver, dispatcher.WEAKREF_TYPES):
            receiver = receiver()  # noqa: PLW2901 - what it stands for
        owner = getattr(receiver, "__self__", None)
        if type(owner) in kinds:
            place = number
        elif owner is not None and owner is crawler.spider:
            place_of_spider = number
    return place or place_of_spider


def _kinds_before(settings: BaseSettings) -> set[Any]:
    """Return the classes of the extensions that are made before the exporter."""
    exporter = exporter_class(settings)
    kinds = set[Any]()
    for component in build_component_list(settings.getwithbase("EXTENSIONS")):
        kind = load_object(component)
        if kind is exporter:
            break
        kinds.add(kind)
    return kinds


def exporter_class(settings: BaseSettings) -> type[FeedExporter]:
    """Return the project's own feed exporter, where EXTENSIONS has one; else Scrapy's."""
    scrapys = settings.getdict("EXTENSIONS_BASE")  # are not loaded before their turn
    for path, order in settings.getwithbase("EXTENSIONS").items():
        if order is None or path in scrapys:
            continue
        kind = load_object(path)
        is_exporter = isinstance(kind, type) and issubclass(kind, FeedExporter)
        if is_exporter and kind is not FeedExporter:
            return cast("type[FeedExporter]", kind)
    return FeedExporter
