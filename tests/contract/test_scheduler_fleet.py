"""A fleet that changes under the scheduler: drained, joining, leaving, wedged and busy nodes; all in memory."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.nodemodel import ModelJob, ModelNode, model
from rig.scheduling import CRAWL, QUICK, Bench, left_behind, make, sending, until

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.errors import ConnectionRefused, NoReply
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.scheduling import liveness
from scrapyd_dist.scheduling.node_state import AbandonedJob, NodeState
from scrapyd_dist.scheduling.readiness import Readiness
from scrapyd_dist.scrapyd.api import JobState


class Listing:
    """The lists of nodes, as a test sets them."""

    def __init__(self, *nodes: ModelNode) -> None:
        self.now: tuple[Node, ...] | None = tuple(node.node for node in nodes)
        self.read = 0

    async def __call__(self, _: Sequence[NodeRecord]) -> tuple[Node, ...] | None:
        self.read += 1
        return self.now


def members(*nodes: ModelNode) -> list[NodeState]:
    return [NodeState(node=node.node, readiness=Readiness(prepared=True)) for node in nodes]


async def drain(b: Bench, name: str, since: float | None) -> None:
    b.store.update_node(name, draining=since)
    member = next(member for member in b.state.members if member.node.name == name)
    await until(lambda: member.draining is (since is not None), "the scheduler knows of it")


async def test_a_drained_node_gets_no_new_work_ends_what_it_has_and_works_again_when_it_may(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with sending(tmp_path, one, two) as b:
        await b.seal()
        await until(lambda: one.posts == ["c.b1.a1"], "the first node has a job")
        await drain(b, "one", time.time())
        assert b.state.members[0].state == "draining"
        await b.seal(3)
        await until(lambda: len(two.posts) == 3, "all the rest is on the other node")
        one.finish("c.b1.a1")
        await until(lambda: b.states()[0] == "done", "its job was seen to the end")
        assert one.cancels == []
        two.quick = True
        two.finish_all()
        await drain(b, "one", None)
        await drain(b, "two", time.time())
        await b.seal()
        await until(lambda: len(one.posts) == 2, "it works again")
        one.finish(one.posts[1])
        await b.over(whole=5)


async def test_a_node_that_was_drained_before_the_crawl_gets_nothing(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    before = make(tmp_path, [one, two], producer="producer")
    before.store.update_node("one", draining=1.0)
    await before.leave()
    async with sending(tmp_path, one, two) as b:
        await b.work_off(9)
        assert one.posts == []


async def test_when_every_node_is_drained_it_waits_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = model("one")

    def warnings() -> int:
        return sum("go on with: sdist nodes resume" in text for text in caplog.messages)

    async with sending(tmp_path, one) as b:
        await drain(b, "one", time.time())
        await b.seal_all(1)
        await until(warnings, "it says so")
        looks = one.calls.count("daemonstatus.json")
        await until(lambda: one.calls.count("daemonstatus.json") > looks + 3, "it goes on looking")
        await b.scheduler.membership.read_lists()
        assert warnings() == 1
        await drain(b, "one", None)
        await b.ended(whole=1)


async def test_a_node_that_is_listed_later_is_brought_the_code_and_gets_work(
    tmp_path: Path,
) -> None:
    one, two = model("one", slots=1, quick=False), model("two")
    listing, brought = Listing(one), list[str]()

    async def bring(member: NodeState) -> str:
        brought.append(member.node.name)
        return ""

    async with sending(
        tmp_path, one, two, members=members(one), listed=listing, prepare=bring
    ) as b:
        await b.seal_all(6)
        await until(lambda: len(one.posts) == 3, "the only node is full")
        listing.now = (one.node, two.node)
        await until(lambda: len(two.posts) == 3, "the new node has the rest")
        assert brought == ["two"]
        one.finish_all()
        await b.ended(whole=6)
        assert [member.node.name for member in b.state.members] == ["one", "two"]


async def test_a_new_node_that_cannot_run_the_code_gets_nothing_and_does_not_stop_the_crawl(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")
    listing = Listing(one, two)

    async def bring(_: NodeState) -> str:
        return "two has no log folder"

    async with sending(
        tmp_path, one, two, members=members(one), listed=listing, prepare=bring
    ) as b:
        await until(
            lambda: len(b.state.members) == 2 and b.state.members[1].readiness.unfit, "it was tried"
        )
        await b.work_off(3)
        assert two.posts == []


async def test_a_node_that_is_listed_no_more_ends_its_jobs_in_peace_and_may_come_back(
    tmp_path: Path,
) -> None:
    one, two = model("one", quick=False), model("two")
    listing = Listing(one, two)
    async with sending(tmp_path, one, two, listed=listing) as b:
        await b.seal()
        await until(lambda: one.posts == ["c.b1.a1"], "the first node has a job")
        listing.now = (two.node,)
        await until(lambda: b.state.members[0].state == "left", "it is gone from the list")
        await b.seal(3)
        await until(lambda: b.states()[1:] == ["done"] * 3, "the other node did the rest")
        one.finish("c.b1.a1")
        await until(lambda: b.states()[0] == "done", "its job was seen to the end")
        assert (one.posts, one.cancels) == (["c.b1.a1"], [])
        await until(lambda: not b.state.members[0].watched, "it is watched no more")
        one.quick = True
        listing.now = (one.node, two.node)
        await until(lambda: b.state.members[0].state == "up", "it is back")
        await drain(b, "two", time.time())
        await b.seal_all(2)
        await b.ended(whole=6)
        assert len(one.posts) == 3


async def test_a_list_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    one = model("one")
    listing = Listing()
    listing.now = None
    async with sending(tmp_path, one, listed=listing) as b:
        await until(lambda: listing.read > 3, "it is read")
        await b.work_off(2)


async def test_when_all_have_left_the_crawl_stops_after_a_while_and_keeps_its_batches(
    tmp_path: Path,
) -> None:
    one = model("one")
    listing = Listing()
    async with sending(tmp_path, one, listed=listing) as b:
        await b.seal_all(2)
        await b.ended()
        assert "is in no list of nodes" in b.state.stopped
        assert b.state.status.fault is None
        assert set(b.states()) == {"sealed"}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is wedged, and tried again, within a moment."""
    monkeypatch.setattr(liveness, "POLL", 0.03)
    monkeypatch.setattr(liveness, "TRIAL_AFTER", 0.2)


@pytest.mark.usefixtures("impatient")
async def test_a_node_that_starts_nothing_is_taken_out_and_used_again_when_it_works(
    tmp_path: Path,
) -> None:
    one, two = model("one", slots=1, quick=False), model("two", slots=1)
    async with sending(tmp_path, one, two, limits=replace(QUICK, max_attempts=9)) as b:
        await b.seal(2)
        await until(lambda: b.states() == ["done"] * 2, "its batch was done elsewhere")
        assert one.cancels == ["c.b1.a1"]
        assert "takes jobs and starts none" in b.attempts(1)[0].reason
        assert b.state.members[0].state == "wedged"
        one.quick = True  # as after a restart
        await until(lambda: b.state.members[0].liveness.trial, "it may be tried")
        await drain(b, "two", time.time())
        await b.seal_all(5)
        await b.ended(whole=7)
        assert b.state.members[0].state == "up"
        assert len(one.posts) > 2


@pytest.mark.usefixtures("impatient")
async def test_a_wedged_node_that_fails_its_trial_is_tried_again_later(tmp_path: Path) -> None:
    one = model("one", slots=1, quick=False)
    async with sending(tmp_path, one, limits=replace(QUICK, max_attempts=9)) as b:
        await b.seal_all(1)
        await until(lambda: len(one.cancels) == 3, "it was tried twice more")
        assert one.cancels == one.posts[:3]
        one.quick = True
        await b.ended(whole=1)


def strangers(node: ModelNode, count: int) -> list[ModelJob]:
    """Jobs of another program, which run."""
    for number in range(count):
        job = ModelJob(id=f"other{number}", size=1, settings={}, args={}, state=JobState.RUNNING)
        node.jobs[job.id] = job
    return [job for job in node.jobs.values() if job.id.startswith("other")]


async def test_other_peoples_jobs_take_their_room(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    theirs = strangers(one, 3)
    async with sending(tmp_path, one, two) as b:
        await until(lambda: b.state.members[0].capacity.others == 3, "they are seen")
        await b.seal_all(9)
        await until(lambda: len(b.posts()) == 5, "one node has a place, the other four")
        assert (len(one.posts), len(two.posts)) == (1, 4)
        for job in theirs:
            job.state = JobState.FINISHED
        await until(lambda: len(one.posts) == 4, "their room is ours now")
        assert b.state.members[0].capacity.others == 0
        for node in (one, two):
            node.quick = True
            for name in node.posts:
                node.finish(name)
        await b.ended(whole=9)


async def test_a_fleet_full_of_other_peoples_jobs_still_gets_one_of_ours_in_line(
    tmp_path: Path,
) -> None:
    one = model("one", slots=1, quick=False)
    strangers(one, 9)
    async with sending(tmp_path, one) as b:
        await until(lambda: b.state.members[0].capacity.others == 9, "they are seen")
        await b.seal_all(3)
        await until(lambda: one.posts, "one is posted")
        seen = one.calls.count("daemonstatus.json")
        await until(lambda: one.calls.count("daemonstatus.json") > seen + 3, "more looks")
        assert one.posts == ["c.b1.a1"]


@pytest.mark.parametrize("there", ["at the start", "later"])
async def test_what_was_given_up_before_is_cancelled_by_the_next_producer(
    tmp_path: Path, there: str
) -> None:
    one, two = model("one", quick=False), model("two")
    before, job = await left_behind(tmp_path, one, two)
    before.store.fail(CRAWL, 1, 1, reason="it did not answer", now=1.0, max_attempts=3)
    await before.leave()
    one.jobs[job] = ModelJob(id=job, size=2, settings={}, args={}, state=JobState.RUNNING)
    listing = Listing(one, two) if there == "at the start" else Listing(two)
    async with sending(tmp_path, one, two, members=members(two), listed=listing) as b:
        if there == "later":
            await until(lambda: listing.read > 2, "the list without it is known")
            assert one.cancels == []
            listing.now = (one.node, two.node)
        await until(lambda: job in one.cancels, "the old job is cancelled")
        await b.over(whole=1)
        assert {a.state for a in b.attempts()} == {AttemptState.FAILED, AttemptState.ACCEPTED}


async def test_cancellations_are_not_behind_jobs_that_the_node_tells_nothing_of(
    tmp_path: Path,
) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, limits=replace(QUICK, node_timeout=600.0)) as b:
        await b.seal()
        await until(lambda: one.posts == ["c.b1.a1"], "it has a job")
        one.failing["status.json"] = NoReply
        await until(
            lambda: b.state.members[0].out["c.b1.a1"].untold.since, "nothing is told of the job"
        )
        b.state.members[0].cancel_when_up(AbandonedJob("c.b0.a1"))
        await until(lambda: not b.state.members[0].cancel_later, "the old job is cancelled")
        one.failing.clear()
        one.finish("c.b1.a1")
        await until(lambda: b.states() == ["done"], "the looks go on")


async def test_a_node_that_dies_while_it_joins_is_only_one_that_is_down(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    two.down = ConnectionRefused
    fields: dict[str, Any] = {"members": members(one), "listed": Listing(one, two)}
    async with sending(tmp_path, one, two, **fields) as b:
        await until(lambda: len(b.state.members) == 2 and not b.state.members[1].up, "it is down")
        await b.work_off(3)


async def test_a_node_that_does_not_take_the_code_any_more_ends_its_jobs(tmp_path: Path) -> None:
    one = model("one", quick=False)

    async def bring(_: NodeState) -> str:
        raise NoReply.at("one")

    async with sending(tmp_path, one, prepare=bring, limits=replace(QUICK, node_timeout=30)) as b:
        await b.seal_and_start()
        b.state.members[0].readiness.code_lost()
        one.finish("c.b1.a1")
        await b.ended(whole=1)


async def test_a_node_that_answers_and_never_takes_the_code_does_not_keep_the_crawl_open(
    tmp_path: Path,
) -> None:
    one = model("one")

    async def bring(_: NodeState) -> str:
        b.scheduler.monitor.check_dark()  # as while it waits for the node
        raise NoReply.at("one")

    fields: dict[str, Any] = {"members": [NodeState(node=one.node)], "prepare": bring}
    async with sending(tmp_path, one, **fields) as b:
        await b.seal_all(2)
        await b.ended()
        assert str(NoReply.at("one")).rstrip(".") in b.state.stopped
        assert set(b.states()) == {"sealed"}


async def test_a_node_that_does_not_take_the_code_has_a_rest_before_each_try(
    tmp_path: Path,
) -> None:
    one = model("one")
    looks = list[int]()

    async def bring(_: NodeState) -> str:
        looks.append(one.calls.count("daemonstatus.json"))
        if len(looks) < 4:
            raise NoReply.at("one")
        return ""

    limits = replace(QUICK, fleet_timeout=600)
    fields: dict[str, Any] = {"members": [NodeState(node=one.node)], "prepare": bring}
    async with sending(tmp_path, one, limits=limits, **fields) as b:
        await b.work_off(2)
        assert looks[-1] > len(looks)
