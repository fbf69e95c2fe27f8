"""The frontier's verbs on every engine: adding, leasing, acking, giving back, dropping, and every refusal of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from rig.stores import (
    CRAWL,
    LESSEE,
    YOU,
    accept,
    add,
    attempt,
    bring_to,
    fail,
    lease,
    lease_next,
    new_batch,
    seal,
)
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, Batch, BatchState, Miss, Shard, WorkerEntry
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import SPREAD, NewBatch, SeenBefore
from scrapyd_dist.store import Store

ME = LESSEE.job


# crawls


def test_a_frontier_is_a_crawl_that_says_so_and_one_that_stands_is_never_finished(
    store: Store, opened: Callable[[], Store]
) -> None:
    store.add_crawl(replace(CRAWL, id="f", kind="frontier", standing=True))
    assert (opened().crawl("f").kind, opened().crawl("f").standing) == ("frontier", True)
    assert (store.crawl("c").kind, store.crawl("c").standing) == ("crawl", False)
    assert store.backlog("f").standing
    assert not store.backlog("f").finished
    assert store.backlog("c").finished
    store.update_crawl("f", standing=False)
    assert store.crawl("f").standing is False


# adding


def test_what_is_added_waits_in_its_slot_and_is_counted(
    store: Store, opened: Callable[[], Store]
) -> None:
    some = [
        new_batch("a", "b", slot="one", priority=-3),
        new_batch("c"),
        new_batch(size=4, slot="one"),
    ]
    first, second, third = store.add_batches("c", some, counts={"sealed": 7})
    assert [batch.number for batch in (first, second, third)] == [1, 2, 3]
    assert (first.slot, first.priority, first.size, first.sealed_at) == ("one", -3, 2, 10.0)
    other = opened()
    assert other.batches("c") == [first, second, third]
    assert other.payload("c", 1) == some[0].payload
    assert other.counts("c") == {"sealed": 7}
    assert sorted(other.fingerprints("c")) == [b"a", b"b", b"c"]


def test_requests_that_were_there_before_are_named_and_nothing_is_kept(store: Store) -> None:
    add(store, "a", "b")
    seal(store, fingerprints=[b"p"])
    before = (store.batches("c"), store.counts("c"), store.backlog("c").slots)
    with pytest.raises(SeenBefore) as caught:
        store.add_batches(
            "c",
            [new_batch("c", "a"), new_batch("p", "d", slot="x")],
            counts={"sealed": 4, "offsite": 1},
        )
    assert caught.value.prints == {b"a", b"p"}
    assert (store.batches("c"), store.counts("c"), store.backlog("c").slots) == before
    assert sorted(store.fingerprints("c")) == [b"a", b"b", b"p"]
    assert add(store, "c", "d") == 3


def test_what_is_done_does_not_come_again_before_its_slot_is_deleted(store: Store) -> None:
    add(store, "a", slot="x")
    lease(store)
    store.ack("c", 1, 1, ME, report={}, now=1.0)
    accept(store)
    with pytest.raises(SeenBefore):
        add(store, "a", slot="y")
    store.drop_batch("c", 1, forget=True)
    assert add(store, "a", slot="y") == 2


def test_fingerprints_of_another_crawl_are_not_there(store: Store) -> None:
    store.add_crawl(replace(CRAWL, id="d"))
    add(store, "a")
    store.add_batches("d", [new_batch("a")])


def test_fingerprints_may_be_any_bytes(store: Store) -> None:
    prints = [b"", b"\0", b"\n\xff" * 10, b" ", b"1 2", b"x" * 255]
    store.add_batches("c", [replace(new_batch(size=6), fingerprints=tuple(prints))])
    with pytest.raises(SeenBefore) as caught:
        store.add_batches("c", [replace(new_batch(size=7), fingerprints=(b"y", *prints))])
    assert caught.value.prints == set(prints) == set(store.fingerprints("c"))
    store.drop_batch("c", 1, forget=True)
    assert list(store.fingerprints("c")) == []


@pytest.mark.parametrize("prints", [(b"a", b"a"), (b"x" * 256,)])
def test_fingerprints_that_cannot_be_kept_are_refused(
    store: Store, prints: tuple[bytes, ...]
) -> None:
    with pytest.raises(StoreError, match="fingerprint"):
        store.add_batches("c", [replace(new_batch(), fingerprints=prints)])
    assert store.batches("c") == []


def test_of_many_requests_those_that_were_there_are_named(store: Store) -> None:
    prints = tuple(b"%d" % number for number in range(12_000))
    store.add_batches("c", [replace(new_batch(size=6_000), fingerprints=prints[::2])])
    with pytest.raises(SeenBefore) as caught:
        store.add_batches("c", [replace(new_batch(size=12_000), fingerprints=prints)])
    assert caught.value.prints == set(prints[::2])


def test_many_small_batches_come_in_one_step(store: Store) -> None:
    many = [replace(new_batch(size=1), fingerprints=(b"%d" % number,)) for number in range(30_000)]
    assert len(store.add_batches("c", many)) == 30_000


# leasing


def test_the_highest_priority_comes_first_and_then_the_oldest(store: Store) -> None:
    for priority in (0, 5, -(1 << 40), 5, 1 << 40, 0):
        add(store, slot="x", priority=priority)
    for number in range(7, 13):
        add(store, slot="y" if number % 2 else "x", priority=0)
    assert [batch.number for batch in store.peek("c", "x", 4)] == [5, 2, 4, 1]
    order = [lease(store).batch.number for _ in range(12)]
    assert order == [5, 2, 4, 1, 6, 7, 8, 9, 10, 11, 12, 3]
    assert lease_next(store, "c", LESSEE) == []


def test_a_leased_batch_is_running_in_an_attempt_of_its_worker(
    store: Store, opened: Callable[[], Store]
) -> None:
    add(store, "a", "b", slot="x")
    (leased,) = lease_next(opened(), "c", LESSEE, now=7.0)
    assert (leased.attempt, leased.payload) == (1, store.payload("c", 1))
    assert leased.batch == store.batch("c", 1)
    assert (leased.batch.state, leased.batch.attempts) == (BatchState.RUNNING, 1)
    (open_one,) = store.attempts("c", {AttemptState.RUNNING})
    assert open_one == replace(attempt(), state=AttemptState.RUNNING, sent_at=7.0, worker=ME)
    assert store.lease("c", 1, 1, ME, 60.0, again=True)
    assert not store.lease("c", 1, 1, YOU.job, 60.0, again=True)
    assert not store.lease("c", 1, 1, YOU.job, 60.0)


def test_several_are_leased_in_one_step_and_no_more_than_there_are(store: Store) -> None:
    for slot in ("x", "y", "x", "y"):
        add(store, slot=slot)
    some = lease_next(store, "c", LESSEE, limit=3)
    assert [one.batch.number for one in some] == [1, 2, 3]
    assert [one.batch.number for one in lease_next(store, "c", YOU, limit=3)] == [4]


def test_a_worker_takes_from_the_slots_it_names_else_from_all_of_its_own_spider(
    store: Store,
) -> None:
    for slot in ("", "x", "@login", "@shop:login", "y"):
        add(store, slot=slot)
    assert lease_next(store, "c", LESSEE, slots=["nowhere"]) == []
    named = lease_next(store, "c", LESSEE, slots={"@login", "y"}, limit=9)
    assert [one.batch.slot for one in named] == ["@login", "y"]
    own = lease_next(store, "c", LESSEE, limit=9)
    assert [one.batch.slot for one in own] == ["", "x"]
    assert store.backlog("c").waiting == 1


@pytest.mark.parametrize("fair", ["", SPREAD])
def test_only_a_listed_worker_leases_where_that_is_asked_for(store: Store, fair: str) -> None:
    seal(store)
    with pytest.raises(StepRefused, match=LESSEE.job):
        lease_next(store, "c", LESSEE, listed=True, fair=fair)
    entry = WorkerEntry(number=1, job=LESSEE.job, url=LESSEE.url, pool="", since=1.0)
    store.add_workers("c", [entry], last=1)
    assert len(lease_next(store, "c", LESSEE, listed=True, fair=fair)) == 1
    store.remove_worker("c", LESSEE.job)
    with pytest.raises(StepRefused):  # also where nothing waits
        lease_next(store, "c", LESSEE, listed=True, fair=fair)
    with pytest.raises(NothingMatched):
        lease_next(store, "nosuch", LESSEE, listed=True, fair=fair)


def test_a_failed_batch_is_leased_again_and_a_dead_one_is_not(store: Store) -> None:
    add(store)
    lease(store)
    assert fail(store, most=2) is BatchState.FAILED
    again = lease(store, YOU)
    assert (again.attempt, again.batch.attempts) == (2, 2)
    assert fail(store, number=2, most=2) is BatchState.DEAD
    assert lease_next(store, "c", LESSEE) == []
    assert store.requeue("c", [1]) == [1]
    assert lease(store).attempt == 3


def test_what_was_sealed_and_pushed_can_be_leased_as_well(store: Store) -> None:
    bring_to(store, BatchState.FAILED)
    seal(store)
    leased = lease_next(store, "c", YOU, seconds=9.0, limit=5)
    assert [(one.batch.number, one.attempt) for one in leased] == [(1, 2), (2, 1)]


# acking


def test_an_acked_batch_waits_for_its_part_and_nobody_leases_it(store: Store) -> None:
    add(store)
    lease(store)
    store.ack("c", 1, 1, ME, report={"items": 3}, now=9.0, counts={"sealed": 1})
    (acked,) = store.attempts("c", {AttemptState.ACKED})
    assert (acked.report, acked.ended_at, acked.worker) == ({"items": 3}, 9.0, ME)
    assert store.batch("c", 1).state is BatchState.RUNNING
    assert store.counts("c") == {"sealed": 1}
    assert not store.lease("c", 1, 1, ME, 60.0, again=True)
    assert not store.lease("c", 1, 1, YOU.job, 60.0)
    assert store.expired("c") == []
    accept(store)
    assert store.batch("c", 1).state is BatchState.DONE
    assert store.attempts("c", {AttemptState.ACKED}) == []


def test_what_was_found_enters_with_the_ack_or_not_at_all(store: Store) -> None:
    add(store, "a")
    lease(store)
    with pytest.raises(SeenBefore) as caught:
        store.ack(
            "c",
            1,
            1,
            ME,
            report={},
            new=[new_batch("b", "a", slot="y")],
            now=9.0,
            counts={"sealed": 2},
        )
    assert caught.value.prints == {b"a"}
    assert store.attempts("c")[0].state is AttemptState.RUNNING
    assert (store.counts("c"), list(store.fingerprints("c")), len(store.batches("c"))) == (
        {},
        [b"a"],
        1,
    )
    assert store.lease("c", 1, 1, ME, 60.0, again=True)
    store.ack(
        "c", 1, 1, ME, report={}, new=[new_batch("b", slot="y")], now=9.0, counts={"sealed": 1}
    )
    assert store.peek("c", "y", 5) == [store.batch("c", 2)]
    assert (store.counts("c"), sorted(store.fingerprints("c"))) == ({"sealed": 1}, [b"a", b"b"])


def late_ack(store: Store, holder: str = ME, attempt: int = 1) -> None:
    store.ack(
        "c", 1, attempt, holder, report={}, new=[new_batch("z")], now=9.0, counts={"sealed": 1}
    )


def late_return(store: Store, holder: str = ME, attempt: int = 1) -> None:
    store.give_back("c", 1, attempt, holder, reason="no time", now=9.0)


@pytest.mark.parametrize("end", [late_ack, late_return])
def test_a_lost_lease_ends_nothing(store: Store, end: Callable[..., None]) -> None:
    add(store)
    with pytest.raises(StepRefused):
        end(store)  # before it is leased
    lease(store, seconds=-1.0)
    with pytest.raises(StepRefused, match="does not hold attempt 1 of batch 1"):
        end(store, holder=YOU.job)
    assert store.lease("c", 1, 1, YOU.job, 60.0)  # it had run out
    for number in (0, 1, 2):
        with pytest.raises(StepRefused):
            end(store, attempt=number)
    fail(store)
    with pytest.raises(StepRefused):
        end(store, holder=YOU.job)
    lease(store)
    with pytest.raises(StepRefused):
        end(store, holder=ME)  # its first attempt is over; it has the second one
    assert (len(store.batches("c")), store.counts("c"), list(store.fingerprints("c"))) == (
        1,
        {},
        [],
    )
    end(store, attempt=2)


def test_a_worker_that_is_late_and_was_not_replaced_may_ack(store: Store) -> None:
    add(store)
    lease(store, seconds=-1.0)
    assert [late.worker for late in store.expired("c")] == [ME]
    store.ack("c", 1, 1, ME, report={}, now=9.0)
    assert store.expired("c") == []


def test_what_is_given_back_waits_as_it_was_and_counts_no_attempt(store: Store) -> None:
    add(store, slot="x", priority=2)
    lease(store)
    fail(store)
    lease(store)
    store.give_back("c", 1, 2, ME, reason="the worker ends", now=9.0)
    batch = store.batch("c", 1)
    assert (batch.state, batch.attempts, batch.reason) == (BatchState.SEALED, 1, "the worker ends")
    assert store.peek("c", "x", 1) == [batch]
    again = lease(store, YOU)
    assert again.attempt == 2
    first, second = store.attempts("c")
    assert (first.state, second.state, second.worker, second.reason, second.ended_at) == (
        AttemptState.FAILED, AttemptState.RUNNING, YOU.job, "", None,
    )  # fmt: skip
    with pytest.raises(StepRefused):
        store.give_back("c", 1, 2, ME, reason="again", now=9.0)


# producers and the backlog


def test_producers_are_there_until_they_sign_off_and_lost_when_nothing_is_heard_of_them(
    store: Store, opened: Callable[[], Store]
) -> None:
    other = opened()
    store.register_producer("c", "long", 60.0)
    store.register_producer("c", "short", 0.3)
    assert other.backlog("c").producers == ("long", "short")
    assert not other.backlog("c").finished
    wait_for(lambda: other.backlog("c").lost == ("short",), 10, "the producer's end")
    assert other.backlog("c").producers == ("long",)
    store.sign_off("c", "long")
    assert not store.backlog("c").finished
    assert store.backlog("c").drained
    store.register_producer("c", "short", 60.0)  # it was late, or another one took it over
    assert store.backlog("c").lost == ()
    store.sign_off("c", "short")
    store.sign_off("c", "nobody")
    assert store.backlog("c").finished


def test_slots_are_what_lies_in_them_and_a_look_changes_nothing(store: Store) -> None:
    add(store, "a", "b", slot="x")
    add(store, slot="")
    add(store, slot="x")
    lease(store, slots=["x"])
    before = (store.batches("c"), store.backlog("c").slots)
    assert (store.peek("c", "x", 0), store.peek("c", "y", 5)) == ([], [])
    assert store.peek("c", "x", 5) == [store.batch("c", 3)]
    assert (store.batches("c"), store.backlog("c").slots) == before
    first, second = store.backlog("c").slots
    assert (first.slot, first.batches, first.requests, first.waiting) == (
        "",
        {"sealed": 1},
        {"sealed": 1},
        1,
    )
    assert (second.slot, second.batches) == ("x", {"sealed": 1, "running": 1})
    assert (second.requests, second.waiting) == ({"sealed": 1, "running": 2}, 1)


# splitting


@pytest.mark.parametrize(
    ("size", "parts", "kept"),
    [
        (
            3,
            [new_batch(size=2, slot="y", priority=7), new_batch(size=1, slot="z")],
            {b"a", b"b"},
        ),  # in their order
        (3, [new_batch("b"), new_batch("a", "c")], {b"b"}),  # those that the parts name
        (
            4,
            [new_batch(size=4, slot="y")],
            set(),
        ),  # one request has none: the batch moves as a whole
        (
            4,
            [new_batch(size=1), new_batch(size=3)],
            {b"a", b"b", b"c"},
        ),  # it is not known whose they are
    ],
)
def test_parts_lie_where_they_are_told_and_keep_their_fingerprints(
    store: Store, size: int, parts: list[NewBatch], kept: set[bytes]
) -> None:
    store.add_batches("c", [replace(new_batch("a", "b", "c", slot="x", priority=1), size=size)])
    new = store.split("c", 1, parts)
    told = [(part.slot, part.priority, part.size, 1) for part in parts]
    assert [(part.slot, part.priority, part.size, part.parent) for part in new] == told
    assert store.peek("c", "x", 1) == []
    assert store.peek("c", new[-1].slot, 9)[-1] == new[-1]
    store.drop_batch("c", new[-1].number, forget=True)
    assert set(store.fingerprints("c")) == kept


# retrying

FAILED = Miss(url="http://site/1", kind="failed", reason="HTTP 500", batch=1)
GONE = Miss(url="http://site/2", kind="gone", reason="HTTP 404", batch=1)
OTHERS = [
    Miss(url="http://site/3", kind="failed", reason="HTTP 500", batch=2),
    Miss(url="x", kind="index", reason="y"),
]


def test_only_what_failed_is_tried_again_in_the_slot_of_its_batch(store: Store) -> None:
    add(store, slot="x", priority=3)
    lease(store)
    accept(store)
    store.add_misses("c", [FAILED, GONE, *OTHERS])
    (new,) = store.retry(
        "c", 1, [NewBatch(payload={"A": "again"}, size=1)], misses=[FAILED], now=50.0
    )
    assert new == Batch(number=2, size=1, sealed_at=50.0, slot="x", priority=3)
    assert store.peek("c", "x", 1) == [new]
    assert store.payload("c", new.number) == {"A": "again"}
    assert store.misses("c") == [GONE, *OTHERS]
    assert store.batch("c", 1).state is BatchState.DONE
    with pytest.raises(StepRefused, match="retried already"):
        store.retry("c", 1, [NewBatch(payload={}, size=1)], misses=[FAILED], now=51.0)
    assert len(store.batches("c")) == new.number


def test_a_retry_of_more_than_has_failed_and_the_second_of_two_at_once_change_nothing(
    store: Store,
) -> None:
    bring_to(store, BatchState.DONE)
    dead = replace(FAILED, kind="dead", reason="no such callback")
    store.add_misses("c", [FAILED, dead])
    with pytest.raises(StoreError):
        store.retry("c", 1, [NewBatch(payload={}, size=2)], misses=[FAILED], now=50.0)
    assert store.misses("c") == [FAILED, dead]
    store.retry("c", 1, [NewBatch(payload={}, size=1)], misses=[dead], now=50.0)
    with pytest.raises(StepRefused):
        store.retry("c", 1, [NewBatch(payload={}, size=2)], misses=[FAILED, dead], now=51.0)
    assert store.misses("c") == [FAILED]
    assert len(store.batches("c")) == 2


@pytest.mark.parametrize("state", [BatchState.SEALED, BatchState.RUNNING, BatchState.DEAD])
def test_a_batch_that_is_not_done_has_nothing_to_retry(store: Store, state: BatchState) -> None:
    bring_to(store, state)
    with pytest.raises(StepRefused):
        store.retry("c", 1, [NewBatch(payload={}, size=1)], misses=[FAILED], now=50.0)


# dropping


@pytest.mark.parametrize("forget", [True, False])
def test_a_dropped_batch_is_gone_and_its_number_never_comes_again(
    store: Store, *, forget: bool
) -> None:
    add(store, "a", "b", slot="x")
    lease(store)
    fail(store)
    store.drop_batch("c", 1, forget=forget)
    assert (store.batches("c"), store.attempts("c"), store.peek("c", "x", 1)) == ([], [], [])
    assert store.backlog("c").slots == []
    for gone in (lambda: store.batch("c", 1), lambda: store.payload("c", 1)):
        with pytest.raises(NothingMatched):
            gone()
    assert sorted(store.fingerprints("c")) == ([] if forget else [b"a", b"b"])
    assert add(store) == 2


@pytest.mark.parametrize("state", BatchState)
def test_only_a_batch_that_is_out_is_not_dropped(store: Store, state: BatchState) -> None:
    bring_to(store, state)
    if state in {BatchState.SENT, BatchState.RUNNING}:
        with pytest.raises(StepRefused, match="batch 1 is out"):
            store.drop_batch("c", 1, forget=False)
        assert store.batch("c", 1).state is state
        return
    store.drop_batch("c", 1, forget=False)
    assert 1 not in {batch.number for batch in store.batches("c")}
    with pytest.raises(NothingMatched, match="no batch 1"):
        store.drop_batch("c", 1, forget=False)


def test_one_that_was_refused_leaves_no_attempt_behind(store: Store) -> None:
    add(store)
    lease(store)
    store.give_back("c", 1, 1, ME, reason="", now=1.0)
    store.drop_batch("c", 1, forget=False)
    assert store.attempts("c") == []


# what is not there


@pytest.mark.parametrize(
    "verb",
    [
        lambda s: seal(s, crawl="x"),
        lambda s: s.count("x", {"offsite": 1}),
        lambda s: s.add_sample("x", 1.0, {}),
        lambda s: s.add_shards("x", [Shard(number=0, url="u")]),
        lambda s: s.add_misses("x", [FAILED]),
        lambda s: s.add_batches("x", [new_batch("a")], counts={"sealed": 1}),
        lambda s: lease_next(s, "x", LESSEE),
        lambda s: s.register_producer("x", "me", 60.0),
        lambda s: s.backlog("x"),
        lambda s: s.drop_batch("x", 1, forget=True),
    ],
)
def test_a_crawl_that_is_not_there_is_told_of_and_stays_away(
    store: Store, verb: Callable[[Store], object]
) -> None:
    with pytest.raises(NothingMatched, match=r"no crawl 'x'|crawl x has no batch"):
        verb(store)
    assert store.peek("x", "", 5) == []
    store.add_crawl(replace(CRAWL, id="x"))
    assert store.backlog("x").finished
    assert (store.batches("x"), store.counts("x"), list(store.fingerprints("x"))) == ([], {}, [])
    assert (store.samples("x"), store.shards("x"), store.misses("x")) == ([], [], [])


def test_a_forgotten_frontier_leaves_nothing_to_the_next_of_its_name(store: Store) -> None:
    for slot in ("x", "@login", ""):
        add(store, "a" + slot, slot=slot)
    lease(store)
    store.register_producer("c", "me", -1.0)
    store.forget("c")
    store.add_crawl(CRAWL)
    assert (store.backlog("c").slots, store.peek("c", "x", 5), store.attempts("c")) == ([], [], [])
    assert store.backlog("c").finished
    assert add(store, "ax", slot="x") == 1
    assert lease(store).batch.number == 1
