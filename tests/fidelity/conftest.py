"""The nodes and the site that all rows of a module share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rig.fidelity import Comparison
from rig.fixtures import StartFleet
from rig.museum import Museum


@pytest.fixture(scope="module")
def comparison(
    module_fleet: StartFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Comparison]:
    """Crawls projects plainly, and on two nodes."""
    folder: Path = tmp_path_factory.mktemp("fidelity")
    with closing(Museum()) as museum:
        yield Comparison(folder, module_fleet(2), museum)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    """Crawls projects plainly, and with the producer and its workers in one process."""
    with closing(Museum()) as museum:
        yield Comparison(tmp_path_factory.mktemp("fidelity"), (), museum)
