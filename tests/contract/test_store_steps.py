"""The steps of batches and attempts: those of the tables, and no other; and leases, with one holder at a time."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from rig.stores import (
    LESSEE,
    accept,
    answers_of,
    attempt,
    bring_to,
    fail,
    halves,
    lease,
    lease_next,
    ready,
    seal,
)
from rig.waiting import wait_for
from scrapyd_dist.middlewares.worker.lease_client import is_suspect

from scrapyd_dist.batches import ATTEMPT_STEPS, STEPS, AttemptState, Batch, BatchState, Miss
from scrapyd_dist.errors import NothingMatched, StepRefused, StoreError
from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.scheduling.attempt_failure import SPARED, FailureKind, decide_after_failure
from scrapyd_dist.scheduling.batch_counters import BatchCounters
from scrapyd_dist.store import Store


@pytest.fixture
def out(store: Store) -> Store:
    """A store with a batch whose first attempt is open."""
    seal(store)
    store.open_attempt("c", attempt())
    return store


def wait_again(store: Store, last: int) -> None:
    if not store.requeue("c", [1]):
        store.give_back("c", 1, last, None, reason="no", now=1.0)


#: what leads into a state
INTO: dict[BatchState, Callable[[Store, int], object]] = {
    BatchState.SEALED: wait_again,
    BatchState.SENT: lambda store, last: store.open_attempt("c", attempt(last + 1)),
    BatchState.RUNNING: lambda store, last: store.running("c", 1, last),
    BatchState.DONE: lambda store, last: accept(store, 1, last),
    BatchState.FAILED: lambda store, last: fail(store, 1, last),
    BatchState.SPLIT: lambda store, last: store.split("c", 1, halves(1, 1)),
}
#: allowed by the table, and made by `fail` alone, on its way
NO_VERB = {(BatchState.SEALED, BatchState.DEAD), (BatchState.FAILED, BatchState.DEAD)}


@pytest.mark.parametrize("new", INTO)
@pytest.mark.parametrize("old", BatchState)
def test_every_step_of_the_table_can_be_made_and_no_other(
    store: Store, old: BatchState, new: BatchState
) -> None:
    last = bring_to(store, old)
    before = (store.batch("c", 1), store.attempts("c"), store.misses("c"))
    assert before[0].state is old
    if new in STEPS[old] and (old, new) not in NO_VERB:
        INTO[new](store, last)
        assert store.batch("c", 1).state is new
        return
    with pytest.raises((StepRefused, NothingMatched)):
        INTO[new](store, last)
    assert (store.batch("c", 1), store.attempts("c"), store.misses("c")) == before


ATTEMPT_VERBS: dict[AttemptState, Callable[[Store], object]] = {
    AttemptState.SENDING: lambda store: store.open_attempt("c", attempt(1, node="two")),
    AttemptState.SENT: lambda store: store.sent("c", 1, 1),
    AttemptState.RUNNING: lambda store: store.running("c", 1, 1),
    AttemptState.ACKED: lambda store: store.ack("c", 1, 1, "me", report={}, now=1.0),
    AttemptState.ACCEPTED: accept,
    AttemptState.FAILED: fail,
    AttemptState.REFUSED: lambda store: store.give_back("c", 1, 1, None, reason="no", now=1.0),
}


@pytest.mark.parametrize("new", AttemptState)
@pytest.mark.parametrize("old", AttemptState)
def test_every_step_of_an_attempt_can_be_made_and_no_other(
    out: Store, old: AttemptState, new: AttemptState
) -> None:
    out.lease("c", 1, 1, "me", 60.0)
    if old is AttemptState.ACKED:
        out.running("c", 1, 1)
    if old is not AttemptState.SENDING:
        ATTEMPT_VERBS[old](out)
    before = (out.batch("c", 1), out.attempts("c"))
    assert before[1][0].state is old
    released = (old, new) == (AttemptState.REFUSED, AttemptState.RUNNING)
    if not released and new not in ATTEMPT_STEPS[old]:
        with pytest.raises(StepRefused):
            ATTEMPT_VERBS[new](out)
        assert (out.batch("c", 1), out.attempts("c")) == before
        return
    if released:
        assert lease_next(out, "c", LESSEE)
    else:
        ATTEMPT_VERBS[new](out)
    assert out.attempts("c")[0].state is new


@pytest.mark.parametrize(
    "verb", [accept, fail, lambda s: s.sent("c", 1, 1), lambda s: s.running("c", 1, 1)]
)
def test_an_attempt_that_was_never_opened_moves_nothing(
    store: Store, verb: Callable[[Store], object]
) -> None:
    seal(store)
    store.open_attempt("c", replace(attempt(2), number=2))
    with pytest.raises(NothingMatched):
        verb(store)
    assert store.batch("c", 1).state is BatchState.SENT


def test_one_attempt_is_accepted_and_no_other_ever(out: Store) -> None:
    fail(out)
    out.open_attempt("c", attempt(2))
    with pytest.raises(StepRefused):
        accept(out, number=1)  # the one that was given up
    accept(out, number=2, misses=(Miss(url="u", kind="gone", reason="HTTP 404", batch=1),))
    for number in (1, 2):
        with pytest.raises(StepRefused):
            accept(out, number=number, misses=(Miss(url="v", kind="gone", reason="", batch=1),))
    first, second = out.attempts("c")
    assert (first.state, second.state, second.part, second.report) == (
        AttemptState.FAILED, AttemptState.ACCEPTED, "2.jl", {"items": 2},
    )  # fmt: skip
    assert out.attempts("c", {AttemptState.ACCEPTED}) == [second]
    assert [miss.url for miss in out.misses("c")] == ["u"]


def test_a_refused_post_counts_as_no_attempt_and_its_number_is_that_of_a_new_one(
    out: Store,
) -> None:
    assert out.lease("c", 1, 1, "me", 60.0)
    out.give_back("c", 1, 1, None, reason="connection refused", now=5.0)
    batch = out.batch("c", 1)
    assert (batch.state, batch.attempts, batch.reason) == (
        BatchState.SEALED,
        0,
        "connection refused",
    )
    out.open_attempt("c", attempt(1, node="two"))
    assert out.batch("c", 1).attempts == 1
    assert out.attempts("c") == [attempt(1, node="two")]
    assert not out.lease("c", 1, 1, "me", 60.0, again=True)
    assert out.lease("c", 1, 1, "you", 60.0)


def test_a_batch_is_dead_after_its_last_attempt(store: Store) -> None:
    seal(store)
    answers = []
    for number in (1, 2, 3):
        store.open_attempt("c", attempt(number))
        answers.append(fail(store, number=number, most=3))
    assert answers == [BatchState.FAILED, BatchState.FAILED, BatchState.DEAD]
    assert (store.batch("c", 1).state, store.batch("c", 1).reason) == (BatchState.DEAD, "broken")
    assert store.batches("c", {BatchState.DEAD, BatchState.SEALED}) == [store.batch("c", 1)]
    assert store.batches("c", {BatchState.DONE}) == []


def test_an_attempt_that_is_not_the_batchs_current_one_changes_nothing(out: Store) -> None:
    out.give_back("c", 1, 1, None, reason="no", now=5.0)
    out.open_attempt("c", attempt(2))  # by a count of its own
    before = (out.batch("c", 1), out.attempts("c"))
    for state in ATTEMPT_VERBS.keys() - {AttemptState.SENDING, AttemptState.ACKED}:
        with pytest.raises(StepRefused):
            ATTEMPT_VERBS[state](out)
    assert (out.batch("c", 1), out.attempts("c")) == before
    accept(out, number=2)


def test_a_failure_that_is_forgiven_costs_a_batch_no_attempt(store: Store) -> None:
    seal(store)
    answers = []
    for number, is_forgiven in ((1, True), (2, False), (3, True), (4, False)):
        store.open_attempt("c", attempt(number))
        answers.append(fail(store, number=number, most=2, forgive=is_forgiven))
    assert answers == [BatchState.FAILED] * 3 + [BatchState.DEAD]
    batch = store.batch("c", 1)
    assert (batch.state, batch.attempts, batch.forgiven) == (BatchState.DEAD, 4, 2)


def test_a_dead_batch_that_is_requeued_has_new_attempts_and_its_old_ones(store: Store) -> None:
    bring_to(store, BatchState.DEAD)
    bring_to(store, BatchState.DONE)
    bring_to(store, BatchState.DEAD)
    assert store.requeue("c", [3, 1, 2, 1]) == [1, 3]
    batch = store.batch("c", 1)
    assert (batch.state, batch.attempts, batch.reason) == (BatchState.SEALED, 1, "broken")
    assert store.batch("c", 2).state is BatchState.DONE
    answers = []
    for number in (2, 3):
        store.open_attempt("c", attempt(number))
        answers.append(fail(store, number=number, most=2))
    assert answers == [BatchState.FAILED, BatchState.DEAD]
    assert [a.number for a in store.attempts("c") if a.batch == 1] == [1, 2, 3]
    assert store.requeue("c", [1]) == [1]
    assert store.batch("c", 1).tried(3) == 0
    assert store.requeue("c", [1]) == []


@pytest.mark.parametrize("how", ["requeue", "reopen"])
def test_a_batch_that_is_begun_anew_may_lose_as_many_nodes_as_a_new_one(
    store: Store, how: str
) -> None:
    seal(store)
    for number in range(1, SPARED + 1):
        store.open_attempt("c", attempt(number))
        fail(store, number=number, forgive=True)
    last = SPARED + 1
    store.open_attempt("c", attempt(last))
    if how == "requeue":
        fail(store, number=last, most=1)
        store.requeue("c", [1])
    else:
        accept(store, number=last)
        store.reopen("c", 1, last, reason="its part is lost", misses=(), now=9.0)
    for number in range(last + 1, last + SPARED + 2):
        store.open_attempt("c", attempt(number))
        after = decide_after_failure(
            store.batch("c", 1),
            number,
            FailureKind.RESTART,
            max_attempts=3,
            counters=BatchCounters(),
        )
        assert after.is_forgiven is (number <= last + SPARED)
        fail(store, number=number, most=after.max_attempts, forgive=after.is_forgiven)
    assert store.batch("c", 1).state is BatchState.FAILED


def test_a_batch_that_was_lost_with_its_node_is_worked_on_alone_until_it_is_begun_anew(
    store: Store,
) -> None:
    seal(store)
    assert not is_suspect(lease(store))
    fail(store, forgive=True)
    assert is_suspect(lease(store))
    fail(store, number=2, most=1)
    store.requeue("c", [1])
    assert not is_suspect(lease(store))
    fail(store, number=3, forgive=True)
    assert is_suspect(lease(store))


def test_what_waits_gets_another_priority_and_nothing_else_does(store: Store) -> None:
    for _ in range(3):
        bring_to(store, BatchState.SEALED)
    bring_to(store, BatchState.DEAD)
    assert store.prioritise("c", [3, 4, 9, 3], 7) == [3]
    assert [one.priority for one in store.batches("c")] == [0, 0, 7, 0]
    assert [one.number for one in store.peek("c", "", 9)] == [3, 1, 2]
    assert store.prioritise("c", [1, 3], -MAX_PRIORITY) == [1, 3]
    assert store.batch("c", 1).priority == -MAX_PRIORITY
    assert [one.number for one in store.peek("c", "", 9)] == [2, 1, 3]
    with pytest.raises(NothingMatched, match="no crawl 'x'"):
        store.prioritise("x", [1], 1)


def test_a_batch_that_is_not_there_stops_the_whole_requeue(store: Store) -> None:
    bring_to(store, BatchState.DEAD)
    with pytest.raises(NothingMatched, match="no batch 9"):
        store.requeue("c", [1, 9])
    assert store.batch("c", 1).state is BatchState.DEAD


def test_a_batch_is_replaced_by_its_parts(store: Store) -> None:
    seal(store, size=5, counts={"sealed": 5}, fingerprints=[b"1", b"2"])
    store.open_attempt("c", attempt(1))
    fail(store)
    left, right = store.split("c", 1, halves(2, 3))
    assert [left, right] == [
        Batch(number=one, size=one, sealed_at=10.0, parent=1) for one in (2, 3)
    ]
    whole = store.batch("c", 1)
    assert (whole.state, whole.reason, whole.attempts) == (BatchState.SPLIT, "broken", 1)
    assert store.batches("c") == [whole, left, right]
    assert (store.payload("c", 2), store.payload("c", 3)) == ({"A": "1"}, {"A": "2"})
    assert (
        sum(b.size for b in store.batches("c") if b.state is not BatchState.SPLIT)
        == store.counts("c")["sealed"]
    )
    assert sorted(store.fingerprints("c")) == [b"1", b"2"]
    assert seal(store) == 4


@pytest.mark.parametrize("sizes", [[], [2], [1, 2], [2, 0], [3, -1]])
def test_parts_have_the_requests_of_the_whole(store: Store, sizes: list[int]) -> None:
    seal(store)
    if sizes == [2]:
        assert len(store.split("c", 1, halves(2))) == 1
        return
    with pytest.raises(StoreError, match="batch 1 has 2 requests"):
        store.split("c", 1, halves(*sizes))
    assert [batch.state for batch in store.batches("c")] == [BatchState.SEALED]


def test_a_lease_has_one_holder_until_it_runs_out(out: Store, opened: Callable[[], Store]) -> None:
    other = opened()
    assert out.lease("c", 1, 1, "me", 60.0)
    assert not other.lease("c", 1, 1, "you", 60.0)
    assert out.lease("c", 1, 1, "me", 0.2)  # again, by its holder: another length
    assert not other.lease("c", 1, 1, "you", 60.0, again=True)
    (late,) = wait_for(lambda: other.expired("c"), 10, "the lease's end")
    assert (late.batch, late.number, late.state) == (1, 1, AttemptState.SENDING)
    assert other.lease("c", 1, 1, "you", 60.0)
    assert other.expired("c") == []
    assert not out.lease("c", 1, 1, "me", 60.0, again=True)
    assert not out.lease("c", 1, 1, "me", 60.0)


def test_a_holder_that_is_late_and_was_not_replaced_goes_on(out: Store) -> None:
    assert not out.lease("c", 1, 1, "me", 60.0, again=True)  # it was never taken
    assert out.expired("c") == []
    assert out.lease("c", 1, 1, "me", -1.0)
    assert [late.number for late in out.expired("c")] == [1]
    assert out.lease("c", 1, 1, "me", 60.0, again=True)
    assert out.expired("c") == []


@pytest.mark.parametrize(
    "end", [accept, fail, lambda s: s.give_back("c", 1, 1, None, reason="no", now=5.0)]
)
def test_what_is_over_has_no_lease(out: Store, end: Callable[[Store], object]) -> None:
    assert out.lease("c", 1, 1, "me", -1.0)
    end(out)
    assert out.expired("c") == []
    assert not out.lease("c", 1, 1, "me", 60.0, again=True)
    assert not out.lease("c", 1, 1, "you", 60.0)


def test_only_the_current_attempt_can_be_leased(out: Store) -> None:
    assert out.lease("c", 1, 1, "old", 60.0)
    fail(out)
    out.open_attempt("c", attempt(2))
    assert not out.lease("c", 1, 1, "old", 60.0)
    assert not out.lease("c", 1, 1, "old", 60.0, again=True)
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


def test_of_several_processes_that_make_the_same_step_exactly_one_succeeds(
    where: str, store: Store
) -> None:
    numbers = [seal(store) for _ in range(60)]
    names = ("one", "two", "three")
    won = [
        json.loads(told) for told in answers_of([ready(RACER, where, who, "60") for who in names])
    ]
    for step in ("open", "accept"):
        assert Counter(number for each in won for number in each[step]) == dict.fromkeys(numbers, 1)
    leased = Counter(number for each in won for number in each["lease"])
    assert max(leased.values()) == 1
    assert {batch.state for batch in store.batches("c")} == {BatchState.DONE}
    accepted = {
        a.batch: (a.report["by"], a.part) for a in store.attempts("c", {AttemptState.ACCEPTED})
    }
    by = {number: who for who, each in zip(names, won, strict=True) for number in each["accept"]}
    assert accepted == {number: (who, who) for number, who in by.items()}


LISTED = (
    Miss(url="http://web/0", kind="failed", reason="500", batch=1),
    Miss(url="http://web/1", kind="gone", reason="404", batch=1),
)


def _reopen(store: Store, misses: tuple[Miss, ...]) -> None:
    store.reopen("c", 1, 1, reason="its part is lost", misses=misses, now=9.0)


def test_a_batch_that_is_done_waits_again_and_its_accepted_attempt_counts_no_more(
    out: Store,
) -> None:
    accept(out, 1, 1, misses=LISTED)
    _reopen(out, LISTED)
    batch = out.batch("c", 1)
    assert (batch.state, batch.forgiven, batch.attempts) == (BatchState.FAILED, 0, 1)
    assert batch.tried(batch.attempts) == 0
    (over,) = out.attempts("c")
    assert (over.state, over.reason, over.ended_at) == (AttemptState.FAILED, "its part is lost", 9)
    assert out.misses("c") == []
    out.open_attempt("c", attempt(2))
    accept(out, 1, 2)
    assert [found.number for found in out.attempts("c", {AttemptState.ACCEPTED})] == [2]


@pytest.mark.parametrize("state", [state for state in BatchState if state is not BatchState.DONE])
def test_only_a_batch_that_is_done_can_be_opened_again(store: Store, state: BatchState) -> None:
    last = bring_to(store, state)
    with pytest.raises((StepRefused, NothingMatched)):
        store.reopen("c", 1, last, reason="x", misses=[], now=9.0)
    assert store.batch("c", 1).state is state


def test_a_batch_with_other_misses_stays_done(out: Store) -> None:
    accept(out, 1, 1, misses=LISTED[:1])
    with pytest.raises(StepRefused):
        _reopen(out, LISTED)
    assert out.batch("c", 1).state is BatchState.DONE
    assert out.misses("c") == list(LISTED[:1])
