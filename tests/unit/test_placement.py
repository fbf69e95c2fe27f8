"""Placement by what nodes have to do and how fast they are; and on simulated fleets, what it gives."""

import random
import time
from typing import Any

import pytest
from simulated import Machine, Rule, Simulation

from scrapyd_dist.batches import Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import AHEAD, JobRun, NodeState, settled_pace, typical_pace
from scrapyd_dist.scheduling.placement import Placement

OLD, NEW = Rule(placement="round-robin", adapt=False), Rule(placement="by-capacity", adapt=True)


def member(name: str, *, slots: int = 1, pace: float = 0.0, to_do: tuple[int, ...] = (), **fields: Any) -> NodeState:
    """A node that has so many requests left in each of its jobs."""
    made = NodeState(node=Node.parse(f"{name}:6800", name=name, slots=slots), prepared=True, pace=pace, **fields)
    made.unproven = not pace
    for number, left in enumerate(to_do):
        batch = Batch(number=1000 + number, size=left)
        made.out[f"{number}"] = JobRun(batch=batch, number=1, job=f"{number}", member=made, since=0.0, start_by=0.0)
    return made


def dealt(members: list[NodeState], *sizes: int, kind: str = "by-capacity", **hand: Any) -> list[tuple[int, str]]:
    waiting = [Batch(number=number, size=size) for number, size in enumerate(sizes, 1)]
    return [(batch.number, one.node.name) for batch, one in Placement(kind).deal(waiting, members, **hand)]


def test_a_free_fast_node_comes_first() -> None:
    members = [member("slow", pace=2.0), member("fast", pace=20.0), member("new")]
    assert dealt(members, 100) == [(1, "fast")]


def test_equal_nodes_are_filled_evenly() -> None:
    members = [member(name, slots=2, pace=pace) for name, pace in (("a", 10.0), ("b", 10.4), ("c", 9.8))]
    assert sorted(name for _, name in dealt(members, *[50] * 3)) == ["a", "b", "c"]


def test_who_has_less_to_do_is_taken_before_who_is_busy() -> None:
    members = [member("busy", pace=10.0, to_do=(100,)), member("ending", pace=10.0, to_do=(10,))]
    assert dealt(members, 100) == [(1, "ending")]


def test_other_peoples_jobs_count() -> None:
    members = [member("shared", slots=2, others=1, pace=10.0), member("own", slots=2, pace=10.0)]
    assert [name for _, name in dealt(members, 50, 50, 50)].count("own") == 2


def test_jobs_wait_on_a_node_only_for_those_that_end_soon() -> None:
    assert member("new", slots=2).room() == 2 + AHEAD
    assert member("known", slots=2, pace=10.0).room() == 2
    assert member("long", slots=2, pace=10.0, to_do=(500, 500)).room() == 0
    assert member("soon", slots=2, pace=10.0, to_do=(500, 50)).room() == 1


def test_a_slow_node_does_not_hold_the_end_with_a_large_batch_and_may_have_a_small_one() -> None:
    members = [member("slow", pace=1.0), member("fast", slots=2, pace=20.0, to_do=(400, 400))]
    assert dealt(members, 400, closing=True) == []
    assert dealt(members, 400, 10, closing=True) == [(2, "slow")]
    assert dealt(members, 400) == [(1, "slow")]  # while more is found, every slot helps
    assert dealt([members[0]], 400, closing=True) == [(1, "slow")]


def test_a_batch_avoids_its_last_node_while_another_one_works() -> None:
    members = [member("a"), member("b", slots=1, to_do=(9, 9, 9))]
    assert dealt(members, 50, avoid={1: "a"}) == []
    assert dealt(members[:1], 50, avoid={1: "a"}) == [(1, "a")]


@pytest.mark.parametrize("kind", Placement.KINDS)
def test_no_more_is_dealt_than_is_allowed_or_fits(kind: str) -> None:
    members = [member("a", slots=2), member("b", slots=1)]
    assert len(dealt(members, *[10] * 20, kind=kind)) == 3 + 2 * AHEAD
    assert len(dealt(members, *[10] * 20, kind=kind, limit=2)) == 2
    assert dealt(members, 10, kind=kind, limit=0) == []


def test_the_pace_of_the_fleet_counts_slow_slots_fully_and_waits_for_most() -> None:
    members = [member("fast", slots=4, pace=20.0), member("slow", slots=4, pace=4.0)]
    assert typical_pace(members) == pytest.approx(8 / (4 / 20 + 4 / 4))
    assert settled_pace([members[0], member("unknown", slots=4)]) == 0.0
    assert settled_pace(members) == typical_pace(members)
    assert typical_pace([]) == settled_pace([]) == 0.0


def test_a_running_jobs_pace_stands_for_the_node_until_one_has_ended() -> None:
    one = member("a", to_do=(100,))
    values: dict[str, Any] = {"requests": 100, "missed": 0, "pages": 0, "items": 0, "started": 10.0}
    one.out["0"].heard(WorkerReport(ended=False, updated=12.0, done=40, **values), 12.0)
    assert (one.pace, one.out["0"].to_do) == (20.0, 60)
    one.accepted(WorkerReport(ended=True, updated=20.0, done=100, **values))
    assert one.pace == 10.0
    one.accepted(WorkerReport(ended=True, updated=15.0, done=100, **values))
    assert 10.0 < one.pace < 20.0


def test_a_thousand_nodes_are_dealt_with_in_a_moment() -> None:
    members = [member(f"n{number}", slots=2) for number in range(1000)]
    begun = time.process_time()
    assert len(dealt(members, *[10] * 4000)) == 4000
    assert time.process_time() - begun < 2.0


# on simulated fleets


def fleet(nodes: int, *, equal: bool) -> list[Machine]:
    dice = random.Random(1)
    if equal:
        return [Machine(slots=2, speed=5.0)] * nodes
    return [Machine(slots=dice.choice((1, 2, 4)), speed=dice.choice((1.0, 2.0, 10.0))) for _ in range(nodes)]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("failures", [0.0, 0.3])
def test_the_program_s_own_way_takes_less_time_than_turns_and_large_batches(equal: bool, failures: float) -> None:
    machines = fleet(8, equal=equal)
    requests = round(sum(machine.slots * machine.speed for machine in machines) * 200)
    old, new = (Simulation(machines, requests, rule, seed=3, failures=failures) for rule in (OLD, NEW))
    before, after = old.run(), new.run()
    assert after.seconds < before.seconds
    assert after.idle < before.idle
    assert after.tail < before.tail
    assert not new.overfull, "a node was given more than it can start soon"
