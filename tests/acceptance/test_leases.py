"""Leases of workers on real nodes: who stands still is replaced, and never makes another request."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, ITEMS, begin, busy_workers, report_of
from rig.commands import Command
from rig.crawls import ADDON, QUICK, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.redis import RedisServer
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState
from scrapyd_dist.store import open_store

#: a lease that a test can wait for
LEASE = {"DISTRIBUTED_LEASE": 3}


def test_workers_hold_leases_where_they_reach_the_store_and_work_as_well_where_they_do_not(
    project: MakeProject,
    scrapyd_node: Callable[..., ScrapydNode],
    site: StartSite,
    run_scrapy: RunCommand,
    tmp_path: Path,
) -> None:
    pages = site(80, per_page=40)
    near, far = scrapyd_node(), scrapyd_node(env={"SDIST_STORE": str(tmp_path / "another-machine.db")})
    settings = {**QUICK, "ADDONS": ADDON, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 20}
    it = project(nodes=[near, far], settings=settings)
    done = run_scrapy(it, "crawl", "easy", "-o", ITEMS)
    assert done.code == 0, said(done)
    assert pages.differences(it.items(ITEMS)) == {}
    with closing(open_store(it.path / ".sdist" / "store.db")) as store:
        accepted = store.attempts(last_crawl(it).id, {AttemptState.ACCEPTED})
    jobs = {node: [a.job for a in accepted if a.url == node.url.rstrip("/")] for node in (near, far)}
    assert {report_of(near, job)["no_lease"] for job in jobs[near]} == {""}
    (reason,) = {report_of(far, job)["no_lease"] for job in jobs[far]}
    assert "there is no file" in reason
    assert not (tmp_path / "another-machine.db").exists()


@pytest.fixture(params=["sqlite", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store; empty for the project's own file."""
    if request.param == "sqlite":
        yield ""
        return
    with closing(RedisServer(tmp_path / "redis")) as server:
        yield server.url


def busy(nodes: list[ScrapydNode]) -> tuple[ScrapydNode, int, str] | None:
    """A worker with a good part of its batch to go: its node, its process, its job."""
    return next(((node, *found) for node in nodes for found in busy_workers(node).items()), None)


@pytest.mark.black_box
class TestStopped:
    """A worker is stopped by SIGSTOP for so long that its batch is done elsewhere, and then goes on."""

    @pytest.fixture
    def nodes_up(self, fleet: StartFleet) -> list[ScrapydNode]:
        return fleet(2)

    @pytest.fixture
    def begun(
        self,
        project: MakeProject,
        nodes_up: list[ScrapydNode],
        site: StartSite,
        start_scrapy: StartCommand,
        where: str,
    ) -> tuple[Project, SiteProcess, Command]:
        pages = site(200, "--latency=0.1", per_page=50)
        settings = {**IMPATIENT, **LEASE, "START_URL": pages.start_url, "CONCURRENT_REQUESTS": 1}
        it = project(nodes=nodes_up, settings=settings)

        def start(it: Project, *words: str) -> Command:
            return start_scrapy(it, *words, env={"SDIST_STORE": where} if where else None)

        if where:
            return it, pages, start(it, "crawl", "easy", "-o", ITEMS)
        return it, pages, begin("scrapy", it, pages, scrapy=start, cli=start)

    def goes_on(self, pid: int, node: ScrapydNode, job: str, pages: SiteProcess) -> dict[str, Any]:
        """The stopped worker goes on; its last report. It makes no request but the one that was under way."""
        before = sum(pages.hits().values())
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: pid not in node.job_pids(), 30, "the end of the worker that was stopped")
        assert sum(pages.hits().values()) - before <= 1
        report = report_of(node, job)
        assert report["requests"] - report["done"] > 10, "it had little to go"
        return report

    def test_an_orphan_that_nobody_can_tell(
        self, begun: tuple[Project, SiteProcess, Command], nodes_up: list[ScrapydNode]
    ) -> None:
        it, pages, command = begun
        node, pid, job = wait_for(lambda: busy(nodes_up), 90, "a worker at work")
        os.kill(pid, signal.SIGSTOP)
        node.kill()
        for other in set(node.job_pids()) - {pid}:
            os.kill(other, signal.SIGKILL)
        done = command.wait(120)
        assert done.code == 0, said(done)
        assert pages.differences(it.items(ITEMS)) == {}
        report = self.goes_on(pid, node, job, pages)
        assert (report["state"], report["finish_reason"], report["lease"]) == ("ended", "superseded", True)

    def test_one_on_a_node_that_believes_that_it_runs(
        self, begun: tuple[Project, SiteProcess, Command], nodes_up: list[ScrapydNode]
    ) -> None:
        it, pages, command = begun
        node, pid, job = wait_for(lambda: busy(nodes_up), 90, "a worker at work")
        os.kill(pid, signal.SIGSTOP)
        done = command.wait(120)
        assert done.code == 0, said(done)
        assert "stands still" in done.err
        assert pages.differences(it.items(ITEMS)) == {}
        self.goes_on(pid, node, job, pages)
