"""The store of the throttle: which one a process asks for permits, and all calls to it."""

import asyncio
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_asyncio_reactor_installed

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, DistError, StoreError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import VARIABLE, chosen, is_url
from scrapyd_dist.store.worker_thread import StoreThread
from scrapyd_dist.throttle.permits import DomainLook, Permit, PermitRequest, SiteNews, TakenPermits

from ..assignment import Assignment
from ..store_access import OutOfReach, reach
from .domain_queues import DomainQueues
from .throttle_options import ThrottleOptions, waits_by_address

logger = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")
#: seconds after which a store that has not answered counts as away
SLOW = 2.0
#: seconds until a store that does not answer is asked again: at first, and at most
AGAIN, LONGEST_AGAIN = 0.25, 4.0
#: domains that a message names
NAMED = 5
#: seconds for which rules that the store has lost are waited for
LOST = 60.0
#: permits that are returned, and news that are told, in one call at most
AT_ONCE = 1000
#: permits that are kept for a store that is away, to be returned later; the oldest ones have expired by then
KEPT = 10_000
#: seconds for which a comparison of the two clocks is good: they drift
FRESH = 10.0
#: seconds by which an answer seems to come later than others where the store's clock was set back, or the store is slow
SET_BACK = 0.1


class RulesLost(StoreError):
    """The store has come back without rules that were known here."""


class PermitQueue:
    """The base of the scheduler's queues that let requests leave with their permits."""

    def wake(self) -> None:
        """There is a rule: what is here waits for its permits from now on, if it does not already."""


def queue_problem(settings: BaseSettings) -> str:
    """Why these settings leave the throttle no queue; empty when they do not."""
    if waits_by_address(settings):
        return (
            "CONCURRENT_REQUESTS_PER_IP and the throttle do not go together, as requests wait by the names of their"
            " hosts. Set CONCURRENT_REQUESTS_PER_DOMAIN instead, or DISTRIBUTED_THROTTLE = False."
        )
    if not issubclass(load_object(settings["SCHEDULER_PRIORITY_QUEUE"]), PermitQueue):
        return (
            f"SCHEDULER_PRIORITY_QUEUE is {settings['SCHEDULER_PRIORITY_QUEUE']}, and the throttle has to be the"
            " scheduler's queue itself. Take it out of the settings, or set DISTRIBUTED_THROTTLE = False."
        )
    return ""


def settings_problem(settings: BaseSettings) -> str:
    """Why the throttle cannot work with these settings; empty when it can."""
    if settings.getbool("TWISTED_REACTOR_ENABLED", True) and not is_asyncio_reactor_installed():
        return (
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and the throttle needs Scrapy's"
            " default one. Remove TWISTED_REACTOR from the settings, or set DISTRIBUTED_THROTTLE = False."
        )
    return queue_problem(settings)


def warn_of_scheduler(settings: BaseSettings) -> None:
    """Say in the log what a scheduler that is not Scrapy's does to limits."""
    # Not issubclass(): to Scrapy, whatever has the methods is a scheduler.
    if Scheduler not in load_object(settings["SCHEDULER"]).__mro__:
        logger.warning(
            "SCHEDULER is %s, which may not keep its requests in the throttle's queue: limits hold, but a request that"
            " waits for its permit holds one of CONCURRENT_REQUESTS.",
            settings["SCHEDULER"],
        )


def open_for(crawler: Crawler) -> tuple[Store | None, str]:
    """A connection to the store that this process asks for permits; or None, and why there is none. May block."""
    settings = crawler.settings
    try:
        ThrottleOptions.from_settings(settings)
        if problem := settings_problem(settings):
            return None, problem
        warn_of_scheduler(settings)
        return _open(settings, make=True), ""
    except ConfigError as error:
        return None, str(error)
    except (OutOfReach, DistError, ImportError, OSError) as error:
        why = str(error).rstrip(".")
        return (
            None,
            f"The throttle is on (DISTRIBUTED_THROTTLE), and its store is out of reach: {why}.",
        )


@dataclass(frozen=True, kw_only=True)
class PermitStore:
    """A store whose rules are to be heeded, or why there is none."""

    store: Store | None = None
    why: str = ""  #: empty where none was made yet
    lasting: bool = False  #: there will be none


def find_for(crawler: Crawler) -> PermitStore:
    """The store whose rules hold for a process without settings of the throttle. Makes none; may block."""
    try:
        return PermitStore(store=_open(crawler.settings, make=False))
    except (OutOfReach, ConfigError) as error:
        return PermitStore(why=str(error), lasting=getattr(error, "lasting", True))
    except Exception as error:
        return PermitStore(why=f"{type(error).__name__}: {error}")


def warn_of_rules(crawler: Crawler, problem: str) -> None:
    """Where there are rules that this process cannot heed, say so in its log. May block."""
    found = find_for(crawler)
    if found.store is None:
        return
    with closing(found.store) as store, suppress(DistError):
        if store.rules().rules:
            logger.warning(
                "The rules of `sdist throttle` do not hold for this process. %s", problem
            )


def _open(settings: BaseSettings, *, make: bool) -> Store | None:
    job = Assignment.from_settings(settings)
    if job is not None:
        return reach(job)
    where = _own(settings)
    if not (make or is_url(where) or Path(where).exists()):
        return None
    return open_store(where, durable=False, owned=False)


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


async def find_beside(crawler: Crawler) -> PermitStore:
    """As `find_for`, in a thread that the end of the process does not wait for; one that comes too late is closed."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[PermitStore] = loop.create_future()

    def take(found: PermitStore) -> None:
        if not answer.done():
            answer.set_result(found)
        elif found.store is not None:
            found.store.close()

    def run() -> None:
        found = find_for(crawler)
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(take, found)

    threading.Thread(target=run, name="sdist-beside", daemon=True).start()
    return await answer


class ClockOffset:
    """The difference between our clock and the store's, compared at each answer of the store.

    An answer arrives later than the store has looked at its clock, by an unknown time: of several comparisons the one
    with the least delay is the best. Before the first one, every moment is too far away to come.
    """

    def __init__(self) -> None:
        self._least = math.inf  #: our clock less the store's, since `_since`
        self._before = math.inf  #: the same of the time before that
        self._since = -math.inf

    @property
    def _offset(self) -> float:
        return min(self._least, self._before)

    def saw(self, received: float, said: float) -> None:
        """The store's clock was at `said` in an answer that arrived at `received` by our clock."""
        offset = received - said
        if offset > self._offset + SET_BACK:
            self._before, self._least, self._since = math.inf, offset, received
        elif received - self._since > FRESH:
            self._before, self._least, self._since = self._least, offset, received
        else:
            self._least = min(self._least, offset)

    def ours(self, moment: float) -> float:
        """A moment of the store's clock, by ours."""
        return moment + self._offset

    def stores(self, moment: float) -> float:
        """A moment of our clock, by the store's."""
        return moment - self._offset


class ReplyListener(Protocol):
    """What the client needs of the gate, which says what each method does; called in the event loop."""

    awake: bool
    queues: DomainQueues

    def questions(self) -> list[PermitRequest]: ...
    def answered(self, taken: TakenPermits, received: float, took: float) -> None: ...
    def ruled(self, domains: frozenset[str]) -> None: ...
    def set_away(self, away: bool) -> None: ...
    def failed(self) -> None: ...


class ThrottleClient:
    """One process's calls to the store of the throttle, one at a time, repeated while the store does not answer.

    What was to be told is told, or kept for later; a store that is away is no error of the crawl. `rules`: the listener
    wants to know which domains have rules.
    """

    def __init__(
        self,
        store: Store,
        listener: ReplyListener,
        clock: Callable[[], float] = time.monotonic,
        *,
        rules: bool = False,
    ) -> None:
        self._store, self._listener, self._clock = store, listener, clock
        self._wants_rules, self._ruled_at = (
            rules,
            -1,
        )  #: the version of the rules that the listener knows
        self._thread = StoreThread(store)
        self._back: deque[Permit] = deque(maxlen=KEPT)
        self._news: list[SiteNews] = []
        self._known: int | None = None  #: the version of the rules
        self._domains = frozenset[str]()  #: those that had rules at the last look
        self._lost_since: float | None = None  #: since when the store has lacked some of them
        self._talking: asyncio.Future[None] | None = None
        self._pause = 0.0
        self._look = self._away = self._ended = False

    def hand_back(self, permits: Sequence[Permit]) -> None:
        """Return these permits soon."""
        self._back.extend(permits)
        self.begin()

    def tell(self, news: SiteNews, *, at_once: bool) -> None:
        """Tell a site's news at once, or with the next look at the rules' version."""
        self._news.append(news)
        if at_once:
            self.look()

    def look(self) -> None:
        """Tell what there is to tell, and ask for the version of the rules."""
        self._look = True
        self.begin()

    def begin(self) -> None:
        """Start calling the store, unless a call is under way already."""
        if self._talking is None and not self._ended:
            self._talking = asyncio.ensure_future(self._run())

    async def end(self, patience: float) -> None:
        """Return what is left, wait `patience` seconds at most, and close the connection."""
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
        """Make one call; False when none is needed."""
        try:
            if self._back:
                await self._return()
            elif self._look:
                await self._tell()
            elif asks := self._listener.questions():
                begun, received, taken = await self._call(self._take, asks)
                self._heed(taken)
                self._listener.answered(taken, received, received - begun)
            else:
                return False
        except DistError as error:
            if isinstance(error, RulesLost) and self._is_lost_for_long():
                logger.error("This process ends, since nothing says how fast it may go: %s", error)
                self._ended = True
                self._listener.failed()
                return False
            self._listener.queues.ask_no_more()
            self._pause = min(2 * self._pause, LONGEST_AGAIN) if self._pause else AGAIN
            self._missed(str(error))
        except Exception:  # a fault of ours: not to be asked again for ever, by a crawl that waits
            logger.exception("The throttle itself has failed")
            self._ended = True
            self._listener.failed()
        return not self._ended

    def _take(self, asks: Sequence[PermitRequest]) -> tuple[float, float, TakenPermits]:
        begun, taken = self._clock(), self._store.take_permits(asks, self._known)
        self._check_kept(taken)
        return begun, self._clock(), taken

    def _check_kept(self, look: DomainLook) -> None:
        """See that the store has not fallen back to a time before rules that are known here; in the store's thread.

        Raises:
            RulesLost: it has: it has come back empty, or with an older copy.
        """
        if self._known is None or look.version >= self._known:
            return
        missing = sorted(self._domains - self._store.rules().rules.keys())
        if missing:
            raise RulesLost(
                f"The store has lost the throttle's rules for {', '.join(missing[:NAMED])}: their version was"
                f" {self._known} and is {look.version}. `sdist throttle set` sets them again, or restore the store"
            )
        logger.warning(
            "The store has come back with the throttle's rules of an earlier time, which hold from now on: their"
            " version was %d and is %d.",
            self._known,
            look.version,
        )

    def _is_lost_for_long(self) -> bool:
        self._lost_since = self._lost_since or self._clock()
        return self._clock() - self._lost_since > LOST

    def _heed(self, look: DomainLook) -> None:
        self._lost_since = None
        self._known = look.version
        if look.changed:
            self._listener.queues.withdraw(look.changed)

    async def _return(self) -> None:
        permits = [self._back.popleft() for _ in range(min(AT_ONCE, len(self._back)))]
        try:
            await self._call(self._store.return_permits, permits)
        except BaseException:
            self._back.extendleft(reversed(permits))
            raise

    async def _tell(self) -> None:
        news, self._news = self._news[:AT_ONCE], self._news[AT_ONCE:]
        self._look = bool(self._news)
        try:
            look, ruled = await self._call(self._tell_store, news)
        except BaseException:
            self._look, self._news = True, [*news, *self._news][-AT_ONCE:]
            raise
        self._heed(look)
        if ruled is None:
            return
        self._ruled_at = look.version
        self._domains = ruled
        if self._wants_rules:
            self._listener.ruled(ruled)

    def _tell_store(self, news: Sequence[SiteNews]) -> tuple[DomainLook, frozenset[str] | None]:
        look = self._store.tell_sites(news, self._known)
        self._check_kept(look)
        # Read after the version: newer rules under an older version are only read once more.
        return look, frozenset(
            self._store.rules().rules
        ) if look.version != self._ruled_at else None

    async def _call(self, verb: Callable[[A], T], words: A) -> T:
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
        if self._lost_since is not None:
            logger.warning("%s. No request leaves until then.", why)
        elif self._listener.awake:
            logger.warning(
                "The store does not answer, and no request leaves without its permit: %s", why
            )
        else:
            logger.info(
                "The store does not answer; no rule of `sdist throttle` was known here: %s", why
            )
        self._listener.set_away(True)
