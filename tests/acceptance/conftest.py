"""The fixtures of the acceptance tests alone; what they hand out lives in tests/rig."""

import pytest
from rig.consumers import bench, consumer_nodes  # noqa: F401 - fixtures
from rig.fixtures import StartFleet, StartSite
from rig.nodes import ScrapydNode
from rig.pullers import frontier  # noqa: F401 - a fixture
from rig.sites import SiteProcess


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
