"""Which store a process asks for permits, and whether it can: that of its crawl, or that of its project.

The rule it keeps: what stands in the way is one sentence, for whoever has to tell it. Part of the worker half: imports
Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_asyncio_reactor_installed

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.store import open_store
from scrapyd_dist.store.address import VARIABLE, chosen

from ..distributed import is_pulling, is_worker
from ..pull.job import PullJob
from ..worker.job import Job
from ..worker.reach import OutOfReach, reach
from .options import ThrottleOptions

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from scrapyd_dist.store import Store

logger = logging.getLogger(__name__)


def options_of(settings: BaseSettings) -> ThrottleOptions:
    """The options; those that make no sense are those of a throttle that is on, and which `open_for` refuses."""
    try:
        return ThrottleOptions.from_settings(settings)
    except ConfigError:
        return ThrottleOptions(on=True)


def open_for(crawler: Crawler) -> tuple[Store | None, str]:
    """A connection to the store that this process asks for permits; or None, and why there is none. May block."""
    settings = crawler.settings
    try:
        ThrottleOptions.from_settings(settings)
        _check(settings)
        return _open(settings), ""
    except ConfigError as error:
        return None, str(error)
    except (OutOfReach, DistError, ImportError, OSError) as error:
        why = str(error).rstrip(".")
        return None, f"The throttle is on (DISTRIBUTED_THROTTLE), and its store is out of reach: {why}."


def _check(settings: BaseSettings) -> None:
    from .queue import ThrottledQueue

    if settings.getbool("TWISTED_REACTOR_ENABLED", True) and not is_asyncio_reactor_installed():
        raise ConfigError(
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and the throttle needs Scrapy's"
            " default one. Remove TWISTED_REACTOR from the settings, or DISTRIBUTED_THROTTLE."
        )
    if not issubclass(load_object(settings["SCHEDULER_PRIORITY_QUEUE"]), ThrottledQueue):
        raise ConfigError(
            f"SCHEDULER_PRIORITY_QUEUE is {settings['SCHEDULER_PRIORITY_QUEUE']}, and the throttle has to be the"
            " scheduler's queue itself. Take one of the two out of the settings."
        )
    if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        raise ConfigError(
            "CONCURRENT_REQUESTS_PER_IP and the throttle do not go together, as requests wait by the names of their"
            " hosts. Set CONCURRENT_REQUESTS_PER_DOMAIN instead."
        )
    if not issubclass(load_object(settings["SCHEDULER"]), Scheduler):
        logger.warning(
            "SCHEDULER is %s, which may not keep its requests in the throttle's queue: limits hold, but a request that"
            " waits for its permit holds one of CONCURRENT_REQUESTS.",
            settings["SCHEDULER"],
        )


def _open(settings: BaseSettings) -> Store:
    if is_pulling(settings):
        job = PullJob.from_settings(settings)
        return reach(job.told, crawl=job.crawl, home=job.home)
    pushed = Job.from_settings(settings) if is_worker(settings) else None
    if pushed is not None:
        return reach(asdict(pushed), crawl=pushed.crawl, home=pushed.home)
    return open_store(_own_store(settings), durable=False)


def _own_store(settings: BaseSettings) -> str:
    """Where the store of the project is, as a producer of it would find it."""
    root, said = config.find_root(), settings.get("DISTRIBUTED_STORE")
    if root is None and not said and not os.environ.get(VARIABLE):
        raise ConfigError(
            "The throttle is on (DISTRIBUTED_THROTTLE), and nothing says where its store is: there is no scrapy.cfg"
            f" here. Set DISTRIBUTED_STORE, or {VARIABLE} in the environment, to the address that all who share the"
            " limits have."
        )
    named = config.load(root).options.get("store") if root is not None else None
    return chosen(root or Path.cwd(), said, named)
