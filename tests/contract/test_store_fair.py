"""Fair leasing on every engine: whose turn it is, what is under way, whose a slot is, and how slots are shared."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rig.stores import CRAWL, LESSEE, YOU, accept, add, fail, lease_next, new_batch

from scrapyd_dist.batches import LEASABLE, Attempt, BatchState
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.frontier.backlog import BY_DOMAIN, SPREAD, Leased, Lessee
from scrapyd_dist.store import Store

THIRD = Lessee(job="c.w3.a1", node="three", url="http://three:6800")


def turn(
    store: Store, lessee: Lessee = LESSEE, *, limit: int = 1, fair: str = SPREAD,
    slots: Collection[str] = (), enough: Collection[str] = (),
) -> list[Leased]:  # fmt: skip
    return lease_next(
        store, "c", lessee, limit=limit, slots=slots, fair=fair, enough=enough, now=5.0
    )


def turns(
    store: Store, lessee: Lessee = LESSEE, *, times: int = 99, **options: Any
) -> list[Leased]:
    """What a worker gets that asks for one after the other."""
    got: list[Leased] = []
    while len(got) < times and (one := turn(store, lessee, **options)):
        got += one
    return got


def names(leased: Sequence[Leased]) -> str:
    return "".join(one.batch.slot for one in leased)


def fill(store: Store, counts: dict[str, int], size: int = 2) -> None:
    new = [
        new_batch(slot=slot, size=size) for slot, number in counts.items() for _ in range(number)
    ]
    store.add_batches("c", new)


def ack(store: Store, leased: Leased, lessee: Lessee = LESSEE) -> None:
    store.ack("c", leased.batch.number, leased.attempt, lessee.job, report={}, now=9.0)


def test_one_question_brings_no_two_batches_of_one_slot(store: Store) -> None:
    fill(store, {"a": 5, "b": 2, "c": 1})
    assert names(turn(store, limit=9)) == "abc"
    assert names(turn(store, limit=9)) == "ab"
    assert names(turn(store, limit=9, fair=BY_DOMAIN)) == "a"


@pytest.mark.parametrize("fair", [SPREAD, BY_DOMAIN])
def test_nothing_comes_from_slots_of_which_the_worker_has_enough(store: Store, fair: str) -> None:
    fill(store, {"a": 5, "b": 5, "c": 5})
    assert names(turn(store, limit=9, fair=fair, enough=["a", "c", "none"])) == "b"
    assert names(turn(store, limit=9, fair=fair, enough=["b", "none"])) == "ac"
    assert turn(store, fair=fair, enough=["a", "b", "c"]) == []
    assert turn(store, fair=fair, enough=["a"], slots=["a"]) == []


def test_slots_take_turns_whatever_lies_in_them(store: Store) -> None:
    fill(store, {"a": 5, "b": 2, "c": 2})
    assert names(turns(store, times=4)) == "abca"
    assert names(turns(store, YOU, times=9)) == "bcaaa"


def test_the_next_one_is_that_with_the_least_under_way_in_the_whole_fleet(store: Store) -> None:
    store.add_batches("c", [new_batch(slot="a", size=5) for _ in range(4)])
    fill(store, {"b": 9}, size=2)
    (big,) = turn(store)  # of a: 5 under way
    assert (big.batch.slot, names(turns(store, YOU, times=3))) == ("a", "bbb")  # of b: 2, 4, 6
    assert names(turns(store, times=2)) == "ab"  # of a: 10, of b: 8
    ack(store, big)
    assert names(turn(store, THIRD)) == "a"  # 5 are less than 8


def test_ties_go_to_the_slot_that_has_waited_longest_for_its_turn(store: Store) -> None:
    fill(store, {"a": 3, "b": 3})
    one, two = turns(store, times=2)
    assert names([one, two]) == "ab"
    ack(store, two)
    ack(store, one)
    (third,) = turn(store)
    assert third.batch.slot == "a"
    ack(store, third)
    assert names(turn(store)) == "b"
    add(store, slot="new")
    assert turn(store)[0].batch.slot == "new"


def test_priority_orders_the_batches_of_one_slot_only(store: Store) -> None:
    for slot, priority in (("a", 0), ("a", 7), ("b", -5), ("b", -9)):
        add(store, slot=slot, priority=priority)
    assert [one.batch.number for one in turns(store, times=4)] == [2, 3, 1, 4]


def test_slots_of_other_spiders_are_leased_by_name_only_and_belong_to_no_worker_alone(
    store: Store,
) -> None:
    fill(store, {"@login": 3, "a": 1})
    assert names(turns(store, times=9)) == "a"
    assert names(turn(store, slots=["@login"])) == "@login"
    for lessee in (LESSEE, YOU):  # sites of one's own have nothing to do with them
        assert names(turn(store, lessee, slots=["@login"], fair=BY_DOMAIN)) == "@login"


def test_named_slots_take_turns_among_themselves(store: Store) -> None:
    fill(store, {"a": 3, "b": 3, "c": 3})
    assert names(turns(store, times=5, slots=["a", "c", "none"])) == "acaca"


def test_the_first_fair_lease_counts_what_is_under_way_already(store: Store) -> None:
    fill(store, {"a": 3, "b": 1})
    lease_next(store, "c", YOU, now=5.0)  # of a
    assert names(turns(store, times=2)) == "ba"


def test_an_unfair_lease_counts_as_well(store: Store) -> None:
    fill(store, {"a": 3, "b": 3})
    assert names(turns(store, times=2)) == "ab"
    lease_next(store, "c", YOU, now=5.0, slots=["a"])
    assert names(turn(store)) == "b"


def test_nothing_comes_from_an_empty_crawl_nor_while_it_rests(store: Store) -> None:
    for fair in (SPREAD, BY_DOMAIN):
        assert turn(store, fair=fair) == []
    add(store, slot="a")
    for wish in ("pause", "cancel"):
        store.want("c", wish)
        assert turn(store) == turn(store, fair=BY_DOMAIN) == []
    store.want("c", "")
    assert turn(store, limit=0) == []
    assert names(turn(store)) == "a"
    with pytest.raises(NothingMatched):
        lease_next(store, "x", LESSEE, fair=SPREAD)


def test_a_crawl_is_forgotten_with_its_turns(store: Store) -> None:
    fill(store, {"a": 2, "b": 2})
    turns(store, fair=BY_DOMAIN, times=3)
    assert turn(store, YOU, fair=BY_DOMAIN) == []
    store.forget("c")
    store.add_crawl(replace(CRAWL))
    fill(store, {"a": 2})
    assert names(turns(store, YOU, fair=BY_DOMAIN, times=2)) == "aa"


def test_a_slot_is_its_workers_alone_until_it_has_nothing_of_it(store: Store) -> None:
    fill(store, {"a": 4, "b": 4})
    mine = turn(store, fair=BY_DOMAIN, limit=1)
    assert names(mine) == "a"
    yours = turns(store, YOU, fair=BY_DOMAIN, times=3)
    assert names(yours) == "bbb"
    mine += turn(store, fair=BY_DOMAIN)
    assert names(mine) == "aa"
    ack(store, mine[0])
    assert names(turn(store, YOU, fair=BY_DOMAIN)) == "b"
    assert turn(store, YOU, fair=BY_DOMAIN) == []
    fail(store, mine[1].batch.number, mine[1].attempt)  # its worker has died: given away
    yours = turn(store, YOU, fair=BY_DOMAIN)
    assert names(yours) == "a"
    assert turn(store, fair=BY_DOMAIN) == []
    ack(store, yours[0], YOU)
    assert names(turn(store, fair=BY_DOMAIN)) == "a"


def test_whoever_spreads_leaves_slots_alone_that_somebody_has_to_himself(store: Store) -> None:
    fill(store, {"a": 3, "b": 3})
    assert names(turn(store, fair=BY_DOMAIN)) == "a"
    assert names(turns(store, YOU, times=9)) == "bbb"
    assert turn(store, YOU, slots=["a"]) == []


def test_who_came_first_and_has_all_slots_lets_others_have_their_share(store: Store) -> None:
    sites = [chr(ord("a") + at) for at in range(9)]
    fill(store, dict.fromkeys(sites, 4))
    first = turns(store, fair=BY_DOMAIN, times=9)
    assert sorted(names(first)) == sites
    assert (
        turns(store, YOU, fair=BY_DOMAIN, times=9)
        == turns(store, THIRD, fair=BY_DOMAIN, times=9)
        == []
    )
    # Three want some of them now: nothing more for the first, until it has no more than a third.
    for at, one in enumerate(first[:6]):
        assert turns(store, fair=BY_DOMAIN, times=9) == []
        ack(store, one)
        (taken,) = turn(store, (YOU, THIRD)[at % 2], fair=BY_DOMAIN, limit=1)
        assert taken.batch.slot == one.batch.slot
    assert {one.batch.slot for one in turns(store, fair=BY_DOMAIN, times=9)} == set(sites[6:])
    by_slot: dict[str, set[str]] = {}
    for attempt in _out(store):
        by_slot.setdefault(store.batch("c", attempt.batch).slot, set()).add(attempt.worker)
    shares = Counter(worker for (worker,) in by_slot.values())
    assert shares == {LESSEE.job: 3, YOU.job: 3, THIRD.job: 3}


def _out(store: Store) -> list[Attempt]:
    return store.attempts("c", LEASABLE)


@pytest.mark.parametrize("fair", [SPREAD, BY_DOMAIN])
@pytest.mark.parametrize("seed", range(2))
def test_after_whatever_happens_the_next_slot_is_the_one_that_a_look_at_everything_gives(
    store: Store, fair: str, seed: int
) -> None:
    chance, workers, last = random.Random(seed), (LESSEE, YOU, THIRD), Counter[str]()
    ends: list[Callable[[Attempt], object]] = [
        lambda one: fail(store, one.batch, one.number, most=chance.choice([1, 9])),
        lambda one: store.ack("c", one.batch, one.number, one.worker, report={}, now=1.0),
        lambda one: store.give_back("c", one.batch, one.number, one.worker, reason="", now=1.0),
        lambda one: accept(store, one.batch, one.number),
    ]
    turns = 0
    for _ in range(80):
        out = _out(store)
        kind = chance.randrange(8)
        if kind < 2:
            add(store, slot=chance.choice("abcde"))
        elif kind < 6 and out:
            some = chance.choice(out)
            ends[kind - 2](some)
        elif kind == 6:
            dead = [batch.number for batch in store.batches("c", {BatchState.DEAD})]
            store.requeue("c", dead[:1])
            waiting = [
                batch.number for batch in store.batches("c", {BatchState.SEALED, BatchState.FAILED})
            ]
            if len(waiting) > 4:
                store.drop_batch("c", chance.choice(waiting), forget=False)
        else:
            worker = chance.choice(workers)
            wanted = _next_by_looking(store, worker, last, fair)
            leased = turn(store, worker, fair=fair)
            if wanted is None or leased:  # who has more than its share may get nothing
                assert names(leased) == (wanted or "")
            if leased:
                turns += 1
                last[names(leased)] = turns


def _next_by_looking(store: Store, worker: Lessee, last: Counter[str], fair: str) -> str | None:
    under_way: Counter[str] = Counter()
    holders: dict[str, str] = {}
    for attempt in _out(store):
        batch = store.batch("c", attempt.batch)
        under_way[batch.slot] += batch.size
        holders[batch.slot] = attempt.worker
    waiting = {batch.slot for batch in store.batches("c", {BatchState.SEALED, BatchState.FAILED})}
    if fair == BY_DOMAIN:
        waiting = {slot for slot in waiting if holders.get(slot, worker.job) == worker.job}
    return min(waiting, key=lambda slot: (under_way[slot], last[slot], slot), default=None)
