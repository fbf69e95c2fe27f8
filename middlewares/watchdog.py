"""Ends a job that takes too long, or that brings no page and no item any more.

It ends in order, else by signals. The event loop ends a job in order; a thread sends the signals,
also when the loop stands still; and a timer of the system ends a process whose code keeps the
interpreter to itself, so that no thread of it runs.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.settings import SettingReader

from .assignment import is_job
from .engine_compat import call_every, close_spider, is_held_up
from .pause_gate import PauseGate

logger = logging.getLogger(__name__)

#: seconds between two looks at the clock
TICK = 0.5
#: seconds without progress that a job gets until it closes its spider
GRACE = 60.0
#: the same with progress
LONG_GRACE = 600.0
#: seconds that it gets after a signal
AFTER = 10.0
#: Scrapy ends in order after the first one and at once after the second; a callback that never
#: returns needs the third
SIGNALS = (signal.SIGINT, signal.SIGINT, getattr(signal, "SIGKILL", signal.SIGTERM))
#: seconds that the system's timer can be set to, at most
LONGEST = 1e6


def install_watchdog(crawler: Crawler, has_work: Callable[[], bool] = lambda: True) -> None:
    """Watch this process if it is a job on a node, and its settings limit its time.

    `has_work` is as in `Watchdog`.
    """
    if not is_job():
        return
    read = SettingReader(crawler.settings).value
    longest = read("DISTRIBUTED_JOB_TIMEOUT")
    stall = read("DISTRIBUTED_STALL_TIMEOUT")
    if longest or stall:
        watchdog = Watchdog(
            crawler, longest=longest or math.inf, stall=stall or math.inf, has_work=has_work
        )
        watchdog.start()


class Watchdog:
    """Watches one job, from the making of its components until its spider has closed.

    `longest` has the seconds for the whole job; `stall` those without a page and an item while
    `has_work` says that the job has any, and that does not wait for its turn. The seconds are those
    in which this process ran: one that is stopped, or whose machine sleeps, is not over its time
    when it goes on; nor is one whose crawl rests.
    """

    def __init__(
        self, crawler: Crawler, *, longest: float, stall: float, has_work: Callable[[], bool]
    ) -> None:
        self._crawler = crawler
        self._has_work = has_work
        self._longest = longest
        self._stall = max(stall, 2 * TICK)
        self._now = 0.0  #: seconds that this process has run
        self._moved = math.inf  #: the last progress; until the spider has opened, nothing stalls
        self._over: FinishReason | None = None  #: why it is to end
        self._asked_to_close = False  #: whether the spider was closed in order
        self._turns: Any = None  #: the loop that calls `_turn` while the spider is open
        self._closed = threading.Event()  #: set when the spider has closed

    def start(self) -> None:
        """Watch from now on."""
        connect = self._crawler.signals.connect
        connect(self._open, signals.spider_opened)
        connect(self._close, signals.spider_closed)
        for progress in (signals.response_received, signals.item_scraped, signals.item_dropped):
            connect(self._move, progress)
        self._guard()
        threading.Thread(target=self._watch, name="sdist-watchdog", daemon=True).start()

    # the event loop's side

    def _open(self) -> None:
        self._move()
        self._set_timer()
        self._turns = call_every(TICK, self._turn)

    def _close(self) -> None:
        self._closed.set()
        if self._turns is not None and self._turns.running:
            self._turns.stop()

    def _move(self) -> None:
        self._moved = self._now

    def _turn(self) -> None:
        # Before Scrapy 2.19 nothing else tells whether there is a spider to close.
        slot = self._crawler.engine._slot  # noqa: SLF001
        if self._over is not None and not self._asked_to_close and slot is not None:
            self._asked_to_close = True
            close_spider(self._crawler, self._over.value)
        if self._is_waiting():
            self._move()

    def _is_waiting(self) -> bool:
        """Tell whether no progress is to be expected now."""
        if is_held_up(self._crawler) or PauseGate.closed(self._crawler):
            return True
        return not (self._asked_to_close or self._has_work())

    # the thread's side

    def _watch(self) -> None:
        reason = self._wait_for_reason()
        if reason is None:
            return
        self._over = reason
        words = f"timeout: this job has run for more than {self._longest:g} s"
        if reason is FinishReason.STALLED:
            words = f"stalled: no page and no item for more than {self._stall:g} s"
        logger.warning("%s; it is told to end", words)
        since = self._now
        for number, sign in enumerate(SIGNALS):
            while self._now < (since + AFTER if number else self._end_of_grace(since)):
                if self._tick():
                    return
            logging.disable(logging.NOTSET)
            logger.error("%s; it has not ended, and gets %s", words, sign.name)
            if number:
                # A forced end leaves many errors, and none says more than this last one.
                logging.disable()
            os.kill(os.getpid(), sign)
            since = self._now

    def _wait_for_reason(self) -> FinishReason | None:
        """Wait until the job has to end, and return why; None if the spider has closed before."""
        before = None
        reason = None
        # A reason has to hold twice: at the first tick, what has waited meanwhile may not be
        # handled yet.
        while before is None or reason is None:
            if self._tick():
                return None
            before = reason
            reason = self._reason()
        return reason

    def _end_of_grace(self, since: float) -> float:
        """Return when the orderly end has to be through that was asked for at `since`."""
        moved = since if math.isinf(self._moved) else max(since, self._moved)
        return min(moved + GRACE, since + LONG_GRACE)

    def _reason(self) -> FinishReason | None:
        if self._now > self._longest:
            return FinishReason.TIMEOUT
        if self._now - self._moved > self._stall:
            return FinishReason.STALLED
        return None

    def _tick(self) -> bool:
        """Let the clock go on, as far as this process runs.

        True if the spider has closed meanwhile.
        """
        self._set_timer()
        began = time.monotonic()
        closed = self._closed.wait(TICK)
        if not PauseGate.closed(self._crawler):
            self._now += min(time.monotonic() - began, 2 * TICK)
        if closed:
            _end_after(0)
        return closed

    def _set_timer(self) -> None:
        left = min(self._longest, self._stall + self._moved) - self._now
        _end_after(max(0.0, left) + GRACE + AFTER)

    def _guard(self) -> None:
        """Let the log say where this process was when the timer ends it."""
        if not hasattr(signal, "SIGVTALRM"):
            return
        file: Any = 2  # standard error
        path = self._crawler.settings.get("LOG_FILE")
        if path:
            file = open(path, "ab")  # noqa: SIM115, PTH123 - until the process ends
        faulthandler.register(signal.SIGVTALRM, file, chain=True)


def _end_after(seconds: float) -> None:
    """End this process when it has computed for so many seconds and no other call has come.

    0 lets it run. No thread is needed for that, but the system's clock of what this process has
    used: it stands still with it.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_VIRTUAL, min(seconds, LONGEST))
