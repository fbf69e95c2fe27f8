"""How many batches a leasing worker takes at a time: enough to work, and never all that the others could do."""

import asyncio
import errno
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.signals import spider_idle
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.worker import request_feeder
from scrapyd_dist.middlewares.worker.files import PartFile
from scrapyd_dist.middlewares.worker.lease_client import LeaseContext, Notifier, StoreLost
from scrapyd_dist.middlewares.worker.request_feeder import MOST_HELD, POLL, SOON, RequestFeeder
from scrapyd_dist.middlewares.worker.work_unit import BatchUnit

from scrapyd_dist.batches import Batch
from scrapyd_dist.frontier.backlog import SPREAD, Leased
from scrapyd_dist.payload import encode

JOB = Assignment(leases=True, crawl="c", worker=1, home="c.0", node="one", url="http://one")


class Frontier:
    """Batches of these sizes, and what a feeder sees of a worker: what is leased ends once its requests are made."""

    limit, key = "", None
    job = JOB
    hosts = 1  #: of the requests of a batch

    def __init__(self, sizes: list[int], *, unreadable: frozenset[int] = frozenset()) -> None:
        self.sizes, self.unreadable = sizes, unreadable  #: numbers of batches
        self.asked: list[int] = []
        self.taken = 0
        self.given_back: list[int] = []  #: numbers of batches
        self.held: dict[Any, Any] = {}
        self.begun: dict[Any, Any] = {}
        self.feeder: Any = None

    def leased(self, size: int, slot: str = "") -> Leased:
        self.taken += 1
        values = [{"url": f"http://web{at % self.hosts}/{self.taken}/{at}"} for at in range(size)]
        payload = {} if self.taken in self.unreadable else encode(values)
        return Leased(
            batch=Batch(number=self.taken, size=size, slot=slot), attempt=1, payload=payload
        )

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        self.asked.append(limit)
        return [self.leased(size) for size in self.sizes[self.taken : self.taken + limit]]

    async def no_more(self) -> bool:
        return True

    async def give_back(self, key: tuple[int, int], reason: str) -> bool:
        self.given_back.append(key[0])
        return True

    def enter(self, batch: Any) -> None:
        self.begun[batch.key] = batch

    def open_request(self, request: Any, batch: Any, index: int) -> Any:
        return request

    def changed(self, batch: Any) -> None:
        if not batch.todo and self.held.pop(batch.key, None):
            batch.part.close()


class NoFinds:
    """No batch leads to anything."""

    def __init__(self, salt: str) -> None:
        self.found: list[Any] = []
        self.counts: Counter[str] = Counter()

    def give_to(self, other: Any) -> bool:
        return False

    def forget_known(self) -> None: ...


def made_of(
    frontier: Any,
    folder: Path,
    notifier: Notifier | None = None,
    spider: type[Spider] = Spider,
    **settings: Any,
) -> tuple[int, list[str]]:
    """How many requests a worker makes of these batches, and why it ended early."""
    crawler = get_crawler(spider, {"CONCURRENT_REQUESTS": 16, **settings})
    crawler.spider = crawler._create_spider("any")
    why: list[str] = []

    def fail(problem: str, _: Any) -> None:
        frontier.feeder.stop()
        why.append(problem)

    finds: Any = NoFinds
    context = LeaseContext(
        crawler=crawler, job=frontier.job, client=frontier, tracker=frontier, notifier=notifier or Notifier(),
        finds=finds, fail=fail,
    )  # fmt: skip
    frontier.feeder = feeder = RequestFeeder(context, frontier, folder)

    async def drain() -> int:
        return len([request async for request in feeder.requests()])

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, drain()).result(20), why


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([100] * 40, [1]),  # 16 at one time and as many ahead fit into one batch: never two
        (
            [100] * 5 + [3] + [100] * 20,
            [1],
        ),  # a small one in between does not make it take the rest
        ([1] * 200, [1, 2, 8, 32]),  # when all are small, more and more come at one time
    ],
)
def test_a_worker_takes_no_more_than_it_can_begin(
    sizes: list[int], most: list[int], tmp_path: Path
) -> None:
    frontier = Frontier(sizes)
    assert made_of(frontier, tmp_path) == (sum(sizes), [])
    assert sorted(set(frontier.asked)) == most


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


class EndsRounds(Frontier):
    """Batches that are settled when the project's idle handlers were asked; on one of them workers have died."""

    waits_for_idle = False
    suspect = 2  #: number of that batch
    unsettled = (
        0  #: batches that this worker had besides when it made the first request of the suspect one
    )

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        leased = await super().next(1, enough)
        return [
            replace(one, attempt=2) if one.batch.number == self.suspect else one for one in leased
        ]

    def open_request(self, request: Any, batch: Any, index: int) -> Any:
        if batch.key[0] == self.suspect:
            self.unsettled = max(self.unsettled, len(self.held) - 1)
        return request

    def changed(self, batch: Any) -> None:
        if not self.waits_for_idle:
            super().changed(batch)

    def end_round(self) -> None:
        self.waits_for_idle = False
        for batch in list(self.held.values()):
            self.changed(batch)


class WithIdleHandler(Spider):
    """A spider with a handler of `spider_idle`."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.idle, spider_idle)
        crawler.engine = SimpleNamespace(_slot=None, scraper=SimpleNamespace(slot=object()))
        return spider

    def idle(self) -> None: ...


def test_a_batch_that_workers_died_on_is_made_alone_where_batches_wait_for_idle_handlers(
    tmp_path: Path,
) -> None:
    frontier = EndsRounds([3, 3, 3, 3])
    assert made_of(frontier, tmp_path, spider=WithIdleHandler) == (12, [])
    assert frontier.unsettled == 0


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
    """Notes for how long the worker would have waited."""

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


class LongBatch(Frontier):
    """One batch that lasts for so many questions for another; then three more, and the end."""

    def __init__(self, questions: int) -> None:
        super().__init__([1])
        self.left = questions

    def open_request(self, request: Any, batch: Any, index: int) -> Any:
        batch.begin(index)
        return request

    def changed(self, batch: Any) -> None:
        pass

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        if not self.taken:
            return await super().next(limit, enough)
        self.left -= 1
        if not self.left:
            for batch in self.held.values():
                batch.part.close()
            self.held.clear()
        return []

    async def no_more(self) -> bool:
        return self.left <= -3


def test_whose_last_batch_has_ended_asks_soon_again(tmp_path: Path) -> None:
    waits = Waits()
    assert made_of(LongBatch(5), tmp_path, waits) == (1, [])
    assert waits.seconds == [SOON, 2 * SOON, 4 * SOON, 8 * SOON, SOON, 2 * SOON, 4 * SOON]


class Kept(Frontier):
    """Nothing ends."""

    def open_request(self, request: Any, batch: Any, index: int) -> Any:
        batch.begin(index)
        return request

    def changed(self, batch: Any) -> None:
        pass

    def has(self) -> Counter[str]:
        """Slot -> requests that the worker has."""
        have: Counter[str] = Counter()
        for batch in self.held.values():
            have[batch.slot] += batch.requests
        return have


class Sites(Kept):
    """So many batches of each site, leased as a fair store does."""

    def __init__(self, counts: dict[str, int], size: int = 10) -> None:
        super().__init__([])
        self.left, self.size = Counter(counts), size
        self.job = replace(JOB, fair=SPREAD, batch_size=size)

    async def next(self, limit: int, enough: Collection[str] = ()) -> list[Leased]:
        self.asked.append(limit)
        has = self.has()
        order = sorted(
            (slot for slot in self.left if self.left[slot] and slot not in enough),
            key=has.__getitem__,
        )
        self.feeder._stopped = not order
        self.left.subtract(order[:limit])
        return [self.leased(self.size, slot) for slot in order[:limit]]


def taken(frontier: Kept, folder: Path, **settings: Any) -> Counter[str]:
    """What a worker has of each site when it wants nothing more."""

    class Full(Notifier):
        async def wait(self, timeout: float | None = None) -> None:
            frontier.feeder.stop()

    made, _ = made_of(frontier, folder, Full(), **settings)
    for batch in frontier.held.values():
        batch.part.discard()
    assert made == sum(frontier.has().values())
    return frontier.has()


def many(number: int) -> dict[str, int]:
    return {f"site{at}.com": 5 for at in range(number)}


def test_a_worker_takes_so_many_sites_that_its_downloader_is_busy(tmp_path: Path) -> None:
    frontier = Sites(many(200))
    has = taken(frontier, tmp_path, CONCURRENT_REQUESTS=120, CONCURRENT_REQUESTS_PER_DOMAIN=8)
    assert set(has.values()) == {10}
    assert len(has) == 30  # of each 8 can be under way: 240, twice what it makes at one time
    assert frontier.asked == [30]


@pytest.mark.parametrize(
    "why", [{"DOWNLOAD_DELAY": 1}, {"AUTOTHROTTLE_ENABLED": True}, {"DISTRIBUTED_THROTTLE": True}]
)
def test_where_sites_are_asked_one_request_at_a_time_it_takes_more_sites(
    why: dict[str, Any], tmp_path: Path
) -> None:
    has = taken(Sites(many(50)), tmp_path, CONCURRENT_REQUESTS=16, **why)
    assert len(has) == 32


def test_of_the_last_sites_it_takes_enough_and_leaves_the_rest_to_others(tmp_path: Path) -> None:
    frontier = Sites({"one.com": 100, "two.com": 100}, size=4)
    has = taken(frontier, tmp_path, CONCURRENT_REQUESTS=120, CONCURRENT_REQUESTS_PER_DOMAIN=8)
    assert has == {"one.com": 12, "two.com": 12}  # more than 8


@pytest.mark.parametrize(("delay", "hosts", "requests"), [(0, 1, 40), (1, 1, 20), (1, 20, 40)])
def test_where_a_site_has_pauses_nothing_of_it_is_kept_ahead(
    delay: float, hosts: int, requests: int, tmp_path: Path
) -> None:
    frontier = Kept([20] * 9)
    frontier.hosts = hosts
    assert taken(frontier, tmp_path, DOWNLOAD_DELAY=delay) == {"": requests}


def test_no_more_files_are_open_at_one_time_than_a_process_may_have(tmp_path: Path) -> None:
    frontier = Kept([1] * 3_000)
    has = taken(frontier, tmp_path, CONCURRENT_REQUESTS=1_000)
    assert has == {"": MOST_HELD + 1}


class GivesNothingBack(Kept):
    """The store is away when the first batch is to be given back."""

    async def give_back(self, key: tuple[int, int], reason: str) -> bool:
        await super().give_back(key, reason)
        raise StoreLost("away")


@pytest.fixture
def too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full, or the process may open no more files."""
    opened: list[str] = []

    def open_part(folder: Path, name: str, *, typed: bool) -> PartFile:
        if len(opened) > 5:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(name)
        return PartFile(folder, name, typed=typed)

    monkeypatch.setattr(request_feeder, "PartFile", open_part)


@pytest.mark.usefixtures("too_many_files")
def test_what_cannot_be_opened_is_given_back(tmp_path: Path) -> None:
    frontier = Kept([1] * 20)
    with pytest.raises(OSError, match="Too many open files"):
        made_of(frontier, tmp_path)
    for batch in frontier.held.values():
        batch.part.discard()
    numbers = {number for number, _ in frontier.held}
    assert numbers == set(range(1, 7))
    assert set(frontier.given_back) == set(range(7, frontier.taken + 1))


@pytest.mark.usefixtures("too_many_files")
def test_why_a_batch_cannot_be_opened_is_said_though_the_store_is_away(tmp_path: Path) -> None:
    frontier = GivesNothingBack([1] * 20)
    with pytest.raises(OSError, match="Too many open files"):
        made_of(frontier, tmp_path)
    for batch in frontier.held.values():
        batch.part.discard()
    assert frontier.given_back == [7], "the store was asked once"


class Refusing(BatchUnit):
    """A batch that cannot be made of these requests: the project's own code raises, at each attempt."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if any(value["url"].startswith("http://web0/3/") for value in self.values):
            raise self.error

    error: Exception = ValueError("no fingerprint")


@pytest.mark.parametrize("error", [ValueError("no fingerprint"), OSError("no fingerprint")])
def test_a_batch_that_can_never_be_opened_costs_an_attempt_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(request_feeder, "BatchUnit", Refusing)
    monkeypatch.setattr(Refusing, "error", error)
    frontier = Frontier([40] * 5)
    problems: set[str] = set()
    end = frontier.changed

    def note_problem(batch: Any) -> None:
        if batch.problem:
            problems.add(batch.problem)
        end(batch)

    monkeypatch.setattr(frontier, "changed", note_problem)
    assert made_of(frontier, tmp_path) == (160, [])
    assert problems == {f"it cannot be begun: {type(error).__name__}: no fingerprint"}
    assert frontier.given_back == []
    assert frontier.held == {}


def test_no_part_stays_of_what_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(salt: str) -> Any:
        raise RuntimeError(salt)

    monkeypatch.setattr(f"{__name__}.NoFinds", refuse)
    with pytest.raises(RuntimeError):
        made_of(Frontier([1]), tmp_path)
    assert list(tmp_path.iterdir()) == []
