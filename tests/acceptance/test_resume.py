"""A crawl that was stopped goes on, and what was given up is tried again: nothing missing, nothing twice."""

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.bad_days import IMPATIENT, ITEMS, accepted_on, arguments, assert_resumed, batches, begin, wait_accepted
from rig.commands import Command
from rig.crawls import ADDON, QUICK, crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.waiting import wait_for

from scrapyd_dist.batches import CrawlState

BOTH_WAYS = pytest.mark.parametrize("way", ["scrapy", pytest.param("sdist", marks=pytest.mark.black_box)])


@pytest.fixture
def begun(start_scrapy: StartCommand, start_cli: StartCommand) -> Callable[..., Command]:
    """`begun(way, project, site)`: a crawl that runs."""
    return lambda way, project, site: begin(way, project, site, scrapy=start_scrapy, cli=start_cli)


@BOTH_WAYS
def test_all_nodes_die_in_the_middle(
    way: str, project: MakeProject, fleet: StartFleet, site: StartSite, begun: StartCommand, run_cli: RunCommand
) -> None:
    nodes, pages = fleet(2), site(300, "--latency=0.2", per_page=100)
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
    run_cli(it, "resume", row.id, code=5)
    assert len(batches(it)) >= len(accepted_on(it)) > 0, "the batches are gone"
    for node in nodes:
        node.restart()
    assert_resumed(run_cli(it, "resume", row.id, "--json", timeout=180), it, pages)


@pytest.mark.black_box
def test_the_producer_is_killed_at_some_moments(
    project: MakeProject,
    fleet: StartFleet,
    site: StartSite,
    begun: StartCommand,
    start_cli: StartCommand,
    run_cli: RunCommand,
) -> None:
    nodes, pages = fleet(2), site(400, "--latency=0.15", per_page=20)
    it = project(nodes=nodes, settings={**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 40})
    command = begun("scrapy", it, pages)
    for number, moment in enumerate((70, 250)):
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
def test_a_batch_that_cannot_be_sealed_stops_the_crawl_and_is_found_again(
    fleet: StartFleet, site: StartSite, project: MakeProject, start_scrapy: StartCommand, run_cli: RunCommand
) -> None:
    origin = site(90, "--latency=0.3", per_page=10)
    it = project(
        nodes=fleet(1), settings={"ADDONS": ADDON, "START_URL": origin.start_url, **QUICK, "DISTRIBUTED_BATCH_SIZE": 20}
    )
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: crawls(it) and batches(it), 60, "the first batch")
    database = sqlite3.connect(it.path / ".sdist" / "store.db", timeout=30)
    with database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    stopped = command.wait(60)
    assert (stopped.code, "disk full" in stopped.err) == (1, True), stopped.err
    with database:
        database.execute("DROP TRIGGER full")
        (name,) = database.execute("SELECT id FROM crawls").fetchone()
    database.close()
    run_cli(it, "resume", name, code=0)
    assert origin.differences(it.items("items.jl")) == {}


#: dies on one page as long as a file is there: what a library that crashes is until it is mended
FRAGILE = """
    import os
    import signal
    from pathlib import Path

    from properties.spiders.easy import EasySpider


    class FragileSpider(EasySpider):
        name = "fragile"

        def parse_item(self, response):
            if response.url.endswith({url!r}) and Path({flag!r}).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            yield from super().parse_item(response)
"""


def test_what_was_given_up_is_tried_again(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    pages, flag = site(12), tmp_path / "broken"
    flag.touch()
    pages.behave({pages.site.detail_path(1): "fail", pages.site.detail_path(9): "gone"})
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 4}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_MAX_ATTEMPTS": 1})
    it.spider("fragile", FRAGILE.format(url=pages.site.detail_path(6), flag=str(flag)))
    command = [text.replace("easy", "fragile") for text in arguments("sdist", pages, shards=1)]
    run_cli(it, *command, code=3)
    crawl = crawls(it)[0].id

    dead = run_cli(it, "batches", crawl, "--state", "dead", "--urls")
    assert dead.out.split() == [pages.detail(6)]
    listed = run_cli(it, "batches", crawl, "--json").json()
    assert {row["state"] for row in listed["batches"]} == {"done", "dead", "split"}
    run_cli(it, "batches", crawl, "--state", "lost", code=2)

    flag.unlink()
    pages.behave({pages.site.detail_path(9): "gone"})
    run_cli(it, "retry", crawl, "--failed-urls", "--json", code=0)
    assert pages.differences(it.items(ITEMS), without=[9]) == {}
    summary = last_crawl(it).summary
    assert (summary["failed_urls"], summary["dead_urls"], summary["gone_urls"]) == (0, 0, 1)
    assert "nothing to try again" in run_cli(it, "retry", crawl, "--failed-urls", code=4).err
