"""A worker's talk with the store about permits: one question at a time, and again when it does not answer.

The rule it keeps: what was to be said is said, or kept for later; a store that is away is no error of the crawl. Part
of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from scrapyd_dist.errors import DistError
from scrapyd_dist.store.worker_thread import StoreThread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from scrapyd_dist.store import Store
    from scrapyd_dist.throttle.permits import DomainLook, Permit, PermitRequest, SiteNews, TakenPermits

logger = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

#: seconds after which a store that has not answered counts as away
SLOW = 2.0
#: seconds until a store that does not answer is asked again: at first, and at most
AGAIN, LONGEST_AGAIN = 0.25, 4.0
#: permits that are handed back, and pieces of news that are told, in one step at most
AT_ONCE = 1000
#: permits that are kept for a store that is away, to be handed back later; the oldest ones bound nobody any more
KEPT = 10_000


class ReplyListener(Protocol):
    """Who asks, and hears the answers; called in the event loop.

    Attributes:
        awake: whether requests may have to wait for answers.
    """

    awake: bool

    def questions(self) -> list[PermitRequest]:
        """What is to be asked now."""

    def answered(self, taken: TakenPermits, received: float, took: float) -> None:
        """The store's answer to them, which was here at `received` by our clock, and took so many seconds."""

    def unanswered(self) -> None:
        """There was no answer: they are to be asked again."""

    def heed(self, changed: Collection[str]) -> None:
        """The rules, or the pace, of these domains have changed; of all of them, with `ALL` among them."""

    def ruled(self, domains: frozenset[str]) -> None:
        """These domains have rules, and no others; `ALL` is one of them."""

    def set_away(self, away: bool) -> None:
        """The store does not answer, or does again."""

    def failed(self) -> None:
        """Nothing can be asked any more."""


class ThrottleClient:
    """All that one process says to the store of the throttle.

    Args:
        store: a connection of its own.
        listener: who asks.
        clock: seconds, never turned back.
        rules: the listener wants to know which domains have rules.
    """

    def __init__(
        self, store: Store, listener: ReplyListener, clock: Callable[[], float] = time.monotonic, *, rules: bool = False
    ) -> None:
        self._store, self._listener, self._clock = store, listener, clock
        self._wants_rules, self._ruled_at = rules, -1  #: the version of the rules that the listener knows
        self._thread = StoreThread(store)
        self._back: deque[Permit] = deque(maxlen=KEPT)
        self._news: list[SiteNews] = []
        self._look = False
        self._known: int | None = None  #: the version of the rules
        self._talking: asyncio.Future[None] | None = None
        self._pause = 0.0
        self._away = self._ended = False

    def hand_back(self, permits: Sequence[Permit]) -> None:
        """Soon."""
        if permits:
            self._back.extend(permits)
            self.begin()

    def tell(self, news: SiteNews, *, at_once: bool) -> None:
        """At once, or with the next look at the rules' version."""
        self._news.append(news)
        if at_once:
            self.look()

    def look(self) -> None:
        """Tell what there is to tell, and ask for the version of the rules."""
        self._look = True
        self.begin()

    def begin(self) -> None:
        """Something is to be said: say it, once what is being said has its answer."""
        if self._talking is None and not self._ended:
            self._talking = asyncio.ensure_future(self._run())

    async def end(self, patience: float) -> None:
        """Hand back what is left, wait `patience` seconds at most, and close the connection."""
        deadline = time.monotonic() + patience
        while self._talking is not None and time.monotonic() < deadline:
            await asyncio.wait([self._talking], timeout=deadline - time.monotonic())
        self._ended = True
        if self._talking is not None:
            self._talking.cancel()
        closing = asyncio.get_running_loop().run_in_executor(None, self._thread.close)
        await asyncio.wait([closing], timeout=patience)

    async def _run(self) -> None:
        try:
            while await self._turn():
                if self._pause:
                    await asyncio.sleep(self._pause)
        finally:
            self._talking = None

    async def _turn(self) -> bool:
        """Say one thing; False when there is nothing to say."""
        try:
            if self._back:
                await self._return()
            elif self._look:
                await self._tell()
            elif asks := self._listener.questions():
                begun, received, taken = await self._say(self._take, asks)
                self._heed(taken.version, taken.changed)
                self._listener.answered(taken, received, received - begun)
            else:
                return False
        except DistError as error:
            self._listener.unanswered()
            self._pause = min(2 * self._pause, LONGEST_AGAIN) if self._pause else AGAIN
            self._missed(str(error))
        except Exception:  # a fault of ours: not to be asked again for ever, by a crawl that waits
            logger.exception("The throttle itself has failed")
            self._ended = True
            self._listener.failed()
        return not self._ended

    def _take(self, asks: Sequence[PermitRequest]) -> tuple[float, float, TakenPermits]:
        begun, taken = self._clock(), self._store.take_permits(asks, self._known)
        return begun, self._clock(), taken

    def _heed(self, version: int, changed: Collection[str]) -> None:
        self._known = version
        if changed:
            self._listener.heed(changed)

    async def _return(self) -> None:
        permits = [self._back.popleft() for _ in range(min(AT_ONCE, len(self._back)))]
        try:
            await self._say(self._store.return_permits, permits)
        except BaseException:
            self._back.extendleft(reversed(permits))
            raise

    async def _tell(self) -> None:
        news, self._news = self._news[:AT_ONCE], self._news[AT_ONCE:]
        self._look = bool(self._news)
        try:
            look, ruled = await self._say(self._told, news)
        except BaseException:
            self._look, self._news = True, [*news, *self._news][-AT_ONCE:]
            raise
        self._heed(look.version, look.changed)
        if ruled is not None:
            self._ruled_at = look.version
            self._listener.ruled(ruled)

    def _told(self, news: Sequence[SiteNews]) -> tuple[DomainLook, frozenset[str] | None]:
        look = self._store.tell_sites(news, self._known)
        # Read after the version: newer rules under an older version are only read once more.
        is_new = self._wants_rules and look.version != self._ruled_at
        return look, frozenset(self._store.rules().rules) if is_new else None

    async def _say(self, verb: Callable[[A], T], words: A) -> T:
        slow = asyncio.get_running_loop().call_later(SLOW, self._missed, f"not within {SLOW:g} s")
        try:
            answer = await self._thread(verb, words)
        finally:
            slow.cancel()
        self._pause = 0.0
        if self._away:
            self._away = False
            logger.info("The store answers again: requests leave as its rules say.")
            self._listener.set_away(False)
        return answer

    def _missed(self, why: str) -> None:
        if self._away:
            return
        self._away, why = True, why.rstrip(".")
        if self._listener.awake:
            logger.warning("The store does not answer, and no request leaves without its permit: %s", why)
        else:
            logger.info("The store does not answer; no rule of `sdist throttle` was known here: %s", why)
        self._listener.set_away(True)
