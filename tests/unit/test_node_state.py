"""What a scheduler knows of a node (room, pace, wedged or down, the next poll), and which node gets which batch."""

import random
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Machine, Rule, Simulation

from scrapyd_dist.batches import Batch, Crawl
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress import learned_slots
from scrapyd_dist.scheduling import node_state
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import (
    AHEAD,
    IdleWatch,
    JobRun,
    NodeState,
    settled_pace,
    typical_pace,
)
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scrapyd.api import Load


def member(name: str, *, slots: int | None = 2, out: int = 0, **fields: Any) -> NodeState:
    made = NodeState(
        node=Node.parse(f"{name}:6800", name=name, slots=slots), **{"prepared": True, **fields}
    )
    for number in range(out):
        put(made, number)
    return made


def put(where: NodeState, number: int, kind: Any = JobRun, **fields: Any) -> Any:
    values: dict[str, Any] = {
        "batch": Batch(number=number, size=2),
        "number": 1,
        "since": 100.0,
        "start_by": 200.0,
    }
    where.out[str(number)] = kind(job=str(number), member=where, **{**values, **fields})
    return where.out[str(number)]


def report(**fields: Any) -> WorkerReport:
    counts = dict.fromkeys(("done", "missed", "pages", "items"), 0)
    return WorkerReport(**{"ended": False, "updated": 1.0, "requests": 10, **counts, **fields})


def load(running: int, pending: int = 0) -> Load:
    return Load(pending=pending, running=running, finished=0, node_name="n", date=None)


def chosen_by(
    placement: Placement, members: list[NodeState], *, avoid: str = ""
) -> NodeState | None:
    dealt = placement.deal([Batch(number=0, size=1)], members, avoid={0: avoid})
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
    members[1].missed("gone", 1.0)
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
        member(f"n{n}", slots=slots, out=out, prepared=prepared, unfit="" if fit else "broken")
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


def test_no_node_has_room_while_it_is_down_not_prepared_or_unfit() -> None:
    assert member("a").room() == 2 + AHEAD
    assert member("a", out=4).room() == 0
    assert member("a", prepared=False).room() == 0
    assert member("a", unfit="says no").room() == 0
    assert member("a", down_since=1.0).room() == 0


def test_batches_are_cut_for_slots_that_a_node_has_shown() -> None:
    node = member("a", slots=None)
    assert (node.likely_slots, node.idle_slots) == (1, 1)
    node.seen(load(running=1))
    assert node.likely_slots == 2
    node.seen(load(running=1, pending=1))
    node.seen(load(running=1, pending=1))
    assert (node.slots, node.likely_slots) == (1, 1)
    assert member("b", slots=3, out=1).idle_slots == 2


def test_slots_that_are_stated_are_believed_and_others_are_learned() -> None:
    stated, node = member("a", slots=2), member("a", slots=None)
    for _ in range(5):
        stated.seen(load(9, pending=9))
    assert stated.slots == 2

    assert node.slots == node_state.SLOTS_UNKNOWN
    node.seen(load(7))
    assert (node.slots, node.learned) == (7, 7)  # more run than were thought possible
    node.seen(load(7))
    assert (node.slots, node.learned) == (8, 7)  # all in use and none waits: there may be more
    node.seen(load(3, pending=2))
    assert node.slots == 8  # jobs are started one by one: one look proves nothing
    node.seen(load(3, pending=2))
    assert node.slots == 3
    node.seen(load(0, pending=2))
    node.seen(load(0, pending=2))
    assert node.slots == 3  # a node that starts nothing has not no slots
    assert (node.learned, stated.learned) == (3, 0)

    again = member("a", slots=None)
    again.recall(node.learned)
    assert (again.slots, again.likely_slots, again.learned) == (3, 3, 3)
    stated.recall(7)
    assert stated.slots == 2


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
    out.accept_report(report(done=0), 110.0)
    assert out.left(110.0) == 0.0
    out.accept_report(report(done=1, missed=1), 110.0)
    assert out.left(110.0) == pytest.approx(40.0)


def test_a_report_is_news_only_when_it_changed() -> None:
    out = put(member("a"), 1)
    assert out.accept_report(report(), 110.0) is True
    assert out.accept_report(report(), 120.0) is False
    assert out.changed == 110.0
    assert out.accept_report(report(updated=2.0), 130.0) is False
    assert out.changed == 130.0


# seconds between two polls: they follow what its jobs have left to do


def pause(out: Any, *, closed: bool = False, waits: int = 0) -> float:
    desk: Any = SimpleNamespace(
        limits=SimpleNamespace(poll=1.0), closed=closed, backlog=SimpleNamespace(waiting=waits)
    )
    return NodeMonitor(state=desk, jobs=desk, workers=desk, prepare=desk)._pause(out.member)


def test_a_worker_is_polled_now_and_then_and_a_batch_often() -> None:
    assert pause(put(member("a"), 1)) == 0.25
    assert pause(put(member("a"), 1, node_state.WorkerRun, pool="")) == 2.0


@pytest.mark.parametrize(
    ("closed", "waits", "seconds"), [(False, 0, 5.0), (True, 1, 5.0), (True, 0, 1.0)]
)
def test_a_job_with_far_to_go_is_polled_rarely_unless_the_crawl_ends_with_it(
    closed: bool, waits: int, seconds: float
) -> None:
    """N3: a job whose pace promises 1,000 s may end at once, when what its site held back comes at last."""
    now = time.time()
    far = report(updated=now, started=now - 100, requests=11, done=1)
    assert pause(put(member("a"), 1, report=far), closed=closed, waits=waits) == seconds


# wedged, busy or down: the clock is turned, nothing is asked

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def row(*times: float, start_delay: float = 0.0) -> IdleWatch:
    """Looks at these times, each with work waiting and nothing running."""
    watch = IdleWatch(start_delay=start_delay)
    for now in times:
        watch.saw(load(0, 2), now)
    return watch


def test_three_looks_far_enough_apart() -> None:
    assert row(100, 106).since is None
    assert row(100, 106, 112).looks == (100, 106, 112)
    assert row(100, 106, 112).since == 100


def test_looks_close_together_count_as_one() -> None:
    every_second = [100 + second for second in range(13)]
    assert row(*every_second[:12]).looks == (100, 106)
    assert row(*every_second).looks == (100, 106, 112)


def test_a_node_that_was_seen_to_start_late_gets_more_time() -> None:
    assert not row(100, 106, 112, 118, start_delay=30).wedged
    assert row(100, 131, 162, start_delay=30).wedged
    # learned later: looks that were two by the old measure are one by the new
    assert not IdleWatch(looks=(100, 106, 112), start_delay=30).wedged
    assert IdleWatch(looks=(100, 106, 112, 131, 140, 162), start_delay=30).wedged


def test_a_node_that_starts_slowly_is_not_taken_for_a_wedged_one() -> None:
    slow, quick = member("slow", idle=IdleWatch(start_delay=30.0)), member("quick")
    for at in (100.0, 106.0, 112.0, 118.0):
        for one in (slow, quick):
            one.weighed(load(0, 2), 0, at)
    assert slow.wedged_since is None
    assert quick.wedged_since is not None


@pytest.mark.parametrize(
    ("pending", "running", "moved"), [(0, 0, False), (2, 1, False), (0, 3, False), (2, 0, True)]
)
def test_anything_that_moves_ends_the_row(pending: int, running: int, moved: bool) -> None:
    watch = row(100, 106)
    watch.saw(load(running, pending), 112, moved=moved)
    assert watch.looks == ()


def test_a_clock_that_was_set_back_begins_anew() -> None:
    assert row(5000, 5006, 100).looks == (100,)


def test_not_more_looks_are_kept_than_needed() -> None:
    assert len(row(*range(0, 6000, 6)).looks) == node_state.KEPT


@pytest.mark.parametrize(
    ("at", "moved"),
    [
        ("2026-11-20 11:59:50", True),  # the node lives by UTC
        ("2026-11-20 12:59:50", True),  # or by our own time
        ("2026-11-20 11:58:00", False),
        ("2026-11-20 06:59:50", False),
        (None, False),
    ],
)
def test_jobs_that_came_and_went_between_the_looks(at: str | None, moved: bool) -> None:
    offsets, times = {timedelta(), timedelta(hours=1)}, [datetime.fromisoformat(at) if at else None]
    assert node_state.moved_since(times, span=30, node_now=NOON, offsets=offsets) is moved
    assert not node_state.moved_since(times, span=30, node_now=None, offsets=offsets)


def test_the_longest_delay_by_one_clock() -> None:
    assert node_state.start_delay_of([(100, 104), (100, 112)]) == 12
    assert node_state.start_delay_of([(100, 3704)], skew=3600) == 4
    # a clock that is wrong by an unknown hour tells nothing
    assert node_state.start_delay_of([(100, 3704), (100, 90)]) == 0


def test_the_clock_of_a_node() -> None:
    ours = NOON.timestamp()
    assert node_state.skew_of(NOON, ours + 0.5) == 0
    assert node_state.skew_of(NOON + timedelta(hours=1), ours) == 3600.5
    assert node_state.skew_of(None, ours) is None


# placement by what nodes have to do and how fast they are

OLD, NEW = Rule(placement="round-robin", adapt=False), Rule(placement="by-capacity", adapt=True)


def paced(
    name: str, *, slots: int = 1, pace: float = 0.0, to_do: tuple[int, ...] = (), **fields: Any
) -> NodeState:
    """A node that has so many requests left in each of its jobs."""
    made = member(name, slots=slots, pace=pace, unproven=not pace, **fields)
    for number, left in enumerate(to_do):
        put(made, number, batch=Batch(number=1000 + number, size=left))
    return made


def dealt(
    members: list[NodeState], *sizes: int, kind: str = "by-capacity", **hand: Any
) -> list[tuple[int, str]]:
    waiting = [Batch(number=number, size=size) for number, size in enumerate(sizes, 1)]
    return [
        (batch.number, one.node.name)
        for batch, one in Placement(kind).deal(waiting, members, **hand)
    ]


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


def test_jobs_wait_on_a_node_only_for_those_that_end_soon() -> None:
    assert paced("new", slots=2).room() == 2 + AHEAD
    assert paced("known", slots=2, pace=10.0).room() == 2
    assert paced("long", slots=2, pace=10.0, to_do=(500, 500)).room() == 0
    assert paced("soon", slots=2, pace=10.0, to_do=(500, 50)).room() == 1


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


def test_the_pace_of_the_fleet_counts_slow_slots_fully_and_waits_for_most() -> None:
    members = [paced("fast", slots=4, pace=20.0), paced("slow", slots=4, pace=4.0)]
    assert typical_pace(members) == pytest.approx(8 / (4 / 20 + 4 / 4))
    assert settled_pace([members[0], paced("unknown", slots=4)]) == 0.0
    assert settled_pace(members) == typical_pace(members)
    assert typical_pace([]) == settled_pace([]) == 0.0


def test_a_running_jobs_pace_stands_for_the_node_until_one_has_ended() -> None:
    one = paced("a", to_do=(100,))
    values: dict[str, Any] = {"requests": 100, "missed": 0, "pages": 0, "items": 0, "started": 10.0}
    one.out["0"].accept_report(WorkerReport(ended=False, updated=12.0, done=40, **values), 12.0)
    assert (one.pace, one.out["0"].to_do) == (20.0, 60)
    one.accepted(WorkerReport(ended=True, updated=20.0, done=100, **values))
    assert one.pace == 10.0
    one.accepted(WorkerReport(ended=True, updated=15.0, done=100, **values))
    assert 10.0 < one.pace < 20.0


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


def test_what_the_crawls_have_learned_of_slots_is_the_most_that_one_has_seen() -> None:
    def crawl(**learned: int) -> Crawl:
        nodes = [
            {"url": f"http://{name}:6800", "learned": slots} for name, slots in learned.items()
        ]
        return Crawl(id="c", project="p", spider="s", created=0, summary={"nodes": nodes})

    found = learned_slots(
        [crawl(a=1, b=0), crawl(a=8), Crawl(id="d", project="p", spider="s", created=0)]
    )
    assert found == {"http://a:6800": 8, "http://b:6800": 0}
