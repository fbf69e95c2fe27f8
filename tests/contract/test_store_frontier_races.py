"""A frontier with many hands in it: no request twice or lost, no batch with two workers; counts that no step upsets."""

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig.stores import CRAWL, LESSEE, add, answers_of, at_once, lease, lease_next, new_batch, ready

from scrapyd_dist.batches import OUT, WAITING, AttemptState, Miss
from scrapyd_dist.errors import DistError
from scrapyd_dist.frontier.backlog import Lessee, NewBatch, SeenBefore
from scrapyd_dist.store import Store, open_store


def add_what_is_new(store: Store, prints: Sequence[str]) -> None:
    """As a producer does it: what is there already is dropped, and the rest is tried again."""
    left = list(prints)
    while left:
        try:
            add(store, *left)
        except SeenBefore as known:
            left = [one for one in left if one.encode() not in known.prints]
        else:
            return


def test_several_producers_on_one_slot_lose_nothing_and_double_nothing(
    store: Store, opened: Callable[[], Store]
) -> None:
    def producer(first: int) -> Callable[[Store], None]:
        def produce(own: Store) -> None:
            for start in range(first, first + 200, 10):
                add_what_is_new(own, [str(number) for number in range(start, start + 15)])

        return produce

    at_once(opened, [producer(first) for first in (0, 0, 50, 101)])
    kept = Counter(
        itertools.chain.from_iterable(
            store.payload("c", b.number)["A"].split(",") for b in store.batches("c")
        )
    )
    assert kept == {str(number): 1 for number in range(306)}
    assert (
        sum(slot.waiting for slot in store.backlog("c").slots)
        == len(set(store.fingerprints("c")))
        == 306
    )


def test_two_workers_never_have_the_same_batch(store: Store, opened: Callable[[], Store]) -> None:
    for number in range(80):
        add(store, slot=str(number % 3), priority=number % 2)
    had: list[tuple[int, int]] = []

    def worker(name: int) -> Callable[[Store], None]:
        def work(own: Store) -> None:
            me = Lessee(job=f"c.w{name}.a1", node="one", url="u")
            while some := lease_next(own, "c", me, limit=1 + name % 2):
                for one in some:
                    had.append((one.batch.number, one.attempt))
                    if one.batch.number % 4 == 0 and one.batch.attempts == 1:
                        own.fail("c", one.batch.number, 1, reason="", now=1.0, max_attempts=3)
                    else:
                        own.ack("c", one.batch.number, one.attempt, me.job, report={}, now=1.0)

        return work

    at_once(opened, [worker(name) for name in range(4)])
    assert Counter(had) == dict.fromkeys(
        [*((n, 1) for n in range(1, 81)), *((n, 2) for n in range(4, 81, 4))], 1
    )
    assert store.backlog("c").acked == 80


WORKER = """
import json, sys
from scrapyd_dist.frontier.backlog import LeaseRequest, Lessee, NewBatch, SeenBefore
from scrapyd_dist.store import open_store
store, me = open_store(sys.argv[1]), Lessee(job=sys.argv[2], node="one", url="u")
print("ready", flush=True)
sys.stdin.readline()
had = []
while not store.backlog("c").drained:
    for leased in store.lease_next(LeaseRequest(crawl="c", lessee=me, seconds=60.0, now=1.0)):
        number = leased.batch.number
        had.append(number)
        prints = [b"%d" % n for n in (number * 2, number * 2 + 1) if n < 300]
        while True:
            new = [NewBatch(payload={}, size=1, fingerprints=(one,)) for one in prints]
            try:
                store.ack("c", number, leased.attempt, me.job, report={}, new=new, now=1.0)
            except SeenBefore as known:
                prints = [one for one in prints if one not in known.prints]
            else:
                break
print(json.dumps(had))
"""


@pytest.mark.black_box
def test_workers_that_add_what_they_find_end_when_all_of_them_have(
    where: str, store: Store
) -> None:
    add(store, "1")
    answers = answers_of([ready(WORKER, where, f"c.w{name}.a1") for name in range(3)])
    had = list(itertools.chain.from_iterable(json.loads(told) for told in answers))
    assert sorted(had) == list(range(1, 300))
    assert set(store.fingerprints("c")) == {b"%d" % number for number in range(1, 300)}
    assert store.backlog("c").acked == 299


def step(store: Store, kind: int, number: int) -> None:
    """One step of some kind, on some batch; most of them are refused, as they should be."""
    me = LESSEE.job
    last = next((batch.attempts for batch in store.batches("c") if batch.number == number), 1)
    slot, priority = "xy@"[kind % 3], kind % 2
    missed = Miss(url="u", kind="failed", reason="", batch=number)
    verbs: list[Callable[[], Any]] = [
        lambda: add(store, f"{kind}.{number}", slot=slot, priority=priority),
        lambda: lease_next(store, "c", LESSEE, limit=1 + number % 3),
        lambda: lease_next(store, "c", LESSEE, slots=["@", "x"], seconds=-1.0),
        lambda: store.ack(
            "c", number, last, me, report={}, new=[new_batch(f"f{number}", slot=slot)], now=1.0
        ),
        lambda: store.give_back("c", number, last, me, reason="", now=1.0),
        lambda: store.fail("c", number, last, reason="", now=1.0, max_attempts=2),
        lambda: store.accept("c", number, last, report={}, part="", misses=[missed], now=1.0),
        lambda: store.split("c", number, [new_batch(slot=slot, priority=priority)]),
        lambda: store.drop_batch("c", number, forget=bool(kind % 2)),
        lambda: store.requeue("c", [number]),
        lambda: store.retry("c", number, [NewBatch(payload={}, size=1)], misses=[missed], now=1.0),
    ]
    with suppress(DistError, SeenBefore):
        verbs[kind % len(verbs)]()


def check_counts(store: Store) -> None:
    """What is told is what a look at everything shows."""
    batches = store.batches("c")
    for slot in store.backlog("c").slots:
        own = [batch for batch in batches if batch.slot == slot.slot]
        assert slot.batches == Counter(batch.state.value for batch in own)
        assert sum(slot.requests.values()) == sum(batch.size for batch in own)
        waiting = sorted(
            (b for b in own if b.state in WAITING), key=lambda b: (-b.priority, b.number)
        )
        assert store.peek("c", slot.slot, 100) == waiting
    assert {slot.slot for slot in store.backlog("c").slots} == {batch.slot for batch in batches}
    backlog, attempts = store.backlog("c"), store.attempts("c")
    acked = [attempt for attempt in attempts if attempt.state is AttemptState.ACKED]
    assert store.attempts("c", {AttemptState.ACKED}) == acked
    assert backlog.waiting == sum(batch.state in WAITING for batch in batches)
    assert (backlog.acked, backlog.expired) == (len(acked), len(store.expired("c")))
    assert backlog.leased + backlog.acked + backlog.expired == sum(
        batch.state in OUT for batch in batches
    )


def test_counts_are_what_a_scan_counts_whatever_was_done(store: Store) -> None:
    # The fixture stays out of hypothesis' hands: pytest-twisted cannot hand it over.
    @settings(max_examples=25)
    @given(
        steps=st.lists(st.tuples(st.integers(0, 65), st.integers(1, 12)), min_size=10, max_size=50)
    )
    def check(steps: list[tuple[int, int]]) -> None:
        store.forget("c")
        store.add_crawl(replace(CRAWL, kind="frontier"))
        for number in range(1, 5):
            add(store, f"0.{number}", slot="xy"[number % 2])
        for kind, number in steps:
            step(store, kind, number)
        check_counts(store)

    check()


# SQLite: what it costs


def test_an_idle_worker_waits_for_nobody_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with (
        closing(open_store(path)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
    ):
        store.add_crawl(CRAWL)
        writer.execute("BEGIN IMMEDIATE")
        assert lease_next(store, "c", LESSEE) == []
        assert store.backlog("c").finished


def test_no_verb_of_a_worker_reads_through_a_table(tmp_path: Path) -> None:
    statements: list[str] = []
    with closing(open_store(tmp_path / "store.db")) as store:
        store.add_crawl(CRAWL)
        database: sqlite3.Connection = store.connection.db  # type: ignore[attr-defined]  # to listen to what it is asked
        database.set_trace_callback(statements.append)
        for slot in ("x", "y"):
            add(store, slot, slot=slot)
        lease(store)
        store.ack("c", 1, 1, LESSEE.job, report={}, new=[new_batch("z")], now=1.0)
        lease(store, slots=["y"])
        store.give_back("c", 2, 1, LESSEE.job, reason="", now=1.0)
        store.backlog("c")
        store.peek("c", "y", 3)
        store.attempts("c", {AttemptState.ACKED})
        store.expired("c")
        database.set_trace_callback(None)
        asked = [text for text in statements if text.startswith(("SELECT", "UPDATE", "DELETE"))]
        plans = {
            text: [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}")]
            for text in asked
        }
    assert any("waiting_batches" in line for plan in plans.values() for line in plan)
    for text, plan in plans.items():
        # Attempts of one state are few, and are put in order.
        sorts = "TEMP B-TREE" in "".join(plan) and "FROM attempts" not in text
        assert not sorts and not any(line.startswith("SCAN") for line in plan), text


#: what `sdist status`, `watch`, `frontier list` and `frontier count` ask
LOOKS: dict[str, Callable[[Store], object]] = {
    "crawl": lambda store: store.crawl("c"),
    "crawls": lambda store: store.crawls(),
    "backlog": lambda store: store.backlog("c"),
}
#: batches of a hundred requests: a thousand requests, and a million
FEW, MANY = 10, 10_000


def steps(path: Path, batches: int) -> dict[str, int]:
    """Look -> steps that it takes with so many batches."""
    taken = dict.fromkeys(LOOKS, 0)
    with closing(open_store(path)) as store:
        store.add_crawl(CRAWL)
        for start in range(0, batches, 1000):
            new = [
                NewBatch(
                    payload={"DISTRIBUTED_START_URLS": "[]"},
                    size=100,
                    slot=f"p{number % 4}",
                    fingerprints=(),
                )
                for number in range(start, min(start + 1000, batches))
            ]
            store.add_batches("c", new)
        assert store.backlog("c").waiting in {batches, batches * 100}
        database: sqlite3.Connection = store.connection.db  # type: ignore[attr-defined]  # to count what it does
        for name, look in LOOKS.items():
            look(store)

            def count(name: str = name) -> int:
                taken[name] += 1
                return 0

            database.set_progress_handler(count, 1)
            look(store)
            database.set_progress_handler(None, 1)
    return taken


def test_a_look_at_a_million_requests_takes_no_more_steps_than_one_at_a_thousand(
    tmp_path: Path,
) -> None:
    few, many = steps(tmp_path / "few.db", FEW), steps(tmp_path / "many.db", MANY)
    assert all(number > 0 for number in few.values())
    assert many == few
