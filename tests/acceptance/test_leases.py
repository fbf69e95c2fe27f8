"""Leases of workers on real nodes: who stands still is replaced, and never makes another request."""

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from rig.bad_days import IMPATIENT, ITEMS, busy_workers, report_of
from rig.crawls import ADDON, QUICK, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.redis import RedisServer
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.store import open_store


def test_workers_hold_leases_where_they_reach_the_store_and_work_as_well_where_they_do_not(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_scrapy: RunCommand, tmp_path: Path
) -> None:
    pages = site(80, per_page=40)
    near, far = *fleet(1), *fleet(1, env={"SDIST_STORE": str(tmp_path / "another-machine.db")})
    settings = {**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 20}
    it = project(nodes=[near, far], settings=settings)
    run_scrapy(it, "crawl", "easy", "-o", ITEMS, code=0)
    assert pages.differences(it.items(ITEMS)) == {}
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        accepted = store.attempts(last_crawl(it).id, {AttemptState.ACCEPTED})
    jobs = {node: [a.job for a in accepted if a.url == node.url.rstrip("/")] for node in (near, far)}
    assert {report_of(near, job)["no_lease"] for job in jobs[near]} == {""}
    (reason,) = {report_of(far, job)["no_lease"] for job in jobs[far]}
    assert "there is no file" in reason
    assert not (tmp_path / "another-machine.db").exists()


def busy(nodes: list[ScrapydNode]) -> tuple[ScrapydNode, int, str] | None:
    """A worker with a good part of its batch to go: its node, its process, its job."""
    return next(((node, *found) for node in nodes for found in busy_workers(node).items()), None)


@pytest.mark.black_box
@pytest.mark.parametrize(("redis", "orphan"), [(True, True), (False, True), (False, False)])
def test_a_worker_that_is_stopped_until_its_batch_is_done_elsewhere_makes_no_more_requests(
    redis: bool,
    orphan: bool,
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    start_scrapy: StartCommand,
    tmp_path: Path,
) -> None:
    """By SIGSTOP; as an orphan it hears of nothing but its lease. Then it goes on."""
    nodes, pages = fleet(2), site(200, "--latency=0.1", per_page=50)
    settings = {**IMPATIENT, "DISTRIBUTED_LEASE": 3, "START_URL": pages.start_url, "CONCURRENT_REQUESTS": 1}
    it = project(nodes=nodes, settings=settings)
    with ExitStack() as stack:
        env = {"SDIST_STORE": stack.enter_context(closing(RedisServer(tmp_path / "redis"))).url} if redis else None
        command = start_scrapy(it, "crawl", "easy", "-o", ITEMS, env=env)
        node, pid, job = wait_for(lambda: busy(nodes), 90, "a worker at work")
        os.kill(pid, signal.SIGSTOP)
        if orphan:
            node.kill()
            for other in set(node.job_pids()) - {pid}:
                os.kill(other, signal.SIGKILL)
        done = command.wait(120, code=0)
        assert orphan or "stands still" in done.err
        assert pages.differences(it.items(ITEMS)) == {}

        before = sum(pages.hits().values())
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: pid not in node.job_pids(), 30, "the end of the worker that was stopped")
        assert sum(pages.hits().values()) - before <= 1, "more than the request that was under way"
        report = report_of(node, job)
        assert report["requests"] - report["done"] > 10, "it had little to go"
        if orphan:
            assert (report["state"], report["finish_reason"], report["lease"]) == ("ended", "superseded", True)


@pytest.mark.black_box
def test_where_no_worker_finds_the_store_the_crawl_says_so_and_can_begin_when_that_is_mended(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    """A container with its own disk: its address is this machine's, and only a worker there finds out."""
    pages = site(20, per_page=20)
    elsewhere = fleet(1, poll_interval=0.2, env={"SDIST_STORE": str(tmp_path / "not-here.db")})
    it = project(nodes=elsewhere, settings={**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url})
    done = run_cli(it, "crawl", "easy", "--pull", "--workers", 2, "-o", "items.jl", code=2)
    assert "there is no file" in done.out + done.err
    assert pages.item_hits() == {}
    row = last_crawl(it)
    assert (row.state.value, row.exit_code) == ("stopped", 2)
    it.targets(fleet(1, poll_interval=0.2))
    run_cli(it, "resume", row.id, code=0)
    assert pages.differences(it.items("items.jl")) == {}
