"""What a scheduler knows of a node and its jobs: room, pace, and when it is polled next."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from rig.members import load, member, paced, put, report

from scrapyd_dist.batches import WorkerEntry
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.scheduling.liveness import Liveness
from scrapyd_dist.scheduling.monitor import NodeMonitor
from scrapyd_dist.scheduling.node_state import AHEAD, WorkerRun, settled_pace, typical_pace
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scheduling.run_status import RunStatus


def test_no_node_has_room_while_it_is_down_not_prepared_or_unfit() -> None:
    assert member("a").room() == 2 + AHEAD
    assert member("a", out=4).room() == 0
    assert member("a", readiness=Readiness()).room() == 0
    assert member("a", readiness=Readiness(prepared=True, unfit="says no")).room() == 0
    assert member("a", liveness=Liveness(down_since=1.0)).room() == 0


def test_batches_are_cut_for_slots_that_a_node_has_shown() -> None:
    node = member("a", slots=None)
    assert (node.capacity.likely_slots, node.idle_slots) == (1, 1)
    node.seen(load(running=1))
    assert node.capacity.likely_slots == 2
    node.seen(load(running=1, pending=1))
    node.seen(load(running=1, pending=1))
    assert (node.capacity.slots, node.capacity.likely_slots) == (1, 1)
    assert member("b", slots=3, out=1).idle_slots == 2


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
        limits=SimpleNamespace(poll=1.0),
        status=RunStatus(closed=closed),
        backlog=SimpleNamespace(waiting=waits),
    )
    return NodeMonitor(state=desk, jobs=desk, workers=desk, prepare=desk)._pause(out.member)


def test_a_worker_is_polled_now_and_then_and_a_batch_often() -> None:
    assert pause(put(member("a"), 1)) == 0.25
    entry = WorkerEntry(number=1, job="c.w1.a1", url="", pool="", since=0.0)
    assert pause(put(member("a"), 1, WorkerRun, entry=entry)) == 2.0


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


def test_jobs_wait_on_a_node_only_for_those_that_end_soon() -> None:
    assert paced("new", slots=2).room() == 2 + AHEAD
    assert paced("known", slots=2, pace=10.0).room() == 2
    assert paced("long", slots=2, pace=10.0, to_do=(500, 500)).room() == 0
    assert paced("soon", slots=2, pace=10.0, to_do=(500, 50)).room() == 1


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
    assert (one.capacity.pace, one.out["0"].to_do) == (20.0, 60)
    one.accepted(WorkerReport(ended=True, updated=20.0, done=100, **values))
    assert one.capacity.pace == 10.0
    one.accepted(WorkerReport(ended=True, updated=15.0, done=100, **values))
    assert 10.0 < one.capacity.pace < 20.0
