"""The spider middleware of the book: a producer's half or a worker's half, by the settings of the process.

Part of the worker half: imports Scrapy and the standard library only; the producer's half is
imported when a process turns out to be one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured

from scrapyd_dist.payload import START_URLS

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

#: scrapy commands whose crawls are never spread: they look at one page, or run contracts
LOCAL_COMMANDS = frozenset({"shell", "fetch", "view", "parse", "check", "bench", "list", "genspider", "settings"})
#: the setting of a process that only fills this frontier
FRONTIER = "DISTRIBUTED_FRONTIER"
#: the setting of a worker that leases its batches itself
PULL = "DISTRIBUTED_PULL"


def is_worker(settings: BaseSettings) -> bool:
    """A process that was given a batch, or a store to lease batches from, crawls those and nothing else."""
    return settings.get(START_URLS) is not None or is_pulling(settings)


def is_pulling(settings: BaseSettings) -> bool:
    """A worker that leases its batches itself."""
    return bool(settings.get(PULL))


def is_producer(settings: BaseSettings) -> bool:
    """A crawl that is not a worker is spread, unless it is one of Scrapy's looks at a page."""
    return not is_worker(settings) and settings.getbool("DISTRIBUTED_ENABLED", True) and not looks_only()


def is_filler(settings: BaseSettings) -> bool:
    """A producer that only fills a frontier, and has nothing to do with nodes."""
    return is_producer(settings) and bool(settings.get(FRONTIER))


def looks_only() -> bool:
    """Whether this is one of Scrapy's looks at a page."""
    program = Path(sys.argv[0] or "").name
    if program not in {"scrapy", "scrapy.exe", "__main__.py", "cmdline.py", "runner.py"}:
        return False
    return _scrapy_command() in LOCAL_COMMANDS


def _scrapy_command() -> str:
    """Scrapy takes the command's name out of `sys.argv`; what the process was started with still has it."""
    started = sys.orig_argv[-len(sys.argv) :]
    at = _first_word(started)
    if started[:at] + started[at + 1 :] == sys.argv[1:]:
        return started[at]
    left = [*sys.argv[1:], ""]
    return left[_first_word(left)]


def _first_word(arguments: list[str]) -> int:
    return next((at for at, text in enumerate(arguments) if not text.startswith("-")), 0)


class Distributed:
    """Stands for the half that this process needs; `SPIDER_MIDDLEWARES = {"scrapyd_dist.Distributed": 100}`."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """The worker's or the producer's middleware.

        Raises:
            NotConfigured: this process is neither.
        """
        from .addon import Addon, apply_late
        from .throttle.install import put_in_late

        if crawler.get_addon(Addon) is None:
            if is_worker(crawler.settings) or is_producer(crawler.settings):
                apply_late(crawler)
            put_in_late(crawler)
        if is_pulling(crawler.settings):
            from .pull.puller import Puller

            return Puller.from_crawler(crawler)
        if is_worker(crawler.settings):
            from .worker.pushed import Worker

            return Worker.from_crawler(crawler)
        if is_filler(crawler.settings):
            from .frontier.filler import Filler

            return Filler.from_crawler(crawler)
        if is_producer(crawler.settings):
            from .producer.producer import Producer

            return Producer.from_crawler(crawler)
        raise NotConfigured
