"""The profile "fast": what makes a page cost less and changes no result; whatever anybody has set stays as it is.

The number behind each element is in docs/speed.md. Part of the worker half: imports Scrapy and the
standard library only.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

SETTING = "DISTRIBUTED_PROFILE"
NONE, FAST = PROFILES = ("none", "fast")
#: CONCURRENT_ITEMS: Scrapy starts so many tasks for each response, whatever comes out of it, and 100 by default
FAST_SETTINGS: dict[str, Any] = {"CONCURRENT_ITEMS": 4, "LOG_LEVEL": "INFO"}
#: the loggers that Scrapy gives a level of their own
_LOGGERS = ("", "scrapy")


def apply_profile(settings: BaseSettings, crawler: Crawler | None) -> None:
    """Give a process the profile that its settings ask for.

    Args:
        settings: as an add-on gets them, before the crawl's components are made.
        crawler: whose process it is; without one only the settings are given.
    """
    if settings.get(SETTING, NONE) != FAST:
        return
    for name, value in FAST_SETTINGS.items():
        settings.set(name, value, priority="addon")
    if crawler is not None:
        crawler.signals.connect(settle, signals.spider_opened)


def settle(spider: Spider) -> None:
    """What a process does once, when everything that stays is made."""
    log_from(spider.settings["LOG_LEVEL"])
    leave_what_stays()


def log_from(level: str | int) -> None:
    """Let no log record be made that the log's level would throw away: Scrapy makes two for each page."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(level)


def leave_what_stays() -> None:
    """Keep modules, settings and the like out of garbage collection: each full one, the last at exit, walks them all.

    Nothing is collected first, which would take as long as it saves a short job.
    """
    gc.freeze()
