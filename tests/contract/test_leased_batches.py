"""Workers run at a frontier and what they did is brought home; far nodes are sent batches; in memory, with mishaps."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rig.nodemodel import ModelJob, ModelNode, lost_unheard, model, refused_with, taken_unheard
from rig.scheduling import (
    CRAWL,
    HOME,
    QUICK,
    Bench,
    ModelWorker,
    leasing,
    left_behind,
    make,
    reach,
    until,
)
from rig.stores import lease_next

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.errors import ApiRefused, ConnectionRefused, NoReply
from scrapyd_dist.frontier.backlog import Lessee, NewBatch, WorkerRequest
from scrapyd_dist.frontier.packing import halve_batch
from scrapyd_dist.job_record import key_of_attempt
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling import collector
from scrapyd_dist.scheduling.scaling_policy import OF_A_NODE, ScalingPolicy
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.store.reach import Way

WHY = "it is another machine"
PATIENT = replace(QUICK, node_timeout=30)


def far_away(node: Node) -> Way:
    return Way(reason=WHY) if node.name.startswith("far") else Way(job_settings={"store": "here"})


async def workers(o: Bench, number: int) -> list[ModelWorker]:
    """All workers, which run, when so many are there."""
    await until(lambda: len(o.workers()) >= number, f"{number} workers")
    return [worker.begin() for worker in o.workers()]


async def one_worker(o: Bench, number: int = 1) -> ModelWorker:
    """The first worker, when so many are there; the others wait to be started."""
    await until(lambda: len(o.workers()) >= number, f"{number} workers")
    return o.workers()[0].begin()


def has_failed(o: Bench, count: int) -> bool:
    return o.state.counters.failed == count


async def gone(o: Bench, worker: ModelWorker) -> None:
    await until(lambda: all(one.job != worker.job for one in o.state.workers()), "its end is known")


@asynccontextmanager
async def alone(
    tmp_path: Path, *sizes: int, node: ModelNode | None = None, **options: Any
) -> AsyncIterator[tuple[Bench, ModelWorker]]:
    """A scheduler with batches of these sizes, and the only worker that it may have."""
    async with leasing(
        tmp_path, node or model("one"), scaling=ScalingPolicy(most=1), producer="me", **options
    ) as o:
        o.add(*sizes)
        yield o, await one_worker(o)


async def die_of_a_batch(o: Bench, attempt: int) -> None:
    worker = await one_worker(o)
    await until(worker.lease, "the batch")
    worker.node.report(worker.job, state="running", requests=2, done=0, attempt=attempt)
    await until(
        lambda: any(w.report and w.report.requests for w in o.state.workers()), "its report is read"
    )
    worker.node.die(worker.job)
    await gone(o, worker)


@asynccontextmanager
async def stopped(tmp_path: Path, node: ModelNode, **options: Any) -> AsyncIterator[Bench]:
    """A scheduler that is stopped in the end, as by its user."""
    before = make(tmp_path, [node], reach=reach, **options)
    await before.scheduler.recover()
    before.scheduler.start()
    yield before
    await before.leave("it is stopped")


# the usual way


async def test_every_batch_comes_home_once_and_then_it_is_over(tmp_path: Path) -> None:
    async with leasing(
        tmp_path, model("one"), model("two"), scaling=ScalingPolicy(most=3), producer="me"
    ) as o:
        o.add(2, 2, 2, 2, 2)
        for worker in await workers(o, 3):
            worker.work_off()
        await o.over(whole=5)
        assert o.state.counters.sent == 5
        assert sorted(o.posts()) == [f"{CRAWL}.w{number}.a1" for number in (1, 2, 3)]


async def test_a_worker_is_told_all_that_it_needs_and_no_secret(tmp_path: Path) -> None:
    terms = WorkerRequest(lease=30.0, max_batches=5, start="first")
    async with leasing(
        tmp_path, model("one"), scaling=ScalingPolicy(most=1, terms=terms), producer="me"
    ) as o:
        worker = await one_worker(o)
        told = o.nodes[0].jobs[worker.job].told
        assert (told["crawl"], told["worker"], told["node"], told["url"]) == (
            CRAWL,
            1,
            "one",
            "http://one:6800",
        )
        assert (told["slots"], told["lease"], told["max_batches"], told["start"]) == (
            [],
            30.0,
            5,
            "first",
        )
        assert told["store"] == "here"
        assert (o.nodes[0].jobs[worker.job].spider, o.nodes[0].jobs[worker.job].args) == (
            "s",
            {"a": "1"},
        )


async def test_it_does_not_end_before_the_producer_signs_off_and_counts_one_that_another_process_left(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), producer="me") as o:
        o.add(2)
        (await one_worker(o)).work_off()
        await until(lambda: o.states() == ["done"], "the only batch is done")
        o.store.register_producer(CRAWL, "another", 60)
        o.scheduler.no_more()
        await until(lambda: o.state.backlog.producers == ("another",), "the other one is seen")
        assert not o.state.status.done.is_set()
        o.store.sign_off(CRAWL, "another")
        await o.ended()
        assert o.state.stopped == ""


async def test_a_lost_producer_makes_the_crawl_incomplete(tmp_path: Path) -> None:
    async with leasing(tmp_path, model("one")) as o:
        o.store.register_producer(CRAWL, "links", -1)
        o.add(2)
        (await one_worker(o)).work_off()
        await o.ended()
        assert "links" in o.state.stopped
        assert (o.scheduler.incomplete, o.scheduler.failed) == (True, False)
        assert o.states() == ["done"]  # what was there has come home first
        await asyncio.wait_for(o.scheduler.left(), 5)
        await until(lambda: not list(o.state.workers()), "it is not left to itself")


async def test_what_a_worker_adds_with_its_ack_is_worked_on_before_the_end(tmp_path: Path) -> None:
    async with alone(tmp_path, 2) as (o, worker):
        o.scheduler.no_more()
        worker.lease()
        more = NewBatch(payload={"DISTRIBUTED_START_URLS": '["http://web/9"]'}, size=1)
        worker.finish(new=(more,))
        await until(lambda: o.states() == ["done", "sealed"], "the first is home, the second waits")
        worker.work_off()
        await o.ended()
        assert o.merged() == [(1, 0), (1, 1), (2, 0)]


async def test_workers_that_do_not_see_the_end_are_told_and_those_that_never_began_at_once(
    tmp_path: Path,
) -> None:
    one = model("one", slots=2)
    async with leasing(tmp_path, one, producer="me") as o:
        running = await one_worker(o, 2)
        pending = o.workers()[1]
        running.work_off()
        await until(lambda: any(w.report for w in o.state.workers()), "the first is heard of")
        await o.over()
        await asyncio.wait_for(o.scheduler.left(), 5)
        assert set(one.cancels) == {running.job, pending.job}
        assert one.jobs[pending.job].state is JobState.FINISHED


# progress


async def test_what_workers_do_counts_once_before_and_after_it_came_home(tmp_path: Path) -> None:
    async with alone(tmp_path, 10, 10) as (o, worker):
        worker.lease(2)
        worker.node.report(worker.job, state="running", requests=20, done=7, items=7)
        member = o.state.members[0]
        await until(
            lambda: member.progress() == Counter(requests=7, pages=7, items=7), "seven requests"
        )
        await until(lambda: o.state.backlog.out == 2, "both batches are seen to be out")
        worker.finish()
        await until(lambda: o.state.counters.requests_done == 10, "a batch is home")
        await until(lambda: member.progress() == Counter(), "it counts there, and nowhere else")


# workers that fail


async def test_a_dead_worker_gives_back_what_it_had_long_before_its_lease_runs_out(
    tmp_path: Path,
) -> None:
    async with leasing(
        tmp_path, model("one"), model("two"), scaling=ScalingPolicy(most=1), producer="me"
    ) as o:
        o.add(2, 2)
        first = await one_worker(o)
        first.lease(2)
        first.finish()
        first.node.die(first.job)
        await until(
            lambda: o.states() == ["done", "failed"], "the first is home, the second waits again"
        )
        second = await one_worker(o)
        assert second.job != first.job
        second.work_off()
        await o.over(whole=2)
        assert o.state.counters.failed == 1


async def test_how_each_worker_ended_is_written_down_as_it_ends(tmp_path: Path) -> None:
    two = ScalingPolicy(most=2)
    async with leasing(tmp_path, model("one"), model("two"), scaling=two, producer="me") as o:
        o.add(2, 2, 2)
        first, second = await workers(o, 2)
        second.lease()
        second.node.report(second.job, state="running", requests=2, done=1)
        await until(lambda: any(one.report for one in o.state.workers()), "its report is read")
        second.node.die(second.job)
        await until(lambda: "failed" in o.states(), "what it had waits again")
        first.work_off()
        first.end(items=5)
        await o.over(whole=3)
        await o.scheduler.left()
        kept = [key_of_attempt(one.node.node.url, HOME, one.job) for one in (first, second)]
        found = o.store.verdicts(kept)
        told = [(one.state.value, one.pages, one.items) for one in map(found.__getitem__, kept)]
        assert told == [("finished", 6, 5), ("died", 1, 0)]
        assert found[kept[1]].reason.startswith("after 1 of 2 requests")


async def test_a_lease_that_ran_out_is_taken_back_though_its_worker_seems_to_live(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=2), producer="me") as o:
        o.add(2)
        first = await one_worker(o, 2)
        first.lease(seconds=-1.0)
        await until(lambda: o.states() == ["failed"], "it waits again")
        await until(
            lambda: first.job not in [worker.job for worker in o.workers()], "it is told to end"
        )
        (await one_worker(o)).work_off()
        await o.over()
        assert [attempt.state.value for attempt in o.attempts()] == ["failed", "accepted"]


async def test_a_worker_that_hangs_counts_once_however_many_leases_it_had(tmp_path: Path) -> None:
    async with alone(tmp_path, 2, 2, 2) as (o, hanging):
        hanging.lease(3, seconds=-1.0)
        await until(lambda: o.states() == ["failed"] * 3, "they wait again")
        await until(
            lambda: hanging.job not in [worker.job for worker in o.workers()], "it is told to end"
        )
        second = await one_worker(o)
        assert o.scheduler.breaker._nodes["one"] == 1
        second.work_off()
        await o.over()


async def test_a_node_of_which_no_part_comes_home_is_left_alone_and_costs_no_batch(
    tmp_path: Path,
) -> None:
    bad, good = model("bad"), model("good")
    limits = {"limits": replace(QUICK, max_attempts=2), "scaling": ScalingPolicy(most=2)}
    async with leasing(tmp_path, bad, good, **limits) as o:
        o.add(*[2] * 6)
        o.scheduler.no_more()
        here, other = sorted(await workers(o, 2), key=lambda worker: worker.node is good)
        for _ in range(3):  # it leases the batch again at once
            await until(here.lease, "a batch")
            here.finish(part=False)
            await until(lambda: "running" not in o.states(), "its part is missed")
        await until(lambda: here.job in bad.cancels, "its worker is told to end")
        assert "no part can be fetched" in o.state.members[0].readiness.unfit
        other.work_off().end()
        await o.ended(whole=6)
        assert {one.node for one in o.attempts() if one.state is AttemptState.FAILED} == {"bad"}


async def test_what_a_worker_that_was_given_up_leases_on_costs_no_batch(tmp_path: Path) -> None:
    """The address of its node leads to another machine now: its end is not seen, and no part comes."""
    limits = {"limits": replace(QUICK, max_attempts=2), "scaling": ScalingPolicy(most=1)}
    async with leasing(tmp_path, model("one"), producer="me", **limits) as o:
        o.add(2)
        orphan = await one_worker(o)
        orphan.node.die(orphan.job)
        await gone(o, orphan)
        for _ in range(2):
            await until(orphan.lease, "the batch")
            orphan.finish(part=False)
            await until(lambda: o.states() == ["failed"], "it waits again")
        (await one_worker(o)).work_off()
        await o.over(whole=1)


async def test_a_restarted_node_costs_what_its_workers_had_no_attempt(tmp_path: Path) -> None:
    limits = {"limits": replace(QUICK, max_attempts=2), "scaling": ScalingPolicy(most=1)}
    async with leasing(tmp_path, model("one"), producer="me", **limits) as o:
        o.add(2)
        for number in range(4):
            worker = await one_worker(o)
            worker.lease()
            worker.node.die(worker.job)
            worker.node.jobs[worker.job].forgotten = True
            await gone(o, worker)
            await until(
                lambda: o.states() == ["failed"], f"it waits again after {number + 1} restarts"
            )
        (await one_worker(o)).work_off()
        await o.over(whole=1)


async def test_a_page_that_ends_its_worker_by_a_signal_is_found(tmp_path: Path) -> None:
    limits = {"limits": replace(QUICK, max_attempts=2), "scaling": ScalingPolicy(most=1)}
    async with leasing(tmp_path, model("one"), producer="me", **limits) as o:
        o.add(2)
        for _ in range(2):
            worker = await one_worker(o)
            worker.lease()
            worker.end("shutdown")
            await gone(o, worker)
        await until(lambda: o.states() == ["split", "sealed", "sealed"], "it is cut")
        (await one_worker(o)).work_off()
        await o.over()


async def test_a_local_node_that_has_another_port_now_holds_its_parts(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2)
        worker = await one_worker(o)
        worker.lease()
        attempt = replace(o.attempts()[0], url="http://127.0.0.1:1/")  # its node had another port
        member = o.state.members[0]
        assert o.state.holder_of(attempt) is None
        member.node = replace(member.node, local=True)
        assert o.state.holder_of(attempt) is member
        worker.finish()
        worker.work_off()
        await o.over(whole=1)


async def test_a_part_that_is_lost_sends_its_batch_back(tmp_path: Path) -> None:
    async with alone(tmp_path, 2) as (o, worker):
        worker.lease()
        worker.finish(part=False)
        await until(lambda: o.states() == ["failed"], "it waits again")
        member = o.state.members[0]
        await until(
            lambda: member.progress() == Counter(), "what will be done again does not count"
        )
        worker.work_off()
        await o.over(whole=1)


async def test_a_batch_that_kills_its_workers_is_cut_and_stays_in_its_slot(tmp_path: Path) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2, slot="p7")
        for attempt in range(3):
            await die_of_a_batch(o, attempt)
        await until(lambda: o.states() == ["split", "sealed", "sealed"], "it is cut")
        assert {batch.slot for batch in o.store.batches(CRAWL)} == {"p7"}
        await until(lambda: o.state.backlog.batches == 2, "two batches in its place")


async def test_a_batch_that_is_leased_before_it_can_be_cut_is_cut_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = model("one")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2)
        quick = Lessee(job="another", node="one", url=one.node.url)

        def leased_in_between(*args: Any, **kwargs: Any) -> Any:
            if o.state.counters.cuts == 1:
                assert lease_next(o.store, CRAWL, quick, seconds=-1.0)
            return halve_batch(*args, **kwargs)

        monkeypatch.setattr(collector, "halve_batch", leased_in_between)  # that is the moment
        for attempt in range(3):
            await die_of_a_batch(o, attempt)
        await until(lambda: o.states() == ["split", "sealed", "sealed"], "it is cut")
        assert (o.state.status.fault, len(o.attempts())) == (None, 4)


async def test_workers_that_always_fail_stop_the_crawl_and_are_named(tmp_path: Path) -> None:
    one = model("one")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2)
        for _ in range(3):
            worker = await one_worker(o)
            worker.end("refused", problem="The store is out of this worker's reach: no such file")
            await gone(o, worker)
        await o.ended()
        assert "no such file" in o.state.stopped
        assert o.scheduler.failed
        assert o.states() == ["sealed"]
        assert len(one.posts) in {3, 4}  # one may be on its way when the third is judged


async def test_where_no_node_takes_the_work_the_slots_in_which_it_waits_are_named(
    tmp_path: Path,
) -> None:
    one = model("one", slots=9)
    async with leasing(tmp_path, one, scaling=ScalingPolicy(per_slot=1, prefix="p", most=8)) as o:
        for number in range(7):
            o.add(1, slot=f"p{number}")
        for worker in await workers(o, 7):
            worker.end("refused", problem="no disk")
        await o.ended()
        words = "the work of the slots 'p0', 'p1', 'p2', 'p3', 'p4' and 2 more: the last 3 workers there did nothing"
        assert words in o.state.stopped
        assert (o.scheduler.failed, o.states()) == (True, ["sealed"] * 7)


async def test_one_worker_that_cannot_have_the_store_tells_for_all_of_its_node(
    tmp_path: Path,
) -> None:
    one, other = model("one", slots=1), model("other", slots=1)
    async with leasing(tmp_path, one, other, scaling=ScalingPolicy(most=2), producer="me") as o:
        o.add(2)
        first, second = await workers(o, 2)
        first.end("refused", problem="there is no file /x/store.db", unreached=True)
        await until(lambda: len(o.scheduler.breaker.unreached) == 1, "it is seen")
        assert o.scheduler.stop_code != 2  # the other one may still say otherwise
        second.end("refused", problem="there is no file /x/store.db", unreached=True)
        await o.ended()
        assert "no file /x/store.db" in o.state.stopped
        assert (o.scheduler.stop_code, o.states(), len(o.posts())) == (2, ["sealed"], 2)


async def test_only_the_node_whose_workers_fail_is_taken_out(tmp_path: Path) -> None:
    bad, good = model("bad", slots=1), model("good", slots=1)
    async with leasing(tmp_path, bad, good, producer="me") as o:
        o.add(2)
        await until(lambda: len(o.workers()) == 2, "two workers")
        for count in range(1, 4):
            await until(lambda count=count: len(bad.posts) == count, "another one there")  # type: ignore[misc]  # the default binds it
            next(worker for worker in o.workers() if worker.node is bad).end(
                "refused", problem="no disk"
            )
        await until(lambda: o.state.members[0].readiness.unfit, "it is taken out")
        assert "no disk" in o.state.members[0].readiness.unfit
        next(worker for worker in o.workers() if worker.node is good).begin().work_off()
        await o.over()
        assert (o.state.stopped, o.states(), len(bad.posts)) == ("", ["done"], 3)


async def test_workers_that_have_waited_for_all_their_time_are_no_failures(tmp_path: Path) -> None:
    one = model("one", slots=1)
    async with leasing(tmp_path, one, producer="me") as o:
        for count in range(1, OF_A_NODE + 2):
            await until(lambda count=count: len(one.posts) == count, "the next one")  # type: ignore[misc]  # as above
            o.workers()[-1].end("timeout")
        o.add(2)
        await until(lambda: len(one.posts) == OF_A_NODE + 2, "one more")
        o.workers()[-1].begin().work_off()
        await o.over()
        assert (o.state.stopped, o.states(), o.state.members[0].readiness.unfit) == (
            "",
            ["done"],
            "",
        )


# other spiders, slots


async def test_work_for_another_spider_gets_a_worker_of_that_spider(tmp_path: Path) -> None:
    one = model("one")
    async with leasing(tmp_path, one, producer="me", scaling=ScalingPolicy(most=1)) as o:
        o.add(1, slot="@login")
        await until(
            lambda: any(job.spider == "login" for job in one.jobs.values()),
            "the idle one makes room",
        )
        worker = o.workers()[-1].begin()
        assert (worker.slots, one.jobs[worker.job].project, one.jobs[worker.job].args) == (
            ["@login"],
            "p",
            {},
        )
        worker.work_off()
        worker.end()
        await o.over()
        assert o.states() == ["done"]


async def test_what_is_for_a_spider_that_is_nowhere_is_dead_and_says_why(tmp_path: Path) -> None:
    def refuse(node: ModelNode, job: ModelJob) -> None:
        if job.spider == "nobody":
            raise ApiRefused(str(node.node), "spider 'nobody' not found")
        node.take(job)

    one = model("one")
    one.plays = [refuse] * 9
    async with leasing(tmp_path, one, producer="me", scaling=ScalingPolicy(most=2)) as o:
        o.add(2)
        o.add(3, slot="@nobody")
        (await one_worker(o)).work_off()
        await until(lambda: o.states() == ["done", "dead"], "it is given up")
        assert "nobody" in o.store.batch(CRAWL, 2).reason
        await o.over()
        assert (o.state.stopped, o.state.counters.dead_urls) == ("", 3)
        assert o.state.members[0].readiness.unfit == ""


async def test_eight_slots_with_work_get_eight_workers_though_more_may_run_and_none_gets_a_second(
    tmp_path: Path,
) -> None:
    slots = [f"p{number}" for number in range(8)]
    one, two = model("one", slots=8), model("two", slots=8)  # more room than is wanted
    async with leasing(
        tmp_path, one, two, scaling=ScalingPolicy(per_slot=1, prefix="p", most=12)
    ) as o:
        for slot in slots:
            o.add(1, 1, 1, slot=slot)
        await until(lambda: len(o.workers()) == 8, "eight workers")
        assert sorted(worker.slots for worker in o.workers()) == [[slot] for slot in slots]
        first, *others = [worker.begin() for worker in o.workers()]
        for worker in (first, *others):
            worker.lease()
        first.finish()
        first.end()
        await until(lambda: len(o.posts()) == 9, "another one where a worker has ended")
        assert sorted(worker.slots for worker in o.workers()) == [[slot] for slot in slots]
        for worker in others:
            worker.finish()
        for worker in o.workers():
            worker.begin().work_off().end()
        await o.ended()
        assert o.states() == ["done"] * 24


async def test_between_two_rounds_no_worker_is_started(tmp_path: Path) -> None:
    async with leasing(
        tmp_path, model("one", slots=9), scaling=ScalingPolicy(per_slot=1, every=3600.0)
    ) as o:
        o.add(1, slot="p0")
        (await one_worker(o)).work_off()
        o.store.register_producer(CRAWL, "me", 60)
        o.add(1, slot="p1")
        await until(lambda: o.state.backlog.waiting == 1, "it is seen")
        looks = o.state.backlog
        await until(lambda: o.state.backlog is not looks, "it is looked at once more")
        assert len(o.posts()) == 1
        assert o.scheduler.staffing._staffed is not None
        o.scheduler.staffing._staffed -= 3600.0  # an hour later
        await until(lambda: len(o.posts()) == 2, "the next round")


async def test_fewer_workers_than_there_are_means_that_none_is_started(tmp_path: Path) -> None:
    one = model("one", slots=9)
    async with stopped(tmp_path, one, scaling=ScalingPolicy(per_slot=1, most=5)) as before:
        for slot in range(8):
            before.add(1, 1, slot=f"p{slot}")
        await until(lambda: len(one.posts) == 5, "five workers")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(per_slot=1, most=2)) as o:
        for worker in o.workers():
            worker.begin()
        await until(lambda: all(w.report for w in o.state.workers()), "all five are seen")
        assert len(list(o.state.workers())) == 5
        for worker in o.workers()[:3]:
            worker.end()
        await until(lambda: len(list(o.state.workers())) == 2, "two are left")
        looks = o.state.backlog
        await until(lambda: o.state.backlog is not looks, "it is looked at once more")
        assert len(one.posts) == 5
        o.workers()[0].end()
        await until(lambda: len(one.posts) == 6, "one for the one that ended")


async def test_one_round_gives_each_slot_what_it_may_have_and_leaves_the_workers_alone(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(per_slot=2, every=0)) as o:
        o.add(1, 1, 1, slot="p0")
        await o.ended()
        assert [worker.slots for worker in o.workers()] == [["p0"], ["p0"]]
        assert (len(o.posts()), o.state.stopped) == (2, "")


async def test_a_producer_that_does_not_wait_leaves_when_workers_are_sent(tmp_path: Path) -> None:
    once = replace(QUICK, wait=False)
    async with leasing(
        tmp_path, model("one"), limits=once, scaling=ScalingPolicy(most=1), producer="me"
    ) as o:
        o.add(1)
        await o.over()
        await asyncio.wait_for(o.scheduler.left(), 5)
        assert (len(o.posts()), o.nodes[0].cancels) == (1, [])


async def test_enough_time_is_enough(tmp_path: Path) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(max_time=0.05)) as o:
        o.add(1)
        await o.ended()
        assert "0.05 s" in o.state.stopped


# nodes


async def test_a_node_whose_workers_do_not_reach_the_store_gets_none(tmp_path: Path) -> None:
    far, near = model("far"), model("near")
    async with leasing(
        tmp_path, far, near, reach=far_away, producer="me", scaling=ScalingPolicy(most=2)
    ) as o:
        await until(lambda: len(near.posts) == 2, "both are near")
        assert far.posts == []
        assert o.state.members[0].readiness.unfit == WHY


async def test_a_worker_whose_post_was_not_answered_is_not_posted_twice(tmp_path: Path) -> None:
    one = model("one")
    one.plays = [taken_unheard]
    async with alone(tmp_path, 2, node=one) as (o, worker):
        worker.work_off()
        await o.over()
        assert one.posts == [f"{CRAWL}.w1.a1"]


async def test_a_worker_that_never_arrived_is_replaced_under_another_number(tmp_path: Path) -> None:
    one = model("one")
    one.plays = [lost_unheard, refused_with(ConnectionRefused)]
    async with alone(tmp_path, node=one):
        assert len(set(one.posts)) == len(one.posts)
        assert one.posts[0] == f"{CRAWL}.w1.a1"


async def test_parts_on_a_node_that_is_away_for_a_moment_are_waited_for(tmp_path: Path) -> None:
    one = model("one")
    async with alone(tmp_path, 2, node=one, limits=replace(QUICK, node_timeout=30)) as (o, worker):
        one.down = ConnectionRefused
        await until(lambda: not o.state.members[0].up, "it is seen to be away")
        worker.work_off()
        o.scheduler.no_more()
        await until(lambda: o.state.backlog.acked == 1, "its ack is seen")
        one.down = None
        await o.ended()
        assert (o.states(), o.state.counters.failed) == (["done"], 0)


async def test_a_node_that_goes_down_after_an_ack_costs_the_batch_no_attempt(
    tmp_path: Path,
) -> None:
    away, near = model("away", slots=1), model("near", slots=1)
    once = replace(QUICK, max_attempts=1, node_timeout=0.5)
    async with leasing(tmp_path, away, near, producer="me", limits=once) as o:
        lost, other = sorted(await workers(o, 2), key=lambda worker: worker.node is near)
        o.add(2)
        await until(lost.lease, "it has the batch")
        away.down = ConnectionRefused
        await until(lambda: not o.state.members[0].up, "its node is seen to be away")
        lost.finish()
        await until(other.lease, "the batch waits again")
        other.finish()
        await o.over(whole=1)


async def test_a_lease_that_runs_out_while_its_node_is_away_costs_the_batch_no_attempt(
    tmp_path: Path,
) -> None:
    away, near = model("away", slots=1), model("near", slots=1)
    once = replace(PATIENT, max_attempts=1)
    async with leasing(tmp_path, away, near, producer="me", limits=once) as o:
        lost, other = sorted(await workers(o, 2), key=lambda worker: worker.node is near)
        away.down = ConnectionRefused
        o.add(2)
        lost.lease(seconds=0.2)
        await until(lambda: not o.state.members[0].up, "its node is seen to be away")
        await until(other.lease, "the batch waits again")
        other.finish()
        await o.over(whole=1)


async def test_a_node_that_has_left_the_fleet_meanwhile_costs_its_batches_no_attempt(
    tmp_path: Path,
) -> None:
    one, two = model("one", slots=1), model("two", slots=1)
    options = {"producer": "me", "limits": replace(QUICK, max_attempts=1)}
    async with stopped(tmp_path, one, **options) as before:
        before.add(2, 2)
        worker = await one_worker(before)
        worker.lease(2)
        before.scheduler.state.status.stop_sending()
        one.down = NoReply
        worker.finish()
    async with leasing(tmp_path, two, **options) as after:
        worker = await one_worker(after)
        await until(lambda: worker.work_off().done == 4, "both are done")
        await after.over(whole=2)


async def test_what_a_worker_does_on_a_node_without_an_answer_never_makes_a_batch_dead(
    tmp_path: Path,
) -> None:
    away, near = model("away", slots=1), model("near", slots=1)
    async with leasing(tmp_path, away, near, producer="me", limits=QUICK) as o:
        (lost,) = (worker for worker in await workers(o, 2) if worker.node is away)
        away.down = ConnectionRefused
        await until(lambda: not o.state.members[0].out, "its worker is given up")
        o.add(2)
        for count in range(1, 7):  # twice as often as a batch may fail
            await until(lost.lease, "it leases on")
            lost.finish()
            await until(partial(has_failed, o, count), "and it is out of reach")
        next(worker for worker in o.workers() if worker.node is near).work_off()
        await o.over(whole=1)


async def test_what_a_worker_leased_while_its_node_was_away_waits_again_when_it_is_cancelled(
    tmp_path: Path,
) -> None:
    away, near = model("away", slots=1), model("near", slots=1)
    once = replace(QUICK, max_attempts=1)  # it says nothing of the batch, which is not dead for it
    async with leasing(tmp_path, away, near, producer="me", limits=once) as o:
        lost, other = sorted(await workers(o, 2), key=lambda worker: worker.node is near)
        away.down = ConnectionRefused
        await until(lambda: not o.state.members[0].out, "its worker is given up")
        o.add(2)
        await until(lost.lease, "it leases on, for a minute")
        away.down = None
        await until(lambda: lost.job in away.cancels, "it is cancelled")
        await until(other.lease, "its batch waits again")
        other.finish()
        await o.over(whole=1)


async def test_a_worker_is_told_to_end_once_its_node_answers_again(tmp_path: Path) -> None:
    one = model("one")
    async with alone(tmp_path, 2, node=one, limits=PATIENT) as (o, worker):
        worker.lease()
        one.failing["cancel.json"] = ConnectionRefused
        o.store.update_node("one", draining=1.0)
        await until(lambda: "cancel.json" in one.calls, "its node cannot be asked for that")
        one.failing.clear()
        await until(lambda: worker.job in one.cancels, "it is told to end")


async def test_a_worker_that_may_have_heard_a_signal_gets_no_second_one_while_it_ends(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with alone(tmp_path, 2, 2, node=one, limits=PATIENT) as (o, worker):
        worker.lease()
        one.failing["cancel.json"] = NoReply
        o.store.update_node("one", draining=1.0)
        await until(lambda: any(w.unheard_with for w in o.state.workers()), "it may have heard it")
        del one.calls[:]
        await until(lambda: one.calls.count("daemonstatus.json") > 2, "its node is polled again")
        assert "cancel.json" not in one.calls
        one.failing.clear()
        worker.lease()
        await until(lambda: worker.job in one.cancels, "it leases on, and so has heard nothing")


async def test_a_worker_that_may_have_heard_a_signal_gets_no_second_one_while_it_closes(
    tmp_path: Path,
) -> None:
    one = model("one")

    def renew(*, closing: bool) -> None:
        one.report(worker.job, state="running", closing=closing, updated=time.time())

    def is_polled_on() -> bool:
        renew(closing=True)
        return one.calls.count("daemonstatus.json") > 6

    def is_told() -> bool:
        renew(closing=False)
        return worker.job in one.cancels

    async with alone(tmp_path, 2, 2, node=one, limits=PATIENT) as (o, worker):
        worker.lease()
        one.failing["cancel.json"] = NoReply
        o.store.update_node("one", draining=1.0)
        await until(lambda: any(w.unheard_with for w in o.state.workers()), "it may have heard it")
        del one.calls[:]
        renew(closing=True)
        worker.finish()
        await until(is_polled_on, "its node is polled again")
        assert "cancel.json" not in one.calls
        one.failing.clear()
        await until(is_told, "it neither closes nor leases, and so has heard nothing")


# rest, and another process


async def test_at_rest_nothing_is_leased_and_no_worker_started(tmp_path: Path) -> None:
    async with alone(tmp_path) as (o, worker):
        o.store.want(CRAWL, "pause")
        o.scheduler.set_paused(paused=True)
        o.add(2)
        assert worker.lease() == []
        worker.end()
        await until(lambda: not list(o.state.workers()), "it has ended")
        await until(lambda: o.state.backlog.waiting == 1, "the batch is seen")
        assert len(o.posts()) == 1
        o.store.want(CRAWL, "")
        o.scheduler.set_paused(paused=False)
        (await one_worker(o)).work_off()
        await o.over()
        assert len(o.posts()) == 2


async def test_the_next_process_takes_up_the_workers_and_starts_no_second_one(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with alone(tmp_path, 4, 4, node=one) as (before, worker):
        worker.lease(2)
        worker.finish()
        await until(lambda: before.state.counters.done == 1, "a batch is home")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as after:
        worker.store = after.store
        worker.node.report(worker.job, state="running", requests=8, done=6, items=6)
        done = Counter(requests=2, pages=2, items=2)
        await until(
            lambda: after.state.members[0].progress() == done, "what was home before counts once"
        )
        worker.finish()
        await after.over()
        after.whole(2, size=4)
        assert one.posts == [f"{CRAWL}.w1.a1"]


async def test_what_an_earlier_process_had_sent_is_leased_like_the_rest(tmp_path: Path) -> None:
    one = model("one")
    before, _ = await left_behind(tmp_path, one)
    await before.leave()
    async with alone(tmp_path, node=one) as (after, worker):
        await until(worker.lease, "the batch waits again")
        worker.finish()
        await after.over()
        assert [attempt.state.value for attempt in after.attempts()] == ["failed", "accepted"]
        assert after.merged() == [(1, 0), (1, 1)]


async def test_a_crawl_that_goes_on_with_other_code_lets_the_workers_of_the_earlier_one_end(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with stopped(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as before:
        before.add(2)
        await one_worker(before)
    spec = before.state.spec
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me", spec=spec):
        assert one.cancels == []
    other = replace(spec, version="v2")
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me", spec=other):
        await until(lambda: one.cancels == [f"{CRAWL}.w1.a1"], "the worker of v1 is told to end")
        await until(lambda: len(one.posts) == 2, "another worker")
        assert [job.version for job in one.jobs.values()] == ["v1", "v2"]


async def test_a_worker_of_earlier_code_that_could_not_be_told_to_end_is_told_later(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with stopped(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as before:
        before.add(2)
        await one_worker(before)
    one.failing["cancel.json"] = ConnectionRefused
    other = {"spec": replace(before.state.spec, version="v2"), "limits": PATIENT}
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me", **other):
        one.failing.clear()
        await until(lambda: f"{CRAWL}.w1.a1" in one.cancels, "the worker of v1 is told to end")


async def test_workers_that_died_meanwhile_are_found_out_and_their_numbers_never_come_again(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with stopped(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as before:
        before.add(2)
        worker = await one_worker(before)
        worker.lease()
    worker.node.die(worker.job)
    async with leasing(tmp_path, one, scaling=ScalingPolicy(most=1), producer="me") as after:
        await until(lambda: len(one.posts) == 2, "another worker")
        (await one_worker(after)).work_off()
        await after.over(whole=1)
        assert one.posts == [f"{CRAWL}.w1.a1", f"{CRAWL}.w2.a1"]


# some nodes lease, the others are sent their batches


def auto(tmp_path: Path, *nodes: ModelNode, **options: Any) -> Any:
    options = {"producer": "me", "scaling": ScalingPolicy(most=2), **options}
    return leasing(tmp_path, *nodes, sends=True, **options)


def sent(node: ModelNode) -> list[str]:
    return [job for job in node.posts if ".b" in job]


async def test_each_node_works_as_it_can(tmp_path: Path) -> None:
    far, near = model("far", quick=False), model("near")
    async with auto(tmp_path, far, near, reach=far_away) as b:
        b.add(*[2] * 40)
        await until(lambda: b.workers() and sent(far), "both have work")
        for worker in b.workers():
            assert worker.begin().node is near
            worker.lease(4)
            while worker.has:
                worker.finish()
        for job in sent(far):
            far.finish(job)
        far.quick = True
        await until(lambda: len(b.merged()) > 30, "both have gone on")
        for worker in b.workers():
            worker.work_off().end()
        await b.over(whole=40)
        assert [".w" in job for job in far.posts] == [False] * len(far.posts)
        assert all(".w" in job for job in near.posts)
        assert len(b.attempts()) == 40, "no batch was given out twice"
        assert b.state.members[0].readiness.unreached == WHY


@pytest.mark.parametrize("names", [("far1", "far2"), ("one", "two")])
async def test_where_no_worker_reaches_the_store_all_batches_are_sent(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Nodes of which that is known, and nodes whose first worker says so."""
    nodes = [model(name) for name in names]
    async with auto(tmp_path, *nodes, reach=far_away) as b:
        b.add(*[2] * 9)
        if names == ("one", "two"):
            await until(lambda: len(b.workers()) == 2, "a worker each")
            for worker in b.workers():
                worker.begin().end("refused", problem="The store is out of reach.", unreached=True)
        await b.over(whole=9)
        assert all(sent(node) for node in nodes)
        assert all(
            member.readiness.unreached and not member.readiness.unfit for member in b.state.members
        )


async def test_what_a_worker_had_leased_before_its_node_was_cut_off_is_sent(tmp_path: Path) -> None:
    one = model("one")
    async with auto(tmp_path, one, scaling=ScalingPolicy(most=1)) as b:
        b.add(2, 2)
        await until(b.workers, "a worker")
        (worker,) = b.workers()
        assert worker.begin().lease()
        worker.end("store-lost", problem="The store was lost.", unreached=True)
        await b.over(whole=2)
        assert sent(one) == ["c.b1.a2", "c.b2.a1"]


async def test_a_node_whose_workers_lose_the_store_again_and_again_is_sent_its_batches(
    tmp_path: Path,
) -> None:
    one = model("one")
    async with auto(tmp_path, one, scaling=ScalingPolicy(most=1)) as b:
        b.add(2, 2)
        for _ in range(OF_A_NODE):
            await until(b.workers, "a worker")
            b.workers()[-1].begin().end(
                "store-lost", problem="The store is out of this worker's reach: refused."
            )
        await b.over(whole=2)
        assert sent(one) == ["c.b1.a1", "c.b2.a1"]
        (member,) = b.state.members
        assert "refused" in member.readiness.unreached
        assert not member.readiness.unfit


async def test_another_spider_of_the_project_is_sent_its_batches_too_and_another_project_gets_none(
    tmp_path: Path,
) -> None:
    far = model("far")
    async with auto(tmp_path, far, reach=far_away) as b:
        b.add(2)
        b.add(2, slot="@login")
        b.add(2, slot="@shop:login")
        await b.over()
        assert b.states() == ["done", "done", "dead"]
        assert [(job.spider, job.args.get("a")) for job in far.jobs.values()] == [
            ("s", "1"),
            ("login", None),
        ]
        assert WHY in b.store.batch("c", 3).reason
