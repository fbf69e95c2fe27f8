"""Filling a frontier: several producers at once, one that is killed, one that takes another's place; worklists."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.waiting import wait_for
from scrapy import Request
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer import filler
from scrapyd_dist.middlewares.producer import worklist_import as worklists
from scrapyd_dist.middlewares.producer.filler import FrontierWriter
from scrapyd_dist.middlewares.producer.read_ahead import STEP
from scrapyd_dist.middlewares.producer.worklist_import import (
    RowReader,
    WorklistImport,
    request_reader,
)
from scrapyd_dist.middlewares.slot_routing import SlotRouting

from scrapyd_dist.batches import Miss
from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.frontier.intake import FrontierProducer
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.worklists import rows
from scrapyd_dist.payload import decode
from scrapyd_dist.store import Store
from scrapyd_dist.store.store_thread import StoreThread

KEY = Fernet.generate_key()
MISS = Miss(url="http://web/", kind="dead", reason="none such")


@pytest.fixture
def shop(opened: Callable[[], Store]) -> Store:
    """A store without a frontier."""
    return opened()


def producer(
    store: Store, work: str = "links", process: str = "1", **fields: Any
) -> FrontierProducer:
    options: dict[str, Any] = {"frontier": "shop", "project": "p", "size": 10, "key": KEY, **fields}
    return FrontierProducer(store=store, work=work, process=process, **options)


def found(number: int) -> FrontierIntake:
    return FrontierIntake(
        value={"url": f"http://web/{number}"},
        fingerprint=str(number).encode(),
        slot=str(number % 3),
    )


def stored(store: Store) -> Counter[str]:
    """How often each address is in the frontier."""
    return Counter(
        value["url"]
        for batch in store.batches("shop")
        for value in decode(store.payload("shop", batch.number).get, key=KEY)
    )


def test_the_first_write_makes_the_frontier_and_the_producer_is_known_before(shop: Store) -> None:
    mine = producer(shop)
    mine.begin()
    assert shop.crawls() == []
    mine.keep([found(1)], {"offsite": 2}, [MISS])
    row = shop.crawl("shop")
    assert (row.kind, row.project, row.standing) == ("frontier", "p", False)
    backlog = shop.backlog("shop")
    assert (backlog.waiting, backlog.producers, backlog.finished) == (1, ("links@1",), False)
    assert shop.counts("shop") == {"offsite": 2, "sealed": 1}
    assert shop.misses("shop") == [MISS]
    producer(shop, "more").begin()  # the frontier is there: it is waited for at once
    assert set(shop.backlog("shop").producers) == {"links@1", "more@1"}
    mine.sign_off()
    assert shop.backlog("shop").producers == ("more@1",)


def test_a_producer_takes_the_place_of_a_killed_one_that_did_the_same(shop: Store) -> None:
    producer(shop, "links", "killed", seconds=0.0).keep([found(1)])
    producer(shop, "links2", "other", seconds=0.0).keep([found(2)])
    producer(shop, "links.deadbeef", "other", seconds=0.0).keep(
        [found(3)]
    )  # the same spider, told something else
    wait_for(lambda: len(shop.backlog("shop").lost) == 3)
    producer(shop, "links", "new").begin()
    backlog = shop.backlog("shop")
    assert (backlog.producers, set(backlog.lost)) == (
        ("links@new",),
        {"links2@other", "links.deadbeef@other"},
    )


def test_one_that_was_killed_on_this_machine_is_not_waited_for_until_it_is_lost(
    shop: Store,
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    producer(shop, "links", f"here.{gone.pid}").keep([found(1)])
    producer(shop, "links", f"there.{gone.pid}").keep([found(2)])
    one = producer(shop, "links", f"here.{os.getpid()}")
    one.begin()
    one.sign_off()
    assert shop.backlog("shop").producers == (f"links@there.{gone.pid}",)


def test_a_producer_says_now_and_then_that_it_is_there(shop: Store) -> None:
    time = 0.0
    mine = producer(shop, clock=lambda: time)
    mine.keep([found(1)])
    shop.register_producer("shop", mine.name, 0.0)
    wait_for(lambda: shop.backlog("shop").lost)
    mine.renew()
    assert shop.backlog("shop").lost == ("links@1",), "it is not due"
    time = 20.0
    mine.renew()
    assert shop.backlog("shop").producers == ("links@1",)


@pytest.mark.parametrize("name", ["c", "a/b", ""])
def test_the_name_of_a_crawl_or_no_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ConfigError, match=r"is the name of a crawl|cannot name a frontier"):
        producer(store, frontier=name).keep([found(1)])


def test_several_producers_at_once_lose_nothing_and_double_nothing(
    opened: Callable[[], Store],
) -> None:
    count, each = 4, 600
    barrier = Barrier(count, timeout=60)  # a thread that fails must not leave the others waiting

    def work(number: int) -> dict[str, int]:
        mine = producer(opened(), f"p{number}")
        kept: Counter[str] = Counter()
        barrier.wait()
        for start in range(0, each, 50):  # each shares two thirds of what it finds with the others
            kept.update(mine.keep([found(number * 200 + start + n) for n in range(50)]))
        mine.sign_off()
        return dict(kept)

    with ThreadPoolExecutor(count) as pool:
        counts = Counter[str]()
        for kept in pool.map(work, range(count)):
            counts.update(kept)
    store = opened()
    distinct = (count - 1) * 200 + each
    assert stored(store) == Counter({f"http://web/{n}": 1 for n in range(distinct)})
    assert (
        counts == store.counts("shop") == {"sealed": distinct, "duplicate": count * each - distinct}
    )
    assert {slot.slot for slot in store.backlog("shop").slots} == {"0", "1", "2"}


PRODUCER = """
import sys
from itertools import count
from scrapyd_dist.frontier.intake import FrontierProducer
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.store import open_store

mine = FrontierProducer(store=open_store(sys.argv[1]), frontier="shop", project="p", work="links", process="killed",
                        size=10, key=None)
for step in count():
    numbers = range(step * 25, step * 25 + 25)
    mine.keep([FrontierIntake(value={"url": f"http://web/{n}"}, fingerprint=str(n).encode()) for n in numbers])
    print(step, flush=True)
"""


def test_what_a_killed_producer_had_written_is_there_once_and_it_can_go_on(
    where: str, opened: Callable[[], Store]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, where], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process:
        told = 0
        while told < 20:
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        told = int((process.stdout.read().split() or [str(told)])[-1])
    shop = opened()
    there = stored(shop)
    assert set(there.values()) == {1}
    steps, rest = divmod(len(there), 25)
    assert rest == 0, "a step is kept as a whole"
    assert steps in {told + 1, told + 2}
    assert shop.counts("shop")["sealed"] == len(there)
    mine = producer(shop, process="new")
    mine.keep([found(n) for n in range(len(there) + 25)])
    assert shop.counts("shop") == {"sealed": len(there) + 25, "duplicate": len(there)}


# what a process has found, until the store has it


@pytest.fixture
def writer(opened: Callable[[], Store]) -> Iterator[FrontierWriter]:
    with closing(StoreThread(opened())) as thread:
        yield FrontierWriter(producer(thread.store), thread)


async def test_everything_is_written_once_in_order_with_its_account(
    shop: Store, writer: FrontierWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "PORTION", 4)
    writer.remember(map(found, range(6)), {"offsite": 2})
    writer.remember(map(found, range(6, 10)), {"offsite": 1, "local": 1}, [MISS])
    await writer.write()
    assert (writer.waiting, writer.fault) == ([], "")
    assert writer.totals == shop.counts("shop") == {"offsite": 3, "local": 1, "sealed": 10}
    assert stored(shop) == Counter(f"http://web/{n}" for n in range(10))
    assert [url[-1] for url in stored(shop) if int(url[-1]) % 3 == 0] == list("0369")
    assert shop.misses("shop") == [MISS]
    assert len(shop.batches("shop")) == 8  # three steps of at most four requests, each cut by slot


@pytest.mark.parametrize("error", [StoreError("the store is away."), ConnectionError("reset")])
async def test_what_the_store_does_not_take_is_kept_for_the_next_time(
    error: Exception, shop: Store, writer: FrontierWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: Any) -> None:
        raise error

    writer.remember(map(found, range(3)), {"offsite": 2}, [MISS])
    with monkeypatch.context() as away:
        away.setattr(FrontierProducer, "keep", keep)
        await writer.write()
    assert str(error).rstrip(".") in writer.fault
    assert (len(writer.waiting), writer.totals) == (3, {})
    await writer.write()
    assert (writer.waiting, writer.fault) == ([], "")
    assert (len(stored(shop)), shop.counts("shop")) == (3, {"sealed": 3, "offsite": 2})
    assert shop.misses("shop") == [MISS]


async def test_a_portion_of_which_the_store_refuses_a_part_is_counted_once_when_it_is_taken(
    shop: Store, writer: FrontierWriter
) -> None:
    unkeepable = replace(MISS, reason=object())  # type: ignore[arg-type]
    writer.remember(map(found, range(3)), {"offsite": 2}, [unkeepable])
    await writer.write()
    assert (writer.totals, writer.fault != "") == ({}, True)
    writer._misses = [MISS]
    await writer.write()
    assert shop.counts("shop") == {"sealed": 3, "offsite": 2}
    assert shop.misses("shop") == [MISS]


async def test_while_too_much_waits_scrapy_waits_too(
    writer: FrontierWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filler, "ROOM", 5)
    await asyncio.wait_for(writer.room.wait(), 10)
    writer.remember(map(found, range(5)), {})
    waits = asyncio.ensure_future(writer.room.wait())
    await asyncio.wait([waits], timeout=0)
    assert not waits.done()
    await writer.write()
    await asyncio.wait_for(waits, 10)


# worklists


def work(**settings: Any) -> RowReader:
    own = Settings(settings)
    slotting = SlotRouting.from_settings(own, project="p")
    return request_reader(own, slotting, key=KEY, callback="parse_page", priority=2)


LIST = b"""http://web/1
http://web/2?a=1&b=2
http://web/2?b=2&a=1#x
nope
http://web/3
"""


def test_a_worklist_is_added_and_its_bad_rows_are_told(shop: Store) -> None:
    *_, account = WorklistImport(producer=producer(shop), read=work()).fill(
        rows(LIST.splitlines(), kind="urls")
    )
    assert (account.rows, account.added, account.duplicate, account.bad) == (5, 3, 1, 1)
    assert [row.line for row in account.bad_rows] == [4]
    (batch,) = shop.batches("shop")
    assert (batch.slot, batch.priority, batch.size) == ("0", 2, 3)
    values = decode(shop.payload("shop", 1).get, key=KEY)
    assert values[0] == {"url": "http://web/1", "callback": "parse_page", "priority": 2}
    assert shop.backlog("shop").producers == ()
    *_, again = WorklistImport(producer=producer(shop), read=work()).fill(
        rows(LIST.splitlines(), kind="urls")
    )
    assert (again.added, again.duplicate) == (0, 4)


JSON_LIST = b"""{"url": "http://web/1", "priority": 7, "callback": "other"}
{"url": "http://web/2", "meta": {"frontier_slot_prefix": "q", "a": 1}, "dont_filter": true}
{"url": "http://web/2", "meta": {"frontier_slot_prefix": "q", "a": 1}, "dont_filter": true}
{"url": "http://web/3", "meta": {"distribute": {"spider": "login", "callback": "enter"}}}
{"url": "http://web/4", "meta": {"frontier_fingerprint": "1"}}
{"url": "http://web/5", "meta": {"frontier_fingerprint": "1"}}
{"url": "http://web/6", "meta": {"frontier_fingerprint": 1}}
{"url": "http://web/7", "method": "POST", "body": "secret"}
"""


def test_json_lines_say_slot_priority_and_spider_of_each(shop: Store) -> None:
    *_, account = WorklistImport(producer=producer(shop), read=work()).fill(
        rows(JSON_LIST.splitlines(), kind="jsonl")
    )
    assert (account.added, account.duplicate, [row.line for row in account.bad_rows]) == (6, 1, [7])
    places = {(batch.slot, batch.priority, batch.size) for batch in shop.batches("shop")}
    assert places == {("0", 7, 1), ("q0", 2, 2), ("@login", 2, 1), ("0", 2, 2)}
    by_slot = {
        batch.slot: decode(shop.payload("shop", batch.number).get, key=KEY)
        for batch in shop.batches("shop")
    }
    assert by_slot["@login"] == [{"url": "http://web/3", "callback": "enter", "priority": 2}]
    assert by_slot["q0"][0]["meta"] == {"a": 1}
    assert "secret" not in str(
        [shop.payload("shop", batch.number) for batch in shop.batches("shop")]
    )


def test_a_worklist_knows_pages_as_the_projects_crawls_do(shop: Store) -> None:
    own = work(REQUEST_FINGERPRINTER_CLASS=ByHost)
    *_, account = WorklistImport(producer=producer(shop), read=own).fill(
        rows(LIST.splitlines(), kind="urls")
    )
    assert (account.added, account.duplicate) == (1, 3)


class ByHost:
    """A project's own way to know pages."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.split("/")[2].encode()


def test_a_list_that_comes_slowly_is_written_as_it_comes(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklists, "MAX_AGE", 0.0)
    seen = Event()

    def lines() -> Iterator[bytes]:
        yield b"http://web/1"
        assert seen.wait(30)
        yield b"http://web/2"

    told = WorklistImport(producer=producer(shop), read=work()).fill(rows(lines(), kind="urls"))
    assert next(account for account in told if account.rows).added == 1
    assert list(stored(shop)) == ["http://web/1"]
    assert shop.backlog("shop").producers == ("links@1",)
    seen.set()
    *_, account = told
    assert account.added == 2


def test_an_import_that_is_interrupted_has_written_what_it_read(shop: Store) -> None:
    read = Event()

    def lines() -> Iterator[bytes]:
        yield from (b"http://web/%d" % n for n in range(STEP + 50))
        read.set()
        Event().wait()  # until the process ends: a terminal without a word

    told = WorklistImport(producer=producer(shop), read=work()).fill(rows(lines(), kind="urls"))
    account = next(account for account in told if account.rows)
    assert read.wait(30)
    told.close()  # as Ctrl-C does
    assert account.added == len(stored(shop)) == shop.counts("shop")["sealed"] >= STEP
    assert shop.backlog("shop").producers == ()


def test_a_list_that_cannot_be_read_leaves_nothing_behind(shop: Store) -> None:
    with pytest.raises(ConfigError, match="has no column"):
        list(
            WorklistImport(producer=producer(shop), read=work()).fill(rows([b"a,b\n"], kind="csv"))
        )
    assert shop.crawls() == []
