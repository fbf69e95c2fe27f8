"""Nodes and workers that die, hang or are away: no item missing, none twice, and the account says what happened."""

import os
import signal
from collections.abc import Callable

import pytest
from rig.bad_days import (
    IMPATIENT,
    assert_exact,
    attempts,
    begin,
    busy_workers,
    wait_accepted,
    wait_running,
)
from rig.commands import Command, Result
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, StartCommand, StartFleet, StartSite
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.batches import Attempt, AttemptState

pytestmark = pytest.mark.black_box

BOTH_WAYS = pytest.mark.parametrize("way", ["scrapy", "sdist"])


@pytest.fixture
def begun(start_scrapy: StartCommand, start_cli: StartCommand) -> Callable[..., Command]:
    """`begun(way, project, site)`: a crawl that runs."""
    return lambda way, project, site: begin(way, project, site, scrapy=start_scrapy, cli=start_cli)


def assert_whole(done: Result, project: Project, site: SiteProcess, gone: tuple[int, ...] = ()) -> None:
    """The crawl ended well and complete, and its account says the same as the site."""
    assert done.code == 0, done.err
    assert_exact(project, site, without=gone)
    summary, described = last_crawl(project).summary, site.site
    assert summary["state"] == "finished"
    assert summary["sealed"] == described.items
    assert summary["duplicate"] == described.pages * described.duplicates
    assert summary["offsite"] == described.pages * described.offsite
    assert summary["urls_found"] == described.items + described.pages * (described.duplicates + described.offsite)
    assert (summary["items"], summary["gone_urls"]) == (described.items - len(gone), len(gone))
    assert (summary["failed_urls"], summary["dead_urls"], summary["index_failed"]) == (0, 0, 0)
    assert summary["batches"]["dead"] == 0


def test_one_node_away_one_killed_one_worker_killed(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    nodes, pages = fleet(3), site(600, "--latency=0.3", per_page=100, offsite=2, duplicates=3)
    pages.behave({pages.site.detail_path(555): "gone"})
    nodes[0].kill()
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun("scrapy", it, pages)
    wait_accepted(it, node="node2")
    nodes[1].kill()
    victim, job = wait_for(lambda: list(busy_workers(nodes[2]).items()), 60, "a busy worker on node3")[0]
    os.kill(victim, signal.SIGKILL)
    done = command.wait(180)
    assert_whole(done, it, pages, gone=(555,))
    assert job in failed_jobs(it), "the worker was killed too late to show anything"
    assert not [attempt for attempt in attempts(it, AttemptState.ACCEPTED) if attempt.node == "node1"]
    states = {node["name"]: node["state"] for node in last_crawl(it).summary["nodes"]}
    assert states == {"node1": "down", "node2": "down", "node3": "up"}


def test_a_whole_machine_dies(project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand) -> None:
    nodes, pages = fleet(2), site(500, "--latency=0.3", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun("sdist", it, pages)
    wait_accepted(it, node="node1")
    wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    nodes[0].kill()
    nodes[0].kill_jobs()
    assert_whole(command.wait(180), it, pages)
    lost = attempts(it, AttemptState.FAILED)
    assert lost
    assert {attempt.node for attempt in lost} == {"node1"}


@BOTH_WAYS
def test_a_machine_hangs_and_comes_back_while_the_crawl_goes_on(
    way: str, project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    nodes, pages = fleet(2, jobs_to_keep="1000"), site(900, "--latency=0.4", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun(way, it, pages)
    wait_accepted(it)
    held = wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    nodes[0].pause()
    stopped = nodes[0].job_pids()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: set(held.values()) <= failed_jobs(it), 60, "its jobs given up")
    nodes[0].go_on()
    # Each is cancelled once, and once more where it runs. A stopped process gets the signal when it goes on.
    least = len([attempt for attempt in failed(it) if attempt.node == "node1"]) + len(held)
    wait_for(lambda: nodes[0].log.count("POST /cancel.json") >= least, 60, "its old jobs cancelled")
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: all("SIGINT" in nodes[0].job_log(job) for job in held.values()), 60, "the signal in their logs")
    wait_for(lambda: not held.keys() & nodes[0].job_pids().keys(), 60, "the end of its old jobs")
    assert_whole(command.wait(180), it, pages)
    assert not {a.job for a in attempts(it, AttemptState.ACCEPTED)} & set(held.values())
    after = [a for a in attempts(it) if a.node == "node1" and a.sent_at > max(a.ended_at or 0 for a in failed(it))]
    assert after, "it got no more work after it came back"


def test_a_daemon_hangs_while_its_workers_go_on(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    nodes, pages = fleet(2), site(500, "--latency=0.2", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_NODE_TIMEOUT": 60})
    command = begun("scrapy", it, pages)
    wait_running(it, "node1")
    nodes[0].pause()
    wait_for(lambda: "work goes elsewhere" in command.err, 60, "the silence noticed")
    wait_for(lambda: not nodes[0].job_pids(), 60, "its workers at their end")
    nodes[0].go_on()
    assert_whole(command.wait(180), it, pages)
    assert failed(it) == [], "work was thrown away though the node came back in time"
    assert set(pages.item_hits().values()) == {1}


def test_a_node_is_restarted_while_its_jobs_run(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    nodes, pages = fleet(1), site(200, "--latency=0.3", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_NODE_TIMEOUT": 30})
    command = begun("scrapy", it, pages)
    orphans = wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker")
    nodes[0].restart()
    assert_whole(command.wait(120), it, pages)
    collected = {attempt.job for attempt in attempts(it, AttemptState.ACCEPTED)}
    assert set(orphans.values()) <= collected, "what the orphans did was done again"
    assert set(pages.item_hits().values()) == {1}


def test_a_node_comes_back_empty(project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand) -> None:
    nodes, pages = fleet(2), site(800, "--latency=0.25", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun("scrapy", it, pages)
    wait_for(lambda: busy_workers(nodes[0]), 60, "a busy worker on node1")
    nodes[0].kill()
    old = nodes[0].kill_jobs()
    wait_for(lambda: set(old.values()) <= failed_jobs(it), 60, "its jobs given up")
    # A new machine under the old address: no eggs, no queue, no logs.
    nodes[0].work = nodes[0].work.with_name("new-work")
    nodes[0].work.mkdir()
    nodes[0].restart()
    wait_accepted(it, len([a for a in attempts(it, AttemptState.ACCEPTED) if a.node == "node1"]) + 1, "node1")
    assert_whole(command.wait(180), it, pages)


def failed(project: Project) -> list[Attempt]:
    return attempts(project, AttemptState.FAILED)


def failed_jobs(project: Project) -> set[str]:
    return {attempt.job for attempt in failed(project)}
