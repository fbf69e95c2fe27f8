"""Which pools get workers now, and which lose one: the decision alone, by numbers."""

from dataclasses import replace
from typing import Any

import pytest

from scrapyd_dist.frontier.backlog import SlotCount
from scrapyd_dist.scheduling.scaling_policy import (
    ALL,
    CircuitBreaker,
    ScalingPolicy,
    Workload,
    plan_workers,
    work_in,
)

#: as the manager of HCF has it: one worker on each slot with work, so many at one time
ONE_EACH = ScalingPolicy(most=8, per_slot=1, prefix="p")


def waiting(**slots: int) -> dict[str, Workload]:
    return {slot: Workload(waiting=number) for slot, number in slots.items()}


def eight() -> dict[str, Workload]:
    return waiting(**dict.fromkeys([f"p{number}" for number in range(8)], 3))


def test_a_crawl_has_one_pool_for_all_its_slots_and_one_for_each_other_spider() -> None:
    counts = [
        SlotCount(slot="", batches={"sealed": 2, "done": 9}),
        SlotCount(slot="p1", batches={"failed": 1, "running": 3}),
        SlotCount(slot="@login", batches={"sealed": 4}),
        SlotCount(slot="@shop:login", batches={"split": 1, "dead": 1}),
    ]
    pools = work_in(counts, ScalingPolicy())
    assert pools == {
        ALL: Workload(waiting=3, out=3),
        "@login": Workload(waiting=4),
        "@shop:login": Workload(),
    }
    assert [pool for pool, work in pools.items() if work.over] == ["@shop:login"]
    assert work_in([], ScalingPolicy()) == {ALL: Workload()}  # nothing was added yet
    # With a prefix, other slots are no concern of these workers.
    counts = [SlotCount(slot=slot, batches={"sealed": 1}) for slot in ("p0", "q0", "@login")]
    assert work_in(counts, ONE_EACH).keys() == {"p0", "@login"}


def test_each_slot_with_work_gets_one_worker_and_none_gets_two() -> None:
    assert sorted(plan_workers(eight(), {}, ONE_EACH, room=20).start) == sorted(eight())
    assert plan_workers(eight(), dict.fromkeys(eight(), 1), ONE_EACH, room=20).start == []


def test_a_pool_that_only_fits_on_full_nodes_takes_no_turn_from_others_and_an_idle_worker_makes_room() -> (
    None
):
    pools = {ALL: Workload(), "@shop:login": Workload(waiting=2), "@login": Workload(waiting=1)}
    decision = plan_workers(pools, {ALL: 2}, ScalingPolicy(), room=1, cramped={"@shop:login"})
    assert (decision.start, decision.end) == (["@login"], [ALL])
    decision = plan_workers(
        pools, {ALL: 2, "@shop:login": 1}, ScalingPolicy(), room=1, cramped={"@shop:login"}
    )
    assert (decision.start, decision.end) == (["@login"], [])  # it has one already


def test_room_is_made_where_it_is_of_use_and_anywhere_when_it_is_for_others_as_well() -> None:
    pools = {"p0": Workload(), "p1": Workload(), "@shop:login": Workload(waiting=2)}
    working, each = {"p0": 1, "p1": 1}, ScalingPolicy(per_slot=1)
    decision = plan_workers(pools, working, each, room=0, cramped={"@shop:login"})
    assert (decision.end, decision.only_for) == (["p0", "p1"], ["@shop:login"])
    decision = plan_workers(
        {**pools, "p2": Workload(waiting=1)}, working, each, room=0, cramped={"@shop:login"}
    )
    assert (decision.end, decision.only_for) == (["p0", "p1"], ())
    decision = plan_workers(
        pools, working, replace(each, most=2), room=9
    )  # there is room, and may not be more of them
    assert (decision.end, decision.only_for) == (["p0", "p1"], ())


@pytest.mark.parametrize(
    ("most", "running", "started"), [(8, 6, 2), (8, 8, 0), (2, 5, 0), (0, 5, 3)]
)
def test_never_more_than_asked_for_also_when_that_was_lowered_while_more_run(
    most: int, running: int, started: int
) -> None:
    working = {f"p{number}": 1 for number in range(running)}
    staffing = ScalingPolicy(most=most, per_slot=1, prefix="p")
    assert len(plan_workers(eight(), working, staffing, room=20).start) == started


def test_several_workers_on_a_slot_come_after_every_slot_has_one() -> None:
    staffing = ScalingPolicy(per_slot=2, prefix="p")
    start = plan_workers(waiting(p0=5, p1=5, p2=1), {}, staffing, room=4).start
    assert sorted(start[:3]) == ["p0", "p1", "p2"]
    assert sorted(plan_workers(waiting(p0=5, p1=5, p2=1), {}, staffing, room=9).start) == [
        "p0",
        "p0",
        "p1",
        "p1",
        "p2",
    ]


def crawl(batches: int = 0) -> dict[str, Workload]:
    return waiting(**{ALL: batches})


ANY, THREE = ScalingPolicy(), ScalingPolicy(most=3)


@pytest.mark.parametrize(
    ("pools", "working", "scaling", "options", "start"),
    [
        pytest.param(
            waiting(p0=0, p1=1, p2=5),
            {"p2": 1},
            ONE_EACH,
            {},
            ["p1"],
            id="no work, or a worker already",
        ),
        pytest.param(waiting(p0=1, p1=1), {}, ONE_EACH, {"closed": {"p0"}}, ["p1"], id="closed"),
        pytest.param(
            eight(),
            {},
            ONE_EACH,
            {"room": 3},
            ["p0", "p1", "p2"],
            id="as many as there is room for",
        ),
        pytest.param(eight(), {}, ONE_EACH, {"room": -2}, [], id="no room"),
        # nothing takes the place of a worker that has done what its settings wanted
        pytest.param(crawl(9), {ALL: 1}, THREE, {"retired": {ALL: 1}}, [ALL], id="one is retired"),
        pytest.param(crawl(9), {}, THREE, {"retired": {ALL: 3}}, [], id="all are retired"),
        pytest.param(
            waiting(p0=2),
            {},
            ONE_EACH,
            {"retired": {"p0": 1}},
            [],
            id="that of the slot is retired",
        ),
        # workers that take from everywhere
        pytest.param(crawl(), {}, ANY, {"early": 6}, [ALL] * 6, id="before there is work"),
        pytest.param(
            crawl(),
            {},
            ScalingPolicy(most=4),
            {"early": 6},
            [ALL] * 4,
            id="before, as many as are allowed",
        ),
        pytest.param(crawl(), {}, ANY, {"room": 6}, [], id="no work is to come"),
        pytest.param(
            crawl(), {ALL: 6}, ANY, {"room": 2, "early": 6}, [], id="room that is learned of later"
        ),
        pytest.param(
            crawl(7), {ALL: 6}, ANY, {"room": 2, "early": 6}, [ALL], id="such room, and work for it"
        ),
        pytest.param(
            crawl(3), {ALL: 3}, ANY, {"room": 6}, [], id="its workers will take that anyway"
        ),
        pytest.param(
            crawl(5), {ALL: 3}, ANY, {"room": 6}, [ALL] * 2, id="more than its workers will take"
        ),
        pytest.param(
            crawl(9) | waiting(**{"@login": 1}),
            {ALL: 5},
            ANY,
            {"room": 1, "early": 9},
            ["@login"],
            id="other spider",
        ),
    ],
)
def test_how_many_workers_are_started(
    pools: dict[str, Workload],
    working: dict[str, int],
    scaling: ScalingPolicy,
    options: Any,
    start: list[str],
) -> None:
    assert list(plan_workers(pools, working, scaling, **{"room": 9, **options}).start) == start


def test_a_slot_without_a_name_is_one_slot_and_not_all() -> None:
    counts = [
        SlotCount(slot="", batches={"sealed": 2}),
        SlotCount(slot="p1", batches={"sealed": 2}),
    ]
    pools = work_in(counts, ScalingPolicy(per_slot=1))
    assert pools == {"": Workload(waiting=2), "p1": Workload(waiting=2)}
    assert sorted(plan_workers(pools, {}, ScalingPolicy(per_slot=1), room=9, early=9).start) == [
        "",
        "p1",
    ]


def test_an_idle_worker_makes_room_for_a_pool_that_has_work_and_no_worker() -> None:
    pools = {ALL: Workload(), "@login": Workload(waiting=1)}
    decision = plan_workers(pools, {ALL: 2}, ScalingPolicy(most=2), room=5)
    assert (decision.start, decision.end) == ([], [ALL])
    busy = {ALL: Workload(out=1), "@login": Workload(waiting=1)}
    assert plan_workers(busy, {ALL: 2}, ScalingPolicy(most=2), room=5).end == []


def test_a_node_whose_workers_do_nothing_gets_no_more_of_them() -> None:
    failures = CircuitBreaker(attempts=4)
    assert [failures.failed(ALL, "one", "no such table", begun=False) for _ in range(2)] == ["", ""]
    assert "no such table" in failures.failed(ALL, "one", "no such table", begun=False)
    assert failures.unfit == {"one"}
    assert failures.closed == {}


def test_what_was_done_in_between_is_forgiven() -> None:
    failures = CircuitBreaker(attempts=1)
    for _ in range(20):
        failures.failed("p0", "one", "killed", begun=True)
        failures.failed("p0", "one", "killed", begun=False)
        failures.worked("p0", "one")
    assert (failures.closed, failures.unfit) == ({}, set())


def test_a_pool_is_closed_when_more_workers_died_on_it_than_one_batch_can_kill() -> None:
    failures = CircuitBreaker(attempts=4)
    for _ in range(7):
        failures.failed("p0", "one", "killed", begun=True)
        failures.failed("p1", "two", "killed", begun=True)
        failures.worked("p1")
    assert failures.closed == {}
    failures.failed("p0", "two", "killed by signal 9", begun=True)
    assert "killed by signal 9" in failures.closed["p0"]
    assert failures.closed.keys() == {"p0"}


def test_one_refusal_may_be_a_node_that_lost_the_code() -> None:
    failures = CircuitBreaker(attempts=4)
    assert not failures.refused("@nobody", "spider 'nobody' not found")
    assert failures.refused("@nobody", "spider 'nobody' not found")
    assert failures.unknown == {"@nobody"}
