"""Which store a process asks for permits, and whether it can: that of its crawl, or that of its project.

The rule it keeps: what stands in the way is one sentence, for whoever has to tell it. Part of the worker half: imports
Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_asyncio_reactor_installed

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.store import open_store
from scrapyd_dist.store.address import VARIABLE, chosen, is_url

from ..assignment import Assignment, PullAssignment
from ..roles import is_pulling, is_worker
from ..store_access import OutOfReach, reach
from .throttle_options import ThrottleOptions

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
        tell_of_scheduler(settings)
        return _open(settings), ""
    except ConfigError as error:
        return None, str(error)
    except (OutOfReach, DistError, ImportError, OSError) as error:
        why = str(error).rstrip(".")
        return None, f"The throttle is on (DISTRIBUTED_THROTTLE), and its store is out of reach: {why}."


class PermitQueue:
    """The base of the scheduler's queues that let requests leave with their permits."""


@dataclass(frozen=True, kw_only=True)
class PermitStore:
    """A store whose rules are to be heeded, or why there is none."""

    store: Store | None = None
    why: str = ""  #: empty where none was made yet
    lasting: bool = False  #: there will be none

    @property
    def until(self) -> str:
        """In a sentence: for how long."""
        return "" if self.lasting else " as long as the store is out of reach"

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def find_for(crawler: Crawler) -> PermitStore:
    """The store whose rules a process heeds that has said nothing of the throttle. Makes none; may block."""
    settings = crawler.settings
    try:
        where = (
            ""
            if is_pulling(settings) or (is_worker(settings) and Assignment.from_settings(settings))
            else _own(settings)
        )
        if where and not is_url(where) and not Path(where).exists():
            return PermitStore()
        return PermitStore(store=_open(settings))
    except OutOfReach as error:
        return PermitStore(why=str(error), lasting=error.lasting)
    except ConfigError as error:
        return PermitStore(why=str(error), lasting=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, a process that asked for nothing goes on without it
        return PermitStore(why=f"{type(error).__name__}: {error}")


def why_not_heeded(settings: BaseSettings) -> str:
    """What in these settings keeps a process from heeding the rules of a store; empty when nothing does."""
    try:
        _check(settings)
    except ConfigError as error:
        return str(error)
    return ""


def tell_of_rules(crawler: Crawler, problem: str) -> None:
    """Where there are rules that this process cannot heed, say so in its log. May block."""
    found = find_for(crawler)
    if found.store is None:
        return
    with closing(found.store) as store:
        try:
            rules = store.rules().rules
        except DistError:
            return
    if rules:
        logger.warning("The rules of `sdist throttle` do not hold for this process. %s", problem)


def _check(settings: BaseSettings) -> None:
    if settings.getbool("TWISTED_REACTOR_ENABLED", True) and not is_asyncio_reactor_installed():
        raise ConfigError(
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and the throttle needs Scrapy's"
            " default one. Remove TWISTED_REACTOR from the settings, or set DISTRIBUTED_THROTTLE = False."
        )
    check_queue(settings)


def check_queue(settings: BaseSettings) -> None:
    """Refuse settings that leave the throttle no queue.

    Raises:
        ConfigError: they do.
    """
    if str(settings["CONCURRENT_REQUESTS_PER_IP"] or 0) != "0":  # get() would warn
        raise ConfigError(
            "CONCURRENT_REQUESTS_PER_IP and the throttle do not go together, as requests wait by the names of their"
            " hosts. Set CONCURRENT_REQUESTS_PER_DOMAIN instead, or DISTRIBUTED_THROTTLE = False."
        )
    if not issubclass(load_object(settings["SCHEDULER_PRIORITY_QUEUE"]), PermitQueue):
        raise ConfigError(
            f"SCHEDULER_PRIORITY_QUEUE is {settings['SCHEDULER_PRIORITY_QUEUE']}, and the throttle has to be the"
            " scheduler's queue itself. Take it out of the settings, or set DISTRIBUTED_THROTTLE = False."
        )


def tell_of_scheduler(settings: BaseSettings) -> None:
    """Say what one of another make does to limits."""
    # Not issubclass(): to Scrapy, whatever has the methods is a scheduler.
    if Scheduler not in load_object(settings["SCHEDULER"]).__mro__:
        logger.warning(
            "SCHEDULER is %s, which may not keep its requests in the throttle's queue: limits hold, but a request that"
            " waits for its permit holds one of CONCURRENT_REQUESTS.",
            settings["SCHEDULER"],
        )


def _open(settings: BaseSettings) -> Store:
    if is_pulling(settings):
        job = PullAssignment.from_settings(settings)
        return reach(job.told, crawl=job.crawl, home=job.home)
    pushed = Assignment.from_settings(settings) if is_worker(settings) else None
    if pushed is not None:
        return reach(asdict(pushed), crawl=pushed.crawl, home=pushed.home)
    return open_store(_own(settings), durable=False)


def _own(settings: BaseSettings) -> str:
    """Where the store of the project is, as a producer of it would find it."""
    root, said = config.find_root(), settings.get("DISTRIBUTED_STORE")
    if root is None and not said and not os.environ.get(VARIABLE):
        raise ConfigError(
            "Nothing says where the store of the throttle is: there is no scrapy.cfg here. Set DISTRIBUTED_STORE, or"
            f" {VARIABLE} in the environment, to the address that all who share the limits have."
        )
    named = config.load(root).options.get("store") if root is not None else None
    return chosen(root or Path.cwd(), said, named)
