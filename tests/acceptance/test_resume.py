"""A crawl that was stopped or killed goes on where it was: nothing missing, nothing twice, the account unbroken."""

import os
import random
import signal
from collections.abc import Callable

import pytest
from rig.bad_days import IMPATIENT, accepted_on, assert_resumed, batches, begin, wait_accepted, wait_state
from rig.commands import Command
from rig.crawls import crawls
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState

BOTH_WAYS = pytest.mark.parametrize("way", ["scrapy", pytest.param("sdist", marks=pytest.mark.black_box)])
#: moments at which a producer is killed come from these
SEEDS = [11, 12, 13]


@pytest.fixture
def begun(start_scrapy: StartCommand, start_cli: StartCommand) -> Callable[..., Command]:
    """`begun(way, project, site)`: a crawl that runs."""
    return lambda way, project, site: begin(way, project, site, scrapy=start_scrapy, cli=start_cli)


@BOTH_WAYS
def test_all_nodes_die_in_the_middle(
    way: str, project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand, run_cli: RunCommand
) -> None:
    nodes, pages = fleet(2), site(400, "--latency=0.2", per_page=100)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun(way, it, pages)
    wait_accepted(it)
    for node in nodes:
        node.kill()
        node.kill_jobs()
    done = command.wait(90)
    row = crawls(it)[0]
    assert done.code == 3, done.err
    assert (row.state, row.exit_code) == (CrawlState.STOPPED, 3)
    assert f"sdist resume {row.id}" in row.message
    assert f"sdist resume {row.id}" in done.err
    assert 0 < len(accepted_on(it)) < len(batches(it))
    still_dark = run_cli(it, "resume", row.id)
    assert still_dark.code == 5, still_dark.err
    assert len(batches(it)) >= len(accepted_on(it)) > 0, "the batches are gone"
    for node in nodes:
        node.restart()
    assert_resumed(run_cli(it, "resume", row.id, "--json", timeout=180), it, pages)


@pytest.mark.black_box
@pytest.mark.parametrize("seed", SEEDS)
def test_the_producer_is_killed_at_some_moments(
    seed: int,
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    begun: StartCommand,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    dice = random.Random(seed)
    nodes, pages = fleet(2), site(500, "--latency=0.15", per_page=20)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 40})
    command = begun(dice.choice(["scrapy", "sdist"]), it, pages)
    moments = sorted(dice.sample(range(pages.site.items), 2))
    for number, moment in enumerate(moments):
        if number:
            command = start_cli(it, "resume", crawls(it)[0].id, "--json")
        # a default binds the variable of the loop
        wait_for(lambda moment=moment: sum(pages.item_hits().values()) >= moment, 90, f"{moment} pages")  # type: ignore[misc]
        producer = crawls(it)[0].pid
        assert producer, "it was over too early to show anything"
        os.kill(producer, signal.SIGKILL)
        died = command.wait(30)
        assert died.code == (-signal.SIGKILL if producer == command.pid else 1), died.err
    name = crawls(it)[0].id
    assert_resumed(run_cli(it, "resume", name, "--json", timeout=180), it, pages)
    assert max(pages.item_hits().values()) == 1, "jobs that went on without a producer were done again"


@pytest.mark.black_box
def test_what_failed_before_the_stop_is_still_told_after_it(
    project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand, run_cli: RunCommand
) -> None:
    nodes, pages = fleet(2), site(300, "--latency=0.2", per_page=100)
    pages.behave({pages.site.detail_path(3): "gone", pages.site.detail_path(4): "fail"})
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url})
    command = begun("scrapy", it, pages)
    wait_state(it, CrawlState.WORKING)
    first = wait_for(lambda: [a for a in accepted_on(it) if a.batch == 1], 60, "the first batch home")
    assert first[0].report["missed"] == 2
    command.signal(signal.SIGTERM)
    assert command.wait(60).code == 130
    done = run_cli(it, "resume", crawls(it)[0].id, "--json", timeout=180)
    assert done.code == 3, done.err
    told = done.json()
    assert (told["gone_urls"], told["failed_urls"], told["items"]) == (1, 1, 298)
    assert pages.differences(it.items("items.jl")) == {"missing": ["3", "4"]}
