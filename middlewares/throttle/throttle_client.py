"""Finds the store that a process asks for permits, and makes all calls to it."""

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
from scrapyd_dist.store.address import VARIABLE, store_address
from scrapyd_dist.store.ports.address_text import file_of
from scrapyd_dist.store.store_thread import StoreThread
from scrapyd_dist.throttle.known_rules import KnownRules
from scrapyd_dist.throttle.permits import (
    DomainLook,
    Permit,
    PermitRequest,
    Rules,
    SiteNews,
    TakenPermits,
)

from ..assignment import Assignment
from ..store_access import OtherStore, OutOfReach, reach
from .domain_queues import DomainQueues
from .throttle_options import ThrottleOptions, waits_by_address

logger = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")
#: seconds after which a store that has not answered counts as away
SLOW = 2.0
#: seconds until a store that does not answer is asked again: at first, and at most
FIRST_RETRY_SECONDS = 0.25
LONGEST_RETRY_SECONDS = 4.0
#: domains that a message names
NAMED = 5
#: seconds for which rules that the store has lost are waited for
LOST = 60.0
#: permits that are returned, and news that are told, in one call at most
AT_ONCE = 1000
#: permits that are kept for a store that is away, to be returned later; the oldest ones have
#: expired by then
KEPT = 10_000
#: seconds for which a comparison of the two clocks is good: they drift
FRESH = 10.0
#: seconds by which an answer seems to come later than others where the store's clock was set back,
#: or the store is slow
SET_BACK = 0.1
#: of the rules, before the first call
NOTHING = KnownRules()


class RulesLost(StoreError):
    """The store has come back without rules that were known here."""


class PermitQueue:
    """Is the base of the scheduler's queues that let requests leave with their permits."""

    def wake(self) -> None:
        """Let what is here wait for its permits from now on, as there is a rule."""


def queue_problem(settings: BaseSettings) -> str:
    """Return why these settings leave the throttle no queue; empty when they leave it one."""
    if waits_by_address(settings):
        return (
            "CONCURRENT_REQUESTS_PER_IP and the throttle do not go together, as requests wait by"
            " the names of their hosts. Set CONCURRENT_REQUESTS_PER_DOMAIN instead, or"
            " DISTRIBUTED_THROTTLE = False."
        )
    queue = settings["SCHEDULER_PRIORITY_QUEUE"]
    if not issubclass(load_object(queue), PermitQueue):
        return (
            f"SCHEDULER_PRIORITY_QUEUE is {queue}, and the throttle has to be the scheduler's queue"
            " itself. Take it out of the settings, or set DISTRIBUTED_THROTTLE = False."
        )
    return ""


def settings_problem(settings: BaseSettings) -> str:
    """Return why the throttle cannot work with these settings; empty when it can."""
    if settings.getbool("TWISTED_REACTOR_ENABLED", True) and not is_asyncio_reactor_installed():
        return (
            f"This project runs on the reactor {settings.get('TWISTED_REACTOR')}, and the throttle"
            " needs Scrapy's default one. Remove TWISTED_REACTOR from the settings, or set"
            " DISTRIBUTED_THROTTLE = False."
        )
    return queue_problem(settings)


def warn_of_scheduler(settings: BaseSettings) -> None:
    """Say in the log what a scheduler that is not Scrapy's does to limits."""
    # Not issubclass(): to Scrapy, whatever has the methods is a scheduler.
    if Scheduler not in load_object(settings["SCHEDULER"]).__mro__:
        logger.warning(
            "SCHEDULER is %s, which may not keep its requests in the throttle's queue: limits hold,"
            " but a request that waits for its permit holds one of CONCURRENT_REQUESTS.",
            settings["SCHEDULER"],
        )


def open_for(crawler: Crawler) -> tuple[Store | None, str]:
    """Open the store that this process asks for permits; or return None, and why there is none.

    It may block.
    """
    settings = crawler.settings
    try:
        ThrottleOptions.from_settings(settings)
        problem = settings_problem(settings)
        if problem:
            return None, problem
        warn_of_scheduler(settings)
        return _open(settings, make=True), ""
    except ConfigError as error:
        return None, str(error)
    except (OutOfReach, DistError, ImportError, OSError) as error:
        why = str(error).rstrip(".")
        problem = (
            f"The throttle is on (DISTRIBUTED_THROTTLE), and its store is out of reach: {why}."
        )
        return None, problem


@dataclass(frozen=True, kw_only=True)
class PermitStore:
    """Holds a store whose rules are to be heeded, or why there is none."""

    store: Store | None = None
    why: str = ""  #: empty where none was made yet
    lasting: bool = False  #: there will be none
    is_other: bool = False  #: the one that answers is another one, or has lost its data


def find_for(crawler: Crawler) -> PermitStore:
    """Open the store whose rules hold for a process without settings of the throttle.

    It makes none, and may block.
    """
    try:
        return PermitStore(store=_open(crawler.settings, make=False))
    except (OutOfReach, ConfigError) as error:
        return PermitStore(
            why=str(error),
            lasting=getattr(error, "lasting", True),
            is_other=isinstance(error, OtherStore),
        )
    except Exception as error:  # noqa: BLE001 - a process that asked for nothing goes on without it
        return PermitStore(why=f"{type(error).__name__}: {error}")


def warn_of_rules(crawler: Crawler, problem: str) -> None:
    """Say in the log if there are rules that this process cannot heed. It may block."""
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
    where = _find_address(settings)
    file = file_of(where)
    if file is not None and not (make or file.exists()):
        return None
    return open_store(where, durable=False, owned=False)


def _find_address(settings: BaseSettings) -> str:
    """Return the address of the project's store, as a producer of it would find it."""
    root = config.find_root()
    by_setting = settings.get("DISTRIBUTED_STORE")
    if root is None and not by_setting and not os.environ.get(VARIABLE):
        raise ConfigError(
            "Nothing says where the store of the throttle is: there is no scrapy.cfg here. Set"
            f" DISTRIBUTED_STORE, or {VARIABLE} in the environment, to the address that all who"
            " share the limits have."
        )
    by_config = None
    if root is not None:
        by_config = config.load(root).options.get("store")
    return store_address(root or Path.cwd(), by_setting, by_config)


async def find_beside(crawler: Crawler) -> PermitStore:
    """Do as `find_for`, in a thread that the end of the process does not wait for.

    A store that comes too late is closed.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[PermitStore] = loop.create_future()

    def deliver(found: PermitStore) -> None:
        if not answer.done():
            answer.set_result(found)
        elif found.store is not None:
            found.store.close()

    def run() -> None:
        found = find_for(crawler)
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(deliver, found)

    threading.Thread(target=run, name="sdist-beside", daemon=True).start()
    return await answer


class ClockOffset:
    """Knows the difference between our clock and the store's, compared at each answer of the store.

    An answer arrives later than the store has read its clock, by an unknown time: of several
    comparisons the one with the least delay is the best. Before the first one, every moment is too
    far away to come.
    """

    def __init__(self) -> None:
        self._least = math.inf  #: our clock less the store's, since `_since`, in seconds
        self._before = math.inf  #: the same of the time before that
        self._since = -math.inf  #: by our clock

    @property
    def _offset(self) -> float:
        return min(self._least, self._before)

    def saw(self, received: float, sent: float) -> None:
        """Compare the clocks by an answer.

        It was `sent` by the store's clock, and arrived at `received` by ours.
        """
        offset = received - sent
        if offset > self._offset + SET_BACK:
            self._before = math.inf
            self._least = offset
            self._since = received
        elif received - self._since > FRESH:
            self._before = self._least
            self._least = offset
            self._since = received
        else:
            self._least = min(self._least, offset)

    def ours(self, moment: float) -> float:
        """Convert a moment of the store's clock to ours."""
        return moment + self._offset

    def stores(self, moment: float) -> float:
        """Convert a moment of our clock to the store's."""
        return moment - self._offset


class ReplyListener(Protocol):
    """Is what the client needs of the gate; its methods are called in the event loop."""

    awake: bool  #: whether requests may have to wait
    queues: DomainQueues

    def questions(self) -> list[PermitRequest]:
        """Return the requests for permits that are to be made now."""
        ...

    def answered(self, taken: TakenPermits, received: float, took: float) -> None:
        """Take in an answer, its moment by our clock, and the seconds that it took."""

    def ruled(self, domains: frozenset[str]) -> None:
        """Take note that these domains have rules, and no others."""

    def set_away(self, away: bool) -> None:
        """Take note that the store does not answer, or does again."""

    def failed(self) -> None:
        """Take note that nothing can be asked any more."""


class ThrottleClient:
    """Makes one process's calls to the store of the throttle, one at a time.

    They are repeated while the store does not answer. News are sent, or kept for later; a store
    that is away is no error of the crawl. `rules` says that the listener wants to know which
    domains have rules; `given` is what is known of them before the first call.
    """

    def __init__(
        self,
        store: Store,
        listener: ReplyListener,
        clock: Callable[[], float] = time.monotonic,
        *,
        rules: bool = False,
        given: KnownRules = NOTHING,
    ) -> None:
        self._store = store
        self._listener = listener
        self._clock = clock
        self._wants_rules = rules
        self._ruled_at = -1  #: the version of the rules that the listener knows
        self._thread = StoreThread(store)
        self._back: deque[Permit] = deque(maxlen=KEPT)  #: permits to be returned
        self._news: list[SiteNews] = []  #: to be sent
        #: the version of the rules at the last call
        self._known: int | None = given.version if given.domains else None
        self._domains = given.domains  #: those that had rules at the last look
        self._changed = frozenset[str]()  #: those that have changed since that look
        self._lost_since: float | None = None  #: since when the store has lacked some of them
        self._talking: asyncio.Future[None] | None = None  #: runs while calls are made
        self._pause = 0.0  #: seconds until the next call; 0 while the store answers
        self._is_look_due = bool(given.domains)  #: whether the rules' version is to be asked for
        self._away = False  #: whether the store does not answer
        self._ended = False  #: whether no more calls are made

    def hand_back(self, permits: Sequence[Permit]) -> None:
        """Return these permits soon."""
        self._back.extend(permits)
        self.begin()

    def report_site(self, news: SiteNews, *, at_once: bool) -> None:
        """Tell a site's news at once, or with the next look at the rules' version."""
        self._news.append(news)
        if at_once:
            self.check_rules()

    def check_rules(self) -> None:
        """Tell what there is to tell, and ask for the version of the rules."""
        self._is_look_due = True
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
        """Make one call; False when no other one is needed."""
        try:
            if not await self._make_next_call():
                return False
        except DistError as error:
            if isinstance(error, RulesLost) and self._is_lost_for_long():
                logger.error(  # noqa: TRY400 - the message says all
                    "This process ends, since nothing says how fast it may go: %s", error
                )
                self._ended = True
                self._listener.failed()
                return False
            self._listener.queues.ask_no_more()
            longer = 2 * self._pause or FIRST_RETRY_SECONDS
            self._pause = min(longer, LONGEST_RETRY_SECONDS)
            self._missed(str(error))
        except Exception:  # a fault of ours: not to be asked again for ever, by a crawl that waits
            logger.exception("The throttle itself has failed")
            self._ended = True
            self._listener.failed()
        return not self._ended

    async def _make_next_call(self) -> bool:
        """Make the most urgent call; False when none is needed."""
        if self._back:
            await self._return_permits()
            return True
        if self._is_look_due:
            await self._send_news()
            return True
        requests = self._listener.questions()
        if not requests:
            return False
        begun, received, taken = await self._call(self._take_permits, requests)
        self._note_changes(taken)
        self._listener.answered(taken, received, received - begun)
        return True

    def _take_permits(self, requests: Sequence[PermitRequest]) -> tuple[float, float, TakenPermits]:
        """Request permits in the store's thread; return begin, end and answer of the call.

        Both times are by our clock.
        """
        begun = self._clock()
        taken = self._store.take_permits(requests, self._known)
        self._check_kept(taken)
        return begun, self._clock(), taken

    def _check_kept(self, answer: DomainLook) -> None:
        """See that the store has not fallen back to a time before rules that are known here.

        It is called in the store's thread.

        Raises:
            RulesLost: the store has come back empty, or with an older copy.
        """
        if self._known is None or answer.version >= self._known:
            return
        self._check_whole(self._store.rules(), answer)
        logger.warning(
            "The store has come back with the throttle's rules of an earlier time, which hold from"
            " now on: their version was %d and is %d.",
            self._known,
            answer.version,
        )

    def _check_whole(self, rules: Rules, answer: DomainLook) -> None:
        """See that rules which were not removed are among these; RulesLost if one is not."""
        known = KnownRules(version=self._known or 0, domains=self._domains)
        missing = known.missing_in(rules, self._changed | answer.changed)
        if missing:
            raise RulesLost(
                f"The store has lost the throttle's rules for {', '.join(missing[:NAMED])}: their"
                f" version was {self._known} and is {answer.version}. `sdist throttle set` sets"
                " them again, or restore the store"
            )

    def _is_lost_for_long(self) -> bool:
        self._lost_since = self._lost_since or self._clock()
        return self._clock() - self._lost_since > LOST

    def _note_changes(self, answer: DomainLook) -> None:
        """Take note of the rules' version, and of the domains whose rules have changed."""
        self._lost_since = None
        self._known = answer.version
        self._changed |= answer.changed
        if answer.changed:
            self._listener.queues.withdraw(answer.changed)

    async def _return_permits(self) -> None:
        permits = [self._back.popleft() for _ in range(min(AT_ONCE, len(self._back)))]
        try:
            await self._call(self._store.return_permits, permits)
        except BaseException:
            self._back.extendleft(reversed(permits))
            raise

    async def _send_news(self) -> None:
        news = self._news[:AT_ONCE]
        self._news = self._news[AT_ONCE:]
        self._is_look_due = bool(self._news)
        try:
            answer, ruled = await self._call(self._send_to_store, news)
        except RulesLost:  # the store has the news all the same
            self._is_look_due = True
            raise
        except BaseException:
            self._is_look_due = True
            self._news = [*news, *self._news][-AT_ONCE:]
            raise
        self._note_changes(answer)
        if ruled is None:
            return
        self._ruled_at = answer.version
        self._domains = ruled
        self._changed = frozenset()
        if self._wants_rules:
            self._listener.ruled(ruled)

    def _send_to_store(self, news: Sequence[SiteNews]) -> tuple[DomainLook, frozenset[str] | None]:
        """Send news in the store's thread; return its answer, and the domains with rules if new."""
        answer = self._store.tell_sites(news, self._known)
        self._check_kept(answer)
        if answer.version == self._ruled_at:
            return answer, None
        # Read after the version: newer rules under an older version are only read once more.
        rules = self._store.rules()
        if rules.version == answer.version:
            self._check_whole(rules, answer)
        return answer, frozenset(rules.rules)

    async def _call(self, verb: Callable[[A], T], argument: A) -> T:
        """Call the store in its thread, and notice when it is away or back."""
        slow = asyncio.get_running_loop().call_later(SLOW, self._missed, f"not within {SLOW:g} s")
        try:
            answer = await self._thread(verb, argument)
        finally:
            slow.cancel()
        self._pause = 0.0
        if self._away:
            self._away = False
            logger.info("The store answers again: requests leave as its rules say.")
            self._listener.set_away(False)
        return answer

    def _missed(self, why: str) -> None:
        """Count the store as away, and say so once."""
        if self._away:
            return
        self._away = True
        # It may come back without its rules, at a version that is as high as before.
        self._is_look_due = True
        self._ruled_at = -1
        why = why.rstrip(".")
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
