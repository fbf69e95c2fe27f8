"""The scheduler takes up what an earlier one left, and stops in order; all in memory."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from rig.nodemodel import ModelJob, ModelNode, model
from rig.scheduling import CRAWL, HOME, Bench, make, sending, until

from scrapyd_dist.batches import Attempt, AttemptState, BatchState, home_of, job_id
from scrapyd_dist.scheduling.job_request import JobRequest

# a producer that dies and comes back


async def _left_behind(b: Bench, batch: int, state: AttemptState, node: ModelNode) -> str:
    """What a producer leaves that died just after this step of a batch."""
    db = b.store
    job = job_id(CRAWL, batch, 1)
    attempt = Attempt(batch=batch, number=1, job=job, node=node.name, url=node.node.url, sent_at=time.time())
    db.open_attempt(CRAWL, attempt)
    if state is not AttemptState.SENDING:
        db.sent(CRAWL, batch, 1)
    if state is AttemptState.RUNNING:
        db.running(CRAWL, batch, 1)
    return job


@pytest.mark.parametrize("state", [AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING])
@pytest.mark.parametrize("known", ["lost", "running", "finished"])
async def test_a_producer_that_died_at_any_step_is_taken_up(tmp_path: Path, state: AttemptState, known: str) -> None:
    one, two = model("one", quick=False), model("two")
    before = make(tmp_path, [one, two], producer="producer")
    before.scheduler.state.sending = False
    number = await before.seal()
    job = await _left_behind(before, number, state, one)
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
            await until(lambda: b.states() == ["running"] and b.scheduler.members[0].out[job].report, "it is heard of")
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
        assert b.scheduler.members[0].items == 6


async def test_an_attempt_on_a_node_that_is_not_in_the_fleet_any_more_is_tried_elsewhere(tmp_path: Path) -> None:
    gone, two = model("gone"), model("two")
    before = make(tmp_path, [gone, two], producer="producer")
    before.scheduler.state.sending = False
    number = await before.seal()
    await _left_behind(before, number, AttemptState.SENT, gone)
    await before.leave()
    async with sending(tmp_path, two) as b:
        await b.over(whole=1)
        assert two.posts == ["c.b1.a2"]


async def test_stopping_waits_for_the_posts_under_way_and_sends_nothing_more(tmp_path: Path) -> None:
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
        assert b.scheduler.stopped == "interrupted"
        assert b.states() == ["sent"] * 4 + ["sealed"] * 2
        assert {a.state for a in b.attempts()} == {AttemptState.SENT}
        assert len(one.posts) == 4


async def test_an_error_of_ours_ends_the_crawl_and_says_so(tmp_path: Path) -> None:
    async with sending(tmp_path, model("one")) as b:
        b.folder.rmdir()
        await b.seal_all(1)
        await b.ended()
        assert isinstance(b.scheduler.fault, OSError)
        assert "scrapyd-dist itself failed" in b.scheduler.stopped
        assert BatchState.DONE not in {batch.state for batch in b.store.batches(CRAWL)}


async def test_what_an_older_crawl_of_this_name_left_on_the_node_is_not_taken_for_a_result(tmp_path: Path) -> None:
    one = model("one", quick=False)
    async with sending(
        tmp_path, one, spec=JobRequest(crawl=CRAWL, home=home_of(CRAWL, 0.5), project="p", spider="s", version="v")
    ) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.finish("c.b1.a1")
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
