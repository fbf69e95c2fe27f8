"""The fixtures of the acceptance tests alone; what they hand out lives in tests/rig."""

from rig.pullers import frontier  # noqa: F401 - a fixture
