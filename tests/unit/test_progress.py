"""A crawl in numbers: how fast it gets on, how long it will take, which batch lags behind, and its exit code."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rig.documents import SUMMARY, misfits

from scrapyd_dist.batches import Attempt, Batch, BatchState, Crawl, CrawlState
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress import (
    COUNTS,
    KEPT,
    SLOW_AFTER,
    KnownTotals,
    Progress,
    Rate,
    Snapshot,
    as_left,
    exit_code,
    outlook,
    summary,
    summary_of,
)
from scrapyd_dist.scheduling.batch_counters import BatchCounters
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import JobRun, NodeState
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scheduling.run_status import RunStatus
from scrapyd_dist.scheduling.scheduler_state import SchedulerLimits, SchedulerState


def snapshot(
    *, waiting: int = 0, members: Sequence[NodeState] = (), paused: bool = False, **fields: Any
) -> Snapshot:
    nowhere: Any = type("Nowhere", (), {"store": None})
    slot = SlotCount(
        slot="",
        batches={"sealed": 1, "sent": 1, "done": 2, "split": 5},
        requests={"sealed": waiting},
    )
    scheduler = SchedulerState(
        spec=JobRequest(crawl="c", home="c.1", project="p", spider="s", version="v"), members=[*members],
        store=nowhere, sender=nowhere, limits=SchedulerLimits(), backlog=Backlog(slots=[slot]),
        status=RunStatus(paused=paused),
        counters=BatchCounters(done=2, requests_done=8, gone=1, failed_urls=1, pages=11, items=9),
    )  # fmt: skip
    values: dict[str, Any] = {
        "scheduler": scheduler, "state": "working", "duration": 1.23456, "buffered": 5,
        "counts": {"offsite": 1, "duplicate": 2, "refused": 3, "local": 4, "sealed": 20},
    }  # fmt: skip
    return Snapshot(**{**values, **fields})


def node(name: str) -> NodeState:
    return NodeState(node=Node.parse(f"{name}:6800", name=name), readiness=Readiness(prepared=True))


def at_work(
    member: NodeState, number: int, done: int = 0, *, size: int = 1000, **fields: Any
) -> JobRun:
    report = WorkerReport(
        ended=False, updated=1.0, requests=size, done=done, missed=0, pages=done, items=done
    )
    out = JobRun(batch=Batch(number=number, size=size), number=1, job=f"c.b{number}.a1", member=member, since=0.0,
              start_by=9.0, report=replace(report, **fields))  # fmt: skip
    member.out[out.job] = out
    return out


def gets_to(out: JobRun, done: int, **fields: Any) -> None:
    assert out.report
    out.report = replace(out.report, done=done, pages=done, items=done, **fields)


def test_the_account_balances() -> None:
    document = summary(snapshot())
    parts = ("offsite", "duplicate", "refused", "local", "sealed")
    assert document["urls_found"] == sum(document[name] for name in parts) + 5
    assert document["urls_distinct"] == 20 + 4 + 3 + 5
    assert document["requests"] == {"total": 20, "sent": 20, "done": 10, "succeeded": 8}
    assert summary(snapshot(waiting=12))["requests"]["sent"] == 8
    with_own = summary(
        snapshot(local_missed=Counter(gone=2, failed=3))
    )  # of what the producer crawled itself
    assert (with_own["gone_urls"], with_own["failed_urls"]) == (3, 4)


def test_it_is_json_of_schema_one_with_the_names_that_scripts_read() -> None:
    document = json.loads(json.dumps(summary(snapshot(output=["a.jl"]))))
    assert document["schema"] == 1
    assert {"crawl", "spider", "version", "state", "duration_s", "urls_found", "urls_distinct", "batches", "pages",
            "items", "gone_urls", "failed_urls", "index_failed", "nodes", "output"} <= document.keys()  # fmt: skip
    assert {"sent", "done", "failed", "dead"} <= document["batches"].keys()
    assert document["duration_s"] == 1.235


def test_what_runs_is_counted_with_what_is_done() -> None:
    member = NodeState(
        node=Node.parse("http://one:6800", name="one"),
        jobs=2,
        items=9,
        readiness=Readiness(prepared=True),
    )
    at_work(member, 3, done=2, size=5, missed=1, pages=7, items=4)
    progress = Progress()
    progress.update([member], 0.0)
    document = summary(
        snapshot(
            members=[member],
            own_items=1,
            index_pages=3,
            index_total=6,
            index_failed=1,
            progress=progress,
        )
    )
    assert (document["requests"]["done"], document["pages"], document["items"]) == (
        13,
        3 + 11 + 7,
        1 + 9 + 4,
    )
    assert document["nodes"] == [
        {
            "name": "one", "url": "http://one:6800", "state": "up", "reason": "", "unreached": "", "slots": 4,
            "learned": 0, "running": 1, "waiting": 0, "unleased": 0, "jobs": 2, "items": 13, "pages": 7, "failed": 0,
            "per_s": {"requests": 0.0, "pages": 0.0, "items": 0.0, "failed": 0.0},
        }
    ]  # fmt: skip
    assert (document["batches"]["out"], document["index_failed"]) == (1, 1)


@pytest.mark.parametrize("state", ["stopped", "incomplete", "finished"])
def test_once_it_has_ended_nothing_is_out_and_what_is_not_home_is_not_done(state: str) -> None:
    member = NodeState(
        node=Node.parse("http://one:6800", name="one"),
        jobs=2,
        items=9,
        readiness=Readiness(prepared=True),
    )
    at_work(member, 3, done=2, size=5, missed=1, pages=7, items=4)
    running, ended = (summary(snapshot(members=[member], state=now)) for now in ("working", state))
    assert (running["items"], running["requests"]["succeeded"]) == (13, 10)
    assert (
        ended["items"],
        ended["pages"],
        ended["requests"]["succeeded"],
        ended["requests"]["done"],
    ) == (9, 11, 8, 10)
    assert [running["batches"][name] for name in ("total", "out", "waiting", "done")] == [
        4,
        1,
        1,
        2,
    ]
    assert [ended["batches"][name] for name in ("total", "out", "waiting", "done")] == [4, 0, 2, 2]
    (row,) = ended["nodes"]
    assert (row["running"], row["items"], row["jobs"]) == (0, 9, 2)


def test_workers_that_are_left_to_work_on_a_frontier_go_on() -> None:
    ended = snapshot(state="finished")
    ended.scheduler.limits = SchedulerLimits(wait=False)
    assert summary(ended)["batches"]["out"] == 1


@pytest.mark.parametrize(
    ("kind", "state", "seen"),
    [
        ("crawl", CrawlState.STOPPED, "sealed"),
        ("crawl", CrawlState.WORKING, "running"),
        ("frontier", CrawlState.FINISHED, "running"),
    ],
)
def test_of_a_crawl_that_has_ended_no_batch_runs(kind: str, state: CrawlState, seen: str) -> None:
    row = Crawl(id="c", project="p", spider="s", created=0.0, state=state, kind=kind)
    assert as_left(Batch(number=1, size=5, state=BatchState.RUNNING), row).state.value == seen
    assert as_left(Batch(number=1, size=5, state=BatchState.DONE), row).state is BatchState.DONE


def test_a_node_shows_why_it_gets_no_work_and_no_password() -> None:
    node = Node.parse("http://me:secret@one:6800", name="one")
    down, unfit = (
        NodeState(node=node),
        NodeState(node=node, readiness=Readiness(unfit="no log folder")),
    )
    down.liveness.missed("connection refused", 1.0)
    document = summary(snapshot(members=[down, unfit]))
    told = [(one["state"], one["reason"]) for one in document["nodes"]]
    assert told == [("down", "connection refused"), ("unfit", "no log folder")]
    assert "secret" not in json.dumps(document)


@pytest.mark.parametrize(
    ("fields", "max_failed", "code"),
    [
        ({}, 0, 0),
        ({"gone_urls": 50}, 0, 0),
        ({"failed_urls": 1}, 0, 3),
        ({"failed_urls": 2}, 2, 0),
        ({"failed_urls": 3}, 2, 3),
        ({"dead_urls": 2}, 0, 3),
        ({"dead_urls": 2, "failed_urls": 1}, 2, 3),
        ({"refused": 1}, 0, 3),
        ({"index_failed": 1}, 0, 3),
        ({"batches": {"total": 2, "done": 0}, "dead_urls": 9}, 0, 1),
        ({"batches": {"total": 0, "done": 0}}, 0, 0),
    ],
)
def test_exit_codes(fields: dict[str, Any], max_failed: int, code: int) -> None:
    good = {
        "failed_urls": 0,
        "dead_urls": 0,
        "refused": 0,
        "index_failed": 0,
        "batches": {"total": 2, "done": 2},
    }
    assert exit_code({**good, **fields}, max_failed=max_failed) == code


def test_what_is_told_follows_the_row_where_the_summary_is_older() -> None:
    row = Crawl(
        id="c", project="p", spider="s", created=0.0, state=CrawlState.STOPPED, message="stopped", exit_code=3,
        summary={"state": "working", "message": "", "items": 1499},
    )  # fmt: skip
    document = summary_of(row)
    assert (document["state"], document["message"], document["exit_code"]) == (
        "stopped",
        "stopped",
        3,
    )
    assert (document["crawl"], document["items"]) == ("c", 1499)


def test_a_crawl_that_was_refused_before_it_had_a_summary_is_told_with_the_same_names() -> None:
    crawl = Crawl(
        id="c", project="p", spider="s", created=0.0, state=CrawlState.REFUSED, message="why", exit_code=2,
        options={"settings": {"DISTRIBUTED_LABELS": ["night=1"]}},
    )  # fmt: skip
    document = summary_of(crawl)
    assert misfits(document, SUMMARY) == []
    assert document.keys() == summary(snapshot()).keys() | {"exit_code"}
    assert (document["state"], document["labels"], document["items"]) == ("refused", ["night=1"], 0)


def test_a_crawl_that_rests_has_no_pace_and_no_end() -> None:
    progress = Progress()
    progress._whole.add(0.0, Counter())
    progress._whole.add(10.0, Counter(requests=100, pages=100, items=100))
    going = summary(snapshot(progress=progress))
    assert going["per_s"]["requests"] > 0
    assert going["outlook"]["eta_s"] is not None
    rests = summary(snapshot(progress=progress, paused=True))
    assert (rests["paused"], rests["outlook"]["eta_s"], set(rests["per_s"].values())) == (
        True,
        None,
        {0.0},
    )


def test_a_job_without_a_report_waits() -> None:
    member = node("one")
    at_work(member, 1, size=5).report = None
    at_work(member, 2, done=2, size=5, missed=1)
    document = summary(snapshot(members=[member]))
    assert (document["nodes"][0]["running"], document["nodes"][0]["waiting"]) == (2, 1)
    assert document["requests"]["succeeded"] == 8 + 2


def test_a_pace_looks_back_over_its_window_only_never_runs_backwards_and_keeps_little() -> None:
    pace = Rate(window=10)
    assert (set(pace.rates().values()), pace.span) == ({0.0}, 0)
    pace.add(0, Counter(requests=0, pages=5))
    assert set(pace.rates().values()) == {0.0}
    pace.add(5, Counter(requests=500, pages=5))
    assert pace.rates() == {"requests": 100, "pages": 0, "items": 0, "failed": 0}
    for now in (10, 15, 20, 25):
        pace.add(now, Counter(requests=500, pages=5))
    assert set(pace.rates().values()) == {0.0}
    pace = Rate(window=10)
    pace.add(0, Counter(requests=100))
    pace.add(1, Counter(requests=40))  # a batch failed, its requests are to be done again
    assert set(pace.rates().values()) == {0.0}
    for step in range(5000):
        pace.add(1 + step / 100, Counter(requests=40 + step))
    assert len(pace._seen) <= KEPT + 2
    assert pace.rates()["requests"] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pages": 9, "total_pages": 100}, (3000, KnownTotals.AT_LEAST, 15.0)),
        ({"pages": 10, "total_pages": 100}, (30000, KnownTotals.ESTIMATE, 285.0)),
        (
            {"pages": 50, "total_pages": None},
            (3000, KnownTotals.AT_LEAST, 15.0),
        ),  # it is not known how long the index is
        ({"pages": 0, "total_pages": 1}, (3000, KnownTotals.AT_LEAST, 15.0)),
        (
            {"pages": 200, "total_pages": 100},
            (3000, KnownTotals.ESTIMATE, 15.0),
        ),  # never fewer than are found
        ({"pages": 9, "total_pages": 100, "finding": False}, (3000, KnownTotals.KNOWN, 15.0)),
        ({"finding": False, "rate": 0.0}, (3000, KnownTotals.KNOWN, None)),
        ({"finding": False, "done": 3000}, (3000, KnownTotals.KNOWN, None)),
    ],
)
def test_the_outlook(
    fields: dict[str, Any], expected: tuple[int, KnownTotals, float | None]
) -> None:
    values = {"found": 3000, "done": 1500, "rate": 100.0, "finding": True, **fields}
    assert tuple(outlook(**values).values()) == expected


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
