"""The fixtures of the acceptance tests alone; what they hand out lives in tests/rig."""

import pytest
from rig.consumers import bench, consumer_nodes  # noqa: F401 - fixtures
from rig.fixtures import StartFleet
from rig.nodes import ScrapydNode
from rig.pullers import frontier  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> list[ScrapydNode]:
    """Two nodes that all tests of a module share."""
    return module_fleet(2)
