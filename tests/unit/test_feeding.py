"""How many batches a pulling worker takes at a time: enough to work, and never all that the others could do."""

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.worker.lease_client import Notifier
from scrapyd_dist.middlewares.worker.request_feeder import POLL, SOON, RequestFeeder

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.backlog import Leased
from scrapyd_dist.payload import encode

JOB = Assignment(leases=True, crawl="c", worker=1, home="c.0", node="one", url="http://one")


class Frontier:
    """Batches of these sizes; what is leased ends as soon as its requests are made."""

    limit = ""

    def __init__(self, sizes: list[int], *, unreadable: frozenset[int] = frozenset()) -> None:
        self.unreadable = unreadable  #: numbers of batches
        self.sizes, self.asked, self.taken = sizes, [], 0  # type: ignore[var-annotated]  # of batches
        self.held: dict[Any, Any] = {}
        self.begun: dict[Any, Any] = {}

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        self.asked.append(limit)
        sizes = self.sizes[self.taken : self.taken + limit]
        first = self.taken + 1
        self.taken += len(sizes)
        return [
            Leased(
                batch=Batch(number=number, size=size),
                attempt=1,
                payload=encode([{"url": f"http://web/{number}/{n}"} for n in range(size)])
                if number not in self.unreadable
                else {},
            )
            for number, size in enumerate(sizes, first)
        ]

    async def no_more(self) -> bool:
        return True

    def enter(self, batch: Any) -> None:
        self.begun[batch.key] = batch

    def watched(self, request: Any, batch: Any, index: int) -> Any:
        return request

    def changed(self, batch: Any) -> None:
        if not batch.todo and self.held.pop(batch.key, None):
            batch.part.close()


async def drain(feeder: RequestFeeder) -> int:
    return len([request async for request in feeder.requests()])


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([100] * 40, [1]),  # 16 at one time and as many ahead fit into one batch: never two
        ([100] * 5 + [3] + [100] * 20, [1]),  # a small one in between does not make it take the rest
        ([1] * 200, [1, 2, 8, 32]),  # when all are small, more and more come at one time
    ],
)
def test_a_worker_takes_no_more_than_it_can_begin(sizes: list[int], most: list[int], tmp_path: Path) -> None:
    frontier = Frontier(sizes)
    assert made_of(frontier, tmp_path) == (sum(sizes), [])
    assert sorted(set(frontier.asked)) == most


def made_of(frontier: Frontier, folder: Path, news: Notifier | None = None) -> tuple[int, list[str]]:
    """How many requests a worker makes of these batches, and why it ended early."""
    crawler = get_crawler(Spider, {"CONCURRENT_REQUESTS": 16})
    crawler.spider = crawler._create_spider("any")
    parts: Any = SimpleNamespace(lease_client=frontier, tracker=frontier, acker=frontier)
    why: list[str] = []
    feeder = RequestFeeder(
        crawler, JOB, folder, key=None, lease_client=parts.lease_client, tracker=parts.tracker, acker=parts.acker,
        notifier=news or Notifier(),
        finds=lambda salt: None, broken=lambda problem: _end(feeder, why, problem),  # type: ignore[arg-type, return-value]  # nothing is found
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, drain(feeder)).result(20), why


def _end(feeder: RequestFeeder, why: list[str], problem: str) -> None:
    feeder.stopped = True
    why.append(problem)


def test_a_batch_that_cannot_be_read_costs_nothing_else(tmp_path: Path) -> None:
    assert made_of(Frontier([40] * 9, unreadable=frozenset({1, 3, 5, 7})), tmp_path) == (200, [])


def test_a_worker_that_can_read_none_ends(tmp_path: Path) -> None:
    frontier = Frontier([40] * 9, unreadable=frozenset(range(10)))
    made, (why,) = made_of(frontier, tmp_path)
    assert (made, frontier.taken, "Batch 3 cannot be crawled" in why) == (0, 3, True)


def test_a_thousand_requests_cost_two_calls_of_the_store_at_most(tmp_path: Path) -> None:
    frontier = Frontier([1_000] * 5)
    assert made_of(frontier, tmp_path) == (5_000, [])
    assert len(frontier.asked) <= 2 * 5


class Late(Frontier):
    """What comes late: nothing for so many questions, then a batch, then nothing for as many, then the end."""

    def __init__(self, questions: int) -> None:
        super().__init__([1])
        self.questions = self.left = questions

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        self.left -= 1
        if self.left >= 0 or self.taken:
            return []
        self.left = self.questions
        return await super().next(limit, enough)

    async def no_more(self) -> bool:
        return bool(self.taken) and self.left <= 0


class Waits(Notifier):
    """Notes for how long somebody would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    async def wait(self, timeout: float | None = None) -> None:
        self.seconds.append(timeout)


def test_who_waits_for_work_asks_again_soon_at_first_and_then_less_often(tmp_path: Path) -> None:
    waits = Waits()
    assert made_of(Late(6), tmp_path, waits) == (1, [])
    longer = [SOON, 2 * SOON, 4 * SOON, 8 * SOON, POLL, POLL]
    assert waits.seconds == [*longer, *longer[:5]]
    assert sum(longer[:3]) < POLL
