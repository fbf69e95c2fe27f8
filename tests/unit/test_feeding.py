"""How many batches a pulling worker takes at a time: enough to work, and never all that the others could do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.pull.feeding import Feeder
from scrapyd_dist.middlewares.pull.job import PullJob
from scrapyd_dist.middlewares.pull.news import News

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.values import Leased
from scrapyd_dist.payload import encode

if TYPE_CHECKING:
    from pathlib import Path

JOB = PullJob(crawl="c", worker=1, home="c.0", node="one", url="http://one")


class Frontier:
    """Batches of these sizes; what is leased ends as soon as its requests are made."""

    limit = ""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.asked, self.taken = sizes, [], 0  # type: ignore[var-annotated]  # of batches
        self.held: dict[Any, Any] = {}
        self.begun: dict[Any, Any] = {}

    async def next(self, limit: int) -> list[Leased]:
        self.asked.append(limit)
        sizes = self.sizes[self.taken : self.taken + limit]
        first = self.taken + 1
        self.taken += len(sizes)
        return [
            Leased(
                batch=Batch(number=number, size=size),
                attempt=1,
                payload=encode([{"url": f"http://web/{number}/{n}"} for n in range(size)]),
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
        if not batch.todo:
            self.held.pop(batch.key, None)
            batch.part.close()


async def drain(feeder: Feeder) -> int:
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
    crawler = get_crawler(Spider, {"CONCURRENT_REQUESTS": 16})
    crawler.spider = crawler._create_spider("any")
    parts: Any = SimpleNamespace(leasing=frontier, carrier=frontier, settling=frontier)
    feeder = Feeder(
        crawler, JOB, tmp_path, leasing=parts.leasing, carrier=parts.carrier, settling=parts.settling, news=News(),
        finds=lambda salt: None, broken=print,  # type: ignore[arg-type, return-value]  # nothing is found
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, drain(feeder)).result(20) == sum(sizes)
    assert sorted(set(frontier.asked)) == most
