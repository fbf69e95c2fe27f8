"""Which role a Scrapy process has, by its settings: a worker's, a producer's, a filler's, or none.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.payload import START_URLS

if TYPE_CHECKING:
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
