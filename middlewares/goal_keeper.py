"""Keeps one process to the goals of a whole crawl: no request leaves once one of them is reached.

All requests that wait at one moment are one question to the store, with what this process has
counted since the last one. Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.settings import BaseSettings

from scrapyd_dist.errors import ConfigError, DistError, StoreError
from scrapyd_dist.goals import CLOSESPIDER, DEPTH, GIVEN, SCRAPYS, Goals, Spent, spend
from scrapyd_dist.store.store_thread import StoreThread

from .assignment import PROBE, Assignment, is_filler, is_producer, is_worker
from .codec import WAITS
from .engine_compat import is_closing

#: asks for so many requests, and reports what was counted; gives what was granted
Ask = Callable[[int, Mapping[str, int]], Awaitable[Spent]]

logger = logging.getLogger(__name__)
#: schemes of requests that no site sees
NOWHERE = ("data:", "file:")
#: seconds between two questions to a store that does not answer
STORE_RETRY_SECONDS = 1.0
#: seconds for which requests wait for such a store
PATIENCE = 60.0


class GoalReached(IgnoreRequest):
    """The request is not made, and waits for `sdist resume`.

    The crawl has reached a goal, or this process ends.
    """


def goals_of(settings: BaseSettings) -> Mapping[str, float]:
    """Return the goals that this process has to keep to; none where it works for no crawl."""
    if is_worker(settings):
        job = Assignment.from_settings(settings)
        if job is None or job.row:
            return {}
        return job.goals
    if not is_producer(settings) or is_filler(settings) or PROBE in settings:
        return {}
    try:
        return Goals.from_settings(settings).limits
    except ConfigError:  # the crawl is refused
        return {}


def take_settings(settings: BaseSettings) -> None:
    """Let what counts for the whole crawl not count for this process alone as well.

    Call it before the crawl's components are made. What works for no crawl, or is a whole run of
    its own, keeps them.
    """
    works_alone = _works_alone(settings)
    if settings.get(CLOSESPIDER) == "crawl" and not works_alone:
        given = {name: settings.get(name) for name in SCRAPYS.values()}
        settings.set(GIVEN, given, priority="cmdline")
        for name in SCRAPYS.values():
            settings.set(name, 0, priority="cmdline")
    depth = settings.get(DEPTH) or 0
    if str(depth) != "0":
        settings.set("DEPTH_LIMIT", depth, priority="cmdline")


def _works_alone(settings: BaseSettings) -> bool:
    """Tell whether this process works for no crawl, or is a whole run of its own."""
    job = Assignment.from_settings(settings)
    if job is None:
        return is_worker(settings) or is_filler(settings)
    return bool(job.row)


class GoalKeeper:
    """Is the last of the downloader's middlewares, where the crawl has goals: one for each crawler.

    Until it is opened, all requests pass.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, GoalKeeper | None]] = WeakKeyDictionary()

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits
        #: asks the store, or this process alone; None before and after that
        self._spend: Ask | None = None
        #: is called with the goal that is reached, or ""
        self._ended: Callable[[str], object] = lambda _: None
        self._close: Callable[[], object] = lambda: None  #: leaves the store
        self._ends: Callable[[], bool] = lambda: self._closed  #: whether this process ends
        self._waiting: list[asyncio.Future[bool]] = []  #: of requests: whether they may leave
        self._counted: Counter[str] = Counter()  #: what the store does not know yet
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        self.reached = ""  #: the goal that is reached

    @classmethod
    def for_crawler(cls, crawler: Crawler) -> GoalKeeper | None:
        """Return the keeper of this crawler; None where it has no goals."""
        if crawler not in cls._all:
            keeper = None
            limits = goals_of(crawler.settings)
            if limits:
                keeper = cls(limits)
                keeper.put_in(crawler)
            cls._all[crawler] = keeper
        return cls._all[crawler]

    def put_in(self, crawler: Crawler) -> None:
        """Put the keeper into its crawler; call it before the spider is opened."""
        self._ends = lambda: self._closed or is_closing(crawler)

        def add() -> None:
            middlewares = crawler.engine.downloader.middleware
            # There is no public way behind all others.
            middlewares._add_middleware(self)  # noqa: SLF001

        def count_item() -> None:
            self.count("items")

        def count_error() -> None:
            self.count("errors")

        connect = crawler.signals.connect
        connect(add, signals.spider_opened, weak=False)
        connect(count_item, signals.item_scraped, weak=False)
        connect(count_error, signals.spider_error, weak=False)

    # its life

    def open(
        self, thread: StoreThread, crawl: str, ended: Callable[[str], object], *, own: bool = False
    ) -> None:
        """Ask this store from now on.

        Args:
            thread: the store's.
            crawl: the name of the crawl.
            ended: called with the goal that is reached, or with "" when the store has been away for
                too long.
            own: its thread is closed at the end.
        """

        async def spend_in_store(requests: int, counted: Mapping[str, int]) -> Spent:
            return await thread(thread.store.spend, crawl, self._limits, requests, counted)

        self._spend = spend_in_store
        self._ended = ended
        if own:
            self._close = thread.close

    def open_alone(self, left: Mapping[str, float], ended: Callable[[str], object]) -> None:
        """Keep to these goals without a store."""
        self._limits = left
        counts: Mapping[str, int] = {}
        began = time.monotonic()

        async def spend_alone(requests: int, counted: Mapping[str, int]) -> Spent:
            nonlocal counts
            so_far = {**counts, "time": int(time.monotonic() - began)}
            spent = spend(left, so_far, requests, counted)
            counts = spent.counts
            return spent

        self._spend = spend_alone
        self._ended = ended

    def stop(self) -> None:
        """Let no more requests leave."""
        self._closed = True
        self._refuse(self._waiting)

    async def close(self) -> None:
        """Report the rest, and leave the store."""
        self.stop()
        if self._asking is not None:
            await asyncio.wait({self._asking})
        self._spend = None
        self._close()

    # requests, and what is counted

    async def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Wait for the store's word.

        Raises:
            GoalReached: it is no.
        """
        if self._spend is None or request.url.startswith(NOWHERE):
            return
        if not self._closed:
            may_leave = asyncio.get_running_loop().create_future()
            self._waiting.append(may_leave)
            self._begin()
            request.meta[WAITS] = True
            try:
                if await may_leave:
                    return
            finally:
                request.meta.pop(WAITS, None)
        raise GoalReached("not made: the crawl has reached a goal, or this process ends")

    def count(self, name: str) -> None:
        """Count one more of what a goal may be set for."""
        if self._spend is not None:
            self._counted[name] += 1
            self._begin()

    def _begin(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._exchange())

    async def _exchange(self) -> None:
        """Ask until nothing waits, and nothing is left to be reported."""
        assert self._spend is not None
        away_since: float | None = None
        while self._waiting or self._counted:
            waiting = self._waiting
            self._waiting = []
            counted = self._counted
            self._counted = Counter()
            try:
                spent = await self._spend(len(waiting), counted)
            except Exception as error:  # noqa: BLE001 - what waits must not wait for ever
                away_since = away_since or time.monotonic()
                is_patient = time.monotonic() - away_since <= PATIENCE
                if self._ends() or not (isinstance(error, StoreError) and is_patient):
                    self._give_up(error, waiting)
                    return
                self._waiting[:0] = waiting
                self._counted.update(counted)
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            away_since = None
            if self._grant(spent, waiting):
                await asyncio.sleep(STORE_RETRY_SECONDS)

    def _give_up(self, error: Exception, waiting: list[asyncio.Future[bool]]) -> None:
        """Let no more requests leave, as goals cannot be counted."""
        # Only a fault of ours has a traceback.
        fault = None if isinstance(error, DistError) else error
        logger.error(
            "No more requests leave, as goals cannot be counted: %s", error, exc_info=fault
        )
        was_ending = self._ends()
        self._spend = _grant_nothing
        self.stop()
        self._refuse(waiting)
        if not was_ending:
            self._ended("")

    def _grant(self, spent: Spent, waiting: list[asyncio.Future[bool]]) -> bool:
        """Let as many requests leave as were granted.

        True if others have to wait: what is left is reserved, and may come back.
        """
        for may_leave in waiting[: spent.granted]:
            if not may_leave.done():
                may_leave.set_result(True)
        rest = waiting[spent.granted :]
        reached = spent.reached(self._limits)
        # The last request that may leave may be the last one that there is.
        if reached and not self.reached and (reached != "requests" or rest):
            self.reached = reached
            self._ended(reached)
        if reached or self._ends():
            self._refuse(rest)
            return False
        self._waiting[:0] = rest
        return bool(rest)

    @staticmethod
    def _refuse(waiting: list[asyncio.Future[bool]]) -> None:
        for may_leave in waiting:
            if not may_leave.done():
                may_leave.set_result(False)
        waiting.clear()


async def _grant_nothing(*_: object) -> Spent:
    """Answer in place of a store that cannot be asked any more."""
    return Spent(0, {})
