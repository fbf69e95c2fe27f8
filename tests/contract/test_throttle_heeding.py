"""Rules that come and go in a store, the queue of a process that has said nothing of the throttle, and its budgets.

Hosts of one registered domain share a budget, by the public suffix list, without a look-up.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig.gates import FakeCrawler, GateBench, as_any
from scrapy import Request
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue, PickleLifoDiskQueue
from scrapyd_dist.middlewares.codec import SENT_BACK
from scrapyd_dist.middlewares.throttle.queue import HeedingPlainQueue, HeedingQueue
from scrapyd_dist.middlewares.throttle.site_feedback import PermitMiddleware
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions
from twisted.internet.defer import Deferred

from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.store import Store
from scrapyd_dist.throttle.permits import ALL, Limit, PermitRequest, Rule

RULED, OTHER = "http://ruled.example/", "http://other.example/"


class Scene(GateBench):
    """A process whose store is this one."""

    def __init__(
        self, store: Store, kind: type[HeedingQueue] = HeedingQueue, folder: str = ""
    ) -> None:
        super().__init__(store, ThrottleOptions(heeds=True))
        lasting: Any = PickleLifoDiskQueue if folder else LifoMemoryQueue
        self.queue = kind(
            self.crawler, lasting, folder, start_queue_cls=None if folder else FifoMemoryQueue
        )

    async def popped(self, *, until: int) -> list[str]:
        """So many requests, once the store has said that they may leave."""
        found: list[str] = []
        while len(found) < until:
            request = self.queue.pop()
            if request is not None:
                found.append(request.url)
                self.gate.use(request)
            await asyncio.sleep(0.01)
        return found


@pytest.mark.parametrize("kind", [HeedingQueue, HeedingPlainQueue])
async def test_a_rule_that_comes_is_heeded_and_asks_nothing_for_others(
    kind: type[HeedingQueue], store: Store
) -> None:
    it = Scene(store, kind)
    it.push(RULED + "1", RULED + "2", RULED + "3", OTHER + "1")
    await it.look()
    assert not it.gate.awake
    first = it.queue.pop()
    assert first is not None
    store.change_rules({"ruled.example": Rule(paused=True)})
    await it.look()
    assert it.gate.awake
    left = await it.popped(until=4 - 1 - (2 if first.url.startswith(RULED) else 3))
    assert all(url.startswith(OTHER) for url in left)
    await asyncio.sleep(0.05)
    assert it.queue.pop() is None
    assert len(it.queue) == 3 - first.url.startswith(RULED)
    assert [state.domain for state in store.domain_states()] == []
    store.change_rules({"ruled.example": None})
    await it.look()
    rest = await it.popped(until=len(it.queue))
    assert {first.url, *left, *rest} == {RULED + "1", RULED + "2", RULED + "3", OTHER + "1"}


async def test_what_was_in_the_downloader_goes_back_and_keeps_its_duplicate_filter(
    store: Store,
) -> None:
    it = Scene(store)
    waiting, other, asking = Request(RULED), Request(OTHER), Request(RULED + "page")
    pairs: list[tuple[Request, Deferred[Any]]] = [(waiting, Deferred()), (other, Deferred())]
    came: list[Request] = []
    for _, answer in pairs:
        answer.addCallback(came.append)
    slot: Any = SimpleNamespace(
        queue=list(pairs), active=set(), delay=0.0, concurrency=8, free_transfer_slots=lambda: 8
    )
    it.crawler.engine.downloader.slots["ruled.example"] = slot
    it.crawler.engine._slot.inprogress.add(asking)
    await it.look()
    store.change_rules({ALL: Rule(hits=1, window=60.0), "other.example": Rule(paused=True)})
    store.change_rules({ALL: None, "other.example": None, "ruled.example": Rule(paused=True)})
    await it.look()
    assert [(request.url, request.meta[SENT_BACK], request.dont_filter) for request in came] == [
        (RULED, False, True)
    ]
    assert slot.queue == [pairs[1]]
    charging = PermitMiddleware(it.gate)
    back = charging.process_request(asking)
    assert isinstance(back, Request)
    assert (back.url, back.dont_filter) == (RULED + "page", True)


@pytest.mark.parametrize("kind", [HeedingQueue, HeedingPlainQueue])
async def test_files_of_a_woken_queue_are_those_of_scrapys_own(
    kind: type[HeedingQueue], store: Store, tmp_path: Path
) -> None:
    it = Scene(store, kind, str(tmp_path / "jobs"))
    it.push(RULED + "1", RULED + "2")
    store.change_rules({ALL: Rule(paused=True)})
    await it.look()
    it.push(RULED + "3")
    state = it.queue.close()
    again = kind.own(as_any(FakeCrawler()), PickleLifoDiskQueue, str(tmp_path / "jobs"), state)
    assert len(again) == 3
    assert {again.pop().url for _ in range(3)} == {RULED + "1", RULED + "2", RULED + "3"}


# budgets

LIMIT = Limit(hits=1, window=1000.0)


def waits(store: Store, *urls: str) -> list[float]:
    """How long a request to each of them has to wait, one after the other."""
    found = []
    for url in urls:
        taken = store.take_permits(
            [PermitRequest(key=site_of(url), domain=site_of(url), limit=LIMIT)]
        )
        (permit,) = taken.answers[0].permits
        found.append(permit.at - taken.now)
    return found


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        ("http://a.x.co.uk/", "https://b.X.co.uk:8443/page", True),
        ("http://x.com.br/", "http://www.x.com.br/", True),
        ("http://localhost:1/", "http://localhost:2/", True),
        ("http://127.0.0.1:1/", "http://127.0.0.1:2/", True),
        ("http://x.com.br/", "http://y.com.br/", False),
        ("http://x.co.uk/", "http://x.org.uk/", False),
        ("http://127.0.0.1/", "http://127.0.0.2/", False),
    ],
)
def test_hosts_of_one_domain_share_a_budget_and_others_do_not(
    store: Store, one: str, other: str, *, is_shared: bool
) -> None:
    """C8: a public suffix is no domain."""
    first, second = waits(store, one, other)
    assert first == 0.0
    assert second == (pytest.approx(LIMIT.window, abs=100.0) if is_shared else 0.0)
