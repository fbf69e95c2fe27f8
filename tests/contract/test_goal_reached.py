"""Goals of a whole crawl at its scheduler: nothing more is begun, what is out comes home, the rest waits; in memory."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.nodemodel import ModelJob, model
from rig.scheduling import (
    CRAWL,
    HOME,
    SPEC,
    Bench,
    ModelWorker,
    leasing,
    left_behind,
    sending,
    until,
)

from scrapyd_dist.batches import PUT_OFF, PUT_OFF_REASON, AttemptState, Miss
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.payload import REPLACES, decode
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy


def spec(**goals: float) -> Any:
    return replace(SPEC, goals=goals)


async def a_worker(o: Bench) -> ModelWorker:
    await until(lambda: o.workers() != [], "a worker")
    return o.workers()[0].begin()


async def test_it_ends_when_what_was_out_is_home_and_the_rest_waits(tmp_path: Path) -> None:
    only = {"scaling": ScalingPolicy(most=1), "producer": "me", "spec": spec(items=4)}
    async with leasing(tmp_path, model("one"), **only) as o:
        o.add(2, 2, 2)
        worker = await a_worker(o)
        assert json.loads(worker.node.jobs[worker.job].settings["DISTRIBUTED_PULL"])["goals"] == {
            "items": 4
        }
        worker.lease(2)
        o.store.spend(CRAWL, {}, 0, {"items": 4})
        await until(lambda: o.state.goal == "items", "the goal is seen")
        assert not o.state.status.done.is_set(), "two batches are out"
        worker.finish()
        worker.finish()
        worker.end("goal")
        await o.over()
        assert (o.states(), o.state.stopped, o.state.goal) == (
            ["done", "done", "sealed"],
            "",
            "items",
        )
        assert len(o.posts()) == 1, "no worker in its place"


async def test_what_was_counted_and_lost_does_not_end_it(tmp_path: Path) -> None:
    only = {"scaling": ScalingPolicy(most=1), "producer": "me", "spec": spec(items=4)}
    async with leasing(tmp_path, model("one"), **only) as o:
        o.add(2, 2)
        o.scheduler.no_more()
        worker = await a_worker(o)
        worker.lease()
        worker.finish()
        worker.lease()
        o.store.spend(CRAWL, {}, 0, {"items": 5})
        await until(lambda: o.state.goal == "items", "the goal is seen")
        worker.node.die(worker.job)
        await until(lambda: len(o.posts()) == 2, "another worker")
        (await a_worker(o)).work_off().end()
        await o.ended()
        assert o.states() == ["done", "done"]
        assert o.state.counters.items == 4


@pytest.mark.parametrize("broken_off", [False, True])
async def test_requests_that_were_put_off_wait_in_a_batch_of_their_own(
    broken_off: bool, tmp_path: Path
) -> None:
    only = {"scaling": ScalingPolicy(most=1), "producer": "me", "spec": spec(items=2)}
    missed = [[1, PUT_OFF, [[1, 1]]], [2, PUT_OFF, []]]
    async with leasing(tmp_path, model("one"), **only) as o:
        o.add(3)
        o.scheduler.no_more()
        worker = await a_worker(o)
        (one,) = worker.lease()
        if broken_off:  # an earlier process has died between two steps
            report = {"done": 1, "pages": 2, "items": 2, "missed_requests": missed}
            rest = [
                Miss(url=f"http://web/{n}", kind="failed", reason=PUT_OFF_REASON, batch=1)
                for n in (1, 2)
            ]
            o.store.accept(CRAWL, 1, one.attempt, report=report, part="", misses=rest, now=1.0)
            await o.scheduler.recover()
        else:
            left = {"done": 1, "pages": 2, "items": 2, "missed_requests": missed}
            rows = {PUT_OFF: [{"url": f"http://web/{n}", "reason": PUT_OFF_REASON} for n in (1, 2)]}
            _finish(worker, **left, **rows)
        await until(lambda: len(o.states()) == 2, "they wait")
        assert o.states() == ["done", "sealed"]
        assert o.store.misses(CRAWL) == []
        values = decode(o.store.payload(CRAWL, 2).get, key=None)
        assert [(value["url"], value[REPLACES]) for value in values] == [
            ("http://web/1", [1, 1]), ("http://web/2", [1, 2]),
        ]  # fmt: skip
        assert (o.state.counters.failed_urls, o.state.counters.items) == (0, 2)


def _finish(worker: ModelWorker, **fields: Any) -> None:
    """The batch that it has is acked with a report of these fields."""
    kept: Callable[..., None] = worker.store.ack

    def ack(*args: Any, report: dict[str, Any], **rest: Any) -> None:
        lines = b'{"batch": 1, "item": 0}\n{"batch": 1, "item": 1}\n'
        name = report["part"]["file"]
        path = next(path for path in worker.node.files if path.endswith(name))
        worker.node.files[path] = lines
        part = {
            "file": name,
            "items": 2,
            "bytes": len(lines),
            "sha256": hashlib.sha256(lines).hexdigest(),
        }
        kept(*args, report={**report, **fields, "part": part}, **rest)

    worker.store.ack = ack  # type: ignore[assignment]  # its answer is changed on the way
    worker.finish()


async def test_a_job_without_the_store_has_an_allowance_and_counts_by_its_report(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=spec(requests=20)) as b:
        b.state.members[0].readiness.note_throttle("it is another machine")
        await b.seal_all(3)
        await until(lambda: len(b.posts()) == 2, "all that are allowed")
        told = [
            json.loads(one.jobs[job].settings["DISTRIBUTED_JOB"])["allowance"] for job in b.posts()
        ]
        assert told == [{"requests": 14}, {"requests": 6}], "together what is left"
        one.start("c.b1.a1", done=1)
        one.finish("c.b1.a1", no_lease="none", stats={"downloader/request_count": 3})
        await until(lambda: len(b.posts()) == 3, "what it has not used is given to the next")
        assert json.loads(one.jobs["c.b3.a1"].settings["DISTRIBUTED_JOB"])["allowance"] == {
            "requests": 11
        }
        one.start("c.b2.a1")
        one.finish("c.b2.a1", no_lease="none", stats={"downloader/request_count": 6})
        one.start("c.b3.a1")
        one.finish("c.b3.a1", no_lease="none", stats={"downloader/request_count": 11})
        await b.ended()
        counts = b.store.spend(CRAWL, {}).counts
        assert (counts["requests"], counts["reserved"]) == (20, 0)
        assert {attempt.state for attempt in b.attempts()} == {AttemptState.ACCEPTED}


async def test_a_failed_page_is_no_error_of_the_spider_and_a_stat_may_be_anything(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=spec(requests=20, errors=2)) as b:
        b.state.members[0].readiness.note_throttle("it is another machine")
        await b.seal_all(1)
        await until(lambda: len(b.posts()) == 1, "it is posted")
        one.start("c.b1.a1")
        stats = {"downloader/request_count": "many", "spider_exceptions/count": 1}
        one.finish("c.b1.a1", no_lease="none", missed=2, done=0, errors=2, stats=stats)
        await b.ended()
        counts = b.store.spend(CRAWL, {}).counts
        assert (b.state.goal, counts["errors"], counts["requests"]) == ("", 1, 2)


async def test_a_report_of_requests_that_its_batch_has_not_is_none(tmp_path: Path) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(3)
        worker = await a_worker(o)
        worker.lease()
        _finish(worker, done=2, pages=2, items=2, missed_requests=[[3, PUT_OFF, []]])
        await until(lambda: o.attempts(1)[0].state is AttemptState.FAILED, "it is given up")
        assert "requests that its batch has not" in o.attempts(1)[0].reason
        assert o.state.status.fault is None


async def test_a_lost_job_may_make_all_that_it_has_reserved(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two, spec=spec(requests=40)) as b:
        b.state.members[0].readiness.note_throttle("it is another machine")
        await b.seal_all(2)
        await until(lambda: len(b.posts()) == 2, "both")
        (far,), (near,) = one.posts, two.posts
        assert "allowance" not in json.loads(two.jobs[near].settings["DISTRIBUTED_JOB"]), (
            "nothing is reserved for it"
        )
        assert b.store.spend(CRAWL, {}).counts["reserved"] == 14, "the other one asks the store"
        one.start(far, done=1)
        await until(
            lambda: any(out.report for member in b.state.members for out in member.out.values()),
            "a report",
        )
        assert b.store.spend(CRAWL, {}).counts["reserved"] == 14, (
            "it has not said yet that it holds a lease"
        )
        one.report(far, state="running", done=1, no_lease="none")
        await until(lambda: b.store.spend(CRAWL, {}).counts["requests"] == 1, "its report is read")
        one.die(far)
        await until(lambda: len(b.posts()) == 3, "its next attempt")
        await until(
            lambda: b.store.spend(CRAWL, {}).counts["requests"] == 14, "it may have made them"
        )
        assert b.store.spend(CRAWL, {}).counts["reserved"] in {0, 14}


async def test_a_pause_is_no_time_without_an_item(tmp_path: Path) -> None:
    async with leasing(tmp_path, model("one"), producer="me", spec=spec(dry_time=1)) as o:
        o.add(2)
        await a_worker(o)
        o.scheduler.set_paused(paused=True)
        o.scheduler.goal_watch._dry = (0, o.scheduler.goal_watch._begun - 3600)
        looks = o.scheduler.goal_watch._dry
        await until(lambda: o.scheduler.goal_watch._dry is not looks or o.state.goal, "a look")
        assert o.state.goal == ""


async def test_what_an_earlier_process_has_reserved_may_still_be_made(tmp_path: Path) -> None:
    one = model("one", quick=False)
    before, job = await left_behind(tmp_path, one)
    before.store.spend(CRAWL, {}, 14, reserve=True)
    await before.leave()
    one.take(
        ModelJob(id=job, size=2, settings={"DISTRIBUTED_JOB": json.dumps({"home": HOME})}, args={})
    )
    async with sending(tmp_path, one, spec=spec(requests=20)) as b:
        assert b.store.spend(CRAWL, {}).counts["requests"] == 14
        one.start(job)
        one.finish(job, no_lease="none", stats={"downloader/request_count": 6})
        b.scheduler.no_more()
        await b.ended(whole=1)
        assert b.store.spend(CRAWL, {}).counts["requests"] == 14, "and is counted once"


async def test_it_is_not_over_while_requests_are_put_off(tmp_path: Path) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=spec(requests=1)) as b:
        kept = b.scheduler.collector.put_off

        looks = list[Any]()

        def looked() -> bool:
            looks.extend(
                [b.state.goals.spent] if not looks or looks[-1] is not b.state.goals.spent else []
            )
            return len(looks) > 3

        async def later(*args: Any) -> None:
            await until(looked, "looks")
            assert not b.state.status.done.is_set()
            await kept(*args)

        b.scheduler.collector.put_off = later  # type: ignore[method-assign,assignment]  # it comes late
        b.state.members[0].readiness.note_throttle("it is another machine")
        await b.seal_all(1)
        await until(lambda: b.posts() != [], "it is posted")
        one.start("c.b1.a1")
        rest: dict[str, Any] = {
            PUT_OFF: [{"url": "http://web/1", "reason": PUT_OFF_REASON}],
            "missed_requests": [[1, PUT_OFF, []]],
        }
        one.finish(
            "c.b1.a1", no_lease="none", done=1, stats={"downloader/request_count": 1}, **rest
        )
        await b.ended()
        assert (b.states(), b.state.goal) == (["done", "sealed"], "requests")


async def test_a_batch_that_was_taken_meanwhile_has_nothing_reserved(tmp_path: Path) -> None:
    async with sending(tmp_path, model("one"), spec=replace(spec(requests=20), rows=True)) as b:
        b.state.members[0].readiness.note_throttle("it is another machine")
        batch = b.store.seal(
            CRAWL, NewBatch(payload={"DISTRIBUTED_START_URLS": "[]"}, size=2), (), {"sealed": 2}
        )
        b.store.drop_batch(CRAWL, batch.number, forget=False)
        b.scheduler.add(batch)
        await until(lambda: not b.state.queue.open, "it is seen")
        await until(
            lambda: b.store.spend(CRAWL, {}).counts["reserved"] == 0, "others get what was reserved"
        )
