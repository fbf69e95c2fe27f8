"""Nodes and workers that die, hang or are away: no item missing, none twice, and the account says what happened."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rig import proxy
from rig.bad_days import (
    IMPATIENT,
    accepted_on,
    assert_exact,
    attempts,
    begin,
    busy_workers,
    wait_accepted,
)
from rig.commands import Command, Result
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.processes import halt, let_go_on
from rig.projects import Project
from rig.proxy import Proxy
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

BeginCrawl = Callable[..., tuple[Project, Command]]

pytestmark = pytest.mark.black_box


@pytest.fixture
def begun(project: MakeProject, start_scrapy: StartCommand, start_cli: StartCommand) -> BeginCrawl:
    """`begun(nodes, site, …)`: a crawl that runs, and its project."""

    def start(
        nodes: list[ScrapydNode], pages: SiteProcess, **settings: Any
    ) -> tuple[Project, Command]:
        it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url, **settings})
        return it, begin("scrapy", it, pages, scrapy=start_scrapy, cli=start_cli)

    return start


def assert_whole(
    done: Result, project: Project, site: SiteProcess, gone: tuple[int, ...] = ()
) -> None:
    """The crawl ended well and complete, and its account says the same as the site."""
    assert done.code == 0, done.err
    assert_exact(project, site, without=gone)
    summary, described = last_crawl(project).summary, site.site
    assert (summary["state"], summary["sealed"]) == ("finished", described.items)
    assert summary["duplicate"] == described.pages * described.duplicates
    assert summary["offsite"] == described.pages * described.offsite
    assert summary["urls_found"] == described.items + described.pages * (
        described.duplicates + described.offsite
    )
    assert (summary["items"], summary["gone_urls"]) == (described.items - len(gone), len(gone))
    assert (summary["failed_urls"], summary["dead_urls"], summary["index_failed"]) == (0, 0, 0)
    assert summary["batches"]["dead"] == 0


@pytest.mark.promise("A node is down, dies or hangs")
def test_one_node_away_one_killed_one_worker_killed(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl
) -> None:
    nodes, pages = fleet(3), site(600, "--latency=0.8", per_page=100, offsite=2, duplicates=3)
    pages.behave({pages.site.detail_path(555): "gone"})
    nodes[0].kill()
    it, command = begun(nodes, pages)
    wait_accepted(it, node="node2")
    nodes[1].kill()
    victim, job = wait_for(
        lambda: list(busy_workers(nodes[2]).items()), 60, "a busy worker on node3"
    )[0]
    os.kill(victim, signal.SIGKILL)
    done = command.wait(180)
    assert_whole(done, it, pages, gone=(555,))
    assert job in failed_jobs(it), "the worker was killed too late to show anything"
    assert not attempts(it, AttemptState.ACCEPTED, node="node1")
    states = {node["name"]: node["state"] for node in last_crawl(it).summary["nodes"]}
    assert states == {"node1": "down", "node2": "down", "node3": "up"}


@pytest.mark.promise("A node is down, dies or hangs")
def test_a_machine_hangs_and_comes_back_while_the_crawl_goes_on(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl
) -> None:
    nodes, pages = fleet(2, jobs_to_keep="1000"), site(1800, "--latency=0.4", per_page=100)
    it, command = begun(nodes, pages)
    wait_accepted(it)
    held = wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    # The site stands still meanwhile, so that work is left for the node when it is back: more than
    # the other node is given at a time.
    with pages.paused():
        nodes[0].pause()
        stopped = nodes[0].job_pids()
        halt(stopped)
        wait_for(lambda: set(held.values()) <= failed_jobs(it), 60, "its jobs given up")
        given_up = max(attempt.ended_at or 0 for attempt in attempts(it, AttemptState.FAILED))
        nodes[0].go_on()
        # Each is cancelled once, and once more where it runs. A stopped process gets the signal when it goes on.
        least = len(attempts(it, AttemptState.FAILED, node="node1")) + len(held)
        wait_for(
            lambda: nodes[0].log.count("POST /cancel.json") >= least, 60, "its old jobs cancelled"
        )
        let_go_on(stopped)
        wait_for(
            lambda: all("SIGINT" in nodes[0].job_log(job) for job in held.values()),
            60,
            "the signal in their logs",
        )
    wait_for(lambda: not held.keys() & nodes[0].job_pids().keys(), 60, "the end of its old jobs")
    with pages.paused():
        wait_for(
            lambda: attempts(it, node="node1")[-1].sent_at > given_up,
            60,
            "more work for it after it came back",
        )
    assert_whole(command.wait(180), it, pages)
    assert not {a.job for a in attempts(it, AttemptState.ACCEPTED)} & set(held.values())


def test_a_node_is_restarted_while_its_jobs_run(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl
) -> None:
    nodes, pages = fleet(1), site(200, "--latency=0.9", per_page=100)
    it, command = begun(nodes, pages, DISTRIBUTED_NODE_TIMEOUT=30)
    orphans = wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker")
    nodes[0].restart()
    assert_whole(command.wait(120), it, pages)
    collected = {attempt.job for attempt in attempts(it, AttemptState.ACCEPTED)}
    assert set(orphans.values()) <= collected, "what the orphans did was done again"
    assert set(pages.item_hits().values()) == {1}


@pytest.mark.full
def test_a_node_comes_back_empty(fleet: StartFleet, site: StartSite, begun: BeginCrawl) -> None:
    nodes, pages = fleet(2), site(800, "--latency=0.6", per_page=100)
    it, command = begun(nodes, pages)
    wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    # Else what is left may be only what had failed on this node, and goes to the other one.
    wait_for(lambda: last_crawl(it).summary.get("sealed") == 800, 60, "the end of the index")
    # The site stands still meanwhile, so that work is left for the node when it is back.
    with pages.paused():
        nodes[0].kill()
        old = nodes[0].kill_jobs()
        # One may have ended, and be brought home, in the moment before its process was killed.
        wait_for(lambda: set(old.values()) <= closed_jobs(it), 60, "its jobs given up")
        assert set(old.values()) & failed_jobs(it)
        accepted = len(accepted_on(it, "node1"))
        # A new machine under the old address: no eggs, no queue, no logs.
        nodes[0].work = nodes[0].work.with_name("new-work")
        nodes[0].work.mkdir()
        nodes[0].restart()
        wait_for(nodes[0].job_pids, 60, "work on the new machine")
    wait_accepted(it, accepted + 1, "node1")
    assert_whole(command.wait(180), it, pages)


def closed_jobs(project: Project) -> set[str]:
    closed = attempts(project, AttemptState.FAILED, AttemptState.ACCEPTED)
    return {attempt.job for attempt in closed}


def failed_jobs(project: Project) -> set[str]:
    return {attempt.job for attempt in attempts(project, AttemptState.FAILED)}


def state_of(project: Project, node: str) -> str:
    """What the crawl's summary calls the node now; nothing when it does not know it."""
    return next(
        (
            row["state"]
            for row in last_crawl(project).summary.get("nodes", ())
            if row["name"] == node
        ),
        "",
    )


def assert_done(done: Result, project: Project, site: SiteProcess) -> None:
    assert done.code == 0, done.err
    assert_exact(project, site)
    assert {attempt.state.value for attempt in attempts(project)} == {"accepted"}, (
        "an attempt was cut off"
    )
    assert site.item_hits().total() == site.site.items, "a page was fetched twice"


def test_a_node_joins_by_scrapy_cfg_and_the_first_one_is_drained(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl, run_cli: RunCommand
) -> None:
    first, second = fleet(1)[0], fleet(1, username="me", password="hush/42:@")[0]
    pages = site(240, "--latency=0.2", per_page=60)
    it, command = begun([first], pages, DISTRIBUTED_BATCH_SIZE=20)
    wait_for(
        lambda: attempts(it, AttemptState.RUNNING, node=first.name),
        90,
        "a job at work on the first node",
    )
    it.targets([first, second])
    wait_accepted(it, node=second.name)
    drained = run_cli(it, "nodes", "drain", first.name, "--no-wait")
    assert drained.code in {0, 3}, drained.err
    wait_for(lambda: state_of(it, first.name) == "draining", 20, "the crawl knows of the drain")
    before = attempts(it, node=first.name)
    assert_done(command.wait(180), it, pages)
    assert len(attempts(it, node=first.name)) == len(before)
    assert "hush" not in f"{command.out}{command.err}{drained.out}{drained.err}"


@pytest.mark.promise("A node is drained")
def test_a_drained_node_ends_its_workers_and_its_place_goes_to_another(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl, start_cli: StartCommand
) -> None:
    nodes = fleet(2, max_proc=2)
    # Ten pages a second and worker, so that the drain ends long before the crawl does.
    pages = site(300, "--latency=0.2", per_page=100)
    pace = {"CONCURRENT_REQUESTS": 2, "DISTRIBUTED_BATCH_SIZE": 20, "DISTRIBUTED_MAX_JOBS": 2}
    it, command = begun(nodes, pages, DISTRIBUTED_MODE="pull", **pace)
    held = wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    wait_for(lambda: nodes[1].jobs("running"), 60, "a worker on node2")
    draining = start_cli(it, "nodes", "drain", "node1")
    wait_for(lambda: state_of(it, "node1") == "draining", 20, "the crawl knows of the drain")
    assert draining.wait(60).code == 0
    assert command.running(), "the crawl was over before the node was drained"
    assert not nodes[0].jobs("running")
    assert not nodes[0].jobs("pending")
    leased = attempts(it, node="node1")
    wait_for(lambda: len(nodes[1].jobs("running")) == 2, 60, "the place of its worker at node2")
    assert_whole(command.wait(180), it, pages)
    assert len(attempts(it, node="node1")) == len(leased), "it leased once more"
    assert {one["id"] for one in nodes[0].jobs()} == set(held.values()), "it got another job"
    assert set(pages.item_hits().values()) == {1}, "a page was fetched twice"
    assert not attempts(it, AttemptState.FAILED)


@pytest.mark.full
def test_nodes_of_a_file_join_leave_and_come_back(
    fleet: StartFleet, site: StartSite, begun: BeginCrawl, tmp_path: Path
) -> None:
    one, two = fleet(2)
    pages = site(500, "--latency=0.3", per_page=100)
    listed = tmp_path / "nodes.txt"
    listed.write_text(f"{one.url} name=one\n")
    it, command = begun([], pages, DISTRIBUTED_BATCH_SIZE=25, DISTRIBUTED_NODES=[f"file:{listed}"])
    wait_for(
        lambda: attempts(it, AttemptState.RUNNING, node="one"),
        90,
        "a job at work on the first node",
    )
    listed.write_text(f"{one.url} name=one\n{two.url} name=two slots=1\n")
    wait_accepted(it, node="two")
    listed.write_text(f"{two.url} name=two slots=1\n")
    wait_for(lambda: state_of(it, "one") == "left", 20, "it is known to have left")
    before = len(attempts(it, node="one"))
    wait_for(lambda: not attempts(it, AttemptState.RUNNING, node="one"), 60, "its jobs have ended")
    assert len(attempts(it, node="one")) == before
    listed.write_text(f"{one.url} name=one\n{two.url} name=two slots=1\n")
    wait_for(lambda: len(attempts(it, node="one")) > before, 60, "it gets work again")
    assert_done(command.wait(180), it, pages)


# between the producer and a node something spoils the exchange: no batch runs twice by mistake, and none is lost

#: mishaps after which the node has the job
TAKEN = (proxy.LATE, proxy.CUT, proxy.RESET, proxy.FAILED_AFTER, proxy.PAGE_AFTER)
#: mishaps after which the node has never heard of the job
NOT_TAKEN = (proxy.FAILED_BEFORE, proxy.PAGE_BEFORE, proxy.SWALLOWED)
SIZE = 30


@dataclass(frozen=True)
class Scene:
    """One node behind a proxy, a site, and a project that knows the node by the proxy's address."""

    node: ScrapydNode
    proxy: Proxy
    site: SiteProcess
    project: Project

    def assert_whole(self, done: Result) -> None:
        """Exit 0, exactly the site's items, and no job was started twice under one id."""
        done.expect(0)
        assert_exact(self.project, self.site)
        ids = Counter(row["id"] for row in self.node.jobs())
        assert set(ids.values()) == {1}, ids


@pytest.fixture
def scene(
    scrapyd_node: Callable[..., ScrapydNode], site: StartSite, project: MakeProject
) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:

        def make(items: int, latency: float = 0.05) -> Scene:
            pages, node = site(items, f"--latency={latency}", per_page=SIZE), scrapyd_node()
            between = stack.enter_context(closing(Proxy(node)))
            settings = {**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": SIZE, "START_URL": pages.start_url}
            it = project(settings=settings, extra=between.section("properties", "behind"))
            return Scene(node, between, pages, it)

        yield make


def test_a_job_that_was_taken_is_not_sent_again_and_one_that_was_not_is(
    scene: Callable[..., Scene], run_scrapy: RunCommand
) -> None:
    mishaps = (*TAKEN, *NOT_TAKEN)
    here = scene(SIZE * len(mishaps))
    here.project.settings(DISTRIBUTED_MAX_ATTEMPTS=len(NOT_TAKEN) + 1)
    for mishap in mishaps:
        here.proxy.spoil("schedule.json", mishap)
    done = run_scrapy(here.project, "crawl", "easy", "-o", "items.jl")
    here.assert_whole(done)
    assert here.proxy.spoilt["schedule.json"] == len(mishaps)
    assert done.err.count("it is not known whether job") == len(mishaps)
    lost = attempts(here.project, AttemptState.FAILED)
    assert len(lost) == len(NOT_TAKEN)
    assert all("did not take it" in attempt.reason for attempt in lost), lost
    assert set(here.site.item_hits().values()) == {1}


@pytest.mark.full
def test_many_exchanges_of_every_kind_are_spoilt(
    scene: Callable[..., Scene], start_scrapy: StartCommand
) -> None:
    here = scene(400, 0.15)
    command = start_scrapy(here.project, "crawl", "easy", "-o", "items.jl")
    for round_, mishap in enumerate((proxy.CUT, proxy.FAILED_AFTER, proxy.PAGE_AFTER)):
        wait_accepted(here.project, 2 * round_ + 1)
        here.proxy.spoil("*", mishap, times=12)
    here.assert_whole(command.wait(180))
    assert here.proxy.spoilt["*"] > 12
    assert last_crawl(here.project).summary["dead_urls"] == 0
