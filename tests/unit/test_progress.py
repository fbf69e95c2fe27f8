"""How fast a crawl and its nodes get on, how long it will take, and which batch lags behind."""

from dataclasses import replace
from typing import Any

import pytest

from scrapyd_dist.batches import Attempt, Batch
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.node_progress import KEPT, SLOW_AFTER, Eta, KnownTotals, Progress, Rate
from scrapyd_dist.scheduling.node_state import JobRun, NodeState


def test_a_pace_looks_back_over_its_window_only() -> None:
    pace = Rate(window=10)
    assert (pace.rates(), pace.span) == ((), 0)
    pace.add(0, 0, 5)
    assert pace.rates() == (0, 0)
    pace.add(5, 500, 5)
    assert pace.rates() == (100, 0)
    for now in (10, 15, 20, 25):
        pace.add(now, 500, 5)
    assert pace.rates() == (0, 0)


def test_a_pace_never_runs_backwards_and_keeps_little() -> None:
    pace = Rate(window=10)
    pace.add(0, 100)
    pace.add(1, 40)  # a batch failed, its requests are to be done again
    assert pace.rates() == (0,)
    for step in range(5000):
        pace.add(1 + step / 100, 40 + step)
    assert len(pace._seen) <= KEPT + 2
    assert pace.rates()[0] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pages": 9, "total_pages": 100}, (3000, KnownTotals.AT_LEAST, 15.0)),
        ({"pages": 10, "total_pages": 100}, (30000, KnownTotals.ESTIMATE, 285.0)),
        ({"pages": 50, "total_pages": None}, (3000, KnownTotals.AT_LEAST, 15.0)),  # nobody knows how long the index is
        ({"pages": 0, "total_pages": 1}, (3000, KnownTotals.AT_LEAST, 15.0)),
        ({"pages": 200, "total_pages": 100}, (3000, KnownTotals.ESTIMATE, 15.0)),  # never fewer than are found
        ({"pages": 9, "total_pages": 100, "finding": False}, (3000, KnownTotals.KNOWN, 15.0)),
        ({"finding": False, "rate": 0.0}, (3000, KnownTotals.KNOWN, None)),
        ({"finding": False, "done": 3000}, (3000, KnownTotals.KNOWN, None)),
    ],
)
def test_the_outlook(fields: dict[str, Any], expected: tuple[int, KnownTotals, float | None]) -> None:
    values = {"found": 3000, "done": 1500, "rate": 100.0, "finding": True, **fields}
    found = Eta.of(**values)
    assert (found.requests, found.sure, found.eta) == expected
    assert found.document()["sure"] == expected[1].value


def node(name: str) -> NodeState:
    return NodeState(node=Node.parse(f"{name}:6800", name=name), prepared=True)


def at_work(member: NodeState, number: int, done: int = 0, *, size: int = 1000, **fields: Any) -> JobRun:
    report = WorkerReport(ended=False, updated=1.0, requests=size, done=done, missed=0, pages=done, items=done)
    out = JobRun(batch=Batch(number=number, size=size), number=1, job=f"c.b{number}.a1", member=member, since=0.0,
              start_by=9.0, report=replace(report, **fields))  # fmt: skip
    member.out[out.job] = out
    return out


def gets_to(out: JobRun, done: int, **fields: Any) -> None:
    assert out.report
    out.report = replace(out.report, done=done, pages=done, items=done, **fields)


def test_rates_go_on_when_a_job_ends_and_another_begins() -> None:
    member, progress = node("one"), Progress()
    first = at_work(member, 1)
    progress.look([member], 0.0)
    gets_to(first, 100)
    progress.look([member], 10.0)
    assert progress.rates("one") == progress.rates() == (10, 10, 10, 0)
    gets_to(first, 150, ended=True, missed=2, errors=2)
    member.out.clear()  # what it did at last is in its Out
    second = at_work(member, 2)
    progress.look([member], 15.0)
    gets_to(second, 48)
    progress.look([member], 20.0)
    counts = progress.counts("one")
    assert (counts.requests, counts.pages, counts.failed) == (200, 198, 2)
    assert progress.rates("one") == (10, 9.9, 9.9, 0.1)
    assert progress.rates("nobody") == (0, 0, 0, 0)


def test_what_an_earlier_process_had_accepted_counts_and_is_no_pace() -> None:
    member, progress = node("one"), Progress()
    report = {"done": 90, "missed": 10, "errors": 3, "pages": 120, "items": 80}
    progress.recall([Attempt(batch=1, number=1, job="c.b1.a1", node="one", url="", report=report)])
    progress.look([member], 0.0, own_pages=5)
    progress.look([member], 1.0, own_pages=7)
    counts = progress.counts("one")
    assert (counts.requests, counts.pages, counts.items, counts.failed) == (100, 120, 80, 3)
    assert progress.rates() == (0, 2, 0, 0)


def test_the_one_batch_that_is_far_slower_is_named() -> None:
    members, progress = [node("one"), node("two")], Progress()
    quick = [at_work(members[0], number) for number in (1, 2, 3)]
    slow, stuck = at_work(members[1], 4), at_work(members[1], 5)
    progress.look(members, 0.0)
    for now in (10.0, SLOW_AFTER - 1, SLOW_AFTER + 1):
        for out in quick:
            gets_to(out, int(now * 10))
        gets_to(slow, int(now))
        progress.look(members, now)
        assert bool(progress.stragglers()) is (now >= SLOW_AFTER)
    named = progress.stragglers()
    assert [(one.batch, one.node, one.done, one.size) for one in named] == [(5, "two", 0, 1000), (4, "two", 21, 1000)]
    assert named[0].slower is None
    assert named[1].slower == pytest.approx(10)
    assert named[1].seconds == SLOW_AFTER + 1
    assert stuck.job == named[0].job


def test_the_last_batch_is_measured_by_those_that_have_ended() -> None:
    member, progress = node("one"), Progress()
    for number in (1, 2, 3):
        out = at_work(member, number)
        progress.look([member], number * 10.0)
        gets_to(out, 1000, ended=True)
        member.out.clear()
        progress.look([member], number * 10.0 + 5)
    at_work(member, 4, done=1)
    progress.look([member], 100.0)
    progress.look([member], 100.0 + SLOW_AFTER)
    assert [one.batch for one in progress.stragglers()] == [4]


def test_two_batches_are_not_enough_to_call_one_slow() -> None:
    member, progress = node("one"), Progress()
    quick = at_work(member, 1)
    at_work(member, 2)
    progress.look([member], 0.0)
    gets_to(quick, 900)
    progress.look([member], 100.0)
    assert progress.stragglers() == []
