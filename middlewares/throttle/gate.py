"""The gate of one Scrapy process: it asks the store when requests may leave, and knows which may leave now.

The rule it keeps: whoever waits asks once, and is woken; nothing leaves without its permit. Part of the worker half:
imports Scrapy and the standard library only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from scrapy import signals

from scrapyd_dist.frontier.slotting import site_of
from scrapyd_dist.reasons import Reason
from scrapyd_dist.throttle.values import Ask

from ..worker.closing import close_spider
from .budgets import PageBudget, PagesUsedUp
from .egress import Egress
from .lines import Guest, Kind, Standing
from .moments import Moments
from .opening import open_for, options_of
from .passes import FREE, OVER, PERMIT, Pass, Passes
from .room import Room
from .talk import Talk
from .waiting import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapyd_dist.store import Store
    from scrapyd_dist.throttle.values import Permit, SiteNews, Taken

    from .lines import Held, Line
    from .options import ThrottleOptions

logger = logging.getLogger(__name__)

#: what leaves for no site
NOWHERE = ("data:", "file:")
#: seconds between two looks at the version of the rules
LOOK = 1.0
#: asks in one step of the store, at most
ASKS_AT_ONCE = 500
#: seconds that the end of a crawl waits for the store, and its beginning for the address of this machine
PATIENCE = 3.0


class Gate:
    """Which requests of this process may leave now.

    Args:
        crawler: the process.
        options: the settings of the throttle.
        clock: seconds, never turned back.

    Attributes:
        problem: why there is no store to ask; nothing leaves then.
    """

    _all: ClassVar[WeakKeyDictionary[Crawler, Gate]] = WeakKeyDictionary()

    def __init__(self, crawler: Crawler, options: ThrottleOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options, self.problem = options, ""
        self.room = Room(crawler)
        self._crawler, self._clock = crawler, clock
        self._egress, self._budget = Egress(options, crawler), PageBudget(options, crawler)
        self._lines, self._passes = Lines(self, self.room, clock), Passes(self.room)
        self._moments = Moments()
        self._asking: list[tuple[Line, int]] = []
        self._talk: Talk | None = None
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
        return gate

    # its life

    def open(self, store: Store) -> None:
        """Ask this store from now on."""
        self._talk = Talk(store, self, self._clock)
        self._crawler.signals.connect(self._opened, signals.spider_opened)
        self._crawler.signals.connect(self._closed, signals.spider_closed)

    async def _opened(self) -> None:
        if self.options.per_ip:  # what is asked for an address that is not known yet has to be asked again
            await asyncio.get_running_loop().run_in_executor(None, self._egress.settled.wait, PATIENCE)
        self._looks = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while True:
            try:
                self._look_once()
            except Exception:  # a fault of ours; we look on, as the end of the crawl waits for who is sent away here
                logger.exception("The throttle itself has failed")
                self.failed()
            await asyncio.sleep(LOOK)

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

    # what a request is charged to

    def kind_of(self, request: Request, *, page: bool = True) -> Kind:
        """The kind of line in which a request waits; `page`: it counts in its domain's budget of pages."""
        if request.url.startswith(NOWHERE):
            return Kind("")
        pages = self._budget.pages_of(request) if page else None
        return Kind(site_of(request.url), self._egress.own(request), pages)

    def key_of(self, request: Request) -> tuple[str, str]:
        """The key that a request is charged to, and its domain."""
        kind = self.kind_of(request, page=False)
        return self._key(kind), kind.domain

    def _key(self, kind: Kind) -> str:
        spider = self._crawler.spider
        parts = [spider.name] if self.options.per_spider and spider is not None else []
        if self.options.per_ip:
            parts.append(kind.address or self._egress.machine)
        return "|".join([*parts, kind.domain])

    # the queues' side

    def enter(self, kind: Kind, slot: str, number: int = 1) -> Line:
        """So many requests of this slot of the downloader wait from now on, in the line that is the answer."""
        line = self._lines.of(kind)
        self._lines.enter(line, slot, number)
        return line

    def ready(self) -> Iterator[Line]:
        """The lines whose requests may leave, in turn."""
        return self._lines.ready()

    def has_room(self, line: Line, slot: str) -> bool:
        """Whether a request of this slot could leave at once; where nothing is charged, that is not for us to say."""
        return line.standing is not Standing.LIMITED or self.room.free(slot) > 0

    def leave(self, line: Line, slot: str, request: Request | None) -> None:
        """The next request of a line that is ready leaves the queue; None when the queue has lost it."""
        if request is not None:
            request.meta[PERMIT] = self._pass_for(line, slot)
        self._lines.leave(line, slot)

    def _pass_for(self, line: Line, slot: str) -> Pass:
        if line.standing is Standing.LIMITED:
            return self._passes.give(line.permits.pop(0), slot, line)
        return Pass(self._key(line.kind), self.now(), FREE if line.standing is Standing.FREE else OVER)

    # the downloader middleware's side

    def use(self, request: Request) -> bool | None:
        """Whether a request has its permit, which is used now; False: it has lost it; None: it never had one.

        Raises:
            PagesUsedUp: its budget is.
        """
        mine: Pass | None = request.meta.get(PERMIT)
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
        mine: Pass | None = request.meta.get(PERMIT)
        held = self._passes.take(mine.number) if mine is not None else None
        if held is not None:
            self.give_back([held.permit])

    def at_once(self, request: Request) -> Pass | None:
        """A pass for a request that has come by no queue, where it need not wait.

        That is where its domain is known to have no limit; or where a page has a permit and is held up, as by its
        robots.txt, which is this request: the page gets another one.
        """
        key, domain = self.key_of(request)
        if not domain or self._lines.is_free(self.kind_of(request, page=False)):
            return Pass(key, self.now(), FREE)
        held = self._passes.lend(key, self._clock())
        if held is None:
            return None
        self.count("permits")
        return Pass(key, held.permit.at, FREE)

    async def wait(self, request: Request, *, page: bool) -> Pass:
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
            return Pass(self._key(kind), self.now(), FREE)
        self.count("permits")
        return Pass(held.permit.key, held.permit.at, FREE)

    async def _permit_of(self, kind: Kind, since: float) -> Held | None:
        """The permit of a request that waits beside the queues; None: it needs none."""
        line, guest = self._lines.of(kind), Guest(asyncio.get_running_loop().create_future(), since)
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

    def questions(self) -> list[Ask]:
        """What is to be asked now."""
        self._asking = self._lines.take_wanting(ASKS_AT_ONCE)
        if self._asking:
            self.count("asks", len(self._asking))
            self.count("steps")
        return [self._ask(line, count) for line, count in self._asking]

    def _ask(self, line: Line, count: int) -> Ask:
        domain, _, pages = line.kind
        budget = "" if pages is None else self._budget.name
        options = self.options
        return Ask(
            key=self._key(line.kind), domain=domain, count=count, limit=options.limit, moderated=options.moderated,
            pages=pages, budget=budget,
        )  # fmt: skip

    def answered(self, taken: Taken, received: float, took: float) -> None:
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
        self.wake()

    def failed(self) -> None:
        """Nothing can be asked any more: what waits would wait for ever."""
        close_spider(self._crawler, Reason.THROTTLE_FAILED)

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
