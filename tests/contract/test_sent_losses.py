"""The scheduler loses nodes, workers and results, takes up what an earlier one left, and stops in order; in memory."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from rig.nodemodel import ModelJob, ModelNode, model
from rig.scheduling import CRAWL, HOME, QUICK, Bench, left_behind, sending, until

from scrapyd_dist.batches import AttemptState, BatchState, home_of
from scrapyd_dist.errors import ConnectionRefused, NoReply
from scrapyd_dist.items import part_fetch
from scrapyd_dist.joblogs.worker_report import part_path, report_path
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling import attempt_failure, monitor
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.store.reach import Way

# nodes and workers that are lost


async def test_the_work_of_a_lost_node_goes_elsewhere_and_its_job_is_cancelled_when_it_is_back(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two) as b:
        await b.seal_and_start(2)
        one.down = NoReply
        await b.ended(whole=2)
        assert two.posts == ["c.b2.a1", "c.b1.a2"]
        assert "has not answered" in b.attempts(1)[0].reason
        b.state.status.over.clear()  # the crawl would go on: keep watching
        b.state.spawn(b.scheduler.monitor.watch(b.state.members[0]))
        one.down = None
        await until(lambda: "c.b1.a1" in one.cancels, "the old job is cancelled")


async def test_a_lost_node_that_is_back_in_time_keeps_its_work(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two, limits=replace(QUICK, node_timeout=30)) as b:
        await b.seal_all(2)
        await until(lambda: len(one.posts) == 1, "the first node has a job")
        one.down = NoReply
        await until(lambda: not b.state.members[0].up, "it is missed")
        one.down = None
        one.finish("c.b1.a1")
        await b.ended(whole=2)
        assert len(b.attempts()) == 2


async def test_a_late_result_of_an_attempt_that_was_given_up_is_not_collected(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.down = NoReply
        await until(lambda: two.posts != [], "posted elsewhere")
        one.down = None
        one.finish("c.b1.a1")
        await until(lambda: one.cancels == ["c.b1.a1"], "told that it was given up")
        two.finish("c.b1.a2")
        await b.ended(whole=1)
        assert [(a.number, a.state.value) for a in b.attempts()] == [(1, "failed"), (2, "accepted")]


async def test_a_worker_that_dies_is_replaced_on_another_node_with_its_last_words(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two) as b:
        one.files["logs/p/s/c.b1.a1.log"] = b"2026-11-20 12:00:00 [scrapy] ERROR: it hurts\n"
        await b.seal_and_start()
        one.die("c.b1.a1")
        await b.ended(whole=1)
        assert "died while it worked" in b.attempts()[0].reason
        assert "it hurts" in b.attempts()[0].reason


async def test_a_restarted_node_that_forgot_its_job_gets_grace_and_the_job_can_still_finish(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one) as b:
        await b.seal_and_start()
        one.jobs["c.b1.a1"].forgotten = True
        await until(
            lambda: any(out.unknown.since for out in b.state.members[0].out.values()),
            "it is doubted",
        )
        one.finish("c.b1.a1")
        await b.ended(whole=1)
        assert len(b.attempts()) == 1


async def test_a_job_that_does_not_start_in_time_is_taken_back(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two, limits=replace(QUICK, start_timeout=0.05)) as b:
        await b.work_off(1)
        assert one.cancels == ["c.b1.a1"]
        assert "did not start within" in b.attempts()[0].reason


async def test_a_batch_is_dead_after_its_last_attempt_and_the_others_are_done(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")

    def poison(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        if job.batch == 2:
            node.finish(job.id, finish_reason="failed")
        else:
            node.finish(job.id)

    one.plays, two.plays = [poison] * 20, [poison] * 20
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(3)
        await b.ended()
        assert b.states() == ["done", "dead", "done"]
        assert [(a.number, a.state.value) for a in b.attempts(2)] == [
            (1, "failed"),
            (2, "failed"),
            (3, "failed"),
        ]
        assert (b.state.counters.dead, b.state.counters.dead_urls) == (1, 2)
        assert {item[0] for item in b.merged()} == {1, 3}
        assert {a.node for a in b.attempts(2)} == {"one", "two"}


async def test_restarts_of_nodes_cost_a_batch_no_attempt(tmp_path: Path) -> None:
    one, two = model("one"), model("two")

    def restart(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        node.start(job.id, done=1)
        job.forgotten = True

    one.plays, two.plays = [restart] * 4, [restart] * 4
    async with sending(tmp_path, one, two) as b:
        await b.work_off(1)
        assert len(b.attempts()) == 9
        assert (b.state.counters.dead, b.state.counters.cuts) == (0, 0)


async def test_after_a_resume_restarts_have_cost_a_batch_no_attempt_either(tmp_path: Path) -> None:
    one = model("one", quick=False)

    def restart(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        node.start(job.id, done=1)
        job.forgotten = True

    one.plays = [restart] * 4
    async with sending(tmp_path, one) as before:
        await before.seal()
        await until(lambda: "c.b1.a5" in one.jobs, "it waits for its fifth attempt")
    async with sending(tmp_path, one) as after:
        one.finish("c.b1.a5", finish_reason="failed")
        await until(lambda: "c.b1.a6" in one.jobs, "one failure that counts leaves it attempts")
        one.finish_all()
        after.scheduler.no_more()
        await after.ended(whole=1)


async def test_a_page_that_ends_its_machine_again_and_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_failure, "SPARED", 2)
    one = model("one")

    def restart(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        node.start(job.id, done=1)
        job.forgotten = True

    one.plays = [restart] * 5
    async with sending(tmp_path, one) as b:
        await b.seal_all(1)
        await b.ended()
        assert b.states() == ["split", "done", "done"]
        assert len(b.attempts(1)) == 2 + QUICK.max_attempts


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_batch_whose_job_is_told_to_end_by_a_signal_is_cut_in_the_end(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    one, two = model("one"), model("two")

    def end(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        node.finish(job.id, finish_reason="shutdown")
        job.forgotten = is_restarted

    one.plays, two.plays = [end] * 2, [end] * 2
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(1)
        await b.ended()
        assert b.state.status.fault is None
        if is_restarted:
            assert b.states() == ["done"]
        else:
            assert b.states()[0] == "split"
            assert set(b.states()[1:]) == {"done"}


async def test_with_all_nodes_down_it_stops_after_a_while_and_says_why(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(2)
        await until(lambda: len(b.posts()) == 2, "both are posted")
        one.down = two.down = ConnectionRefused
        await b.ended()
        assert "No node has answered" in b.state.stopped
        assert "connection refused" in b.state.stopped
        assert b.state.status.fault is None
        assert not {"done", "dead"} & set(b.states())


# results that are not good


async def test_a_part_that_is_not_what_the_worker_wrote_is_fetched_from_a_new_attempt(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")

    def with_wrong_hash(node: ModelNode, job: ModelJob) -> None:
        node.jobs[job.id] = job
        node.finish(job.id, sha256="0" * 64)

    def without_part(node: ModelNode, job: ModelJob) -> None:
        node.take(job)
        del node.files[part_path(HOME, job.id)]

    one.plays, two.plays = [with_wrong_hash], [without_part]
    async with sending(tmp_path, one, two, limits=replace(QUICK, max_attempts=9)) as b:
        await b.work_off(2)
        assert "hash differs" in b.attempts(1)[0].reason
        assert "is gone" in b.attempts(2)[0].reason
        assert [path.name for path in sorted(b.folder.glob("*.jl"))] == ["c.b1.a2.jl", "c.b2.a2.jl"]


@pytest.mark.parametrize("over", [True, False])
async def test_a_report_that_is_gone_costs_an_attempt_and_cuts_no_batch(
    tmp_path: Path, over: bool
) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two, limits=replace(QUICK, max_attempts=1)) as b:
        await b.seal_and_start()
        one.files.clear()
        if over:
            one.die("c.b1.a1")
        await until(
            lambda: b.states() == ["dead"], "the batch has had its one attempt, and is not cut"
        )
        assert "report" in b.attempts()[0].reason


@pytest.mark.parametrize(
    "junk", [b"<html>", b"[]", b"\xff", b'{"schema": 1}', b'{"schema": 2}', b"[" * 100_000]
)
async def test_a_report_that_is_none_does_not_stop_the_crawl(tmp_path: Path, junk: bytes) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(2)
        await until(lambda: one.posts != [], "posted")
        one.files[report_path(HOME, "c.b1.a1")] = junk
        one.die("c.b1.a1")
        await b.ended(whole=2)


async def test_gone_and_failed_urls_are_counted_and_kept(tmp_path: Path) -> None:
    one = model("one")
    rows = {
        "gone": [{"url": "http://web/0", "reason": "HTTP 404"}],
        "failed": [{"url": "http://web/1", "reason": "bad text: \ud800"}],
        "unended": [],
    }
    one.edit = lambda report: report.update(done=0, missed=2, items=2, **rows)
    async with sending(tmp_path, one) as b:
        await b.seal_all(1)
        await b.ended()
        assert b.state.status.fault is None
        counters = b.state.counters
        assert (counters.gone, counters.failed_urls, counters.raised_urls) == (1, 1, 0)
        found = b.store.misses(CRAWL)
        assert [(m.url, m.kind, m.batch) for m in found] == [
            ("http://web/0", "gone", 1),
            ("http://web/1", "failed", 1),
        ]


async def test_where_the_projects_code_raised_is_counted_apart(tmp_path: Path) -> None:
    one = model("one")
    rows = [
        {"url": "http://web/0", "reason": "KeyError in the callback: 'price'"},
        {"url": "http://web/1", "reason": "TimeoutError"},
    ]
    one.edit = lambda report: report.update(done=0, missed=2, items=2, failed=rows, unended=[])
    async with sending(tmp_path, one) as b:
        await b.seal_all(1)
        await b.ended()
        assert (b.state.counters.failed_urls, b.state.counters.raised_urls) == (2, 1)


# leases: a worker that stands still is replaced, one that is only quiet is waited for

LEASE = 0.1  #: seconds


def spec(ways: Callable[[Node], Way] | None = None) -> JobRequest:
    return JobRequest(
        crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", lease=LEASE, ways=ways
    )


def hold(b: Bench, seconds: float) -> None:
    assert b.store.lease(CRAWL, 1, 1, "c.b1.a1", seconds)


async def test_a_worker_whose_node_believes_that_it_runs_is_replaced(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two, spec=spec()) as b:
        await b.seal_and_start()
        hold(b, LEASE)
        await b.ended(whole=1)
        assert (one.cancels[0], two.posts) == ("c.b1.a1", ["c.b1.a2"])
        assert "stands still" in b.attempts(1)[0].reason


@pytest.mark.parametrize("seconds", [60.0, None])
async def test_one_whose_lease_is_good_or_that_has_none_is_waited_for(
    tmp_path: Path, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "MUTE", 1_000)
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=spec()) as b:
        await b.seal_and_start()
        if seconds is not None:
            hold(b, seconds)
        out = next(iter(b.state.members[0].out.values()))
        out.changed -= 10 * LEASE
        asked = len(one.calls)
        await until(lambda: len(one.calls) > asked + 20, "several looks")
        assert one.cancels == []
        one.finish("c.b1.a1")
        await b.ended(whole=1)


async def test_one_without_a_lease_whose_report_stays_the_same_is_replaced_and_killed(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two")
    one.edit = lambda report: report.update(lease=False)
    async with sending(tmp_path, one, two, spec=spec()) as b:
        await b.seal_and_start()
        await b.ended(whole=1)
        assert (set(one.cancels), two.posts) == ({"c.b1.a1"}, ["c.b1.a2"])
        assert "stands still" in b.attempts(1)[0].reason


async def test_a_job_is_told_of_the_store_where_its_node_reaches_it(tmp_path: Path) -> None:
    near, far = model("near", slots=1, quick=False), model("far", slots=1, quick=False)

    def ways(node: Node) -> Way:
        return (
            Way(job_settings={"store": "/s.db"})
            if node.name == "near"
            else Way(reason="it is another machine")
        )

    async with sending(tmp_path, near, far, spec=spec(ways)) as b:
        await b.seal_all(2)
        await until(lambda: near.jobs and far.jobs, "posted to both")
        told = [next(iter(node.jobs.values())).settings["DISTRIBUTED_JOB"] for node in (near, far)]
        assert ['"store":"/s.db"' in text for text in told] == [True, False]


# a producer that dies and comes back


@pytest.mark.parametrize("state", [AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING])
@pytest.mark.parametrize("known", ["lost", "running", "finished"])
async def test_a_producer_that_died_at_any_step_is_taken_up(
    tmp_path: Path, state: AttemptState, known: str
) -> None:
    one, two = model("one", quick=False), model("two")
    before, job = await left_behind(tmp_path, one, two, state=state)
    await before.leave()
    if known != "lost":
        settings = {"DISTRIBUTED_JOB": json.dumps({"home": HOME})}
        one.jobs[job] = ModelJob(id=job, size=2, settings=settings, args={})
        one.start(job, done=1)
    if known == "finished":
        one.finish(job)
    async with sending(tmp_path, one, two) as b:
        b.scheduler.no_more()
        if known == "running":
            await until(
                lambda: b.states() == ["running"] and b.state.members[0].out[job].report,
                "it is heard of",
            )
            one.finish(job)
        one.quick = True
        await b.ended(whole=1)
        assert len(b.attempts(1)) == (2 if known == "lost" else 1)


async def test_what_was_accepted_before_is_counted_and_not_done_again(tmp_path: Path) -> None:
    one = model("one")
    async with sending(tmp_path, one) as b:
        await b.seal_all(3)
        await b.ended()
    posted = list(one.posts)
    async with sending(tmp_path, one) as b:
        await b.over(whole=3)
        assert one.posts == posted
        assert b.state.members[0].items == 6


async def test_an_attempt_on_a_node_that_is_not_in_the_fleet_any_more_is_tried_elsewhere(
    tmp_path: Path,
) -> None:
    gone, two = model("gone"), model("two")
    before, _ = await left_behind(tmp_path, gone, two)
    await before.leave()
    async with sending(tmp_path, two) as b:
        await b.over(whole=1)
        assert two.posts == ["c.b1.a2"]


async def test_stopping_waits_for_the_posts_under_way_and_sends_nothing_more(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one) as b:
        b.sender.gate.clear()
        await b.seal_all(6)
        await until(lambda: len(one.posts) == 4, "posts are under way")
        stopping = asyncio.get_running_loop().create_task(b.scheduler.stop("interrupted"))
        await asyncio.sleep(0)
        assert not stopping.done()
        b.sender.gate.set()
        await stopping
        assert b.state.stopped == "interrupted"
        assert b.states() == ["sent"] * 4 + ["sealed"] * 2
        assert {a.state for a in b.attempts()} == {AttemptState.SENT}
        assert len(one.posts) == 4


async def test_what_was_accepted_as_the_crawl_stopped_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_accepted, may_go_on = Event(), Event()
    node = model("one", quick=False)
    async with sending(tmp_path, node) as b:
        accept = b.state.db.accept

        def accept_slowly(*args: Any, **more: Any) -> None:
            accept(*args, **more)
            is_accepted.set()
            may_go_on.wait(20)

        monkeypatch.setattr(b.state.db, "accept", accept_slowly)
        await b.seal_and_start()
        node.finish("c.b1.a1")
        await until(is_accepted.is_set, "the store has it")
        stopping = asyncio.get_running_loop().create_task(b.scheduler.stop("a user"))
        await until(b.state.status.over.is_set, "its tasks are cancelled")
        may_go_on.set()
        await stopping
        assert (b.states(), b.state.counters.done, b.state.counters.items) == (["done"], 1, 2)


@pytest.mark.parametrize("full", [True, False])
async def test_where_no_items_can_be_written_the_crawl_stops_and_the_node_keeps_them(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sending(tmp_path, model("one")) as b:
        if full:
            monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
        else:
            b.folder.rmdir()
            b.folder.write_text("")
        await b.seal_all(1)
        await b.ended()
        assert b.state.status.fault is None
        assert b.state.stopped.startswith(f"No items can be written to {b.folder}: ")
        assert [attempt.state.value for attempt in b.attempts()] == ["sent"]


async def test_an_error_of_ours_ends_the_crawl_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sending(tmp_path, model("one")) as b:
        monkeypatch.setattr(part_fetch, "sha256_of", len)
        await b.seal_all(1)
        await b.ended()
        assert isinstance(b.state.status.fault, TypeError)
        assert "scrapyd-dist itself failed" in b.state.stopped
        assert BatchState.DONE not in {batch.state for batch in b.store.batches(CRAWL)}


async def test_what_an_older_crawl_of_this_name_left_on_the_node_is_not_taken_for_a_result(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(
        tmp_path,
        one,
        spec=JobRequest(
            crawl=CRAWL, home=home_of(CRAWL, 0.5), project="p", spider="s", version="v"
        ),
    ) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.finish(f"{home_of(CRAWL, 0.5)}.b1.a1")
        await b.ended()
    old = dict(one.files)
    one.jobs.clear()
    async with sending(tmp_path / "other", one) as b:
        await b.seal_all(1)
        await until(lambda: one.calls.count("status.json") > 5, "the job is asked about")
        assert old.items() <= one.files.items()
        assert b.states() == ["sent"]
        one.finish("c.b1.a1")
        await b.ended(whole=1)


async def test_one_job_that_its_node_tells_nothing_of_keeps_no_other_from_its_end(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, limits=replace(QUICK, node_timeout=60)) as b:
        await b.seal_all(2)
        await until(lambda: len(one.posts) == 2, "both are posted")
        one.failing[report_path(HOME, "c.b1.a1")] = NoReply
        one.finish("c.b2.a1")
        await until(lambda: b.states()[1] == "done", "the other one is collected")
