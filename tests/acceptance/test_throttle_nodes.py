"""The throttle over a fleet: the producer's index pages and the workers' pages keep one limit, pushed and pulled."""

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.throttled import mean_gap

pytestmark = pytest.mark.black_box

HITS, WINDOW = 20, 1.0
THROTTLED = {
    **QUICK, "ADDONS": ADDON, "DISTRIBUTED_THROTTLE_HITS": HITS, "DISTRIBUTED_THROTTLE_WINDOW": WINDOW,
    "DISTRIBUTED_BATCH_SIZE": 10, "ROBOTSTXT_OBEY": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes_up(module_fleet: StartFleet) -> list[ScrapydNode]:
    return module_fleet(2)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_whole_crawl_keeps_the_limit(
    mode: str, project: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site: StartSite
) -> None:
    """B2: jobs on one domain do not multiply its rate; every page comes, once."""
    there = site(40)
    it = project(nodes=nodes_up, settings={**THROTTLED, "DISTRIBUTED_MODE": mode, "START_URL": there.start_url})
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert there.differences(it.items("items.jl")) == {}
    assert_each_page_once(there)
    jobs = {node["name"]: node["jobs"] for node in last_crawl(it).summary["nodes"]}
    assert sum(jobs.values()) >= 2, jobs
    times = [hit["time"] for hit in there.log()]
    assert mean_gap(times) >= 0.95 * WINDOW / HITS


def test_settings_that_make_no_sense_are_refused(
    project: MakeProject, run_scrapy: RunCommand, nodes_up: list[ScrapydNode], site: StartSite
) -> None:
    there = site(3)
    wrong = {**THROTTLED, "START_URL": there.start_url, "DISTRIBUTED_THROTTLE_WINDOW": -1}
    done = run_scrapy(project(nodes=nodes_up, settings=wrong), "crawl", "easy", "-o", "items.jl")
    assert done.code == 2, said(done)
    assert "DISTRIBUTED_THROTTLE_WINDOW is -1.0, and must be" in done.err
    assert there.log() == []
