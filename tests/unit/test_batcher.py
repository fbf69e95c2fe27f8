"""Cutting a stream of requests into batches: by count, by age, by what the fleet can use, and by slot."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.scheduling.batcher import (
    FEWEST,
    HELD,
    UNTRIED,
    BatchDraft,
    Batcher,
    Demand,
    SlotBatcher,
)


def found(number: int, slot: str = "", priority: int = 0) -> FrontierIntake:
    value, fingerprint = {"url": f"http://web/{number}"}, str(number).encode()
    return FrontierIntake(value=value, fingerprint=fingerprint, slot=slot, priority=priority)


def numbers(cuts: list[BatchDraft]) -> list[int]:
    assert all(one == found(int(one.fingerprint)) for cut in cuts for one in cut)
    return [int(one.fingerprint) for cut in cuts for one in cut]


def sizes(cuts: list[BatchDraft]) -> list[int]:
    return [len(cut) for cut in cuts]


def add(cutter: SlotBatcher, count: int) -> list[BatchDraft]:
    """Add so many requests at once; what they fill."""
    return [cut for number in range(count) if (cut := cutter.add(found(number), 0.0))]


@given(size=st.integers(1, 7), count=st.integers(0, 40))
def test_batches_are_full_but_the_last_and_keep_everything_in_order(size: int, count: int) -> None:
    cutter = Batcher(size=size, max_age=60)
    cuts = [cut for n in range(count) if (cut := cutter.add(found(n), 0.0))]
    assert sizes(cuts) == [size] * (count // size)
    assert len(cutter) == count % size
    last = cutter.cut_rest()
    assert sizes(last) == ([count % size] if count % size else [])
    assert numbers(cuts + last) == list(range(count))
    assert cutter.cut_rest() == []


def test_a_batch_is_due_when_its_first_request_has_waited_long_enough() -> None:
    cutter = Batcher(size=10, max_age=5)
    assert cutter.due(1000.0) == []
    cutter.add(found(0), 100.0)
    cutter.add(found(1), 104.0)
    assert cutter.due(104.9) == []
    assert sizes(cutter.due(105.0)) == [2]
    assert cutter.due(1000.0) == []
    cutter.add(found(2), 1000.0)
    assert cutter.due(1004.0) == []  # it begins to wait anew


def test_what_is_found_is_kept_until_the_pace_is_known() -> None:
    fleet = Fleet(Demand(slots=2, idle=2, more=0.0), most=10_000)
    fleet.find(10_000, now=0.0)
    assert fleet.due(0.0) == [UNTRIED] * 2
    assert fleet.due(1.0) == []
    fleet.demand = replace(fleet.demand, pace=300.0)
    assert fleet.due(5.0) == [2250, 2250]  # of 4,500 for each slot: two equal rounds


@dataclass
class Fleet:
    """What a cutter is told, and what it has cut so far."""

    demand: Demand
    most: int = 1000
    max_age: float = 30.0
    found: int = 0
    cuts: list[BatchDraft] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cutter = Batcher(size=self.most, max_age=self.max_age, demand=lambda _: self.demand)

    def find(self, count: int, now: float) -> None:
        for number in range(self.found, self.found + count):
            cut = self.cutter.add(found(number), now)
            self.cuts += [cut] if cut else []
        self.found += count

    def due(self, now: float) -> list[int]:
        cuts = self.cutter.due(now)
        self.cuts += cuts
        self.demand = replace(self.demand, idle=self.demand.idle - len(cuts))
        return sizes(cuts)


@pytest.mark.parametrize(
    ("demand", "count", "now", "cut"),
    [
        # nothing is kept back when all is found
        (Demand(slots=6, idle=6, more=0.0), 65, 0.0, [FEWEST, FEWEST, FEWEST, 5]),
        # every idle slot gets some of the first requests, a moment after the first one
        (Demand(slots=6, idle=6), 300, 0.4, []),
        (Demand(slots=6, idle=6), 300, 0.5, [50] * 6),
        # a few are not spread thinner than a job is worth
        (Demand(slots=6, idle=6), 65, 1.0, [FEWEST] * 3),
        # when all slots work: a minute and a half of work each; one for every slot waits now
        (Demand(slots=4, idle=0, pace=10.0), 10_000, 2.0, [900] * 4),
    ],
)
def test_what_is_cut_fits_what_the_fleet_can_take(
    demand: Demand, count: int, now: float, cut: list[int]
) -> None:
    fleet = Fleet(demand)
    fleet.find(count, now=0.0)
    assert fleet.due(now) == cut
    assert fleet.due(now) == []
    assert len(fleet.cutter) == count - sum(cut)


def test_what_waits_for_long_is_sealed_though_no_slot_needs_it() -> None:
    fleet = Fleet(Demand(slots=4, idle=-4, pace=10.0), most=600)
    fleet.find(1000, now=0.0)
    assert fleet.due(0.0) == []
    fleet.find(1000, now=20.0)
    assert fleet.due(20.0) == []
    assert fleet.due(30.0) == [600, 600]
    assert fleet.due(49.0) == []
    assert fleet.due(50.0) == [600, 200]


def test_a_fleet_that_takes_nothing_is_no_reason_to_keep_requests_in_memory() -> None:
    fleet = Fleet(Demand(slots=0, idle=0), most=10)
    fleet.find(HELD * 10 + 5, now=0.0)
    assert len(fleet.cutter) < HELD * 10


def test_the_last_batches_are_small_but_no_smaller_than_ten_seconds_of_work() -> None:
    fleet = Fleet(Demand(slots=5, idle=-5, pace=20.0))
    fleet.find(5000, now=0.0)
    last = sizes(fleet.cutter.cut_rest())
    assert last == sorted(last[:-1], reverse=True) + last[-1:]
    assert last[0] == 500
    assert min(last[:-1]) == 200
    assert sum(last) == 5000


def test_batches_get_smaller_towards_an_end_that_can_be_foreseen() -> None:
    fleet = Fleet(Demand(slots=5, idle=0, pace=20.0, more=95_000))
    fleet.find(5000, now=0.0)
    assert fleet.due(2.0) == [1000] * 5
    fleet.demand = replace(fleet.demand, idle=0, more=0)
    fleet.find(5000, now=3.0)
    near = fleet.due(4.0)
    assert near[0] == 500
    assert near == sorted(near, reverse=True)


@given(
    most=st.sampled_from([1, 5, 19, 1000]),
    steps=st.lists(
        st.tuples(st.integers(0, 300), st.integers(-9, 9), st.floats(0, 200), st.booleans()),
        max_size=12,
    ),
    slots=st.integers(0, 9),
)
def test_nothing_is_lost_repeated_or_too_large(
    most: int, slots: int, steps: list[tuple[int, int, float, bool]]
) -> None:
    fleet = Fleet(Demand(slots=slots, idle=0), most=most, max_age=3.0)
    for now, (found, idle, pace, known) in enumerate(steps):
        fleet.find(found, now=float(now))
        fleet.demand = Demand(
            slots=slots, idle=min(idle, slots), pace=pace, more=100.0 if known else None
        )
        fleet.due(now + 0.5)
    fleet.cuts += fleet.cutter.cut_rest()
    assert numbers(fleet.cuts) == list(range(fleet.found))
    assert all(1 <= size <= most for size in sizes(fleet.cuts))


def test_250_requests_are_batches_of_100_100_and_50() -> None:
    cutter = SlotBatcher(size=100, max_age=60)
    cuts = [cut for number in range(250) if (cut := cutter.add(found(number), 0.0))]
    assert sizes(cuts + cutter.cut_rest()) == [100, 100, 50]
    assert len(cutter) == 0


PLACES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 1), st.booleans()), max_size=60)


@given(size=st.integers(1, 7), places=PLACES)
def test_every_request_is_in_one_batch_of_its_slot_and_priority_in_order(
    size: int, places: list[tuple[str, int, bool]]
) -> None:
    cutter = SlotBatcher(size=size, max_age=5)
    cuts: list[BatchDraft] = []
    for number, (slot, priority, late) in enumerate(places):
        cut = cutter.add(found(number, slot, priority), float(number))
        cuts += [cut] if cut else []
        cuts += cutter.due(float(number)) if late else []
    cuts += cutter.cut_rest()
    assert len(cutter) == 0
    assert all(0 < len(cut) <= size for cut in cuts)
    for slot, priority in {(slot, priority) for slot, priority, _ in places}:
        mine = [
            one for cut in cuts if (cut[0].slot, cut[0].priority) == (slot, priority) for one in cut
        ]
        assert mine == [
            found(n, s, p) for n, (s, p, _) in enumerate(places) if (s, p) == (slot, priority)
        ]


def test_each_slot_waits_by_itself() -> None:
    cutter = SlotBatcher(size=10, max_age=5)
    cutter.add(found(1, "a"), 100.0)
    cutter.add(found(2, "b"), 103.0)
    assert cutter.due(104.9) == []
    assert [cut[0].slot for cut in cutter.due(105.0)] == ["a"]
    assert [cut[0].slot for cut in cutter.due(108.0)] == ["b"]


def test_the_highest_priority_comes_first() -> None:
    cutter = SlotBatcher(size=10, max_age=5)
    for number, priority in enumerate((0, 5, -1)):
        cutter.add(found(number, priority=priority), 0.0)
    assert [cut[0].priority for cut in cutter.cut_rest()] == [5, 0, -1]


@pytest.mark.parametrize(
    ("most", "cut"), [(100, [20, 20, 20, 100, 100]), (10, [10] * 34), (20, [20] * 17)]
)
def test_the_first_batches_are_small_so_that_each_slot_gets_one(most: int, cut: list[int]) -> None:
    cutter = SlotBatcher(size=most, max_age=60, demand=lambda _: Demand(slots=3, idle=0))
    assert sizes(add(cutter, 340)) == cut


def test_a_slot_of_many_sites_has_no_small_batches() -> None:
    demand = Demand(slots=3, idle=0)
    cutter = SlotBatcher(size=100, max_age=60, demand=lambda _: demand, fair="spread")
    add(cutter, 250)
    assert sizes(cutter.due(1.0)) == [100, 100]


def test_idle_workers_get_what_there_is_before_a_batch_is_full() -> None:
    idle = 0
    cutter = SlotBatcher(size=100, max_age=60, demand=lambda _: Demand(slots=3, idle=idle))
    add(cutter, 3 * FEWEST)
    assert add(cutter, 90) == []
    assert cutter.due(1.0) == []
    idle = 3
    assert cutter.due(0.4) == []  # more may come in a moment
    assert sizes(cutter.due(1.0)) == [30, 30, 30]


@pytest.mark.parametrize(("left", "cut"), [(60, [20, 20, 20]), (90, [30, 30, 30]), (30, [20, 10])])
def test_what_is_left_at_the_end_is_a_share_for_every_slot(left: int, cut: list[int]) -> None:
    cutter = SlotBatcher(size=100, max_age=60, demand=lambda _: Demand(slots=3, idle=0))
    add(cutter, 3 * FEWEST)
    add(cutter, left)
    assert sizes(cutter.cut_rest()) == cut


def test_a_batch_for_an_idle_worker_is_not_too_small_while_there_is_more() -> None:
    slots = 0
    cutter = SlotBatcher(size=100, max_age=60, demand=lambda _: Demand(slots=slots, idle=50))
    add(cutter, FEWEST + 5)
    slots = 50
    assert sizes(cutter.due(1.0)) == [FEWEST, 5]
