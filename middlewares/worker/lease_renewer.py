"""The leases that a worker holds, renewed by a thread with a connection of its own.

A lease is renewed only while the event loop turns, so that a worker that hangs loses it; after a standstill the store
is asked before another request leaves.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest

from scrapyd_dist.errors import DistError
from scrapyd_dist.store import Store

from ..engine_compat import call_every

Key = tuple[int, int]  # an attempt: the number of its batch, and its own

logger = logging.getLogger(__name__)
#: renewals in the time of one lease
RENEWALS = 3
#: seconds between two looks of the event loop, at most
TURN = 1.0
#: seconds between two looks at what the crawl was asked for
LOOK = 2.0
#: seconds that the event loop stands while the store is asked after a standstill
CONFIRM = 5.0
#: seconds for a renewal that is under way when the worker ends
LAST_CALL = 2.0


def clock() -> float:
    """Seconds that pass while the process is stopped, and while the machine sleeps where there is such a clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class LeaseLoss(str, Enum):
    """How a lease was lost."""

    TAKEN = "taken"  #: the store says so: the attempt was given up, or another worker has the batch
    LATE = "late"  #: this process stood still for longer than the lease
    AWAY = "away"  #: the store has not answered for longer than the lease


class LeaseRenewer:
    """The leases of one worker's job; nothing happens before `start`. Call from the event loop unless noted.

    The store is a connection of its own, closed at the end. `lost` is called in the event loop for each lease that is
    lost; for a `patient` one, a store that stays away is no loss. `heed` is called there with what the
    crawl was asked for, one of `batches.WANTED`.
    """

    def __init__(
        self,
        store: Store,
        *,
        crawl: str,
        holder: str,
        seconds: float,
        lost: Callable[[Key, LeaseLoss], object],
        patient: bool = False,
        heed: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = clock,
    ) -> None:
        self._store, self._crawl, self._holder, self._seconds = store, crawl, holder, seconds
        self._tell, self._patient, self._heed, self._clock = lost, patient, heed, clock
        self._crawl_wanted: str | None = None  #: as the store said last
        self._looked = 0.0
        self._lock = threading.Lock()
        self._held: dict[
            Key, float
        ] = {}  #: attempt -> the end of its lease, by this process's own clock
        self._losses: deque[tuple[Key, LeaseLoss]] = deque()
        self._turn_every = min(TURN, seconds / RENEWALS / 3)
        self._turned = self._renewed = clock()
        self._wanted, self._done, self._ended = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self._thread = threading.Thread(target=self._run, name="sdist-lease", daemon=True)
        self._away = False
        self._loop: Any = None

    def start(self) -> None:
        self._turned = self._renewed = self._clock()
        self._loop = call_every(self._turn_every, self.turn)
        self._thread.start()

    def hold(self, key: Key, since: float) -> None:
        """Renew this one, which was taken after the clock had said `since`."""
        with self._lock:
            self._held[key] = since + self._seconds

    def release(self, key: Key) -> None:
        with self._lock:
            self._held.pop(key, None)

    def holds(self, key: Key) -> bool:
        return key in self._held

    def stop(self) -> None:
        """Renew nothing any more, and close the connection."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._wanted.set()
        if self._loop is not None and self._loop.running:
            self._loop.stop()
        if self._thread.ident is not None:
            self._thread.join(LAST_CALL)
        if (
            not self._thread.is_alive()
        ):  # else it is waiting for a server, and ends with the process
            self._store.close()

    # the event loop's side

    def check(self) -> None:
        """Call before a request leaves: after a standstill, leases may be lost."""
        if self._clock() - self._turned > self._seconds / RENEWALS:
            self.turn()

    def guard(self, crawler: Crawler, why_not: Callable[[Request], str]) -> None:
        """Ask `why_not` before each request leaves, at the last moment: what has waited may not be wanted any more.

        Its answer is the reason why the request must not be made; empty when it may.
        """
        handlers = getattr(crawler.engine.downloader, "handlers", None)

        def guarded(download: Callable[..., Any]) -> Callable[..., Any]:
            def ask_first(request: Request, *rest: Any) -> Any:
                self.check()
                if reason := why_not(request):
                    raise IgnoreRequest(reason)
                return download(request, *rest)

            return ask_first

        for name in (
            "download_request_async",
            "download_request",
        ):  # Scrapy before 2.14 has only the second
            if hasattr(handlers, name):
                setattr(handlers, name, guarded(getattr(handlers, name)))

    def turn(self) -> None:
        """The event loop turns: say so, ask the store after a standstill, and tell what is lost."""
        stood = self._clock() - self._turned
        if stood > self._seconds / RENEWALS:
            self._confirm(stood)
        self._turned = self._clock()
        if self._crawl_wanted is not None:
            self._heed(self._crawl_wanted)
        if not self._patient:
            self._lose(LeaseLoss.AWAY)
        while self._losses:
            key, loss = self._losses.popleft()
            logger.warning("the lease on batch %d, attempt %d, is lost (%s)", *key, loss.value)
            self._tell(key, loss)

    def _confirm(self, stood: float) -> None:
        """After a standstill leases may be lost: block the event loop until the store was asked."""
        logger.warning(
            "this worker has stood still for %.1f s; asking the store whether its leases are good",
            stood,
        )
        self._done.clear()
        self._wanted.set()
        self._done.wait(CONFIRM)
        if stood >= self._seconds:
            self._lose(LeaseLoss.LATE)

    def _lose(self, loss: LeaseLoss) -> None:
        """All leases that have run out are lost."""
        with self._lock:
            for key in [key for key, until in self._held.items() if until <= self._clock()]:
                del self._held[key]
                self._losses.append((key, loss))

    # the thread's side

    def _run(self) -> None:
        while not self._ended.is_set():
            asked = self._wanted.wait(self._turn_every)
            if asked:
                self._wanted.clear()
            if self._ended.is_set():
                return
            now, pause = self._clock(), self._seconds / RENEWALS
            if asked or (now - self._renewed >= pause and now - self._turned < pause):
                self.renew()
            if asked:  # not by a renewal that began before the standstill
                self._done.set()
            if now - self._looked >= LOOK:
                self._looked = now
                with suppress(DistError):  # while the store is away, all stays as it is
                    self._crawl_wanted = self._store.wanted(self._crawl)

    def renew(self) -> None:
        with self._lock:
            held = list(self._held)
        for key in held:
            since = self._clock()
            try:
                kept = self._store.lease(self._crawl, *key, self._holder, self._seconds, again=True)
            except DistError as error:
                if not self._away:
                    logger.warning("leases cannot be renewed for now: %s", error)
                self._away = True
                return  # tried again at the next turn
            self._away = False
            with self._lock:
                if kept and key in self._held:  # else it was released meanwhile
                    self._held[key] = since + self._seconds
                elif self._held.pop(key, None) is not None:
                    self._losses.append((key, LeaseLoss.TAKEN))
        self._renewed = self._clock()
