"""Counts and rates of nodes over all their jobs, and the batches that lag behind."""

from dataclasses import replace
from typing import Any

from rig.members import at_work, node

from scrapyd_dist.batches import Attempt
from scrapyd_dist.progress.crawl_progress import SLOW_AFTER, Progress
from scrapyd_dist.progress.rates import COUNTS
from scrapyd_dist.scheduling.node_state import JobRun


def gets_to(out: JobRun, done: int, **fields: Any) -> None:
    assert out.report
    out.report = replace(out.report, done=done, pages=done, items=done, **fields)


def test_rates_go_on_when_a_job_ends_and_another_begins() -> None:
    member, progress = node("one"), Progress()
    first = at_work(member, 1)
    progress.update([member], 0.0)
    gets_to(first, 100)
    progress.update([member], 10.0)
    assert (
        list(progress.rates("one").values()) == list(progress.rates().values()) == [10, 10, 10, 0]
    )
    gets_to(first, 150, ended=True, missed=2, errors=2)
    member.out.clear()  # what it did at last is in its Out
    second = at_work(member, 2)
    progress.update([member], 15.0)
    gets_to(second, 48)
    progress.update([member], 20.0)
    assert progress.counts("one") == {"requests": 200, "pages": 198, "items": 198, "failed": 2}
    assert progress.rates("one") == {"requests": 10, "pages": 9.9, "items": 9.9, "failed": 0.1}
    assert progress.rates("nobody") == dict.fromkeys(COUNTS, 0)


def test_what_an_earlier_process_had_accepted_counts_and_is_no_pace() -> None:
    member, progress = node("one"), Progress()
    report = {"done": 90, "missed": 10, "errors": 3, "pages": 120, "items": 80}
    progress.recall([Attempt(batch=1, number=1, job="c.b1.a1", node="one", url="", report=report)])
    progress.update([member], 0.0, own_pages=5)
    progress.update([member], 1.0, own_pages=7)
    assert progress.counts("one") == {"requests": 100, "pages": 120, "items": 80, "failed": 3}
    assert progress.rates() == {"requests": 0, "pages": 2, "items": 0, "failed": 0}


def test_the_one_batch_that_is_far_slower_is_named() -> None:
    members, progress = [node("one"), node("two")], Progress()
    quick = [at_work(members[0], number) for number in (1, 2, 3)]
    slow, stuck = at_work(members[1], 4), at_work(members[1], 5)
    progress.update(members, 0.0)
    for now in (10.0, SLOW_AFTER - 1, SLOW_AFTER + 1):
        for out in quick:
            gets_to(out, int(now * 10))
        gets_to(slow, int(now))
        progress.update(members, now)
        assert bool(progress.stragglers()) is (now >= SLOW_AFTER)
    named = progress.stragglers()
    assert [(one["batch"], one["node"], one["done"], one["of"]) for one in named] == [
        (5, "two", 0, 1000), (4, "two", 21, 1000),
    ]  # fmt: skip
    assert [one["times_slower"] for one in named] == [None, 10]
    assert (named[1]["for_s"], named[0]["job"]) == (SLOW_AFTER + 1, stuck.job)


def test_two_batches_are_not_enough_to_call_one_slow_and_the_last_one_is_measured_by_those_that_have_ended() -> (
    None
):
    member, progress = node("one"), Progress()
    quick = at_work(member, 1)
    at_work(member, 2)
    progress.update([member], 0.0)
    gets_to(quick, 900)
    progress.update([member], 100.0)
    assert progress.stragglers() == []
    member, progress = node("one"), Progress()
    for number in (1, 2, 3):
        out = at_work(member, number)
        progress.update([member], number * 10.0)
        gets_to(out, 1000, ended=True)
        member.out.clear()
        progress.update([member], number * 10.0 + 5)
    at_work(member, 4, done=1)
    progress.update([member], 100.0)
    progress.update([member], 100.0 + SLOW_AFTER)
    assert [one["batch"] for one in progress.stragglers()] == [4]
