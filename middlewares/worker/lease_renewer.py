"""Renews the leases that a worker holds, in a thread with a connection of its own.

A lease is renewed only while the event loop turns, so that a worker that hangs loses it; after a
standstill the store is asked before another request leaves.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any

from scrapyd_dist.errors import DistError
from scrapyd_dist.store import Store

from ..engine_compat import call_every

#: an attempt: the number of its batch, and its own
Key = tuple[int, int]

logger = logging.getLogger(__name__)
#: renewals in the time of one lease
RENEWALS = 3
#: maximum seconds between two turns of the event loop that are noted
TURN = 1.0
#: seconds between two reads of what the crawl was asked for
LOOK = 2.0
#: seconds that the event loop stands while the store is asked after a standstill
CONFIRM = 5.0
#: seconds for a renewal that is under way when the worker ends
LAST_CALL = 2.0


def clock() -> float:
    """Return seconds of a clock that goes on while the process is stopped.

    It also goes on while the machine sleeps, where there is such a clock.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class LeaseLoss(str, Enum):
    """How a lease was lost."""

    TAKEN = "taken"  #: the store says so: the attempt was given up, or another worker has the batch
    LATE = "late"  #: this process stood still for longer than the lease
    AWAY = "away"  #: the store has not answered for longer than the lease


class LeaseRenewer:
    """Renews the leases of one worker's job; nothing happens before `start`.

    Call it from the event loop unless noted. The store is a connection of its own, closed at the
    end. `lost` is called in the event loop for each lease that is lost; for a `patient` one, a
    store that stays away is no loss. `obey` is called there with what the crawl was asked for, one
    of `batches.WANTED`.
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
        obey: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = clock,
    ) -> None:
        self._store = store
        self._crawl = crawl
        self._holder = holder
        self._seconds = seconds
        self._report_loss = lost
        self._patient = patient
        self._obey = obey
        self._clock = clock
        self._crawl_wanted: str | None = None  #: as the store said last
        self._read_at = 0.0  #: when it said that, by the clock
        self._lock = threading.Lock()  #: of the leases and of what the thread does with them
        #: attempt -> the end of its lease, by this process's own clock
        self._held: dict[Key, float] = {}
        self._losses: deque[tuple[Key, LeaseLoss]] = deque()  #: that were not reported yet
        self._turn_every = min(TURN, seconds / RENEWALS / 3)
        self._turned = clock()  #: when the event loop has turned last
        self._renewed = self._turned  #: when all leases were renewed last
        self._wanted = threading.Event()  #: set when the thread has to renew now, or to end
        self._done = threading.Event()  #: set when it has renewed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sdist-lease", daemon=True)
        self._away = False  #: whether the store did not answer the last time
        self._loop: Any = None  #: timer of `turn`

    def start(self) -> None:
        """Begin to renew leases."""
        self._turned = self._clock()
        self._renewed = self._turned
        self._loop = call_every(self._turn_every, self.turn)
        self._thread.start()

    def hold(self, key: Key, since: float) -> None:
        """Renew this one, which was taken after the clock had said `since`.

        A loss of it that was not reported yet is that of an earlier lease, which the store has
        forgotten.
        """
        with self._lock:
            self._held[key] = since + self._seconds
            self._losses = deque(loss for loss in self._losses if loss[0] != key)

    def release(self, key: Key) -> None:
        """Renew this one no more."""
        with self._lock:
            self._held.pop(key, None)

    def holds(self, key: Key) -> bool:
        """Say whether the lease on this attempt is not lost."""
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
        # A thread that lives is waiting for a server, and ends with the process.
        if not self._thread.is_alive():
            self._store.close()

    # the event loop's side

    def check(self) -> None:
        """Find out whether leases were lost in a standstill; call it before a request leaves."""
        if self._clock() - self._turned > self._seconds / RENEWALS:
            self.turn()

    def turn(self) -> None:
        """Note that the event loop turns, and report the leases that are lost.

        After a standstill, the store is asked first.
        """
        stood = self._clock() - self._turned
        if stood > self._seconds / RENEWALS:
            self._confirm(stood)
        self._turned = self._clock()
        if self._crawl_wanted is not None:
            self._obey(self._crawl_wanted)
        if not self._patient:
            self._lose(LeaseLoss.AWAY)
        for key, loss in self._take_losses():
            logger.warning("the lease on batch %d, attempt %d, is lost (%s)", *key, loss.value)
            self._report_loss(key, loss)

    def _take_losses(self) -> deque[tuple[Key, LeaseLoss]]:
        """Return the losses that are to be reported now."""
        with self._lock:
            losses = self._losses
            self._losses = deque()
        return losses

    def _confirm(self, stood: float) -> None:
        """Block the event loop until the store was asked: leases may be lost after a standstill."""
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
        """Note that all leases that have run out are lost."""
        with self._lock:
            expired = [key for key, until in self._held.items() if until <= self._clock()]
            for key in expired:
                del self._held[key]
                self._losses.append((key, loss))

    # the thread's side

    def _run(self) -> None:
        while not self._ended.is_set():
            is_urgent = self._wanted.wait(self._turn_every)
            if is_urgent:
                self._wanted.clear()
            if self._ended.is_set():
                return
            now = self._clock()
            pause = self._seconds / RENEWALS
            if is_urgent or (now - self._renewed >= pause and now - self._turned < pause):
                self.renew()
            if is_urgent:  # not by a renewal that began before the standstill
                self._done.set()
            if now - self._read_at >= LOOK:
                self._read_at = now
                with suppress(DistError):  # while the store is away, all stays as it is
                    self._crawl_wanted = self._store.wanted(self._crawl)

    def renew(self) -> None:
        """Renew all leases; without the store, that is tried again at the next turn."""
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
                return
            self._away = False
            with self._lock:
                if kept and key in self._held:  # else it was released meanwhile
                    self._held[key] = since + self._seconds
                elif self._held.pop(key, None) is not None:
                    self._losses.append((key, LeaseLoss.TAKEN))
        self._renewed = self._clock()
