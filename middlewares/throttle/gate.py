"""Requests the permits of one Scrapy process from the store, and lets requests leave with them.

Each waiting request asks once and is woken; nothing leaves without its permit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request, signals
from scrapy.crawler import Crawler

from scrapyd_dist.batches import FinishReason
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.store import Store
from scrapyd_dist.throttle.known_rules import KnownRules
from scrapyd_dist.throttle.permits import ALL, PermitRequest, SiteNews, TakenPermits

from ..assignment import Assignment
from ..codec import PERMIT, PagesUsedUp
from ..engine_compat import close_spider
from .domain_queues import DomainQueue, DomainQueues, DomainStatus, QueueKey
from .downloader_capacity import (
    FREE,
    OVER,
    DownloaderCapacity,
    InFlightPermit,
    TimedPermit,
    sent_back,
)
from .throttle_client import (
    LONGEST_RETRY_SECONDS,
    ClockOffset,
    PermitQueue,
    PermitStore,
    ThrottleClient,
    find_beside,
    open_for,
    settings_problem,
    warn_of_rules,
    warn_of_scheduler,
)
from .throttle_options import Egress, PageBudget, ThrottleOptions, options_of

logger = logging.getLogger(__name__)
#: what leaves for no site
NOWHERE = ("data:", "file:")
#: seconds between two looks at the version of the rules
LOOK = 1.0
#: permit requests in one call to the store, at most
ASKS_AT_ONCE = 500
#: seconds that the end of a crawl waits for the store, and its beginning for the rules and the
#: address of this machine
PATIENCE = 3.0
#: seconds until a store that is out of reach is looked for again, at most
LONGEST_SEARCH = 30.0


def _rules_given(crawler: Crawler) -> Mapping[str, Any]:
    """Return what this process was given to know of the rules; empty if it is no job."""
    job = Assignment.from_settings(crawler.settings)
    return {} if job is None else job.rules


class Gate:
    """Decides which requests of this process may leave now.

    `awake` says that some may have to wait: the throttle is on, or there was a rule. `problem` says
    why there is no store to ask: nothing leaves then, where the throttle is on; else no rule is
    heeded.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, Gate]] = WeakKeyDictionary()

    def __init__(
        self,
        crawler: Crawler,
        options: ThrottleOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.problem = ""
        self.awake = options.on
        self._ruled: frozenset[str] = frozenset()  #: domains that have rules; maybe `ALL`
        #: what the job was given to know of the rules
        self._given = KnownRules.from_document(_rules_given(crawler))
        self._known = asyncio.Event()  #: whether there are rules, or that it cannot be known now
        self.sleeping: WeakSet[PermitQueue] = WeakSet()  #: to be woken by the first rule
        #: those that were under way when the first rule came
        self._before: WeakSet[Request] = WeakSet()
        self._crawler = crawler
        self._clock = clock
        self._egress = Egress(options, crawler)
        self.budget = PageBudget(options, crawler)
        self.capacity = DownloaderCapacity(crawler, clock)
        self.queues = DomainQueues(self, self.capacity, clock)
        self._offset = ClockOffset()
        self._client: ThrottleClient | None = None  #: None until a store is found
        self._looks: asyncio.Future[None] | None = None  #: runs while the spider is open

    @classmethod
    def for_crawler(cls, crawler: Crawler) -> Gate:
        """Return the gate of this crawler, one for all that need it."""
        gate = cls._all.get(crawler)
        if gate is None:
            gate = cls._all[crawler] = cls(crawler, options_of(crawler.settings))
            gate._begin()
        return gate

    # its life

    def _begin(self) -> None:
        """Open the store where the throttle is on, and follow the crawl where requests may wait."""
        crawler = self._crawler
        options = self.options
        if options.on:
            store, self.problem = open_for(crawler)
            if store is not None:
                self.open(store)
        elif options.heeds:
            self.problem = settings_problem(crawler.settings)
            if self.problem:
                crawler.signals.connect(self._warn_of_rules, signals.spider_opened)
        if options.may_hold and not self.problem:
            crawler.signals.connect(self._opened, signals.spider_opened)
            crawler.signals.connect(self._closed, signals.spider_closed)

    def open(self, store: Store) -> None:
        """Ask this store from now on."""
        self._client = ThrottleClient(
            store, self, self._clock, rules=self.options.heeds, given=self._given
        )

    def _warn_of_rules(self) -> None:
        threading.Thread(
            target=warn_of_rules, args=(self._crawler, self.problem), daemon=True
        ).start()

    async def _opened(self) -> None:
        if self.options.per_ip:
            # What is asked for an address that is not known yet has to be asked again.
            wait = self._egress.settled.wait
            await asyncio.get_running_loop().run_in_executor(None, wait, PATIENCE)
        if self.options.heeds and self._given.domains:  # whatever the store says, or does not
            self._ruled = self._given.domains
            self._wake_up()
        self._looks = asyncio.ensure_future(self._keep_looking())
        if self.options.heeds:  # what leaves before the rules are known would leave without them
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known.wait(), PATIENCE)

    async def _keep_looking(self) -> None:
        if self._client is None:
            await self._search()
        while self._client is not None:
            try:
                self.queues.sweep(ending=self.capacity.ending)
                self.give_back(self.capacity.sweep())
                self._client.check_rules()
            except Exception:
                # A fault of ours. Go on: the end of the crawl waits for guests that are sent away.
                logger.exception("The throttle itself has failed")
                self.failed()
            await asyncio.sleep(LOOK)

    async def _search(self) -> None:
        """Find the store, unless there will be none.

        One that is made later, or is away, is looked for again. A job that knows of rules makes no
        request to their domains meanwhile.
        """
        pause = LOOK
        while True:
            found = await find_beside(self._crawler)
            if found.store is not None:
                self.open(found.store)
                return
            if found.lasting:
                self._go_on_without(found)
                return
            self._known.set()
            if found.why:
                self._log_unheeded(found, logging.INFO if pause == LOOK else logging.DEBUG)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS if self.awake else LONGEST_SEARCH)
            await asyncio.sleep(pause)

    def _go_on_without(self, found: PermitStore) -> None:
        """Heed no rule, as no store will be in reach; but end if the store has lost them."""
        if self.awake and found.is_other:
            logger.error("This job ends, since nothing says how fast it may go: %s", found.why)
            self.failed()
            return
        self._log_unheeded(found, logging.INFO)
        self.ruled(frozenset())

    def _log_unheeded(self, found: PermitStore, level: int) -> None:
        waits = self.awake and not found.lasting
        what = "No request to a domain that has a rule leaves"
        if not waits:
            what = "No rule of `sdist throttle` is heeded here"
        until = "" if found.lasting else " as long as the store is out of reach"
        logger.log(level, "%s%s: %s", what, until, found.why)

    async def _closed(self) -> None:
        if self._looks is not None:
            self._looks.cancel()
        if self._client is not None:
            self.give_back([*self.capacity.close(), *self.queues.close()])
            await self._client.end(PATIENCE)

    # the first rule

    def is_ruled(self, domain: str) -> bool:
        """Tell whether the store is to be asked for this domain."""
        return bool(domain) and (self.options.on or domain in self._ruled or ALL in self._ruled)

    def ruled(self, domains: frozenset[str]) -> None:
        """Take note that these domains have rules, and no others; `ALL` may be one of them."""
        changed = self._ruled ^ domains
        self._ruled = domains
        if domains and not self.awake:
            self._wake_up()
        elif changed:
            self.queues.withdraw(changed)
            self.wake()
        self._known.set()

    def _wake_up(self) -> None:
        """Let all that has not left yet wait for its permit from now on: there is a first rule."""
        logger.info("The store has rules of `sdist throttle`: requests leave as these say.")
        self.awake = True
        slot = self._crawler.engine._slot  # noqa: SLF001 - nothing else tells what is under way
        self._before = WeakSet(slot.inprogress if slot is not None else ())
        warn_of_scheduler(self._crawler.settings)
        for queue in list(self.sleeping):
            queue.wake()
        for downloader_slot in list(self._crawler.engine.downloader.slots.values()):
            self._send_back(downloader_slot.queue)
        self.wake()

    def _send_back(self, waiting: Any) -> None:
        """Send requests of ruled domains from a slot of the downloader back to the scheduler."""
        pairs = list(waiting)
        held = [pair for pair in pairs if self.is_ruled(site_of(pair[0].url))]
        waiting.clear()
        waiting.extend(pair for pair in pairs if pair not in held)
        for request, answer in held:
            answer.callback(sent_back(request))  # the engine takes a request, too

    def left_before(self, request: Request) -> bool:
        """Tell whether a request had left the queue before there was a rule for it."""
        return request in self._before and self.is_ruled(site_of(request.url))

    # what a request is charged to

    def queue_key(self, request: Request, *, page: bool = True) -> QueueKey:
        """Return the key of the queue in which a request waits.

        `page` says whether it counts in its domain's budget of pages.
        """
        if request.url.startswith(NOWHERE):
            return QueueKey("")
        pages = None
        if page and self.options.on:
            pages = self.budget.pages_of(request)
        return QueueKey(site_of(request.url), self._egress.own(request), pages)

    def _charge_key(self, kind: QueueKey) -> str:
        """Return the key that permits of this queue are charged to."""
        spider = self._crawler.spider
        parts = []
        if self.options.per_spider and spider is not None:
            parts.append(spider.name)
        if self.options.per_ip:
            parts.append(kind.address or self._egress.machine)
        parts.append(kind.domain)
        return "|".join(parts)

    # the downloader's side

    def send(self, queue: DomainQueue, slot: str, request: Request | None) -> None:
        """Let the next request of a queue that is ready leave it.

        The request is None when the scheduler has lost it.
        """
        if request is not None:
            if queue.standing is DomainStatus.LIMITED:
                permit = self.capacity.send(queue.permits.pop(0), slot, queue.slots)
            elif queue.standing is DomainStatus.USED_UP:
                permit = InFlightPermit(self.now(), OVER)
            else:
                permit = InFlightPermit(self.now(), FREE)
            request.meta[PERMIT] = permit
        self.queues.leave(queue, slot)

    def use(self, request: Request) -> bool | None:
        """Use the permit of a request, and tell whether it has one.

        False says that it has lost it, None that it never had one.

        Raises:
            PagesUsedUp: its budget is.
        """
        mine: InFlightPermit | None = request.meta.get(PERMIT)
        if mine is None:
            return None
        kind = self.queue_key(request)
        if mine.number == OVER:
            raise PagesUsedUp(kind.domain, kind.pages or 0)
        held = self.capacity.claim(mine.number)
        if held is None:
            if self.capacity.was_lost(mine.number):
                return False
            return None
        if held.fresh(self._clock()) and held.permit.key == self._charge_key(kind):
            self.count("permits")
            return True
        self.give_back([held])
        return False

    def forget(self, request: Request) -> None:
        """Return the unused permit of a request that has ended, or goes into a queue again."""
        mine: InFlightPermit | None = request.meta.get(PERMIT)
        if mine is None:
            return
        held = self.capacity.claim(mine.number)
        if held is not None:
            self.give_back([held])

    def permit_at_once(self, request: Request) -> InFlightPermit | None:
        """Return a permit for a request from outside the scheduler, where it need not wait.

        That is where its domain is known to have no limit; or where a page has a permit and is held
        up, as by its robots.txt, which is this request: the page gets another one. Else None.
        """
        kind = self.queue_key(request, page=False)
        if self.queues.is_free(kind):
            return self._make_pass(None)
        held = self.capacity.lend(self._charge_key(kind))
        if held is None:
            return None
        return self._make_pass(held)

    async def wait(self, request: Request, *, page: bool) -> InFlightPermit:
        """Wait for a permit outside the scheduler, as `DomainQueues.permit` does.

        `page` says that the request is one, and counts as one. It waits for a place in the
        downloader first: with a permit, but without a place, it would leave long after its moment.
        """
        kind = self.queue_key(request, page=page)
        slot = self._crawler.engine.downloader.get_slot_key(request)
        since = self._clock()
        await self.capacity.place(slot)
        try:
            held = await self.queues.permit(kind, since)
        finally:  # whatever has become of it: others wait for the place
            self.capacity.unplace(slot)
            self.count("waited", self._clock() - since)
        return self._make_pass(held)

    def _make_pass(self, held: TimedPermit | None) -> InFlightPermit:
        """Return what a request leaves with now: this permit, or none where it needs none."""
        if held is None:
            return InFlightPermit(self.now())
        self.count("permits")
        return InFlightPermit(held.permit.at)

    def report_site(self, news: SiteNews) -> None:
        """Tell all workers what a site has said: a refusal at once, all else within a second."""
        if self._client is not None:
            is_refusal = news.refused_at is not None or news.retry_after is not None
            self._client.report_site(news, at_once=is_refusal)

    def now(self) -> float:
        """Return the time by the store's clock."""
        return self._offset.stores(self._clock())

    # the client's side

    def questions(self) -> list[PermitRequest]:
        """Return the requests for permits that are to be made now."""
        asking = self.queues.collect_requests(ASKS_AT_ONCE)
        if asking:
            self.count("asks", len(asking))
            self.count("steps")
        return [self._permit_request(queue.key, count) for queue, count in asking]

    def _permit_request(self, kind: QueueKey, count: int) -> PermitRequest:
        options = self.options
        budget = "" if kind.pages is None else self.budget.name
        return PermitRequest(
            key=self._charge_key(kind),
            domain=kind.domain,
            count=count,
            limit=options.limit,
            moderated=options.moderated,
            pages=kind.pages,
            budget=budget,
        )

    def answered(self, taken: TakenPermits, received: float, took: float) -> None:
        """Take in the store's answer, which arrived at `received` by our clock.

        It `took` so many seconds.
        """
        self._offset.saw(received, taken.now)
        self.capacity.note_answer_time(took)
        self.queues.receive_answers(taken.answers, self._offset.ours)
        self.wake()

    def set_away(self, away: bool) -> None:
        """Take note that the store does not answer, or does again."""
        self.queues.set_away(away)
        self._known.set()
        self.wake()

    def failed(self) -> None:
        """Close the spider: nothing can be asked any more, and what waits would wait for ever."""
        self._known.set()
        if self.awake:
            close_spider(self._crawler, FinishReason.THROTTLE_FAILED.value)

    # the queues' side

    def want(self) -> None:
        """Request the permits that queues want."""
        if self._client is not None:
            self._client.begin()

    def give_back(self, permits: Sequence[TimedPermit]) -> None:
        """Return permits that are not needed."""
        if permits and self._client is not None:
            self.count("returned", len(permits))
            self._client.hand_back([held.permit for held in permits])

    def wake(self) -> None:
        """Let the engine look into its queues: a request may leave now."""
        # Before Scrapy 2.19 nothing else leads there.
        slot = self._crawler.engine._slot  # noqa: SLF001
        if slot is not None:
            slot.nextcall.schedule()

    def count(self, name: str, number: float = 1) -> None:
        """Add to a statistic of the throttle; it may be one of seconds."""
        stats: Any = self._crawler.stats
        stats.inc_value(f"distributed/throttle/{name}", number)
