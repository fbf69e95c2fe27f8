"""Work for spiders of other projects, on nodes in memory: who they are is asked first, and every call names theirs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from rig.nodemodel import ModelJob, ModelNode, model
from rig.scheduling import CRAWL, HOME, OTHERS_KEY, QUICK, Bench, ModelWorker, leasing, until

from scrapyd_dist.errors import ApiRefused, ConnectionRefused, ServerFailed
from scrapyd_dist.keys import unseal
from scrapyd_dist.scheduling.foreign_projects import newest
from scrapyd_dist.scheduling.job_request import HARMLESS, JobRequest
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scrapyd.api import JobState
from scrapyd_dist.scrapyd.versions import version_name

LANE = "@shop:login"
KEY = Fernet.generate_key()


def with_shop(name: str, **options: Any) -> ModelNode:
    """A node on which the project shop is deployed."""
    node = model(name, **options)
    node.versions = {"shop": ("r1", "r2")}
    return node


@asynccontextmanager
async def with_work(
    tmp_path: Path, *nodes: ModelNode, sizes: tuple[int, ...] = (1,), **options: Any
) -> AsyncIterator[Bench]:
    """A scheduler with batches of these sizes for the spider of shop."""
    async with leasing(tmp_path, *nodes, key=KEY, **options) as o:
        o.add(*sizes, slot=LANE)
        yield o


async def of_shop(o: Bench, number: int = 1) -> ModelWorker:
    """The newest of the workers of shop, when so many of them were posted."""

    def posted() -> list[ModelJob]:
        for worker in o.workers():
            if o_job(worker).project != "shop" and o_job(worker).state is JobState.PENDING:
                worker.begin()  # or else the node would seem to start nothing
        return [job for node in o.nodes for job in node.jobs.values() if job.project == "shop"]

    await until(lambda: len(posted()) >= number, f"{number} jobs of shop")
    return [one for one in o.workers() if o_job(one).project == "shop"][-1]


async def introduced(o: Bench, number: int = 2) -> ModelWorker:
    """The worker that runs after the first one of shop has introduced itself."""
    (await of_shop(o, number - 1)).begin().introduce()
    return (await of_shop(o, number)).begin()


async def given_up(o: Bench) -> str:
    """Why the only batch was given up."""
    await until(lambda: o.states() == ["dead"], "it is given up")
    return o.store.batch(CRAWL, 1).reason


def o_job(worker: ModelWorker) -> ModelJob:
    return worker.node.jobs[worker.job]


async def test_who_it_is_is_asked_first_and_then_it_gets_the_key_and_the_work(
    tmp_path: Path,
) -> None:
    one = with_shop("one", slots=4)
    spec = JobRequest(
        crawl=CRAWL, home=HOME, project="p", spider="s", version="v1", args={"a": "1"},
        settings={"ITEM_PIPELINES": "{}"}, foreign_settings={"DISTRIBUTED_LABELS": "x", "DISTRIBUTED_SLOTS": "4"},
    )  # fmt: skip
    async with with_work(tmp_path, one, producer="me", spec=spec, sizes=(1, 1, 1)) as o:
        first = (await of_shop(o)).begin()
        job, told = o_job(first), o_job(first).told
        assert (job.spider, job.version, job.args, told["introduce"]) == ("login", "r2", {}, True)
        assert {name: job.settings[name] for name in HARMLESS} == HARMLESS
        assert "ITEM_PIPELINES" not in job.settings
        assert not told.keys() & {"store", "store_sealed", "key_sealed"}
        one.versions["shop"] += ("r3",)  # what came later has not introduced itself
        first.introduce()
        worker = await of_shop(o, 2)
        job, told = o_job(worker), o_job(worker).told
        assert (job.version, told["store"], told["version"]) == ("r2", "here", "r2")
        assert unseal(told["key_sealed"], OTHERS_KEY) == KEY
        ours = {name: text for name, text in job.settings.items() if name != "DISTRIBUTED_PULL"}
        assert ours == {"DISTRIBUTED_LABELS": "x", "DISTRIBUTED_SLOTS": "4"}
        worker.begin().work_off().end()
        await o.over()
        assert o.states() == ["done"] * 3
        introduced = [job.id for job in one.jobs.values() if job.told.get("introduce")]
        assert introduced == [first.job]


def test_the_newest_version_is_the_last_one_that_sdist_deployed() -> None:
    moments = [datetime(2026, 11, day, tzinfo=timezone.utc) for day in (1, 2)]
    old, new = (version_name("0123456789ab", moment, label="git-v1") for moment in moments)
    assert (
        newest((old, new, "r9")) == new
    )  # Scrapyd sorts r9 behind them, and runs it when nothing is said
    assert newest(("r1", "r2")) == "r2"


async def test_a_job_of_another_project_is_cancelled_as_one_of_that(tmp_path: Path) -> None:
    """Scrapyd finds a job among those of the project that it is asked for, and nowhere else."""
    one = with_shop("one")
    async with with_work(tmp_path, one, producer="me") as o:
        worker = await introduced(o)
        worker.lease(seconds=0.05)  # and no word from it any more
        await until(
            lambda: o_job(worker).state is JobState.FINISHED, "the one that hangs is told to end"
        )
        o.add(1, slot=LANE)
        other = (await of_shop(o, 3)).begin()
        one.down = ConnectionRefused
        await until(
            lambda: o.state.members[0].cancel_later, "it is given up while its node is away"
        )
        assert o_job(other).state is JobState.RUNNING
        one.down = None
        await until(
            lambda: o_job(other).state is JobState.FINISHED,
            "it is cancelled when the node answers again",
        )


async def test_only_the_node_that_has_the_project_gets_its_work(tmp_path: Path) -> None:
    lacking, having = model("lacking", slots=9), with_shop("having", slots=2)
    async with with_work(tmp_path, lacking, having, producer="me", sizes=(1, 1)) as o:
        (await introduced(o)).work_off().end()
        await o.over()
        assert o.states() == ["done", "done"]
        assert {job.project for job in lacking.jobs.values()} <= {"p"}
        assert [member.readiness.unfit for member in o.state.members] == ["", ""]


async def test_where_the_project_is_there_is_made_room_for_it(tmp_path: Path) -> None:
    """Free room elsewhere is of no use to it, and idle workers there need not go."""
    having, lacking = with_shop("having", slots=1), model("lacking", slots=1)
    async with leasing(tmp_path, having, lacking, producer="me", key=KEY) as o:
        await until(lambda: len(o.workers()) == 2, "an idle worker on each node")
        for worker in o.workers():
            worker.begin()
        o.add(1, slot=LANE)
        (await introduced(o)).work_off().end()
        await until(lambda: o.states() == ["done"], "the work is done")
        assert having.cancels != []


async def test_an_idle_worker_elsewhere_does_not_keep_one_there_from_making_room(
    tmp_path: Path,
) -> None:
    lacking, having = model("lacking", slots=1), with_shop("having", slots=1)
    async with with_work(
        tmp_path, lacking, having, producer="me", scaling=ScalingPolicy(per_slot=1)
    ) as o:
        (await introduced(o)).work_off().end()
        await until(lambda: o.states() == ["done"], "which node has it is known")
        for number, slot in enumerate(("p0", "p1"), 1):
            o.add(1, slot=slot)
            await until(lambda number=number: len(o.workers()) == number, "a worker for it")  # type: ignore[misc]  # the default binds it
        assert [worker.begin().slots for worker in o.workers() if worker.node is lacking] == [
            ["p0"]
        ]
        for worker in o.workers():
            worker.begin().work_off()
        o.add(1, slot=LANE)
        await of_shop(o, 3)
        assert (lacking.cancels, len(set(having.cancels))) == ([], 1)


async def test_another_spider_of_a_known_project_introduces_itself_too(tmp_path: Path) -> None:
    """It may be one that would not know that it is a worker, and enter its own start."""
    async with with_work(tmp_path, with_shop("one", slots=4)) as o:
        await introduced(o)
        o.add(1, slot="@shop:search")
        first = await of_shop(o, 3)
        assert (o_job(first).spider, o_job(first).told.get("introduce")) == ("search", True)
        first.begin().end(public="x", problem="it hides the add-on")
        await until(lambda: o.store.batch(CRAWL, 2).state.value == "dead", "it is given up")
        assert o.store.batch(CRAWL, 1).state.value == "sealed"


async def test_one_round_goes_on_until_it_is_known_who_can_do_the_work(tmp_path: Path) -> None:
    lacking, having = model("lacking", slots=4), with_shop("having", slots=3)
    async with with_work(tmp_path, lacking, having, scaling=ScalingPolicy(every=0)) as o:
        (await of_shop(o)).begin().introduce()
        worker = await of_shop(o, 2)
        await o.ended()
        assert o_job(worker).told.get("introduce") is None
        assert (o.state.stopped, o.states()) == ("", ["sealed"])


async def test_the_node_that_has_the_project_is_waited_for_and_named_when_it_stays_away(
    tmp_path: Path,
) -> None:
    lacking, having = model("lacking", slots=1), with_shop("having", slots=2)
    patient = replace(QUICK, fleet_timeout=QUICK.node_timeout * 20)
    async with with_work(tmp_path, lacking, having, producer="me", limits=patient) as o:
        (await of_shop(o)).begin().introduce()
        await of_shop(o, 2)
        having.down, began = ConnectionRefused, time.monotonic()
        assert "having: has not answered for 2 s" in await given_up(o)
        assert time.monotonic() - began > patient.fleet_timeout


async def test_a_node_that_cannot_say_which_versions_it_has_is_not_asked_without_a_pause(
    tmp_path: Path,
) -> None:
    one, began = with_shop("one"), time.monotonic()
    one.failing = {"listversions.json": ServerFailed}
    async with with_work(tmp_path, one, limits=replace(QUICK, poll=0.1, fleet_timeout=60)) as o:
        await until(
            lambda: one.calls.count("listversions.json") == 5, "it is asked again and again"
        )
        assert time.monotonic() - began > 4 * 0.1  # never more often than nodes are looked at
        assert o.states() == ["sealed"]


async def test_a_project_that_no_node_has_is_named_with_what_to_do_and_its_work_is_dead(
    tmp_path: Path,
) -> None:
    one, two = model("one"), model("two")
    async with with_work(tmp_path, one, two, sizes=(2,)) as o:
        reason = await given_up(o)
        assert reason.startswith("one, two: there is no project shop;")
        assert "sdist deploy --all" in reason
        await o.ended()  # nothing else is left
        assert (o.state.stopped, o.state.counters.dead_urls) == ("", 2)


async def test_a_spider_that_the_project_does_not_have_is_dead_too(tmp_path: Path) -> None:
    def refuse(node: ModelNode, job: ModelJob) -> None:
        if job.project == "shop":
            error = ApiRefused(f"{node.node}: spider 'login' not found")
            error.scrapyd_message = "spider 'login' not found"
            raise error
        node.take(job)

    one = with_shop("one")
    one.plays = [refuse] * 9
    async with with_work(tmp_path, one, producer="me", sizes=(2,)) as o:
        assert "spider 'login' not found" in await given_up(o)


async def test_a_project_whose_jobs_say_nothing_is_asked_twice_and_never_given_work(
    tmp_path: Path,
) -> None:
    one = with_shop("one")
    async with with_work(tmp_path, one, producer="me", sizes=(2,)) as o:
        for number in (1, 2):
            worker = (await of_shop(o, number)).begin()
            worker.node.files.clear()
            worker.node.die(worker.job)
        assert "as if sdist had not deployed it" in await given_up(o)
        assert all(job.told.get("introduce") for job in one.jobs.values() if job.project == "shop")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"code": {"version": "0.0.1"}}, "deployed by sdist 0.0.1"),
        ({"problem": "its setting FEEDS is odd"}, "its setting FEEDS is odd"),
    ],
)
async def test_code_of_another_version_or_with_a_problem_gets_no_work_and_the_reason_is_told(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async with with_work(tmp_path, with_shop("one"), producer="me", sizes=(2,)) as o:
        (await of_shop(o)).begin().end(**{"public": "x", **fields})
        assert why in await given_up(o)


async def test_that_its_code_does_not_get_at_the_store_is_not_the_nodes_doing(
    tmp_path: Path,
) -> None:
    async with with_work(tmp_path, with_shop("one"), producer="me", sizes=(2,)) as o:
        (await introduced(o)).end(
            "refused", unreached=True, problem="The store is out of reach: why."
        )
        reason = await given_up(o)
        assert "the version r2 of the project shop cannot work" in reason
        assert "out of reach: why; deploy it" in reason
        assert (o.state.members[0].readiness.unfit, o.scheduler.failed) == (
            "",
            True,
        )  # a pool is closed
        await o.over()
        assert o.state.stopped == ""


async def test_an_introduction_of_an_earlier_process_counts(tmp_path: Path) -> None:
    one = with_shop("one")
    async with with_work(tmp_path, one, producer="me", sizes=(2,)) as o:
        worker = (await of_shop(o)).begin()
        await until(lambda: o.store.workers(CRAWL)[0], "it is written down")
    async with leasing(tmp_path, one, producer="me", key=KEY) as o:
        worker.introduce()
        again = (await of_shop(o, 2)).begin()
        assert o_job(again).told.get("introduce") is None
        again.work_off().end()
        await o.over()
        assert o.states() == ["done"]
