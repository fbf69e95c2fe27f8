"""The scheduler places and posts, on nodes in memory that misbehave; real nodes are in the acceptance tests."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.nodemodel import ModelJob, ModelNode, lost_unheard, model, refused_with, taken_unheard
from rig.scheduling import CRAWL, HOME, QUICK, Bench, sending, until
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions

from scrapyd_dist.batches import AttemptState, job_id
from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    CallRefused,
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    NotFound,
)
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.sealed_intake import SealedIntake
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scrapyd.api import JobState

# the usual way


async def test_every_batch_is_accepted_once_and_its_items_are_home(tmp_path: Path) -> None:
    async with sending(tmp_path, model("one"), model("two"), model("three")) as b:
        await b.work_off(20)
        assert sorted(b.posts()) == sorted(job_id(CRAWL, n, 1) for n in range(1, 21))
        assert {a.state for a in b.attempts()} == {AttemptState.ACCEPTED}


async def test_a_crawl_without_batches_ends(tmp_path: Path) -> None:
    async with sending(tmp_path, model("one")) as b:
        await b.over(whole=0)


async def test_it_does_not_end_before_the_producer_says_so(tmp_path: Path) -> None:
    async with sending(tmp_path, model("one")) as b:
        await b.seal()
        await until(lambda: b.states() == ["done"], "the only batch is done")
        assert not b.state.status.over.is_set()
        await b.over(whole=1)


async def test_a_node_with_eight_times_the_slots_does_eight_times_the_work(tmp_path: Path) -> None:
    """N6, by the placement that is used where nothing is set."""
    small, large = model("small", slots=1, quick=False), model("large", slots=8, quick=False)
    async with sending(
        tmp_path, small, large, placement=Placement(ProducerOptions().placement)
    ) as b:
        await b.seal_all(180)
        ended = 0
        while ended < 180:
            for node in (
                small,
                large,
            ):  # one batch takes as long as another, and each slot has one at a time
                running = [
                    job for job in node.posts if node.jobs[job].state is not JobState.FINISHED
                ]
                for job in running[: node.slots]:
                    node.finish(job)
                    ended += 1
            await until(lambda ended=ended: b.state.counters.done == ended, "they are home")  # type: ignore[misc]  # a default binds it
            await until(lambda: _busy(b), "the slots are filled again")
        await b.ended(whole=180)
        assert 18 <= len(small.posts) <= 22, "a ninth, give or take a tenth"


def _busy(b: Bench) -> bool:
    """Whether every slot has a job, or nothing waits for one."""
    at_work = [
        sum(job.state is not JobState.FINISHED for job in node.jobs.values()) for node in b.nodes
    ]
    return not b.state.queue.waiting or all(
        n >= node.slots for n, node in zip(at_work, b.nodes, strict=True)
    )


async def test_max_jobs_holds_over_the_whole_fleet(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two, limits=replace(QUICK, max_jobs=3)) as b:
        await b.seal_all(6)
        await until(lambda: len(b.posts()) == 3, "as many as allowed are posted")
        assert len(b.state.queue.waiting) == 3
        one.finish(one.posts[0])
        await until(lambda: len(b.posts()) == 4, "the next one is posted")
        assert sum(len(member.out) for member in b.state.members) == 3


async def test_many_ends_of_jobs_are_one_look_at_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deals: list[int] = []
    deal = Placement.deal

    def count(self: Placement, waiting: Any, *args: Any, **more: Any) -> Any:
        deals.append(len(waiting))
        return deal(self, waiting, *args, **more)

    monkeypatch.setattr(Placement, "deal", count)
    async with sending(tmp_path, model("one", quick=False, slots=1)) as b:
        b.state.status.sending = False
        await b.seal_all(30)
        b.state.status.sending = True
        for _ in range(100):
            b.state.pump()
        await until(b.posts, "one is posted")
        assert deals[0] == 30
        assert len(deals) < 10
        b.state.status.sending = False


async def test_without_waiting_everything_is_sent_at_once(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two, limits=replace(QUICK, wait=False)) as b:
        await b.seal_all(20)
        await b.ended()
        assert sorted(b.posts()) == sorted(job_id(CRAWL, n, 1) for n in range(1, 21))
        assert (len(one.posts), len(two.posts)) == (10, 10)
        assert set(b.states()) == {"sent"}


async def test_a_job_gets_its_place_its_version_and_the_arguments_of_the_crawl(
    tmp_path: Path,
) -> None:
    one = model("one")
    spec = JobRequest(
        crawl=CRAWL,
        home=HOME,
        project="p",
        spider="s",
        version="v1",
        settings={"LOG_LEVEL": "INFO"},
        args={"a": "=1"},
    )
    async with sending(tmp_path, one, spec=spec) as b:
        await b.seal_all(1)
        await b.ended()
        job = one.jobs["c.b1.a1"]
        assert job.args == {"a": "=1"}
        assert job.settings["LOG_LEVEL"] == "INFO"
        told = json.loads(job.settings["DISTRIBUTED_JOB"])
        assert (told["crawl"], told["batch"], told["attempt"], told["version"]) == (
            CRAWL,
            1,
            1,
            "v1",
        )
        assert 0 < told["start_by"] - time.time() <= QUICK.start_timeout + 1


@pytest.mark.parametrize("error", [ConnectionRefused, ConnectTimeout])
async def test_a_post_that_was_refused_goes_to_another_node_and_counts_as_no_attempt(
    tmp_path: Path, error: Any
) -> None:
    one, two = model("one"), model("two")
    one.plays = [refused_with(error)]
    async with sending(tmp_path, one, two) as b:
        await b.work_off(1)
        assert (one.posts, two.posts) == (["c.b1.a1"], ["c.b1.a1"])
        assert [(a.number, a.node, a.state.value) for a in b.attempts()] == [(1, "two", "accepted")]
        assert b.state.counters.failed == 0


async def test_a_node_that_said_no_once_is_brought_the_code_again(tmp_path: Path) -> None:
    one = model("one")
    brought: list[str] = []

    def wiped(node: ModelNode, job: ModelJob) -> None:
        if not brought:
            raise ApiRefused.at(str(node.node))
        node.take(job)

    one.plays = [wiped] * 99

    async def bring(member: NodeState) -> str:
        brought.append(member.node.name)
        return ""

    async with sending(tmp_path, one, prepare=bring) as b:
        await b.work_off(6)
        assert brought == ["one"]
        assert len(one.posts) > 6


@pytest.mark.parametrize("error", [ApiRefused, AuthRefused, CallRefused, NotFound])
async def test_a_node_that_always_says_no_gets_nothing_more(tmp_path: Path, error: Any) -> None:
    one, two = model("one", slots=1), model("two", quick=False)
    one.plays = [refused_with(error)] * 99
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(12)
        two.quick = True
        await until(
            lambda: b.state.members[0].readiness.unfit and not b.state.tasks.posts, "it is unfit"
        )
        asked = len(one.posts)
        two.finish_all()
        await b.ended(whole=12)
        assert one.jobs == {}
        assert len(one.posts) == asked
        assert b.state.members[0].room() == 0
        assert b.state.counters.failed == 0


async def test_a_node_whose_password_is_mended_gets_work_again(tmp_path: Path) -> None:
    one = model("one")
    one.plays = [refused_with(AuthRefused)]
    async with sending(tmp_path, one) as b:
        await b.work_off(3)
        assert not b.state.members[0].readiness.unfit


async def test_when_all_nodes_say_no_it_stops_and_keeps_the_batches(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    one.plays, two.plays = [refused_with(ApiRefused)] * 9, [refused_with(ApiRefused)] * 9
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(3)
        await b.ended()
        assert "No node takes the work" in b.state.stopped
        await b.scheduler.stop("")
        assert b.state.status.fault is None
        assert set(b.states()) == {"sealed"}


@pytest.mark.parametrize(
    ("is_local", "has_answered", "stops"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
async def test_only_a_node_that_may_come_back_is_waited_for_when_all_others_say_no(
    tmp_path: Path, is_local: bool, has_answered: bool, stops: bool
) -> None:
    one, two = model("one"), model("two")
    one.plays = [refused_with(ApiRefused)] * 9
    two.down = ConnectionRefused
    away = NodeState(node=replace(two.node, local=is_local))
    if has_answered:
        away.liveness.answered()
    away.liveness.missed("it is off", time.time())
    members = [NodeState(node=one.node, readiness=Readiness(prepared=True)), away]
    limits = replace(QUICK, fleet_timeout=600)
    async with sending(tmp_path, one, two, members=members, limits=limits) as b:
        await b.seal_all(3)
        await until(lambda: b.state.members[0].readiness.unfit, "it gets no more work")
        b.state.check_unfit()
        assert ("No node takes the work" in b.state.stopped) is stops


async def test_a_node_that_is_down_from_the_start_is_used_when_it_comes(tmp_path: Path) -> None:
    one, two = model("one"), model("two", quick=False)
    one.down = ConnectionRefused
    async with sending(tmp_path, one, two) as b:
        b.state.members[0].readiness.code_lost()
        b.state.members[0].liveness.missed("down", time.time())
        await b.seal_all(6)
        await until(lambda: len(two.posts) == 4, "the other node is full")
        assert one.posts == []
        one.down = None
        await until(lambda: len(one.posts) == 2, "the late node has the rest")
        two.finish_all()
        await b.ended(whole=6)


async def test_a_post_without_an_answer_that_was_taken_is_not_posted_again(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    one.plays = [taken_unheard]
    async with sending(tmp_path, one, two) as b:
        await b.seal_all(1)
        await until(lambda: b.state.counters.sent == 1, "it is known to be sent")
        assert b.posts() == ["c.b1.a1"]
        one.finish("c.b1.a1")
        await b.ended(whole=1)
        assert b.posts() == ["c.b1.a1"]
        assert one.cancels == []


async def test_a_post_without_an_answer_that_was_not_taken_is_a_failed_attempt_and_another_job_id(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")
    one.plays = [lost_unheard]
    async with sending(tmp_path, one, two) as b:
        await b.work_off(1)
        assert (one.posts, two.posts) == (["c.b1.a1"], ["c.b1.a2"])
        assert one.cancels == ["c.b1.a1"]  # it may still come through


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "asked about"])
async def test_a_job_that_ends_before_its_post_is_answered_or_asked_about_keeps_its_items(
    tmp_path: Path, answered: bool
) -> None:
    one = model("one")
    one.plays = [] if answered else [taken_unheard]
    async with sending(tmp_path, one) as b:
        b.sender.gate.clear()
        await b.seal_all(1)
        await until(
            lambda: one.posts and one.calls.count("daemonstatus.json") > 8,
            "several polls after the job's end",
        )
        one.jobs["c.b1.a1"].forgotten = not answered  # it finished long ago
        b.sender.gate.set()
        await b.ended(whole=1)
        await b.scheduler.stop("")  # nothing that comes later may undo it
        b.whole(1)
        assert b.posts() == ["c.b1.a1"]


async def test_a_node_that_vanishes_with_an_unanswered_post_costs_one_attempt(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")

    def vanish(node: ModelNode, job: Any) -> None:
        node.down = ConnectionRefused
        raise ConnectionLost.at(str(node.node))

    one.plays = [vanish]
    async with sending(tmp_path, one, two) as b:
        await b.seal(4)
        await until(
            lambda: b.states() == ["done"] * 4 and not b.state.tasks.posts,
            "all is done, and no post is out",
        )
        await b.over(whole=4)
        assert b.state.counters.failed == 1
        assert sorted(b.posts()) == ["c.b1.a1", "c.b1.a2", "c.b2.a1", "c.b3.a1", "c.b4.a1"]


async def test_no_job_id_is_ever_taken_twice_whatever_happens_to_posts(tmp_path: Path) -> None:
    nodes = [model(name) for name in ("one", "two", "three")]
    for number, node in enumerate(nodes):
        plays = (taken_unheard, lost_unheard, refused_with(ConnectionRefused))
        node.plays = [plays[(number + n) % 3] for n in range(9)]
    async with sending(tmp_path, *nodes, limits=replace(QUICK, max_attempts=20)) as b:
        await b.work_off(15)
        taken = [job for node in nodes for job in node.jobs]
        assert len(taken) == len(set(taken))


# what jobs ask for besides their batch

KEY = Fernet.generate_key()
NEWS = FrontierIntake(value={"url": "http://web/news"}, fingerprint=b"n" * 20)


async def test_what_idle_handlers_of_several_jobs_ask_for_is_one_batch_more(tmp_path: Path) -> None:
    node = model("one", quick=False)
    asked = SealedIntake(requests=[NEWS], counts={"local": 1})
    async with sending(tmp_path, node, key=KEY) as b:
        await b.seal_all(2)
        await until(lambda: len(node.posts) == 2, "both are posted")
        for job in list(node.jobs):
            node.finish(job, idle_requests=asked.seal(KEY))
        await until(lambda: len(node.posts) == 3, "the page more is posted")
        node.finish("c.b3.a1")
        await b.ended()
        assert [batch.size for batch in b.store.batches(CRAWL)] == [2, 2, 1]
        assert b.states() == ["done"] * 3
        counts = b.store.counts(CRAWL)
        assert {name: counts[name] for name in ("sealed", "duplicate", "local")} == {
            "sealed": 5,
            "duplicate": 1,
            "local": 2,
        }


async def test_what_was_asked_for_with_another_key_is_not_made(tmp_path: Path) -> None:
    node = model("one", quick=False)
    planted = SealedIntake(requests=[NEWS]).seal(Fernet.generate_key())
    async with sending(tmp_path, node, key=KEY) as b:
        await b.seal_all(1)
        await until(lambda: len(node.posts) == 1, "it is posted")
        node.finish("c.b1.a1", idle_requests=planted)
        await until(lambda: len(node.posts) == 2, "it is tried again")
        node.finish("c.b1.a2")
        await b.ended(whole=1)
        assert "sealed with another key" in b.attempts(1)[0].reason
