"""Which node gets the next batch, and what a node tells about its room."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.batches import Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.node_state import AHEAD, SLOTS_UNKNOWN, JobRun, NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scrapyd.api import Load


def member(name: str, *, slots: int | None = 2, out: int = 0, **fields: Any) -> NodeState:
    made = NodeState(node=Node.parse(f"{name}:6800", name=name, slots=slots), **{"prepared": True, **fields})
    for number in range(out):
        put(made, number)
    return made


def put(where: NodeState, number: int, **fields: Any) -> JobRun:
    values: dict[str, Any] = {"batch": Batch(number=number, size=2), "number": 1, "since": 100.0, "start_by": 200.0}
    where.out[str(number)] = JobRun(job=str(number), member=where, **{**values, **fields})
    return where.out[str(number)]


def report(**fields: Any) -> WorkerReport:
    values: dict[str, Any] = {
        "ended": False,
        "updated": 1.0,
        "requests": 10,
        "done": 0,
        "missed": 0,
        "pages": 0,
        "items": 0,
    }
    return WorkerReport(**{**values, **fields})


def load(running: int, pending: int = 0) -> Load:
    return Load(pending=pending, running=running, finished=0, node_name="n", date=None)


def names(placement: Placement, members: list[NodeState], count: int) -> list[str]:
    chosen = []
    for number in range(count):
        found = placement.choose(members)
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
    members[1].missed("gone", 1.0)
    assert names(placement, members, 3) == ["a", "c", "a"]
    members[1].seen(load(0))
    assert names(placement, members, 3) == ["b", "c", "a"]


def test_least_loaded_looks_at_jobs_per_slot() -> None:
    members = [member("small", slots=1), member("large", slots=4)]
    chosen = names(Placement("least-loaded"), members, 10)
    assert chosen.count("small") == 1 + AHEAD
    assert chosen[:5].count("large") == 4


@given(
    kind=st.sampled_from(Placement.KINDS),
    state=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 6), st.booleans(), st.booleans()), min_size=1, max_size=5
    ),
    avoid=st.integers(0, 5),
)
def test_a_chosen_node_always_has_room_and_is_avoided_only_when_another_can(kind: str, state: Any, avoid: int) -> None:
    members = [
        member(f"n{n}", slots=slots, out=out, prepared=prepared, unfit="" if fit else "broken")
        for n, (slots, out, prepared, fit) in enumerate(state)
    ]
    chosen = Placement(kind).choose(members, avoid=f"n{avoid}")
    free = {m.node.name for m in members if m.room() > 0}
    others = free - {f"n{avoid}"}
    waiting_makes_sense = any(m.usable and m.node.name != f"n{avoid}" for m in members)
    if chosen is None:
        assert not free or (not others and waiting_makes_sense)
    else:
        assert chosen.node.name in (others or free)


def test_no_node_has_room_while_it_is_down_not_prepared_or_unfit() -> None:
    assert member("a").room() == 2 + AHEAD
    assert member("a", out=4).room() == 0
    assert member("a", prepared=False).room() == 0
    assert member("a", unfit="says no").room() == 0
    assert member("a", down_since=1.0).room() == 0


def test_stated_slots_are_believed() -> None:
    node = member("a", slots=2)
    for _ in range(5):
        node.seen(load(9, pending=9))
    assert node.slots == 2


def test_batches_are_cut_for_slots_that_a_node_has_shown() -> None:
    node = member("a", slots=None)
    assert (node.likely_slots, node.idle_slots) == (1, 1)
    node.seen(load(running=1))
    assert node.likely_slots == 2
    node.seen(load(running=1, pending=1))
    node.seen(load(running=1, pending=1))
    assert (node.slots, node.likely_slots) == (1, 1)
    assert member("b", slots=3, out=1).idle_slots == 2


def test_slots_that_are_not_stated_are_learned() -> None:
    node = member("a", slots=None)
    assert node.slots == SLOTS_UNKNOWN
    node.seen(load(7))
    assert node.slots == 7  # more run than were thought possible
    node.seen(load(7))
    assert node.slots == 8  # all in use and none waits: there may be more
    node.seen(load(3, pending=2))
    assert node.slots == 8  # jobs are started one by one: one look proves nothing
    node.seen(load(3, pending=2))
    assert node.slots == 3
    node.seen(load(0, pending=2))
    node.seen(load(0, pending=2))
    assert node.slots == 3  # a node that starts nothing has not no slots


def test_a_node_that_is_missed_is_down_since_the_first_time_and_up_when_it_answers() -> None:
    node = member("a")
    node.missed("refused", 5.0)
    node.missed("timed out", 9.0)
    assert (node.up, node.down_since, node.down_reason) == (False, 5.0, "timed out")
    node.seen(load(0))
    assert (node.up, node.down_reason) == (True, "")


def test_what_is_left_is_judged_by_the_pace_so_far() -> None:
    out = put(member("a"), 1, since=100.0)
    assert out.left(110.0) == 0.0
    out.heard(report(done=0), 110.0)
    assert out.left(110.0) == 0.0
    out.heard(report(done=1, missed=1), 110.0)
    assert out.left(110.0) == pytest.approx(40.0)


def test_a_report_is_news_only_when_it_changed() -> None:
    out = put(member("a"), 1)
    assert out.heard(report(), 110.0) is True
    assert out.heard(report(), 120.0) is False
    assert out.changed == 110.0
    assert out.heard(report(updated=2.0), 130.0) is False
    assert out.changed == 130.0


def test_progress_adds_up_what_is_out() -> None:
    node = member("a")
    for number in (1, 2):
        put(node, number).heard(report(done=2, missed=1, pages=5, items=4), 1.0)
    put(node, 3)
    assert node.progress() == (6, 10, 8)
