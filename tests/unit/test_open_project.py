"""What a project has is opened at its first use, and looking makes nothing."""

from contextlib import closing
from pathlib import Path

import pytest

from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.fleet.open_project import OpenProject


def test_a_project_opens_one_store_and_looking_makes_none(root: Path) -> None:
    with closing(OpenProject(root)) as opened:
        assert opened.root == root
        assert opened.store_if_any is None
        with pytest.raises(NothingMatched):
            opened.store  # noqa: B018 - it is opened here
        assert not (root / ".sdist").exists()
        assert opened.new_store is opened.new_store is opened.store is opened.store_if_any
    with closing(OpenProject(root)) as opened:
        assert opened.store.crawls() == []  # what was made is there
