"""Which node gets which batch: in turn, by load, or by what it has to do and how fast it is."""

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.members import load, member, paced, put
from rig.simulated_fleet import Machine, Rule, Simulation
from rig.steps import growth

from scrapyd_dist.batches import Batch
from scrapyd_dist.scheduling import placement
from scrapyd_dist.scheduling.node_state import AHEAD, NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.readiness import Readiness


def chosen_by(
    placement: Placement, members: list[NodeState], *, avoid: str = ""
) -> NodeState | None:
    dealt = placement.deal([Batch(number=0, size=1)], members, requests=1, avoid={0: avoid})
    return dealt[0][1] if dealt else None


def names(placement: Placement, members: list[NodeState], count: int) -> list[str]:
    chosen = []
    for number in range(count):
        found = chosen_by(placement, members)
        chosen.append(found.node.name if found else "-")
        if found:
            put(found, 1000 + number)
    return chosen


def test_round_robin_goes_around_and_skips_who_has_no_room() -> None:
    members = [member("a", slots=1), member("b", slots=3), member("c", slots=1)]
    assert names(Placement("round-robin"), members, 13) == [*"abcabcabcbb", "-", "-"]


def test_round_robin_goes_on_where_it_was_when_a_node_comes_back() -> None:
    members = [member("a"), member("b"), member("c")]
    placement = Placement("round-robin")
    members[1].liveness.missed("gone", 1.0)
    assert names(placement, members, 3) == ["a", "c", "a"]
    members[1].seen(load(0))
    assert names(placement, members, 3) == ["b", "c", "a"]


def test_least_loaded_looks_at_jobs_per_slot() -> None:
    members = [member("small", slots=1), member("large", slots=4)]
    chosen = names(Placement("least-loaded"), members, 10)
    assert chosen.count("small") == 1 + AHEAD
    assert chosen[:5].count("large") == 4


STATES = st.tuples(st.integers(1, 3), st.integers(0, 6), st.booleans(), st.booleans())


@given(
    st.sampled_from(Placement.KINDS), st.lists(STATES, min_size=1, max_size=5), st.integers(0, 5)
)
def test_a_chosen_node_always_has_room_and_is_avoided_only_when_another_can(
    kind: str, state: Any, avoid: int
) -> None:
    members = [
        member(
            f"n{n}",
            slots=slots,
            out=out,
            readiness=Readiness(prepared=prepared, unfit="" if fit else "broken"),
        )
        for n, (slots, out, prepared, fit) in enumerate(state)
    ]
    chosen = chosen_by(Placement(kind), members, avoid=f"n{avoid}")
    free = {m.node.name for m in members if m.room() > 0}
    others = free - {f"n{avoid}"}
    waiting_makes_sense = any(m.usable and m.node.name != f"n{avoid}" for m in members)
    if chosen is None:
        assert not free or (not others and waiting_makes_sense)
    else:
        assert chosen.node.name in (others or free)


# placement by what nodes have to do and how fast they are

OLD, NEW = Rule(placement="round-robin", adapt=False), Rule(placement="by-capacity", adapt=True)


def dealt(
    members: list[NodeState], *sizes: int, kind: str = "by-capacity", **hand: Any
) -> list[tuple[int, str]]:
    waiting = [Batch(number=number, size=size) for number, size in enumerate(sizes, 1)]
    found = Placement(kind).deal(waiting, members, requests=sum(sizes), **hand)
    return [(batch.number, one.node.name) for batch, one in found]


def test_a_free_fast_node_comes_first() -> None:
    members = [paced("slow", pace=2.0), paced("fast", pace=20.0), paced("new")]
    assert dealt(members, 100) == [(1, "fast")]


def test_equal_nodes_are_filled_evenly() -> None:
    members = [
        paced(name, slots=2, pace=pace) for name, pace in (("a", 10.0), ("b", 10.4), ("c", 9.8))
    ]
    assert sorted(name for _, name in dealt(members, *[50] * 3)) == ["a", "b", "c"]


def test_who_has_less_to_do_is_taken_before_who_is_busy() -> None:
    members = [paced("busy", pace=10.0, to_do=(100,)), paced("ending", pace=10.0, to_do=(10,))]
    assert dealt(members, 100) == [(1, "ending")]


def test_other_peoples_jobs_count() -> None:
    members = [paced("shared", slots=2, others=1, pace=10.0), paced("own", slots=2, pace=10.0)]
    assert [name for _, name in dealt(members, 50, 50, 50)].count("own") == 2


def test_a_slow_node_does_not_hold_the_end_with_a_large_batch_and_may_have_a_small_one() -> None:
    members = [paced("slow", pace=1.0), paced("fast", slots=2, pace=20.0, to_do=(400, 400))]
    assert dealt(members, 400, closing=True) == []
    assert dealt(members, 400, 10, closing=True) == [(2, "slow")]
    assert dealt(members, 400) == [(1, "slow")]  # while more is found, every slot helps
    assert dealt([members[0]], 400, closing=True) == [(1, "slow")]


def test_a_batch_avoids_its_last_node_while_another_one_works() -> None:
    members = [paced("a"), paced("b", slots=1, to_do=(9, 9, 9))]
    assert dealt(members, 50, avoid={1: "a"}) == []
    assert dealt(members[:1], 50, avoid={1: "a"}) == [(1, "a")]


@pytest.mark.parametrize("kind", Placement.KINDS)
def test_no_more_is_dealt_than_is_allowed_or_fits(kind: str) -> None:
    members = [paced("a", slots=2), paced("b", slots=1)]
    assert len(dealt(members, *[10] * 20, kind=kind)) == 3 + 2 * AHEAD
    assert len(dealt(members, *[10] * 20, kind=kind, limit=2)) == 2
    assert dealt(members, 10, kind=kind, limit=0) == []


def test_a_thousand_nodes_are_dealt_with_in_a_moment() -> None:
    members = [paced(f"n{number}", slots=2) for number in range(1000)]
    begun = time.process_time()
    assert len(dealt(members, *[10] * 4000)) == 4000
    assert time.process_time() - begun < 2.0


# on simulated fleets


def fleet(nodes: int, *, equal: bool) -> list[Machine]:
    dice = random.Random(1)
    if equal:
        return [Machine(slots=2, speed=5.0)] * nodes
    return [
        Machine(slots=dice.choice((1, 2, 4)), speed=dice.choice((1.0, 2.0, 10.0)))
        for _ in range(nodes)
    ]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("failures", [0.0, 0.3])
def test_the_program_s_own_way_takes_less_time_than_turns_and_large_batches(
    equal: bool, failures: float
) -> None:
    machines = fleet(8, equal=equal)
    requests = round(sum(machine.slots * machine.speed for machine in machines) * 200)
    old, new = (
        Simulation(machines, requests, rule, seed=3, failures=failures) for rule in (OLD, NEW)
    )
    before, after = old.run(), new.run()
    assert after.seconds < before.seconds
    assert after.idle < before.idle
    assert after.tail < before.tail
    assert not new.overfull, "a node was given more than it can start soon"


@pytest.mark.parametrize("kind", Placement.KINDS)
def test_what_is_dealt_costs_the_same_however_many_batches_wait(kind: str) -> None:
    members = [paced("a", slots=2, pace=1.0), paced("b", slots=2, pace=2.0)]

    def deal_some(number: int) -> Callable[[], object]:
        waiting = [Batch(number=at, size=3) for at in range(number)]
        return lambda: Placement(kind).deal(waiting, members, requests=3 * number)

    assert growth(deal_some, 50, placement) < 1.5
