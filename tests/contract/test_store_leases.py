"""Leases and fencing: one holder at a time, by the store's clock; and of many who do the same, exactly one wins."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from rig.stores import accept, answers_of, attempt, fail, ready, seal
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, BatchState
from scrapyd_dist.store import Store


@pytest.fixture
def out(store: Store) -> Store:
    """A store with a batch whose first attempt is open."""
    seal(store)
    store.open_attempt("c", attempt())
    return store


def test_a_lease_has_one_holder_until_it_runs_out(out: Store, opened: Callable[[], Store]) -> None:
    other = opened()
    assert out.lease("c", 1, 1, "me", 60.0)
    assert not other.lease("c", 1, 1, "you", 60.0)
    assert out.lease("c", 1, 1, "me", 0.2)  # again, by its holder: another length
    assert not other.renew("c", 1, 1, "you", 60.0)
    (late,) = wait_for(lambda: other.expired("c"), 10, "the lease's end")
    assert (late.batch, late.number, late.state) == (1, 1, AttemptState.SENDING)
    assert other.lease("c", 1, 1, "you", 60.0)
    assert other.expired("c") == []
    assert not out.renew("c", 1, 1, "me", 60.0)
    assert not out.lease("c", 1, 1, "me", 60.0)


def test_a_holder_who_is_late_and_was_not_replaced_goes_on(out: Store) -> None:
    assert out.lease("c", 1, 1, "me", -1.0)
    assert [late.number for late in out.expired("c")] == [1]
    assert out.renew("c", 1, 1, "me", 60.0)
    assert out.expired("c") == []


def test_nobody_renews_what_nobody_took(out: Store) -> None:
    assert not out.renew("c", 1, 1, "me", 60.0)
    assert out.expired("c") == []


@pytest.mark.parametrize("end", [accept, fail, lambda s: s.refused("c", 1, 1, "no", 5.0)])
def test_what_is_over_has_no_lease(out: Store, end: Callable[[Store], object]) -> None:
    assert out.lease("c", 1, 1, "me", -1.0)
    end(out)
    assert out.expired("c") == []
    assert not out.renew("c", 1, 1, "me", 60.0)
    assert not out.lease("c", 1, 1, "you", 60.0)


def test_an_attempt_whose_number_is_used_again_is_a_new_one(out: Store) -> None:
    assert out.lease("c", 1, 1, "me", 60.0)
    out.refused("c", 1, 1, "no", 5.0)
    out.open_attempt("c", attempt(1, node="two"))
    assert not out.renew("c", 1, 1, "me", 60.0)
    assert out.lease("c", 1, 1, "you", 60.0)


def test_only_the_current_attempt_can_be_leased(out: Store) -> None:
    assert out.lease("c", 1, 1, "old", 60.0)
    fail(out)
    out.open_attempt("c", attempt(2))
    assert not out.lease("c", 1, 1, "old", 60.0)
    assert not out.renew("c", 1, 1, "old", 60.0)
    assert out.lease("c", 1, 2, "new", 60.0)
    assert not out.lease("c", 1, 3, "later", 60.0)
    assert not out.lease("c", 9, 1, "other", 60.0)


RACER = """
import json, sys
from scrapyd_dist.batches import Attempt, job_id
from scrapyd_dist.errors import DistError
from scrapyd_dist.store import open_store
store, who, count = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
won = {"open": [], "lease": [], "accept": []}
for number in range(1, count + 1):
    try:
        store.open_attempt("c", Attempt(batch=number, number=1, job=job_id("c", number, 1), node=who, url="u"))
        won["open"].append(number)
    except DistError:
        pass
    if store.lease("c", number, 1, who, 60.0):
        won["lease"].append(number)
    try:
        store.accept("c", number, 1, report={"by": who}, part=who, misses=(), now=1.0)
        won["accept"].append(number)
    except DistError:
        pass
print(json.dumps(won))
"""


def test_of_several_processes_that_make_the_same_step_exactly_one_succeeds(where: str, store: Store) -> None:
    numbers = [seal(store) for _ in range(60)]
    names = ("one", "two", "three")
    won = [json.loads(told) for told in answers_of([ready(RACER, where, who, "60") for who in names])]
    for step in ("open", "accept"):
        assert Counter(number for each in won for number in each[step]) == dict.fromkeys(numbers, 1)
    leased = Counter(number for each in won for number in each["lease"])
    assert max(leased.values()) == 1
    assert {batch.state for batch in store.batches("c")} == {BatchState.DONE}
    accepted = {a.batch: (a.report["by"], a.part) for a in store.attempts("c", {AttemptState.ACCEPTED})}
    by = {number: who for who, each in zip(names, won, strict=True) for number in each["accept"]}
    assert accepted == {number: (who, who) for number, who in by.items()}
