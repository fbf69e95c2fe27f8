"""What is begun while Scrapy makes the engine: its results and errors reach the start, and a wrong forecast is withdrawn."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from rig.waiting import wait_for
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.crawl_start import CrawlStart
from scrapyd_dist.middlewares.producer.early_start import EarlyStart, _has_free_slot

from scrapyd_dist.errors import ConfigError, NoNodeReachable
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scrapyd.api import Load

SPEC = JobRequest(
    crawl="c",
    home="c.0",
    project="p",
    spider="s",
    version="v",
    ways=lambda _: None,  # type: ignore[arg-type, return-value]
)


class Repository:
    """A claimed row, whose store lists workers."""

    id = "c"

    def __init__(self) -> None:
        self.listed = ["c.0.w1.a1", "c.0.w2.a1"]
        self.is_closed = False
        self.thread: Any = self
        self.store = self

    async def __call__(self, verb: Any, *arguments: Any) -> None:
        verb(*arguments)

    def remove_worker(self, crawl: str, job: str) -> None:
        self.listed.remove(job)

    def close(self) -> None:
        self.is_closed = True


class Steps:
    """The steps of a start, of which one may fail; nodes that lease are none."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.repository: Any = Repository()
        options = SimpleNamespace(leases=False, limits=SimpleNamespace(wait=True))
        self.nodes: Any = SimpleNamespace(request=SimpleNamespace(options=options))

    async def open_row(self, request: Any) -> Any:
        if self.failing == "row":
            raise ConfigError("no store")
        return self.repository

    async def find_nodes(self, request: Any, repository: Any) -> Any:
        assert repository is self.repository
        if self.failing == "nodes":
            raise NoNodeReachable("no node")
        return self.nodes

    async def describe_jobs(self, nodes: Any) -> JobRequest:
        return SPEC


class HeldSteps(Steps):
    """Claims the row when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_claim = Event()
        self.done: list[str] = []

    async def open_row(self, request: Any) -> Any:
        await asyncio.to_thread(self.may_claim.wait, 20)
        self.done.append("row")
        return self.repository

    async def find_nodes(self, request: Any, repository: Any) -> Any:
        self.done.append("nodes")
        return self.nodes


class Crawler:
    """Stands for Scrapy's."""

    settings = Settings({"DISTRIBUTED_CRAWL": "c"})
    spider = None


def begun(steps: Steps) -> tuple[EarlyStart, Any]:
    crawler: Any = Crawler()
    request: Any = "request"
    EarlyStart(request, steps).begin(crawler)
    early = EarlyStart.for_crawler(crawler)
    assert early
    return early, crawler


async def test_the_start_gets_what_the_early_steps_came_to() -> None:
    steps = Steps()
    early, _ = begun(steps)
    row: Any = await early.row()
    assert row is steps.repository
    assert await early.nodes() is steps.nodes
    await early.settle(SPEC)
    assert steps.repository.listed == ["c.0.w1.a1", "c.0.w2.a1"]


async def test_an_error_is_raised_where_the_start_does_that_step() -> None:
    early, _ = begun(Steps("row"))
    with pytest.raises(ConfigError, match="no store"):
        await early.row()
    await early.withdraw()  # without a row there is nothing to withdraw
    early, _ = begun(Steps("nodes"))
    await early.row()
    with pytest.raises(NoNodeReachable):
        await early.nodes()
    await early.settle(SPEC)


@pytest.mark.parametrize(
    ("now", "stay"),
    [
        (SPEC, True),
        (replace(SPEC, ways=None), True),  # how nodes reach the store is found out by each alone
        (replace(SPEC, settings={"DISTRIBUTED_PROFILE": "none"}), False),
        (replace(SPEC, typed=True), False),
        (replace(SPEC, args={"start": "x"}), False),
    ],
)
async def test_workers_stay_that_run_as_the_crawl_wants_them(
    now: JobRequest, *, stay: bool
) -> None:
    steps = Steps()
    early, _ = begun(steps)
    await early.nodes()
    early._spec = SPEC
    early._posted = [SimpleNamespace(job=job) for job in steps.repository.listed]  # type: ignore[misc]
    await early.settle(now)
    assert bool(steps.repository.listed) is stay
    assert not steps.repository.is_closed


async def test_a_start_that_asks_for_something_else_does_all_in_its_turn() -> None:
    steps = Steps()
    early, crawler = begun(steps)
    await early.leave(crawler)
    assert steps.repository.is_closed
    assert EarlyStart.for_crawler(crawler) is None


async def test_what_is_refused_before_its_row_is_claimed_waits_for_the_early_claim() -> None:
    """A row that is claimed later would lose the message that it was refused with."""
    steps = HeldSteps()
    _, crawler = begun(steps)
    refused = asyncio.create_task(CrawlStart(crawler).refused(ConfigError("no")))
    await asyncio.wait([refused], timeout=0.1)
    assert not refused.done()
    steps.may_claim.set()
    await refused
    assert steps.done == ["row"]


def test_a_process_that_is_at_its_end_begins_nothing_more_early() -> None:
    steps = HeldSteps()
    early, _ = begun(steps)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(EarlyStart.end_all)
        wait_for(lambda: early._is_unwanted, 20, "the end")
        steps.may_claim.set()
        ended.result(20)
    assert steps.done == ["row"]


async def test_a_refusal_says_what_was_posted_before() -> None:
    steps = Steps()
    early, crawler = begun(steps)
    await early.nodes()
    early._posted = [SimpleNamespace(job=job) for job in steps.repository.listed]  # type: ignore[misc]
    told: list[str] = []

    async def refuse(*, code: int, message: str) -> None:
        told.append(f"{code}: {message}")

    steps.repository.refuse = refuse
    start = CrawlStart(crawler)
    start.repository = steps.repository
    await start.refused(ConfigError("No bucket. Nothing was started. Correct it."))
    assert told[0] == (
        "2: No bucket. No request was made; the workers that were posted before end without one."
        " Correct it."
    )
    assert steps.repository.listed == []
    await start.refused(ConfigError("No bucket. Nothing was started. Correct it."))
    assert "Nothing was started" in told[1], "none are left"


def test_it_works_while_the_loop_of_the_start_stands_still() -> None:
    steps = Steps()

    async def start() -> Any:
        early, _ = begun(steps)
        early._over.result(20)  # this thread waits, and runs no task
        return await early.nodes()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, start()).result(20) is steps.nodes


@pytest.mark.parametrize(
    ("slots", "learned", "pending", "running", "is_free"),
    [
        (None, 0, 0, 0, True),  # nothing is known but that nothing runs there
        (None, 0, 0, 1, False),
        (None, 3, 0, 2, True),
        (None, 3, 0, 3, False),
        (4, 0, 0, 3, True),
        (4, 0, 0, 4, False),
        (4, 0, 1, 2, False),  # what waits there comes first
    ],
)
def test_no_slot_is_taken_from_others_before_the_crawl_has_begun(
    slots: int | None, learned: int, pending: int, running: int, *, is_free: bool
) -> None:
    member = NodeState(node=Node(name="one", url="http://one", slots=slots))
    member.capacity.recall(learned)
    load = Load(pending=pending, running=running, finished=0, node_name="one", date=None)
    assert _has_free_slot(member, load) is is_free
    assert not _has_free_slot(member, None)
