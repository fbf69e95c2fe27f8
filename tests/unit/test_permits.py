"""The arithmetic of rolling windows: whatever is taken and handed back, no window has too much; and nothing is lost."""

import itertools
from bisect import insort
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapyd_dist.throttle.permits import WindowTerms, moments

EVEN = WindowTerms(window=4_000, gap=200)
BURST = WindowTerms(hits=3, window=100)
#: earlier than any moment
NEVER = -(1 << 62)
TERMS = [
    EVEN,
    BURST,
    WindowTerms(hits=1, window=50),
    WindowTerms(hits=4, window=100, gap=7),
    WindowTerms(gap=1),
    WindowTerms(gap=60),
]
terms = st.sampled_from(TERMS)


class Ledger:
    """The grants of one key, kept as an engine keeps them."""

    def __init__(self) -> None:
        self.grants: list[int] = []
        self.full, self.terms = NEVER, WindowTerms()

    def take(self, terms: WindowTerms, count: int, now: int) -> list[int]:
        full = self.full if terms == self.terms else NEVER
        given = granted(self.grants, terms, count, max(now, full))
        for at in given:
            insort(self.grants, at)
        self.full, self.terms = given[-1], terms
        self.grants = [at for at in self.grants if at >= now - terms.memory]
        return given

    def give_back(self, at: int) -> None:
        if at in self.grants:
            self.grants.remove(at)
            self.full = NEVER


def granted(grants: list[int], terms: WindowTerms, count: int, start: int) -> list[int]:
    return moments(count, start, [at for at in grants if at > start - terms.reach], terms)


def keeps(grants: list[int], terms: WindowTerms, at: int) -> bool:
    """Whether no window with the grant of this moment has more than its hits, and its neighbours are far enough."""
    place = grants.index(at)
    near = all(
        later - earlier >= terms.gap
        for earlier, later in pairwise(grants[max(0, place - 1) : place + 2])
    )
    if not terms.hits:
        return near
    runs = (
        grants[first : first + terms.hits + 1]
        for first in range(max(0, place - terms.hits), place + 1)
    )
    return near and all(run[-1] - run[0] >= terms.window for run in runs if len(run) > terms.hits)


@pytest.mark.parametrize("some", TERMS)
def test_endless_asking_gets_all_that_there_is_and_one_by_one_or_all_at_once_is_the_same(
    some: WindowTerms,
) -> None:
    ledger = Ledger()
    given = [at for _ in range(30) for at in ledger.take(some, 4, 1_000)]
    hits = some.hits or 1
    span = max(some.window if some.hits else 0, hits * some.gap)
    assert given == [
        1_000 + number // hits * span + number % hits * some.gap for number in range(120)
    ]
    one, other = Ledger(), Ledger()
    assert [one.take(some, 1, 5)[0] for _ in range(20)] == other.take(some, 20, 5)


#: what is taken, and handed back (alone), one after the other -> what is taken last
STEPS: dict[str, tuple[list[tuple[WindowTerms, int, int] | int], list[int]]] = {
    "nothing is caught up after a rest": ([(EVEN, 3, 0), (EVEN, 3, 90_000)], [90_000, 90_200, 90_400]),
    "a moment that was handed back is given out again": ([(EVEN, 5, 0), 400, (EVEN, 2, 10)], [400, 1_000]),
    "unless it has passed": ([(EVEN, 3, 0), 200, (EVEN, 1, 300)], [600]),
    "of a burst that was handed back the place is free": ([(BURST, 3, 0), 1, (BURST, 2, 10)], [10, 100]),
    "also before grants of the next window": ([(BURST, 4, 0), 1, (BURST, 2, 10)], [10, 102]),
    "a faster limit uses the gaps of the slower one": (
        [(EVEN, 3, 0), (WindowTerms(gap=100), 3, 0)], [100, 300, 500],
    ),
    "a slower limit counts what the faster one gave out": ([(WindowTerms(gap=10), 5, 0), (EVEN, 2, 0)], [240, 440]),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "last"), STEPS.values(), ids=STEPS)
def test_what_is_given_out(
    steps: list[tuple[WindowTerms, int, int] | int], last: list[int]
) -> None:
    ledger, given = Ledger(), list[int]()
    for step in steps:
        if isinstance(step, int):
            ledger.give_back(step)
        else:
            given = ledger.take(*step)
    assert given == last


@settings(max_examples=100)
@given(
    hands=st.lists(st.integers(1, 3), min_size=4, max_size=9),
    returned=st.integers(0, 2),
    early=st.booleans(),
    dice=st.randoms(use_true_random=False),
)
def test_the_place_is_used_once_each_has_asked_again_for_what_it_has_of_the_next_windows(
    hands: list[int], returned: int, early: bool, dice: Random
) -> None:
    ledger = Ledger()
    given = [ledger.take(BURST, count, number) for number, count in enumerate(hands)]
    ledger.give_back(sorted(itertools.chain(*given))[returned])
    far = [kept for taken in given if (kept := [at for at in taken if at >= BURST.window])]
    dice.shuffle(far)
    if early:  # one that has none of the next windows is asked first
        ledger.take(BURST, 1, 20)
    for mine in far:
        for at in mine:
            ledger.give_back(at)
        ledger.take(BURST, len(mine), 20)
    assert sum(at < BURST.window for at in ledger.grants) == BURST.hits


def test_what_a_site_asks_for_holds_between_the_keys_of_its_domain() -> None:
    both = WindowTerms(gap=200, apart=50)
    assert moments(3, 0, [], both, [20, 190, 260, 480]) == [70, 310, 530]
    assert moments(3, 0, [], EVEN, [20, 190, 260, 480]) == [0, 200, 400]
    # What keeps away from another key's grant may come too near to one of its own.
    assert moments(1, 20, [100], WindowTerms(gap=50, apart=50), [60]) == [150]


#: taking some, handing one of the last ones back, or letting time pass
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 7)),
        st.tuples(st.just("give back"), st.integers(0, 12)),
        st.tuples(st.just("wait"), st.integers(1, 150)),
    ),
    min_size=5,
    max_size=60,
)


class Taken(NamedTuple):
    """What was granted by this limit, at this time; with all grants that the ledger had before, and ever."""

    by: WindowTerms
    at: list[int]
    now: int
    before: list[int]
    ever: list[int]


def played(
    ledger: Ledger, steps: list[tuple[str, int]], changes: list[WindowTerms], most: int = 7
) -> Iterator[Taken]:
    now, ever = 1_000, list[int]()
    for place, (what, number) in enumerate(steps):
        if what == "wait":
            now += number
        elif what == "give back" and ever:
            ledger.give_back(ever.pop(-min(number + 1, len(ever))))
        elif what == "take":
            by, before = changes[place * len(changes) // len(steps)], list(ledger.grants)
            got = ledger.take(by, min(number, most), now)
            ever = sorted([*ever, *got])
            assert got[0] >= now
            yield Taken(by, got, now, before, ever)


@settings(max_examples=150)
@given(some=terms, steps=steps)
def test_no_window_has_more_than_its_hits_whatever_was_done(
    some: WindowTerms, steps: list[tuple[str, int]]
) -> None:
    for taken in played(Ledger(), steps, [some]):
        assert all(keeps(taken.ever, some, at) for at in taken.at)


@settings(max_examples=100)
@given(steps=steps, changes=st.lists(st.sampled_from(TERMS), min_size=1, max_size=4))
def test_what_is_known_to_be_full_changes_no_answer(
    steps: list[tuple[str, int]], changes: list[WindowTerms]
) -> None:
    ledger = Ledger()
    for taken in played(ledger, steps, changes):
        assert taken.at == granted(taken.before, taken.by, len(taken.at), taken.now)
        assert all(keeps(ledger.grants, taken.by, at) for at in taken.at)


@settings(max_examples=100)
@given(steps=steps, some=terms)
def test_nothing_earlier_would_have_done(steps: list[tuple[str, int]], some: WindowTerms) -> None:
    for taken in played(Ledger(), steps, [some], most=1):
        earlier = range(taken.now, taken.at[0])
        assert not any(keeps(sorted([*taken.before, at]), some, at) for at in earlier)
