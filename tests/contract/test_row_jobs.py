"""One job for each row of arguments, so many at a time: rows that come meanwhile, that fail, that are given up.

On nodes in memory; what a job does with its arguments is seen with real ones.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rig.coordination import CRAWL, HOME, QUICK, bench, scenario, until
from rig.nodemodel import model

from scrapyd_dist.coordination.posting import JobSpec
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.arguments import found, value_of
from scrapyd_dist.frontier.filling import open_frontier, pack
from scrapyd_dist.managing.rows import RowJobs
from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from rig.coordination import Bench
    from rig.nodemodel import ModelNode

    from scrapyd_dist.store import Store

SPEC = JobSpec(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", args={"all": "1"}, rows=True)


def add(store: Store, *words: str) -> None:
    rows = [found(value_of({"word": word}), 0) for word in words]
    store.add_batches(CRAWL, pack(rows, size=1, key=None), now=time.time())


def begin(tmp_path: Path, *words: str) -> None:
    """A frontier with these rows, and one who may still add some."""
    with closing(open_store(tmp_path / "store.db")) as store:
        open_frontier(store, CRAWL, project="p", now=1.0, arguments=True)
        store.register_producer(CRAWL, "me", 60)
        add(store, *words)


async def add_later(b: Bench, *words: str) -> None:
    await b.store(add, b.store.store, *words)


def running(*nodes: ModelNode) -> list[str]:
    """The words of the jobs that have not ended."""
    return sorted(job.args["word"] for node in nodes for job in node.jobs.values() if job.state.value != "finished")


def finish(node: ModelNode, word: str) -> None:
    node.finish(next(job.id for job in node.jobs.values() if job.args["word"] == word))


@scenario
async def test_each_row_is_one_job_and_there_are_never_more_than_may_be(tmp_path: Path) -> None:
    one = model("one", slots=9, quick=False)
    begin(tmp_path, "a", "b", "c")
    async with bench(tmp_path, one, limits=replace(QUICK, max_jobs=2), kind=RowJobs, spec=SPEC) as b:
        await until(lambda: len(one.jobs) == 2, "two jobs")
        assert running(one) == ["a", "b"]
        job = one.jobs[f"{CRAWL}.b1.a1"]
        assert (job.spider, job.args) == ("s", {"all": "1", "word": "a", "batch": "1"})
        assert job.told["row"] == '{"word": "a"}'
        finish(one, "a")
        await until(lambda: running(one) == ["b", "c"], "the next one")
        await add_later(b, "d")
        finish(one, "b")
        finish(one, "c")
        await until(lambda: running(one) == ["d"], "the one that came later")
        finish(one, "d")
        await until(lambda: b.coordinator.tally.done == 4, "all are home")
        assert not b.coordinator.desk.over.is_set()  # somebody may still add something
        await b.store(b.store.store.sign_off, CRAWL, "me")
        await b.ended()
        assert (b.coordinator.stopped, b.states()) == ("", ["done"] * 4)


@scenario
async def test_a_row_that_fails_is_tried_again_and_dead_in_the_end_and_may_be_let_wait_again(tmp_path: Path) -> None:
    one = model("one", slots=1)
    one.edit = lambda report: report.update(problem="its start failed") if report["row"] == '{"word": "bad"}' else None
    begin(tmp_path, "bad", "good")
    async with bench(tmp_path, one, kind=RowJobs, spec=SPEC) as b:
        await until(lambda: b.states() == ["dead", "done"], "both have ended")
        assert b.store.store.batch(CRAWL, 1).reason == "its start failed"
        assert len(b.attempts(1)) == QUICK.max_attempts
        one.edit = lambda _: None
        await b.store(b.store.store.requeue, CRAWL, [1])
        await until(lambda: b.states() == ["done", "done"], "it is done now")


@scenario
async def test_a_lost_producer_leaves_it_incomplete_when_all_that_came_is_done(tmp_path: Path) -> None:
    one = model("one")
    begin(tmp_path, "a")
    async with bench(tmp_path, one, kind=RowJobs, spec=SPEC) as b:
        await b.store(b.store.store.register_producer, CRAWL, "me", -1)
        await b.ended()
        assert (b.coordinator.incomplete, b.states(), "me" in b.coordinator.stopped) == (True, ["done"], True)


def test_a_frontier_has_rows_of_one_kind(store: Store) -> None:
    open_frontier(store, "rows", project="p", now=1.0, arguments=True)
    open_frontier(store, "pages", project="p", now=1.0)
    with pytest.raises(ConfigError, match="are arguments; it takes no requests"):
        open_frontier(store, "rows", project="p", now=1.0)
    with pytest.raises(ConfigError, match="are requests; it takes no arguments"):
        open_frontier(store, "pages", project="p", now=1.0, arguments=True)
