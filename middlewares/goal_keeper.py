"""The goals of a whole crawl in one process: no request leaves without asking whether one of them is reached.

All that wait at one moment are one question to the store, with what this process has counted since the last one. Part
of the worker half: imports Scrapy and the standard library only.
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
from scrapyd_dist.store.worker_thread import StoreThread

from .assignment import PROBE, Assignment, is_filler, is_producer, is_worker
from .codec import WAITS
from .engine_compat import is_closing

Ask = Callable[[int, Mapping[str, int]], Awaitable[Spent]]

logger = logging.getLogger(__name__)
#: schemes of requests that no site sees
NOWHERE = ("data:", "file:")
#: seconds between two questions to a store that does not answer, and for which requests wait for it
AGAIN, PATIENCE = 1.0, 60.0


class GoalReached(IgnoreRequest):
    """The request is not made, and waits for `sdist resume`: the crawl has reached a goal, or this process ends."""


def goals_of(settings: BaseSettings) -> Mapping[str, float]:
    """The goals that this process has to keep to; none where it works for no crawl."""
    if is_worker(settings):
        job = Assignment.from_settings(settings)
        return {} if job is None or job.row else job.goals
    if not is_producer(settings) or is_filler(settings) or PROBE in settings:
        return {}
    try:
        return Goals.from_settings(settings).limits
    except ConfigError:  # the crawl is refused
        return {}


def take_settings(settings: BaseSettings) -> None:
    """Let what counts for the whole crawl not count for this process alone as well.

    Called before the crawl's components are made. What works for no crawl, or is a whole run of its own, keeps them.
    """
    job = Assignment.from_settings(settings)
    alone = is_worker(settings) or is_filler(settings) if job is None else bool(job.row)
    if settings.get(CLOSESPIDER) == "crawl" and not alone:
        settings.set(
            GIVEN, {name: settings.get(name) for name in SCRAPYS.values()}, priority="cmdline"
        )
        for name in SCRAPYS.values():
            settings.set(name, 0, priority="cmdline")
    if str(depth := settings.get(DEPTH) or 0) != "0":
        settings.set("DEPTH_LIMIT", depth, priority="cmdline")


class GoalKeeper:
    """The last of the downloader's middlewares, where the crawl has goals: one for each crawler.

    Until it is opened, all requests pass.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, GoalKeeper | None]] = WeakKeyDictionary()

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = limits
        self._ask: Ask | None = None  #: of the store, or of this process alone
        self._ended: Callable[[str], object] = lambda _: None
        self._close: Callable[[], object] = lambda: None
        self._ends: Callable[[], bool] = lambda: self._closed
        self._waiting: list[asyncio.Future[bool]] = []
        self._told: Counter[str] = Counter()
        self._asking: asyncio.Task[None] | None = None
        self._closed = False
        self.reached = ""

    @classmethod
    def of(cls, crawler: Crawler) -> GoalKeeper | None:
        """The keeper of this crawler; None where it has no goals."""
        if crawler not in cls._all:
            limits = goals_of(crawler.settings)
            cls._all[crawler] = keeper = cls(limits) if limits else None
            if keeper is not None:
                keeper.put_in(crawler)
        return cls._all[crawler]

    def put_in(self, crawler: Crawler) -> None:
        """Called before the spider is opened."""
        self._ends = lambda: self._closed or is_closing(crawler)

        def add() -> None:
            crawler.engine.downloader.middleware._add_middleware(self)

        def item() -> None:
            self.count("items")

        def error() -> None:
            self.count("errors")

        for handler, signal in (
            (add, signals.spider_opened),
            (item, signals.item_scraped),
            (error, signals.spider_error),
        ):
            crawler.signals.connect(handler, signal, weak=False)

    # its life

    def open(
        self, thread: StoreThread, crawl: str, ended: Callable[[str], object], *, own: bool = False
    ) -> None:
        """Ask this store from now on; `own`: its thread is closed at the end.

        `ended` is called with the goal that is reached, or with none when the store has been away for too long.
        """

        async def ask(requests: int, told: Mapping[str, int]) -> Spent:
            return await thread(thread.store.spend, crawl, self._limits, requests, told)

        self._ask, self._ended = ask, ended
        if own:
            self._close = thread.close

    def open_alone(self, left: Mapping[str, float], ended: Callable[[str], object]) -> None:
        """Keep to these goals without a store."""
        self._limits = left
        counts: Mapping[str, int] = {}
        began = time.monotonic()

        async def ask(requests: int, told: Mapping[str, int]) -> Spent:
            nonlocal counts
            spent = spend(left, {**counts, "time": int(time.monotonic() - began)}, requests, told)
            counts = spent.counts
            return spent

        self._ask, self._ended = ask, ended

    def stop(self) -> None:
        """Let no more requests leave."""
        self._closed = True
        self._refuse(self._waiting)

    async def close(self) -> None:
        """Tell the rest, and leave the store."""
        self.stop()
        if self._asking is not None:
            await asyncio.wait({self._asking})
        self._ask = None
        self._close()

    # requests, and what is counted

    async def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Wait for the store's word; GoalReached when it is no."""
        if self._ask is None or request.url.startswith(NOWHERE):
            return
        if not self._closed:
            one = asyncio.get_running_loop().create_future()
            self._waiting.append(one)
            self._begin()
            request.meta[WAITS] = True
            try:
                if await one:
                    return
            finally:
                request.meta.pop(WAITS, None)
        raise GoalReached("not made: the crawl has reached a goal, or this process ends")

    def count(self, name: str) -> None:
        """One more of what a goal may be set for."""
        if self._ask is not None:
            self._told[name] += 1
            self._begin()

    def _begin(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._exchange())

    async def _exchange(self) -> None:
        assert self._ask is not None
        since: float | None = None
        while self._waiting or self._told:
            waiting, self._waiting = self._waiting, []
            told, self._told = self._told, Counter()
            try:
                spent = await self._ask(len(waiting), told)
            except Exception as error:  # whatever it is: what waits must not wait for ever
                since = since or time.monotonic()
                away = isinstance(error, StoreError) and time.monotonic() - since <= PATIENCE
                if self._ends() or not away:
                    fault = None if isinstance(error, DistError) else error
                    logger.error(
                        "No more requests leave, as goals cannot be counted: %s",
                        error,
                        exc_info=fault,
                    )
                    was_ending, self._ask = self._ends(), _nothing
                    self.stop()
                    self._refuse(waiting)
                    if not was_ending:
                        self._ended("")
                    return
                self._waiting[:0] = waiting
                self._told.update(told)
                await asyncio.sleep(AGAIN)
                continue
            since = None
            for one in waiting[: spent.granted]:
                if not one.done():
                    one.set_result(True)
            rest, reached = waiting[spent.granted :], spent.reached(self._limits)
            # The last request that may leave may be the last one that there is.
            if reached and not self.reached and (reached != "requests" or rest):
                self.reached = reached
                self._ended(reached)
            if reached or self._ends():
                self._refuse(rest)
            elif rest:  # what is left is reserved, and may come back
                self._waiting[:0] = rest
                await asyncio.sleep(AGAIN)

    @staticmethod
    def _refuse(waiting: list[asyncio.Future[bool]]) -> None:
        for one in waiting:
            if not one.done():
                one.set_result(False)
        waiting.clear()


async def _nothing(*_: object) -> Spent:
    """The answer in place of a store that cannot be asked any more."""
    return Spent(0, {})
