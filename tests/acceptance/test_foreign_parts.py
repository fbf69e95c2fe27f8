"""Faults of the project's own parts, at the start and while a crawl runs: told as what they are."""

from typing import Any

import pytest
from rig.crawls import QUICK, crawls, said
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
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


START_FAILS = """
    from properties.spiders.easy import EasySpider

    class Bad(EasySpider):
        name = "bad"

        async def start(self):
            raise LookupError("no list of shops")
            yield
"""


@pytest.mark.parametrize(
    ("spider", "settings", "state", "words"),
    [
        (
            "easy",
            {"EXTENSIONS": {"properties.parts.NeedsMore": 5}},
            "refused",
            ("KeyError", "PRICES_KEY"),
        ),
        (
            "easy",
            {"ITEM_PIPELINES": {"properties.parts.OpensNothing": 5}},
            "refused",
            ("OSError", "database: prices"),
        ),
        (
            "easy",
            {"SCHEDULER": "properties.breaks.Breaks"},
            "stopped",
            ("ValueError: no room", "sdist resume"),
        ),
        ("bad", {}, "", ("LookupError: no list of shops",)),
    ],
    ids=["made", "opened", "engine", "start"],
)
def test_a_part_that_fails_is_told_and_is_no_interruption(
    spider: str, settings: dict[str, Any], state: str, words: tuple[str, ...],
    project: MakeProject, node: ScrapydNode, the_site: SiteProcess, run_cli: RunCommand
) -> None:  # fmt: skip
    it = project(nodes=[node], settings={**QUICK, "START_URL": the_site.start_url, **settings})
    it.write("properties/parts.py", PARTS)
    it.write("properties/breaks.py", BREAKS)
    it.spider("bad", START_FAILS)
    done = run_cli(it, "crawl", spider)
    row = crawls(it)[0]
    assert done.code == row.exit_code == (2 if state == "refused" else 1), said(done)
    assert "interrupted" not in done.out + done.err + row.message
    for word in words:
        assert word in done.out + done.err
    if state:
        assert row.state.value == state
        for word in (*words, "producer.log"):
            assert word in row.message
