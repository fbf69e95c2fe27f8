"""The summary of a crawl that runs: its account, its nodes and batches, and what is left."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from rig.documents import SUMMARY, misfits
from rig.members import at_work, node

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.nodes import Node
from scrapyd_dist.progress.crawl_progress import Progress
from scrapyd_dist.progress.crawl_summary import Snapshot, summarize
from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.scheduling.batch_counters import BatchCounters
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
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


def test_the_account_balances() -> None:
    document = summarize(snapshot())
    parts = ("offsite", "duplicate", "refused", "local", "sealed")
    assert document["urls_found"] == sum(document[name] for name in parts) + 5
    assert document["urls_distinct"] == 20 + 4 + 3 + 5
    assert document["requests"] == {"total": 20, "sent": 20, "done": 10, "succeeded": 8}
    assert summarize(snapshot(waiting=12))["requests"]["sent"] == 8
    with_own = summarize(
        snapshot(local_missed=Counter(gone=2, failed=3))
    )  # of what the producer crawled itself
    assert (with_own["gone_urls"], with_own["failed_urls"]) == (3, 4)


def test_it_is_json_of_schema_one_with_the_names_that_scripts_read() -> None:
    document = json.loads(json.dumps(summarize(snapshot(output=["a.jl"]))))
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
    document = summarize(
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


def test_a_node_that_is_back_at_another_address_has_one_row() -> None:
    before, now, other = (
        NodeState(
            node=Node.parse(f"http://one:680{at}", name=name), left=at == 0, jobs=2, items=at + 5
        )
        for at, name in enumerate(("one", "one", "two"))
    )
    at_work(before, 3, done=2, size=5, items=4)
    before.liveness.missed("connection refused", 1.0)
    rows = summarize(snapshot(members=[before, now, other]))["nodes"]
    found = [(row["name"], row["url"], row["jobs"], row["running"]) for row in rows]
    assert found == [("one", "http://one:6801", 4, 0), ("two", "http://one:6802", 2, 0)]
    assert [row["items"] for row in rows] == [5 + 4 + 6, 7]


@pytest.mark.parametrize("state", ["stopped", "incomplete", "finished"])
def test_once_it_has_ended_nothing_is_out_and_what_is_not_home_is_not_done(state: str) -> None:
    member = NodeState(
        node=Node.parse("http://one:6800", name="one"),
        jobs=2,
        items=9,
        readiness=Readiness(prepared=True),
    )
    at_work(member, 3, done=2, size=5, missed=1, errors=2, pages=7, items=4)
    running, ended = (
        summarize(snapshot(members=[member], state=now)) for now in ("working", state)
    )
    assert (running["items"], running["requests"]["succeeded"]) == (13, 10)
    assert (running["failed_urls"], ended["failed_urls"]) == (3, 1), "its report tells of two"
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
    assert summarize(ended)["batches"]["out"] == 1


def test_a_node_shows_why_it_gets_no_work_and_no_password() -> None:
    node = Node.parse("http://me:secret@one:6800", name="one")
    down, unfit = (
        NodeState(node=node),
        NodeState(node=node, readiness=Readiness(unfit="no log folder")),
    )
    down.liveness.missed("connection refused", 1.0)
    document = summarize(snapshot(members=[down, unfit]))
    told = [(one["state"], one["reason"]) for one in document["nodes"]]
    assert told == [("down", "connection refused"), ("unfit", "no log folder")]
    assert "secret" not in json.dumps(document)


def test_a_crawl_that_was_refused_before_it_had_a_summary_is_told_with_the_same_names() -> None:
    crawl = Crawl(
        id="c", project="p", spider="s", created=0.0, state=CrawlState.REFUSED, message="why", exit_code=2,
        options={"settings": {"DISTRIBUTED_LABELS": ["night=1"]}},
    )  # fmt: skip
    document = summary_of(crawl)
    assert misfits(document, SUMMARY) == []
    assert document.keys() == summarize(snapshot()).keys() | {"exit_code", "started", "ended"}
    assert (document["state"], document["labels"], document["items"]) == ("refused", ["night=1"], 0)


def test_a_crawl_that_rests_has_no_pace_and_no_end() -> None:
    progress = Progress()
    progress._whole.add(0.0, Counter())
    progress._whole.add(10.0, Counter(requests=100, pages=100, items=100))
    going = summarize(snapshot(progress=progress))
    assert going["per_s"]["requests"] > 0
    assert going["outlook"]["eta_s"] is not None
    rests = summarize(snapshot(progress=progress, paused=True))
    assert (rests["paused"], rests["outlook"]["eta_s"], set(rests["per_s"].values())) == (
        True,
        None,
        {0.0},
    )


def test_a_job_without_a_report_waits() -> None:
    member = node("one")
    at_work(member, 1, size=5).report = None
    at_work(member, 2, done=2, size=5, missed=1)
    document = summarize(snapshot(members=[member]))
    assert (document["nodes"][0]["running"], document["nodes"][0]["waiting"]) == (2, 1)
    assert document["requests"]["succeeded"] == 8 + 2
