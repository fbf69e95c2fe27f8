"""Find what of a program that starts a crawl by itself does not reach the nodes."""

import ast
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from pydispatch.dispatcher import getReceivers, liveReceivers
from scrapy import signals
from scrapy.crawler import Crawler

from ..spider_attributes import own_bases
from .code_reader import reads_or, top_package
from .source_reader import is_projects, last_name, module_tree

#: what starts crawls in a program
_STARTERS = frozenset(
    {"CrawlerProcess", "CrawlerRunner", "AsyncCrawlerProcess", "AsyncCrawlerRunner"}
)
#: what shows that a program looks at what its crawl does
_LOOKS = frozenset({"stats", "get_stats", "get_value", "connect"})
#: signals of pages and items
_SIGNALS = (
    signals.item_scraped,
    signals.item_dropped,
    signals.response_received,
    signals.spider_error,
)


@reads_or(str)
def watching_script(main: ModuleType | None) -> str:
    """Return the file name of a program that starts crawls and looks at them; empty if it is none.

    `main` is the module `__main__`.
    """
    tree = module_tree(main) if main is not None and is_projects(main) else None
    if tree is None or main is None:
        return ""
    names = set(map(last_name, ast.walk(tree)))
    is_watching = not names.isdisjoint(_STARTERS) and not names.isdisjoint(_LOOKS)
    return Path(str(main.__file__)).name if is_watching else ""


@reads_or(list[str])
def foreign_handlers(crawler: Crawler, kinds: Iterable[type]) -> list[str]:
    """Return the handlers of pages and items that neither the spider nor a component has.

    `kinds` are the classes of these.
    """
    packages = set(map(top_package, chain.from_iterable(map(own_bases, kinds))))
    found = []
    for signal in _SIGNALS:
        for handler in _receivers(crawler, signal):
            module = sys.modules.get(getattr(handler, "__module__", None) or "")
            is_theirs = module is not None and module.__name__.partition(".")[0] in packages
            if is_projects(module) and not is_theirs:
                found.append(getattr(handler, "__qualname__", str(handler)))
    return found


def _receivers(crawler: Crawler, signal: Any) -> Iterable[Any]:
    """Return what is connected to a signal."""
    receivers: Iterable[Any] = liveReceivers(getReceivers(crawler.signals.sender, signal))
    return receivers
