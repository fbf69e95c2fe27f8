"""Faults of the project's own parts, at the start and while a crawl runs: told as what they are."""

from typing import Any

import pytest
from rig.commands import Result
from rig.crawls import QUICK, crawls, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.sites import SiteProcess

pytestmark = pytest.mark.black_box

PARTS = """
    class OpensNothing:
        def open_spider(self):
            raise OSError("no such database: prices")

        def process_item(self, item):
            return item


    class NeedsMore:
        @classmethod
        def from_crawler(cls, crawler):
            raise KeyError("PRICES_KEY")
"""
#: comes between the engine and the spider, and breaks at the second thing that the spider starts with
BREAKS = """
    from scrapy.core.scheduler import Scheduler


    class Breaks(Scheduler):
        def enqueue_request(self, request):
            raise ValueError("no room in the queue")
"""


@pytest.fixture(scope="module")
def node(module_fleet: StartFleet) -> ScrapydNode:
    return module_fleet(1)[0]


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    return module_site(30)


def made(project: MakeProject, node: ScrapydNode, site: SiteProcess, **settings: Any) -> Project:
    it = project(nodes=[node], settings={**QUICK, "START_URL": site.start_url, **settings})
    it.write("properties/parts.py", PARTS)
    it.write("properties/breaks.py", BREAKS)
    return it


def assert_fault(done: Result, it: Project, state: str, code: int, *words: str) -> None:
    """The crawl is known to have failed, not to have been interrupted."""
    assert done.code == code, said(done)
    row = crawls(it)[0]
    assert (row.state.value, row.exit_code) == (state, code)
    assert "interrupted" not in row.message
    for word in (*words, "producer.log"):
        assert word in row.message
        assert word in done.err + done.out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"EXTENSIONS": {"properties.parts.NeedsMore": 5}}, ("KeyError", "PRICES_KEY")),
        ({"ITEM_PIPELINES": {"properties.parts.OpensNothing": 5}}, ("OSError", "no such database: prices")),
    ],
    ids=["made", "opened"],
)
def test_a_part_that_fails_at_the_start_is_told(
    settings: dict[str, Any],
    words: tuple[str, ...],
    project: MakeProject,
    node: ScrapydNode,
    the_site: SiteProcess,
    run_cli: RunCommand,
) -> None:
    it = made(project, node, the_site, **settings)
    assert_fault(run_cli(it, "crawl", "easy"), it, "refused", 1, *words)


def test_an_engine_that_breaks_is_no_interruption(
    project: MakeProject, node: ScrapydNode, the_site: SiteProcess, run_cli: RunCommand
) -> None:
    it = made(project, node, the_site, SCHEDULER="properties.breaks.Breaks")
    done = run_cli(it, "crawl", "easy")
    assert_fault(done, it, "stopped", 1, "ValueError: no room in the queue", "sdist resume")


def test_a_spider_whose_start_fails_is_told(
    project: MakeProject, node: ScrapydNode, the_site: SiteProcess, run_cli: RunCommand
) -> None:
    it = made(project, node, the_site)
    it.spider(
        "bad",
        """
        from properties.spiders.easy import EasySpider

        class Bad(EasySpider):
            name = "bad"

            async def start(self):
                raise LookupError("no list of shops")
                yield
        """,
    )
    done = run_cli(it, "crawl", "bad")
    row = crawls(it)[0]
    assert done.code == row.exit_code == 1, said(done)
    assert "LookupError: no list of shops" in done.out + done.err
    assert "interrupted" not in done.out + done.err
