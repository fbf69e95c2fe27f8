"""A machine with two users: nothing that one of them has planted makes a command of the other one act."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from rig.fixtures import MakeProject, RunCommand

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import open_store

#: the other user
OTHER = 54321
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def give_away(folder: Path) -> None:
    """Make it the other user's, with all that is in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


@two_users
@pytest.mark.promise("Files that another user can write are not used")
@pytest.mark.black_box
def test_a_planted_crawl_runs_no_command_and_a_planted_node_gets_no_code(
    project: MakeProject, run_cli: RunCommand, tmp_path: Path
) -> None:
    it = project()
    settings = {"DISTRIBUTED_ON_FINISH": f"touch {tmp_path / 'ran'}"}
    options = {"settings": settings, "args": {}, "spider_settings": {}, "cwd": str(it.path)}
    crawl = Crawl(
        id="c", project="demo", spider="s", state=CrawlState.STOPPED, created=1.0, options=options
    )
    with closing(
        open_store(it.path / ".sdist" / "store.db", key=state_key(state_dir(it.path)))
    ) as store:
        store.add_crawl(crawl)
        store.update_node("evil", url="http://127.0.0.1:1")
    give_away(it.path / ".sdist")
    for words in (("resume", "c"), ("deploy", "--all"), ("crawl", "easy"), ("doctor",)):
        done = run_cli(it, *words)
        done.expect(2, "belongs to 54321, and this is run by root", "chown root")
    assert not (tmp_path / "ran").exists()
