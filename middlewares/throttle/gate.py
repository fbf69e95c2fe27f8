"""The gate of one Scrapy process: it asks the store when requests may leave, and knows which may leave now.

The rule it keeps: whoever waits asks once, and is woken; nothing leaves without its permit. Part of the worker half:
imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakSet

from scrapy import signals

from scrapyd_dist.finish_reasons import FinishReason
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.throttle.permits import ALL, PermitRequest

from ..codec import PERMIT
from ..engine_compat import close_spider
from .budgets import PageBudget, PagesUsedUp
from .domain_queue import DomainStatus, QueueKey, Waiter
from .domain_queues import DomainQueues
from .downloader_capacity import FREE, OVER, DownloaderCapacity, InFlightPermit, InFlightPermits, sent_back
from .egress import Egress
from .permit_store import find_for, open_for, options_of, tell_of_rules, tell_of_scheduler, why_not_heeded
from .throttle_client import ThrottleClient
from .timers import ClockOffset, beside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapyd_dist.store import Store
    from scrapyd_dist.throttle.permits import Permit, SiteNews, TakenPermits

    from .domain_queue import DomainQueue, TimedPermit
    from .throttle_options import ThrottleOptions

logger = logging.getLogger(__name__)

#: what leaves for no site
NOWHERE = ("data:", "file:")
#: seconds between two looks at the version of the rules
LOOK = 1.0
#: asks in one step of the store, at most
ASKS_AT_ONCE = 500
#: seconds that the end of a crawl waits for the store, and its beginning for the rules and the address of this machine
PATIENCE = 3.0
#: seconds until a store that is out of reach is looked for again, at most
LONGEST_SEARCH = 30.0


class SleepingQueue(Protocol):
    """A queue that asks for no permits until there is a rule."""

    def wake(self) -> None:
        """There is one: what is here waits for its permits from now on."""


class Gate:
    """Which requests of this process may leave now.

    Args:
        crawler: the process.
        options: the settings of the throttle.
        clock: seconds, never turned back.

    Attributes:
        problem: why there is no store to ask: nothing leaves then, where the throttle is on; else no rule is heeded.
        awake: whether requests may have to wait: the throttle is on, or the store has had a rule.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, Gate]] = WeakKeyDictionary()

    def __init__(self, crawler: Crawler, options: ThrottleOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options, self.problem, self.awake = options, "", options.on
        self._ruled: frozenset[str] = frozenset()
        self._known = asyncio.Event()  #: whether there are rules, or that it cannot be known now
        self._queues: WeakSet[SleepingQueue] = WeakSet()
        self._before: WeakSet[Request] = WeakSet()  #: those that were under way when the first rule came
        self.room = DownloaderCapacity(crawler)
        self._crawler, self._clock = crawler, clock
        self._egress, self._budget = Egress(options, crawler), PageBudget(options, crawler)
        self._lines, self._passes = DomainQueues(self, self.room, clock), InFlightPermits(self.room)
        self._moments = ClockOffset()
        self._asking: list[tuple[DomainQueue, int]] = []
        self._talk: ThrottleClient | None = None
        self._looks: asyncio.Future[None] | None = None

    @classmethod
    def of(cls, crawler: Crawler) -> Gate:
        """The gate of this crawler, one for all that need it."""
        gate = cls._all.get(crawler)
        if gate is None:
            gate = cls._all[crawler] = cls(crawler, options_of(crawler.settings))
            if gate.options.on:
                store, gate.problem = open_for(crawler)
                if store is not None:
                    gate.open(store)
            elif gate.options.heeds:
                gate.problem = why_not_heeded(crawler.settings)
                gate.prepare_to_heed()
        return gate

    @property
    def in_force(self) -> bool:
        """Whether anything of the throttle can hold in this process."""
        return self.options.on or (self.options.heeds and not self.problem)

    # its life

    def open(self, store: Store) -> None:
        """Ask this store from now on."""
        self._talk = ThrottleClient(store, self, self._clock, rules=self.options.heeds)
        self._live()

    def _live(self) -> None:
        self._crawler.signals.connect(self._opened, signals.spider_opened)
        self._crawler.signals.connect(self._closed, signals.spider_closed)

    def prepare_to_heed(self) -> None:
        """Look for rules once the crawl begins; where they cannot be heeded, only to say so."""
        if self.problem:
            self._crawler.signals.connect(self._tell_of_rules, signals.spider_opened)
        else:
            self._live()

    def _tell_of_rules(self) -> None:
        threading.Thread(target=tell_of_rules, args=(self._crawler, self.problem), daemon=True).start()

    async def _opened(self) -> None:
        if self.options.per_ip:  # what is asked for an address that is not known yet has to be asked again
            await asyncio.get_running_loop().run_in_executor(None, self._egress.settled.wait, PATIENCE)
        self._looks = asyncio.ensure_future(self._look())
        if self.options.heeds:  # what leaves before the rules are known would leave without them
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known.wait(), PATIENCE)

    async def _look(self) -> None:
        if self._talk is None and not await self._search():
            return
        while True:
            try:
                self._look_once()
            except Exception:  # a fault of ours; we look on, as the end of the crawl waits for who is sent away here
                logger.exception("The throttle itself has failed")
                self.failed()
            await asyncio.sleep(LOOK)

    async def _search(self) -> bool:
        """Find the store; False where there will be none. One that is made later, or is away, is looked for again."""
        pause = LOOK
        while True:
            found = await beside(partial(find_for, self._crawler), lambda found: found.close())
            if found.store is not None:
                self._talk = ThrottleClient(found.store, self, self._clock, rules=True)
                return True
            self._known.set()
            if found.why:
                level = logging.INFO if pause == LOOK else logging.DEBUG
                logger.log(level, "No rule of `sdist throttle` is heeded here%s: %s", found.until, found.why)
                if found.lasting:
                    return False
                pause = min(2 * pause, LONGEST_SEARCH)
            await asyncio.sleep(pause)

    def _look_once(self) -> None:
        self._lines.sweep(ending=self.room.ending)
        self.give_back(self._passes.sweep(self._clock()))
        if self._talk is not None:
            self._talk.look()

    async def _closed(self) -> None:
        if self._looks is not None:
            self._looks.cancel()
        if self._talk is not None:
            self.give_back([*self._passes.close(), *self._lines.close()])
            await self._talk.end(PATIENCE)

    # the first rule

    def join(self, queue: SleepingQueue) -> None:
        """A queue to be told of the first rule."""
        self._queues.add(queue)

    def is_ruled(self, domain: str) -> bool:
        """Whether the store is to be asked for this domain."""
        return bool(domain) and (self.options.on or domain in self._ruled or ALL in self._ruled)

    def ruled(self, domains: frozenset[str]) -> None:
        """These domains have rules, and no others."""
        changed, self._ruled = self._ruled ^ domains, domains
        if domains and not self.awake:
            self._wake_up()
        elif changed:
            self._lines.withdraw(changed)
            self.wake()
        self._known.set()

    def _wake_up(self) -> None:
        """The first rule: what has not left yet waits for its permit from now on."""
        logger.info("The store has rules of `sdist throttle`: requests leave as these say.")
        self.awake = True
        slot = self._crawler.engine._slot  # noqa: SLF001 - nothing else tells
        self._before = WeakSet(slot.inprogress if slot is not None else ())
        tell_of_scheduler(self._crawler.settings)
        for queue in list(self._queues):
            queue.wake()
        for one in list(self._crawler.engine.downloader.slots.values()):
            waiting = list(one.queue)
            held = [pair for pair in waiting if self.is_ruled(site_of(pair[0].url))]
            one.queue.clear()
            one.queue.extend(pair for pair in waiting if pair not in held)
            for request, answer in held:
                answer.callback(sent_back(request))  # type: ignore[arg-type]  # the engine takes a request, too
        self.wake()

    def left_before(self, request: Request) -> bool:
        """Whether a request had left the queue before there was a rule, and a rule is meant for it."""
        return request in self._before and self.is_ruled(site_of(request.url))

    # what a request is charged to

    def charge_pages_to(self, budget: str) -> None:
        """Count the pages of this process in the budget of this name; called before the first of them is asked for."""
        self._budget.name = budget

    def kind_of(self, request: Request, *, page: bool = True) -> QueueKey:
        """The kind of line in which a request waits; `page`: it counts in its domain's budget of pages."""
        if request.url.startswith(NOWHERE):
            return QueueKey("")
        pages = self._budget.pages_of(request) if page and self.options.on else None
        return QueueKey(site_of(request.url), self._egress.own(request), pages)

    def key_of(self, request: Request) -> tuple[str, str]:
        """The key that a request is charged to, and its domain."""
        kind = self.kind_of(request, page=False)
        return self._key(kind), kind.domain

    def _key(self, kind: QueueKey) -> str:
        spider = self._crawler.spider
        parts = [spider.name] if self.options.per_spider and spider is not None else []
        if self.options.per_ip:
            parts.append(kind.address or self._egress.machine)
        return "|".join([*parts, kind.domain])

    # the queues' side

    def enter(self, kind: QueueKey, slot: str, number: int = 1) -> DomainQueue:
        """So many requests of this slot of the downloader wait from now on, in the line that is the answer."""
        line = self._lines.of(kind)
        self._lines.enter(line, slot, number)
        return line

    def ready(self) -> Iterator[DomainQueue]:
        """The lines whose requests may leave, in turn."""
        return self._lines.ready()

    def has_room(self, line: DomainQueue, slot: str) -> bool:
        """Whether a request of this slot could leave at once; where nothing is charged, that is not for us to say."""
        return line.standing is not DomainStatus.LIMITED or self.room.free(slot) > 0

    def leave(self, line: DomainQueue, slot: str, request: Request | None) -> None:
        """The next request of a line that is ready leaves the queue; None when the queue has lost it."""
        if request is not None:
            request.meta[PERMIT] = self._pass_for(line, slot)
        self._lines.leave(line, slot)

    def _pass_for(self, line: DomainQueue, slot: str) -> InFlightPermit:
        if line.standing is DomainStatus.LIMITED:
            return self._passes.give(line.permits.pop(0), slot, line)
        return InFlightPermit(self._key(line.kind), self.now(), OVER if line.standing is DomainStatus.USED_UP else FREE)

    # the downloader middleware's side

    def use(self, request: Request) -> bool | None:
        """Whether a request has its permit, which is used now; False: it has lost it; None: it never had one.

        Raises:
            PagesUsedUp: its budget is.
        """
        mine: InFlightPermit | None = request.meta.get(PERMIT)
        if mine is None:
            return None
        kind = self.kind_of(request)
        if mine.number == OVER:
            raise PagesUsedUp(kind.domain, kind.pages or 0)
        held = self._passes.take(mine.number)
        if held is None:
            return False if self._passes.was_lost(mine.number) else None
        if held.fresh(self._clock()) and held.permit.key == self._key(kind):
            self.count("permits")
            return True
        self.give_back([held.permit])
        return False

    def forget(self, request: Request) -> None:
        """A request has ended, or goes into a queue again: a permit that it has not used is handed back."""
        mine: InFlightPermit | None = request.meta.get(PERMIT)
        held = self._passes.take(mine.number) if mine is not None else None
        if held is not None:
            self.give_back([held.permit])

    def at_once(self, request: Request) -> InFlightPermit | None:
        """A pass for a request that has come by no queue, where it need not wait.

        That is where its domain is known to have no limit; or where a page has a permit and is held up, as by its
        robots.txt, which is this request: the page gets another one.
        """
        key, domain = self.key_of(request)
        if not domain or self._lines.is_free(self.kind_of(request, page=False)):
            return InFlightPermit(key, self.now(), FREE)
        held = self._passes.lend(key, self._clock())
        if held is None:
            return None
        self.count("permits")
        return InFlightPermit(key, held.permit.at, FREE)

    async def wait(self, request: Request, *, page: bool) -> InFlightPermit:
        """Wait for a permit beside the queues; `page`: it is one, and counts as one.

        First for a place in the downloader: with a permit, but without a place, it would leave long after its moment.

        Raises:
            PagesUsedUp: its budget is.
            IgnoreRequest: the domain stays blocked or paused, or the crawl ends.
        """
        kind = self.kind_of(request, page=page)
        slot, since = self._crawler.engine.downloader.get_slot_key(request), self._clock()
        await self.room.place(slot)
        try:
            held = await self._permit_of(kind, since)
        finally:  # whatever has become of it: others wait for the place
            self.room.unplace(slot)
            self.count("waited", self._clock() - since)
        if held is None:
            return InFlightPermit(self._key(kind), self.now(), FREE)
        self.count("permits")
        return InFlightPermit(held.permit.key, held.permit.at, FREE)

    async def _permit_of(self, kind: QueueKey, since: float) -> TimedPermit | None:
        """The permit of a request that waits beside the queues; None: it needs none."""
        line, guest = self._lines.of(kind), Waiter(asyncio.get_running_loop().create_future(), since)
        try:
            self._lines.join(line, guest)
            return await guest.answer
        finally:
            self._lines.part(line, guest)

    # what sites say

    def tell(self, news: SiteNews) -> None:
        """Tell all workers what a site has said: a refusal at once, all else within a second."""
        if self._talk is not None:
            self._talk.tell(news, at_once=news.refused_at is not None or news.retry_after is not None)

    def now(self) -> float:
        """The store's clock."""
        return self._moments.stores(self._clock())

    # the talk's side

    def questions(self) -> list[PermitRequest]:
        """What is to be asked now."""
        self._asking = self._lines.take_wanting(ASKS_AT_ONCE)
        if self._asking:
            self.count("asks", len(self._asking))
            self.count("steps")
        return [self._ask(line, count) for line, count in self._asking]

    def _ask(self, line: DomainQueue, count: int) -> PermitRequest:
        domain, _, pages = line.kind
        budget = "" if pages is None else self._budget.name
        options = self.options
        return PermitRequest(
            key=self._key(line.kind), domain=domain, count=count, limit=options.limit, moderated=options.moderated,
            pages=pages, budget=budget,
        )  # fmt: skip

    def answered(self, taken: TakenPermits, received: float, took: float) -> None:
        """The store's answer, which was here at `received`, and took so many seconds."""
        self._moments.saw(received, taken.now)
        asking, self._asking = self._asking, []
        self._lines.heard(asking, took)
        for (line, _), answer in zip(asking, taken.answers, strict=True):
            line.receive(answer, self._moments.ours, self._clock())
            self._lines.settle(line)
        self.wake()

    def unanswered(self) -> None:
        """There was no answer to the questions: they are to be asked again."""
        asking, self._asking = self._asking, []
        self._lines.heard(asking, None)
        for line, _ in asking:
            self._lines.settle(line)

    def heed(self, changed: Collection[str]) -> None:
        """The rules, or the pace, of these domains have changed: what they were given is asked for anew."""
        self._lines.withdraw(changed)

    def set_away(self, away: bool) -> None:
        """The store does not answer, or does again."""
        self._lines.set_away(away)
        self._known.set()
        self.wake()

    def failed(self) -> None:
        """Nothing can be asked any more: what waits would wait for ever."""
        self._known.set()
        if self.awake:
            close_spider(self._crawler, FinishReason.THROTTLE_FAILED)

    # the lines' side

    def want(self) -> None:
        """A line wants permits."""
        if self._talk is not None:
            self._talk.begin()

    def give_back(self, permits: Sequence[Permit]) -> None:
        """These are not needed."""
        if permits and self._talk is not None:
            self.count("returned", len(permits))
            self._talk.hand_back(permits)

    def wake(self) -> None:
        """The engine is to look into its queues."""
        slot = self._crawler.engine._slot  # noqa: SLF001 - before Scrapy 2.19 nothing else leads there
        if slot is not None:
            slot.nextcall.schedule()

    def count(self, name: str, number: float = 1) -> None:
        """For the statistics of the crawl."""
        self._crawler.stats.inc_value(f"distributed/throttle/{name}", number)  # type: ignore[arg-type]  # seconds, too
