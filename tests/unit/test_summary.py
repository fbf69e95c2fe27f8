"""A crawl in numbers, and the exit code it means."""

import json
from typing import Any

import pytest

from scrapyd_dist.batches import Batch, Crawl, CrawlState
from scrapyd_dist.joblogs.worker_report import WorkerReport
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.node_progress import Progress
from scrapyd_dist.progress.summary import IndexProgress, Snapshot, exit_code, summary, told
from scrapyd_dist.scheduling.base import BatchCounters
from scrapyd_dist.scheduling.node_state import JobRun, NodeState


def snapshot(**fields: Any) -> Snapshot:
    values: dict[str, Any] = {
        "crawl": "c", "spider": "s", "project": "p", "version": "v", "state": "working", "duration": 1.23456,
        "counts": {"offsite": 1, "duplicate": 2, "refused": 3, "local": 4, "sealed": 20}, "buffered": 5, "waiting": 1,
        "batches": 4, "counters": BatchCounters(done=2, requests_done=8, gone=1, failed_urls=1, pages=11, items=9),
    }  # fmt: skip
    return Snapshot(**{**values, **fields})


def test_the_account_balances() -> None:
    document = summary(snapshot())
    parts = ("offsite", "duplicate", "refused", "local", "sealed")
    assert document["urls_found"] == sum(document[name] for name in parts) + 5
    assert document["urls_distinct"] == 20 + 4 + 3 + 5
    assert document["requests"] == {"total": 20, "sent": 20, "done": 10, "succeeded": 8}
    assert summary(snapshot(waiting_requests=12))["requests"]["sent"] == 8


def test_it_is_json_of_schema_one_with_the_names_that_scripts_read() -> None:
    document = json.loads(json.dumps(summary(snapshot(output=["a.jl"]))))
    assert document["schema"] == 1
    assert {"crawl", "spider", "version", "state", "duration_s", "urls_found", "urls_distinct", "batches", "pages",
            "items", "gone_urls", "failed_urls", "index_failed", "nodes", "output"} <= document.keys()  # fmt: skip
    assert {"sent", "done", "failed", "dead"} <= document["batches"].keys()
    assert document["duration_s"] == 1.235


def test_what_runs_is_counted_with_what_is_done() -> None:
    member = NodeState(node=Node.parse("http://one:6800", name="one"), jobs=2, items=9, prepared=True)
    out = JobRun(batch=Batch(number=3, size=5), number=1, job="c.b3.a1", member=member, since=0.0, start_by=9.0)
    out.report = WorkerReport(ended=False, updated=1.0, requests=5, done=2, missed=1, pages=7, items=4)
    member.out[out.job] = out
    progress = Progress()
    progress.look([member], 0.0)
    document = summary(
        snapshot(members=[member], own_items=1, index=IndexProgress(pages=3, total=6, failed=1), progress=progress)
    )
    assert document["requests"]["done"] == 13
    assert document["pages"] == 3 + 11 + 7
    assert document["items"] == 1 + 9 + 4
    assert document["nodes"] == [
        {
            "name": "one",
            "url": "http://one:6800",
            "state": "up",
            "reason": "",
            "unreached": "",
            "slots": 4,
            "running": 1,
            "waiting": 0,
            "jobs": 2,
            "items": 13,
            "pages": 7,
            "failed": 0,
            "per_s": {"requests": 0.0, "pages": 0.0, "items": 0.0, "failed": 0.0},
        }
    ]
    assert (document["batches"]["out"], document["index_failed"]) == (1, 1)


def test_a_node_shows_why_it_gets_no_work_and_no_password() -> None:
    node = Node.parse("http://me:secret@one:6800", name="one")
    down, unfit = NodeState(node=node), NodeState(node=node, unfit="no log folder")
    down.missed("connection refused", 1.0)
    document = summary(snapshot(members=[down, unfit]))
    assert [(n["state"], n["reason"]) for n in document["nodes"]] == [
        ("down", "connection refused"),
        ("unfit", "no log folder"),
    ]
    assert "secret" not in json.dumps(document)


def test_requests_that_the_producer_crawled_itself_are_in_the_account() -> None:
    document = summary(snapshot(local_missed={"gone": 2, "failed": 3}))
    assert (document["gone_urls"], document["failed_urls"]) == (3, 4)


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
    good = {"failed_urls": 0, "dead_urls": 0, "refused": 0, "index_failed": 0, "batches": {"total": 2, "done": 2}}
    assert exit_code({**good, **fields}, max_failed=max_failed) == code


def test_what_is_told_follows_the_row_where_the_summary_is_older() -> None:
    row = Crawl(
        id="c", project="p", spider="s", created=0.0, state=CrawlState.STOPPED, message="stopped", exit_code=3,
        summary={"state": "working", "message": "", "items": 1499},
    )  # fmt: skip
    document = told(row)
    assert (document["state"], document["message"], document["exit_code"]) == ("stopped", "stopped", 3)
    assert (document["crawl"], document["items"]) == ("c", 1499)


def test_a_crawl_that_rests_has_no_pace_and_no_end() -> None:
    progress = Progress()
    progress._whole.add(0.0, 0, 0, 0, 0)
    progress._whole.add(10.0, 100, 100, 100, 0)
    going = summary(snapshot(progress=progress))
    assert going["per_s"]["requests"] > 0
    assert going["outlook"]["eta_s"] is not None
    rests = summary(snapshot(progress=progress, paused=True))
    assert (rests["paused"], rests["outlook"]["eta_s"], set(rests["per_s"].values())) == (True, None, {0.0})


def test_a_job_without_a_report_waits() -> None:
    member = NodeState(node=Node.parse("http://one:6800", name="one"))
    for number in (1, 2):
        batch = Batch(number=number, size=5)
        out = JobRun(batch=batch, number=1, job=f"c.b{number}.a1", member=member, since=0.0, start_by=9.0)
        member.out[out.job] = out
    out.report = WorkerReport(ended=False, updated=1.0, requests=5, done=2, missed=1, pages=7, items=4)
    document = summary(snapshot(members=[member]))
    assert (document["nodes"][0]["running"], document["nodes"][0]["waiting"]) == (2, 1)
    assert document["requests"]["succeeded"] == 8 + 2
