"""The coordinator against nodes in memory that misbehave on purpose; real nodes are in the acceptance tests."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from rig.nodemodel import ModelNode, ModelSender, lost_unheard, model, refused_with, taken_unheard

from scrapyd_dist import collect, coordinator
from scrapyd_dist.batches import Attempt, AttemptState, Batch, BatchState, Crawl, home_of, job_id
from scrapyd_dist.coordinator import Coordinator, Limits
from scrapyd_dist.errors import ApiRefused, ConnectionLost, ConnectionRefused, ConnectTimeout, NoReply
from scrapyd_dist.fleet import Member, Out, Placement
from scrapyd_dist.outcome import part_path, report_path
from scrapyd_dist.posting import JobSpec, call_for
from scrapyd_dist.store import open_store
from scrapyd_dist.store.worker_thread import StoreThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

CRAWL = "c"
HOME = home_of(CRAWL, 1.0)
QUICK = Limits(poll=0.01, request_timeout=1, node_timeout=0.1, fleet_timeout=0.3, start_timeout=60, max_attempts=3)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "FRESH", 0.02)
    monkeypatch.setattr(coordinator, "UNKNOWN_GRACE", 0.1)
    monkeypatch.setattr(collect, "RETRY_PAUSE", 0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a thread: the test itself is called by pytest-twisted inside a loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result(timeout=60)


async def until(condition: Callable[[], object], what: str, timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:g} s"
        await asyncio.sleep(0.005)


@dataclass(kw_only=True)
class Bench:
    """A coordinator, its nodes and its store."""

    coordinator: Coordinator
    nodes: list[ModelNode]
    store: StoreThread
    sender: ModelSender
    folder: Path

    async def seal(self, size: int = 2) -> int:
        urls = [f"http://web/{n}" for n in range(size)]
        batch = await self.store(
            self.store.store.seal,
            CRAWL,
            {"DISTRIBUTED_START_URLS": json.dumps(urls)},
            size=size,
            fingerprints=(),
            now=time.time(),
            counts={"sealed": size},
        )
        self.coordinator.add(batch)
        return batch.number

    async def seal_all(self, count: int) -> None:
        for _ in range(count):
            await self.seal()
        self.coordinator.no_more()

    async def ended(self) -> None:
        await asyncio.wait_for(self.coordinator.ended(), 20)

    def states(self) -> list[str]:
        return [batch.state.value for batch in self.store.store.batches(CRAWL)]

    def attempts(self, batch: int | None = None) -> list[Attempt]:
        return [a for a in self.store.store.attempts(CRAWL) if batch in (None, a.batch)]

    def merged(self) -> list[tuple[int, int]]:
        """Batch and item of everything that is accepted, as the output would have it."""
        parts = [self.folder / a.part for a in self.store.store.attempts(CRAWL, {AttemptState.ACCEPTED})]
        rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
        return sorted((row["batch"], row["item"]) for row in rows)

    def whole(self, batches: int, size: int = 2) -> None:
        """Every batch is done, and each of its items is there once."""
        assert self.coordinator.fault is None
        assert self.coordinator.stopped == ""
        assert self.states() == ["done"] * batches
        assert self.merged() == [(b, n) for b in range(1, batches + 1) for n in range(size)]
        assert self.coordinator.tally.done == batches
        assert self.coordinator.tally.items == batches * size

    def posts(self) -> list[str]:
        return [job for node in self.nodes for job in node.posts]


async def _prepared(_: Member) -> str:
    return ""


def make(tmp_path: Path, nodes: list[ModelNode], limits: Limits, **options: Any) -> Bench:
    store = StoreThread(open_store(tmp_path / "store.db"))
    if not store.store.crawls():
        store.store.add_crawl(Crawl(id=CRAWL, project="p", spider="s", created=1.0))
    sender = ModelSender(nodes)
    fields: dict[str, Any] = {
        "spec": JobSpec(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1"),
        "members": [Member(node=node.node, prepared=True) for node in nodes],
        "prepare": _prepared,
        **options,
    }
    made = Coordinator(store=store, sender=sender, folder=tmp_path / "parts", limits=limits, **fields)
    return Bench(coordinator=made, nodes=nodes, store=store, sender=sender, folder=tmp_path / "parts")


@asynccontextmanager
async def bench(tmp_path: Path, *nodes: ModelNode, limits: Limits = QUICK, **options: Any) -> AsyncIterator[Bench]:
    """A coordinator at work; with what an earlier one left, if there is something."""
    made = make(tmp_path, list(nodes), limits, **options)
    await made.coordinator.recover()
    made.coordinator.start()
    try:
        yield made
    finally:
        made.sender.gate.set()
        await made.coordinator.stop("")
        made.store.close()


def scenario(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """An async test."""

    def synchronous(tmp_path: Path) -> None:
        run(test(tmp_path))  # type: ignore[arg-type]

    synchronous.__name__ = test.__name__
    return synchronous


# the usual way


@scenario
async def test_every_batch_is_accepted_once_and_its_items_are_home(tmp_path: Path) -> None:
    async with bench(tmp_path, model("one"), model("two"), model("three")) as b:
        await b.seal_all(20)
        await b.ended()
        b.whole(20)
        assert sorted(b.posts()) == sorted(job_id(CRAWL, n, 1) for n in range(1, 21))
        assert {a.state for a in b.attempts()} == {AttemptState.ACCEPTED}


@scenario
async def test_a_crawl_without_batches_ends(tmp_path: Path) -> None:
    async with bench(tmp_path, model("one")) as b:
        b.coordinator.no_more()
        await b.ended()
        b.whole(0)


@scenario
async def test_it_does_not_end_before_the_producer_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, model("one")) as b:
        await b.seal()
        await until(lambda: b.states() == ["done"], "the only batch is done")
        assert not b.coordinator._over.is_set()
        b.coordinator.no_more()
        await b.ended()
        b.whole(1)


@scenario
async def test_round_robin_goes_around(tmp_path: Path) -> None:
    nodes = [model(name, quick=False) for name in ("one", "two", "three")]
    async with bench(tmp_path, *nodes) as b:
        for _ in range(7):
            await b.seal()
        await until(lambda: len(b.posts()) == 7, "all are posted")
        assert [[job.split(".")[1] for job in node.posts] for node in nodes] == [
            ["b1", "b4", "b7"],
            ["b2", "b5"],
            ["b3", "b6"],
        ]


@scenario
async def test_least_loaded_fills_the_larger_node_more(tmp_path: Path) -> None:
    small, large = model("small", slots=1, quick=False), model("large", slots=4, quick=False)
    async with bench(tmp_path, small, large, placement=Placement("least-loaded")) as b:
        for _ in range(5):
            await b.seal()
        await until(lambda: len(b.posts()) == 5, "all are posted")
        assert (len(small.posts), len(large.posts)) == (1, 4)


@scenario
async def test_at_most_two_jobs_wait_beyond_the_slots(tmp_path: Path) -> None:
    one = model("one", slots=2, quick=False)
    async with bench(tmp_path, one) as b:
        await b.seal_all(8)
        await until(lambda: len(one.posts) == 4, "slots and two more are posted")
        one.finish(one.posts[0])
        await until(lambda: len(one.posts) == 5, "the freed place is filled")
        assert b.coordinator.waiting == 3
        assert len(b.coordinator.members[0].out) == 4


@scenario
async def test_max_jobs_holds_over_the_whole_fleet(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with bench(tmp_path, one, two, limits=replace(QUICK, max_jobs=3)) as b:
        await b.seal_all(6)
        await until(lambda: len(b.posts()) == 3, "as many as allowed are posted")
        assert b.coordinator.waiting == 3
        one.finish(one.posts[0])
        await until(lambda: len(b.posts()) == 4, "the next one is posted")
        assert sum(len(member.out) for member in b.coordinator.members) == 3


@scenario
async def test_without_waiting_everything_is_sent_at_once(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with bench(tmp_path, one, two, limits=replace(QUICK, wait=False)) as b:
        await b.seal_all(20)
        await b.ended()
        assert sorted(b.posts()) == sorted(job_id(CRAWL, n, 1) for n in range(1, 21))
        assert (len(one.posts), len(two.posts)) == (10, 10)
        assert set(b.states()) == {"sent"}


@scenario
async def test_a_job_gets_its_place_its_version_and_the_arguments_of_the_crawl(tmp_path: Path) -> None:
    one = model("one")
    spec = JobSpec(
        crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", settings={"LOG_LEVEL": "INFO"}, args={"a": "=1"}
    )
    async with bench(tmp_path, one, spec=spec) as b:
        await b.seal_all(1)
        await b.ended()
        job = one.jobs["c.b1.a1"]
        assert job.args == {"a": "=1", "batch": "1"}
        assert job.settings["LOG_LEVEL"] == "INFO"
        told = json.loads(job.settings["DISTRIBUTED_JOB"])
        assert (told["crawl"], told["batch"], told["attempt"], told["version"]) == (CRAWL, 1, 1, "v1")
        assert 0 < told["start_by"] - time.time() <= QUICK.start_timeout + 1


# posts that fail


@pytest.mark.parametrize("error", [ConnectionRefused, ConnectTimeout])
def test_a_post_that_was_refused_goes_to_another_node_and_counts_as_no_attempt(tmp_path: Path, error: Any) -> None:
    async def check() -> None:
        one, two = model("one"), model("two")
        one.plays = [refused_with(error)]
        async with bench(tmp_path, one, two) as b:
            await b.seal_all(1)
            await b.ended()
            b.whole(1)
            assert (one.posts, two.posts) == (["c.b1.a1"], ["c.b1.a1"])
            assert [(a.number, a.node, a.state.value) for a in b.attempts()] == [(1, "two", "accepted")]
            assert b.coordinator.tally.failed == 0

    run(check())


@scenario
async def test_a_node_that_says_no_gets_nothing_more(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    one.plays = [refused_with(ApiRefused)]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(6)
        await b.ended()
        b.whole(6)
        assert one.jobs.keys() <= {"c.b3.a1", "c.b5.a1"}  # what was on its way with the refused one
        assert len(one.posts) <= 4
        assert "Scrapyd refused" in b.coordinator.members[0].unfit


@scenario
async def test_when_all_nodes_say_no_it_stops_and_keeps_the_batches(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    one.plays, two.plays = [refused_with(ApiRefused)] * 9, [refused_with(ApiRefused)] * 9
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(3)
        await b.ended()
        assert "No node takes the work" in b.coordinator.stopped
        await b.coordinator.stop("")
        assert b.coordinator.fault is None
        assert set(b.states()) == {"sealed"}


@scenario
async def test_a_node_that_is_down_from_the_start_is_used_when_it_comes(tmp_path: Path) -> None:
    one, two = model("one"), model("two", quick=False)
    one.down = ConnectionRefused
    async with bench(tmp_path, one, two) as b:
        b.coordinator.members[0].prepared = False
        b.coordinator.members[0].missed("down", time.time())
        await b.seal_all(6)
        await until(lambda: len(two.posts) == 4, "the other node is full")
        assert one.posts == []
        one.down = None
        await until(lambda: len(one.posts) == 2, "the late node has the rest")
        for job in two.posts:
            two.finish(job)
        await b.ended()
        b.whole(6)


# posts whose fate is not known


@scenario
async def test_a_post_without_an_answer_that_was_taken_is_not_posted_again(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    one.plays = [taken_unheard]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await until(lambda: b.coordinator.tally.sent == 1, "it is known to be sent")
        assert b.posts() == ["c.b1.a1"]
        one.finish("c.b1.a1")
        await b.ended()
        b.whole(1)
        assert b.posts() == ["c.b1.a1"]
        assert one.cancels == []


@scenario
async def test_a_post_without_an_answer_that_was_not_taken_is_a_failed_attempt_and_another_job_id(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")
    one.plays = [lost_unheard]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await b.ended()
        b.whole(1)
        assert (one.posts, two.posts) == (["c.b1.a1"], ["c.b1.a2"])
        assert one.cancels == ["c.b1.a1"]  # it may still come through


@scenario
async def test_a_job_that_ends_before_its_post_is_answered_keeps_its_items(tmp_path: Path) -> None:
    one = model("one")
    async with bench(tmp_path, one) as b:
        b.sender.gate.clear()
        await b.seal_all(1)
        await until(lambda: one.posts and one.calls.count("daemonstatus.json") > 8, "several looks after the job's end")
        b.sender.gate.set()
        await b.ended()
        b.whole(1)
        await b.coordinator.stop("")  # nothing that comes later may undo it
        b.whole(1)
        assert b.posts() == ["c.b1.a1"]


@scenario
async def test_a_job_that_ends_while_its_unanswered_post_is_asked_about_keeps_its_items(tmp_path: Path) -> None:
    one = model("one")
    one.plays = [taken_unheard]
    async with bench(tmp_path, one) as b:
        b.sender.gate.clear()
        await b.seal_all(1)
        await until(lambda: one.posts and one.calls.count("daemonstatus.json") > 8, "several looks after the job's end")
        one.jobs["c.b1.a1"].forgotten = True  # it finished long ago
        b.sender.gate.set()
        await b.ended()
        await b.coordinator.stop("")
        b.whole(1)
        assert b.posts() == ["c.b1.a1"]


@scenario
async def test_a_node_that_vanishes_with_an_unanswered_post_costs_one_attempt(tmp_path: Path) -> None:
    one, two = model("one"), model("two")

    def vanish(node: ModelNode, job: Any) -> None:
        node.down = ConnectionRefused
        raise ConnectionLost.at(str(node.node))

    one.plays = [vanish]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(4)
        await b.ended()
        b.whole(4)
        assert b.coordinator.tally.failed == 1
        assert sorted(b.posts()) == ["c.b1.a1", "c.b1.a2", "c.b2.a1", "c.b3.a1", "c.b4.a1"]


@scenario
async def test_no_job_id_is_ever_taken_twice_whatever_happens_to_posts(tmp_path: Path) -> None:
    nodes = [model(name) for name in ("one", "two", "three")]
    for number, node in enumerate(nodes):
        node.plays = [
            (taken_unheard, lost_unheard, refused_with(ConnectionRefused))[(number + n) % 3] for n in range(9)
        ]
    async with bench(tmp_path, *nodes, limits=replace(QUICK, max_attempts=20)) as b:
        await b.seal_all(15)
        await b.ended()
        b.whole(15)
        taken = [job for node in nodes for job in node.jobs]
        assert len(taken) == len(set(taken))


# nodes and workers that are lost


@scenario
async def test_the_work_of_a_lost_node_goes_elsewhere_and_its_job_is_cancelled_when_it_is_back(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(2)
        await until(lambda: len(one.posts) == 1, "the first node has a job")
        one.start("c.b1.a1", done=1)
        await until(lambda: b.states()[0] == "running", "it is heard of")
        one.down = NoReply
        await b.ended()
        b.whole(2)
        assert two.posts == ["c.b2.a1", "c.b1.a2"]
        assert "has not answered" in b.attempts(1)[0].reason
        b.coordinator._over.clear()  # the crawl would go on: keep watching
        b.coordinator._spawn(b.coordinator._watch(b.coordinator.members[0]))
        one.down = None
        await until(lambda: "c.b1.a1" in one.cancels, "the old job is cancelled")


@scenario
async def test_a_lost_node_that_is_back_in_time_keeps_its_work(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with bench(tmp_path, one, two, limits=replace(QUICK, node_timeout=30)) as b:
        await b.seal_all(2)
        await until(lambda: len(one.posts) == 1, "the first node has a job")
        one.down = NoReply
        await until(lambda: not b.coordinator.members[0].up, "it is missed")
        one.down = None
        one.finish("c.b1.a1")
        await b.ended()
        b.whole(2)
        assert len(b.attempts()) == 2


@scenario
async def test_a_late_result_of_an_attempt_that_was_given_up_is_not_collected(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.down = NoReply
        await until(lambda: two.posts != [], "posted elsewhere")
        one.down = None
        one.finish("c.b1.a1")
        await until(lambda: one.cancels == ["c.b1.a1"], "told that it was given up")
        two.finish("c.b1.a2")
        await b.ended()
        b.whole(1)
        assert [(a.number, a.state.value) for a in b.attempts()] == [(1, "failed"), (2, "accepted")]


@scenario
async def test_a_worker_that_dies_is_replaced_on_another_node_with_its_last_words(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.files["logs/p/s/c.b1.a1.log"] = b"2026-11-20 12:00:00 [scrapy] ERROR: it hurts\n"
        one.start("c.b1.a1", done=1)
        await until(lambda: b.states() == ["running"], "heard of")
        one.die("c.b1.a1")
        await b.ended()
        b.whole(1)
        assert "died while it worked" in b.attempts()[0].reason
        assert "it hurts" in b.attempts()[0].reason


@scenario
async def test_a_restarted_node_that_forgot_its_job_gets_grace_and_the_job_can_still_finish(tmp_path: Path) -> None:
    one = model("one", quick=False)
    async with bench(tmp_path, one) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.start("c.b1.a1", done=1)
        one.jobs["c.b1.a1"].forgotten = True
        await until(lambda: any(out.unknown_since for out in b.coordinator.members[0].out.values()), "it is doubted")
        one.finish("c.b1.a1")
        await b.ended()
        b.whole(1)
        assert len(b.attempts()) == 1


@scenario
async def test_a_job_that_does_not_start_in_time_is_taken_back(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with bench(tmp_path, one, two, limits=replace(QUICK, start_timeout=0.05)) as b:
        await b.seal_all(1)
        await b.ended()
        b.whole(1)
        assert one.cancels == ["c.b1.a1"]
        assert "did not start within" in b.attempts()[0].reason


@scenario
async def test_a_batch_is_dead_after_its_last_attempt_and_the_others_are_done(tmp_path: Path) -> None:
    one, two = model("one"), model("two")

    def poison(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        if job.batch == 2:
            node.finish(job.id, finish_reason="shutdown")
        else:
            node.finish(job.id)

    one.plays, two.plays = [poison] * 20, [poison] * 20
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(3)
        await b.ended()
        assert b.states() == ["done", "dead", "done"]
        assert [(a.number, a.state.value) for a in b.attempts(2)] == [(1, "failed"), (2, "failed"), (3, "failed")]
        assert (b.coordinator.tally.dead, b.coordinator.tally.dead_urls) == (1, 2)
        assert {item[0] for item in b.merged()} == {1, 3}
        assert {a.node for a in b.attempts(2)} == {"one", "two"}


@scenario
async def test_with_all_nodes_down_it_stops_after_a_while_and_says_why(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two", quick=False)
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(2)
        await until(lambda: len(b.posts()) == 2, "both are posted")
        one.down = two.down = ConnectionRefused
        await b.ended()
        assert "No node has answered" in b.coordinator.stopped
        assert "connection refused" in b.coordinator.stopped
        assert b.coordinator.fault is None
        assert not {"done", "dead"} & set(b.states())


# results that are not good


@scenario
async def test_a_part_that_is_not_what_the_worker_wrote_is_fetched_from_a_new_attempt(tmp_path: Path) -> None:
    one, two = model("one"), model("two")
    one.plays = [lambda node, job: (node.jobs.update({job.id: job}), node.finish(job.id, sha256="0" * 64))[1]]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await b.ended()
        b.whole(1)
        assert "hash differs" in b.attempts()[0].reason
        assert [path.name for path in sorted(b.folder.glob("*.jl"))] == ["c.b1.a2.jl"]


@scenario
async def test_a_part_that_is_gone_costs_an_attempt(tmp_path: Path) -> None:
    one, two = model("one"), model("two")

    def without_part(node: ModelNode, job: Any) -> None:
        node.jobs[job.id] = job
        node.finish(job.id)
        del node.files[part_path(HOME, job.id)]

    one.plays = [without_part]
    async with bench(tmp_path, one, two) as b:
        await b.seal_all(1)
        await b.ended()
        b.whole(1)
        assert "is gone" in b.attempts()[0].reason


@pytest.mark.parametrize(
    "field", [{"requests": 1}, {"finish_reason": "cancelled"}, {"part": None}, {"problem": "no key"}]
)
def test_a_report_that_is_not_good_is_not_accepted(tmp_path: Path, field: dict[str, Any]) -> None:
    async def check() -> None:
        one, two = model("one"), model("two")
        one.edit = lambda report: report.update(field)
        async with bench(tmp_path, one, two) as b:
            await b.seal_all(1)
            await b.ended()
            b.whole(1)
            assert [a.state.value for a in b.attempts()] == ["failed", "accepted"]

    run(check())


@pytest.mark.parametrize("junk", [b"<html>", b"[]", b"\xff", b'{"schema": 1}', b'{"schema": 2}', b"[" * 100_000])
def test_a_report_that_is_none_does_not_stop_the_crawl(tmp_path: Path, junk: bytes) -> None:
    async def check() -> None:
        one, two = model("one", quick=False), model("two")
        async with bench(tmp_path, one, two) as b:
            await b.seal_all(2)
            await until(lambda: one.posts != [], "posted")
            one.files[report_path(HOME, "c.b1.a1")] = junk
            one.die("c.b1.a1")
            await b.ended()
            b.whole(2)

    run(check())


@scenario
async def test_gone_and_failed_urls_are_counted_and_kept(tmp_path: Path) -> None:
    one = model("one")
    rows = {
        "gone": [{"url": "http://web/0", "reason": "HTTP 404"}],
        "failed": [{"url": "http://web/1", "reason": "bad text: \ud800"}],
        "unended": [],
    }
    one.edit = lambda report: report.update(done=0, missed=2, items=2, **rows)
    async with bench(tmp_path, one) as b:
        await b.seal_all(1)
        await b.ended()
        assert b.coordinator.fault is None
        assert (b.coordinator.tally.gone, b.coordinator.tally.failed_urls) == (1, 1)
        found = b.store.store.misses(CRAWL)
        assert [(m.url, m.kind, m.batch) for m in found] == [("http://web/0", "gone", 1), ("http://web/1", "failed", 1)]


@scenario
async def test_what_an_older_crawl_of_this_name_left_on_the_node_is_not_taken_for_a_result(tmp_path: Path) -> None:
    one = model("one", quick=False)
    async with bench(
        tmp_path, one, spec=JobSpec(crawl=CRAWL, home=home_of(CRAWL, 0.5), project="p", spider="s", version="v")
    ) as b:
        await b.seal_all(1)
        await until(lambda: one.posts != [], "posted")
        one.finish("c.b1.a1")
        await b.ended()
    old = dict(one.files)
    one.jobs.clear()
    async with bench(tmp_path / "other", one) as b:
        await b.seal_all(1)
        await until(lambda: one.calls.count("status.json") > 5, "the job is asked about")
        assert old.items() <= one.files.items()
        assert b.states() == ["sent"]
        one.finish("c.b1.a1")
        await b.ended()
        b.whole(1)


# a producer that dies and comes back


async def _left_behind(b: Bench, batch: int, state: AttemptState, node: ModelNode) -> str:
    """What a producer leaves that died just after this step of a batch."""
    db = b.store.store
    job = job_id(CRAWL, batch, 1)
    await b.store(
        db.open_attempt,
        CRAWL,
        Attempt(batch=batch, number=1, job=job, node=node.name, url=node.node.url, sent_at=time.time()),
    )
    if state is not AttemptState.SENDING:
        await b.store(db.sent, CRAWL, batch, 1)
    if state is AttemptState.RUNNING:
        await b.store(db.running, CRAWL, batch, 1)
    return job


@pytest.mark.parametrize("state", [AttemptState.SENDING, AttemptState.SENT, AttemptState.RUNNING])
@pytest.mark.parametrize("known", ["lost", "running", "finished"])
def test_a_producer_that_died_at_any_step_is_taken_up(tmp_path: Path, state: AttemptState, known: str) -> None:
    async def check() -> None:
        one, two = model("one", quick=False), model("two")
        before = make(tmp_path, [one, two], QUICK)
        before.coordinator._sending = False
        number = await before.seal()
        job = await _left_behind(before, number, state, one)
        before.store.close()
        if known != "lost":
            call = call_for(before.coordinator.spec, _out(before, job), {"DISTRIBUTED_START_URLS": '["u", "v"]'})
            one.answer(call)
            one.start(job, done=1)
        if known == "finished":
            one.finish(job)
        async with bench(tmp_path, one, two) as b:
            b.coordinator.no_more()
            if known == "running":
                await until(
                    lambda: b.states() == ["running"] and b.coordinator.members[0].out[job].report, "it is heard of"
                )
                one.finish(job)
            one.quick = True
            await b.ended()
            b.whole(1)
            assert len(b.attempts(1)) == (2 if known == "lost" else 1)

    run(check())


def _out(b: Bench, job: str) -> Out:
    batch, member = Batch(number=1, size=2), b.coordinator.members[0]
    return Out(batch=batch, number=1, job=job, member=member, since=0.0, start_by=time.time() + 60)


@scenario
async def test_what_was_accepted_before_is_counted_and_not_done_again(tmp_path: Path) -> None:
    one = model("one")
    async with bench(tmp_path, one) as b:
        await b.seal_all(3)
        await b.ended()
    posted = list(one.posts)
    async with bench(tmp_path, one) as b:
        b.coordinator.no_more()
        await b.ended()
        b.whole(3)
        assert one.posts == posted
        assert b.coordinator.members[0].items == 6


@scenario
async def test_an_attempt_on_a_node_that_is_not_in_the_fleet_any_more_is_tried_elsewhere(tmp_path: Path) -> None:
    gone, two = model("gone"), model("two")
    before = make(tmp_path, [gone, two], QUICK)
    before.coordinator._sending = False
    number = await before.seal()
    await _left_behind(before, number, AttemptState.SENT, gone)
    before.store.close()
    async with bench(tmp_path, two) as b:
        b.coordinator.no_more()
        await b.ended()
        b.whole(1)
        assert two.posts == ["c.b1.a2"]


@scenario
async def test_stopping_waits_for_the_posts_under_way_and_sends_nothing_more(tmp_path: Path) -> None:
    one = model("one", quick=False)
    async with bench(tmp_path, one) as b:
        b.sender.gate.clear()
        await b.seal_all(6)
        await until(lambda: len(one.posts) == 4, "posts are under way")
        stopping = asyncio.get_running_loop().create_task(b.coordinator.stop("interrupted"))
        await asyncio.sleep(0)
        assert not stopping.done()
        b.sender.gate.set()
        await stopping
        assert b.coordinator.stopped == "interrupted"
        assert b.states() == ["sent"] * 4 + ["sealed"] * 2
        assert {a.state for a in b.attempts()} == {AttemptState.SENT}
        assert len(one.posts) == 4


@scenario
async def test_an_error_of_ours_ends_the_crawl_and_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, model("one")) as b:
        b.folder.rmdir()
        await b.seal_all(1)
        await b.ended()
        assert isinstance(b.coordinator.fault, OSError)
        assert "scrapyd-dist itself failed" in b.coordinator.stopped
        assert BatchState.DONE not in {batch.state for batch in b.store.store.batches(CRAWL)}
