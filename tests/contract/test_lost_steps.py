"""A store that fails over and loses its last steps: the scheduler goes on with what the store knows, and ends."""

from pathlib import Path

import pytest
from rig.nodemodel import ModelNode, model
from rig.scheduling import Bench, sending, until
from rig.stores import lose_steps

#: steps of a batch
STEPS = ("sealed", "sent", "running")


async def come_to(b: Bench, node: ModelNode, step: str) -> None:
    """The two batches come to this step."""
    jobs = ["c.b1.a1", "c.b2.a1"]
    if step != "sealed":
        b.state.status.sending = True
        b.state.pump()
        await until(lambda: len(b.posts()) == 2 and not b.state.tasks.posts, "they are sent")
    if step == "running":
        for job in jobs:
            node.start(job, done=1)
        await until(lambda: b.states() == ["running", "running"], "they run")


@pytest.mark.parametrize("step", STEPS)
async def test_what_was_done_since_is_done_again_or_taken_up(tmp_path: Path, step: str) -> None:
    node = model("one", quick=False)
    async with sending(tmp_path, node) as b:
        b.state.status.sending = False
        await b.seal(2)
        await come_to(b, node, step)
        with lose_steps(tmp_path / "store.db"):
            await come_to(b, node, "running")
            for job in ("c.b1.a1", "c.b2.a1"):
                node.finish(job)
            await until(lambda: b.states() == ["done", "done"], "both are done")
        if step == "sealed":
            await until(
                lambda: len(b.posts()) == 4 and not b.state.tasks.posts, "they are sent again"
            )
            for job in ("c.b1.a1", "c.b2.a1"):
                node.finish(job)
        await b.over(whole=2)


async def test_steps_that_are_lost_between_two_steps_of_a_job_end_no_crawl(tmp_path: Path) -> None:
    node = model("one", quick=False)
    async with sending(tmp_path, node) as b:
        b.state.status.sending = False
        await b.seal(2)
        with lose_steps(tmp_path / "store.db"):
            await come_to(b, node, "running")
        for job in ("c.b1.a1", "c.b2.a1"):
            node.finish(job)
        await b.over(whole=2)
