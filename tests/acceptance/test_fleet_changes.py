"""The fleet changes while a crawl runs: a node joins, one is drained, one leaves; nothing is lost, nothing twice."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from rig.bad_days import IMPATIENT, assert_exact, attempts, begin, running_on, wait_accepted, wait_running
from rig.commands import Command, Result
from rig.crawls import last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for


@pytest.fixture
def begun(start_scrapy: StartCommand, start_cli: StartCommand) -> Callable[..., Command]:
    """`begun(way, project, site)`: a crawl that runs."""
    return lambda way, project, site: begin(way, project, site, scrapy=start_scrapy, cli=start_cli)


def state_of(project: Project, node: str) -> str:
    """What the crawl's summary calls the node now; nothing when it does not know it."""
    return next((row["state"] for row in last_crawl(project).summary.get("nodes", ()) if row["name"] == node), "")


def posted_to(project: Project, node: str) -> int:
    return sum(attempt.node == node for attempt in attempts(project))


def assert_done(done: Result, project: Project, site: SiteProcess) -> None:
    assert done.code == 0, done.err
    assert_exact(project, site)
    assert {attempt.state.value for attempt in attempts(project)} == {"accepted"}, "an attempt was cut off"
    assert site.item_hits().total() == site.site.items, "a page was fetched twice"


def test_a_node_joins_by_scrapy_cfg_and_the_first_one_is_drained(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand, run_cli: RunCommand
) -> None:
    first, second = fleet(1)[0], fleet(1, username="me", password="hush/42:@")[0]
    pages = site(240, "--latency=0.2", per_page=60)
    it = project(nodes=[first], settings={**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 20, "START_URL": pages.start_url})
    command = begun("sdist", it, pages)
    wait_running(it, first.name)
    it.targets([first, second])
    wait_accepted(it, node=second.name)
    drained = run_cli(it, "nodes", "drain", first.name, "--no-wait")
    assert drained.code in {0, 3}, drained.err
    wait_for(lambda: state_of(it, first.name) == "draining", 20, "the crawl knows of the drain")
    before = posted_to(it, first.name)
    assert_done(command.wait(180), it, pages)
    assert posted_to(it, first.name) == before
    assert "hush" not in f"{command.out}{command.err}{drained.out}{drained.err}"


@pytest.mark.black_box
def test_nodes_of_a_file_join_leave_and_come_back(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    one, two = fleet(2)
    pages = site(500, "--latency=0.3", per_page=100)
    settings: dict[str, Any] = {**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 25, "START_URL": pages.start_url}
    it = project(settings={**settings, "DISTRIBUTED_NODES": ["file:nodes.txt"]})
    listed = it.path / "nodes.txt"
    listed.write_text(f"{one.url} name=one\n")
    command = begun("scrapy", it, pages)
    wait_running(it, "one")
    listed.write_text(f"{one.url} name=one\n{two.url} name=two slots=1\n")
    wait_accepted(it, node="two")
    listed.write_text(f"{two.url} name=two slots=1\n")
    wait_for(lambda: state_of(it, "one") == "left", 20, "it is known to have left")
    before = posted_to(it, "one")
    wait_for(lambda: not running_on(it, "one"), 60, "its jobs have ended")
    assert posted_to(it, "one") == before
    listed.write_text(f"{one.url} name=one\n{two.url} name=two slots=1\n")
    wait_for(lambda: posted_to(it, "one") > before, 60, "it gets work again")
    assert_done(command.wait(180), it, pages)


@pytest.mark.black_box
def test_nodes_of_a_command_that_breaks_meanwhile(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    one, two = fleet(2)
    pages = site(400, "--latency=0.3", per_page=100)
    run = {"DISTRIBUTED_NODES": [f"cmd:{sys.executable} list.py"], "DISTRIBUTED_NODES_EVERY": 1}
    it = project(settings={**IMPATIENT, "DISTRIBUTED_BATCH_SIZE": 25, "START_URL": pages.start_url, **run})
    (it.path / "list.py").write_text(f"print({f'{one.url} name=one'!r})")
    command = begun("sdist", it, pages)
    wait_running(it, "one")
    (it.path / "list.py").write_text("raise SystemExit('the cloud is closed')")
    wait_accepted(it, 2, node="one")
    (it.path / "list.py").write_text(f"print({f'{one.url} name=one'!r}); print({f'{two.url} name=two'!r})")
    wait_accepted(it, node="two")
    assert_done(command.wait(180), it, pages)


@pytest.mark.black_box
def test_without_a_batch_size_every_slot_works_early_and_nothing_is_lost(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand
) -> None:
    nodes, pages = fleet(3), site(600, "--latency=0.1", per_page=100)
    settings = {name: value for name, value in IMPATIENT.items() if name != "DISTRIBUTED_BATCH_SIZE"}
    it = project(nodes=nodes, settings={**settings, "START_URL": pages.start_url})
    assert_done(begun("sdist", it, pages).wait(180), it, pages)
    assert {attempt.node for attempt in attempts(it)} == {node.name for node in nodes}
