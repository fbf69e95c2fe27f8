"""Without Twisted's reactor (TWISTED_REACTOR_ENABLED = False) the same crawl, with the same guarantees."""

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.waiting import wait_for
from scrapy.settings import default_settings

pytestmark = pytest.mark.skipif(
    not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"), reason="this Scrapy always has a reactor"
)
REACTORLESS = {**QUICK, "TWISTED_REACTOR_ENABLED": False}


def test_by_settings_alone(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode], site: StartSite
) -> None:
    there = site(90)
    it = project(
        nodes=pair, settings={**REACTORLESS, "ADDONS": ADDON, "START_URL": there.start_url, "LOG_LEVEL": "DEBUG"}
    )
    down = f"[deploy:down]\nurl = http://127.0.0.1:{free_port()}/\nproject = properties\n"
    it.targets(pair, down)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl", code=0)
    assert there.differences(it.items("items.jl")) == {}
    assert_each_page_once(there)
    row = last_crawl(it)
    logs = [node.job_log(f"{row.id}.b{number}.a1") for node in pair for number in (1, 2, 3)]
    for log in (done.err, *filter(None, logs)):
        assert "Not using a Twisted reactor" in log
    assert {node["name"]: node["jobs"] > 0 for node in row.summary["nodes"]}["down"] is False
    assert any("goes on without it" in text for text in row.summary["warnings"])


@pytest.mark.black_box
def test_interrupted_and_resumed(
    project: MakeProject, start_scrapy: StartCommand, run_cli: RunCommand, pair: list[ScrapydNode], site: StartSite
) -> None:
    there = site(120, "--latency=0.2")
    settings = {**REACTORLESS, "ADDONS": ADDON, "START_URL": there.start_url, "CONCURRENT_REQUESTS": 2}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_BATCH_SIZE": 20})
    command = start_scrapy(it, "crawl", "easy", "-o", "items.jl")
    wait_for(lambda: any(node.job_pids() for node in pair), 60, "a job that runs")
    command.signal()
    done = command.wait(60, code=130)
    row = last_crawl(it)
    assert f"sdist resume {row.id}" in done.err
    run_cli(it, "resume", row.id, code=0)
    assert there.differences(it.items("items.jl")) == {}


@pytest.mark.black_box
def test_a_reactor_that_is_not_asyncio_s_is_refused(
    project: MakeProject, run_scrapy: RunCommand, pair: list[ScrapydNode]
) -> None:
    reactor = "twisted.internet.selectreactor.SelectReactor"
    it = project(nodes=pair, settings={**QUICK, "ADDONS": ADDON, "TWISTED_REACTOR": reactor})
    done = run_scrapy(it, "crawl", "easy", code=2)
    assert "TWISTED_REACTOR" in done.err
    assert "Traceback" not in done.err
