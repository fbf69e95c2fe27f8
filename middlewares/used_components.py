"""Tells which components of a project are on in a process, and why others are off.

Scrapy leaves out a component that raises `NotConfigured` as it is made. What makes it do so may be
missing on a node only: a file, a variable, scrapy.cfg.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from inspect import getmro
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from .spider_attributes import is_own

#: setting that lists components -> those that were made of it
_MADE: Mapping[str, Callable[[Crawler], Any]] = {
    "ADDONS": lambda crawler: crawler.addons.addons,
    "EXTENSIONS": lambda crawler: crawler.extensions.middlewares,
    "DOWNLOADER_MIDDLEWARES": lambda crawler: crawler.engine.downloader.middleware.middlewares,
    "SPIDER_MIDDLEWARES": lambda crawler: crawler.engine.scraper.spidermw.middlewares,
    "ITEM_PIPELINES": lambda crawler: crawler.engine.scraper.itemproc.middlewares,
}
#: the lists of those that requests, pages and items pass
PASSED_LISTS = ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES")
#: the loggers by which Scrapy says why it leaves out a component
_LOGGERS = ("scrapy.middleware", "scrapy.addons")
#: the module of Scrapy's cache
_CACHE = "scrapy.downloadermiddlewares.httpcache"
#: characters of a reason that are kept
_MOST = 200


class UsedComponents(NamedTuple):
    """Says which of a project's components are on in a process, by their import paths."""

    enabled: list[str]
    disabled: list[str]  #: each with its reason behind a colon, if it has given one

    @property
    def document(self) -> dict[str, list[str]]:
        """The fields of it in a report."""
        return {"components": self.enabled, "disabled": self.disabled}


def find_used_components(crawler: Crawler, lists: Iterable[str] = tuple(_MADE)) -> UsedComponents:
    """Find which components of the project this process has made; call it with an engine.

    Those that Scrapy switches on by itself, and this program's own, are left out. `lists` are the
    settings that list them.
    """
    reasons = _ReasonKeeper.reasons_of(crawler)
    enabled = list[str]()
    disabled = list[str]()
    for setting in lists:
        try:
            made = list(_MADE[setting](crawler))
        except (AttributeError, RuntimeError):  # a project's own part, or no engine
            continue
        configured = _find_configured(crawler.settings, setting)
        missing = _find_missing(configured, made, reasons)
        for name in configured:
            if name not in missing:
                enabled.append(name)
                continue
            reason = reasons.get(name)
            disabled.append(f"{name}: {reason}" if reason else name)
    return UsedComponents(enabled, disabled)


def _find_configured(settings: BaseSettings, setting: str) -> dict[str, Any]:
    """Return the project's components that a setting switches on: name -> class or function."""
    scrapys = settings.getdict(f"{setting}_BASE")
    kinds = dict[str, Any]()
    for component, order in settings.getwithbase(setting).items():
        name = name_component(component)
        kinds.pop(name, None)  # it may be given as a path, and as itself
        kind = None if order is None or component in scrapys else _load(component)
        if kind is not None and not _is_told_elsewhere(kind):
            kinds[name] = kind
    return kinds


def _load(component: Any) -> Any:
    """Return a component; None for one that Scrapy cannot have loaded."""
    try:
        return load_object(component)
    except Exception:  # noqa: BLE001  (an import may raise anything)
        return None


def _is_told_elsewhere(kind: Any) -> bool:
    """Tell whether a component is this program's, or the cache, which has rows of its own."""
    if not isinstance(kind, type):
        return False
    is_cache = any(base.__module__ == _CACHE for base in getmro(kind))
    return is_cache or kind.__module__.startswith("scrapyd_dist.")


def name_component(component: Any) -> str:
    """Return the import path of a component: a class, a function, an object, or the path."""
    if isinstance(component, str):
        return component
    named = component if hasattr(component, "__qualname__") else type(component)
    return f"{named.__module__}.{named.__qualname__}"


def _find_missing(
    configured: Mapping[str, Any], made: Iterable[Any], reasons: Mapping[str, str]
) -> set[str]:
    """Return the names of those that were not made.

    A function, or a class by `from_crawler`, may make an object of any type: as long as there are
    enough objects of types that are not named, all of these were made. If there are fewer, any may
    be off.
    """
    types = Counter(map(type, made))
    sure = set[str]()
    unsure = list[str]()
    for name, kind in configured.items():
        if isinstance(kind, type) and types[kind]:
            types[kind] -= 1
        elif name in reasons or _makes_itself(kind):
            sure.add(name)
        else:
            unsure.append(name)
    others = 0
    for kind, number in types.items():
        if is_own(kind):
            others += number
    return sure if others >= len(unsure) else sure.union(unsure)


def _makes_itself(kind: Any) -> bool:
    """Tell whether what Scrapy makes of a component is of its own type in any case."""
    is_class = isinstance(kind, type)
    return is_class and not (hasattr(kind, "from_crawler") or hasattr(kind, "from_settings"))


class _ReasonKeeper(logging.Handler):
    """Keeps the reasons with which components of a crawler have switched themselves off.

    Scrapy has them in its log only.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, _ReasonKeeper]] = WeakKeyDictionary()

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(logging.WARNING)
        self._all[crawler] = self
        self._number = id(crawler)  # to hold it here would keep it for ever
        self.reasons = dict[str, str]()

    @classmethod
    def reasons_of(cls, crawler: Crawler) -> dict[str, str]:
        """Return import path -> reason, as far as they were heard."""
        keeper = cls._all.get(crawler)
        return keeper.reasons if keeper is not None else {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of the reason in this record, if it has one."""
        values = record.args
        if id(getattr(record, "crawler", None)) != self._number or not isinstance(values, Mapping):
            return
        if "clspath" in values and "eargs" in values:
            lines = str(values["eargs"]).strip().splitlines() or [""]
            self.reasons[name_component(values["clspath"])] = lines[0][:_MOST]


def keep_reasons(crawler: Crawler) -> None:
    """Hear from now on why components are off, until the spider is open.

    Call it before they are made.
    """
    keeper = _ReasonKeeper(crawler)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(keeper)

    def leave() -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(keeper)

    crawler.signals.connect(leave, signals.spider_opened, weak=False)
