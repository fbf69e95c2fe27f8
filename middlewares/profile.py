"""What makes a crawl's processes cheaper and changes no result; whatever anybody has set stays as it is.

Three profiles: "none" leaves Scrapy as it is, "usual" is what nobody can tell but by the clock, "fast" logs less, too.
The number behind each element is in docs/speed.md. Part of the worker half: imports Scrapy and the standard library
only.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapyd_dist.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

SETTING = "DISTRIBUTED_PROFILE"
USUAL, FAST, NONE = PROFILES = SETTINGS[SETTING].choices
#: CONCURRENT_ITEMS: Scrapy starts so many tasks for each response, whatever comes out of it, and 100 by default
PROFILE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    NONE: {},
    USUAL: {"CONCURRENT_ITEMS": 16},
    FAST: {"CONCURRENT_ITEMS": 4, "LOG_LEVEL": "INFO"},
}
#: the loggers that Scrapy gives a level of their own
_LOGGERS = ("", "scrapy")


def apply_profile(settings: BaseSettings, crawler: Crawler | None) -> None:
    """Give a process the profile that its settings ask for.

    Args:
        settings: as an add-on gets them, before the crawl's components are made.
        crawler: whose process it is; without one only the settings are given.
    """
    profile = settings.get(SETTING, USUAL)
    for name, value in PROFILE_SETTINGS.get(profile, {}).items():
        settings.set(name, value, priority="addon")
    if crawler is None or profile not in (USUAL, FAST):
        return
    crawler.signals.connect(leave_what_stays, signals.spider_opened)
    if profile == FAST:
        crawler.signals.connect(log_no_more, signals.spider_opened)


def log_no_more(spider: Spider) -> None:
    """Let no log record be made that the log's level would throw away: Scrapy makes two for each page."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(spider.settings["LOG_LEVEL"])


def leave_what_stays() -> None:
    """Keep modules, settings and the like out of garbage collection: each full one, the last at exit, walks them all.

    Done once in a process, when everything that stays is made: what an earlier crawl of it has left behind does not
    stay. Nothing is collected first, which would take as long as it saves a short job.
    """
    if not gc.get_freeze_count():
        gc.freeze()
