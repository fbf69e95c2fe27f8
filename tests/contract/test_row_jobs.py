"""One job for each row of arguments, so many at a time: rows that come meanwhile, that fail, that are given up.

On nodes in memory; what a job does with its arguments is seen with real ones.
"""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rig.nodemodel import ModelJob, ModelNode, model
from rig.scheduling import CRAWL, HOME, QUICK, Bench, sending, until

from scrapyd_dist.batches import AttemptState, Batch
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.frontier.intake import open_frontier
from scrapyd_dist.frontier.packing import pack
from scrapyd_dist.frontier.worklists import intake_of, value_of
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.store import Store, open_store

SPEC = JobRequest(
    crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", args={"all": "1"}, rows=True
)


def add(store: Store, *words: str, priority: int = 0) -> None:
    rows = [intake_of(value_of({"word": word}), priority) for word in words]
    store.add_batches(CRAWL, pack(rows, size=1, key=None))


def begin(where: Path | str, *words: str) -> None:
    """A frontier with these rows, and a producer that may still add some."""
    with closing(open_store(where / "store.db" if isinstance(where, Path) else where)) as store:
        open_frontier(store, CRAWL, project="p", now=1.0, arguments=True)
        store.register_producer(CRAWL, "me", 60)
        add(store, *words)


def rows_on(
    folder: Path, *nodes: ModelNode, most: int = 0, where: str = ""
) -> AbstractAsyncContextManager[Bench]:
    """The rows of the frontier as jobs on these nodes, at most so many at one time."""
    limits = replace(QUICK, max_jobs=most) if most else QUICK
    return sending(folder, *nodes, limits=limits, producer="", spec=SPEC, where=where)


def running(*nodes: ModelNode) -> list[str]:
    """The words of the jobs that have not ended."""
    return sorted(
        job.args["word"]
        for node in nodes
        for job in node.jobs.values()
        if job.state.value != "finished"
    )


def finish(node: ModelNode, word: str) -> None:
    node.finish(next(job.id for job in node.jobs.values() if job.args["word"] == word))


async def test_each_row_is_one_job_and_there_are_never_more_than_may_be(tmp_path: Path) -> None:
    one = model("one", slots=9, quick=False)
    begin(tmp_path, "a", "b", "c")
    async with rows_on(tmp_path, one, most=2) as b:
        await until(lambda: len(one.jobs) == 2, "two jobs")
        assert running(one) == ["a", "b"]
        job = one.jobs[f"{CRAWL}.b1.a1"]
        assert (job.spider, job.args) == ("s", {"all": "1", "word": "a"})
        assert job.told["row"] == '{"word": "a"}'
        finish(one, "a")
        await until(lambda: running(one) == ["b", "c"], "the next one")
        add(b.store, "d")
        finish(one, "b")
        finish(one, "c")
        await until(lambda: running(one) == ["d"], "the one that came later")
        finish(one, "d")
        await until(lambda: b.state.counters.done == 4, "all are home")
        assert not b.state.status.over.is_set()  # a producer may still add something
        b.store.sign_off(CRAWL, "me")
        await b.ended()
        assert (b.state.stopped, b.states()) == ("", ["done"] * 4)


async def test_a_row_that_fails_is_tried_again_and_dead_in_the_end_and_may_be_let_wait_again(
    tmp_path: Path,
) -> None:
    one = model("one", slots=1)
    one.edit = lambda report: (
        report.update(problem="its start failed") if report["row"] == '{"word": "bad"}' else None
    )
    begin(tmp_path, "bad", "good")
    async with rows_on(tmp_path, one) as b:
        await until(lambda: b.states() == ["dead", "done"], "both have ended")
        assert b.store.batch(CRAWL, 1).reason == "its start failed"
        assert len(b.attempts(1)) == QUICK.max_attempts
        one.edit = lambda _: None
        b.store.requeue(CRAWL, [1])
        await until(lambda: b.states() == ["done", "done"], "it is done now")


async def test_a_row_of_a_higher_priority_waits_for_those_at_hand_and_not_for_all(
    tmp_path: Path,
) -> None:
    one = model("one", slots=1, quick=False)
    begin(tmp_path, *(f"w{number}" for number in range(100)))
    async with rows_on(tmp_path, one, most=1) as b:
        await until(lambda: running(one), "the first job")
        add(b.store, "urgent", priority=5)
        while running(one) != ["urgent"]:
            for word in running(one):
                finish(one, word)
            await until(lambda: running(one), "the next one")
        assert len(one.jobs) < 40


async def test_a_lost_producer_leaves_it_incomplete_when_all_that_came_is_done(
    tmp_path: Path,
) -> None:
    one = model("one")
    begin(tmp_path, "a")
    async with rows_on(tmp_path, one) as b:
        b.store.register_producer(CRAWL, "me", -1)
        await b.ended()
        assert (b.scheduler.incomplete, b.states(), "me" in b.state.stopped) == (
            True,
            ["done"],
            True,
        )


@dataclass(kw_only=True)
class Working(ModelNode):
    """A node whose jobs take a moment; several of them share one tally."""

    counters: Counter[str]  #: words -> jobs; `now` and `most` at one time

    def take(self, job: ModelJob) -> None:
        super().take(job)
        self.counters.update([job.args["word"], "now"])
        self.counters["most"] = max(self.counters["most"], self.counters["now"])
        self.work(job.id)

    def work(self, job: str) -> None:
        asyncio.get_running_loop().call_later(0.005, self.let_end, job)

    def let_end(self, job: str) -> None:
        if self.counters["most"] < 4:  # the first four are there together, also on a busy machine
            self.work(job)
            return
        self.counters["now"] -= 1
        self.finish(job)


@pytest.mark.black_box
async def test_a_thousand_rows_are_a_thousand_jobs_and_never_more_than_four_at_once(
    where: str, tmp_path: Path
) -> None:
    words = [f"w{number}" for number in range(1_000)]
    counters: Counter[str] = Counter()
    models = (model(name, slots=9, quick=False) for name in ("one", "two"))
    nodes = [
        Working(name=one.name, node=one.node, slots=9, quick=False, counters=counters)
        for one in models
    ]
    begin(where, *words)
    async with rows_on(tmp_path, *nodes, most=4, where=where) as b:
        b.store.sign_off(CRAWL, "me")
        await asyncio.wait_for(b.scheduler.ended(), 120)
        assert (b.state.stopped, b.state.counters.done) == ("", 1_000)
        assert Counter(b.states()) == {"done": 1_000}
    assert counters == Counter([*words, *["most"] * 4]), "each word once, and four at one time"


async def test_a_look_reads_what_is_about_to_run_and_not_what_waits(
    where: str, tmp_path: Path
) -> None:
    one = model("one", slots=9, quick=False)
    begin(where, *(f"w{number}" for number in range(2_000)))
    read: list[int] = []
    async with rows_on(tmp_path, one, most=4, where=where) as b:
        read_by = b.state.store.store
        peek = read_by.peek

        def peeked(crawl: str, slot: str, limit: int) -> list[Batch]:
            found = peek(crawl, slot, limit)
            read.append(len(found))
            return found

        def every(*_: object) -> list[Batch]:
            raise AssertionError("every row was read")

        read_by.peek, read_by.batches = peeked, every  # type: ignore[assignment]  # to be heard of
        done = 0
        while done < 100:
            for word in running(one):
                finish(one, word)
                done += 1
            await asyncio.sleep(0.005)
        assert b.state.status.fault is None
        assert b.state.backlog.batches == 2_000
        assert len(b.state.queue.open) < 50
        assert 0 < max(read) < 100


async def test_the_next_process_finds_the_jobs_of_the_last_one_and_starts_none_beside_them(
    tmp_path: Path,
) -> None:
    one = model("one", slots=9, quick=False)
    begin(tmp_path, "a", "b", "c", "d")
    async with rows_on(tmp_path, one, most=2) as before:
        await until(lambda: running(one) == ["a", "b"], "two jobs")
        finish(one, "a")
        await until(lambda: running(one) == ["b", "c"], "the third")
        await until(lambda: before.state.counters.done == 1, "the first is home")
        await before.scheduler.stop("it is stopped")
    async with rows_on(tmp_path, one, most=2) as after:
        counters = after.state.counters
        assert (counters.done, counters.sent, sorted(after.state.queue.open)[:2]) == (1, 3, [2, 3])
        finish(one, "b")
        await until(lambda: running(one) == ["c", "d"], "the last one")
        finish(one, "c")
        finish(one, "d")
        after.store.sign_off(CRAWL, "me")
        await after.ended()
        assert (after.states(), counters.done) == (["done"] * 4, 4)
    assert sorted(job.args["word"] for job in one.jobs.values()) == list("abcd")


async def test_rows_that_are_taken_away_while_they_wait_are_not_sent_and_stop_nothing(
    tmp_path: Path,
) -> None:
    one = model("one", slots=9, quick=False)
    begin(tmp_path, "a", "b", "c", "d")
    async with rows_on(tmp_path, one, most=1) as b:
        await until(lambda: running(one) == ["a"], "the first job")
        b.store.drop_batch(CRAWL, 2, forget=True)
        payload = b.store.payload(CRAWL, 3)
        b.store.split(CRAWL, 3, [NewBatch(payload=payload, size=1, slot="aside")])
        finish(one, "a")
        for word in ("d", "c"):
            await until(lambda word=word: running(one) == [word], "what is left")  # type: ignore[misc]  # the default binds it
            finish(one, word)
        b.store.sign_off(CRAWL, "me")
        await b.ended()
        assert (b.state.status.fault, b.states()) == (None, ["done", "split", "done", "done"])
        assert {a.state for a in b.attempts()} == {AttemptState.ACCEPTED}


def test_a_frontier_has_rows_of_one_kind(store: Store) -> None:
    open_frontier(store, "rows", project="p", now=1.0, arguments=True)
    open_frontier(store, "pages", project="p", now=1.0)
    with pytest.raises(ConfigError, match="are arguments; it takes no requests"):
        open_frontier(store, "rows", project="p", now=1.0)
    with pytest.raises(ConfigError, match="are requests; it takes no arguments"):
        open_frontier(store, "pages", project="p", now=1.0, arguments=True)
