"""Without Twisted's reactor (TWISTED_REACTOR_ENABLED = False) the same crawl, with the same guarantees."""

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.waiting import wait_for
from scrapy.settings import default_settings

pytestmark = pytest.mark.skipif(
    not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"), reason="this Scrapy always has a reactor"
)
REACTORLESS = {**QUICK, "TWISTED_REACTOR_ENABLED": False}


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


def test_by_settings_alone(
    project: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site: StartSite
) -> None:
    there = site(90)
    it = project(
        nodes=nodes_up, settings={**REACTORLESS, "ADDONS": ADDON, "START_URL": there.start_url, "LOG_LEVEL": "DEBUG"}
    )
    down = f"[deploy:down]\nurl = http://127.0.0.1:{free_port()}/\nproject = properties\n"
    it.targets(nodes_up, down)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert_each_page_once(there)
    row = last_crawl(it)
    logs = [node.job_log(f"{row.id}.b{number}.a1") for node in nodes_up for number in (1, 2, 3)]
    for log in (done.err, *filter(None, logs)):
        assert "Not using a Twisted reactor" in log
    assert {node["name"]: node["jobs"] > 0 for node in row.summary["nodes"]}["down"] is False


@pytest.mark.black_box
def test_by_the_command(
    project: MakeProject, run_cli: RunCommand, nodes_up: list[ScrapydNode], site: StartSite
) -> None:
    there = site(90)
    it = project(nodes=nodes_up, settings={**REACTORLESS, "START_URL": there.start_url})
    index = ("--index", there.template, "--pages", "3", "--shards", "3")
    done = run_cli(it, "crawl", "easy", *index, "-o", "items.jl", "--json")
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert done.json()["items"] == 90


@pytest.mark.black_box
def test_interrupted_and_resumed(
    project: MakeProject, start_scrapy: StartCommand, run_cli: RunCommand, nodes_up: list[ScrapydNode], site: StartSite
) -> None:
    there = site(120, "--latency=0.2")
    settings = {**REACTORLESS, "ADDONS": ADDON, "START_URL": there.start_url, "CONCURRENT_REQUESTS": 2}
    it = project(nodes=nodes_up, settings={**settings, "DISTRIBUTED_BATCH_SIZE": 20})
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: any(node.job_pids() for node in nodes_up), 60, "a job that runs")
    command.signal()
    done = command.wait(60)
    assert done.code == 130, said(done)
    row = last_crawl(it)
    assert f"sdist resume {row.id}" in done.err
    again = run_cli(it, "resume", row.id)
    assert again.code == 0, said(again)
    assert there.differences(it.items("items.jl")) == {}


@pytest.mark.black_box
def test_a_reactor_that_is_not_asyncio_s_is_refused(
    project: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode]
) -> None:
    reactor = "twisted.internet.selectreactor.SelectReactor"
    it = project(nodes=nodes_up, settings={**QUICK, "ADDONS": ADDON, "TWISTED_REACTOR": reactor})
    done = run_scrapy(it, "crawl", "easy")
    assert done.code == 2, said(done)
    assert "TWISTED_REACTOR" in done.err
    assert "Traceback" not in done.err
