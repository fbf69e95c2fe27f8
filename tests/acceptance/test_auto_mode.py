"""What a crawl does by itself: workers lease where they reach the store, other nodes are sent their batches."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from rig.crawls import ADDON, QUICK, assert_each_page_once, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartSite
from rig.nodes import ScrapydNode
from rig.waiting import wait_for

#: the name of the store in the environment of a node, which no job can open
NOWHERE = {"SDIST_STORE": "/nowhere/store.db"}


def ways_of(node: ScrapydNode) -> set[str]:
    """How the node got its work: by workers (`w`), by batches (`b`)."""
    folder = node.logs_dir / "properties" / "easy"
    return {path.name.split(".")[-3][0] for path in folder.glob("*.log")}


@pytest.fixture
def crawl(project: MakeProject, site: StartSite) -> Callable[..., Any]:
    """A project on these nodes, and its site."""

    def make(*nodes: ScrapydNode, items: int = 300, **settings: Any) -> Any:
        shop = site(items)
        usual = {**QUICK, "ADDONS": ADDON, "START_URL": shop.start_url, "DISTRIBUTED_MODE": "auto"}
        return project(nodes=nodes, settings={**usual, "DISTRIBUTED_BATCH_SIZE": 10, **settings}), shop

    return make


@pytest.mark.black_box
def test_nodes_whose_workers_reach_the_store_lease(
    crawl: Callable[..., Any], scrapyd_node: Callable[..., ScrapydNode], run_scrapy: RunCommand
) -> None:
    nodes = [scrapyd_node(poll_interval=0.2) for _ in range(2)]
    it, shop = crawl(*nodes)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert shop.differences(it.items("items.jl")) == {}
    assert_each_page_once(shop)
    assert [ways_of(node) for node in nodes] == [{"w"}] * 2


@pytest.mark.black_box
@pytest.mark.parametrize("far", [1, 2])
def test_nodes_whose_workers_do_not_reach_the_store_are_sent_their_batches(
    crawl: Callable[..., Any], scrapyd_node: Callable[..., ScrapydNode], run_scrapy: RunCommand, far: int
) -> None:
    nodes = [scrapyd_node(poll_interval=0.2, env=NOWHERE if number < far else {}) for number in range(2)]
    it, shop = crawl(*nodes, items=600)
    done = run_scrapy(it, "crawl", "easy", "-o", "items.jl")
    assert done.code == 0, said(done)
    assert shop.differences(it.items("items.jl")) == {}
    assert_each_page_once(shop)
    assert ["b" in ways_of(node) for node in nodes] == [True, far == 2]
    assert "its workers do not reach the store, so it is sent its batches" in done.err
    summary = last_crawl(it).summary
    assert all(node["jobs"] and not node["reason"] for node in summary["nodes"]), summary["nodes"]


@pytest.mark.black_box
def test_a_crawl_whose_process_was_killed_goes_on_on_all_nodes(
    crawl: Callable[..., Any], scrapyd_node: Callable[..., ScrapydNode],
    start_scrapy: StartCommand, run_cli: RunCommand
) -> None:  # fmt: skip
    nodes = [scrapyd_node(poll_interval=0.2, env=env) for env in (NOWHERE, {})]
    it, shop = crawl(*nodes, items=600)
    running = start_scrapy(it, "crawl", "easy")
    wait_for(lambda: len(shop.hits()) > 100, 60, "pages were made")
    running.signal(signal.SIGKILL)
    running.wait(30)
    done = run_cli(it, "resume", last_crawl(it).id)
    assert done.code == 0, said(done)
    assert shop.differences(it.items(f"{last_crawl(it).id}.jl")) == {}
