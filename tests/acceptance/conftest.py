"""The fixtures of the acceptance tests alone; what they hand out lives in tests/rig."""

from typing import Any

import pytest
from rig.bad_days import IMPATIENT, MakeScene, Scene
from rig.consumers import bench, consumer_nodes  # noqa: F401 - fixtures
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.pullers import frontier  # noqa: F401 - a fixture
from rig.sites import SiteProcess
from rig.strategy_bench import engine, strategy_bench, strategy_nodes  # noqa: F401 - fixtures


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    """Two nodes that all tests of a module share."""
    return module_fleet(2)


@pytest.fixture(scope="module")
def the_site(module_site: StartSite) -> SiteProcess:
    """A site that all tests of a module share."""
    return module_site(90)


@pytest.fixture
def site_now(the_site: SiteProcess) -> SiteProcess:
    """That site, as if it had just been started."""
    the_site.behave({})
    the_site.reset()
    return the_site


@pytest.fixture
def scene(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, start_scrapy: StartCommand,
    start_cli: StartCommand, run_cli: RunCommand,
) -> MakeScene:  # fmt: skip
    """`scene(300, "--latency=0.2", per_page=100, nodes=fleet(2), LOG_LEVEL="INFO", …)`: else on the module's pair."""

    def make(
        items: int,
        *options: str,
        per_page: int = 30,
        nodes: list[ScrapydNode] | None = None,
        **settings: Any,
    ) -> Scene:
        there, pages = nodes or pair, site(items, *options, per_page=per_page)
        it = project(nodes=there, settings={**IMPATIENT, "START_URL": pages.start_url, **settings})
        return Scene(it, there, pages, start_scrapy, start_cli, run_cli)

    return make
