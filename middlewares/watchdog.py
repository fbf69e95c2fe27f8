"""Ends a job that takes too long, or that brings no page and no item any more: in order, else by signals.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.settings import SettingReader

from .assignment import is_job
from .engine_compat import at_work, call_every, close_spider

logger = logging.getLogger(__name__)

#: seconds between two looks at the clock
TICK = 0.5
#: seconds that a job gets to end in order, and then after each signal: as many as its limit, at most
GRACE = 10.0
#: Scrapy ends in order after the first one and at once after the second; a callback that never returns needs the third
SIGNALS = (signal.SIGINT, signal.SIGINT, signal.SIGKILL)


def put_in(settings: BaseSettings, crawler: Crawler) -> None:
    """Watch this process if it is a job on a node, and its settings limit its time."""
    reader = SettingReader(settings)
    longest, stall = reader.value("DISTRIBUTED_JOB_TIMEOUT"), reader.value("DISTRIBUTED_STALL_TIMEOUT")
    if (longest or stall) and is_job():
        Watchdog(crawler, longest=longest, stall=stall).start()


class Watchdog:
    """Watches one job from a thread of its own, which runs even when the event loop does not.

    `longest` is for the whole job, `stall` without a page and an item while requests are under way; both in seconds,
    0 for no limit.
    """

    def __init__(self, crawler: Crawler, *, longest: float, stall: float) -> None:
        self._crawler, self._longest, self._stall = crawler, longest, stall
        self._began = self._moved = time.monotonic()
        self._looks: Any = None  #: set when the spider has opened: from then on it may stall

    def start(self) -> None:
        connect = self._crawler.signals.connect
        connect(self._opened, signals.spider_opened)
        for progress in (signals.response_received, signals.item_scraped, signals.item_dropped):
            connect(self._move, progress)
        threading.Thread(target=self._watch, name="sdist-watchdog", daemon=True).start()

    def _opened(self) -> None:
        self._move()
        self._looks = call_every(TICK, self._look)

    def _move(self) -> None:
        self._moved = time.monotonic()

    def _look(self) -> None:
        """A job without work, as a worker that waits for a batch, does not stall."""
        if not at_work(self._crawler):
            self._move()

    def _over(self) -> tuple[FinishReason, str] | None:
        """Why the job is to end, also in words; None when it may go on."""
        now = time.monotonic()
        if self._longest and now - self._began > self._longest:
            return FinishReason.TIMEOUT, f"timeout: this job has run for more than {self._longest:g} s"
        if self._stall and self._looks is not None and now - self._moved > self._stall:
            return FinishReason.STALLED, f"stalled: no page and no item for more than {self._stall:g} s"
        return None

    def _watch(self) -> None:
        while (over := self._over()) is None:
            time.sleep(TICK)
        reason, words = over
        grace = min(GRACE, self._longest or GRACE, self._stall or GRACE)
        logger.error(words)
        if self._looks is not None:
            from twisted.internet import reactor

            reactor.callFromThread(close_spider, self._crawler, reason)
        for number, sign in enumerate(SIGNALS):
            time.sleep(grace)
            logging.disable(logging.NOTSET)
            logger.error("%s; it has not ended, and gets %s", words, sign.name)
            if number:
                logging.disable()  # a forced end leaves many errors, and none says more than this last one
            os.kill(os.getpid(), sign)
