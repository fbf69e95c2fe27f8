"""Workers lease where they reach the store, and nodes whose workers do not are sent their batches; in memory."""

from pathlib import Path
from typing import Any

import pytest
from rig.nodemodel import ModelNode, model
from rig.scheduling import leasing, until

from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.scaling_policy import OF_A_NODE, ScalingPolicy
from scrapyd_dist.store.reach import Way

WHY = "it is another machine"


def far_away(node: Node) -> Way:
    return Way(reason=WHY) if node.name.startswith("far") else Way(told={"store": "here"})


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
        assert b.scheduler.members[0].unreached == WHY


@pytest.mark.parametrize("names", [("far1", "far2"), ("one", "two")])
async def test_where_no_worker_reaches_the_store_all_batches_are_sent(tmp_path: Path, names: tuple[str, str]) -> None:
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
        assert all(member.unreached and not member.unfit for member in b.scheduler.members)


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


async def test_a_node_whose_workers_lose_the_store_again_and_again_is_sent_its_batches(tmp_path: Path) -> None:
    one = model("one")
    async with auto(tmp_path, one, scaling=ScalingPolicy(most=1)) as b:
        b.add(2, 2)
        for _ in range(OF_A_NODE):
            await until(b.workers, "a worker")
            b.workers()[-1].begin().end("store-lost", problem="The store is out of this worker's reach: refused.")
        await b.over(whole=2)
        assert sent(one) == ["c.b1.a1", "c.b2.a1"]
        (member,) = b.scheduler.members
        assert "refused" in member.unreached
        assert not member.unfit


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
        assert [(job.spider, job.args.get("a")) for job in far.jobs.values()] == [("s", "1"), ("login", None)]
        assert WHY in b.store.batch("c", 3).reason
