"""The parts of a pulling worker, each on its own: what is open, what a job was told, when no more work will come."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from rig.scheduling import run
from rig.waiting import wait_for
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.assignment import Assignment, is_producer, is_worker
from scrapyd_dist.middlewares.codec import IS_START
from scrapyd_dist.middlewares.engine_compat import spider_method
from scrapyd_dist.middlewares.worker import lease_client, lease_session
from scrapyd_dist.middlewares.worker.batch_acker import BatchAcker, LeaseReport, sweep
from scrapyd_dist.middlewares.worker.files import PartFile
from scrapyd_dist.middlewares.worker.lease_client import (
    MAY_RETURN,
    LeaseClient,
    Notifier,
    StoreLost,
)
from scrapyd_dist.middlewares.worker.lease_renewer import LeaseRenewer
from scrapyd_dist.middlewares.worker.lease_session import (
    LeasedWork,
    LeaseSession,
    OwnRequests,
    introduce,
)
from scrapyd_dist.middlewares.worker.request_tracker import use_marking_components
from scrapyd_dist.middlewares.worker.work_unit import (
    BATCH,
    BatchUnit,
    RequestLedger,
    UnitMark,
    WorkUnit,
    attempt_over,
)

from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Crawl, CrawlState, Miss
from scrapyd_dist.errors import ConfigError, NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import Backlog, Leased, SlotCount
from scrapyd_dist.joblogs.worker_report import read_report, refusal
from scrapyd_dist.keys import public_half
from scrapyd_dist.settings import uploading_feeds

JOB = Assignment(
    leases=True, lease=60.0, crawl="c", worker=3, home="c.0", node="one", url="http://one"
)
ORDER = {"crawl": "c", "worker": 3, "home": "c.0", "node": "one"}


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[Callable[[int], BatchUnit]]:
    """`leased(3)`: batch 7, attempt 2, of so many requests."""
    made: list[BatchUnit] = []

    def make(size: int) -> BatchUnit:
        values = [{"url": f"http://web/{n}"} for n in range(size)]
        made.append(BatchUnit(7, 2, values, PartFile(tmp_path, f"c.b7.a2-{len(made)}")))
        return made[-1]

    yield make
    for batch in made:
        batch.discard_part()


# what is open


def test_a_batch_is_over_when_all_its_requests_and_items_have_ended(
    leased: Callable[[int], BatchUnit],
) -> None:
    batch = leased(1)
    assert not batch.over
    first = batch.begin(batch.todo.popleft())
    assert first == UnitMark(7, 2, position=0, serial=0, source=0)
    batch.item_in()
    batch.end(first)
    assert (batch.requests, batch.over) == (0, False)
    batch.item_out()
    assert batch.over


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "end", "again", "in", "out"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_nothing_is_counted_twice(steps: list[tuple[str, int]]) -> None:
    pages = WorkUnit(0, 1, None, RequestLedger([]))
    marks: list[UnitMark] = []
    open_: set[UnitMark] = set()
    items = 0
    for what, which in steps:
        mark = marks[which % len(marks)] if marks else None
        if what == "begin":
            marks.append(pages.begin())
            open_.add(marks[-1])
        elif what == "end" and mark:
            pages.end(mark)
            open_.discard(mark)
        elif what == "again" and mark:
            pages.begin_again(mark)
            open_.add(mark)
        elif what == "in":
            pages.item_in()
            items += 1
        elif what == "out":
            pages.item_out()
            items = max(0, items - 1)
    assert pages.requests == len(open_)
    assert pages.over is (not open_ and not items)


def test_own_pages_are_not_over_while_more_are_made_and_keep_the_first_failure() -> None:
    pages = WorkUnit(0, 1, None, RequestLedger([]))
    pages.making = True
    assert not pages.over
    pages.making = False
    assert pages.over
    pages.ledger.missed(None, "failed", "HTTP 500")
    pages.ledger.missed(None, "gone", "HTTP 404")
    assert pages.ledger.failed == "HTTP 500"


# what it reports


def test_the_report_of_an_attempt_is_one_that_a_coordinator_accepts(
    leased: Callable[[int], BatchUnit],
) -> None:
    batch, report = leased(2), LeaseReport(JOB)
    for index in (0, 1):
        batch.todo.popleft()
        mark = batch.begin(index)
        batch.item({"n": index}, mark)
        batch.ledger.done(mark.position)
    part = batch.close_part()
    stats = {"downloader/response_status_count/200": 2, "retry/count": 1, "item_scraped_count": 2}
    told = read_report(json.dumps(report.batch_report(batch, part, "finished", stats)).encode())
    assert told.stats == {"downloader/response_status_count/200": 2, "retry/count": 1}
    assert refusal(told, 2, feed=False) == ""
    assert (told.requests, told.done, told.items) == (2, 2, 2)
    early = read_report(
        json.dumps(
            report.batch_report(batch, part, "shutdown", {**stats, "retry/count": 4})
        ).encode()
    )
    assert early.stats == {"retry/count": 3}, "what the report before has told counts once"
    assert refusal(early, 2, feed=False) == "the worker ended early (shutdown)"


def test_totals_are_of_what_was_acked_and_what_is_held(leased: Callable[[int], BatchUnit]) -> None:
    report = LeaseReport(JOB)
    acked, lost, held = (leased(size) for size in (2, 3, 4))
    acked.ledger.done(0)
    report.note_outcome(acked, "acked")
    report.note_outcome(lost, "lost")
    told = read_report(json.dumps(report.progress([held])).encode())
    assert (told.ended, told.requests, told.done) == (False, 6, 1)
    final = report.final("finished", "", "", {"a": 1, "b": object()})
    assert (final["batches"], final["stats"]) == ({"acked": 1, "lost": 1, "held": 0}, {"a": 1})


# what it was told


def test_what_a_job_was_told_is_read_and_what_is_not_known_is_left() -> None:
    order = {**ORDER, "slots": ["@login", "p0"], "lease": 60.0, "store_sealed": "x", "newer": 1}
    settings = Settings({"DISTRIBUTED_PULL": json.dumps(order)})
    job = Assignment.from_settings(settings)
    assert job is not None
    assert (job.name, job.slots, job.other_slot) == ("c.0.w3.a1", ["@login", "p0"], "@login")
    assert (job.store_sealed, job.lease, job.ahead) == ("x", 60.0, 1)
    assert (is_worker(settings), is_producer(settings)) == (True, False)


def test_feeds_that_are_uploaded_at_the_end_are_known() -> None:
    assert uploading_feeds(Settings()) == []
    names = ["items.jl", "s3://key:secret@bucket/x.jl", "file:///tmp/x", "stdout:", "ftp://host/y"]
    assert uploading_feeds(Settings({"FEEDS": {name: {} for name in names}})) == [
        "s3://bucket/x.jl",
        "ftp://host/y",
    ]


class Plain(Spider):
    name = "plain"
    price = 3

    def log_in(self) -> None: ...


@pytest.mark.parametrize("name", ["log_inn", "price"])
def test_a_method_that_is_named_has_to_be_one(name: str) -> None:
    crawler = get_crawler(Plain, {"A": "log_in", "B": name, "C": ""})
    crawler.spider = Plain.from_crawler(crawler)
    assert spider_method(crawler.spider, crawler.settings, "A") == crawler.spider.log_in
    assert spider_method(crawler.spider, crawler.settings, "C") is None
    with pytest.raises(ConfigError, match=f"B names '{name}', and the spider plain has no method"):
        spider_method(crawler.spider, crawler.settings, "B")


# news


def test_each_attempt_has_a_filter_of_its_own_for_as_long_as_it_lives() -> None:
    settings = Settings()
    use_marking_components(settings)
    use_marking_components(settings)  # the add-on may be named, and the middleware as well
    crawler = get_crawler(Plain, dict(settings.items()))
    crawler.spider = Plain.from_crawler(crawler)
    crawler._apply_settings()
    seen = build_from_crawler(load_object(settings["DUPEFILTER_CLASS"]), crawler)

    def of(batch: int) -> Request:
        return Request("http://web/", meta={BATCH: UnitMark(batch, 1, 0, 0)})

    asked = [of(1), of(1), of(2), Request("http://web/"), Request("http://web/")]
    assert [seen.request_seen(request) for request in asked] == [False, True, False, False, True]
    crawler.signals.send_catch_log(attempt_over, key=(1, 1))
    assert [seen.request_seen(request) for request in (of(1), of(2))] == [False, True]
    seen.close("finished")
    assert settings["JOBDIR"] is None


async def test_news_wakes_all_that_wait_and_none_that_wait_later() -> None:
    news = Notifier()
    waiting = [asyncio.ensure_future(news.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    news.wake()
    news.wake()
    await asyncio.gather(*waiting)
    late = asyncio.ensure_future(news.wait())
    await asyncio.sleep(0)
    assert [one.done() for one in (*waiting, late)] == [True, True, False]
    late.cancel()


# the store


class FakeStore:
    """A store that answers what it was told to, in order; what is an exception is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self._answers = answers

    def __getattr__(self, verb: str) -> Any:
        def answer(*_: Any, **__: Any) -> Any:
            said = self._answers[verb].pop(0)
            if isinstance(said, Exception):
                raise said
            return said

        return answer

    def close(self) -> None: ...


def leasing(
    job: Assignment = JOB, kind: type[FakeStore] = FakeStore, **answers: list[Any]
) -> LeaseClient:
    store: Any = kind(**answers)
    renewer = LeaseRenewer(
        store, crawl="c", holder=job.name, seconds=job.lease, lost=lambda *_: None
    )  # never started
    return LeaseClient(job, store, renewer, None)


WAITS, OUT = (
    {"slots": [SlotCount(slot="p0", batches={state: 1})]} for state in ("sealed", "running")
)


@pytest.mark.parametrize(
    ("backlog", "slots", "over"),
    [({}, (), True), ({"producers": ("p",)}, (), False), ({"standing": True}, (), False), (OUT, (), False),
     (OUT, ("p0",), True), (WAITS, ("p0",), True), ({"lost": ("p",)}, (), True), ({**OUT, "expired": 1}, (), False),
     ({**OUT, "acked": 1}, (), False), ({**OUT, "acked": 1}, ("p0",), True)],
)  # fmt: skip
async def test_whether_more_will_come(
    backlog: dict[str, Any], slots: tuple[str, ...], *, over: bool
) -> None:
    assert (
        await leasing(replace(JOB, slots=slots), backlog=[Backlog(**backlog)]).no_more()
    ) is over


def test_what_may_return_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Backlog(slots=OUT["slots"], expired=1)
    asked, now = leasing(backlog=[told, told, told]), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for seconds, over in ((0.0, False), (MAY_RETURN - 1, False), (2.0, True)):
        now[0] += seconds
        assert run(asked.no_more()) is over


ACKED = Attempt(
    batch=7, number=2, job="c.b7.a2", node="one", url="http://one", state=AttemptState.ACKED
)
DONE = Batch(number=7, size=1, state=BatchState.DONE, attempts=2)


@pytest.mark.parametrize(
    ("acked", "row", "was"),
    [
        ([], replace(DONE, state=BatchState.FAILED), False),
        ([], replace(DONE, attempts=3), False),
        ([ACKED], replace(DONE, state=BatchState.RUNNING), True),
        ([], DONE, True),
    ],
)
async def test_an_ack_whose_answer_was_lost_was_an_ack(
    acked: list[Attempt], row: Batch, *, was: bool
) -> None:
    """The store has kept it, and the second time it says no."""
    asked = leasing(ack=[StepRefused("over")], attempts=[acked], batch=[row])
    assert ((await asked.ack((7, 2), {}, [], {})) is not None) is was


async def test_a_store_that_has_forgotten_the_crawl_is_lost_at_once() -> None:
    with pytest.raises(StoreLost, match="no crawl"):
        await leasing(lease_next=[NothingMatched("no crawl c")]).next(1)


@pytest.mark.parametrize(("lease", "lost"), [(300.0, False), (60.0, True)])
def test_three_minutes_without_a_store_are_waited_for_by_the_worker_with_the_longer_lease(
    monkeypatch: pytest.MonkeyPatch, *, lease: float, lost: bool
) -> None:
    now = [1000.0]

    class Away(FakeStore):
        """Answers three minutes later; each question is ten seconds on the way."""

        def lease_next(self, *_: Any, **__: Any) -> list[Leased]:
            now[0] += 10
            if now[0] < 1180:
                raise StoreError("away")
            return []

    monkeypatch.setattr(lease_client, "STORE_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked = leasing(replace(JOB, lease=lease), Away)
    if lost:
        with pytest.raises(StoreLost, match="away"):
            run(asked.next(1))
        assert now[0] < 1180
    else:
        assert run(asked.next(1)) == []


@pytest.mark.parametrize(
    ("order", "wished", "limit"),
    [
        ({}, 1000, ""),
        ({"max_batches": 5}, 3, ""),
        ({"max_batches": 2}, 0, "2 batches"),
        ({"max_requests": 8}, 1, "8 requests"),
    ],
)
async def test_no_more_is_leased_than_the_limits_allow(
    order: dict[str, Any], wished: int, limit: str
) -> None:
    two = [Leased(batch=Batch(number=n, size=4), attempt=1, payload={}) for n in (1, 2)]
    asked = leasing(replace(JOB, **order), lease_next=[two])
    await asked.next(9)
    assert (asked.batches, asked.requests, asked.limit) == (2, 8, limit)
    assert asked._count_left() == wished


# the parts on its node


def test_only_parts_of_batches_that_are_done_go(tmp_path: Path) -> None:
    done = {"shop.b1.a1.jl", "shop.b1.a2.jl"}
    kept = {
        "shop.b1.a3.jl", "shop.b2.a1.jl", "shop.b3.a1.jl", "shop.b9.a1.jl", "shop.b1.a2.jl.part", "shop.w1.a1.json",
        "shop-2.b1.a1.jl", "shop.b1.jl", "shop.b1.a1.more.jl",
    }  # fmt: skip
    for name in done | kept:
        (tmp_path / name).touch()

    states = {1: BatchState.DONE, 2: BatchState.RUNNING, 3: BatchState.DEAD}

    async def batch(number: int) -> Batch | None:
        return (
            Batch(number=number, size=1, state=states[number], attempts=2)
            if number in states
            else None
        )

    assert run(sweep(tmp_path, "shop", batch)) == 2
    assert {path.name for path in tmp_path.iterdir()} == kept
    assert run(sweep(tmp_path / "none", "shop", batch)) == 0


# what a worker of another project says first

KEY = Fernet.generate_key()


class Hiding(Spider):
    name = "hiding"
    custom_settings = {"ADDONS": {}}  # noqa: RUF012 - as spiders write it


class Naming(Hiding):
    custom_settings = {"ADDONS": {"scrapyd_dist.Addon": 500}}  # noqa: RUF012 - as spiders write it


def said(
    spider: type[Spider] = Plain,
    *,
    key: bytes | None = KEY,
    uploads: tuple[str, ...] = (),
    **fields: Any,
) -> tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_session, "egg_key", lambda: key)
        return introduce(get_crawler(spider), replace(JOB, introduce=True, **fields), uploads)


@pytest.mark.parametrize("spider", [Plain, Naming])
def test_code_that_can_work_gives_its_public_half(spider: type[Spider]) -> None:
    assert said(spider) == (public_half(KEY), "")


def test_what_stands_in_the_way_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'add "scrapyd_dist.Addon": 500' in said(Hiding)[1]
    assert said(uploads=("ftp://host/items.jl",))[1].startswith(
        "its setting FEEDS has ftp://host/items.jl, "
    )
    public, why = said(key=None)
    assert (public, "sdist deploy --all" in why) == ("", True)
    monkeypatch.setattr(lease_session, "find_spec", lambda name: None)
    assert said()[1] == ""
    why = said(needs_client=True)[1]
    assert why.startswith("this crawl's store is a Redis server, and neither its code nor the node")
    assert why.endswith("deploy again, or install the package redis on the node")
    why = said(needs_client=True, client="later")[1]
    assert why.startswith("this crawl's store is of a kind that this code does not know, and")
    assert why.endswith("or install the package later on the node")


@pytest.mark.parametrize("answer", [StoreLost("away"), None])
def test_a_part_stays_unless_the_store_says_that_it_counts_for_nothing(
    leased: Callable[[int], BatchUnit], answer: StoreLost | None
) -> None:
    """Where no answer to an ack comes, the store may have taken it all the same."""
    batch = leased(1)
    batch.finds = Mock(take_misses=list, take_counts=dict, found=[])
    batch.end(batch.begin(batch.todo.popleft()))
    client = Mock(
        missed=AsyncMock(),
        ack=AsyncMock(side_effect=[answer]),
        unclaimed=AsyncMock(return_value=()),
    )
    crawler = Mock(stats=Mock(get_stats=dict))
    acker = BatchAcker(Mock(client=client, crawler=crawler), LeaseReport(JOB))
    acker.held[batch.key] = batch
    run(acker.finish("finished"))
    assert not acker.held
    assert batch.part is not None
    assert batch.part.path.exists() is (answer is not None)


def test_a_batch_that_ends_by_itself_while_its_worker_ends_is_acked_once(
    leased: Callable[[int], BatchUnit],
) -> None:
    """It ends while the worker waits for the ack of another one."""
    batches = [leased(1), leased(1)]
    batches[1].key = (8, 1)
    for batch in batches:
        batch.finds = Mock(take_misses=list, take_counts=dict, found=[])
        batch.end(batch.begin(batch.todo.popleft()))
    acked: list[tuple[int, int]] = []

    async def ack(key: tuple[int, int], *_: object) -> dict[str, int]:
        acked.append(key)
        if key == batches[0].key:
            acker.changed(batches[1])
        for _turn in range(5):
            await asyncio.sleep(0)
        return {}

    client = Mock(missed=AsyncMock(), ack=ack, unclaimed=AsyncMock(return_value=()))
    crawler = Mock(stats=Mock(get_stats=dict))
    crawler.engine.scraper.slot = None
    report = LeaseReport(JOB)
    acker = BatchAcker(Mock(client=client, crawler=crawler), report)
    acker.held.update({batch.key: batch for batch in batches})
    run(acker.finish("shutdown"))
    assert acked == [(7, 2), (8, 1)]
    assert report.trouble == ""
    assert not acker.held
    assert all(batch.part is not None and batch.part.path.exists() for batch in batches)


async def acked_after_a_refusal(
    refused: BatchUnit, taken: BatchUnit, report: LeaseReport
) -> list[dict[str, int]]:
    """The statistics in the reports of two batches, the first of which the store refuses."""
    reports: list[dict[str, int]] = []

    async def ack(_: object, told: dict[str, Any], *__: object) -> dict[str, int] | None:
        reports.append(told["stats"])
        return None if len(reports) == 1 else {}

    stats = {"downloader/request_count": 5}
    client = Mock(missed=AsyncMock(), ack=ack)
    acker = BatchAcker(
        Mock(client=client, crawler=Mock(stats=Mock(get_stats=lambda: stats))), report
    )
    for batch in (refused, taken):
        batch.finds = Mock(take_misses=list, take_counts=dict, found=[])
        await acker._end(batch, "finished")
        stats = {"downloader/request_count": 7}
    return reports


def test_what_the_sites_answered_is_told_again_where_the_store_has_refused_the_report(
    leased: Callable[[int], BatchUnit],
) -> None:
    reports = run(acked_after_a_refusal(leased(1), leased(1), LeaseReport(JOB)))
    assert reports == [{"downloader/request_count": 5}, {"downloader/request_count": 7}]


@pytest.mark.parametrize(("problem", "urls"), [("", ["page", "idle"]), ("unread", ["idle"])])
def test_of_a_batch_that_is_made_again_only_the_misses_are_stored_that_its_requests_did_not_lead_to(
    leased: Callable[[int], BatchUnit], problem: str, urls: list[str]
) -> None:
    batch = leased(1)
    misses = [Miss(url=url, kind="dead", reason="no such spider") for url in ("page", "idle")]
    batch.finds = Mock(
        take_misses=lambda: misses,
        take_misses_of_no_page=lambda: misses[1:],
        take_counts=dict,
        found=[],
    )
    batch.problem = problem
    client = Mock(missed=AsyncMock(), ack=AsyncMock(return_value={}))
    acker = BatchAcker(
        Mock(client=client, crawler=Mock(stats=Mock(get_stats=dict))), LeaseReport(JOB)
    )
    run(acker._end(batch, "finished"))
    stored = client.missed.await_args_list[0].args[0]
    assert [(miss.url, miss.batch) for miss in stored] == [(url, 7) for url in urls]


class Member(Spider):
    """Has a start of its own, and a login."""

    name = "member"

    async def start(self) -> AsyncIterator[Any]:
        yield Request("http://web/start")

    def log_in(self) -> Request:
        return Request("http://web/login")


def test_in_a_worker_too_only_the_spiders_own_start_requests_are_start_requests() -> None:
    """Scrapy marks those that it gets from the start itself."""
    crawler: Any = get_crawler(Member, {"DISTRIBUTED_LOGIN": "log_in"})
    crawler.spider = Member()
    crawler.engine = Mock()
    tracker = Mock(open_request=lambda request, unit: request)
    context: Any = Mock(
        crawler=crawler, tracker=tracker, strategy=True, job=replace(JOB, start="first")
    )
    work = LeasedWork.__new__(LeasedWork)
    work.context = context
    work._own_requests = OwnRequests(context)
    assert run(work.begin(crawler.spider.start()))
    made = [call.args[0] for call in crawler.engine.crawl.call_args_list]
    assert [(request.url, request.meta) for request in made] == [
        ("http://web/start", {IS_START: True}),
        ("http://web/login", {}),
    ]


class Watched:
    """A lock that tells when another thread than the main one asks for it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_batch_counts_once_in_a_report_that_is_made_while_it_is_parted_from(
    leased: Callable[[int], BatchUnit], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = leased(1)
    batch.ledger.done(0)
    report = LeaseReport(JOB)
    acker = BatchAcker(Mock(), report)
    acker.held[batch.key] = batch
    lock = Watched()
    monkeypatch.setattr(acker, "_parting", lock, raising=False)
    session = LeaseSession.__new__(LeaseSession)
    session._report = report
    session._work = Mock(acker=acker)
    session._crawler = Mock()
    told: list[dict[str, Any]] = []
    reporter = threading.Thread(target=lambda: told.append(session.progress()))
    note = report.note_outcome

    def note_and_report(ended: BatchUnit, outcome: str) -> None:
        note(ended, outcome)
        reporter.start()
        wait_for(lambda: lock.asked.is_set() or not reporter.is_alive())

    monkeypatch.setattr(report, "note_outcome", note_and_report)
    acker._part_from(batch, "acked")
    reporter.join()
    assert (told[0]["done"], told[0]["batches"]) == (1, {"acked": 1, "held": 0})


@pytest.mark.parametrize("work", [None, Mock(**{"acker.progress.return_value": {}})])
def test_a_report_says_whether_its_worker_closes(work: Mock | None) -> None:
    session = LeaseSession.__new__(LeaseSession)
    session._report = LeaseReport(JOB)
    session._work = work
    session._crawler = Mock()
    session._crawler.engine._slot.closing = None
    assert session.progress()["closing"] is False
    session._crawler.engine._slot.closing = Mock()  # as Scrapy has it from the signal on
    assert session.progress()["closing"] is True


class Rows:
    """A store that answers with these states of the crawl, one after the other."""

    def __init__(self, *states: CrawlState, listed: bool = True, producer: bool = True) -> None:
        self.states = list(states)
        self._listed = listed
        self._producer = producer

    async def crawl(self) -> Crawl:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return Crawl(id="c", project="p", spider="s", created=0, state=state)

    async def no_more(self) -> bool:
        return not self._producer

    async def is_listed(self) -> bool:
        return self._listed


STARTING = CrawlState.STARTING


@pytest.mark.parametrize(
    ("rows", "begins"),
    [
        (Rows(CrawlState.FINDING), True),
        (Rows(STARTING, STARTING, CrawlState.FINDING), True),
        (Rows(STARTING, CrawlState.WORKING), True),
        (Rows(STARTING, STARTING, CrawlState.REFUSED), False),
        (Rows(CrawlState.REFUSED), False),
        (Rows(STARTING, CrawlState.STOPPED), False),
        (Rows(STARTING, CrawlState.FINDING, listed=False), False),  # it has other settings now
        (Rows(STARTING, producer=False), False),  # its process has died
    ],
)
def test_an_early_worker_begins_with_its_crawl_or_not_at_all(
    rows: Any, monkeypatch: pytest.MonkeyPatch, *, begins: bool
) -> None:
    monkeypatch.setattr(lease_session, "BEGUN_EVERY", 0)

    async def begin() -> Crawl:
        return await lease_session._wait_for_begin(rows, await rows.crawl())

    if begins:
        assert run(begin()).state in {CrawlState.FINDING, CrawlState.WORKING}
    else:
        with pytest.raises(lease_client.Withdrawn):
            run(begin())
