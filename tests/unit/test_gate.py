"""The gate between queues, downloader and store: which request may leave when, by a clock that the test turns."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from rig.gates import GateBench, as_any
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue
from scrapyd_dist.middlewares.codec import PERMIT, SENT_BACK
from scrapyd_dist.middlewares.throttle import gate
from scrapyd_dist.middlewares.throttle.downloader_capacity import STALE
from scrapyd_dist.middlewares.throttle.queue import ThrottledQueue, lane_name, lane_of
from scrapyd_dist.middlewares.throttle.site_feedback import PermitMiddleware
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.throttle.permits import (
    ALL,
    DomainLook,
    Limit,
    Permit,
    PermitReply,
    PermitRequest,
    Rules,
    SiteNews,
    TakenPermits,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
SLOW, FAST, FREE, SHUT, SPENT = (
    "slow.example",
    "fast.example",
    "free.example",
    "shut.example",
    "spent.example",
)
#: seconds between two permits
GAPS = {SLOW: 60.0, FAST: 0.0}


class FakeStore:
    """Gives permits at even distances, and keeps what was said."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.version, self.closed = clock, 1, False
        self.changed = frozenset({ALL})  #: since the version before
        self.asked: list[list[PermitRequest]] = []
        self.back: list[Permit] = []
        self.news: list[SiteNews] = []
        self.next: dict[str, float] = {}

    def take_permits(self, asks: Sequence[PermitRequest], known: int | None = None) -> TakenPermits:
        self.asked.append(list(asks))
        answers = tuple(map(self._answer, asks))
        return TakenPermits(
            now=self.clock(), version=self.version, changed=self._since(known), answers=answers
        )

    def _answer(self, ask: PermitRequest) -> PermitReply:
        if ask.domain in (FREE, SHUT, SPENT):
            return PermitReply(
                free=ask.domain == FREE, held=ask.domain == SHUT, used_up=ask.domain == SPENT
            )
        gap, permits = GAPS.get(ask.domain, 1.0), []
        for _ in range(ask.count):
            at = max(self.clock(), self.next.get(ask.key, 0.0))
            self.next[ask.key] = at + gap
            permits.append(Permit(key=ask.key, at=at, page_of=ask.budget))
        return PermitReply(permits=tuple(permits))

    def return_permits(self, permits: Sequence[Permit]) -> None:
        self.back += permits

    def tell_sites(self, news: Sequence[SiteNews], known: int | None = None) -> DomainLook:
        self.news += news
        return DomainLook(version=self.version, changed=self._since(known))

    def _since(self, known: int | None) -> frozenset[str]:
        return self.changed if known not in (None, self.version) else frozenset()

    def rules(self) -> Rules:
        return Rules(version=self.version, rules={})

    def close(self) -> None:
        self.closed = True


class Scene(GateBench):
    """A gate with its queue, its store and its clock."""

    queue: ThrottledQueue

    def __init__(self) -> None:
        self.time = 100.0
        self.store = as_any(FakeStore(lambda: self.time))
        options = ThrottleOptions(on=True, limit=Limit(hits=1, window=1.0))
        super().__init__(self.store, options, clock=lambda: self.time)
        self.charging = PermitMiddleware(self.gate)
        self.queue = ThrottledQueue(
            self.crawler, LifoMemoryQueue, "", start_queue_cls=FifoMemoryQueue
        )

    async def pushed(self, *urls: str, **meta: Any) -> None:
        """Push them, and let the store hear of it."""
        self.push(*urls, **meta)
        await self.said()

    async def beside(self, request: Request) -> asyncio.Future[Any]:
        """A request that comes by no queue, and may have to wait."""
        waiting = asyncio.ensure_future(self.gate.wait(request, page=False))
        await asyncio.sleep(0)
        await self.said()
        return waiting

    def pop(self) -> str | None:
        request = self.queue.pop()
        return None if request is None else request.url.split("/")[2]

    def popped(self) -> Request:
        """The next request, which has to be there."""
        request = self.queue.pop()
        assert request is not None
        return request

    def busy(self, host: str) -> SimpleNamespace:
        """The downloader's slot of this host, which has one request under way and no room for another."""
        slot = SimpleNamespace(concurrency=1, active={1}, queue=[], delay=0.0)
        self.crawler.engine.downloader.slots[host] = slot
        return slot

    async def turn(self, seconds: float) -> None:
        self.time += seconds
        for queue in list(self.gate.queues._queues.values()):
            if queue.alarm is not None and queue.alarm <= self.time:
                self.gate.queues._ring(queue, queue.alarm)
        await self.said()


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    it = Scene()
    try:
        yield it
    finally:
        await it.gate._closed()
        assert it.store.closed


async def test_a_request_leaves_when_its_permit_is_due_and_wakes_the_engine() -> None:
    async with scene() as it:
        it.push("a.example", "a.example")
        assert (it.pop(), len(it.queue)) == (None, 2)
        await it.said()
        assert it.crawler.woken
        assert [it.pop(), it.pop()] == ["a.example", None]
        woken = it.crawler.woken
        await it.turn(1.0)
        assert it.crawler.woken > woken
        assert (it.pop(), len(it.queue)) == ("a.example", 0)


async def test_a_domain_that_waits_is_passed_over_and_the_others_take_turns() -> None:
    async with scene() as it:
        it.push("data:,//none")
        assert it.pop() == "none"  # what leaves for no site is free
        await it.pushed(*[SLOW] * 5, *[FAST] * 2, *[FREE] * 2)
        popped = [it.pop() for _ in range(6)]
        assert popped[:3] == [SLOW, FAST, FREE]
        assert sorted(filter(None, popped[3:])) == [FAST, FREE]
        assert len(it.queue) == 4


async def test_hosts_of_one_domain_share_and_many_questions_are_one_step() -> None:
    async with scene() as it:
        await it.pushed(
            "www.a.co.uk", "m.a.co.uk", *(f"site{number}.example" for number in range(13))
        )
        (asks,) = it.store.asked
        assert len(asks) == 14
        assert asks[0] == PermitRequest(
            key="a.co.uk", domain="a.co.uk", count=2, limit=it.gate.options.limit
        )
        assert [it.pop() for _ in range(20)].count(None) == 6


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_permit_is_used_once_next_to_the_downloader_or_handed_back_once(
    *, is_used: bool
) -> None:
    """An answer from nearer than the site costs nothing."""
    async with scene() as it:
        await it.pushed("a.example")
        request = it.popped()
        assert request.meta[PERMIT].at == 100.0
        if is_used:
            assert it.charging.process_request(request) is None
        it.charging.process_exception(request, IgnoreRequest())
        it.charging.process_exception(request, IgnoreRequest())
        await it.said()
        assert [permit.at for permit in it.store.back] == ([] if is_used else [100.0])
        assert it.crawler.counts.get("distributed/throttle/permits", 0) == is_used


async def test_a_request_that_was_held_up_goes_back_to_the_queue_once_and_waits_then() -> None:
    async with scene() as it:
        await it.pushed("a.example")
        request = it.popped()
        it.time += 2 * STALE
        again = as_any(it.charging.process_request(request))
        assert (again.dont_filter, again.meta[SENT_BACK]) == (True, False)
        it.queue.push(again)
        await it.turn(1.0)
        again = it.popped()
        it.time += 2 * STALE
        waiting = asyncio.ensure_future(as_any(it.charging.process_request(again)))
        await asyncio.sleep(0)
        await it.turn(5.0)
        await waiting
        assert (SENT_BACK in again.meta, again.dont_filter) == (False, False)
        assert (len(it.store.back), it.crawler.counts["distributed/throttle/permits"]) == (2, 1)


async def test_a_robots_txt_takes_the_permit_of_its_page() -> None:
    async with scene() as it:
        await it.pushed(SLOW)
        page, robots = it.popped(), Request(f"http://{SLOW}/robots.txt")
        assert it.charging.process_request(robots) is None
        assert robots.meta[PERMIT].at == 100.0
        assert isinstance(it.charging.process_request(page), Request)
        assert it.store.back == []


async def test_what_comes_by_no_queue_waits_at_the_downloader() -> None:
    async with scene() as it:
        await it.pushed(SLOW)
        assert it.pop() == SLOW
        it.gate.capacity.close()
        picture = Request(f"http://{SLOW}/picture")
        waiting = asyncio.ensure_future(as_any(it.charging.process_request(picture)))
        await asyncio.sleep(0)
        await it.said()
        assert not waiting.done()
        await it.turn(60.0)
        await waiting
        assert picture.meta[PERMIT].at == 160.0
        other = Request(f"http://{FREE}/picture")
        await as_any(it.charging.process_request(other))
        assert it.charging.process_request(Request(f"http://{FREE}/next")) is None


async def test_what_comes_by_no_queue_asks_only_when_the_downloader_has_a_place_for_it() -> None:
    """Else the permits of many add up while a site is slow, and all leave at once."""
    async with scene() as it:
        slot = it.busy(FAST)
        first, second = (
            asyncio.ensure_future(
                as_any(it.charging.process_request(Request(f"http://{FAST}/{name}")))
            )
            for name in "ab"
        )
        await asyncio.sleep(0)
        await it.said()
        assert it.store.asked == []
        slot.active = set()
        await asyncio.wait_for(first, 10)
        slot.active = {2}  # its place; the other one waits on
        assert [ask.count for asks in it.store.asked for ask in asks] == [1]
        assert not second.done()
        slot.active = set()
        await asyncio.wait_for(second, 10)


async def test_a_crawl_that_ends_does_not_wait_for_permits() -> None:
    async with scene() as it:
        waiting = await it.beside(Request(f"http://{SHUT}/"))
        it.gate.queues.sweep(ending=False)
        assert not waiting.done()
        it.gate.queues.sweep(ending=True)
        with pytest.raises(IgnoreRequest, match="the crawl ends"):
            await waiting
        it.busy(FAST)  # nor for places beside the queues, as media pipelines ask for files
        waiting = await it.beside(Request(f"http://{FAST}/"))
        assert not waiting.done()
        it.crawler.engine._slot.closing = object()
        with pytest.raises(IgnoreRequest, match="the crawl ends"):
            await asyncio.wait_for(waiting, 10)
        assert FAST not in {ask.domain for asks in it.store.asked for ask in asks}


@pytest.mark.parametrize("part", ["queue_for", "settle"])
async def test_a_fault_of_the_throttle_keeps_no_place_in_the_downloader(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that wait for it would wait for ever, and the end of the crawl for them."""
    async with scene() as it:
        with monkeypatch.context() as broken:
            broken.setattr(it.gate.queues, part, lambda *words: 1 / 0)
            waiting = await it.beside(Request(f"http://{SLOW}/"))
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(waiting, 10)
        assert not it.gate.capacity._placed
        assert it.gate.capacity.active(SLOW) == 0


async def test_after_a_fault_of_the_throttle_the_gate_looks_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The crawl is closed, and each request that waits is refused: the end of the crawl waits for them."""
    monkeypatch.setattr(gate, "LOOK", 0.01)
    async with scene() as it:
        slot = it.crawler.engine._slot
        monkeypatch.setattr(
            gate, "close_spider", lambda _, reason: setattr(slot, "closing", reason)
        )
        waiting = await it.beside(Request(f"http://{SHUT}/"))
        monkeypatch.setattr(it.gate.capacity, "sweep", lambda: 1 / 0)
        await it.gate._opened()
        with pytest.raises(IgnoreRequest, match="the crawl ends"):
            await asyncio.wait_for(waiting, 10)
        assert slot.closing == "throttle-failed"


async def test_what_is_not_needed_any_more_is_handed_back_also_what_the_store_gives_while_the_crawl_ends() -> (
    None
):
    async with scene() as it:
        await it.pushed("a.example", "a.example")
        await it.gate._closed()
        assert sorted(permit.at for permit in it.store.back) == [100.0, 101.0]
    async with scene() as it:
        asked, go = threading.Event(), threading.Event()
        take = it.store.take_permits

        def slow(asks: Sequence[PermitRequest], known: int | None) -> TakenPermits:
            asked.set()
            assert go.wait(10)
            return as_any(take(asks, known))  # type: ignore[no-any-return]  # a stand-in of any kind

        it.store.take_permits = slow
        it.push("a.example", "a.example")
        await asyncio.get_running_loop().run_in_executor(None, asked.wait, 10)
        it.gate.give_back(it.gate.queues.close())
        go.set()
        await it.said()
        assert sorted(permit.at for permit in it.store.back) == [100.0, 101.0]


async def test_a_change_of_one_domain_leaves_all_others_as_they_are() -> None:
    """In a broad crawl some site is always slowed down: it costs one question, not one for each domain."""
    async with scene() as it:
        domains = [f"site{number}.example" for number in range(7)]
        await it.pushed(*domains * 2, SHUT)
        assert len([None for _ in range(7) if it.pop()]) == 7
        asked = len(it.store.asked)
        it.store.version, it.store.changed = 2, frozenset({"site3.example", "never.example"})
        await it.look()
        assert [permit.key for permit in it.store.back] == ["site3.example"]
        assert [ask.domain for asks in it.store.asked[asked:] for ask in asks] == ["site3.example"]
        await it.look()  # what is heeded is not told again
        assert (len(it.store.back), len(it.store.asked)) == (1, asked + 1)


async def test_refusals_are_told_at_once_and_all_else_with_the_next_look() -> None:
    async with scene() as it:
        it.gate.report_site(SiteNews(domain="a.example", target_gap=1.0))
        await it.said()
        assert it.store.news == []
        it.gate.report_site(SiteNews(domain="a.example", refused_at=1.0))
        await it.said()
        assert [one.refused_at for one in it.store.news] == [None, 1.0]


async def test_a_fault_of_the_throttle_ends_the_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for ever."""
    closed: list[str] = []
    monkeypatch.setattr(gate, "close_spider", lambda crawler, reason: closed.append(reason))
    async with scene() as it:
        it.store.take_permits = lambda asks, known: 1 / 0
        await it.pushed(FREE)
        assert closed == ["throttle-failed"]


async def test_an_alarm_of_a_line_that_is_forgotten_does_nothing() -> None:
    """A slow domain, whose next permit was a minute off, loses its limit."""
    async with scene() as it:
        await it.pushed(SLOW, SLOW)
        assert it.pop() == SLOW
        await it.turn(1.0)
        it.store._answer = lambda ask: PermitReply(free=True)
        it.store.version = 2
        await it.look()
        assert it.pop() == SLOW
        it.time += 20
        it.gate.queues.sweep(ending=False)
        assert not it.gate.queues._queues
        await it.turn(60.0)
        await it.turn(20.0)
        it.gate.queues.sweep(ending=False)


async def test_a_permit_waits_for_a_place_in_the_downloader_and_no_other_is_taken_then() -> None:
    async with scene() as it:
        slot = it.busy(FAST)
        await it.pushed(*[FAST] * 3)
        assert not it.store.asked
        slot.active = set()
        assert it.pop() is None  # asks now
        await it.said()
        slot.active = {1}  # one that came by no queue
        assert it.pop() is None
        await it.turn(2 * STALE)
        asked = len(it.store.asked)
        assert len(it.store.back) == 2
        assert it.pop() is None
        await it.turn(2 * STALE)
        assert len(it.store.asked) == asked
        slot.active = set()
        assert it.pop() is None  # asks now
        await it.said()
        assert it.pop() == FAST


async def test_while_the_engine_is_full_no_new_domain_is_asked_for() -> None:
    async with scene() as it:
        it.crawler.engine.downloader.active.update(range(16))
        await it.pushed(*(f"site{number}.example" for number in range(50)))
        assert not it.store.asked
        it.crawler.engine.downloader.active.pop()
        assert it.pop() is None  # asks now
        await it.said()
        assert [len(asks) for asks in it.store.asked] == [1]
        assert it.pop() == "site0.example"


async def test_a_domain_whose_hosts_are_busy_is_passed_over_when_permits_are_asked_for() -> None:
    async with scene() as it:
        for number in range(150):
            it.busy(f"site{number}.example")
        await it.pushed(*(f"site{number}.example" for number in range(151)))
        popped = []
        for _ in range(2):  # not all of them are looked at each time
            popped.append(it.pop())
            await it.said()
        assert [[ask.domain for ask in asks] for asks in it.store.asked] == [["site150.example"]]
        assert popped == [None, "site150.example"]


async def test_a_lane_is_called_as_scrapys_own_queue_calls_it_where_it_is_the_same() -> None:
    async with scene() as it:
        budgeted = Request("http://a.example/", meta={"domain_max_pages": 7})
        plain, *others = [
            Request(url) for url in ("http://www.a.example/", "http://[::1]/", "data:,x")
        ]
        for request in (plain, budgeted, *others):
            lane = (it.crawler.engine.downloader.get_slot_key(request), it.gate.queue_key(request))
            assert lane_of(lane_name(*lane)) == lane
            assert request is not plain or lane_name(*lane) == "www.a.example"
