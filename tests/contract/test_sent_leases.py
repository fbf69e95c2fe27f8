"""The scheduler and leases: a worker that stands still is replaced, one that is only quiet is waited for."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rig.nodemodel import model
from rig.scheduling import CRAWL, HOME, Bench, sending, until

from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.store.reach import Way

#: seconds
LEASE = 0.1


def spec(ways: Callable[[Node], Way] | None = None) -> JobRequest:
    return JobRequest(crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", lease=LEASE, ways=ways)


def hold(b: Bench, seconds: float) -> None:
    assert b.store.lease(CRAWL, 1, 1, "c.b1.a1", seconds)


async def test_a_worker_whose_node_believes_that_it_runs_is_replaced(tmp_path: Path) -> None:
    one, two = model("one", quick=False), model("two")
    async with sending(tmp_path, one, two, spec=spec()) as b:
        await b.seal_and_start()
        hold(b, LEASE)
        await b.ended()
        b.whole(1)
        assert (one.cancels[0], two.posts) == ("c.b1.a1", ["c.b1.a2"])
        assert "stands still" in b.attempts(1)[0].reason


@pytest.mark.parametrize("seconds", [60.0, None])
async def test_one_whose_lease_is_good_or_that_has_none_is_waited_for(tmp_path: Path, seconds: float | None) -> None:
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=spec()) as b:
        await b.seal_and_start()
        if seconds is not None:
            hold(b, seconds)
        out = next(iter(b.scheduler.members[0].out.values()))
        out.changed -= 10 * LEASE
        asked = len(one.calls)
        await until(lambda: len(one.calls) > asked + 20, "several looks")
        assert one.cancels == []
        one.finish("c.b1.a1")
        await b.ended()
        b.whole(1)


async def test_a_job_is_told_of_the_store_where_its_node_reaches_it(tmp_path: Path) -> None:
    near, far = model("near", slots=1, quick=False), model("far", slots=1, quick=False)

    def ways(node: Node) -> Way:
        return Way(told={"store": "/s.db"}) if node.name == "near" else Way(reason="it is another machine")

    async with sending(tmp_path, near, far, spec=spec(ways)) as b:
        await b.seal_all(2)
        await until(lambda: near.jobs and far.jobs, "posted to both")
        told = [next(iter(node.jobs.values())).settings["DISTRIBUTED_JOB"] for node in (near, far)]
        assert ['"store":"/s.db"' in text for text in told] == [True, False]
